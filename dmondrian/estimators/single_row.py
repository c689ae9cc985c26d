"""One row alone: learned and predicted without scikit-learn's validation of arguments.

Validation takes far longer than a row takes to be learned, and so does Numba's look at the type of
every argument of every call (``benchmarks/reports/mechanisms.md``). Here a row passes by both: the
same kernels are called with the same arguments each time, and the row is copied to where they read
it. What passes here passes there with the same result; every other row is left, before anything is
changed, to the general way with its messages.

A row passes if all of these hold. Next to each is where it is looked at.

====================  ============================================================================
Of the call           X is a NumPy array [1, d] of float32 or float64 (:meth:`_Row.take`);
                      y is a NumPy array [1] of numbers or strings, without weights; classes, if
                      they are given, are the known ones (:func:`learn_single_row`)
Of the threads        nobody learns or is amid a row; to learn, nobody reads either
                      (:class:`dmondrian.ensemble.threads.Turns`)
Of the estimator      fitted, without names of columns, and with a forest of trees that follow no
                      drift (:func:`_shortcut_of`); to learn, its
                      parameters are those that the forest began with, to predict, its domain is
                      (:class:`_EstimatorState`, :func:`mean_of_single_row`)
Of the forest         trees that are whole; to learn, the boxes' encoding is chosen, nothing is
                      fitted beside the trees, no setting is chosen from this row
                      (:meth:`SingleRow._rows_until_check`), and no calibration is fitted to it but
                      an exponent in the range (:meth:`SingleRow._forecasts`); to predict, nothing
                      has to be found out from all nodes (:meth:`SingleRow._can_predict`)
Of the row            finite (but for missing values, if they are encoded: :func:`_as_seen`),
                      within the cube, and as boxes are encoded
                      (:func:`dmondrian.estimators.single_row_kernels.convert_row`); a label that
                      is known and not extremely large (:meth:`SingleRow.learn`)
====================  ============================================================================

Shapes: n rows, d features, k outputs, T trees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dmondrian._numba.jit import entry_of
from dmondrian._numba.mechanisms import uses
from dmondrian.ensemble.predictor.predictor import FrozenOutput
from dmondrian.ensemble.predictor.predictor_kernels import predict_frozen_alone
from dmondrian.estimators.missing_values import ENCODE, encoded_row
from dmondrian.estimators.single_row_kernels import convert_row
from dmondrian.forest.forest import Forest
from dmondrian.prequential.stream_sample import rows_until_sampled
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding import Columns, Rows, boxless, n_words, read_only
from dmondrian.tree.loops import ForecastRequest, NoForecasts, predict, update
from dmondrian.uncertainty.temperature_scaling import Calibration, RowByRow, calibrated

_Method = TypeVar("_Method", bound=Callable[..., Any])

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_NONE_3D, _NONE_1D = np.empty((0, 0, 0)), np.empty(0)
_COUNTED = 1024  # single rows predicted, with none learned between, that count as a call
_FEW_ROWS, _SMALL = 1e15, 1e100  # weight of rows, and a label, that need no closer look
_IS_USED = uses("single_row")
_LABELS = bool, int, float, str  # of what need no closer look


class _Row:
    """Where kernels read the row.

    Attributes
    ----------
    rows : Rows
        The one row, read-only.
    """

    def __init__(self, forest: Forest, columns: Columns) -> None:
        parameters, d = forest.parameters, forest.parameters.n_features
        values, bits = np.zeros((1, d), np.float32), np.zeros((1, n_words(columns)), np.uint64)
        p, steps = len(columns.numeric), np.zeros((1, len(columns.stepped)), np.int16)
        is_plain = len(columns.stepped) + len(columns.binary) == 0
        numeric = values if is_plain else np.zeros((1, p), np.float32)
        writable = Rows(values, numeric, steps, bits)
        self.rows = Rows(*map(read_only, writable))
        scales = np.array(
            () if parameters.feature_scales is None else parameters.feature_scales, np.float32
        )
        units = np.array(
            () if parameters.feature_units is None else parameters.feature_units, np.float64
        )
        how = scales, units, parameters.domain == "cube", columns, writable
        self._shape = 1, d
        self._narrow, self._wide = np.zeros((1, d), np.float32), np.zeros((1, d))
        self._arguments = (self._narrow, *how), (self._wide, *how)
        self._entries = tuple(entry_of(convert_row, arguments) for arguments in self._arguments)
        self._is_narrow = True

    @property
    def given(self) -> np.ndarray:
        """The row as it was given, float32 [1, d]; to be copied."""
        if self._is_narrow:
            return self._narrow
        with np.errstate(all="ignore"):
            return self._wide.astype(np.float32)

    def take(self, X: np.ndarray) -> bool:
        """Copy a row to where kernels read it; return whether it needs no closer look."""
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


class _Call:
    """A kernel with arguments that stay the same from row to row."""

    def __init__(self, forest: Forest, columns: Columns) -> None:
        self._parameters, self._store = forest.parameters, forest.store
        self._trees = forest.store.trees  # keeps them, wherever they are kept no more
        self.row = _Row(forest, columns)

    def holds(self, forest: Forest) -> bool:
        """Return whether trees are stored where they were, by the same parameters."""
        return self._trees is forest.store.trees and self._parameters is forest.parameters


class _Predict(_Call):
    """:func:`dmondrian.tree.loops.predict`, and what answers in its place where trees are frozen.

    Attributes
    ----------
    total : float64 [1, 1, k]
        Sums over trees.
    """

    def __init__(self, forest: Forest) -> None:
        predictor, parameters = forest.predictor, forest.parameters
        columns = forest.store.trees[0].columns
        self.is_leafwise = predictor.is_leafwise
        super().__init__(forest, boxless(parameters.n_features) if self.is_leafwise else columns)
        self._grows = parameters.lifetime_grows
        self.lives = np.array(predictor.tree_lifetimes())
        self.total = np.zeros((1, 1, predictor.n_outputs))
        self.sums = self.total[0]
        self.n_trees = np.full(self.sums.shape, float(len(self._trees)))  # divides at once
        seed, numbers = np.uint64(parameters.seed), forest.tree_numbers.astype(np.uint64)
        self.arguments: tuple[Any, ...] = (
            *predictor.policies, self._store.addresses, columns, seed, numbers, self.row.rows,
            read_only(self.lives), predictor.width, self.total, _NONE_3D, _NONE_1D,
        )  # fmt: skip
        self.entry = entry_of(predict, self.arguments)

    def begin(self, forest: Forest) -> None:
        """Begin sums at the lifetime of the rows learned so far."""
        if self._grows:
            self.lives[:] = self._parameters.lifetime_at(forest.total_weight)
        self.total.fill(0.0)


class _Learn(_Call):
    """:func:`dmondrian.tree.loops.update`.

    Attributes
    ----------
    y : float64 [1]
    reached : int64 [T]
        1 for trees that have learned the row.
    """

    def __init__(self, forest: Forest) -> None:
        columns, seed = forest.store.trees[0].columns, np.uint64(forest.parameters.seed)
        super().__init__(forest, columns)
        self.y, self.reached = np.zeros(1), np.zeros(len(self._trees), np.int64)
        numbers, request = forest.tree_numbers.astype(np.uint64), self._request(forest)
        policies = forest.policies.learning if isinstance(request, NoForecasts) else forest.policies
        self.arguments: tuple[Any, ...] = (
            *policies, self._store.addresses, columns, seed, numbers, 0, len(numbers),
            self.row.rows, read_only(self.y), read_only(_NONE_1D), self.reached, request,
        )  # fmt: skip
        self.entry = entry_of(update, self.arguments)

    def _request(self, forest: Forest) -> NoForecasts | ForecastRequest:
        return NoForecasts()

    def begin(self, forest: Forest, y: float) -> None:
        """Get ready for a row with this label."""
        self.y[0] = y
        self.reached.fill(0)


class _LearnSampled(_Learn):
    """Learning of a row that each tree forecasts before, for the calibration.

    The row stands for as many as there are trees: each answers the next question of all, once. A
    tree of the range that lacks capacity for the row has not answered yet.
    """

    def _request(self, forest: Forest) -> ForecastRequest:
        output, n_trees = forest.predictor.sample_output, len(self._trees)
        self._answers, self._lives = np.empty((n_trees, output.width)), np.empty(n_trees)
        self._n_answered, self._before = np.zeros(1, np.int64), 0.0
        self._row_by_row = RowByRow(self._answers, self.y)
        rows, known = np.zeros(n_trees, np.int64), np.empty((n_trees, 0))
        work = np.empty((3, output.width))
        return ForecastRequest(
            rows, self._lives, output.loss, work, self._answers, known, self._n_answered
        )  # fmt: skip

    def begin(self, forest: Forest, y: float) -> None:
        super().begin(forest, y)
        self._before = self._store.total_weight
        self._lives.fill(self._parameters.lifetime_at(self._before))
        self._n_answered[0] = 0

    def calibrated(self, calibration: Calibration) -> Calibration:
        """Return the calibration with the row."""
        return self._row_by_row.after(calibration, self._before)


class SingleRow:
    """Learns and predicts single rows with one forest; the module lists which rows may pass.

    One thread at a time: the row is copied to a place that calls share.

    Parameters
    ----------
    forest : Forest

    Attributes
    ----------
    estimator_state : _EstimatorState or None
        What was looked up in the estimator that learned last.
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.estimator_state: _EstimatorState | None = None
        self._predict: _Predict | None = None
        self._learn: _Learn | None = None
        self._learn_sampled: _LearnSampled | None = None
        # Rows that are learned before the forest is looked at again, those before one is forecast,
        # and of which call to learn other rows that was found out.
        self._n_left = self._n_unsampled = 0
        self._n_calls = -1

    def mean(self, X: np.ndarray) -> np.ndarray | None:
        """Return the mean prediction of one row; None where the forest's general way has to.

        Parameters
        ----------
        X : [1, d]
            Of any type.

        Returns
        -------
        float64 [1, k], to the last bit that of ``predict_sums``, or None
        """
        forest, call = self.forest, self._predict
        if call is None or not call.holds(forest):
            call = self._predict = _Predict(forest) if self._can_predict() else None
        if call is None or forest.store.is_torn or not call.row.take(X):
            return None
        call.begin(forest)
        entry, arguments = self._frozen_call(call) or (call.entry, call.arguments)
        entry(*arguments)
        return call.sums / call.n_trees

    def _can_predict(self) -> bool:
        """Return whether nothing has to be found out from all nodes after each row."""
        parameters = self.forest.parameters
        finds_out = parameters.selects_lifetimes or parameters.has_gaussian_mixture
        return not finds_out and self.forest.total_weight > 0.0

    def _frozen_call(self, call: _Predict) -> tuple[Any, tuple[Any, ...]] | None:
        """Return what asks frozen trees, if there are any of the kind; freeze trees if it pays."""
        predictor = self.forest.predictor
        frozen = predictor.frozen_cache
        prepared = frozen.call
        if prepared is not None and prepared[0] is frozen.kept and prepared[1] is call:
            return prepared[2:]
        if call.is_leafwise:
            frozen.n_alone, frozen.is_begun = frozen.n_alone + 1, True
            if frozen.n_alone % _COUNTED == 0:
                frozen.trees(self.forest.store.trees, self._output_of(call), _COUNTED, 1)
        kept = frozen.kept
        if kept is None or kept.key != self._output_of(call).key:
            return None
        leaves = np.empty(len(kept.trees), np.int32)
        arguments = kept.table, predictor.width, call.row.rows, leaves, call.total
        entry = entry_of(predict_frozen_alone, arguments)
        frozen.call = kept, call, entry, arguments  # goes with the frozen trees
        return entry, arguments

    def _output_of(self, call: _Predict) -> FrozenOutput:
        """Return what frozen trees are to predict for single rows."""
        predictor = self.forest.predictor
        loss, rule = predictor.policies.loss, predictor.policies.rule
        return FrozenOutput(loss, rule, call.lives[:, 0], predictor.width)

    def learn(self, X: np.ndarray, y: float) -> bool:
        """Learn one row of weight one; return False where the forest's general way has to.

        Parameters
        ----------
        X : [1, d]
            Of any type.
        y : float
            Class index, or label.
        """
        forest = self.forest
        if abs(y) > _SMALL:
            return False
        call = self._learn if self._n_unsampled else self._learn_sampled
        is_due = not self._n_left or self._n_calls != forest.n_calls
        if call is None or is_due or not call.holds(forest):
            call = self._next_learn_call()
        store = forest.store
        if call is None or store.is_torn:
            return False
        call.begin(forest, y)
        if not call.row.take(X):
            return False
        warmup = forest.warmup
        if warmup is not None:
            warmup = warmup.after_row(call.row.given, y)
        forest.predictor.forget()
        store.is_torn = True
        while call.entry(*call.arguments):
            store.grow(range(len(store.trees)), call.reached, 1)
        if isinstance(call, _LearnSampled) and isinstance(forest.calibration, Calibration):
            forest.calibration = call.calibrated(forest.calibration)
            self._n_unsampled = rows_until_sampled(store.total_weight)
        else:
            self._n_unsampled -= 1
        self._n_left -= 1
        forest.warmup = warmup
        store.is_torn = False
        return True

    def _next_learn_call(self) -> _Learn | None:
        """Return the call that learns the next row, None if it may not; count the rows that may."""
        forest, n_free = self.forest, self._rows_until_check()
        if not n_free or forest.store.is_torn:
            return None
        self._n_left = self._n_unsampled = n_free
        if forest.calibration is not None:
            self._n_unsampled = rows_until_sampled(forest.store.total_weight)
        self._n_calls = forest.n_calls
        if not self._n_unsampled:
            if self._learn_sampled is None or not self._learn_sampled.holds(forest):
                self._learn_sampled = _LearnSampled(forest)
            return self._learn_sampled
        if self._learn is None or not self._learn.holds(forest):
            self._learn = _Learn(forest)
        return self._learn

    def _forecasts(self) -> bool:
        """Return whether rows of the sample that calibrations are fitted to may pass too."""
        forest = self.forest
        is_of_classes = isinstance(forest.calibration, Calibration)
        # Rows of a total weight below one may pass no mark. On the cube, a tree that lacks capacity
        # for a row may have answered, and would again.
        return is_of_classes and forest.total_weight >= 1.0 and forest.parameters.splits_range

    def _rows_until_check(self) -> int:
        """Return how many rows in a row may be learned before the forest is to be checked again."""
        forest = self.forest
        parameters, store, warmup = forest.parameters, forest.store, forest.warmup
        if (
            parameters.minimises_loss
            or parameters.learns_jointly
            or parameters.target_range is not None
        ):
            return 0
        if not store.trees:
            return 0
        if parameters.has_boxes and not store.is_encoded:
            return 0
        labels = () if parameters.n_classes else store.trees[0].head_f[nodes.OFFSET :].tolist()
        if any(_SMALL < abs(label) < np.inf for label in labels):
            return 0
        n_free = int(max(0.0, _FEW_ROWS + 1.0 - store.total_weight))
        if forest.calibration is not None and not self._forecasts():
            n_free = min(n_free, rows_until_sampled(store.total_weight))
        if warmup is None:
            return n_free
        return 0 if warmup.may_choose else min(n_free, 1)


