"""Pictures of forecasts of classes: ROC and precision-recall curves, reliability, confusion.

Relies on :mod:`dmondrian.displays.outcomes_of`. scikit-learn's displays of the same names draw
fitted estimators; these draw forecasts made before their rows were learned, of runs too.

Shapes: n rows, K classes, p points of a curve, b bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from dmondrian.displays.axes import axes_of
from dmondrian.displays.outcomes_of import (
    CLASSIFICATION,
    OutcomesDisplay,
    outcomes_of_classes,
)
from dmondrian.distributed.metrics.error_histogram import Outcomes
from dmondrian.distributed.metrics.score_histogram import Curve, classes_drawn
from dmondrian.errors import ParameterError

_Curves = Mapping[str, tuple[Any, Any]]


class _OfClasses(OutcomesDisplay):
    """A picture of probabilities of classes and labels."""

    _task = CLASSIFICATION

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        labels: Any = None,
        sample_weight: Any = None,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Plot forecasts, such as of :func:`dmondrian.displays.stream_predictions`.

        Parameters
        ----------
        y_true : array-like of shape (n,)
        y_prob : array-like of shape (n, K)
            Probabilities; or of shape (n,), those of the second of two classes.
        labels : array-like of shape (K,), optional
            Classes in the order of the columns; by default those of `y_true`, sorted.
        sample_weight : array-like of shape (n,), optional
        ax : matplotlib Axes, optional
        **options
            As of :meth:`plot`.

        Returns
        -------
        The display.

        Raises
        ------
        ParameterError
            Columns and classes do not belong together.
        """
        outcomes, names = outcomes_of_classes(y_true, y_prob, labels, sample_weight)
        return cls._of(outcomes, names, "y_prob").plot(ax, **options)


