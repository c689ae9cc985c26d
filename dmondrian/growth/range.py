"""Growth on the range of the data: the Mondrian process on the smallest boxes.

Relies on boxes that are exact (the smallest box around the rows of each node). Promises
that the law of the tree depends on the rows, never on their order, when ``pause`` is off.

References: Lakshminarayanan, Roy, Teh (2014), Algorithms 3 and 4; Mourtada, Gaiffas,
Scornet (2021), Algorithms 4 and 6.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._jit import implements, inner
from dmondrian.core.box import is_outside, measure, pick_feature, stretch
from dmondrian.core.draws import exp, log, row_key, uniform
from dmondrian.core.nodes import (
    FEATURE,
    LEFT,
    N_NODES,
    RIGHT,
    ROOT,
    THRESHOLD,
    TIME,
    TOTAL_WEIGHT,
)
from dmondrian.core.policies import (
    Branch,
    branch_off,
    branch_time,
    grow,
    inherit_weight,
    is_pure,
    is_pure_with,
    mean_decay,
)
from dmondrian.core.split import insert_parent, open_leaf, threshold_between


class Range(NamedTuple):
    """Growth on the range of the data."""

    pause: bool  # do not split a leaf whose rows carry one label, the new row's too
    expected: bool  # predict the expectation over extensions by the point
    max_nodes: int  # no split that would exceed it; boxes and statistics go on
    lifetime: float  # no split after this time; inf for none


@inner
def split_above(tree, v, time, x, total, key, draw):
    """Insert a split at ``time`` above ``v`` that parts ``x``; return (parent, leaf)."""
    low, d = tree.lower, tree.n_features
    lower = tree.f[v, low : low + d]
    upper = tree.f[v, low + d : low + d + d]
    j = pick_feature(tree.scratch[:d], uniform(key, draw) * total)
    u = uniform(key, draw + 1)
    if x[j] > upper[j]:
        threshold = threshold_between(upper[j], x[j], u)
    else:
        threshold = threshold_between(x[j], lower[j], u)
    return insert_parent(tree, v, time, j, threshold, x)


@implements(grow, Range)
def grow_range(growth, stat, rule, tree, x, y, key):
    v = tree.head_i[ROOT]
    if v < 0:
        tree.head_i[ROOT] = 0
        return open_leaf(tree, x, -1), True, -1
    key = row_key(key, np.float64(tree.head_f[TOTAL_WEIGHT]).view(np.uint64))
    low, d = tree.lower, tree.n_features
    may_split = tree.head_i[N_NODES] + 2 <= growth.max_nodes
    parent_time = 0.0
    draw = 1
    while True:
        is_leaf = tree.i[v, LEFT] < 0
        time = tree.d[v, TIME]
        lower = tree.f[v, low : low + d]
        upper = tree.f[v, low + d : low + d + d]
        if is_outside(lower, upper, x):
            paused = growth.pause and is_leaf and is_pure_with(stat, tree, v, y)
            if may_split and not paused:
                total = measure(lower, upper, x, tree.scratch)
                split_time = parent_time - log(uniform(key, draw)) / total
                if parent_time < split_time < time and split_time <= growth.lifetime:
                    new, leaf = split_above(tree, v, split_time, x, total, key, draw + 1)
                    stretch(tree.f[new, low : low + d], tree.f[new, low + d : low + d + d], x)
                    inherit_weight(rule, tree, new, v, is_leaf)
                    return leaf, True, new
                draw += 1
            stretch(lower, upper, x)
        if is_leaf:
            return v, False, -1
        parent_time = time
        goes_left = x[tree.i[v, FEATURE]] <= tree.f[v, THRESHOLD]
        v = tree.i[v, LEFT] if goes_left else tree.i[v, RIGHT]


@implements(branch_off, Range)
def branch_off_range(growth, stat, tree, key, at, x):
    if not growth.expected:
        return Branch(0.0, 0.0)
    v = at.v
    low, d = tree.lower, tree.n_features
    lower = tree.f[v, low : low + d]
    upper = tree.f[v, low + d : low + d + d]
    if not is_outside(lower, upper, x):
        return Branch(0.0, 0.0)
    rate = measure(lower, upper, x, tree.scratch)
    if tree.i[v, LEFT] < 0:
        if growth.pause and is_pure(stat, tree, v):
            return Branch(0.0, 0.0)
        if at.end == np.inf:
            return Branch(1.0, rate)
    return Branch(1.0 - exp(-rate * (at.end - at.birth)), rate)


# The branch comes at the first ring of a clock of this rate, given that it rings within the span.


@implements(mean_decay, Range)
def mean_decay_range(growth, branch, span, rate):
    both = branch.where + rate
    if span == np.inf:
        return branch.where / both
    return branch.where / both * (1.0 - exp(-both * span)) / branch.probability


@implements(branch_time, Range)
def branch_time_range(growth, branch, quantile):
    return -log(1.0 - quantile * branch.probability) / branch.where
