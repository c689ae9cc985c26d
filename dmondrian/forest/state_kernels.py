"""Faults of stored nodes: what no tree that learned can hold, found in one pass each.

Fields come one array each, as they are stored. Relies on nothing in them: every index is
checked before it is used. Promises a bit for every kind of fault that is there;
:mod:`dmondrian.forest.state` explains the bits.

Shapes: m nodes, d features, s doubles of statistics.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import kernel

NO_TREE, BAD_FEATURE, BAD_TIME, BAD_END = 1, 2, 4, 8  # faults of links
BAD_WEIGHT, BAD_COUNT, BAD_SQUARE = 1, 2, 4  # faults of statistics


@kernel
def faults_of_links(left, right, parent, feature, time, n_features):
    """Return which faults the links of nodes have, all arrays [m]; the root is another's. O(m).

    A child that names its parent is the child of no other node; so where all children do, where
    they differ, and where they are all nodes but one, every node but one is the child of one.
    """
    m, n_internal, faults = left.shape[0], 0, 0
    for v in range(m):
        a, b, j = left[v], right[v], feature[v]
        if a < 0:
            faults |= 0 if a == -1 and b == -1 else NO_TREE
            faults |= 0 if j == -1 else BAD_FEATURE
            faults |= 0 if time[v] == np.inf else BAD_END
            continue
        n_internal += 1
        faults |= 0 if 0 <= j < n_features else BAD_FEATURE
        if a >= m or b < 0 or b >= m or a == b or parent[a] != v or parent[b] != v:
            faults |= NO_TREE
            continue
        rises = time[v] > 0.0 and time[v] < time[a] and time[v] < time[b]  # false where one is NaN
        faults |= 0 if rises else BAD_TIME
    return faults if 2 * n_internal == m - 1 else faults | NO_TREE


@kernel
def are_bounds(lower, upper):
    """Return whether all bounds [m, d] are finite, lower <= upper. O(m d)."""
    least, most = np.float32(-np.inf), np.float32(np.inf)
    for v in range(lower.shape[0]):
        low, high, wrong = lower[v], upper[v], np.int32(0)
        for j in range(low.shape[0]):  # comparisons with NaN are false
            is_range = (low[j] <= high[j]) & (low[j] > least) & (high[j] < most)
            wrong |= np.int32(not is_range)
        if wrong != 0:
            return False
    return True


@kernel
def are_cells_of_cube(links, threshold, stat, lower, upper):
    """Return whether nodes can be cells of the unit cube. O(m d).

    ``links`` are left, right and feature [m] of a binary tree, ``threshold`` [m]. Splits are within
    the cube; a box (of those that have rows) within its parent's, on its side of the parent's
    split. What draws cells anew goes the way of a box's corner and needs it to end at its leaf.
    """
    left, right, feature = links
    for v in range(left.shape[0]):
        cut, j, is_within = threshold[v], feature[v], True
        if not 0.0 <= cut <= 1.0:
            return False
        if left[v] < 0:
            continue
        for child in (left[v], right[v]):
            if stat[child, 0] == 0.0:
                continue
            for k in range(lower.shape[1]):
                is_within &= (lower[child, k] >= lower[v, k]) & (upper[child, k] <= upper[v, k])
            is_within &= upper[child, j] <= cut if child == left[v] else lower[child, j] > cut
        if not is_within:
            return False
    return True


@kernel
def faults_of_statistics(stat, left, parent, is_counts, n_squares, may_leaf, may_root):
    """Return which faults statistics [m, s] have. O(m s).

    Without rows may be leaves if ``may_leaf``, and the root if ``may_root``. Beside the weight are
    counts if ``is_counts``, else sums, of which ``n_squares`` from the third on are not negative.
    """
    faults = 0
    for v in range(stat.shape[0]):
        node_stats = stat[v]
        weight, is_sound = node_stats[0], True
        for c in range(node_stats.shape[0]):
            is_sound &= abs(node_stats[c]) < np.inf
        is_sound &= weight >= 0.0
        if weight == 0.0:
            is_sound &= left[v] < 0 and may_leaf and (may_root or parent[v] >= 0)
        faults |= 0 if is_sound else BAD_WEIGHT
        for c in range(1, node_stats.shape[0] if is_counts else 1):
            # Sums in doubles are monotone: a class never counts more than all.
            faults |= 0 if 0.0 <= node_stats[c] <= weight else BAD_COUNT
        for c in range(2, 2 if is_counts else min(2 + n_squares, node_stats.shape[0])):
            faults |= 0 if node_stats[c] >= 0.0 else BAD_SQUARE
    return faults
