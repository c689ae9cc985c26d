"""Look ahead: bring the nodes on the way of the next rows into the cache, many rows at once.

A row waits for the memory at each node on its way, since a node tells where the next one is. The
ways of several rows can be walked at the same time, and then their waits overlap. Nothing is
changed and nothing is remembered: what a row learns or predicts does not depend on it.
"""

from __future__ import annotations

import numpy as np

from dmondrian._jit import apart, inner
from dmondrian._memory import prefetch
from dmondrian.core.columns import row_of
from dmondrian.core.nodes import LEFT, N_NODES, PARENT, ROOT, child_of, leaf_of

N_AHEAD = 16  # rows in flight: enough to hide the memory, few enough to stay in the cache
_BOXES = 5  # from a leaf up: six or seven leave a new row out, in trees of 100,000 rows


@inner
def fetch_boxes(tree, leaf):
    """Ask for the boxes that a row meets first, which is looked for from its leaf upwards."""
    v = leaf
    for _ in range(_BOXES):
        prefetch(tree.box, v)
        prefetch(tree.bits, v)
        v = np.int64(tree.i[np.uint64(v), PARENT])
        if v < 0:
            return


@apart
def look_ahead(tree, rows, first, at):
    """Write to ``at`` the leaves of up to N_AHEAD rows ``first``..

    ``at`` int64 [2 N_AHEAD], the second half scratch.
    """
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
    if root >= 0 and tree.box.shape[1] + tree.bits.shape[1] > 0:
        for b in range(n):
            fetch_boxes(tree, leaves[b])


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
