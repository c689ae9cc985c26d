"""Steps: the powers of two that values are whole multiples of, or rounded to.

Shapes: n rows, d features.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.simd.exp import lowest_bit

NO_STEP = 1000  # log2; of 0 alone, which is a multiple of any
LARGEST_UNIT = 2.0**100  # its steps, and their sums, are float32; its inverse is the smallest
TOO_FINE = -1000  # log2; of -0, subnormal numbers and what is not finite
_FRACTION, _EXPONENT, _ONE = 0x7FFFFF, 0xFF, 0x800000  # parts of a float32


def log2_above(values: np.ndarray) -> np.ndarray:
    """Return the least whole numbers up to whose power 2 is at least ``values`` >= 0."""
    fractions, exponents = np.frexp(values)
    return exponents - (fractions == 0.5)


@inline
def rounded(value, unit, per_unit):
    """Return the multiple of ``unit`` that is nearest to ``value``, float32; never -0.

    Of two it is the even one. ``unit`` float64 is a power of two, and ``per_unit`` 1 / unit; or
    ``unit`` is 0, and any value stays.
    """
    if unit == 0.0:
        return value
    return np.float32(np.rint(np.float64(value) * per_unit) * unit + 0.0)


@kernel
def round_rows(X, units, out):
    """Write rows ``X`` float32 [n, d] to ``out``, rounded to ``units`` float64 [d]. O(n d)."""
    per_unit = np.zeros(units.shape[0])
    for j in range(units.shape[0]):
        per_unit[j] = 1.0 / units[j] if units[j] > 0.0 else 0.0
    for r in range(X.shape[0]):
        for j in range(X.shape[1]):
            out[r, j] = rounded(X[r, j], units[j], per_unit[j])


@inline
def log2_step(value):
    """Return the log2 of the largest power of two that ``value``, float32, is a multiple of."""
    pattern = np.int64(np.float32(value).view(np.int32))
    exponent, fraction = pattern >> 23 & _EXPONENT, pattern & _FRACTION
    if exponent == 0:
        return NO_STEP if pattern == 0 else TOO_FINE
    if exponent == _EXPONENT:
        return TOO_FINE
    return exponent - 150 + np.int64(lowest_bit(np.uint64(fraction | _ONE)))


@kernel
def take_steps(X, has_rows, features, finest, lower, upper):
    """Take values of rows into ``finest`` int64 [d], the log2 of what all are multiples of. O(n c).

    And into ``lower`` and ``upper`` float32 [d], between which they lie; of ``features`` int64 [c]
    only. ``X`` float32 [n, d]; rows that are not in ``has_rows`` bool [n] are left out.
    """
    for r in range(X.shape[0]):
        if has_rows[r]:
            for k in range(features.shape[0]):
                j = features[k]
                value = X[r, j]
                finest[j] = min(finest[j], log2_step(value))
                lower[j], upper[j] = min(lower[j], value), max(upper[j], value)
