"""Figures and tables of single forecasts: curves by class, errors and intervals of numbers.

Relies on sums that a run keeps of its forecasts. Promises figures of a size that does not grow with
the rows, and words where a run kept no sums for one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dmondrian.distributed.metrics.error_histogram import Outcomes
from dmondrian.distributed.metrics.residuals import QUANTILES, Coverage, Residuals
from dmondrian.distributed.metrics.score_histogram import MOST_CLASSES, Curve, classes_drawn
from dmondrian.report.charts import Line, histogram_chart, line_chart, point_chart
from dmondrian.report.number_format import metric, number, percent
from dmondrian.report.rendering import Figure

_MOST_POINTS = 96  # of a curve

CLASS_HEAD = ("class", "share", "precision", "recall", "F1", "ROC AUC", "average precision")
"""Head of the table of classes."""


class ClassFigures(NamedTuple):
    """Figures, table and notes about forecasts of classes."""

    figures: list[Figure]
    table: list[tuple[str, ...]]
    notes: list[str]


def class_figures(outcomes: Outcomes, names: Sequence[str]) -> ClassFigures:
    """Return ROC and precision-recall curves, and metrics by class."""
    curves = outcomes.scores.curves()
    notes = _notes_on_scores(outcomes, curves, len(names))
    shown = classes_drawn(curves, len(names))
    figures = [_roc(curves, shown, names), _precision(curves, shown, names)] if shown else []
    return ClassFigures(figures, _class_table(outcomes, curves, names), notes)


def _notes_on_scores(outcomes: Outcomes, curves: dict[int, Curve], n_classes: int) -> list[str]:
    """Return what curves are of, or why there are none."""
    if n_classes > MOST_CLASSES:
        return [
            f"There are no ROC curves and no metrics by class: of more than {MOST_CLASSES} classes "
            "no sums are kept"
        ]
    if not curves:
        return [
            "There are no ROC curves: "
            + (
                "the run was trained by a version that kept no sums for them"
                if not outcomes.scores.rows
                else "one class alone has occurred"
            )
        ]
    notes = []
    if outcomes.scores.rows < outcomes.rows:
        notes.append(f"The curves are of the last {outcomes.scores.rows:,} rows, which a version "
                     "that keeps sums for them has learned")  # fmt: skip
    error = max(curve.auc_error for curve in curves.values())
    at_most = f"{error:.1g}" if error >= 1e-4 else "0.0001"
    notes.append(
        "Scores are counted in bins: areas under ROC curves are those of the rows to within "
        f"{at_most}"
    )
    if n_classes > 2:
        notes.append("each class is taken against the rest")
    return notes


def _roc(curves: dict[int, Curve], shown: Sequence[int], names: Sequence[str]) -> Figure:
    lines = [
        Line(names[k], _thinned(curves[k].false_positives, curves[k].true_positives)) for k in shown
    ]
    chance = Line("chance", [(0.0, 0.0), (1.0, 1.0)], is_dashed=True)
    ends = (0.0, 1.0)
    if len(shown) == 1:
        lines.append(chance)
    chart = line_chart(lines, "false positive rate", percent, percent, ends=ends,
                       y_name="true positive rate")  # fmt: skip
    areas = f"area {curves[shown[0]].auc:.4f}" if len(shown) == 1 else "by class"
    whom = f" of {names[shown[0]]}" if len(shown) == 1 else ""
    return Figure(f"ROC curve{whom}: {areas}", chart, tuple(line.name for line in lines))


def _precision(curves: dict[int, Curve], shown: Sequence[int], names: Sequence[str]) -> Figure:
    lines = []
    for k in shown:
        curve = curves[k]
        lines.append(Line(names[k], _thinned(*curve.recall_and_precision)))
    if len(shown) == 1:
        share = curves[shown[0]].share
        lines.append(Line("share of the class", [(0.0, share), (1.0, share)], is_dashed=True))
    chart = line_chart(lines, "recall", percent, percent, ends=(0.0, 1.0), y_name="precision")
    whom = f" of {names[shown[0]]}" if len(shown) == 1 else ""
    areas = "by class"
    if len(shown) == 1:
        areas = f"average {curves[shown[0]].average_precision:.4f}"
    title = f"Precision against recall{whom}: {areas}"
    return Figure(title, chart, tuple(line.name for line in lines))


def _class_table(
    outcomes: Outcomes, curves: dict[int, Curve], names: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return a row for each class, and their mean."""
    if outcomes.confusion is None:
        return []
    rows, kept = [], []
    metrics = precision_recall_f1(outcomes.confusion)
    support = outcomes.confusion.sum(axis=1)
    whole = float(support.sum()) or 1.0
    for k, name in enumerate(names):
        values = [float(column[k]) for column in metrics]
        curve = curves.get(k)
        values += [math.nan, math.nan] if curve is None else [curve.auc, curve.average_precision]
        kept.append(values)
        rows.append((name, f"{support[k] / whole:.1%}", *map(_shown, values)))
    means = [
        math.fsum(column) / len(column) if all(map(math.isfinite, column)) else math.nan
        for column in zip(*kept, strict=True)
    ]
    return [*rows, ("mean over classes", "", *map(_shown, means))]


