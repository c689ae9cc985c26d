"""Rows that need no conversion: checked in microseconds, for callers that come row by row.

scikit-learn's validation takes a hundred times as long as one row takes to be learned. What passes
here passes there with the same result; everything else is left to it, with its messages. One row
alone has a way of its own to the forest (:mod:`dmondrian.ensemble.single_row`).

Shapes: n rows, d features.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from dmondrian._numba.mode import uses
from dmondrian.estimators.one_state import one_state
from dmondrian.uncertainty.temperature_scaling import calibrated

_IS_USED = uses("single_row")
_LABELS = bool, int, float, str  # of what need no closer look


def plain_rows(estimator: Any, X: Any) -> np.ndarray | None:
    """Return rows as finite float32 [n, d], C-contiguous; None if they need a closer look.

    Parameters
    ----------
    estimator : fitted estimator
        Without feature names, which would be compared.
    X : array-like
    """
    is_plain = (
        type(X) is np.ndarray
        and X.ndim == 2
        and len(X) > 0
        and X.shape[1] == getattr(estimator, "n_features_in_", -1)
        and X.dtype in (np.float32, np.float64)
        and not hasattr(estimator, "feature_names_in_")
    )
    if not is_plain:
        return None
    with np.errstate(over="ignore"):  # beyond float32: a closer look finds infinity
        rows = np.ascontiguousarray(X, np.float32)
    return rows if np.isfinite(rows).all() else None


def plain_labels(y: Any, n: int) -> np.ndarray | None:
    """Return labels [n] if they are an array of finite numbers; None if they need a closer look."""
    if type(y) is not np.ndarray or y.shape != (n,) or y.dtype.kind not in "biuf":
        return None
    return y if y.dtype.kind != "f" or np.isfinite(y).all() else None


def without_names(estimator: Any) -> Any:
    """Return an estimator of the same forest that compares no names of columns."""
    with one_state(estimator):
        plain = copy_of(estimator)
    plain.__dict__.pop("feature_names_in_", None)
    return plain


def comparing_names(estimator: Any, X: Any) -> Any:
    """Return the estimator with which scikit-learn checks ``X``.

    That of a run knows the names of the features that rows are encoded to, and arrays of encoded
    rows are what it is asked about: they have no names, which is nothing to warn of.
    """
    is_of_run = estimator.__dict__.get("_is_of_run", False)
    return estimator if not is_of_run or hasattr(X, "columns") else without_names(estimator)


def copy_of(estimator: Any) -> Any:
    """Return an estimator of the same forest, attributes and turns."""
    copy = object.__new__(type(estimator))
    copy.__dict__.update(estimator.__dict__, _turns=estimator._turns)
    return copy


class Known(NamedTuple):
    """What was looked up in a fitted estimator, so that one row more need not do it again."""

    read: Callable[[dict[str, Any]], tuple[Any, ...]]  # attributes that must not have changed
    values: tuple[Any, ...]  # what they were
    scales: list[float] | None  # feature scales, if they were given as numbers
    label_of: Callable[[Any], float | None]
    labels: list[Any] | None  # of the classes

    @classmethod
    def of(cls, estimator: Any) -> Known:
        """Look it up."""
        own, begun_with = estimator.__dict__, estimator._begun_with
        scales = begun_with.get("feature_scales")
        given = scales if isinstance(scales, list) else None
        names = [n for n in begun_with if given is None or n != "feature_scales"]
        fitted = [n for n in ("_begun_with", "classes_") if n in own]
        values = *(begun_with[n] for n in names), *(own[n] for n in fitted)
        labels = own["classes_"].tolist() if "classes_" in own else None
        read = itemgetter(*names, *fitted)
        return cls(read, values, given, estimator._label_finder(), labels)

    def is_unchanged(self, own: dict[str, Any]) -> bool:
        """Tell whether an estimator's attributes say what they did; False if it is hard to tell."""
        try:
            if self.read(own) != self.values:  # what is the same object is not looked into
                return False
        except (KeyError, ValueError):  # none; an array, where there was none or another
            return False
        return self.scales is None or np.array(own["feature_scales"]).tolist() == self.scales

    def has_classes(self, classes: Any) -> bool:
        """Tell whether a list or an array is of these classes, in order; False if hard to tell."""
        if type(classes) is np.ndarray:
            return classes.dtype.kind in "biufU" and classes.tolist() == self.labels
        if type(classes) is not list or any(type(each) not in _LABELS for each in classes):
            return False
        return classes == self.labels


