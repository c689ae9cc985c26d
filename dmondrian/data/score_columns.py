"""Columns of scores: what a forest answers for rows, as files and services write it.

Relies on sums over all trees. Promises the same columns, values and names wherever rows are scored.

Shapes: n rows, k outputs, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian.data.arrow_arrays import array_of, column_of
from dmondrian.drift.guard import Guard
from dmondrian.drift.member_sums import MemberSums
from dmondrian.ensemble.settings.loss_settings import quantile_names, responses
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.prediction_sums import Sums
from dmondrian.forest.forest import Forest
from dmondrian.uncertainty.density import DensityAnswers
from dmondrian.uncertainty.temperature_scaling import FittedCalibration, calibrated, calibrated_std

Summing = Forest | DensityAnswers | MemberSums
"""What sums predictions of trees."""


def summing(forest: Any, n_draws: int | None) -> Summing:
    """Return what sums predictions of trees: their forest, or the density of `n_draws`."""
    if forest.parameters.follows_stream:
        return MemberSums(forest)
    trees: Forest = forest
    return trees if n_draws is None else DensityAnswers(trees, n_draws)


def has_label_std(
    parameters: ForestParameters, calibration: FittedCalibration | None, guard: Guard | None
) -> bool:
    """Whether variances are of the label, not between trees."""
    return parameters.has_gaussian_mixture or (
        (calibration is not None or guard is not None) and parameters.gives_label_variance
    )


def detail_names(parameters: ForestParameters, is_of_label: bool) -> tuple[str, ...]:
    """Return the names of the columns of uncertainty; a density has none.

    Parameters
    ----------
    is_of_label : bool
        As :func:`has_label_std` returns.
    """
    if parameters.is_density:
        return ()
    deviation = "std" if is_of_label else "spread"
    return (deviation, "distance") if parameters.has_boxes else (deviation,)


def score_names(classes: Any, parameters: ForestParameters, details: tuple[str, ...]) -> list[str]:
    """Return the names of the columns of scores, in order."""
    if parameters.is_density:
        return ["log_density"]
    if parameters.levels:
        return [*quantile_names(parameters.levels), *details]
    if parameters.has_decision:
        shares = [] if parameters.cost.loss == "hinge" else [f"proba_{c}" for c in classes]
        return ["prediction", *shares, "decision", *details]
    return ["prediction", *(f"proba_{c}" for c in classes or ()), *details]


def score_arrays(
    sums: Sums,
    classes: Sequence[Any] | None,
    calibration: FittedCalibration | None,
    parameters: ForestParameters,
    guard: Guard | None = None,
) -> list[pa.Array]:
    """Return the columns of scores, in order, from the sums over all trees.

    Deviations and distances are included if they were summed.
    """
    mean = sums.mean
    if parameters.is_density:
        return [array_of(mean[:, 0])]
    if parameters.minimises_loss:
        columns = _generalized_arrays(mean, classes, parameters)
        return [*columns, *_detail_arrays(sums, None, parameters.cost.middle)]
    known = None if guard is None else guard.mix(dict(sums.shares or {}))
    if classes is None and known is not None:  # mean and variance of the label
        std = [] if sums.square is None else [array_of(np.sqrt(known[:, 1]))]
        distances = _detail_arrays(sums._replace(square=None), None, 0)
        return [array_of(known[:, 0].copy()), *std, *distances]
    if classes is None:
        return [array_of(mean[:, 0]), *_detail_arrays(sums, calibration, 0)]
    proba = calibrated(parameters.forecasts(mean), calibration) if known is None else known
    best = proba.argmax(axis=1)
    probabilities = [array_of(np.ascontiguousarray(proba[:, k])) for k in range(mean.shape[1])]
    prediction = column_of(list(classes)).take(array_of(best))
    return [prediction, *probabilities, *_detail_arrays(sums, None, best)]


def _detail_arrays(
    sums: Sums, calibration: FittedCalibration | None, output: int | np.ndarray
) -> list[pa.Array]:
    """Return the deviations of an output, which may vary by row, and the distances."""
    arrays = []
    if sums.square is not None:
        variance = sums.variance[np.arange(len(sums.square)), output]
        arrays.append(array_of(calibrated_std(variance, calibration)))
    if sums.distance is not None:
        arrays.append(array_of(sums.distance / sums.n_trees))
    return arrays


def _generalized_arrays(
    mean: np.ndarray, classes: Sequence[Any] | None, parameters: ForestParameters
) -> list[pa.Array]:
    """Return the columns of predictions of a generalised forest."""
    loss = parameters.cost.loss
    if classes is None:
        values = responses(loss, mean)
        return [array_of(np.ascontiguousarray(values[:, k])) for k in range(values.shape[1])]
    z = mean[:, 0]
    shares = parameters.forecasts(mean)
    columns = [] if loss == "hinge" else [array_of(shares[:, k].copy()) for k in range(2)]
    return [
        column_of(list(classes)).take(array_of((z > 0.0).astype(np.int64))),
        *columns,
        array_of(z),
    ]
