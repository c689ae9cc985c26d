"""Units that features are rounded to, so that 16 bits hold their steps (``box_encoding_choice``).

A unit is a power of two: a 2^14th of the range of the first rows or, at most, twice as much. Rows
may come to lie four times as far apart before 16 bits are too few. What is rounded away is a
2^15th of the range, which no held-out loss shows (benchmarks/reports/rounding.md). A feature is not
rounded where that would make some of its values equal while most of them lie in few steps: one
whose range is that of few rows far out. Units are for good, so that a forest is a function of its
rows: rows that come to lie in a far smaller range than the first become equal.

Relies on nothing but the rows. Promises the same units on every machine.

Shapes: n rows, d features.
"""

from __future__ import annotations

import math

import numpy as np

from dmondrian.tree.quantization import LARGEST_UNIT, log2_above

_STEPS = 14  # log2; of the range, at most
_MIDDLE = 2.0**9  # steps across the middle half of the values, if any are lost
_SHARE = 8  # one value of so many may be


def are_units(units: tuple[float, ...], n_features: int) -> bool:
    """Return whether these are one unit per feature: 0, or a power of two that kernels can use."""
    within = all(unit == 0.0 or 1.0 / LARGEST_UNIT <= unit <= LARGEST_UNIT for unit in units)
    are_powers = all(unit == 0.0 or math.frexp(unit)[0] == 0.5 for unit in units)
    return len(units) == n_features and within and are_powers


def round_to(X: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return values as kernels round them, to units that are not 0; float32, as `X`."""
    with np.errstate(over="ignore"):  # what is beyond float32 stays so
        return (np.rint(X / units.astype(np.float64)) * units + 0.0).astype(np.float32)


def units_of(X: np.ndarray) -> tuple[float, ...] | None:
    """Return the unit of each feature of the first rows, 0 for none; or None.

    None where fewer than half of the features of more than two values would be rounded: their
    steps would not be written as such.

    Parameters
    ----------
    X : float32 [n, d]
        Times the feature scales.
    """
    ordered = np.sort(X, axis=0)
    span = ordered[-1].astype(np.float64) - ordered[0]
    log_units = log2_above(span) - _STEPS
    units = np.exp2(np.clip(log_units, -math.log2(LARGEST_UNIT), math.log2(LARGEST_UNIT)))
    is_new, rounded = ordered[1:] != ordered[:-1], round_to(ordered, units)
    n, n_kept = (1 + np.count_nonzero(a, axis=0) for a in (is_new, rounded[1:] != rounded[:-1]))
    # Two values are two bits of a box, and a third is not known yet.
    fits = (n > 2) & (log_units == np.log2(units)) & (_SHARE * (n - n_kept) <= n)
    for j in np.flatnonzero(fits & (n_kept < n)):
        values = ordered[np.append(True, is_new[:, j]), j]
        apart = float(values[3 * len(values) // 4]) - float(values[len(values) // 4])
        fits[j] = apart >= _MIDDLE * units[j]
    if not fits.any() or 2 * fits.sum() < (n > 2).sum():
        return None
    return tuple(np.where(fits, units, 0.0).tolist())
