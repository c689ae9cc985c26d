"""Look ahead: bring the nodes on the way of the next rows into the cache, many rows at once.

A row waits for the memory at each node on its way, since a node tells where the next one is. The
ways of several rows can be walked at the same time, and then their waits overlap; or, where one row
comes alone, its ways in several trees. Predictions go down the ways that were noted then, from node
to node without a comparison. Trees do not change: what a row learns or predicts does not depend on
it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._jit import apart, hook, implements, inner
from dmondrian._memory import borrow, prefetch
from dmondrian.core.columns import (
    Columns,
    Row,
    Rows,
    borrow_columns,
    borrow_row,
    borrow_rows,
    row_of,
)
from dmondrian.core.nodes import LEFT, N_NODES, PARENT, RIGHT, ROOT, Tree, borrow_tree, child_of
from dmondrian.core.table import tree_at

N_AHEAD = 96  # ways in flight: enough to hide the memory, few enough to stay in the cache
N_NOTED = 64  # nodes of a way that are noted, from the root's child on: all of most ways
_BOXES = 8  # from a leaf up: about as many leave a new row out


@inner
def fetch_boxes(tree, leaf):
    """Ask for the boxes that a row meets first, which is looked for from its leaf upwards."""
    v = leaf
    for _ in range(_BOXES if tree.box.shape[1] + tree.bits.shape[1] > 0 else 0):
        if v < 0:
            return
        prefetch(tree.box, v)
        prefetch(tree.bits, v)
        v = np.int64(tree.i[np.uint64(v), PARENT])


class RowsInTree(NamedTuple):
    """The ways of rows ``first``.. in one tree."""

    tree: Tree
    rows: Rows
    first: int


class RowInTrees(NamedTuple):
    """The ways of one row in trees ``first``.."""

    table: np.ndarray  # of the trees, see core/table.py
    columns: Columns
    x: Row
    first: int
    scratch: np.ndarray  # float64, see core/nodes.py


@hook
def way(ways, b):
    """Return the tree and the row of way number ``b``, their arrays borrowed."""


@implements(way, RowsInTree)
def way_of_row(ways, b):
    """Return the tree, and the row."""
    rows = borrow_rows(ways.rows)
    return borrow_tree(ways.tree), row_of(rows, np.uint64(ways.first) + np.uint64(b))


@implements(way, RowInTrees)
def way_in_tree(ways, b):
    """Return the tree, and the row."""
    columns, scratch = borrow_columns(ways.columns), borrow(ways.scratch)
    tree = tree_at(borrow(ways.table), np.int64(ways.first) + np.int64(b), columns, scratch)
    return tree, borrow_row(ways.x)


@apart
def look_ahead(ways, n, at, noted, with_boxes, with_siblings):
    """Write to ``at`` the leaves at the ends of ``n`` <= N_AHEAD ways; -1 in empty trees.

    ``at`` int64 [2 N_AHEAD], the second half scratch; ``noted`` int32 [N_AHEAD, N_NOTED] takes the
    nodes below the root, or [0, 0] nothing; ``with_boxes`` asks for the leaves' boxes,
    ``with_siblings`` for the nodes beside the ways too.
    """
    at, noted = borrow(at), borrow(noted)  # not known here any more
    leaves, moving = at[:N_AHEAD], at[N_AHEAD:]
    one, n_noted = np.uint64(1), np.uint64(noted.shape[1])
    n_moving, depth = np.uint64(0), np.uint64(0)
    for number in range(n):
        leaves[number] = way(ways, number)[0].head_i[ROOT]
        if leaves[number] >= 0:
            moving[n_moving] = number
            n_moving += one
    while n_moving > np.uint64(0):
        k = np.uint64(0)
        while k < n_moving:
            b = np.uint64(moving[k])  # a signed index costs a test for negative ones
            tree, x = way(ways, b)
            v = np.uint64(leaves[b])
            if tree.i[v, LEFT] < 0:
                n_moving -= one
                moving[k] = moving[n_moving]
                continue
            child = np.int64(child_of(tree, v, x))
            prefetch(tree.i, child)
            if with_siblings:
                both = np.int64(tree.i[v, LEFT]) + tree.i[v, RIGHT]
                prefetch(tree.i, both - child)  # no choice, which the processor would have to guess
            leaves[b] = child
            if depth < n_noted:
                noted[b, depth] = child
            k += one
        depth += one
    for number in range(n if with_boxes else 0):
        fetch_boxes(way(ways, number)[0], leaves[number])


class Hint(NamedTuple):
    """Where a row was found when it was looked ahead for."""

    leaf: int  # -1 where the tree was empty
    age: int  # rows that may have been learned since


@inner
def newest_since(tree, hint):
    """Return the number from which on nodes may have come in since, two with a row."""
    return tree.head_i[N_NODES] - 2 * hint.age
