"""Test-then-train metrics against rows learned: of runs, or of an estimator fed with arrays.

Relies on the curves that runs keep (:mod:`dmondrian.distributed.metrics.progressive`). Promises the
numbers of the run, and bands whose meaning is stated.

**Band of one run.** A curve is a mean of losses, which gives between two of its points the mean of
the rows there. The variance of one row is taken from how much neighbouring means differ
(von Neumann, 1941), so that learning itself, which changes the mean slowly, does not widen the
band: 2 standard errors of the mean so far. It does not cover other orders of rows or other seeds.

**Band of several runs** under one label, such as seeds: the mean over runs, and 2 standard errors
of it.

Shapes: p points of a curve, n rows, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.utils import column_or_1d

from dmondrian.displays.axes import axes_of
from dmondrian.distributed.metrics.curve import NAMES, band_of
from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.errors import ParameterError
from dmondrian.prequential.forecast_lag import EACH, kind_of, slices


class LearningCurveDisplay:
    """Metrics of rows predicted just before they were learned, against their number.

    Parameters
    ----------
    curves : mapping of str to list of (rows, values)
        By label, one or more curves: float64 arrays of shape (p,) each.
    metric : {"log_loss", "accuracy", "rmse", "mae"}

    Attributes
    ----------
    lines_ : list of matplotlib Line2D, one per label
    bands_ : list of matplotlib PolyCollection, one per label
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    def __init__(
        self, curves: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]], metric: str
    ) -> None:
        self.curves, self.metric = dict(curves), metric

    @classmethod
    def from_runs(
        cls, runs: Any, *, metric: str | None = None, ax: Any = None, **options: Any
    ) -> Self:
        """Plot runs, finished or in progress.

        Parameters
        ----------
        runs : str or path, sequence of them, or mapping of label to one or several
            Run folders or URLs. Several under one label are drawn as their mean.
        metric : str, optional
            By default log loss, or RMSE.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        LearningCurveDisplay

        Raises
        ------
        ParameterError
            A run has no curve, or not of this metric.
        """
        if isinstance(runs, (str, PathLike)):
            runs = [runs]
        if not isinstance(runs, Mapping):
            runs = {str(run): run for run in runs}
        points = {
            label: [_curve_of(url) for url in ([own] if isinstance(own, (str, PathLike)) else own)]
            for label, own in runs.items()
        }
        return cls._of(points, metric).plot(ax, **options)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        metric: str | None = None,
        label: str | None = None,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Plot an estimator that forecasts rows and then learns them; it is not changed.

        Parameters
        ----------
        estimator : estimator of this package
            Its parameters are used, a fitted forest is not.
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        metric : str, optional
            By default log loss, or RMSE.
        label : str, optional
            By default the estimator's class.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        LearningCurveDisplay
        """
        predictions = stream_predictions(estimator, X, y)
        y = column_or_1d(y)
        total = Progressive("classification" if is_classifier(estimator) else "regression")
        codes = np.unique(y, return_inverse=True)[1] if is_classifier(estimator) else y
        mean = predictions if predictions.ndim == 2 else predictions[:, None]
        total.add(mean, codes.astype(np.float64), None)
        points = {label or type(estimator).__name__: [total.report()["curve"]]}
        return cls._of(points, metric).plot(ax, **options)

    @classmethod
    def _of(cls, points: Mapping[str, list[list[dict[str, float]]]], metric: str | None) -> Self:
        first = next(iter(points.values()))[0]
        known = [name for name in NAMES if name in first[0]]
        metric = metric or known[0]
        for label, own in points.items():
            for curve in own:
                if metric not in curve[0]:
                    raise ParameterError(
                        f"{label} has no {metric!r}: it has {[n for n in NAMES if n in curve[0]]}"
                    )
        curves = {
            label: [_columns(curve, metric) for curve in own] for label, own in points.items()
        }
        return cls(curves, metric)

    def plot(self, ax: Any = None, *, band: bool = True, **line: Any) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        band : bool, default=True
            Draw two standard errors to each side; see the module for what they know.
        **line
            Passed to ``ax.plot``.

        Returns
        -------
        LearningCurveDisplay
        """
        axes = axes_of(ax)
        self.lines_, self.bands_ = [], []
        for label, own in self.curves.items():
            rows, mean, low, high = band_of(own, self.metric)
            (drawn,) = axes.plot(rows, mean, **{"label": label, **line})
            self.lines_.append(drawn)
            if band:
                style = {"color": drawn.get_color(), "alpha": 0.2, "lw": 0.0}
                self.bands_.append(axes.fill_between(rows, low, high, **style))
        axes.set(xlabel="rows learned", ylabel=f"{NAMES[self.metric]} of the rows so far")
        if len(self.curves) > 1:
            axes.legend()
        self.ax_, self.figure_ = axes, axes.figure
        return self


def stream_predictions(estimator: Any, X: Any, y: Any) -> np.ndarray:
    """Return forecasts of rows, each made just before it was learned; the estimator is not changed.

    Row after row is predicted by the fitted estimator and then learned by ``partial_fit``. That
    takes long for estimators that look at all nodes before they predict: those that choose their
    lifetime from the trees, regressors with ``aggregation="hierarchy"``, and the Mondrian kernel.
    They forecast in slices: up to an eighth of the rows before, and up to 4,096 rows, are predicted
    together and then learned.

    Parameters
    ----------
    estimator : estimator of this package
        Its parameters are used, a fitted forest is not.
    X : array-like of shape (n, d)
    y : array-like of shape (n,)

    Returns
    -------
    float64 array of shape (n, K) of class probabilities, or (n,) of predictions
        The first row is forecast by a forest that knows none: all classes alike, or its own label.
    """
    classes = np.unique(column_or_1d(y)) if is_classifier(estimator) else np.empty(0)
    forest = clone(estimator)
    predictions: list[np.ndarray] = []
    for start, stop in _turns(forest, len(X)):
        rows, labels = X[start:stop], y[start:stop]
        if is_classifier(estimator):
            unknown = np.full((stop - start, len(classes)), 1.0 / len(classes))
            predictions.append(forest.predict_proba(rows) if start else unknown)
            forest.partial_fit(rows, labels, classes=classes)
        else:
            predictions.append(forest.predict(rows) if start else np.full(stop, float(labels[0])))
            forest.partial_fit(rows, labels)
    return np.concatenate(predictions)


def _turns(forest: Any, n: int) -> Iterator[tuple[int, int]]:
    """Yield the rows that are predicted and then learned: the first, the next, and so on."""
    yield 0, 1
    if kind_of(forest.forest_.parameters) == EACH:
        yield from ((row, row + 1) for row in range(1, n))
    else:
        yield from ((1 + start, 1 + stop) for start, stop in slices(1, n - 1))


def _columns(curve: list[dict[str, float]], metric: str) -> tuple[np.ndarray, np.ndarray]:
    rows, values = ([point[name] for point in curve] for name in ("rows", metric))
    return np.array(rows, np.float64), np.array(values, np.float64)


def _curve_of(url: Any) -> list[dict[str, float]]:
    from dmondrian.checkpoint import Run

    newest = Run.open(url).latest(verify=False)
    stored = {} if newest is None else newest.metrics
    curve = (
        Progressive.from_json(stored["progressive"]).report()["curve"]
        if stored.get("progressive")
        else []
    )
    if not curve:
        raise ParameterError(
            f"{url} has no learning curve: it has no checkpoint yet, or was trained with "
            "progressive=False, or saved from arrays"
        )
    return curve
