"""Prefetch: bring the nodes on the paths of the next rows into the cache, many rows at once.

A row waits for the memory at each node on its path, since the next one is known from it alone. The
paths of several rows can be walked at the same time, and then their waits overlap; or, where one
row comes alone, its paths in several trees. Predictions go down the paths that were noted then,
from node to node without a comparison. Trees do not change: what a row learns or predicts does not
depend on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.intrinsics import flat_view, prefetch, prefetch_word
from dmondrian._numba.jit import hook, implements, inline, noinline
from dmondrian._numba.mechanisms import uses
from dmondrian.tree.address_table import tree_at, words_at
from dmondrian.tree.box_encoding import Columns, Row, Rows
from dmondrian.tree.nodes import FEATURE, LEFT, N_NODES, PARENT, RIGHT, ROOT, THRESHOLD, Tree

# Paths in flight: enough to hide the memory, few enough to stay in the cache.
N_AHEAD = 96 if uses("look_ahead") else 1
N_NOTED = 120  # nodes of a path that are noted, from the root's child on: all of most paths
_FEW = 16  # paths up to which the boxes of each are asked for where it ends, before the others do
_N_NEAR = 2  # of more paths those whose boxes are asked for ahead, to stay in the nearest cache
_BOXES = 8  # from a leaf up: about as many leave a new row out


@inline
def fetch_boxes(tree, leaf, noted, depth):
    """Ask for the boxes that a row meets first, which is looked for from its leaf upwards.

    It is at this depth, and the nodes to it are ``noted`` int32 [N_NOTED]: from link to link each
    would wait for the one before.
    """
    n = min(depth, _BOXES) if tree.box.shape[1] + tree.bits.shape[1] > 0 else 0
    v, level = leaf, depth
    for _ in range(n):  # the root is never far
        level -= 1
        v = np.int64(noted[np.uint64(level)]) if level < N_NOTED else v
        prefetch(tree.box, v)
        prefetch(tree.bits, v)
        if level > N_NOTED:
            v = np.int64(tree.i[np.uint64(v), PARENT])


class RowsInTree(NamedTuple):
    """The paths of rows ``first``.. in one tree."""

    tree: Tree
    rows: Rows
    first: int


class RowInTrees(NamedTuple):
    """The paths of one row in trees ``first``.."""

    table: np.ndarray  # of the trees, see tree/address_table.py
    columns: Columns
    x: Row
    first: int
    scratch: np.ndarray  # float64, see tree/nodes.py


@hook
def tree_on(paths, b):
    """Return the tree of path number ``b``."""


@hook
def words_on(paths, b):
    """Return the words of all nodes of that tree, one behind the other, int32 [m words]."""


@hook
def values_on(paths):
    """Return the features of all rows, one row behind the other, float32 [n d]."""


@hook
def row_on(paths, b):
    """Return where among these the row of path number ``b`` begins."""


@implements(tree_on, RowsInTree)
def tree_of_rows(paths, b):
    """Return the one tree of all these rows."""
    return paths.tree


@implements(words_on, RowsInTree)
def words_of_tree(paths, b):
    """Return the words of this tree."""
    return flat_view(paths.tree.i)


@implements(values_on, RowsInTree)
def values_of_rows(paths):
    """Return the rows' values."""
    return flat_view(paths.rows.values)


@implements(row_on, RowsInTree)
def place_of_row(paths, b):
    """Return the row's place."""
    return (np.uint64(paths.first) + np.uint64(b)) * np.uint64(paths.rows.values.shape[1])


@implements(tree_on, RowInTrees)
def tree_of_path(paths, b):
    """Return the tree of path number ``b``."""
    return tree_at(paths.table, np.int64(paths.first) + np.int64(b), paths.columns, paths.scratch)


@implements(words_on, RowInTrees)
def words_of_path(paths, b):
    """Return the tree's words."""
    return words_at(paths.table, np.uint64(paths.first) + np.uint64(b))


@implements(values_on, RowInTrees)
def values_of_row(paths):
    """Return the row's values."""
    return paths.x.values


@implements(row_on, RowInTrees)
def place_of_only_row(paths, b):
    """Return the row's place."""
    return np.uint64(0)


