"""Exact ridge fits of the stream: sums, a factor, and the rows that update it one by one.

What is kept are the weights G [c, c] of rows in pairs of cells of different trees (in one cell on
the diagonal), the sums B of their targets, and a factor of A = G / T + delta^2 I. With m the mean
target, A v = B - m diag(G) has the cells' values less m, v = T^{1/2} w. A row is a rank-one update
of the factor, O(c^2), and a new cell a column with nothing but delta^2. After each ``_FRESH`` rows
of the stream the factor is made anew from G, which bounds what rounding can do, and lets many rows
be learned at the price of one factorisation: whatever the cuts between calls, the factor is that
of the last round number of rows with the rows since.

The values vary by s^2 delta^2 T A^{-1}, those of cells without rows by s^2 T
(joint_fit/lifetime_sweep.py). A scale s that is not given is estimated from the sum of squared
labels, less the first one, which is kept beside the state.

Relies on trees whose lifetime is the kernel's, and on :mod:`dmondrian.joint_fit.cholesky_kernels`.
Promises a pure function of the rows in order. Columns are numbered in the order of rows, then
trees, that open them, for good.

Shapes: n rows, T trees, c columns, k outputs, r rows since the factor was made.

References: Balog et al. (2016), sections 4.2.1 and 5, Supplement C.
"""

from __future__ import annotations

import base64
import binascii
import math
import threading
import zlib
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.kernel_settings import Joint, as_targets
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.joint_fit.cell_columns import columns_of, grow_columns, presence_of
from dmondrian.joint_fit.cholesky_kernels import (
    add_pairs,
    add_quadratics,
    add_rank_one,
    factorize,
    solve,
)
from dmondrian.joint_fit.minibatch import note_rows
from dmondrian.stats.cell_values import MARK, VALUE, WEIGHT
from dmondrian.tree import nodes

_FRESH = 256  # rows of the stream from one factorisation to the next
_FIRST_SIZE = 64
AT_ONCE = 16_384  # rows taken in between two checks of how many more fit
_MOST_STORED = 2**28  # bytes of one array in a header


