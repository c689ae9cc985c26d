"""Log loss of a node that mixes three Krichevsky-Trofimov forecasters, two of which forget.

What it forecasts is the mean of the memories' forecasts by the weights that
:mod:`dmondrian.stats.discounted_counts` keeps; the price factor of a row is the probability that
this mean gave to its label, to the power of the row's weight. The row that opens a leaf is free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
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


node_by_node_discounted = inline(node_by_node)


@inline
def factors(loss, tree, v, weight):
    """Return what the counts of each memory of ``v``, and alpha, are multiplied by in forecasts."""
    d, size, whole = tree.d, 1 + loss.n_classes, loss.n_classes * loss.alpha
    weights = STAT + N_MEMORIES * size
    return (
        weight * d[v, weights] / (d[v, STAT] + whole),
        weight * d[v, weights + 1] / (d[v, STAT + size] + whole),
        weight * d[v, weights + 2] / (d[v, STAT + 2 * size] + whole),
    )


@inline
def forecast_of_class(loss, tree, v, y):
    """Return what ``v`` forecasts of class ``y``, to the last bit as :func:`add_forecast` does."""
    p, q, r = factors(loss, tree, v, 1.0)
    d, size, k = tree.d, 1 + loss.n_classes, STAT + 1 + y
    return (
        (d[v, k] + loss.alpha) * p
        + (d[v, size + k] + loss.alpha) * q
        + (d[v, 2 * size + k] + loss.alpha) * r
    )


@implements(add_forecast, DiscountedKT)
def add_forecast_discounted(loss, tree, v, depth, weight, out):
    p, q, r = factors(loss, tree, v, weight)
    d, size = tree.d, 1 + loss.n_classes
    for c in range(loss.n_classes):
        k = STAT + 1 + c
        out[c] += (
            (d[v, k] + loss.alpha) * p
            + (d[v, size + k] + loss.alpha) * q
            + (d[v, 2 * size + k] + loss.alpha) * r
        )
