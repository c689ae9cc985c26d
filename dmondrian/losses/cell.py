"""A forecast that is the number of the node that is used: which rows a prediction is made of.

Asked with the rule of the leaf alone, on the cube, where a branch off is certain or impossible.
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._numba.jit import implements
from dmondrian.tree.policies import add_empty_forecast, add_forecast


class Cell(NamedTuple):
    """Number of a node as the forecast; nothing is learned with it."""

    prior: bool  # an empty cell forecasts -1: it has no rows


@implements(add_forecast, Cell)
def add_cell(loss, tree, v, depth, weight, out):
    out[0] += weight * v


@implements(add_empty_forecast, Cell)
def add_empty_cell(loss, tree, v, depth, weight, out):
    out[0] += weight * (-1.0 if loss.prior else v)
