"""Pictures of forecasts of numbers: labels against forecasts, errors, and how often intervals hold.

Relies on :mod:`dmondrian.displays.outcomes_of`.

Shapes: n rows, s rows of a sample, b bars, p points of a curve, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.utils import check_consistent_length, column_or_1d

from dmondrian.displays.axes import axes_of
from dmondrian.displays.outcomes_of import REGRESSION, OutcomesDisplay, outcomes_of_numbers
from dmondrian.distributed.metrics.error_histogram import Outcomes
from dmondrian.distributed.metrics.residuals import QUANTILES, Coverage
from dmondrian.errors import ParameterError

_KINDS = ("labels", "errors", "sizes")


class ForecastErrorDisplay(OutcomesDisplay):
    """Labels against forecasts, the histogram of errors, or shares of rows by size of the error.

    Parameters
    ----------
    forecasts, labels : array-like of shape (s,)
        Of a sample of at most 512 rows, chosen by their numbers.
    bars : array-like of shape (b, 3)
        Lower and upper bound of errors, forecast less label, and the share of the rows between;
        the outermost bounds are infinite.
    sizes : array-like of shape (p, 2)
        Sizes of errors, and the share of the rows whose error is smaller.

    Attributes
    ----------
    drawn_ : matplotlib PathCollection, BarContainer or Line2D
        By kind.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    _task = REGRESSION

    def __init__(self, forecasts: Any, labels: Any, bars: Any, sizes: Any) -> None:
        self.forecasts = np.asarray(forecasts, np.float64)
        self.labels = np.asarray(labels, np.float64)
        self.bars = np.asarray(bars, np.float64).reshape(-1, 3)
        self.sizes = np.asarray(sizes, np.float64).reshape(-1, 2)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        *,
        sample_weight: Any = None,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Plot forecasts, such as of :func:`dmondrian.displays.stream_predictions`.

        Parameters
        ----------
        y_true, y_pred : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        ForecastErrorDisplay
        """
        outcomes = outcomes_of_numbers(y_true, y_pred, sample_weight)
        return cls._of(outcomes, [], "y_pred").plot(ax, **options)

    @classmethod
    def _of(cls, outcomes: Outcomes, names: Sequence[str], whose: str) -> Self:
        sample = np.array(outcomes.residuals.sample, np.float64).reshape(-1, 3)
        return cls(sample[:, 1], sample[:, 2], outcomes.residuals.bars(), outcomes.rising_shares())

    def plot(self, ax: Any = None, *, kind: str = "labels", **style: Any) -> Self:
        """Draw one of the three.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        kind : {"labels", "errors", "sizes"}, default="labels"
            Labels against forecasts, a histogram of errors, or shares of rows with an error of at
            most a size.
        **style
            Passed to ``ax.scatter``, ``ax.bar`` or ``ax.plot``.

        Returns
        -------
        ForecastErrorDisplay

        Raises
        ------
        ParameterError
            The kind is none of these, or an earlier version kept no sums for it.
        """
        if kind not in _KINDS:
            raise ParameterError(f"kind is {kind!r}; expected one of {list(_KINDS)}")
        if not len(self.sizes if kind == "sizes" else self.bars):
            raise ParameterError(
                f"there is no picture of {kind}: no row, or the run was trained by an earlier "
                "version, which kept no sums for it"
            )
        axes = axes_of(ax)
        if kind == "labels":
            self.drawn_ = axes.scatter(self.forecasts, self.labels, **{"s": 8.0, **style})
            both = np.concatenate([self.forecasts, self.labels])
            ends = [both.min(), both.max()] if len(both) else [0.0, 1.0]
            axes.plot(ends, ends, ls="--", c="0.6")
            axes.set(xlabel="forecast", ylabel="label")
        elif kind == "errors":
            self.drawn_ = self._draw_bars(axes, style)
            axes.set(xlabel="error: forecast less label", ylabel="share of the rows")
        else:
            (self.drawn_,) = axes.plot(*self.sizes.T, **style)
            axes.set(xlabel="size of the error", xscale="log", ylabel="share of rows below it")
            axes.set_ylim(0.0, 1.02)
        self.ax_, self.figure_ = axes, axes.figure
        return self

    def _draw_bars(self, axes: Any, style: dict[str, Any]) -> Any:
        """Draw bars of one width; the outermost ones have all that lies beyond."""
        low, high, share = self.bars.T
        inner = np.isfinite(low) & np.isfinite(high)
        width = float((high - low)[inner].max()) if inner.any() else 0.0
        start = np.where(np.isfinite(low), low, high - width)
        return axes.bar(start, share, width or 1.0, align="edge", **style)


class CoverageDisplay(OutcomesDisplay):
    """Shares of labels below quantiles, or within intervals, against the shares that should be.

    Parameters
    ----------
    levels, shares : array-like of shape (L,)
        Shares as forecast, and as found.
    kind : {"quantiles", "intervals"}

    Attributes
    ----------
    line_ : matplotlib Line2D
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    _task = REGRESSION

    def __init__(self, levels: Any, shares: Any, kind: str) -> None:
        self.levels = np.asarray(levels, np.float64)
        self.shares, self.kind = np.asarray(shares, np.float64), kind

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        *,
        std: Any = None,
        levels: Any = None,
        sample_weight: Any = None,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Plot forecasts with standard deviations, or quantiles.

        Parameters
        ----------
        y_true : array-like of shape (n,)
        y_pred : array-like of shape (n,), or (n, L) of quantiles
        std : array-like of shape (n,), optional
            Standard deviations of the label, such as of ``predict(X, return_std=True)``.
        levels : array-like of shape (L,), optional
            Of the quantiles.
        sample_weight : array-like of shape (n,), optional
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        CoverageDisplay

        Raises
        ------
        ParameterError
            Neither standard deviations nor levels are given, or both.
        """
        if (std is None) == (levels is None):
            raise ParameterError("give either std, or levels of the quantiles in y_pred")
        y, forecasts = column_or_1d(y_true).astype(np.float64), np.asarray(y_pred, np.float64)
        weight = np.ones(len(y)) if sample_weight is None else column_or_1d(sample_weight)
        check_consistent_length(y, forecasts, weight)
        outcomes = Outcomes(REGRESSION)
        if levels is None:
            outcomes.coverage.add_deviations(forecasts - y, column_or_1d(std), weight.astype(float))
        else:
            outcomes.coverage.add_quantiles(forecasts, list(levels), y, weight.astype(float))
        return cls._of(outcomes, [], "y_pred").plot(ax, **options)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        levels: Any = None,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Plot the intervals, or quantiles, that a fitted estimator forecasts of other rows.

        Parameters
        ----------
        estimator : fitted regressor of this package
            With ``calibrate=True`` or ``drift="follow"``, for standard deviations of the label.
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        levels : array-like of shape (L,), optional
            Of quantiles that are asked for, in place of standard deviations.
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        CoverageDisplay
        """
        if levels is not None:
            quantiles = estimator.predict_quantiles(X, levels)
            return cls.from_predictions(y, quantiles, levels=levels, ax=ax, **options)
        mean, std = estimator.predict(X, return_std=True)
        return cls.from_predictions(y, mean, std=std, ax=ax, **options)

    @classmethod
    def _of(cls, outcomes: Outcomes, names: Sequence[str], whose: str) -> Self:
        coverage: Coverage = outcomes.coverage
        if not coverage.shares():
            raise ParameterError(
                f"{whose} has no intervals: forecasts have no standard deviation without "
                'calibrate=True or drift="follow", and no quantiles'
            )
        levels, shares = zip(*coverage.shares(), strict=True)
        return cls(levels, shares, str(coverage.kind))

    def plot(self, ax: Any = None, **line: Any) -> Self:
        """Draw the shares.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        **line
            Passed to ``ax.plot``.

        Returns
        -------
        CoverageDisplay
        """
        axes = axes_of(ax)
        what = "below quantiles" if self.kind == QUANTILES else "within intervals"
        axes.plot([0.0, 1.0], [0.0, 1.0], ls="--", c="0.6", label="as forecast")
        style = {"marker": "o", "label": "found", **line}
        (self.line_,) = axes.plot(self.levels, self.shares, **style)
        axes.set(xlabel=f"share forecast {what}", ylabel="share found", aspect="equal")
        axes.set(xlim=(0.0, 1.02), ylim=(0.0, 1.02))
        axes.legend(loc="upper left")
        self.ax_, self.figure_ = axes, axes.figure
        return self
