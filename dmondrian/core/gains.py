"""What the splits on each feature are worth, by the statistics of the nodes alone.

Shapes: m nodes, d features.
"""

from __future__ import annotations

from dmondrian._jit import borrow, kernel
from dmondrian.core.nodes import FEATURE, LEFT, N_NODES, TIME, borrow_tree
from dmondrian.core.policies import gain


@kernel
def add_gains(stat, tree, lifetime, total):
    """Add max(gain, 0) of each split up to ``lifetime`` to ``total`` [d] of its feature. O(m)."""
    tree, total = borrow_tree(tree), borrow(total)
    for v in range(tree.head_i[N_NODES]):
        if tree.i[v, LEFT] >= 0 and tree.d[v, TIME] <= lifetime:
            total[tree.i[v, FEATURE]] += max(gain(stat, tree, v), 0.0)
