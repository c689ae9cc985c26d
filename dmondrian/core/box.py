"""Boxes: is a point outside, by how much, and the stretch that takes it in.

The test comes first because it vectorises and is all that most visits need; the sum of
extensions has a fixed order of additions (eight lanes, then a fixed tree), so that it is
the same on every processor.
"""

from __future__ import annotations

import numpy as np

from dmondrian._jit import inner

_LANES = 8


@inner
def is_outside(lower, upper, x):
    """Tell whether ``x`` lies outside [lower, upper]. O(d)."""
    outside = np.int32(0)
    for j in range(x.shape[0]):
        outside |= np.int32(x[j] < lower[j]) | np.int32(x[j] > upper[j])
    return outside != 0


@inner
def extension(lower, upper, x, j):
    """Return how far ``x`` lies outside in feature ``j``, float64."""
    below = np.float64(lower[j]) - np.float64(x[j])
    above = np.float64(x[j]) - np.float64(upper[j])
    below = below if below > 0.0 else 0.0
    return above if above > 0.0 else below


@inner
def extension_sum(lower, upper, x):
    """Return the sum over features of the extensions, lane j % 8 first. O(d)."""
    n = x.shape[0]
    l0 = l1 = l2 = l3 = l4 = l5 = l6 = l7 = 0.0
    whole = n - n % _LANES
    for j in range(0, whole, _LANES):
        l0 += extension(lower, upper, x, j)
        l1 += extension(lower, upper, x, j + 1)
        l2 += extension(lower, upper, x, j + 2)
        l3 += extension(lower, upper, x, j + 3)
        l4 += extension(lower, upper, x, j + 4)
        l5 += extension(lower, upper, x, j + 5)
        l6 += extension(lower, upper, x, j + 6)
        l7 += extension(lower, upper, x, j + 7)
    rest = n - whole
    l0 += extension(lower, upper, x, whole) if rest > 0 else 0.0
    l1 += extension(lower, upper, x, whole + 1) if rest > 1 else 0.0
    l2 += extension(lower, upper, x, whole + 2) if rest > 2 else 0.0
    l3 += extension(lower, upper, x, whole + 3) if rest > 3 else 0.0
    l4 += extension(lower, upper, x, whole + 4) if rest > 4 else 0.0
    l5 += extension(lower, upper, x, whole + 5) if rest > 5 else 0.0
    l6 += extension(lower, upper, x, whole + 6) if rest > 6 else 0.0
    return ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))


@inner
def pick_feature(lower, upper, x, target):
    """Return the first feature at which the running sum of extensions exceeds ``target``.

    Rounding can leave ``target`` above the whole sum; then it is the last feature that
    extends at all.
    """
    running = 0.0
    last = 0
    for j in range(x.shape[0]):
        e = extension(lower, upper, x, j)
        if e > 0.0:
            running += e
            last = j
            if running > target:
                return j
    return last


@inner
def stretch(lower, upper, x):
    """Take ``x`` into the box; writes lower and upper. O(d)."""
    for j in range(x.shape[0]):
        lower[j] = x[j] if x[j] < lower[j] else lower[j]
        upper[j] = x[j] if x[j] > upper[j] else upper[j]