class RocDisplay(_OfClasses):
    """ROC curves: of the second of two classes, or of the four commonest against the rest.

    Parameters
    ----------
    curves : mapping of str to (false positive rates, true positive rates)
        By class, float64 arrays of shape (p,).
    areas : mapping of str to float
        Area under each curve.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D, one per class
    chance_ : matplotlib Line2D
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    def __init__(self, curves: _Curves, areas: Mapping[str, float]) -> None:
        self.curves, self.areas = _as_arrays(curves), dict(areas)

    @classmethod
    def _of(cls, outcomes: Outcomes, names: Sequence[str], whose: str) -> Self:
        drawn = _drawn(outcomes, names, whose)
        curves = {
            name: (curve.false_positives, curve.true_positives) for name, curve in drawn.items()
        }
        return cls(curves, {name: curve.auc for name, curve in drawn.items()})

    def plot(self, ax: Any = None, **line: Any) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        **line
            Passed to ``ax.plot``.

        Returns
        -------
        RocDisplay
        """
        axes = axes_of(ax)
        self.lines_ = [
            axes.plot(*curve, **{"label": f"{name} (area {self.areas[name]:.4f})", **line})[0]
            for name, curve in self.curves.items()
        ]
        (self.chance_,) = axes.plot([0.0, 1.0], [0.0, 1.0], ls="--", c="0.6", label="chance")
        axes.set(xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
        axes.legend(loc="lower right")
        self.ax_, self.figure_ = axes, axes.figure
        return self


class PrecisionRecallDisplay(_OfClasses):
    """Precision against recall: of the second of two classes, or of the four commonest.

    Parameters
    ----------
    curves : mapping of str to (recalls, precisions)
        By class, float64 arrays of shape (p,).
    averages : mapping of str to float
        Average precision of each class.
    shares : mapping of str to float
        Of the weight that is of each class: the precision of chance.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D, one per class
    chance_ : matplotlib Line2D or None
        Of one class alone.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    def __init__(
        self, curves: _Curves, averages: Mapping[str, float], shares: Mapping[str, float]
    ) -> None:
        self.curves, self.averages, self.shares = _as_arrays(curves), dict(averages), dict(shares)

    @classmethod
    def _of(cls, outcomes: Outcomes, names: Sequence[str], whose: str) -> Self:
        drawn = _drawn(outcomes, names, whose)
        return cls(
            {name: curve.recall_and_precision for name, curve in drawn.items()},
            {name: curve.average_precision for name, curve in drawn.items()},
            {name: curve.share for name, curve in drawn.items()},
        )

    def plot(self, ax: Any = None, **line: Any) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        **line
            Passed to ``ax.plot``.

        Returns
        -------
        PrecisionRecallDisplay
        """
        axes = axes_of(ax)
        self.lines_, self.chance_ = [], None
        for name, curve in self.curves.items():
            label = f"{name} (average {self.averages[name]:.4f})"
            self.lines_ += axes.plot(*curve, **{"label": label, **line})
        if len(self.curves) == 1:
            (share,) = self.shares.values()
            (self.chance_,) = axes.plot(
                [0.0, 1.0], [share, share], ls="--", c="0.6", label="share of the class"
            )
        axes.set(xlabel="recall", ylabel="precision", ylim=(0.0, 1.02))
        axes.legend(loc="lower left")
        self.ax_, self.figure_ = axes, axes.figure
        return self


class ReliabilityDisplay(_OfClasses):
    """Shares of right forecasts against their confidence.

    Parameters
    ----------
    confidence, accuracy : array-like of shape (p,)
        Mean probability of the predicted class, and share of rows that have it, by bin.
    bins : array-like of shape (b, 3)
        Bounds of the probability of each bin, and its share of the rows.
    ece : float
        Expected calibration error.

    Attributes
    ----------
    line_ : matplotlib Line2D
    bars_ : matplotlib BarContainer or None
        Shares of the rows.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    def __init__(self, confidence: Any, accuracy: Any, bins: Any, ece: float) -> None:
        self.confidence = np.asarray(confidence, np.float64)
        self.accuracy = np.asarray(accuracy, np.float64)
        self.bins, self.ece = np.asarray(bins, np.float64), float(ece)

    @classmethod
    def _of(cls, outcomes: Outcomes, names: Sequence[str], whose: str) -> Self:
        assert outcomes.reliability is not None  # of classes
        report = outcomes.reliability.report()
        confidence, accuracy = zip(*outcomes.reliability.points(), strict=True)
        bins = [(b["above"], b["up_to"], b["share"]) for b in report["reliability"]]
        return cls(confidence, accuracy, bins, report["ece"])

    def plot(self, ax: Any = None, *, shares: bool = True, **line: Any) -> Self:
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        shares : bool, default=True
            Draw the shares of the rows as bars behind it.
        **line
            Passed to ``ax.plot``.

        Returns
        -------
        ReliabilityDisplay
        """
        axes = axes_of(ax)
        self.bars_ = None
        if shares:
            low, high, share = self.bins.T
            self.bars_ = axes.bar(
                low, share, high - low, align="edge", color="0.85", label="share of the rows"
            )
        axes.plot([0.0, 1.0], [0.0, 1.0], ls="--", c="0.6", label="calibrated")
        style = {"marker": "o", "label": f"right (ECE {self.ece:.4f})", **line}
        (self.line_,) = axes.plot(self.confidence, self.accuracy, **style)
        axes.set(xlabel="how sure", ylabel="share that is right", xlim=(0.0, 1.0), ylim=(0.0, 1.02))
        axes.legend(loc="upper left")
        self.ax_, self.figure_ = axes, axes.figure
        return self


class ConfusionDisplay(_OfClasses):
    """Labels against predictions.

    Parameters
    ----------
    confusion : array-like of shape (K, K)
        Weight by label, in rows, and prediction, in columns.
    names : sequence of str of length K

    Attributes
    ----------
    im_ : matplotlib AxesImage
        Shares of each row.
    text_ : ndarray of matplotlib Text, shape (K, K)
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    def __init__(self, confusion: Any, names: Sequence[str]) -> None:
        self.confusion, self.names = np.asarray(confusion, np.float64), list(names)

    @classmethod
    def _of(cls, outcomes: Outcomes, names: Sequence[str], whose: str) -> Self:
        if outcomes.confusion is None:
            raise ParameterError(f"{whose} has no confusion matrix: it has too many classes")
        return cls(outcomes.confusion, names or [str(k) for k in range(len(outcomes.confusion))])

    def plot(self, ax: Any = None, **image: Any) -> Self:
        """Draw the matrix, shaded by the share of each label.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        **image
            Passed to ``ax.imshow``.

        Returns
        -------
        ConfusionDisplay
        """
        axes, k = axes_of(ax), len(self.names)
        whole = self.confusion.sum(axis=1, keepdims=True)
        shares = np.divide(self.confusion, whole, out=np.zeros((k, k)), where=whole > 0.0)
        self.im_ = axes.imshow(shares, **{"cmap": "Blues", "vmin": 0.0, "vmax": 1.0, **image})
        self.text_ = np.empty((k, k), object)
        for i, j in np.ndindex(k, k):
            colour = "w" if shares[i, j] > 0.55 else "k"
            style = {"ha": "center", "va": "center", "c": colour}
            self.text_[i, j] = axes.text(j, i, f"{shares[i, j]:.0%}", **style)
        axes.set_xticks(range(k), self.names)
        axes.set_yticks(range(k), self.names)
        axes.set(xlabel="predicted", ylabel="label")
        self.ax_, self.figure_ = axes, axes.figure
        return self


def _drawn(outcomes: Outcomes, names: Sequence[str], whose: str) -> dict[str, Curve]:
    """Return the curves that are drawn, by class."""
    curves = outcomes.scores.curves()
    if not curves:
        raise ParameterError(
            f"{whose} has no curves: one class alone has occurred, there are too many, or an "
            "earlier version kept no sums for them"
        )
    known = names or [str(k) for k in range(max(curves) + 1)]
    return {known[k]: curves[k] for k in classes_drawn(curves, len(known))}


def _as_arrays(curves: _Curves) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        name: (np.asarray(x, np.float64), np.asarray(y, np.float64))
        for name, (x, y) in curves.items()
    }
