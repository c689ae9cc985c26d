"""The value of a cell as its forecast; one without rows has the root's.

Relies on :mod:`dmondrian.stats.cell_values`. Nothing is priced.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements
from dmondrian.losses.repeats import all_at_once
from dmondrian.stats.cell_values import value_of, value_or_root_value
from dmondrian.tree.backward import node_by_node
from dmondrian.tree.nodes import ROOT
from dmondrian.tree.policies import (
    add_empty_forecast,
    add_forecast,
    at_once,
    learn_above,
    opening_price,
    prepare,
    price,
)


class Value(NamedTuple):
    """Values of cells as forecasts."""

    n_outputs: int
    is_joint: bool  # as in Values, like the next two
    ridge: float
    batch: float
    is_averaged: bool  # cells without rows take the mean of the nodes above, too


@implements(prepare, Value)
def prepare_value(loss, rule, tree, y):
    pass


implements(at_once, Value)(all_at_once)
implements(learn_above, Value)(node_by_node)


@implements(price, Value)
def price_value(loss, tree, v, y, w):
    return 1.0, 1.0, np.int64(0)


@implements(opening_price, Value)
def opening_price_value(loss, tree, v, y, w):
    return 1.0, np.int64(0)


@implements(add_forecast, Value)
def add_value(loss, tree, v, depth, weight, out):
    for c in range(loss.n_outputs):
        out[c] += weight * value_or_root_value(loss, tree, v, c)


@implements(add_empty_forecast, Value)
def add_root_value(loss, tree, v, depth, weight, out):
    known = np.uint64(v) if loss.is_averaged else np.uint64(tree.head_i[ROOT])
    for c in range(loss.n_outputs):
        out[c] += weight * value_of(loss, tree, known, c)