class _EstimatorState(NamedTuple):
    """Attributes of a fitted estimator that single rows depend on, kept until one changes."""

    read: Callable[[dict[str, Any]], tuple[Any, ...]]  # attributes that must not have changed
    values: tuple[Any, ...]  # what they were
    scales: list[float] | None  # feature scales, if they were given as numbers
    label_of: Callable[[Any], float | None]
    labels: list[Any] | None  # of the classes

    @classmethod
    def of(cls, estimator: Any) -> _EstimatorState:
        """Return those attributes of a fitted estimator."""
        attributes, begun_with = estimator.__dict__, estimator._begun_with
        scales = begun_with.get("feature_scales")
        numbers_given = scales if isinstance(scales, list) else None
        names = [n for n in begun_with if numbers_given is None or n != "feature_scales"]
        fitted = [n for n in ("_begun_with", "classes_") if n in attributes]
        values = *(begun_with[n] for n in names), *(attributes[n] for n in fitted)
        labels = attributes["classes_"].tolist() if "classes_" in attributes else None
        read = itemgetter(*names, *fitted)
        return cls(read, values, numbers_given, estimator._label_finder(), labels)

    def is_unchanged(self, attributes: dict[str, Any]) -> bool:
        """Return whether an estimator's attributes are as they were; False if it is hard to see."""
        try:
            if self.read(attributes) != self.values:  # what is the same object is not looked into
                return False
        except (KeyError, ValueError):  # none; an array, where there was none or another
            return False
        return self.scales is None or np.array(attributes["feature_scales"]).tolist() == self.scales

    def has_classes(self, classes: Any) -> bool:
        """Return whether ``classes`` are these, in order; False if that is hard to see."""
        if type(classes) is np.ndarray:
            return classes.dtype.kind in "biufU" and classes.tolist() == self.labels
        if type(classes) is not list or any(type(each) not in _LABELS for each in classes):
            return False
        return classes == self.labels


