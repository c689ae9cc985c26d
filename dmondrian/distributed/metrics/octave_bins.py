"""Bins of nearly constant relative width: each factor of two is cut into equal parts.

Relies on float64's exponents. Promises bins that are the same on every machine, as no logarithm is
taken: their bounds are exact numbers.

Shapes: n values.
"""

from __future__ import annotations

import numpy as np

PARTS = 8
"""Bins of a size per factor of two: a bin is at most an eighth wider than what it begins with."""


def bins_of_sizes(sizes: np.ndarray) -> np.ndarray:
    """Return the bin of each size > 0, float64 [n], as int64 [n]; a bin has its lower bound."""
    share, exponent = np.frexp(sizes)
    return exponent.astype(np.int64) * PARTS + np.floor((share - 0.5) * 2 * PARTS).astype(np.int64)


def lower_bound(number: int) -> float:
    """Return the least size of a bin; its upper bound is that of the next one."""
    return float(np.ldexp(0.5 + (number % PARTS) / (2 * PARTS), number // PARTS))


def edges_of_shares(parts: int, octaves: int) -> np.ndarray:
    """Return bounds of bins of shares between 0 and 1, ascending, finer near both ends.

    Parameters
    ----------
    parts : int
        Bins per factor of two: of the share below 1/2, of its complement above.
    octaves : int
        Factors of two from 1/2 down; what is smaller is one bin.

    Returns
    -------
    float64 array of shape (2 parts octaves + 1,)
        Without 0 and 1.
    """
    scales = np.ldexp(0.5, -np.arange(octaves, 0, -1))
    low = (scales[:, None] * (1.0 + np.arange(parts) / parts)).ravel()
    return np.concatenate([low, [0.5], 1.0 - low[::-1]])
