"""Log loss of a node that mixes three Krichevsky-Trofimov forecasters, two of which forget.

What it forecasts is the mean of the memories' forecasts by the weights that
:mod:`dmondrian.stats.discounted_counts` keeps; the price factor of a row is the probability that
this mean gave to its label, to the power of the row's weight. The row that opens a leaf is free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inner
from dmondrian.losses.repeats import all_at_once
from dmondrian.stats.discounted_counts import N_MEMORIES, forecasts_of_class
from dmondrian.tree.backward import node_by_node
from dmondrian.tree.keyed_random import log
from dmondrian.tree.nodes import STAT
from dmondrian.tree.policies import (
    add_forecast,
    at_once,
    learn_above,
    opening_price,
    prepare,
    price,
)
from dmondrian.tree.scaled_float import from_log


class DiscountedKT(NamedTuple):
    """The mean of three memories' forecasts under log loss."""

    alpha: float  # pseudo-count of each class
    n_classes: int


@implements(prepare, DiscountedKT)
def prepare_discounted(loss, rule, tree, y):
    pass


implements(at_once, DiscountedKT)(all_at_once)


@implements(price, DiscountedKT)
def price_discounted(loss, tree, v, y, w):
    p, q, r = forecasts_of_class(tree, v, y, loss.n_classes, loss.alpha)
    weights = STAT + N_MEMORIES * (1 + loss.n_classes)
    mean = tree.d[v, weights] * p + tree.d[v, weights + 1] * q + tree.d[v, weights + 2] * r
    if w == 1.0:
        return mean, 1.0, np.int64(0)
    m, k = from_log(w * log(mean))
    return m, 1.0, k


@implements(opening_price, DiscountedKT)
def opening_price_discounted(loss, tree, v, y, w):
    return 1.0, np.int64(0)


@implements(learn_above, DiscountedKT)
def learn_above_discounted(loss, stat, rule, tree, leaf, q, kq, shift, y, w, way):
    node_by_node_discounted(loss, stat, rule, tree, leaf, q, kq, shift, y, w, way)


node_by_node_discounted = inner(node_by_node)


@implements(add_forecast, DiscountedKT)
def add_forecast_discounted(loss, tree, v, depth, weight, out):
    d, size, whole = tree.d, 1 + loss.n_classes, loss.n_classes * loss.alpha
    second, third, weights = STAT + size, STAT + 2 * size, STAT + 3 * size
    p = weight * d[v, weights] / (d[v, STAT] + whole)
    q = weight * d[v, weights + 1] / (d[v, second] + whole)
    r = weight * d[v, weights + 2] / (d[v, third] + whole)
    for c in range(loss.n_classes):
        k = 1 + c
        out[c] += (
            (d[v, STAT + k] + loss.alpha) * p
            + (d[v, second + k] + loss.alpha) * q
            + (d[v, third + k] + loss.alpha) * r
        )
