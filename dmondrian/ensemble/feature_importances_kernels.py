"""Importances of features: the worth of splits on each, by the statistics of the nodes alone.

Shapes: m nodes, d features.
"""

from __future__ import annotations

from dmondrian._numba.jit import kernel
from dmondrian.tree.nodes import FEATURE, LEFT, N_NODES, splits_after
from dmondrian.tree.policies import gain


@kernel
def add_gains(stat, tree, lifetime, gains):
    """Add each split's max(gain, 0) to that of its feature, ``gains`` float64 [d]. O(m).

    Splits later than ``lifetime`` are passed over.
    """
    for v in range(tree.head_i[N_NODES]):
        if tree.i[v, LEFT] >= 0 and not splits_after(tree, v, lifetime):
            gains[tree.i[v, FEATURE]] += max(gain(stat, tree, v), 0.0)
