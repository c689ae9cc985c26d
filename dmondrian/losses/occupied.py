"""A forecast that is one in cells with rows and 0 in others: how probably a point is in the former.

Asked with the rule of the leaf alone.
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._numba.jit import implements
from dmondrian.tree.policies import add_empty_forecast, add_forecast


class Occupied(NamedTuple):
    """Whether a cell has rows, as the forecast; nothing is learned with it."""

    unit: float  # what a cell with rows counts


@implements(add_forecast, Occupied)
def add_occupied(loss, tree, v, depth, weight, out):
    out[0] += weight * loss.unit


@implements(add_empty_forecast, Occupied)
def add_empty(loss, tree, v, depth, weight, out):
    pass
