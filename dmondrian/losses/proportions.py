"""Class proportions as forecasts; nothing is priced, and averages are judged by the Brier score.

An empty cell has the forecast of the smallest cell above it with rows, or (``prior``) 1/K, of which
a vote makes the first class, as M17 does.

References: Mourtada, Gaiffas, Scornet (2017), Algorithm 4 and Theorem 2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements
from dmondrian.losses.repeats import all_at_once
from dmondrian.tree.backward import node_by_node
from dmondrian.tree.nodes import STAT
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


class Proportions(NamedTuple):
    """Forecasts n_c / n."""

    n_classes: int
    prior: bool  # an empty cell forecasts 1/K, not its parent's proportions


@implements(prepare, Proportions)
def prepare_proportions(loss, rule, tree, y):
    pass


implements(at_once, Proportions)(all_at_once)
implements(learn_above, Proportions)(node_by_node)


@implements(price, Proportions)
def price_proportions(loss, tree, v, y, w):
    return 1.0, 1.0, np.int64(0)


@implements(opening_price, Proportions)
def opening_price_proportions(loss, tree, v, y, w):
    return 1.0, np.int64(0)


@implements(add_forecast, Proportions)
def add_proportions(loss, tree, v, depth, weight, out):
    scale = weight / tree.d[v, STAT]
    for c in range(loss.n_classes):
        out[c] += tree.d[v, STAT + 1 + c] * scale


@implements(add_empty_forecast, Proportions)
def add_empty_proportions(loss, tree, v, depth, weight, out):
    scale = weight / tree.d[v, STAT]
    for c in range(loss.n_classes):
        n_c = tree.d[v, STAT + 1 + c]
        out[c] += weight / loss.n_classes if loss.prior else n_c * scale


@implements(forecast_loss, Proportions)
def forecast_loss_proportions(loss, total, n_trees, y):
    score = 0.0
    for c in range(loss.n_classes):
        error = total[c] / n_trees - (1.0 if c == int(y) else 0.0)
        score += error * error
    return score
