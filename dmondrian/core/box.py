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
def measure(lower, upper, x, extensions):
    """Write how far ``x`` lies outside in each feature; return the sum. O(d).

    ``extensions`` float64 [d]. Lane j % 8 of the sum first, then the lanes as a tree.
    """
    n = x.shape[0]
    for j in range(n):
        below = np.float64(lower[j]) - np.float64(x[j])
        above = np.float64(x[j]) - np.float64(upper[j])
        below = below if below > 0.0 else np.float64(0.0)
        extensions[j] = above if above > 0.0 else below
    l0 = l1 = l2 = l3 = l4 = l5 = l6 = l7 = 0.0
    whole = n - n % _LANES
    for j in range(0, whole, _LANES):
        l0 += extensions[j]
        l1 += extensions[j + 1]
        l2 += extensions[j + 2]
        l3 += extensions[j + 3]
        l4 += extensions[j + 4]
        l5 += extensions[j + 5]
        l6 += extensions[j + 6]
        l7 += extensions[j + 7]
    rest = n - whole
    l0 += extensions[whole] if rest > 0 else 0.0
    l1 += extensions[whole + 1] if rest > 1 else 0.0
    l2 += extensions[whole + 2] if rest > 2 else 0.0
    l3 += extensions[whole + 3] if rest > 3 else 0.0
    l4 += extensions[whole + 4] if rest > 4 else 0.0
    l5 += extensions[whole + 5] if rest > 5 else 0.0
    l6 += extensions[whole + 6] if rest > 6 else 0.0
    return ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))


@inner
def pick_feature(extensions, target):
    """Return the first feature at which the running sum of extensions exceeds ``target``.

    Rounding can leave ``target`` above the whole sum; then it is the last feature that
    extends at all.
    """
    running = 0.0
    last = 0
    for j in range(extensions.shape[0]):
        if extensions[j] > 0.0:
            running += extensions[j]
            last = j
            if running > target:
                return j
    return last


@inner
def copy(values, out):
    """Write ``values`` to ``out``, which is as long. O(n).

    Numba's own assignment compiles an error message with every use.
    """
    for j in range(values.shape[0]):
        out[j] = values[j]


@inner
def enclose(lower, upper, x):
    """Make ``x`` alone the box; writes lower and upper. O(d)."""
    copy(x, lower)
    copy(x, upper)


@inner
def stretch(lower, upper, x):
    """Take ``x`` into the box; writes lower and upper. O(d)."""
    for j in range(x.shape[0]):
        lower[j] = x[j] if x[j] < lower[j] else lower[j]
        upper[j] = x[j] if x[j] > upper[j] else upper[j]
