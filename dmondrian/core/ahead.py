"""Look ahead: bring the nodes on the way of the next rows into the cache, many rows at once.

A row waits for the memory at each node on its way, since a node tells where the next one is. The
ways of several rows can be walked at the same time, and then their waits overlap; or, where one row
comes alone, its ways in several trees. Nothing is changed and nothing is remembered: what a row
learns or predicts does not depend on it.
"""

from __future__ import annotations

import numpy as np

from dmondrian._jit import apart, inner
from dmondrian._memory import borrow, prefetch
from dmondrian.core.columns import borrow_columns, borrow_row, borrow_rows, row_of
from dmondrian.core.nodes import LEFT, PARENT, ROOT, borrow_tree, child_of, leaf_of
from dmondrian.core.table import tree_at

N_AHEAD = 16  # ways in flight: enough to hide the memory, few enough to stay in the cache
_N_BOXES = 4  # a row mostly lies in the box of the fourth node of its way up, or of one below
_FLOATS = 16  # of a cache line


@apart
def look_ahead(tree, rows, first, at):
    """Write to ``at`` the leaves of rows ``first``.., as many as there is room for."""
    tree, rows, at = borrow_tree(tree), borrow_rows(rows), borrow(at)  # not known here any more
    n = np.uint64(min(rows.values.shape[0] - first, at.shape[0]))
    root = tree.head_i[ROOT]
    for b in range(n):
        at[b] = root
    start = np.uint64(first)
    moving = root >= 0
    while moving:
        moving = False
        for b in range(n):
            v = np.uint64(at[b])
            if tree.i[v, LEFT] >= 0:
                child = np.int64(child_of(tree, v, row_of(rows, start + b)))
                prefetch(tree.i, child)
                at[b] = child
                moving = True


@apart
def look_ahead_in_trees(table, columns, x, first, last, scratch, at):
    """Write to ``at`` the leaves of row ``x`` in trees ``first`` to ``last``; -1 in empty ones."""
    table, columns, x = borrow(table), borrow_columns(columns), borrow_row(x)
    scratch, at = borrow(scratch), borrow(at)
    for t in range(first, last):
        at[t - first] = tree_at(table, t, columns, scratch).head_i[ROOT]
    moving = True
    while moving:
        moving = False
        for t in range(first, last):
            v = at[t - first]
            tree = tree_at(table, t, columns, scratch)
            if v >= 0 and tree.i[np.uint64(v), LEFT] >= 0:
                child = np.int64(child_of(tree, v, x))
                prefetch(tree.i, child)
                at[t - first] = child
                moving = True


@inner
def fetch_boxes(tree, leaf):
    """Bring the boxes of a leaf and of the nodes above it into the cache. Changes nothing."""
    v, width = leaf, tree.box.shape[1]
    for _ in range(_N_BOXES if width > 0 else 0):
        if v >= 0:
            box = tree.box[np.uint64(v)]
            for k in range(0, width, _FLOATS):
                prefetch(box, k)
            prefetch(box, width - 1)  # boxes begin anywhere in a line
            v = np.int64(tree.i[np.uint64(v), PARENT])


@inner
def confirm(tree, hint, x):
    """Return the leaf of ``x``, given the one that it had some rows ago; -1 where none is.

    Splits may have come in above the leaf. Upwards no node waits for a comparison: a processor
    has the next ones at hand before it knows whether the way is still the same.
    """
    if hint < 0:
        hint = tree.head_i[ROOT]
        if hint < 0:
            return hint
    v, turn = hint, hint
    parent = np.int64(tree.i[np.uint64(v), PARENT])
    while parent >= 0:
        if child_of(tree, parent, x) != v:
            turn = parent
        v, parent = parent, np.int64(tree.i[np.uint64(parent), PARENT])
    return leaf_of(tree, turn, x)
