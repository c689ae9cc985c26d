"""Cells of trees that stand are cut one after the other, in the order of time.

Relies on :mod:`dmondrian.stats.cell_values`. Promises that forecasts of rows that were learned do
not change by a cut.

Shapes: T trees, n rows, k outputs.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.intrinsics import unowned
from dmondrian._numba.jit import inline, kernel
from dmondrian.joint_fit.lifetime_sweep_kernels import move
from dmondrian.stats.cell_values import FIRST_VALUE, MARK, RESIDUAL, VALUE, WEIGHT, value_of
from dmondrian.tree.address_table import tree_at
from dmondrian.tree.nodes import LEFT, STAT


@inline
def hand_on(tree, parent, v, w, whole):
    """Give ``v``, with ``w`` of the parent's weight ``whole``, the forecast of the parent. O(k)."""
    for s in range(STAT + 1, STAT + tree.n_stats):
        tree.d[v, s] = 0.0
    if w > 0.0:
        learned = tree.d[parent, WEIGHT]
        tree.d[v, WEIGHT] = min(learned, learned * (w / whole))
        for s in range(VALUE, STAT + tree.n_stats, 2):
            tree.d[v, s] = tree.d[parent, s]


@kernel
def cut_cells(stat, table, columns, cuts, offsets, cells, weights, first, last):
    """Cut cells of trees whose inner nodes are leaves until then; return the cells gained.

    Of the cuts in the order of time those from ``first`` to before ``last``. Rows move to the
    children (``cells`` int64 [T, n]), which go on from the parent's values: forecasts of rows of
    positive weight stay as they are. A cell without such rows forecasts what the root does, and is
    not counted. ``offsets`` int64 [T], the first nodes of trees in ``cuts``. O(k + rows) per cut.
    """
    scratch, gained = np.empty(0), 0
    for at in range(first, last):
        v = cuts.nodes[at]
        t, left, right = cuts.tree[v], cuts.left[v], cuts.right[v]
        tree, offset = tree_at(table, t, columns, unowned(scratch)), offsets[t]
        node = v - offset
        for c in range((tree.n_stats - FIRST_VALUE) // 2):
            tree.d[node, VALUE + 2 * c] = value_of(stat, tree, node, c)
            tree.d[node, RESIDUAL + 2 * c] = 0.0
        tree.d[node, MARK] = 0.0
        at_left = move(cuts, cells, left, left - offset, weights)
        at_right = move(cuts, cells, right, right - offset, weights)
        hand_on(tree, node, left - offset, at_left, at_left + at_right)
        hand_on(tree, node, right - offset, at_right, at_left + at_right)
        tree.i[node, LEFT] = left - offset
        gained += at_left > 0.0 and at_right > 0.0
    return gained