class Exact:
    """The exact fit of the rows so far.

    Parameters
    ----------
    joint : Joint
    n_trees : int

    Attributes
    ----------
    n_columns, n_rows : int
        Columns, and rows learned, those without weight too.
    most : int or None
        Columns beyond which more rows are refused; not part of the state.
    """

    def __init__(self, joint: Joint, n_trees: int) -> None:
        self.n_columns, self.n_rows, self.most = 0, 0, None
        self._joint, self._n_trees = joint, n_trees
        self._sums = np.zeros((_FIRST_SIZE, _FIRST_SIZE))
        self._targets = np.zeros((joint.n_outputs, _FIRST_SIZE))
        self._moments = np.zeros(1 + joint.n_outputs)  # weight of all rows, sums of targets
        self._factor = np.empty((0, 0))
        self._n_fresh = 0  # columns of the sums of the last round number of rows
        self._fresh = np.zeros((0, 0))  # those sums
        self._since: list[tuple[np.ndarray, np.ndarray]] = []  # columns and weights of rows since
        self._n_factored = -1  # of these parts, those that the factor knows; -1: make it anew
        # First label and sum of squares of labels less it; None in files of before there were any.
        self._squares: np.ndarray | None = np.zeros((2, joint.n_outputs))
        self._inverse: np.ndarray | None = None
        self._lock = threading.Lock()  # of those who read it together

    most: int | None

    def learn(
        self,
        ensemble: Ensemble,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
    ) -> int:
        """Learn rows in order until one might pass ``max_columns`` ("auto"); return how many."""
        done = 0
        while done < len(y):
            most = self._n_learnable()
            if most <= 0:
                break
            part = slice(done, done + min(most, len(y) - done))
            part_weights = None if w is None else w[part]
            columns = grow_columns(ensemble, X[part], part_weights, n_threads, self.n_columns)
            targets = as_targets(y[part], self._joint.n_outputs)
            weights = (
                np.ones(len(targets))
                if part_weights is None
                else np.array(part_weights, np.float64)
            )
            self._take(columns, targets, weights)
            note_rows(ensemble, len(targets), targets[weights > 0.0])
            done = part.stop
        self.write_values(ensemble)
        return done

    def _n_learnable(self) -> int:
        """Return how many rows can be learned now, whatever cells they open."""
        if self._joint.solver == "auto":
            return (self._joint.max_columns - self.n_columns) // self._n_trees
        self._check_memory('solver="cholesky"')
        return AT_ONCE

    def _check_memory(self, setting: str) -> None:
        """Refuse rows whose cells might pass the columns that there is memory for."""
        if self.most is not None and self.n_columns + self._n_trees > self.most:
            c = self.n_columns + self._n_trees
            size = 3 * 8 * c * c / 2**30
            raise ParameterError(
                f"{setting} came to {c} columns, whose matrices take {size:.3g} GiB, more "
                'than there is: use solver="sgd", a shorter lifetime or fewer trees'
            )

    def _take(self, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> None:
        """Add rows, int64 [n, T] columns (-1: no row of weight), to the sums and the factor."""
        n, fresh_columns, self._inverse = len(columns), self.n_columns, None
        self._add_squares(targets, weights)
        fresh_rows = (self.n_rows + n) // _FRESH * _FRESH - self.n_rows
        self.n_columns = max(self.n_columns, int(columns.max(initial=-1)) + 1)
        self._grow_sums()
        cut = max(fresh_rows, 0)
        for part in (slice(0, cut), slice(cut, n)):
            learned = np.flatnonzero(weights[part] > 0.0) + part.start
            mine, w = np.ascontiguousarray(columns[learned]), weights[learned]
            add_pairs(self._sums, self._targets, self._moments, mine, targets[learned], w)
            if part.start == 0 and fresh_rows > 0:
                c = max(fresh_columns, int(columns[part].max(initial=-1)) + 1)
                self._n_fresh, self._fresh = c, self._sums[:c, :c].copy()
                self._since, self._n_factored = [], -1
            elif len(mine):
                self._since.append((mine, w))
        self.n_rows += n

    def _add_squares(self, targets: np.ndarray, weights: np.ndarray) -> None:
        """Add rows to the sums of squares, one after the other."""
        learned = np.flatnonzero(weights > 0.0)
        if self._squares is None or not len(learned):
            return
        if self._moments[0] == 0.0:
            self._squares[0] = targets[learned[0]]
        squares = weights[learned, None] * (targets[learned] - self._squares[0]) ** 2
        # Running sums: those of NumPy's sum would depend on the cuts between calls.
        self._squares[1] = np.cumsum(np.concatenate([self._squares[1:], squares]), axis=0)[-1]

    def _grow_sums(self) -> None:
        c, capacity = self.n_columns, len(self._sums)
        if c > capacity:
            size = max(c, 3 * capacity // 2)
            sums = np.zeros((size, size))
            sums[:capacity, :capacity] = self._sums
            self._sums, self._factor = sums, np.empty((0, 0))
            self._targets = np.pad(self._targets, ((0, 0), (0, size - capacity)))
            self._n_factored = -1

    def _update_factor(self) -> None:
        """Let the factor know all rows."""
        if self._n_factored < 0:
            size, c = len(self._sums), self._n_fresh
            self._factor = np.diag(np.full(size, np.sqrt(self._joint.ridge)))
            self._factor[:c, :c] = np.triu(self._fresh) / self._n_trees
            self._factor[np.arange(c), np.arange(c)] += self._joint.ridge
            factorize(self._factor, c)
            self._n_factored = 0
        for rows, weights in self._since[self._n_factored :]:
            for row, weight in zip(rows, weights, strict=True):
                x = np.zeros(len(self._factor))
                x[row] = np.sqrt(weight / self._n_trees)
                add_rank_one(self._factor, self.n_columns, x)
        self._n_factored = len(self._since)

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean target m, float64 [k], and cells' values less m, [k, c].

        Raises
        ------
        ParameterError
            If no digit of the ridge is left beside the weights.
        """
        self._update_factor()
        c, ridge = self.n_columns, self._joint.ridge
        if not (np.diag(self._factor)[:c] ** 2 >= 0.5 * ridge).all():  # they are no less than it
            raise ParameterError(
                f"ridge={ridge:g} is lost in roundings beside rows that weigh "
                f"{self._moments[0]:.3g} in all: use a larger ridge, or scale the weights"
            )
        mean = self._moments[1:] / self._moments[0]
        B = self._targets[:, :c] - mean[:, None] * np.diag(self._sums)[:c]
        cell_values = np.empty_like(B)
        solve(self._factor, c, np.ascontiguousarray(B), cell_values)
        return mean, cell_values

    def centred_squares(self) -> float:
        """Return the sum of squares of all labels less their mean.

        Raises
        ------
        ParameterError
            If an earlier version began the fit and kept no squares.
        """
        if self._squares is None:
            raise ParameterError(
                "this model was saved by an earlier version, which kept no sum of squared labels: "
                "the scale of the noise is not known; fit it again, or give signal_std"
            )
        total, origin = self._moments[0], self._squares[0]
        mean = self._moments[1:] / total
        return max(math.fsum(self._squares[1]) - math.fsum(total * (mean - origin) ** 2), 0.0)

    def square_of_scale(self) -> float:
        """Return s^2, or its posterior mean: inf for up to two labels, too few for a variance."""
        if self._joint.scale is not None:
            return self._joint.scale**2
        squares, n = self.centred_squares(), float(self._moments[0]) * self._joint.n_outputs
        mean, cell_values = self.values()
        B = (
            self._targets[:, : self.n_columns]
            - mean[:, None] * np.diag(self._sums)[: len(cell_values.T)]
        )
        left = max(squares - math.fsum((B * cell_values).ravel()) / self._n_trees, 0.0)
        return left / self._joint.ridge / (n - 2.0) if n > 2.0 else math.inf

    def variances(
        self, ensemble: Ensemble, X: np.ndarray, means: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Return the posterior variance of the function at rows, float64 [n], and of the noise.

        ``means`` [n] are the predictions there, which this does not depend on.

        Rows outside the range of the data are in cells of their own with the probability that the
        process parts them from those of the fitted rows: the variance is over that, too. O(c^3)
        once, then O(T^2) per row.
        """
        with self._lock:
            square, inverse = self.square_of_scale(), self._inverse_matrix()
            cell_values = self.values()[1]
        columns, present = columns_of(ensemble, X), presence_of(ensemble, X)
        within, absent = np.zeros((2, len(X)))
        add_quadratics(inverse, columns, present, within, absent)
        values = np.where(columns >= 0, cell_values[0, columns], 0.0)
        parted = present * (1.0 - present) * values**2
        variance = square * (self._joint.ridge * within + absent) / self._n_trees
        # One tree after the other: how NumPy adds along rows depends on how many there are.
        between = np.cumsum(parted, axis=1)[:, -1] / self._n_trees**2
        return variance + between, square * self._joint.ridge

    def _inverse_matrix(self) -> np.ndarray:
        """Return A^{-1}, float64 [c, c], kept until more rows are learned."""
        if self._inverse is None:
            self._update_factor()
            inverse = np.empty((self.n_columns, self.n_columns))
            solve(self._factor, self.n_columns, np.eye(self.n_columns), inverse)
            self._inverse = inverse
        return self._inverse

    def write_values(self, ensemble: Ensemble) -> None:
        """Write the values of all cells into the trees."""
        if self.n_columns == 0:
            return
        write_cells(ensemble, *self.values())

    def check_columns(self, trees: Sequence[nodes.Tree]) -> None:
        """Raise :class:`CorruptError` unless each column is one cell's."""
        used = [tree.d[: tree.head_i[nodes.N_NODES], MARK] for tree in trees]
        marks = np.concatenate(used) if used else np.empty(0)
        if not np.array_equal(np.sort(marks[marks > 0.0]), 1.0 + np.arange(self.n_columns)):
            raise CorruptError("the exact fit of a kernel has columns that are not those of cells")

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON-able dict."""
        c, upper = self.n_columns, np.triu_indices(self._n_fresh)
        rows = [row for rows, _ in self._since for row in rows]
        weights = [weight for _, row_weights in self._since for weight in row_weights]
        return {
            "n_rows": self.n_rows,
            "n_columns": c,
            "n_fresh": self._n_fresh,
            "fresh": packed(self._fresh[upper]),
            "targets": packed(self._targets[:, :c]),
            "moments": packed(self._moments),
            "rows": packed(np.array(rows, np.float64)),
            "weights": packed(np.array(weights, np.float64)),
        }

    def beside(self) -> dict[str, Any]:
        """Return what is stored beside the state, JSON-able."""
        return {} if self._squares is None else {"squares": packed(self._squares)}

    def take_beside(self, stored: Any) -> None:
        """Take what :meth:`beside` returned, None from an earlier version.

        Raises
        ------
        CorruptError
            If it is not of this fit.
        """
        self._squares = None
        try:
            if stored is not None and "squares" in stored:
                squares = unpacked(stored["squares"]).reshape(2, self._joint.n_outputs)
                if (squares[1] < 0.0).any():
                    raise CorruptError("the sums of squares of a kernel are negative")
                self._squares = squares.copy()
        except (KeyError, TypeError, ValueError, zlib.error, binascii.Error) as error:
            raise CorruptError(f"the sums of a kernel cannot be read: {error}") from None

    @classmethod
    def from_json(cls, stored: Any, joint: Joint, n_trees: int) -> Exact:
        """Return the fit of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If it is none of these parameters.
        """
        return cls._restored(cls(joint, n_trees), stored, joint, n_trees)

    @classmethod
    def _restored(cls, exact: Self, stored: Any, joint: Joint, n_trees: int) -> Self:
        """Return a fit without rows with those of :meth:`to_json`."""
        try:
            c, n_fresh, n_rows = (stored[name] for name in ("n_columns", "n_fresh", "n_rows"))
            if any(type(n) is not int or not 0 <= n < 2**40 for n in (c, n_fresh, n_rows)):
                raise CorruptError("its numbers of rows and columns")
            exact.n_columns, exact._n_fresh, exact.n_rows = c, n_fresh, n_rows
            weights = unpacked(stored["weights"])
            rows = unpacked(stored["rows"]).reshape(len(weights), n_trees)
            whole = (rows == np.floor(rows)) & (rows >= 0) & (rows < c)
            if n_fresh > c or c * c > _MOST_STORED or len(weights) >= _FRESH or not whole.all():
                raise CorruptError("the columns of its last rows")
            exact._targets = unpacked(stored["targets"]).reshape(joint.n_outputs, c)
            exact._moments = unpacked(stored["moments"]).reshape(1 + joint.n_outputs)
            exact._fresh = np.zeros((n_fresh, n_fresh))
            exact._fresh[np.triu_indices(n_fresh)] = unpacked(stored["fresh"])
        except (KeyError, TypeError, ValueError, zlib.error, binascii.Error) as error:
            raise CorruptError(f"the exact fit of a kernel cannot be read: {error}") from None
        size = max(c, _FIRST_SIZE)
        exact._sums = np.zeros((size, size))
        exact._sums[:n_fresh, :n_fresh] = exact._fresh
        exact._targets = np.pad(exact._targets, ((0, 0), (0, size - c)))
        recent = rows.astype(np.int64)
        none, no_targets = np.zeros((0, size)), np.zeros((len(recent), 0))
        add_pairs(exact._sums, none, np.zeros(1), recent, no_targets, weights)
        exact._since = [(recent, weights)] if len(recent) else []
        return exact


def write_cells(ensemble: Ensemble, mean: np.ndarray, cell_values: np.ndarray) -> None:
    """Write cells' values less the ``mean`` [k], float64 [k, c] by column; roots have the mean."""
    for tree in ensemble.store.trees:
        n = int(tree.head_i[nodes.N_NODES])
        mark = tree.d[:n, MARK].astype(np.int64)
        cells = np.flatnonzero(mark > 0)
        root = int(tree.head_i[nodes.ROOT])
        for k in range(len(mean)):
            tree.d[root, VALUE + 2 * k] = mean[k]
            tree.d[cells, VALUE + 2 * k] = mean[k] + cell_values[k, mark[cells] - 1]
        tree.d[cells, WEIGHT] = tree.d[cells, nodes.STAT]
        tree.d[root, WEIGHT] = tree.d[root, nodes.STAT]


def packed(values: np.ndarray) -> str:
    """Return numbers as a text that JSON can hold."""
    raw = np.ascontiguousarray(values, "<f8").tobytes()
    return base64.b64encode(zlib.compress(raw)).decode("ascii")


def unpacked(text: str) -> np.ndarray:
    """Return the finite numbers of :func:`packed`."""
    opened = zlib.decompressobj()
    raw = opened.decompress(base64.b64decode(text, validate=True), _MOST_STORED)
    values = np.frombuffer(raw, "<f8").astype(np.float64)
    if opened.unconsumed_tail or not np.isfinite(values).all():
        raise CorruptError("the exact fit of a kernel has numbers that no fit has")
    return values
