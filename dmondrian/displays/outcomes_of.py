"""Sums of forecasts and labels that pictures are drawn from: those a run keeps, and reports draw.

Relies on :class:`dmondrian.distributed.metrics.error_histogram.Outcomes`. Promises the same numbers
as `dmondrian report` has of a run; of arrays those of a run that forecast the same.

Shapes: n rows, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import check_consistent_length, column_or_1d

from dmondrian.displays.learning_curve import stream_metrics_of
from dmondrian.distributed.metrics.error_histogram import Outcomes
from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.errors import ParameterError

CLASSIFICATION, REGRESSION = "classification", "regression"


class OutcomesDisplay:
    """A picture of forecasts and their labels; made by its subclasses."""

    _task: ClassVar[str]

    @classmethod
    def from_run(cls, run: Any, *, ax: Any = None, **options: Any) -> Self:
        """Plot the forecasts of a run, each made before its row was learned.

        Parameters
        ----------
        run : str or path
            Run folder or URL, finished or in progress.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        The display.

        Raises
        ------
        ParameterError
            The run is of another task, or kept no sums for this picture.
        """
        outcomes, names = _of_run(run)
        return cls._checked(outcomes, names, str(run)).plot(ax, **options)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, ax: Any = None, **options: Any
    ) -> Self:
        """Plot an estimator that forecasts rows and then learns them; it is not changed.

        Parameters
        ----------
        estimator : estimator of this package
            Its parameters are used, a fitted forest is not.
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        The display.

        Raises
        ------
        ParameterError
            The estimator is of another task.
        """
        names = list(map(str, np.unique(column_or_1d(y)))) if is_classifier(estimator) else []
        outcomes = stream_metrics_of(estimator, X, y).outcomes
        return cls._checked(outcomes, names, type(estimator).__name__).plot(ax, **options)

    @classmethod
    def _checked(cls, outcomes: Outcomes, names: Sequence[str], whose: str) -> Self:
        is_of_classes = outcomes.reliability is not None
        if is_of_classes != (cls._task == CLASSIFICATION):
            raise ParameterError(
                f"{whose} forecasts {'classes' if is_of_classes else 'numbers'}, and "
                f"{cls.__name__} is of {'numbers' if is_of_classes else 'classes'}"
            )
        return cls._of(outcomes, names, whose)

    @classmethod
    def _of(cls, outcomes: Outcomes, names: Sequence[str], whose: str) -> Self:
        raise NotImplementedError

    def plot(self, ax: Any = None, **options: Any) -> Self:
        """Draw; see the subclasses."""
        raise NotImplementedError


def outcomes_of_classes(
    y_true: Any, y_prob: Any, labels: Any, sample_weight: Any
) -> tuple[Outcomes, list[str]]:
    """Return the sums of forecasts of classes, and the names of these.

    Parameters
    ----------
    y_true : array-like of shape (n,)
    y_prob : array-like of shape (n, K), or (n,) of the second of two classes
    labels : array-like of shape (K,) or None
        Classes in the order of the columns; by default those of `y_true`, sorted.
    sample_weight : array-like of shape (n,) or None

    Raises
    ------
    ParameterError
        Columns and classes do not belong together.
    """
    y = column_or_1d(y_true)
    proba = np.asarray(y_prob, np.float64)
    proba = np.column_stack([1.0 - proba, proba]) if proba.ndim == 1 else proba
    classes = np.unique(y) if labels is None else np.asarray(labels)
    if len(classes) != proba.shape[1] or proba.ndim != 2:
        raise ParameterError(
            f"y_prob has the shape {proba.shape} and there are {len(classes)} classes "
            f"({', '.join(map(str, classes[:8]))}): expected a column for each; name them in labels"
        )
    codes = {label: number for number, label in enumerate(classes.tolist())}
    unknown = [label for label in y.tolist() if label not in codes]
    if unknown:
        raise ParameterError(f"y_true has {unknown[0]!r}, which is none of the labels")
    numbers = np.array([codes[label] for label in y.tolist()], np.float64)
    outcomes = Outcomes(CLASSIFICATION)
    outcomes.add(proba, numbers, _weights(sample_weight, numbers, proba))
    return outcomes, list(map(str, classes.tolist()))


def outcomes_of_numbers(y_true: Any, y_pred: Any, sample_weight: Any) -> Outcomes:
    """Return the sums of forecasts of numbers, array-like of shape (n,) each."""
    y = column_or_1d(y_true).astype(np.float64)
    forecast = column_or_1d(y_pred).astype(np.float64)
    outcomes = Outcomes(REGRESSION)
    outcomes.add(forecast[:, None], y, _weights(sample_weight, y, forecast))
    return outcomes


def _weights(sample_weight: Any, y: np.ndarray, forecasts: np.ndarray) -> np.ndarray:
    weight = (
        np.ones(len(y)) if sample_weight is None else column_or_1d(sample_weight).astype(np.float64)
    )
    check_consistent_length(y, forecasts, weight)
    return weight


def _of_run(run: Any) -> tuple[Outcomes, list[str]]:
    from dmondrian.checkpoint import Run

    opened = Run.open(run)
    newest = opened.latest(verify=False)
    stored = None if newest is None else newest.metrics.get("progressive")
    if not stored:
        raise ParameterError(
            f"{run} has no forecasts: it has no checkpoint yet, or was trained with "
            "progressive=False, or saved from arrays"
        )
    outcomes = Progressive.from_json(stored).outcomes
    if outcomes.reliability is None:
        return outcomes, []
    classes = opened.run_json.get("classes") or []
    return outcomes, [str(label) for label in classes]
