"""Growth on the unit cube: one Mondrian process, realised where rows part.

The draws of a cell (split time, feature, threshold) are keyed by the seed, the tree and the path
to the cell, so the infinite partition of [0, 1]^d is a fixed object that does not look at the
rows. A cell is realised (split in the tree) when it holds two distinct rows: a leaf that holds
one point is left whole, for whatever lies below it can be drawn again from its path. When a
second point comes, the leaf's cells are split, and all that it knows moves to the child with the
first point, until the points are parted, the lifetime is passed or no more nodes are allowed.
So no row is stored, nodes are never inserted above others, and the cells that are split are
those with two distinct rows, in whatever order these came; statistics that add can be merged.
Cuts through a side that holds a single float32 part no rows and are left out of the process.

Relies on rows in [0, 1]^d. Promises that a leaf with distinct rows was stopped by the lifetime
or the cap. A cell that no row has reached is a leaf of weight zero whose box is the corner of
the cube. Two points at distance e part after about 2 d log(1 / e) splits, each of two nodes: the
price of a partition that does not look at the rows, in memory, where d is large.

Shapes: d features.

References: Mourtada, Gaiffas, Scornet (2017), Algorithms 1 to 3; Mourtada, Gaiffas, Scornet
(2021), sections 1.3 and 2.1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.tree.box import (
    bound,
    copy,
    copy_box,
    empty_box,
    enclose,
    is_outside,
    is_point,
    pick_feature,
    stretch,
)
from dmondrian.tree.keyed_random import exp, log, mix, uniform
from dmondrian.tree.loops import learn_along_path
from dmondrian.tree.nodes import (
    FEATURE,
    LEFT,
    N_NODES,
    RIGHT,
    ROOT,
    STAT,
    THRESHOLD,
    birth_of,
    child_of,
    end_of,
    set_time,
)
from dmondrian.tree.policies import (
    Branch,
    branch_off,
    branch_time,
    grow,
    inherit_weight,
    learn,
    mean_decay,
    parting,
    reads_boxes,
)
from dmondrian.tree.prefetch import N_NOTED
from dmondrian.tree.split import open_leaf, threshold_between

_SIDES = (np.uint64(0xA0761D6478BD642F), np.uint64(0xE7037ED1A0B428DB))  # of left and right


class Cube(NamedTuple):
    """Growth on the unit cube."""

    max_nodes: int  # no split that would exceed it; boxes and statistics go on
    lifetime: float  # no split after this time; inf for none
    expected: bool  # where there is no end too, predict in the cell that the point would be given


@inline
def child_key(key, goes_left):
    """Return the key of a cell's left or right child."""
    return mix(key ^ (_SIDES[0] if goes_left else _SIDES[1]))


@inline
def whole_cube(tree):
    """Set the cell at hand, in the tree's scratch, to the cube. O(d)."""
    d = tree.n_features
    tree.scratch[d : 2 * d] = 0.0
    tree.scratch[2 * d : 3 * d] = 1.0


@inline
def narrow(tree, feature, threshold, goes_left):
    """Cut the cell at hand."""
    d = tree.n_features
    if goes_left:
        tree.scratch[2 * d + feature] = threshold
    else:
        tree.scratch[d + feature] = threshold


@inline
def cell_of(tree, key, leaf, x):
    """Set the cell at hand to that of ``leaf``, on the way of ``x``; return its key."""
    whole_cube(tree)
    v = tree.head_i[ROOT]
    while v != leaf:
        feature, threshold = tree.i[v, FEATURE], tree.f[v, THRESHOLD]
        goes_left = x.values[feature] <= threshold
        narrow(tree, feature, threshold, goes_left)
        key = child_key(key, goes_left)
        v = tree.i[v, LEFT] if goes_left else tree.i[v, RIGHT]
    return key


@inline
def side(lower, upper):
    """Return the length of a cell's side, or 0 where no row that it holds parts from another.

    A cell holds the float32 above ``lower``, up to ``upper`` (and 0 where that is its lower end).
    Where that is a single number, a cut leaves one side empty and the other as it was: such cuts
    are left out, for rows apart by less in another feature would else wait for ever.
    """
    first, last = np.float32(lower).view(np.int32), np.float32(upper).view(np.int32)
    return upper - lower if first == 0 or last - first > 1 else 0.0


@inline
def draw_split(tree, key, born):
    """Return (time, feature, threshold) of the split of the cell at hand. O(d).

    The time is inf where it holds a single point.
    """
    d = tree.n_features
    sides, lower, upper = tree.scratch[:d], tree.scratch[d : 2 * d], tree.scratch[2 * d : 3 * d]
    size = 0.0
    for j in range(d):
        sides[j] = side(lower[j], upper[j])
        size += sides[j]
    time = max(born - log(uniform(key, 1)) / size, np.nextafter(born, np.inf))  # after all above
    j = pick_feature(sides, uniform(key, 2) * size)
    low, high = np.float32(lower[j]), np.float32(upper[j])
    return time, j, threshold_between(low, high, uniform(key, 3))


