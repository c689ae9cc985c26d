"""The mean label as forecast; nothing is priced, and averages are judged by squared error.

An empty cell forecasts the mean of the smallest cell above it with rows, or (``prior``) 0, as in
M17.

References: Mourtada, Gaiffas, Scornet (2017), Proposition 4 and the convention of its footnote.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements
from dmondrian.losses.repeats import all_at_once
from dmondrian.stats.moments import SUM, set_origin
from dmondrian.tree.backward import node_by_node
from dmondrian.tree.nodes import OFFSET, STAT
from dmondrian.tree.policies import (
    add_empty_forecast,
    add_forecast,
    at_once,
    forecast_loss,
    learn_above,
    opening_price,
    prepare,
    price,
)


class Average(NamedTuple):
    """Mean forecasts without a price."""

    prior: bool  # an empty cell forecasts 0, not its parent's mean


implements(prepare, Average)(set_origin)
implements(at_once, Average)(all_at_once)
implements(learn_above, Average)(node_by_node)


@implements(price, Average)
def price_average(loss, tree, v, y, w):
    return 1.0, 1.0, np.int64(0)


@implements(opening_price, Average)
def opening_price_average(loss, tree, v, y, w):
    return 1.0, np.int64(0)


@implements(add_forecast, Average)
def add_average(loss, tree, v, depth, weight, out):
    out[0] += weight * (tree.head_f[OFFSET] + tree.d[v, SUM] / tree.d[v, STAT])


@implements(add_empty_forecast, Average)
def add_empty_average(loss, tree, v, depth, weight, out):
    mean = tree.head_f[OFFSET] + tree.d[v, SUM] / tree.d[v, STAT]
    out[0] += 0.0 if loss.prior else weight * mean


@implements(forecast_loss, Average)
def forecast_loss_average(loss, total, n_trees, y):
    error = y - total[0] / n_trees
    return error * error
