"""Forecasts of every node, and the loss of its rows under them.

Shapes: m nodes, k outputs.
"""

from __future__ import annotations

from dmondrian._numba.jit import kernel
from dmondrian.tree.nodes import N_NODES, STAT
from dmondrian.tree.policies import add_forecast, risk


@kernel
def assess(loss, tree, forecasts, risks):
    """Add each node's forecast to ``forecasts`` [m, k], its rows' loss to ``risks`` [m]. O(m).

    Nodes without rows are passed over.
    """
    for v in range(tree.head_i[N_NODES]):
        if tree.d[v, STAT] > 0.0:
            add_forecast(loss, tree, v, 0.0, 1.0, forecasts[v])
            risks[v] += risk(loss, tree, v)
