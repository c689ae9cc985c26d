"""Add the cells of one tree to another of the same partition.

Relies on a growth whose partition is fixed, whatever the rows (growth/cube.py), and on
statistics that add.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.intrinsics import unowned
from dmondrian._numba.jit import kernel
from dmondrian.tree.box_encoding import row_of
from dmondrian.tree.keyed_random import tree_key
from dmondrian.tree.nodes import N_NODES, PARENT
from dmondrian.tree.policies import add_statistics, grow
from dmondrian.tree.prefetch import PrefetchedPath


@kernel
def absorb(growth, stat, rule, tree, seed, number, points, statistics, start):
    """Add ``statistics`` [c, s] at ``points``, c rows, from ``start`` on; return the next.

    Writes the tree; returns before c where there is no capacity. Two points of one cell make it
    be split as two rows do; the statistics of the second may be zero. O(depth * d) per point.
    """
    key = tree_key(seed, number)
    nothing = np.empty(0, np.int32)
    for c in range(start, statistics.shape[0]):
        if tree.head_i[N_NODES] + 2 > tree.i.shape[0]:
            return c
        prefetched = PrefetchedPath(-1, 0, unowned(nothing), 0)
        v = grow(growth, stat, rule, tree, row_of(points, c), 0.0, key, prefetched)[0]
        if v < 0:
            return c
        while v >= 0:
            add_statistics(stat, tree, v, statistics[c])
            v = tree.i[v, PARENT]
    return statistics.shape[0]
