"""Log loss of a node that mixes three Krichevsky-Trofimov forecasters, two of which forget.

What it forecasts is the mean of the memories' forecasts by their weights, of which
:mod:`dmondrian.stats.discounted_counts` keeps factors; the price factor of a row is the probability
that this mean gave to its label, to the power of the row's weight. The row that opens a leaf is
free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.losses.repeats import all_at_once
from dmondrian.stats.discounted_counts import places_of, shares_of_class
from dmondrian.tree.backward import node_by_node
from dmondrian.tree.keyed_random import log
from dmondrian.tree.policies import (
    add_forecast,
    at_once,
    complete_forecast,
    learn_above,
    note_forecast,
    opening_price,
    prepare,
    price,
    worth,
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
    p, q, r = shares_of_class(tree, v, y, loss.n_classes, loss.alpha)
    mean = p + q + r
    if w == 1.0:
        return mean, 1.0, np.int64(0)
    m, k = from_log(w * log(mean))
    return m, 1.0, k


@implements(opening_price, DiscountedKT)
def opening_price_discounted(loss, tree, v, y, w):
    return 1.0, np.int64(0)


@implements(learn_above, DiscountedKT)
def learn_above_discounted(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path):
    node_by_node_discounted(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path)


node_by_node_discounted = inline(node_by_node)


@inline
def forecast_of_class(loss, tree, v, y):
    """Return what ``v`` forecasts of class ``y``."""
    p, q, r = shares_of_class(tree, v, y, loss.n_classes, loss.alpha)
    return p + q + r


@implements(add_forecast, DiscountedKT)
def add_forecast_discounted(loss, tree, v, depth, weight, out):
    d, alpha, one = tree.d, loss.alpha, np.uint64(1)
    first, _, _, factors = places_of(0, loss.n_classes)
    size = np.uint64(1 + loss.n_classes)
    p, q = weight * d[v, factors], weight * d[v, factors + one]
    r = weight * d[v, factors + one + one]
    for c in range(loss.n_classes):
        k = first + np.uint64(c)
        out[c] += (
            p * (d[v, k] + alpha)
            + q * (d[v, k + size] + alpha)
            + r * (d[v, k + size + size] + alpha)
        )


@implements(complete_forecast, DiscountedKT)
def complete_forecast_discounted(loss, tree, share, out):
    pass  # it goes into logarithms less their mean: the sum does not matter


@implements(worth, DiscountedKT)
def worth_of_class(loss, tree, v, y):
    return forecast_of_class(loss, tree, v, np.int64(y))


@implements(note_forecast, DiscountedKT)
def note_no_forecast(loss, tree, out, y):
    pass
