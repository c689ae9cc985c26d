"""Slopes to feature scales: how splits served the forecasts of rows, tree by tree.

See :mod:`dmondrian.tuning.scale_slopes`. Every sum has one order, so that a choice made by it is
the same on all machines.

Shapes: n rows, d features, m nodes, l levels of depth.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import kernel
from dmondrian.tree.nodes import FEATURE, LEFT, PARENT, RIGHT, ROOT, THRESHOLD
from dmondrian.tree.policies import forecast_at
from dmondrian.tree.scaled_float import stop_probability


@kernel
def add_advantages(loss, tree, X, y, slopes, weights, path, nodes):
    """Add to each split what going on below it was worth to rows; return the deepest split + 1.

    With p_v what the loss looks at in the forecast of node v, b_v that of the mixture over prunings
    from v on, and r_v the probability that a pruning goes on below v, the mean over prunings would
    be less by a_v = r_v (b_child - p_v) if all of them stopped at v. O(n depth).

    Parameters
    ----------
    X : float32 [n, d]
    y : float64 [n]
    slopes, weights : float64 [n]
        What a row gains for a unit of its forecast, times its weight; its weight.
    path : float64 [m, 3]
        Scratch: node, its share of going on, its forecast.
    nodes : float64 [m, 2]
        Sums of slope a_v and of weight r_v are added here.
    """
    deepest = np.int64(0)
    for r in range(X.shape[0]):
        v, depth, rest = np.int64(tree.head_i[ROOT]), np.int64(0), 1.0
        while tree.i[v, LEFT] >= 0:
            rest *= 1.0 - stop_probability(tree, np.uint64(v))
            path[depth, 0], path[depth, 1] = np.float64(v), rest
            path[depth, 2] = forecast_at(loss, tree, np.uint64(v), y[r])
            goes_left = X[r, tree.i[v, FEATURE]] <= tree.f[v, THRESHOLD]
            v = np.int64(tree.i[v, LEFT] if goes_left else tree.i[v, RIGHT])
            depth += 1
        deepest = max(deepest, depth)
        below = forecast_at(loss, tree, np.uint64(v), y[r])
        for level in range(depth - 1, -1, -1):
            u, rest, forecast = np.int64(path[level, 0]), path[level, 1], path[level, 2]
            nodes[u, 0] += slopes[r] * rest * (below - forecast)
            nodes[u, 1] += weights[r] * rest
            stop = stop_probability(tree, np.uint64(u))
            below = stop * forecast + (1.0 - stop) * below
    return deepest


@kernel
def add_levels(tree, nodes, depths, levels):
    """Add sums of nodes [m, 2] to those of their depth, ``levels`` [l, 2]; write ``depths`` [m].

    O(m). No id of a parent need be below its children's: a node that came above older ones has a
    later id.
    """
    depths[tree.head_i[ROOT]] = 0
    v, came_from = np.int64(tree.head_i[ROOT]), np.int64(-1)
    while v >= 0:
        left, right = np.int64(tree.i[v, LEFT]), np.int64(tree.i[v, RIGHT])
        parent = np.int64(tree.i[v, PARENT])
        to = parent
        if left >= 0 and came_from == parent:
            level = depths[v]
            if level < levels.shape[0]:
                levels[level, 0] += nodes[v, 0]
                levels[level, 1] += nodes[v, 1]
            depths[left], depths[right] = level + 1, level + 1
            to = left
        elif left >= 0 and came_from == left:
            to = right
        v, came_from = to, v


@kernel
def add_scores(tree, first, bounds, nodes, depths, levels, slopes, variances):
    """Add to each feature the score of splits on its scale, times what they were worth.

    A split falls on feature j with probability q_j, the share of its range in those of the box; so
    the derivative of the log of that probability to the log of j's scale is [split on j] - q_j.

    Parameters
    ----------
    first : int
        The nodes are ``first`` and those after it.
    bounds : float32 [c, 2 d]
        Their boxes, in the scaled units, lower bounds first.
    nodes : float64 [m, 2]
        Sums of :func:`add_advantages`.
    depths : int64 [m]
    levels : float64 [l, 2]
        Sums over all trees by depth: a split is compared with the mean of its depth.
    slopes, variances : float64 [d]
        Sums of the scores, and of what these would be squared if splits were by chance alone.
    """
    d = slopes.shape[0]
    for k in range(bounds.shape[0]):
        v = first + k
        if tree.i[v, LEFT] < 0 or nodes[v, 1] <= 0.0:
            continue
        level, total = depths[v], 0.0
        for j in range(d):
            total += np.float64(bounds[k, d + j]) - np.float64(bounds[k, j])
        if total <= 0.0:
            continue
        worth = nodes[v, 0] - nodes[v, 1] * (levels[level, 0] / levels[level, 1])
        square = worth * worth
        for j in range(d):
            share = (np.float64(bounds[k, d + j]) - np.float64(bounds[k, j])) / total
            slopes[j] -= worth * share
            variances[j] += square * (share * (1.0 - share))
        slopes[tree.i[v, FEATURE]] += worth
