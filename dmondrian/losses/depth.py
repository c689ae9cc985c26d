"""A forecast that is the depth of the node: the weighted depth of M21, section 5.1.

The prediction loop then returns the posterior mean of the depth of the leaf of x over
all prunings, by the same recursion that predicts.
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._numba.jit import implements
from dmondrian.tree.policies import add_empty_forecast, add_forecast


class Depth(NamedTuple):
    """Depth as the forecast; nothing is learned with it."""

    unit: float  # what one level counts


@implements(add_forecast, Depth)
def add_depth(loss, tree, v, depth, weight, out):
    out[0] += weight * depth * loss.unit


@implements(add_empty_forecast, Depth)
def add_branch_depth(loss, tree, v, depth, weight, out):
    out[0] += weight * depth * loss.unit