@inline
def split_leaf(tree, v, time, feature, threshold):
    """Split leaf ``v``; all it knows is copied to the child with its point, returned. O(d + s)."""
    left = open_leaf(tree, v)
    right = open_leaf(tree, v)
    tree.i[v, LEFT] = left
    tree.i[v, RIGHT] = right
    tree.i[v, FEATURE] = feature
    tree.f[v, THRESHOLD] = threshold
    set_time(tree, v, time)
    goes_left = bound(tree, v, feature, False) <= threshold
    full, empty = (left, right) if goes_left else (right, left)
    stats = slice(STAT, STAT + tree.n_stats)
    copy(tree.d[v, stats], tree.d[full, stats])
    copy_box(tree, v, full)
    empty_box(tree, empty)
    return full


@inline
def part(growth, rule, tree, key, v, x):
    """Split leaf ``v``, which holds one point, until ``x`` is apart from it or must not be.

    Returns (leaf of x, whether it is empty), or (-1, False) where the arrays are full.
    """
    key = cell_of(tree, key, v, x)
    born = birth_of(tree, v)
    while True:
        time, feature, threshold = draw_split(tree, key, born)
        n = tree.head_i[N_NODES]
        if time > growth.lifetime or n + 2 > growth.max_nodes:
            stretch(tree, v, x)
            return v, False
        if n + 2 > tree.i.shape[0]:
            return -1, False
        full = split_leaf(tree, v, time, feature, threshold)
        inherit_weight(rule, tree, v, full, True)
        stretch(tree, v, x)
        goes_left = x.values[feature] <= threshold
        child = tree.i[v, LEFT] if goes_left else tree.i[v, RIGHT]
        if child != full:
            enclose(tree, child, x)
            return child, True
        narrow(tree, feature, threshold, goes_left)
        key = child_key(key, goes_left)
        v, born = child, time


implements(learn, Cube)(learn_along_path)


@implements(grow, Cube)
def grow_cube(growth, stat, rule, tree, x, y, key, prefetched):
    v = tree.head_i[ROOT]
    if v < 0:
        tree.head_i[ROOT] = 0
        leaf = open_leaf(tree, -1)
        enclose(tree, leaf, x)
        return leaf, True, -1, 0
    depth = np.int64(0)
    while tree.i[v, LEFT] >= 0:
        stretch(tree, v, x)
        v = child_of(tree, v, x)
        depth += 1
    noted = min(prefetched.depth, N_NOTED)  # cells are split, but none comes above another
    if tree.d[v, STAT] == 0.0:
        enclose(tree, v, x)
        return v, True, -1, min(depth - 1, noted)
    if not is_outside(tree, v, x):
        return v, False, -1, min(depth - 1, noted)
    if not is_point(tree, v):  # stopped with several points: it stays whole
        stretch(tree, v, x)
        return v, False, -1, min(depth - 1, noted)
    leaf, opens = part(growth, rule, tree, key, v, x)
    return leaf, opens, -1, min(depth if leaf != v else depth - 1, noted)


@implements(parting, Cube)
def parting_cube(growth, tree, leaf, x):
    """Return the leaf if it has one point: only below such are there cells not in the tree."""
    is_empty = tree.d[leaf, STAT] == 0.0
    if is_empty or not is_outside(tree, leaf, x) or not is_point(tree, leaf):
        return np.int64(-1)
    return leaf


@implements(reads_boxes, Cube)
def reads_boxes_cube(growth):
    return True


@implements(branch_off, Cube)
def branch_off_cube(growth, stat, tree, key, at, x):
    v, end = at.v, end_of(tree, at.v, at.lifetime)
    if end == np.inf and not growth.expected:
        return Branch(0.0, 0.0, 1)
    key = cell_of(tree, key, v, x)
    born = birth_of(tree, v)
    time, n_splits = born, 0
    while True:
        time, feature, threshold = draw_split(tree, key, time)
        if time > end:
            return Branch(0.0, 0.0, 1)
        n_splits += 1
        goes_left = x.values[feature] <= threshold
        if goes_left != (bound(tree, v, feature, False) <= threshold):
            return Branch(1.0, time - born, n_splits)
        narrow(tree, feature, threshold, goes_left)
        key = child_key(key, goes_left)


# Where a point branches off is known: ``where`` is the time from the birth of the leaf.


@implements(mean_decay, Cube)
def mean_decay_cube(growth, branch, span, rate):
    return exp(-rate * branch.where)


@implements(branch_time, Cube)
def branch_time_cube(growth, branch, quantile):
    return branch.where