def _shortcut_of(attributes: dict[str, Any]) -> SingleRow | None:
    """Return what learns and predicts single rows with an estimator's forest; None if nothing."""
    forest = attributes.get("forest_")
    if forest is None or "feature_names_in_" in attributes or not forest.supports_single_row:
        return None
    shortcut: SingleRow | None = attributes.get("_single_row")
    if shortcut is None or shortcut.forest is not forest:
        shortcut = attributes["_single_row"] = SingleRow(forest)
    return shortcut


def _as_seen(attributes: dict[str, Any], X: np.ndarray, domain: str) -> np.ndarray | None:
    """Return a row as trees see it, with what is missing encoded; None if it cannot be."""
    if attributes["_begun_with"].get("missing_values") != ENCODE:
        return X
    return encoded_row(X, attributes["n_features_in_"], domain)


def mean_of_single_row(
    estimator: Any, X: Any, is_to_be_calibrated: bool = False
) -> np.ndarray | None:
    """Return the mean prediction of one row, float64 [1, k]; None if it may not pass.

    Calibrated, if the forest has learned how and it ``is_to_be_calibrated``.
    """
    attributes = estimator.__dict__
    turns = attributes.get("_turns")
    if turns is None or type(X) is not np.ndarray or X.shape[:1] != (1,) or not _IS_USED:
        return None
    if turns.at_row == "learned":  # more may follow without a pause; readers have to queue up
        return None
    with turns.mutex:
        if turns.is_taken or turns.at_row is not None:
            return None
        turns.at_row = "read"
        try:
            shortcut = _shortcut_of(attributes)
            # The domain may have been set since; the general way checks rows by it.
            if shortcut is None or estimator.domain != shortcut.forest.parameters.domain:
                return None
            row = _as_seen(attributes, X, estimator.domain)
            mean = None if row is None else shortcut.mean(row)
            if mean is None or turns.at_row is None:  # a signal handler learned amid it
                return None
            calibration = shortcut.forest.calibration
            return (
                mean
                if calibration is None or not is_to_be_calibrated
                else calibrated(mean, calibration)
            )
        finally:
            turns.at_row = None


