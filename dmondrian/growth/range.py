"""Growth on the range of the data: the Mondrian process on the smallest boxes.

Relies on boxes that are exact (the smallest box around the rows of each node). Promises
that the law of the tree depends on the rows, never on their order, when ``pause`` is off.

References: Lakshminarayanan, Roy, Teh (2014), Algorithms 3 and 4; Mourtada, Gaiffas,
Scornet (2021), Algorithms 4 and 6.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.tree.backward import next_above
from dmondrian.tree.box import (
    bound,
    enclose,
    is_outside,
    measure,
    measure_bound,
    pick_feature,
    stretch,
)
from dmondrian.tree.keyed_random import exp, log, row_key, uniform
from dmondrian.tree.loops import learn_along_path
from dmondrian.tree.nodes import (
    LEFT,
    N_NODES,
    ROOT,
    TOTAL_WEIGHT,
    birth_of,
    child_of,
    leaf_of,
    span_of,
    time_of,
)
from dmondrian.tree.policies import (
    Branch,
    branch_off,
    branch_time,
    grow,
    inherit_weight,
    is_pure,
    is_pure_with,
    learn,
    mean_decay,
    parting,
    reads_boxes,
)
from dmondrian.tree.prefetch import N_NOTED, CachedPath, newest_since
from dmondrian.tree.split import insert_parent, open_leaf, threshold_between

_SLACK = 1.0 + 2.0**-30  # more than roundings could take away
_TINY = 1e-30  # more than differences taken for 0 add up to


class Range(NamedTuple):
    """Growth on the range of the data."""

    pause: bool  # do not split a leaf whose rows carry one label, the new row's too
    expected: bool  # predict the expectation over extensions by the point
    max_nodes: int  # no split that would exceed it; boxes and statistics go on
    lifetime: float  # no split after this time; inf for none


@inline
def climb(tree, leaf, newest, x, cached_path):
    """Return the highest node on the path to ``leaf`` whose box leaves ``x`` out, or ~leaf.

    ``cached_path`` holds the nodes that are probably above the leaf.

    Boxes nest, so one walk up from the leaf ends at the lowest box that holds ``x``. Beside it the
    highest node, of those from number ``newest`` on, at which ``x`` does not go to ``leaf``; -1
    where it goes there. None is missed: the box below such a node is of rows on the other side,
    and leaves ``x`` out. Last, ``end``: ``tree.scratch[d:end]`` holds bounds of how far ``x`` lies
    outside, of the nodes from the leaf up, as far as there is scratch.
    """
    v, highest, turn, end = leaf, ~leaf, np.int64(-1), tree.n_features
    level = cached_path.n - 1
    while v >= 0:
        most = measure_bound(tree, v, x)
        # Differences may be taken for 0 where a library makes the processor do so.
        if most == 0.0 and not is_outside(tree, v, x):
            break
        if end < tree.scratch.shape[0]:
            tree.scratch[np.uint64(end)] = most
        end += 1
        parent, level = next_above(tree, cached_path, np.uint64(v), level)
        if parent >= newest and parent >= 0 and child_of(tree, parent, x) != v:
            turn = parent
        v, highest = parent, v
    return highest, turn, end


@inline
def first_outside(tree, prefetched, x):
    """Return what :func:`climb` finds from the leaf of ``x``; the tree has rows.

    Then ``end``, and how many of the noted nodes are above the first, if it is one outside; none
    are counted on where splits have come in on the path.
    """
    root = np.int64(tree.head_i[ROOT])
    leaf = np.int64(prefetched.leaf) if prefetched.leaf >= 0 else leaf_of(tree, root, x)
    cached_path = CachedPath(prefetched.nodes, min(prefetched.depth - 1, N_NOTED))
    highest, turn, end = climb(tree, leaf, newest_since(tree, prefetched), x, cached_path)
    if turn < 0:
        return highest, end, prefetched.depth - (end - tree.n_features)
    cached_path = CachedPath(prefetched.nodes, 0)
    highest, turn, end = climb(tree, leaf_of(tree, turn, x), tree.head_i[N_NODES], x, cached_path)
    return highest, end, np.int64(0)


@inline
def split_above(tree, v, time, x, total, key, draw):
    """Insert a split at ``time`` above ``v`` that parts ``x``; return (parent, leaf)."""
    j = pick_feature(tree.scratch[: tree.n_features], uniform(key, draw) * total)
    u = uniform(key, draw + 1)
    node, at = np.uint64(v), x.values[j]
    lower, upper = bound(tree, node, j, False), bound(tree, node, j, True)
    threshold = threshold_between(upper, at, u) if at > upper else threshold_between(at, lower, u)
    return insert_parent(tree, v, time, j, threshold, x)


implements(learn, Range)(learn_along_path)


@implements(grow, Range)
def grow_range(growth, stat, rule, tree, x, y, key, prefetched):
    if tree.head_i[ROOT] < 0:
        tree.head_i[ROOT] = 0
        leaf = open_leaf(tree, -1)
        enclose(tree, leaf, x)
        return leaf, True, -1, 0
    key = row_key(key, np.float64(tree.head_f[TOTAL_WEIGHT]).view(np.uint64))
    may_split = tree.head_i[N_NODES] + 2 <= growth.max_nodes
    v, end, level = first_outside(tree, prefetched, x)
    if v < 0:
        return ~v, False, -1, min(level - 1, N_NOTED)
    parent_time = birth_of(tree, v)
    draw = 1
    while True:
        end -= 1
        is_leaf = tree.i[v, LEFT] < 0
        time = time_of(tree, v)
        paused = growth.pause and is_leaf and is_pure_with(stat, tree, v, y)
        if may_split and not paused:
            u = uniform(key, draw)
            most = tree.scratch[np.uint64(end)] if end < tree.scratch.shape[0] else np.inf
            # -log(u) >= 1 - u: most splits that come too late are known by a bound alone
            if 1.0 - u <= (most + _TINY) * (time - parent_time) * _SLACK:
                total = measure(tree, v, x, tree.scratch)
                split_time = parent_time - log(u) / total
                if parent_time < split_time < time and split_time <= growth.lifetime:
                    new, leaf = split_above(tree, v, split_time, x, total, key, draw + 1)
                    stretch(tree, new, x)
                    inherit_weight(rule, tree, new, v, is_leaf)
                    return leaf, True, new, min(level, N_NOTED)
            draw += 1
        stretch(tree, v, x)
        if is_leaf:
            return v, False, -1, min(level, N_NOTED)
        parent_time = time
        v = child_of(tree, v, x)
        level += 1


@implements(parting, Range)
def parting_range(growth, tree, leaf, x):
    if not growth.expected:
        return np.int64(-1)
    cached_path = CachedPath(tree.i[0], 0)  # no node is noted
    highest, _, _ = climb(tree, leaf, tree.head_i[N_NODES], x, cached_path)
    return max(highest, np.int64(-1))


@implements(reads_boxes, Range)
def reads_boxes_range(growth):
    return growth.expected


@implements(branch_off, Range)
def branch_off_range(growth, stat, tree, key, at, x):
    v = at.v
    rate = measure(tree, v, x, tree.scratch)
    if tree.i[v, LEFT] < 0:
        if growth.pause and is_pure(stat, tree, v):
            return Branch(0.0, 0.0, 1)
        if at.lifetime == np.inf:
            return Branch(1.0, rate, 1)
    return Branch(1.0 - exp(-rate * span_of(tree, v, at.lifetime)), rate, 1)


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
