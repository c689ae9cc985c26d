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
from dmondrian.core.nodes import LEFT, N_NODES, PARENT, ROOT, borrow_tree, child_of, leaf_of
from dmondrian.core.table import tree_at

N_AHEAD = 16  # ways in flight: enough to hide the memory, few enough to stay in the cache
_BOXES = 5  # from a leaf up: about as many leave a new row out


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


@apart
def look_ahead(tree, rows, first, at):
    """Write to ``at`` the leaves of up to N_AHEAD rows ``first``..

    ``at`` int64 [2 N_AHEAD], the second half scratch.
    """
    tree, rows, at = borrow_tree(tree), borrow_rows(rows), borrow(at)  # not known here any more
    leaves, moving = at[:N_AHEAD], at[N_AHEAD:]
    n = min(rows.values.shape[0] - first, N_AHEAD)
    root = tree.head_i[ROOT]
    for b in range(n):
        leaves[b] = root
        moving[b] = b
    n_moving = n if root >= 0 else 0
    while n_moving > 0:
        k = 0
        while k < n_moving:
            b = moving[k]
            v = np.int64(leaves[b])
            if tree.i[np.uint64(v), LEFT] < 0:
                n_moving -= 1
                moving[k] = moving[n_moving]
                continue
            child = np.int64(child_of(tree, v, row_of(rows, np.uint64(first + b))))
            prefetch(tree.i, child)
            leaves[b] = child
            k += 1
    for b in range(n):
        fetch_boxes(tree, leaves[b])


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
def confirm(tree, hint, x):
    """Return the leaf of ``x``, given the one that it had some rows ago; -1 where none is.

    Splits may have come in above the leaf. Upwards no node waits for a comparison: a processor
    has the next ones at hand before it knows whether the way is still the same.
    """
    if hint < 0:
        hint = tree.head_i[ROOT]
        if hint < 0:
            return hint
    newest = tree.head_i[N_NODES] - 2 * N_AHEAD  # nodes from here on may have come in since
    v, turn = hint, hint
    parent = np.int64(tree.i[np.uint64(v), PARENT])
    while parent >= 0:
        if parent >= newest and child_of(tree, parent, x) != v:
            turn = parent
        v, parent = parent, np.int64(tree.i[np.uint64(parent), PARENT])
    return leaf_of(tree, turn, x)