def precision_recall_f1(confusion: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return precision, recall and F1 of each class, float64 [K] each; nan where none is defined.

    ``confusion`` is float64 [K, K], weight by label and prediction.
    """
    right = np.diag(confusion)
    predicted, labelled = confusion.sum(axis=0), confusion.sum(axis=1)
    none = np.full(len(right), np.nan)
    precision = np.divide(right, predicted, out=none.copy(), where=predicted > 0.0)
    recall = np.divide(right, labelled, out=none.copy(), where=labelled > 0.0)
    both = predicted + labelled
    return precision, recall, np.divide(2.0 * right, both, out=none, where=both > 0.0)


def _shown(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "none"


def _thinned(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    """Return points of a curve, both ends among them."""
    places = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).round().astype(int))
    return list(zip(x[places].tolist(), y[places].tolist(), strict=True))


def number_figures(outcomes: Outcomes) -> tuple[list[Figure], list[str]]:
    """Return charts of errors and intervals, and notes on them."""
    residuals, notes = outcomes.residuals, []
    if not residuals.rows:
        notes.append(
            "There are no charts of forecasts against labels and of errors: the run was trained by "
            "a version that kept no sums for them"
        )
    elif residuals.rows < outcomes.rows:
        notes.append(f"Forecasts against labels and errors are of the last {residuals.rows:,} rows,"
                     " which a version that keeps them has learned")  # fmt: skip
    figures = _error_figures(residuals) if residuals.rows else []
    if outcomes.coverage.shares():
        figures.append(_coverage(outcomes.coverage))
        whom = f"{outcomes.coverage.rows:,} rows"
        if outcomes.coverage.rows < outcomes.rows:
            whom += ", a sample that is denser at the beginning"
        notes.append(f"Intervals are counted over {whom}")
    else:
        notes.append(
            "There is no coverage of intervals: forecasts have no standard deviation without "
            'calibrate = true or drift = "follow", and no quantiles'
        )
    return figures, notes


def _error_figures(residuals: Residuals) -> list[Figure]:
    points = [(forecast, y) for _, forecast, y in residuals.sample]
    sampled = f"{len(points):,} of {residuals.rows:,} rows, chosen by their numbers"
    which = sampled if len(points) < residuals.rows else f"{len(points):,} rows"
    return [
        Figure(f"Labels against forecasts ({which})",
               point_chart(points, "forecast", "label", number)),
        Figure("Errors: forecast less label",
               histogram_chart(residuals.bars(), "error", number)),
    ]  # fmt: skip


def _coverage(coverage: Coverage) -> Figure:
    """Return how many labels lie below quantiles, or within intervals, against how many should."""
    line = Line("found", coverage.shares())
    lines = [line, Line("as forecast", [(0.0, 0.0), (1.0, 1.0)], is_dashed=True)]
    are_quantiles = coverage.kind == QUANTILES
    what = "below quantiles" if are_quantiles else "within intervals"
    chart = line_chart(lines, f"share forecast {what}", percent, percent, ends=(0.0, 1.0),
                       y_name="share found")  # fmt: skip
    shares = ", ".join(f"{level:.4g}: {share:.3f}" for level, share in coverage.shares())
    names = tuple(line.name for line in lines)
    return Figure(
        f"Labels {what}", chart, names, caption=f"Share found of each share forecast ({shares})"
    )


def auc_tiles(outcomes: Outcomes, names: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """Return value, name, baseline's name and value of areas under curves; none where not known."""
    curves = outcomes.scores.curves()
    if not curves:
        return []
    if (
        set(curves) == {0, 1}
        and outcomes.scores.sums is not None
        and outcomes.scores.sums.shape[1] == 1
    ):
        curve, of_class = curves[1], f" of {names[1]}" if len(names) == 2 else ""
        return [
            (metric(curve.auc), "ROC AUC", "chance", metric(0.5)),
            (metric(curve.average_precision), f"average precision{of_class}",
             "share of the class", metric(curve.share)),
        ]  # fmt: skip
    mean = math.fsum(curve.auc for curve in curves.values()) / len(curves)
    return [(metric(mean), "ROC AUC, mean of each class against the rest", "chance", metric(0.5))]