@noinline
def look_ahead(paths, n, at, noted, with_boxes, with_siblings):
    """Write to ``at`` the leaves at the ends of ``n`` <= N_AHEAD paths; -1 in empty trees.

    ``at`` int64 [4 N_AHEAD] takes the depths behind them, the rest is scratch; ``noted`` int32
    [N_AHEAD, N_NOTED] takes the nodes below the root; ``with_boxes`` asks for the boxes above the
    leaves, of many paths for those of the first two, before :func:`prefetch_for` does for others;
    ``with_siblings`` asks for the nodes beside the paths too.
    """
    leaves, depths, moving, starts = (
        at[:N_AHEAD],
        at[N_AHEAD : 2 * N_AHEAD],
        at[2 * N_AHEAD : 3 * N_AHEAD],
        at[3 * N_AHEAD :],
    )
    one, n_noted, n_moving, depth = np.uint64(1), np.uint64(N_NOTED), np.uint64(0), np.uint64(0)
    width, values, notes = np.int64(0), values_on(paths), flat_view(noted)
    for number in range(n):
        tree = tree_on(paths, number)
        leaves[number], width = tree.head_i[ROOT], tree.i.shape[1]
        starts[number], depths[number] = row_on(paths, number), 0
        if leaves[number] >= 0:
            leaves[number] *= width  # until it is known, where its words begin
            moving[n_moving] = number
            n_moving += one
    last = width - 1  # what a node has in its first and last line is what most need
    while n_moving > np.uint64(0):
        k, is_noted = np.uint64(0), depth < n_noted
        while k < n_moving:
            b = np.uint64(moving[k])  # a signed index costs a test for negative ones
            words, v = words_on(paths, b), np.uint64(leaves[b])
            left = words[v + np.uint64(LEFT)]
            if left < 0:
                n_moving -= one
                leaves[b], depths[b] = np.int64(v) // width, depth
                if with_boxes and n <= _FEW:
                    fetch_boxes(tree_on(paths, np.int64(b)), leaves[b], noted[b], depths[b])
                moving[k] = moving[n_moving]
                continue
            value = values[np.uint64(starts[b]) + np.uint64(words[v + np.uint64(FEATURE)])]
            threshold = np.int32(words[v + np.uint64(THRESHOLD)]).view(np.float32)
            goes_right = np.uint64(not (value <= threshold))
            # Without a jump: RIGHT is behind LEFT.
            child = np.int64(words[v + np.uint64(LEFT) + goes_right])
            below = child * width
            prefetch_word(words, below)
            prefetch_word(words, below + last)  # often the same line; a jump costs more
            if with_siblings:
                other = np.int64(words[v + np.uint64(RIGHT) - goes_right]) * width
                prefetch_word(words, other)
                prefetch_word(words, other + last)
            leaves[b] = below
            if is_noted:
                notes[b * n_noted + depth] = child
            k += one
        depth += one
    for number in range(_N_NEAR if with_boxes and n > _FEW else 0):
        b = np.uint64(number)
        fetch_boxes(tree_on(paths, number), leaves[b], noted[b], depths[b])


@inline
def prefetch_for(paths, number, n, at, noted, with_boxes, with_siblings):
    """Get ready for path ``number`` of ``n`` <= N_AHEAD, which come in order.

    The first looks ahead for all; of many paths each asks for the boxes of the next but one: asked
    for all at once, these would wait for each other, and for nothing else.
    """
    if number == 0:
        look_ahead(paths, n, at, noted, with_boxes, with_siblings)
    later = np.uint64(number + _N_NEAR)
    if with_boxes and n > _FEW and later < np.uint64(n):
        depth = at[np.uint64(N_AHEAD) + later]
        fetch_boxes(tree_on(paths, np.int64(later)), at[later], noted[later], depth)


class PrefetchedPath(NamedTuple):
    """The path of a row as it was when it was prefetched, some rows ago."""

    leaf: int  # -1 where the tree was empty
    age: int  # rows that may have been learned since
    nodes: np.ndarray  # int32 [N_NOTED], the nodes on the path, below the root
    depth: int  # of the leaf, which is the last of them if they are noted so far


class CachedPath(NamedTuple):
    """Nodes expected above a row's leaf: a guess that is checked by links to parents."""

    nodes: np.ndarray  # int32 [N_NOTED]
    n: int  # how many of them; where it is wrong, or below 0, it costs time


@inline
def newest_since(tree, prefetched):
    """Return the number from which on nodes may have come in since, two with a row."""
    return tree.head_i[N_NODES] - 2 * prefetched.age
