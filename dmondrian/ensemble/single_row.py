"""One row at a time: the arguments of kernels, prepared once, for callers that come row by row.

Numba looks at the type of every argument of every call, and NumPy makes a view or two for each;
that takes longer than ten trees take to learn a row. Here the same kernels are called with the same
arguments each time, and the row is copied to where they look for it.

Relies on :mod:`dmondrian.ensemble.single_row_kernels`. Promises what the general way would do, or
nothing: a row that needs a closer look is left to it, before anything is changed. Arguments hold as
long as the trees lie where they are (:meth:`dmondrian.ensemble.predict.Predicting.table`) and the
parameters are the same.

Shapes: d features, k outputs, T trees.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian._numba.jit import entry_of
from dmondrian.ensemble.predict import Predicting
from dmondrian.ensemble.predictor.predictor import Kept, key_of
from dmondrian.ensemble.predictor.predictor_kernels import predict_frozen_alone
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.single_row_kernels import admit
from dmondrian.tree.box_encoding import Columns, Rows, boxless, n_words, read_only
from dmondrian.tree.loops import Silent, predict, update

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_NONE_3D, _NONE_1D = np.empty((0, 0, 0)), np.empty(0)
ROWS_UNASKED = 256  # rows alone that are learned before the forest is asked again
_COUNTED = 1024  # rows asked about, one by one, with none learned between, that count as a call


class Place:
    """Where kernels look for the row.

    Attributes
    ----------
    rows : Rows
        The one row, read-only.
    """

    def __init__(self, parameters: ForestParameters, columns: Columns) -> None:
        d, scales, units = (
            parameters.n_features, parameters.feature_scales, parameters.feature_units,
        )  # fmt: skip
        values, bits = np.zeros((1, d), np.float32), np.zeros((1, n_words(columns)), np.uint64)
        p, steps = len(columns.numeric), np.zeros((1, len(columns.stepped)), np.int16)
        is_plain = len(columns.stepped) + len(columns.binary) == 0
        numeric = values if is_plain else np.zeros((1, p), np.float32)
        own = Rows(values, numeric, steps, bits)
        self.rows = Rows(*map(read_only, own))
        factors = np.array(() if scales is None else scales, np.float32)
        steps_of = np.array(() if units is None else units, np.float64)
        how = factors, steps_of, parameters.domain == "cube", columns, own
        self._shape = 1, d
        self._narrow, self._wide = np.zeros((1, d), np.float32), np.zeros((1, d))
        self._arguments = (self._narrow, *how), (self._wide, *how)
        self._entries = tuple(entry_of(admit, given) for given in self._arguments)
        self._is_narrow = True

    @property
    def given(self) -> np.ndarray:
        """The row as it was given, float32 [1, d]; to be copied."""
        if self._is_narrow:
            return self._narrow
        with np.errstate(all="ignore"):
            return self._wide.astype(np.float32)

    def take(self, X: np.ndarray) -> bool:
        """Put a row there; return False for any that needs a closer look."""
        if X.shape != self._shape:
            return False
        self._is_narrow = X.dtype == _FLOAT32
        if self._is_narrow:
            self._narrow[...] = X
            return self._entries[0](*self._arguments[0])
        if X.dtype == _FLOAT64:
            self._wide[...] = X
            return self._entries[1](*self._arguments[1])
        return False


class Arguments:
    """What is prepared of an ensemble, and whether it still holds."""

    def __init__(self, ensemble: Predicting, columns: Columns) -> None:
        self.table, self._parameters = ensemble.table(ensemble.placed), ensemble.parameters
        self._tabled = ensemble.tabled  # holds the trees, wherever these are held no more
        self.place = Place(ensemble.parameters, columns)

    def holds(self, ensemble: Predicting) -> bool:
        """Tell whether the trees lie where they lay, and are asked by the same parameters."""
        is_same = ensemble.parameters is self._parameters and ensemble.tabled is self._tabled
        return is_same and self._tabled[0] == ensemble.placed


class Answers(Arguments):
    """Arguments of :func:`dmondrian.tree.loops.predict`."""

    def __init__(self, ensemble: Predicting) -> None:
        columns, parameters = ensemble.placed[0].columns, ensemble.parameters
        super().__init__(
            ensemble, boxless(parameters.n_features) if ensemble.is_leafwise else columns
        )
        self._grows = parameters.lifetime_grows
        self._lives = np.array(ensemble.tree_lifetimes())
        self._total = np.zeros((1, 1, ensemble.n_outputs))
        self._sums = self._total[0]
        self._n_trees = np.full(self._sums.shape, float(len(ensemble.placed)))  # divides at once
        seed, numbers = np.uint64(parameters.seed), ensemble.tree_numbers.astype(np.uint64)
        self._arguments: tuple[Any, ...] = (
            *ensemble.policies, self.table, columns, seed, numbers, self.place.rows,
            read_only(self._lives), ensemble.width, self._total, _NONE_3D, _NONE_1D,
        )  # fmt: skip
        self._entry = entry_of(predict, self._arguments)
        self._may_freeze = ensemble.is_leafwise
        self._kept: Kept | None = None  # what the next two are of
        self._at_rest: tuple[Any, ...] = ()
        self._entry_at_rest: Any = None

    @staticmethod
    def can_be_of(ensemble: Predicting) -> bool:
        """Tell whether nothing has to be found out from all nodes after each row."""
        its = ensemble.parameters
        chooses, gathers = its.selects_lifetimes, its.has_gaussian_mixture
        return not chooses and not gathers and ensemble.total_weight > 0.0

    def mean(self, ensemble: Predicting, X: np.ndarray) -> np.ndarray | None:
        """Return the mean prediction of one row, float64 [1, k]; None if it needs a closer look."""
        if not self.place.take(X):
            return None
        if self._grows:
            self._lives[:] = ensemble.parameters.lifetime_at(ensemble.total_weight)
        self._total.fill(0.0)
        if self._are_at_rest(ensemble):
            self._entry_at_rest(*self._at_rest)
        else:
            self._entry(*self._arguments)
        return self._sums / self._n_trees

    def _are_at_rest(self, ensemble: Predicting) -> bool:
        """Tell whether frozen trees say what is asked; have them frozen where it pays by now."""
        frozen, loss, rule = ensemble.frozen, ensemble.policies.loss, ensemble.policies.rule
        lives = self._lives[:, 0]
        if self._entry_at_rest is None and self._may_freeze:
            frozen.n_alone, frozen.is_begun = frozen.n_alone + 1, True
            if frozen.n_alone % _COUNTED == 0:
                frozen.trees(ensemble.placed, loss, rule, lives, ensemble.width, _COUNTED, 1)
        kept = frozen.kept
        if kept is not self._kept:
            self.forget()
            self._kept = kept
            if kept is not None and kept.key == key_of(loss, rule, lives):
                leaves = np.empty(len(kept.trees), np.int32)
                self._at_rest = kept.table, ensemble.width, self.place.rows, leaves, self._total
                self._entry_at_rest = entry_of(predict_frozen_alone, self._at_rest)
        return self._entry_at_rest is not None

    def forget(self) -> None:
        """Let go of frozen trees, which are large, before rows are learned."""
        self._kept, self._at_rest, self._entry_at_rest = None, (), None


class Lesson(Arguments):
    """Arguments of :func:`dmondrian.tree.loops.update`.

    Attributes
    ----------
    reached : int64 [T]
        1 for trees that have learned the row.
    n_free : int
        Rows that the forest takes before it has to be asked again whether it does ..
    n_given : int
        .. of so many.
    """

    def __init__(self, ensemble: Predicting) -> None:
        columns, parameters = ensemble.placed[0].columns, ensemble.parameters
        super().__init__(ensemble, columns)
        self.n_free = self.n_given = 0
        self._y, self.reached = np.zeros(1), np.zeros(len(ensemble.placed), np.int64)
        seed, numbers = np.uint64(parameters.seed), ensemble.tree_numbers.astype(np.uint64)
        self._arguments: tuple[Any, ...] = (
            *ensemble.policies.learning, self.table, columns, seed, numbers, 0, len(numbers),
            self.place.rows, read_only(self._y), read_only(_NONE_1D), self.reached, Silent(),
        )  # fmt: skip
        self._entry = entry_of(update, self._arguments)

    def begin(self, X: np.ndarray, y: float) -> bool:
        """Take a row in; return False, and forget it, if it needs a closer look."""
        self._y[0] = y
        self.reached.fill(0)
        return self.place.take(X)

    def go_on_for(self, n: int) -> None:
        """Take ``n`` rows before the forest is asked again."""
        self.n_free = self.n_given = n

    def stop(self) -> None:
        """Be asked again before the next row."""
        self.n_given, self.n_free = self.n_given - self.n_free, 0

    def go_on(self) -> int:
        """Let the trees learn the row; return how many lack room for it."""
        return self._entry(*self._arguments)
