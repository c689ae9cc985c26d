"""Blocks of candidate splits: one per leaf that has some, contiguous, in the tree's pool.

A leaf has c candidate features and up to P candidate points, and a candidate split for each pair:
rows with x_j <= the point's x_j go left. A block is a header and c + 1 sections, the first of the
leaf itself::

    size   node   c   points so far
    section 0:      -    [e]       [s] estimation   [s + e] structure
    section 1 .. c: j    [x_j]     [s] estimation   [s + e] structure

Every bracket is that many rows of P numbers, one for each point. [e] is the weight of the tree's
estimation rows before the point came. The tallies of section 0 are of all rows of the leaf since
the point came, those of the others of the rows on the left; the right is what is left over. Counts
are whole numbers, as long as weights are, and exact up to 2^53.

A node's word ``CANDIDATES`` is 0 if it is no leaf of the fringe, 1 if it is and no candidate point
has come, else the place of its block plus 2; words below 0 are of
:mod:`dmondrian.growth.fringe_queue`. Where blocks lie depends on the capacity there is, and nothing
depends on where they lie.

Relies on the stat for what a tally is. Promises to write the tree only where there is capacity.

Shapes: c candidate features, P points, s numbers of a tally, e numbers beside for gains.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline
from dmondrian.tree.nodes import CANDIDATES, ESTIMATED, POOL_END, POOL_LIVE
from dmondrian.tree.policies import note_gain, tally, tally_size

SIZE, NODE, N_FEATURES, N_POINTS = 0, 1, 2, 3  # header
HEADER = 4
NONE, OPEN, FIRST = 0, 1, 2  # of a node's word CANDIDATES
_FULL = 0.75  # share of the pool above which it is widened, not tidied


def section_size(n_points: int, size: int, beside: int) -> int:
    """Return the doubles of a section; ``size`` and ``beside`` are s and e."""
    return 1 + n_points * (1 + size + size + beside)


section = inline(section_size)


@inline
def place_of(tree, v):
    """Return where the block of node ``v`` begins, < 0 if it has none."""
    return np.int64(tree.i[v, CANDIDATES]) - FIRST


@inline
def tidy(tree):
    """Move blocks to the pool's beginning, over those that were given up. O(pool)."""
    at, to = np.int64(0), np.int64(0)
    end = tree.head_i[POOL_END]
    while at < end:
        size, v = np.int64(tree.pool[at + SIZE]), np.int64(tree.pool[at + NODE])
        if v >= 0:
            for k in range(size):
                tree.pool[to + k] = tree.pool[at + k]
            tree.i[v, CANDIDATES] = np.int32(to + FIRST)
            to += size
        at += size
    tree.head_i[POOL_END] = to


@inline
def open_block(tree, v, n_features, size):
    """Give leaf ``v`` a block of zeros; return its place, or -1 where the pool is full."""
    capacity = tree.pool.shape[0]
    if tree.head_i[POOL_END] + size > capacity:
        if tree.head_i[POOL_LIVE] + size > _FULL * capacity:
            return np.int64(-1)
        tidy(tree)
    place = tree.head_i[POOL_END]
    tree.head_i[POOL_END] = place + size
    tree.head_i[POOL_LIVE] += size
    for k in range(size):
        tree.pool[place + k] = 0.0
    tree.pool[place + SIZE] = size
    tree.pool[place + NODE] = v
    tree.pool[place + N_FEATURES] = n_features
    tree.i[v, CANDIDATES] = np.int32(place + FIRST)
    return place


@inline
def give_up(tree, v):
    """Take node ``v`` out of the fringe, with its block."""
    place = place_of(tree, v)
    tree.i[v, CANDIDATES] = NONE
    if place >= 0:
        tree.head_i[POOL_LIVE] -= np.int64(tree.pool[place + SIZE])
        tree.pool[place + NODE] = -1.0


@inline
def add_point(stat, tree, place, n_points, x):
    """Make row ``x`` the next candidate point of a block."""
    s, e = tally_size(stat)
    n = np.int64(tree.pool[place + N_POINTS])
    tree.pool[place + N_POINTS] = n + 1
    at = place + HEADER
    tree.pool[at + 1 + n] = tree.head_f[ESTIMATED]
    for _ in range(np.int64(tree.pool[place + N_FEATURES])):
        at += section(n_points, s, e)
        tree.pool[at + 1 + n] = x.values[np.int64(tree.pool[at])]


@inline
def add_estimation(stat, tree, place, n_points, x, y, w):
    """Count an estimation row in a block. O(c P)."""
    s, e = tally_size(stat)
    n = np.int64(tree.pool[place + N_POINTS])
    at = place + HEADER
    tally(stat, tree, at + 1 + n_points, n_points, n, at + 1, -np.inf, y, w)
    for _ in range(np.int64(tree.pool[place + N_FEATURES])):
        at += section(n_points, s, e)
        value = np.float64(x.values[np.int64(tree.pool[at])])
        tally(stat, tree, at + 1 + n_points, n_points, n, at + 1, value, y, w)


@inline
def add_structure(stat, tree, criterion, place, n_points, x, y, w):
    """Count a structure row in a block. O(c P)."""
    s, e = tally_size(stat)
    n = np.int64(tree.pool[place + N_POINTS])
    to_tally = 1 + n_points * (1 + s)
    at = place + HEADER
    whole = at + to_tally
    for _ in range(np.int64(tree.pool[place + N_FEATURES])):
        at += section(n_points, s, e)
        value = np.float64(x.values[np.int64(tree.pool[at])])
        note_gain(
            stat, tree, criterion, whole, at + to_tally, n_points, n, at + 1, value, y, w
        )  # fmt: skip
        tally(stat, tree, at + to_tally, n_points, n, at + 1, value, y, w)
    at = place + HEADER
    note_gain(stat, tree, criterion, whole, whole, n_points, n, at + 1, -np.inf, y, w)
    tally(stat, tree, whole, n_points, n, at + 1, -np.inf, y, w)
