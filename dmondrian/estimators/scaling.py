"""Feature scales that a user gives, and thresholds in the units of the user's columns.

Relies on NumPy's float32 arithmetic. Promises that a row goes the same way by a threshold told
here as it does in the forest, whatever the scale.

Shapes: d features, k thresholds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian.errors import ParameterError
from dmondrian.parameters import LARGEST_SCALE, LEAST_SCALE


def given_scales(feature_scales: Any, n_features: int) -> tuple[float, ...] | None:
    """Return the scales of an array, as float32 numbers; None for None, "auto" and "learned".

    Raises
    ------
    ParameterError
        They are not d numbers > 0 that a float32 holds.
    """
    if feature_scales is None or isinstance(feature_scales, str):
        return None
    try:
        scales = np.asarray(feature_scales, np.float64)
    except (TypeError, ValueError):
        told = f"{str(feature_scales)[:80]!r}"
        raise ParameterError(f"feature_scales should be numbers > 0, got {told}") from None
    if scales.shape != (n_features,):
        raise ParameterError(
            f"feature_scales has shape {scales.shape}, expected {(n_features,)}: one number per "
            "feature as the forest sees it (`dmondrian schema` lists those of Parquet data)"
        )
    wrong = np.flatnonzero(~((scales >= LEAST_SCALE) & (scales <= LARGEST_SCALE)))
    if len(wrong):
        raise ParameterError(
            f"feature_scales[{wrong[0]}] is {scales[wrong[0]]!r}, expected a number from "
            f"{LEAST_SCALE:.3g} to {LARGEST_SCALE:.3g}: leave a column out of X to never split it"
        )
    return tuple(scales.astype(np.float32).tolist())


def unscaled_thresholds(thresholds: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return t with x <= t where x * scale <= threshold, for all float32 x; float32 [k].

    The quotient rounds, and so do the products: the largest x of which the product is not
    above the threshold lies at most two floats beside it.
    """
    with np.errstate(over="ignore"):
        found = thresholds / scales
        for _ in range(2):
            found = np.where(found * scales > thresholds, np.nextafter(found, -np.inf), found)
        for _ in range(2):
            above = np.nextafter(found, np.float32(np.inf))
            found = np.where(above * scales <= thresholds, above, found)
    return found
