"""Look ahead: bring the nodes on the way of the next rows into the cache, many rows at once.

A row waits for the memory at each node on its way, since a node tells where the next one is. The
ways of several rows can be walked at the same time, and then their waits overlap; or, where one row
comes alone, its ways in several trees. Nothing is changed and nothing is remembered: what a row
learns or predicts does not depend on it.
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
from dmondrian.core.nodes import (
    LEFT,
    N_NODES,
    PARENT,
    RIGHT,
    ROOT,
    TIME,
    Tree,
    borrow_tree,
    child_of,
    leaf_of,
)
from dmondrian.core.table import tree_at

N_AHEAD = 32  # ways in flight: enough to hide the memory, few enough to stay in the cache
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
    scratch: np.ndarray  # float64 [3 d]


@hook
def way(ways, b):
    """Return the tree and the row of way number ``b``, their arrays borrowed."""


@implements(way, RowsInTree)
def way_of_row(ways, b):
    """Return the tree, and the row."""
    rows = borrow_rows(ways.rows)
    return borrow_tree(ways.tree), row_of(rows, np.uint64(ways.first + b))


@implements(way, RowInTrees)
def way_in_tree(ways, b):
    """Return the tree, and the row."""
    columns, scratch = borrow_columns(ways.columns), borrow(ways.scratch)
    tree = tree_at(borrow(ways.table), ways.first + b, columns, scratch)
    return tree, borrow_row(ways.x)


@apart
def look_ahead(ways, n, at, with_boxes):
    """Write to ``at`` the leaves at the ends of ``n`` <= N_AHEAD ways; -1 in empty trees.

    ``at`` int64 [2 N_AHEAD], the second half scratch; ``with_boxes`` asks for the leaves' boxes.
    """
    at = borrow(at)  # not known here any more
    leaves, moving = at[:N_AHEAD], at[N_AHEAD:]
    n_moving = 0
    for b in range(n):
        leaves[b] = way(ways, b)[0].head_i[ROOT]
        if leaves[b] >= 0:
            moving[n_moving] = b
            n_moving += 1
    while n_moving > 0:
        k = 0
        while k < n_moving:
            b = moving[k]
            tree, x = way(ways, b)
            v = np.int64(leaves[b])
            if tree.i[np.uint64(v), LEFT] < 0:
                n_moving -= 1
                moving[k] = moving[n_moving]
                continue
            child = np.int64(child_of(tree, v, x))
            prefetch(tree.i, child)
            leaves[b] = child
            k += 1
    for b in range(n if with_boxes else 0):
        fetch_boxes(way(ways, b)[0], leaves[b])


class Hint(NamedTuple):
    """Where a row was found when it was looked ahead for."""

    leaf: int  # -1 where the tree was empty
    age: int  # rows that may have been learned since
    earliest: float  # no split has come in before this time since, but for those above leaves


@inner
def earliest_since(tree, n_nodes, earliest):
    """Return ``earliest`` of :class:`Hint` after a row before which there were ``n_nodes``."""
    if tree.head_i[N_NODES] == n_nodes:
        return earliest
    new = np.uint64(n_nodes)  # and the row's leaf behind it
    left, right = tree.i[new, LEFT], tree.i[new, RIGHT]
    old = min(left, right)
    if old < 0 or tree.i[np.uint64(old), LEFT] < 0:
        return earliest
    return min(earliest, tree.d[new, TIME])


@inner
def confirm(tree, hint, x):
    """Return the leaf of ``x``, given the one that it had some rows ago; -1 where none is.

    Splits may have come in above the leaf. Times grow on the way down, so those above inner nodes
    are found below the last node that is older than all of them; those above leaves lie one above
    the other at the leaf. Upwards no node waits for a comparison: a processor has the next ones at
    hand before it knows whether the way is still the same.
    """
    turn = np.int64(hint.leaf)
    if hint.age == 0:
        return turn
    if turn < 0:
        turn = np.int64(tree.head_i[ROOT])
        if turn < 0:
            return turn
    newest = max(tree.head_i[N_NODES] - 2 * hint.age, 0)  # nodes from here on may have come in
    v = turn
    parent = np.int64(tree.i[np.uint64(v), PARENT])
    while parent >= newest or (parent >= 0 and tree.d[np.uint64(parent), TIME] >= hint.earliest):
        if parent >= newest and child_of(tree, parent, x) != v:
            turn = parent
        v, parent = parent, np.int64(tree.i[np.uint64(parent), PARENT])
    return leaf_of(tree, turn, x)
