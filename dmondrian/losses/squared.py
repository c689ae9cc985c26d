"""Squared loss of the mean of the labels seen (M21, Equation 4).

The theorem's learning rate 1 / (8 B^2) is too timid in practice, so by default the rate
is in units of the labels' variance. Both are taken anew when the total weight passes a
power of two, from the labels seen so far; all weights are then rebuilt from the stored
cumulated prices, so they are at all times the exact weights of the rate in force. As
prices scale with the variance, shifting or scaling the labels changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._jit import implements, inner
from dmondrian.core.draws import trigamma
from dmondrian.core.nodes import (
    ETA,
    LABEL_MAX,
    LABEL_MIN,
    NEXT_ETA,
    OFFSET,
    PARENT,
    ROOT,
    STAT,
    TOTAL_WEIGHT,
)
from dmondrian.core.policies import (
    add_empty_forecast,
    add_forecast,
    at_once,
    exponent,
    forecast_loss,
    learn_above,
    log_weight,
    opening_price,
    prepare,
    price,
    rebuild_weights,
)
from dmondrian.core.upward import in_lots
from dmondrian.core.weights import from_log
from dmondrian.losses.repeats import all_at_once
from dmondrian.stats.moments import PRICE, SQUARES, SUM


class Squared(NamedTuple):
    """Mean forecasts under squared loss."""

    rate: float  # learning rate times variance; 0: the theorem's 1 / (8 B^2)
    charge: bool  # whether the row that opens a leaf pays there


@implements(prepare, Squared)
def prepare_squared(loss, rule, tree, y):
    head = tree.head_f
    total = head[TOTAL_WEIGHT]
    if total == 0.0:
        head[OFFSET] = y
    if total > 0.0 and total >= head[NEXT_ETA]:
        root = tree.d[tree.head_i[ROOT]]
        mean = root[SUM] / root[STAT]
        variance = root[SQUARES] / root[STAT] - mean * mean
        if loss.rate == 0.0:
            bound = 0.5 * (head[LABEL_MAX] - head[LABEL_MIN])
            head[ETA] = 1.0 / (8.0 * bound * bound) if bound > 0.0 else 0.0
        else:
            head[ETA] = loss.rate / variance if variance > 0.0 else 0.0
        rebuild_weights(rule, loss, tree)
        head[NEXT_ETA] = max(2.0, head[NEXT_ETA])
        while head[NEXT_ETA] <= total < np.inf:
            head[NEXT_ETA] *= 2.0
    head[LABEL_MIN] = min(head[LABEL_MIN], y - head[OFFSET])
    head[LABEL_MAX] = max(head[LABEL_MAX], y - head[OFFSET])


implements(at_once, Squared)(all_at_once)
implements(learn_above, Squared)(in_lots)


@implements(exponent, Squared)
def exponent_squared(loss, tree, v, y, w):
    n = tree.d[v, STAT]
    error = y - tree.head_f[OFFSET] - tree.d[v, SUM] / n
    cost = error * error
    if w != 1.0:  # w repeats: after i of them the mean is n / (n + i) as far from y
        cost *= n * n * (trigamma(n) - trigamma(n + w))
    tree.d[v, PRICE] += cost
    return -tree.head_f[ETA] * cost


exponent_squared_compiled = inner(exponent_squared)


@implements(price, Squared)
def price_squared(loss, tree, v, y, w):
    m, k = from_log(exponent_squared_compiled(loss, tree, v, y, w))
    return m, 1.0, k


@implements(opening_price, Squared)
def opening_price_squared(loss, tree, v, y, w):
    parent = tree.i[v, PARENT]
    if parent < 0 or not loss.charge:
        return 1.0, np.int64(0)
    error = y - tree.head_f[OFFSET] - tree.d[parent, SUM] / tree.d[parent, STAT]
    cost = min(w, 1.0) * error * error  # repeats after the first find the mean at y
    tree.d[v, PRICE] += cost
    return from_log(-tree.head_f[ETA] * cost)


@implements(log_weight, Squared)
def log_weight_squared(loss, tree, v):
    return -tree.head_f[ETA] * tree.d[v, PRICE]


@implements(add_forecast, Squared)
def add_forecast_squared(loss, tree, v, depth, weight, out):
    out[0] += weight * (tree.head_f[OFFSET] + tree.d[v, SUM] / tree.d[v, STAT])


@implements(add_empty_forecast, Squared)
def add_empty_forecast_squared(loss, tree, v, depth, weight, out):
    out[0] += weight * (tree.head_f[OFFSET] + tree.d[v, SUM] / tree.d[v, STAT])


@implements(forecast_loss, Squared)
def forecast_loss_squared(loss, total, n_trees, y):
    error = y - total[0] / n_trees
    return error * error
