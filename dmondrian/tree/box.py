"""Boxes: is a row outside, by how much, and the stretch that takes it in.

A bound comes first because it is all that most visits need; the sum of extensions has a fixed
order of additions (eight lanes, then a fixed tree), so that it is the same on every processor and
however :mod:`dmondrian.tree.box_encoding` writes a feature.

Shapes: d features, p of them numeric, g stepped, q words of bits per value.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline, noinline
from dmondrian.tree.box_encoding import steps_to, value_of
from dmondrian.tree.nodes import n_bound_words_compiled
from dmondrian.tree.simd.box_distance import SUM_LANES, beyond, extend, extend_steps, widen
from dmondrian.tree.simd.box_distance_bound import rough_extension
from dmondrian.tree.simd.exp import lowest_bit

_ROUGH = 2.0**-23  # twice what a rounding of float32 may take away


@inline
def is_outside(tree, v, x):
    """Return whether row ``x`` lies outside the box of ``v``. O(d)."""
    v = np.uint64(v)
    if is_plain(tree, x):
        return measure_plain(tree, v, x, tree.scratch) > 0.0
    if beyond(tree.box[v], x.numeric, x.steps):
        return True
    new = np.uint64(0)
    for w in range(x.bits.shape[0]):
        new |= x.bits[w] & ~tree.bits[v, np.uint64(w)]
    return new != np.uint64(0)


@inline
def measure_bound(tree, v, x):
    """Return at least what :func:`measure` does, and little more, or inf; 0 where it is. O(p + q).

    Rows are measured at many nodes to find out that they split none of them, for which this is
    enough, and whose additions may be done in any order. The box must hold a row: the corner of a
    cell without any is at another distance from the values of a binary feature.
    """
    v = np.uint64(v)
    if is_plain(tree, x):
        return measure_plain(tree, v, x, tree.scratch) * (1.0 + _ROUGH)
    columns = tree.columns
    total = np.float64(
        rough_extension(tree.box[v], x.numeric, x.steps, columns.units, columns.unit)
    )
    half = x.bits.shape[0] // 2
    for w in range(x.bits.shape[0]):
        word = x.bits[np.uint64(w)] & ~tree.bits[v, np.uint64(w)]
        first = np.uint64(64 * (w if w < half else w - half))
        while word:
            values = tree.columns.values[first + lowest_bit(word)]
            total += abs(np.float64(values[0]) - np.float64(values[1]))
            word &= word - np.uint64(1)
    return total * (1.0 + (tree.n_features + 16) * _ROUGH)


@inline
def extension(lower, upper, x):
    """Return how far ``x`` lies outside [``lower``, ``upper``], exactly rounded, or in steps."""
    below = np.float64(lower) - np.float64(x)
    above = np.float64(x) - np.float64(upper)
    below = below if below > 0.0 else np.float64(0.0)
    return above if above > 0.0 else below


@inline
def is_plain(tree, x):
    """Return whether ``x`` is written in floats alone, though boxes are not.

    A row that is asked about is, where it has values that the boxes' columns cannot hold.
    """
    return x.numeric.shape[0] > tree.columns.numeric.shape[0]


@noinline
def measure_plain(tree, v, x, extensions):
    """Return the extension, bound after bound, of a row in floats alone. O(d)."""
    for j in range(tree.n_features):
        lower, upper = bound(tree, v, j, False), bound(tree, v, j, True)
        extensions[j] = extension(lower, upper, x.values[j])
    return _sum_of_lanes(_lanes_of(extensions, tree.n_features), extensions, tree.n_features)


@inline
def measure(tree, v, x, extensions):
    """Write how far ``x`` lies outside the box of ``v`` in each feature; return the sum. O(d).

    ``extensions`` float64 [d]. Lane j % 8 of the sum first, then the lanes as a tree.
    """
    v = np.uint64(v)
    if is_plain(tree, x):
        return measure_plain(tree, v, x, extensions)
    if x.numeric.shape[0] < tree.n_features:
        if x.steps.shape[0] == tree.n_features:
            return _measure_steps(tree, v, x, extensions)
        _write_mixed(tree, v, x, extensions)
        return _sum_of_lanes(_lanes_of(extensions, tree.n_features), extensions, tree.n_features)
    box, p = tree.box[v], x.numeric.shape[0]
    lower, upper, numeric = box[:p], box[p : p + p], x.numeric
    for j in range(p - p % SUM_LANES, p):
        extensions[j] = extension(lower[j], upper[j], numeric[j])
    return _sum_of_lanes(extend(lower, upper, numeric, extensions), extensions, p)


@inline
def _measure_steps(tree, v, x, extensions):
    """Return the extension where all features are stepped."""
    g, units, row_steps = x.steps.shape[0], tree.columns.units, x.steps
    lower, upper = tree.steps[v, :g], tree.steps[v, g : g + g]
    for k in range(g - g % SUM_LANES, g):
        extensions[k] = extension(lower[k], upper[k], row_steps[k]) * np.float64(units[k])
    return _sum_of_lanes(extend_steps(lower, upper, row_steps, units, extensions), extensions, g)


@inline
def _write_mixed(tree, v, x, extensions):
    """Write extensions where features are of several kinds."""
    box, p = tree.box[v], x.numeric.shape[0]
    lower, upper, numeric = box[:p], box[p : p + p], x.numeric
    for j in range(tree.n_features):
        extensions[j] = 0.0
    columns = tree.columns
    for k in range(p):
        extensions[columns.numeric[k]] = extension(lower[k], upper[k], numeric[k])
    steps, g, units = tree.steps[v][4 * p :], x.steps.shape[0], columns.units
    for k in range(g):
        n_steps = extension(steps[k], steps[g + k], x.steps[k])
        extensions[columns.stepped[k]] = n_steps * np.float64(units[k])
    half = x.bits.shape[0] // 2
    for w in range(x.bits.shape[0]):
        word = x.bits[w] & ~tree.bits[v, np.uint64(w)]
        value_index, k = (0, 64 * w) if w < half else (1, 64 * (w - half))
        across = tree.bits[v, np.uint64(w + half if w < half else w - half)]
        while word:
            if word & np.uint64(1):
                values = columns.values[k]
                # A cell without rows has neither value, but the corner 0: see :func:`empty_box`.
                near = values[1 - value_index] if across & np.uint64(1) else np.float32(0.0)
                extensions[columns.binary[k]] = abs(
                    np.float64(values[value_index]) - np.float64(near)
                )
            word >>= np.uint64(1)
            across >>= np.uint64(1)
            k += 1


@inline
def _lanes_of(extensions, n):
    """Return what :func:`extend` does of extensions that are written."""
    l0 = l1 = l2 = l3 = l4 = l5 = l6 = l7 = 0.0
    for j in range(0, n - n % SUM_LANES, SUM_LANES):
        l0 += extensions[j]
        l1 += extensions[j + 1]
        l2 += extensions[j + 2]
        l3 += extensions[j + 3]
        l4 += extensions[j + 4]
        l5 += extensions[j + 5]
        l6 += extensions[j + 6]
        l7 += extensions[j + 7]
    return l0, l1, l2, l3, l4, l5, l6, l7


@inline
def _sum_of_lanes(lanes, extensions, n):
    """Return the sum of ``lanes`` and of the last n % 8 of ``n`` extensions."""
    l0, l1, l2, l3, l4, l5, l6, l7 = lanes
    rest = n % SUM_LANES
    whole = n - rest
    l0 += extensions[whole] if rest > 0 else 0.0
    l1 += extensions[whole + 1] if rest > 1 else 0.0
    l2 += extensions[whole + 2] if rest > 2 else 0.0
    l3 += extensions[whole + 3] if rest > 3 else 0.0
    l4 += extensions[whole + 4] if rest > 4 else 0.0
    l5 += extensions[whole + 5] if rest > 5 else 0.0
    l6 += extensions[whole + 6] if rest > 6 else 0.0
    return ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))


@inline
def distance_to(tree, v, x, memory):
    """Return what :func:`measure` does. O(p + g) if no binary feature extends, as at most leaves.

    ``memory`` float64 [d] or [8], whichever is more, is written to. Of numeric features alone, or
    of stepped ones, lanes are added up in order; of both they would not be.
    """
    new = np.uint64(0)
    for w in range(x.bits.shape[0]):
        new |= x.bits[w] & ~tree.bits[np.uint64(v), np.uint64(w)]
    n_numeric, n_stepped = x.numeric.shape[0], x.steps.shape[0]
    both = n_numeric > 0 and n_stepped > 0
    if n_numeric == tree.n_features or both or new != np.uint64(0):
        return measure(tree, v, x, memory)
    box, p, lanes = tree.box[np.uint64(v)], x.numeric.shape[0], memory[:SUM_LANES]
    lower, upper, numeric, features = box[:p], box[p : p + p], x.numeric, tree.columns.numeric
    for k in range(SUM_LANES):
        lanes[k] = 0.0
    for k in range(p):  # features that do not extend add 0 to their lanes, which is as good as not
        lane = np.uint64(features[k]) & np.uint64(SUM_LANES - 1)
        lanes[lane] += extension(lower[k], upper[k], numeric[k])
    steps, g, units = tree.steps[np.uint64(v)][4 * p :], x.steps.shape[0], tree.columns.units
    for k in range(g):
        lane = np.uint64(tree.columns.stepped[k]) & np.uint64(SUM_LANES - 1)
        n_steps = extension(steps[k], steps[g + k], x.steps[k])
        lanes[lane] += n_steps * np.float64(units[k])
    left = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6])
    return left + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))


@inline
def pick_feature(extensions, target):
    """Return the first feature at which the running sum of extensions exceeds ``target`` >= 0.

    Rounding can leave ``target`` above the whole sum; then it is the last feature that
    extends at all.
    """
    running = 0.0
    for j in range(extensions.shape[0]):
        running += extensions[j]  # those that are 0 change nothing
        if running > target:
            return j
    last = extensions.shape[0] - 1
    while last > 0 and extensions[last] == 0.0:
        last -= 1
    return last


@inline
def bound(tree, v, j, is_upper):
    """Return the lower or upper bound of feature ``j`` of the box of ``v``, float32."""
    place, p = tree.columns.place[j], tree.columns.numeric.shape[0]
    if place >= p:
        k, g = place - p, tree.columns.stepped.shape[0]
        return value_of(tree.columns, k, tree.steps[v, 4 * p + k + (g if is_upper else 0)])
    if place >= 0:
        return tree.box[v, place + (p if is_upper else 0)]
    k = ~place
    first, second = tree.columns.values[k, 0], tree.columns.values[k, 1]
    bit = np.uint64(1) << np.uint64(k & 63)
    has_first = tree.bits[v, k >> 6] & bit
    has_second = tree.bits[v, tree.bits.shape[1] // 2 + (k >> 6)] & bit
    if has_first and has_second:
        return max(first, second) if is_upper else min(first, second)
    if has_first or has_second:
        return first if has_first else second
    return np.float32(0.0)  # a cell without rows: see :func:`empty_box`


@inline
def is_point(tree, v):
    """Return whether the box of ``v`` is a point. O(d)."""
    p, half = tree.columns.numeric.shape[0], tree.bits.shape[1] // 2
    for k in range(p):
        if tree.box[v, k] != tree.box[v, p + k]:
            return False
    steps, g = tree.steps[v][4 * p :], tree.columns.stepped.shape[0]
    for k in range(g):
        if steps[k] != steps[g + k]:
            return False
    both = np.uint64(0)
    for w in range(half):
        both |= tree.bits[v, w] & tree.bits[v, half + w]
    return both == np.uint64(0)


@inline
def copy(values, out):
    """Write ``values`` to ``out``, which is as long. O(n).

    Numba's own assignment compiles an error message with every use.
    """
    for j in range(values.shape[0]):
        out[j] = values[j]


@inline
def copy_box(tree, v, out):
    """Give ``out`` the box of ``v``. O(d)."""
    n = n_bound_words_compiled(tree.columns)
    copy(tree.box[v, :n], tree.box[out, :n])
    copy(tree.bits[v], tree.bits[out])


@inline
def empty_box(tree, v):
    """Give ``v``, a cell without rows, the corner 0 of the cube, whose bits are none. O(d)."""
    p, g = tree.columns.numeric.shape[0], tree.columns.stepped.shape[0]
    for k in range(2 * p):
        tree.box[v, k] = np.float32(0.0)
    for k in range(g):
        zero = np.int16(steps_to(tree.columns, k, np.float32(0.0)))
        tree.steps[v, 4 * p + k], tree.steps[v, 4 * p + g + k] = zero, zero
    for k in range(tree.bits.shape[1]):
        tree.bits[v, k] = np.uint64(0)


@inline
def enclose(tree, v, x):
    """Make ``x`` alone the box of ``v``. O(d)."""
    p = x.numeric.shape[0]
    box = tree.box[v]
    copy(x.numeric, box[:p])
    copy(x.numeric, box[p : p + p])
    steps, g = tree.steps[v][4 * p :], x.steps.shape[0]
    copy(x.steps, steps[:g])
    copy(x.steps, steps[g : g + g])
    copy(x.bits, tree.bits[v])


@inline
def stretch(tree, v, x):
    """Take ``x`` into the box of ``v``. O(d)."""
    widen(tree.box[np.uint64(v)], x.numeric, x.steps)
    for k in range(x.bits.shape[0]):
        tree.bits[v, k] |= x.bits[k]
