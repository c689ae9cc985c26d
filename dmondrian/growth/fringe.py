"""Growth by candidate splits in a fringe of bounded size (D13).

Every row goes, by a draw of its own in each tree, into one of three streams. Structure rows choose
splits: a leaf's first P structure rows are its candidate points, and further ones measure what the
candidate splits are worth. Estimation rows are counted by the leaf, whose forecast they are, and by
both cells of each candidate split, which inherit the counts when they become leaves. The rest is
ignored. So no label decides both where a cell lies and what it forecasts.

A leaf at depth d is split when a structure row finds there a candidate that leaves alpha(d) or more
estimation rows on either side, and whose gain is above ``min_gain``; or whatever its gain, once the
leaf holds beta(d) of them. Only the leaves of the fringe have candidates; a place that a split
leaves goes to the leaf of largest p e, e being the loss of one forecast for all rows of the cell
and p the share of the estimation rows that the cell got since its counts began.

What the paper leaves open: the gain is that of the rows counted by the two candidate cells, which
begin when their point comes; of equal gains the latest candidate wins (Algorithm 7), of equal p e
the older leaf. The node's ``time`` is its depth + 1; the last number of its statistics is for a
leaf the weight of estimation rows before its counts began, for a split its gain in all.

Relies on :mod:`dmondrian.growth.candidates` and :mod:`dmondrian.growth.fringe_queue`. Promises that
a tree is a function of its key and of the rows with their weights: a row's stream is drawn by the
weight before it, a leaf's candidate features by its number.

Shapes: d features, c candidate features, P points.

References: Denil, Matheson, de Freitas (2013), "Consistency of Online Random Forests", sections
3.2 to 3.6 and Appendix A (D13).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.growth.candidates import (
    HEADER,
    N_FEATURES,
    N_POINTS,
    NONE,
    OPEN,
    add_estimation,
    add_point,
    add_structure,
    give_up,
    open_block,
    place_of,
    section,
)
from dmondrian.growth.fringe_queue import call_next, note, queue_children
from dmondrian.tree.keyed_random import log, row_key, uniform
from dmondrian.tree.loops import MAX_REPEATS
from dmondrian.tree.nodes import (
    CANDIDATES,
    ESTIMATED,
    FEATURE,
    LEFT,
    N_ACTIVE,
    N_NODES,
    PARENT,
    REPEATS,
    RIGHT,
    ROOT,
    STAT,
    THRESHOLD,
    TOTAL_WEIGHT,
    leaf_of,
    set_time,
    time_of,
)
from dmondrian.tree.policies import (
    Branch,
    branch_off,
    count,
    gain_of_split,
    gain_unit,
    inherit,
    learn,
    parting,
    prepare,
    reads_boxes,
    spread,
    tally_size,
)
from dmondrian.tree.split import open_leaf


class Fringe(NamedTuple):
    """Growth by candidate splits."""

    max_nodes: int  # no split that would exceed it
    max_fringe: int  # leaves that have candidates
    candidate_rate: float  # lambda: c is min(1 + Poisson(lambda), d)
    n_points: int  # P
    min_gain: float  # tau, in the stat's units
    criterion: int  # of the gain, for the stat to know
    least: float  # alpha(0)
    factor: float  # alpha(d + 1) / alpha(d)
    must_split: float  # beta(d) / alpha(d)
    structure: float  # share of the structure stream
    ignored: float  # share of the rows that a tree ignores


@inline
def depth_of(tree, v):
    """Return the depth of leaf ``v``."""
    parent = tree.i[v, PARENT]
    return np.int64(time_of(tree, parent)) if parent >= 0 else np.int64(0)


@inline
def least_rows(growth, depth):
    """Return alpha of a depth, by multiplications alone."""
    alpha = growth.least
    for _ in range(depth):
        alpha *= growth.factor
    return alpha


@inline
def draw_features(growth, tree, key, v, stat):
    """Open a block for leaf ``v`` and draw its features; return its place or -1. O(d + lambda)."""
    d = tree.n_features
    leaf_key = row_key(key, ~np.uint64(v))  # no weight before a row has these bits
    wanted, draw, clock = 1, 1, -log(uniform(leaf_key, 1))
    while clock <= growth.candidate_rate and wanted < d:
        draw += 1
        wanted += 1
        clock -= log(uniform(leaf_key, draw))
    s, e = tally_size(stat)
    size = section(growth.n_points, s, e)
    place = open_block(tree, v, wanted, HEADER + (1 + wanted) * size)
    if place < 0:
        return place
    at = place + HEADER
    for j in range(d):  # each set of so many features is as likely
        draw += 1
        if uniform(leaf_key, draw) * (d - j) < wanted:
            at += size
            tree.pool[at] = j
            wanted -= 1
    return place


@inline
def best_split(growth, stat, tree, place, depth):
    """Return (section, point, gain) of the best valid candidate; section -1 if none. O(c P)."""
    s, e = tally_size(stat)
    n_points, n = growth.n_points, np.int64(tree.pool[place + N_POINTS])
    size = section(n_points, s, e)
    alpha = least_rows(growth, depth)
    whole = place + HEADER
    to_structure = 1 + n_points * (1 + s)
    n_features = np.int64(tree.pool[place + N_FEATURES])
    best, best_section, point = -np.inf, np.int64(-1), np.int64(-1)
    for k in range(n):
        of_both = tree.pool[whole + 1 + n_points + k]
        if of_both < 2.0 * alpha:
            continue  # what is left of alpha or more is less than alpha, to the last bit
        both, at = whole + to_structure + k, whole
        before = spread(stat, tree, growth.criterion, both, n_points)
        for _ in range(n_features):
            at += size
            of_left = tree.pool[np.uint64(at + 1 + n_points + k)]
            if of_left >= alpha and of_both - of_left >= alpha:
                left = at + to_structure + k
                gain = gain_of_split(stat, tree, growth.criterion, before, both, left, n_points)
                if gain >= best:
                    best, best_section, point = gain, at, np.int64(k)
    return best_section, point, best


@inline
def split(growth, stat, tree, v, at, point, gain, depth):
    """Split leaf ``v`` by a candidate, whose cells become leaves."""
    s, _ = tally_size(stat)
    n_points, last = growth.n_points, STAT + tree.n_stats - 1
    whole = place_of(tree, v) + HEADER
    left, right = open_leaf(tree, v), open_leaf(tree, v)
    tree.i[v, LEFT], tree.i[v, RIGHT] = left, right
    tree.i[v, FEATURE] = np.int32(tree.pool[at])
    tree.f[v, THRESHOLD] = np.float32(tree.pool[at + 1 + point])
    set_time(tree, v, depth + 1.0)
    # A forced split may gain less than nothing, by rounding.
    tree.d[v, last] = max(gain, 0.0) * tree.pool[whole + 1 + n_points * (1 + s) + point]
    for child in (left, right):
        to_tally = 1 + n_points + point
        inherit(stat, tree, child, whole + to_tally, at + to_tally, n_points, child == left)
        tree.d[child, last] = tree.pool[whole + 1 + point]


@inline
def fill_fringe(growth, stat, tree, v):
    """Give the place of ``v``, which was split, to other leaves. O(depth) or as growth.waiting."""
    give_up(tree, v)
    tree.head_i[N_ACTIVE] -= 1
    n_nodes = tree.head_i[N_NODES]
    if n_nodes + 2 > growth.max_nodes:
        for u in range(n_nodes):
            give_up(tree, u)
        tree.head_i[N_ACTIVE] = 0
        return
    if (n_nodes + 1) // 2 <= growth.max_fringe:
        tree.i[tree.i[v, LEFT], CANDIDATES] = OPEN
        tree.i[tree.i[v, RIGHT], CANDIDATES] = OPEN
        tree.head_i[N_ACTIVE] += 2
        return
    queue_children(stat, tree, v)
    while tree.head_i[N_ACTIVE] < growth.max_fringe:
        call_next(stat, tree)
        tree.head_i[N_ACTIVE] += 1


@inline
def look_at(growth, stat, tree, key, v, x, y, w):
    """Add a structure row to leaf ``v``, split if that is due; return whether capacity allowed."""
    if tree.i[v, CANDIDATES] <= NONE:
        return True
    place = place_of(tree, v)
    if place < 0:
        place = draw_features(growth, tree, key, v, stat)
        if place < 0:
            return False
    if tree.pool[place + N_POINTS] < growth.n_points:
        add_point(stat, tree, place, growth.n_points, x)
    add_structure(stat, tree, growth.criterion, place, growth.n_points, x, y, w)
    depth = depth_of(tree, v)
    at, point, gain = best_split(growth, stat, tree, place, depth)
    if at >= 0:
        s, _ = tally_size(stat)
        whole = place + HEADER + 1 + growth.n_points * (1 + s) + point
        least = growth.min_gain * gain_unit(stat, tree, whole, growth.n_points)
        must = tree.d[v, STAT] >= growth.must_split * least_rows(growth, depth)
        if must or gain > least:
            split(growth, stat, tree, v, at, point, gain, depth)
            fill_fringe(growth, stat, tree, v)
    return True


@inline
def add_row(growth, stat, tree, key, x, y, w, prefetched):
    """Take one row, or one repeat of it, into the tree; return whether there was capacity."""
    if tree.head_i[ROOT] < 0:
        tree.head_i[ROOT] = open_leaf(tree, -1)
        if growth.max_nodes >= 3:
            tree.i[0, CANDIDATES] = OPEN
            tree.head_i[N_ACTIVE] = 1
    v = leaf_of(tree, prefetched.leaf if prefetched.leaf >= 0 else tree.head_i[ROOT], x)
    draw = uniform(row_key(key, np.float64(tree.head_f[TOTAL_WEIGHT]).view(np.uint64)), 1)
    if draw < growth.structure:
        return look_at(growth, stat, tree, key, v, x, y, w)
    if draw >= growth.structure + growth.ignored:
        tree.head_f[ESTIMATED] += w
        count(stat, tree, v, y, w)
        place = place_of(tree, v)
        if place >= 0:
            add_estimation(stat, tree, place, growth.n_points, x, y, w)
        else:
            note(stat, tree, v)
    return True


@implements(learn, Fringe)
def learn_in_streams(growth, stat, loss, rule, tree, key, x, y, w, prefetched):
    """Learn each repeat of a row of whole weight as a row of its own, in a stream of its own."""
    is_whole = w <= MAX_REPEATS and w == np.floor(w)
    n, unit = (int(w), 1.0) if is_whole else (1, w)
    for repeat in range(tree.head_i[REPEATS], n):
        prepare(loss, rule, tree, y)
        has_capacity = tree.head_i[N_NODES] + 2 <= tree.i.shape[0]
        if not has_capacity or not add_row(growth, stat, tree, key, x, y, unit, prefetched):
            tree.head_i[REPEATS] = repeat
            return False
        tree.head_f[TOTAL_WEIGHT] += unit
    tree.head_i[REPEATS] = 0
    return True


@implements(parting, Fringe)
def parting_nowhere(growth, tree, leaf, x):
    return np.int64(-1)


@implements(reads_boxes, Fringe)
def reads_no_boxes(growth):
    return False


@implements(branch_off, Fringe)  # compiled with the way down, and never asked
def branch_off_nowhere(growth, stat, tree, key, at, x):
    return Branch(0.0, 0.0, 1)
