"""Learning curves of runs: names of metrics, and error bands.

Relies on NumPy alone, so that showing a run needs no estimators.

Shapes: p points of a curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmondrian.distributed.metrics.windows import PANE, WINDOW

NAMES = {"log_loss": "log loss", "accuracy": "accuracy", "rmse": "RMSE", "mae": "MAE"}
_FEWEST = 32  # points of a curve by window, where there are rows enough
_SQUARED = ("rmse",)  # roots of means


def band_of(
    curves: Sequence[tuple[np.ndarray, np.ndarray]], metric: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, mean, and the mean minus and plus two standard errors, float64 [p] each.

    Several curves are interpolated at the points of the one that ends first.
    """
    if len(curves) == 1:
        rows, values = curves[0]
        power = 2.0 if metric in _SQUARED else 1.0
        error = 2.0 * standard_errors(rows, values**power)
        low, high = np.maximum(values**power - error, 0.0), values**power + error
        return rows, values, low ** (1.0 / power), high ** (1.0 / power)
    rows = min((of_curve for of_curve, _ in curves), key=lambda of_curve: of_curve[-1])
    rows = rows[rows >= max(of_curve[0] for of_curve, _ in curves)]
    values = np.stack([np.interp(rows, *curve) for curve in curves])
    mean = values.mean(axis=0)
    error = 2.0 * values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return rows, mean, mean - error, mean + error


def points_by_window(
    windows: Sequence[Mapping[str, Any]], metric: str, baseline: str | None = None
) -> list[tuple[float, float]]:
    """Return the end of each window of a curve, in rows, and the metric of the rows in it.

    Rows count by their weight. Neighbouring windows of few rows are put together: a mean of few
    rows means little. ``windows``
    are those of :meth:`dmondrian.distributed.metrics.progressive.Progressive.report`; a
    ``baseline`` is one of theirs.
    """
    if not windows:
        return []
    least = min(WINDOW, max(PANE, int(windows[-1]["rows"]) // _FEWEST))
    power = 2.0 if metric in _SQUARED else 1.0
    points, rows, weight, mean = [], 0, 0.0, 0.0
    for window in windows:
        rows += int(window["rows"]) - int(window["start"])
        metrics = window if baseline is None else window["baselines"][baseline]
        weight += float(window["weight"])
        mean += (float(metrics[metric]) ** power - mean) * (float(window["weight"]) / weight)
        if rows >= least:
            points.append((float(window["rows"]), mean ** (1.0 / power)))
            rows, weight, mean = 0, 0.0, 0.0
    return points


def standard_errors(rows: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the standard error of each cumulative mean, float64 [p]; nan for the first two.

    Parameters
    ----------
    rows : float64 [p]
        Numbers of rows, increasing.
    means : float64 [p]
        Mean over that many first rows.
    """
    between = np.diff(rows, prepend=0.0)
    means_between = (
        np.diff(rows * means, prepend=0.0) / between
    )  # mean of the rows since the point before
    squares = np.diff(means_between) ** 2 / (1.0 / between[1:] + 1.0 / between[:-1])
    of_row = np.full(len(rows), np.nan)
    of_row[1:] = np.cumsum(squares) / np.arange(1, len(rows))
    of_row[:2] = np.nan
    return np.sqrt(of_row / rows)