def mean_of_plain_row(
    estimator: Any, X: Any, is_to_be_calibrated: bool = False
) -> np.ndarray | None:
    """Return the mean prediction of one row, float64 [1, k]; None if it needs a closer look.

    Calibrated, if the forest has learned how and it ``is_to_be_calibrated``.
    """
    own = estimator.__dict__
    turns = own.get("_turns")
    if turns is None or type(X) is not np.ndarray or X.shape[:1] != (1,) or not _IS_USED:
        return None
    if turns.at_row == "learned":  # more may follow without a pause; readers have to queue up
        return None
    with turns.mutex:
        if turns.is_taken or turns.at_row is not None:
            return None
        turns.at_row = "read"
        try:
            mean = _mean_of_plain_row(estimator, own, X, is_to_be_calibrated)
            return mean if turns.at_row is not None else None  # a signal handler learned amid it
        finally:
            turns.at_row = None


def _mean_of_plain_row(
    estimator: Any, own: dict[str, Any], X: np.ndarray, is_to_be_calibrated: bool
) -> np.ndarray | None:
    """Do what :func:`mean_of_plain_row` does, where nobody learns or asks about one row."""
    forest = own.get("forest_")
    if forest is None or "feature_names_in_" in own:
        return None
    if estimator.domain != forest.parameters.domain:  # it was set since; rows are checked by it
        return None
    mean: np.ndarray | None = forest.mean_of_row(X)
    if is_to_be_calibrated and mean is not None and forest.calibration is not None:
        return calibrated(mean, forest.calibration)
    return mean


def learn_plain_row(estimator: Any, X: Any, y: Any, classes: Any = None) -> bool:
    """Learn one row, with a label of one number or string; return False if it is anything else.

    Or if ``classes`` are given that are not those that are known.
    """
    own = estimator.__dict__
    turns = own.get("_turns")
    is_plain = _IS_USED and type(X) is np.ndarray and type(y) is np.ndarray and y.shape == (1,)
    if turns is None or not is_plain or y.dtype.kind not in "biufU":
        return False
    with turns.mutex:
        if turns.is_taken or turns.at_row is not None or turns.is_occupied:
            return False
        turns.at_row = "learned"
        try:
            return _learn_plain_row(estimator, own, X, y, classes)
        finally:
            turns.at_row = None


def _learn_plain_row(
    estimator: Any, own: dict[str, Any], X: np.ndarray, y: np.ndarray, classes: Any
) -> bool:
    """Do what :func:`learn_plain_row` does, where nobody else reads or learns."""
    forest = own.get("forest_")
    if forest is None or "feature_names_in_" in own:
        return False
    known = own.get("_known")
    if known is None or not known.is_unchanged(own):
        known = own["_known"] = Known.of(estimator)
        if not known.is_unchanged(own):  # a parameter was set since the stream was begun
            return False
    if classes is not None and not known.has_classes(classes):
        return False
    label = known.label_of(y.item())
    if label is None or not forest.learn_row(X, label):
        return False
    for name in estimator._forgets:
        own.pop(name, None)
    return True


def row_by_row(partial_fit: Callable[..., Any]) -> Callable[..., Any]:
    """Let one plain row pass by a ``partial_fit`` that takes microseconds to be entered."""

    @functools.wraps(partial_fit)
    def learn(self: Any, X: Any, y: Any, *given: Any, **named: Any) -> Any:
        classes = named.get("classes") if named else None
        is_plain = not given and len(named) == (classes is not None)
        if is_plain and learn_plain_row(self, X, y, classes):
            return self
        return partial_fit(self, X, y, *given, **named)

    return learn
