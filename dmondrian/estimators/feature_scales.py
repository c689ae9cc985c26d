"""Given feature scales, and thresholds in the units of the original columns.

Relies on NumPy's float32 arithmetic. Promises that a row goes to the same side of a threshold
returned here as in the forest, for any scales and units.

Shapes: d features, k thresholds.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from dmondrian.ensemble.settings.lifetime import PowerLifetime
from dmondrian.ensemble.settings.numeric_limits import LARGEST_SCALE, LEAST_SCALE
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.settings.row_thresholds import thresholds_of_rows
from dmondrian.errors import ParameterError


def is_per_column(value: Any) -> bool:
    """Return whether a parameter is an array-like with a number per column."""
    return not (value is None or isinstance(value, (Real, str, dict, PowerLifetime)))


def numbers_per_column(values: Any, name: str) -> np.ndarray:
    """Return an array-like as float64 array.

    Raises
    ------
    ParameterError
        It has non-numbers, or is ragged.
    """
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        came = f"{str(values)[:80]!r}"
        raise ParameterError(f"{name} should be numbers > 0, got {came}") from None


def given_scales(
    feature_scales: Any, n_features: int, name: str = "feature_scales"
) -> tuple[float, ...] | None:
    """Return the scales of an array, as float32 numbers; None for None, "auto" and "learned".

    Raises
    ------
    ParameterError
        They are not d numbers > 0 within float32.
    """
    if feature_scales is None or isinstance(feature_scales, str):
        return None
    scales = numbers_per_column(feature_scales, name)
    if scales.shape != (n_features,):
        raise ParameterError(
            f"{name} has shape {scales.shape}, expected {(n_features,)}: one number per "
            "feature as the forest sees it (`dmondrian schema` lists those of Parquet data)"
        )
    wrong = np.flatnonzero(~((scales >= LEAST_SCALE) & (scales <= LARGEST_SCALE)))
    if len(wrong):
        raise ParameterError(
            f"{name}[{wrong[0]}] is {float(scales[wrong[0]])!r}, expected a number from "
            f"{LEAST_SCALE:.3g} to {LARGEST_SCALE:.3g}: leave a column out of X to never split it"
        )
    return tuple(scales.astype(np.float32).tolist())


def scales_of(parameters: ForestParameters) -> np.ndarray:
    """Return the factor of each column, float32 [d]."""
    scales = parameters.feature_scales
    return np.array(np.ones(parameters.n_features) if scales is None else scales, np.float32)


def units_of(parameters: ForestParameters) -> np.ndarray:
    """Return the unit to whose multiples scaled columns are rounded, float64 [d]; 0 for none."""
    units = parameters.feature_units
    return np.array(np.zeros(parameters.n_features) if units is None else units)


def thresholds_of_given(
    thresholds: np.ndarray, features: np.ndarray, parameters: ForestParameters
) -> np.ndarray:
    """Return thresholds, float32 [k], of the columns as they are given, by ``features`` [k].

    See :func:`dmondrian.ensemble.settings.row_thresholds.thresholds_of_rows`.
    """
    return thresholds_of_rows(
        thresholds, scales_of(parameters)[features], units_of(parameters)[features]
    )
