"""Test-then-train metrics against rows learned: of runs, or of an estimator fed with arrays.

Relies on the curves that runs keep (:mod:`dmondrian.distributed.metrics.progressive`). Promises the
numbers of the run, and bands whose meaning is stated.

**Band of one run.** A curve is a mean of losses, which gives between two of its points the mean of
the rows there. The variance of one row is taken from how much neighbouring means differ
(von Neumann, 1941), so that learning itself, which changes the mean slowly, does not widen the
band: 2 standard errors of the mean so far. It does not cover other orders of rows or other seeds.

**Band of several runs** under one label, such as seeds: the mean over runs, and 2 standard errors
of it.

**Spans.** ``span="so_far"`` is of all rows up to a point. ``"window"`` is of the rows since the
point before, or since an earlier one where these are few; ``"faded"`` of rows that count half once
1,024 have come after them. These two have no band for one run.

**Delay.** The axis names how far ahead rows were forecast: metrics at different delays are of
different tasks.

Shapes: p points of a curve, n rows, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.utils import column_or_1d

from dmondrian.displays.axes import axes_of
from dmondrian.distributed.metrics.baselines import baseline_in_words
from dmondrian.distributed.metrics.curve import NAMES, band_of, points_by_window
from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.errors import ParameterError
from dmondrian.prequential.forecast_lag import (
    EACH,
    LAG,
    SLICES,
    delay_in_words,
    kind_of,
    slices,
)

_SPANS = {
    "so_far": "of the rows so far",
    "window": "by window of the stream",
    "faded": "of the rows so far, faded",
}


class LearningCurveDisplay:
    """Metrics of rows predicted just before they were learned, against their number.

    Parameters
    ----------
    curves : mapping of str to list of (rows, values)
        By label, one or more curves: float64 arrays of shape (p,) each.
    metric : {"log_loss", "accuracy", "rmse", "mae"}
    span : {"so_far", "window", "faded"}, default="so_far"
        Rows that a value is of.
    delays : mapping of str to int or None, optional
        By label, how far ahead rows were forecast.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D, one per label
    bands_ : list of matplotlib PolyCollection, one per label
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    def __init__(
        self,
        curves: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]],
        metric: str,
        span: str = "so_far",
        delays: Mapping[str, int | None] | None = None,
    ) -> None:
        self.curves, self.metric, self.span = dict(curves), metric, span
        self.delays = dict(delays or {})

    @classmethod
    def from_runs(
        cls,
        runs: Any,
        *,
        metric: str | None = None,
        span: str = "so_far",
        baselines: bool = False,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Plot runs, finished or in progress.

        Parameters
        ----------
        runs : str or path, sequence of them, or mapping of label to one or several
            Run folders or URLs. Several under one label are drawn as their mean.
        metric : str, optional
            By default log loss, or RMSE.
        span : {"so_far", "window", "faded"}, default="so_far"
            Rows that a value is of.
        baselines : bool, default=False
            With ``span="window"``, draw also forecasts that know labels alone, of the first run.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        LearningCurveDisplay

        Raises
        ------
        ParameterError
            A run has no curve, or not of this metric or span.
        """
        if isinstance(runs, (str, PathLike)):
            runs = [runs]
        if not isinstance(runs, Mapping):
            runs = {str(run): run for run in runs}
        reports = {
            label: [
                _report_of(url) for url in ([urls] if isinstance(urls, (str, PathLike)) else urls)
            ]
            for label, urls in runs.items()
        }
        return cls._of(reports, metric, span, baselines).plot(ax, **options)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        metric: str | None = None,
        label: str | None = None,
        span: str = "so_far",
        baselines: bool = False,
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
        span, baselines
            As of :meth:`from_runs`.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        LearningCurveDisplay
        """
        total = stream_metrics_of(estimator, X, y)
        reports = {label or type(estimator).__name__: [total.report()]}
        return cls._of(reports, metric, span, baselines).plot(ax, **options)

    @classmethod
    def _of(
        cls,
        reports: Mapping[str, list[dict[str, Any]]],
        metric: str | None,
        span: str,
        baselines: bool,
    ) -> Self:
        if span not in _SPANS:
            raise ParameterError(f"span is {span!r}; expected one of {list(_SPANS)}")
        if baselines and span != "window":
            raise ParameterError("baselines are drawn by window: give span='window' too")
        first = next(iter(reports.values()))[0]
        known = [name for name in NAMES if name in first["curve"][0]]
        metric = metric or known[0]
        for label, reports_of_label in reports.items():
            for report in reports_of_label:
                has = [name for name in NAMES if name in report["curve"][0]]
                if metric not in has:
                    raise ParameterError(f"{label} has no {metric!r}: it has {has}")
                if span != "so_far" and not report.get("windows"):
                    raise ParameterError(
                        f"{label} has no metrics by window: it has too few rows, or was trained by "
                        "an earlier version"
                    )
        curves = {
            label: [_columns(report, metric, span) for report in reports_of_label]
            for label, reports_of_label in reports.items()
        }
        if baselines:
            for name in first["windows"][0]["baselines"]:
                points = points_by_window(first["windows"], metric, name)
                curves[baseline_in_words(name)] = [_as_columns(points)]
        delays = {
            label: reports_of_label[0]["delay"] for label, reports_of_label in reports.items()
        }
        return cls(curves, metric, span, delays)

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
        for label, curves in self.curves.items():
            is_alone = len(curves) == 1
            rows, mean, low, high = band_of(curves, self.metric)
            (drawn,) = axes.plot(rows, mean, **{"label": self._label(label), **line})
            self.lines_.append(drawn)
            if band and not (is_alone and self.span != "so_far"):
                style = {"color": drawn.get_color(), "alpha": 0.2, "lw": 0.0}
                self.bands_.append(axes.fill_between(rows, low, high, **style))
        name = f"{NAMES[self.metric]} {_SPANS[self.span]}"
        if len(set(self.delays.values())) == 1:
            name += f", {delay_in_words(next(iter(self.delays.values())))}"
        axes.set(xlabel="rows learned", ylabel=name)
        if len(self.curves) > 1:
            axes.legend()
        self.ax_, self.figure_ = axes, axes.figure
        return self

    def _label(self, label: str) -> str:
        """Return a label, with the delay where that of others is another one."""
        if label not in self.delays or len(set(self.delays.values())) == 1:
            return label
        return f"{label}, {delay_in_words(self.delays[label])}"


def stream_predictions(estimator: Any, X: Any, y: Any) -> np.ndarray:
    """Return forecasts of rows, each made just before it was learned; the estimator is not changed.

    Row after row is predicted by the fitted estimator and then learned by ``partial_fit``. That
    takes long for estimators that look at all nodes before they predict: those that choose their
    lifetime from the trees, regressors with ``aggregation="hierarchy"``, and the Mondrian kernel.
    They forecast in slices: up to an eighth of the rows before, and up to 4,096 rows, are predicted
    together and then learned. A forest with ``drift="follow"`` is asked for ``delay`` rows at
    once.

    Parameters
    ----------
    estimator : estimator of this package
        Its parameters are used, a fitted forest is not.
    X : array-like of shape (n, d)
    y : array-like of shape (n,)

    Returns
    -------
    float64 array of shape (n, K) of class probabilities, or (n,) of predictions
        The first rows are forecast by a forest that knows none: all classes alike, or the first
        label.
    """
    return _forecast_stream(estimator, X, y).predictions


def stream_metrics_of(estimator: Any, X: Any, y: Any) -> Progressive:
    """Return the metrics of :func:`stream_predictions`; classes are numbered in their order."""
    forecasts = _forecast_stream(estimator, X, y)
    predictions, y = forecasts.predictions, column_or_1d(y)
    task = "classification" if is_classifier(estimator) else "regression"
    total = Progressive(task, forecasts.kind, 0, forecasts.delay)
    codes = np.unique(y, return_inverse=True)[1] if is_classifier(estimator) else y
    mean = predictions if predictions.ndim == 2 else predictions[:, None]
    total.add(mean, codes.astype(np.float64), None, forecasts.turns)
    return total


class _Stream(NamedTuple):
    """Forecasts of rows, and how far ahead they were made."""

    predictions: np.ndarray
    turns: list[int]  # rows that were forecast after the one before was learned
    kind: str
    delay: int


def _forecast_stream(estimator: Any, X: Any, y: Any) -> _Stream:
    """Forecast rows and then learn them; see :func:`stream_predictions`."""
    if isinstance(getattr(estimator, "delay", 1), str):
        raise ParameterError(
            f"rows are forecast by their number here, and delay={estimator.delay!r} is a time: "
            "give it in rows, or train a run, which has the curve"
        )
    classes = np.unique(column_or_1d(y)) if is_classifier(estimator) else np.empty(0)
    forest, is_following = clone(estimator), getattr(estimator, "drift", None) is not None
    block = int(estimator.delay) if is_following else 1
    predictions: list[np.ndarray] = []
    turns = []
    for start, stop in _turns(forest, len(X), block):
        rows, labels = X[start:stop], y[start:stop]
        turns.append(start)
        if is_classifier(estimator):
            unknown = np.full((stop - start, len(classes)), 1.0 / len(classes))
            predictions.append(forest.predict_proba(rows) if start else unknown)
            forest.partial_fit(rows, labels, classes=classes)
        else:
            predictions.append(forest.predict(rows) if start else np.full(stop, float(labels[0])))
            forest.partial_fit(rows, labels)
    is_by_row = kind_of(forest.forest_.parameters) == EACH
    kind, delay = (EACH, block) if is_by_row else (SLICES, LAG)
    return _Stream(np.concatenate(predictions), turns, kind, delay)


def _turns(forest: Any, n: int, block: int) -> Iterator[tuple[int, int]]:
    """Yield the rows that are predicted and then learned: the first, the next, and so on."""
    yield 0, min(block, n)
    if kind_of(forest.forest_.parameters) == EACH:
        yield from ((start, min(start + block, n)) for start in range(block, n, block))
    else:
        yield from ((1 + start, 1 + stop) for start, stop in slices(1, n - 1))


def _columns(report: dict[str, Any], metric: str, span: str) -> tuple[np.ndarray, np.ndarray]:
    if span == "so_far":
        return _as_columns([(point["rows"], point[metric]) for point in report["curve"]])
    if span == "window":
        return _as_columns(points_by_window(report["windows"], metric))
    return _as_columns([(point["rows"], point["faded"][metric]) for point in report["windows"]])


def _as_columns(points: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    rows, values = zip(*points, strict=True)
    return np.array(rows, np.float64), np.array(values, np.float64)


def _report_of(url: Any) -> dict[str, Any]:
    from dmondrian.checkpoint import Run

    newest = Run.open(url).latest(verify=False)
    stored = {} if newest is None else newest.metrics
    report: dict[str, Any] = {}
    if stored.get("progressive"):
        report = Progressive.from_json(stored["progressive"]).report()
    if not report.get("curve"):
        raise ParameterError(
            f"{url} has no learning curve: it has no checkpoint yet, or was trained with "
            "progressive=False, or saved from arrays"
        )
    return report
