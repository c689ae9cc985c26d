"""Thresholds of rows as they are given, of trees that take them scaled and rounded.

Relies on float32 arithmetic. Promises that a row goes to the same side of a threshold returned here
as in the tree, for any scales and units.

Shapes: k thresholds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dmondrian.ensemble.settings.feature_units import round_to

_LARGEST = np.float64(np.finfo(np.float32).max)
_NEAR = 3  # floats that the quotient may be off
_INFINITY = np.int64(np.float32(np.inf).view(np.int32))  # its place among float32 numbers


def thresholds_of_rows(
    thresholds: np.ndarray, scales: np.ndarray, units: np.ndarray | None = None
) -> np.ndarray:
    """Return t such that x <= t exactly if x goes left, for all float32 x; float32 [k].

    A tree compares x * scale, at most the largest float32 and rounded to the unit, with its
    threshold. Both the quotient and the products round: the largest x that goes left is within a
    few floats of the quotient, but where products are so near 0 that many x share one.

    Parameters
    ----------
    thresholds : float32 [k], or of any shape
        inf where all rows go left.
    scales : float32 [k]
        Of the features that are compared.
    units : float64 [k], optional
        To whose multiples scaled features are rounded; 0, or None, for none.
    """
    last, factors = thresholds.astype(np.float64), scales.astype(np.float64)
    is_rounded = np.zeros(last.shape, np.bool_) if units is None else units > 0.0
    each = np.ones(last.shape) if units is None else np.where(is_rounded, units, 1.0)
    # Halfway to the next multiple, where rounding goes to the even one.
    last = np.where(is_rounded, (np.floor(last / each) + 0.5) * each, last)

    def goes_left(x: np.ndarray) -> np.ndarray:
        scaled = np.clip(x * factors, -_LARGEST, _LARGEST).astype(np.float32)
        rounded = round_to(scaled, each) if is_rounded.any() else scaled
        return np.where(is_rounded, rounded, scaled) <= thresholds

    with np.errstate(over="ignore", invalid="ignore"):
        largest = (last / factors).astype(np.float32)
        for _ in range(_NEAR):
            largest = np.where(
                goes_left(largest), largest, np.nextafter(largest, np.float32(-np.inf))
            )
        for _ in range(_NEAR):
            above = np.nextafter(largest, np.float32(np.inf))
            largest = np.where(goes_left(above), above, largest)
        above = np.nextafter(largest, np.float32(np.inf))
        if (goes_left(above) & (above > largest)).any() or not goes_left(largest).all():
            largest = _searched(goes_left, thresholds.shape)  # products near 0, which many x share
    return np.where(thresholds >= _LARGEST, np.float32(np.inf), largest)


def _searched(goes_left: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Return the largest float32 that goes left, by bisection; -inf where none but that does."""
    low, high = np.full(shape, -_INFINITY), np.full(shape, _INFINITY)
    while (high - low > 1).any():
        middle = (low + high) // 2
        is_left = goes_left(_at(middle))
        low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
    return _at(low)


def _at(places: np.ndarray) -> np.ndarray:
    """Return the float32 at places in their order, of which 0 has place 0."""
    size = np.abs(places).astype(np.int32).view(np.float32)
    result: np.ndarray = np.where(places < 0, -size, size)
    return result