def learn_single_row(estimator: Any, X: Any, y: Any, classes: Any = None) -> bool:
    """Learn one row with a label of one number or string; return False if it may not pass.

    Or if ``classes`` are given that are not those that are known.
    """
    attributes = estimator.__dict__
    turns = attributes.get("_turns")
    is_plain = _IS_USED and type(X) is np.ndarray and type(y) is np.ndarray and y.shape == (1,)
    if turns is None or not is_plain or y.dtype.kind not in "biufU":
        return False
    with turns.mutex:
        if turns.is_taken or turns.at_row is not None or turns.is_occupied:
            return False
        turns.at_row = "learned"
        try:
            shortcut = _shortcut_of(attributes)
            if shortcut is None:
                return False
            state = shortcut.estimator_state
            if state is None or not state.is_unchanged(attributes):
                state = shortcut.estimator_state = _EstimatorState.of(estimator)
                if not state.is_unchanged(
                    attributes
                ):  # a parameter was set since the stream was begun
                    return False
            if classes is not None and not state.has_classes(classes):
                return False
            label = state.label_of(y.item())
            row = None if label is None else _as_seen(attributes, X, estimator.domain)
            if label is None or row is None or not shortcut.learn(row, label):
                return False
            for name in estimator._forgets:
                attributes.pop(name, None)
            return True
        finally:
            turns.at_row = None


def row_by_row(partial_fit: _Method) -> _Method:
    """Let one plain row pass by a ``partial_fit`` that takes long to be entered."""

    @functools.wraps(partial_fit)
    def learn(self: Any, X: Any, y: Any, *arguments: Any, **named: Any) -> Any:
        classes = named.get("classes") if named else None
        is_plain = not arguments and len(named) == (classes is not None)
        if is_plain and learn_single_row(self, X, y, classes):
            return self
        return partial_fit(self, X, y, *arguments, **named)

    return learn  # type: ignore[return-value]  # of the same signature
