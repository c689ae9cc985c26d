"""Squared loss of the mean of the labels seen (M21, Equation 4).

The theorem's learning rate 1 / (8 B^2), B half the range of labels and forecasts, is too timid in
practice, so by default the rate is in units of the labels' variance, taken anew when the total
weight passes a power of two. The theorem's is taken from the range seen so far; it falls to half
or less as soon as a label makes it too large. Each time all weights are rebuilt from the stored
cumulated prices, so they are at all times the exact weights of the rate in force. As prices scale
with the labels, shifting or scaling these changes nothing.

The range may be seen late: -log(sum of prior x exp(-rate x price)) / rate falls with the rate, so
weights that are rebuilt at a smaller rate keep M21's Lemma 1 at the last one. A label that lowers
the rate costs at most (2 B)^2 more than the lemma allows, and B^2 at least doubles from one such
label to the next: 8 times the last B^2 in all. A range that is known beforehand costs nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.losses.repeats import all_at_once
from dmondrian.stats.moments import PRICE, SQUARES, SUM
from dmondrian.tree.backward import in_batches
from dmondrian.tree.keyed_random import trigamma
from dmondrian.tree.nodes import (
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
from dmondrian.tree.policies import (
    add_empty_forecast,
    add_forecast,
    at_once,
    exponent,
    forecast_at,
    forecast_loss,
    learn_above,
    log_weight,
    opening_price,
    prepare,
    price,
    rebuild_weights,
)
from dmondrian.tree.scaled_float import from_log


class Squared(NamedTuple):
    """Mean forecasts under squared loss."""

    rate: float  # learning rate times variance, or B^2 where that is known; 0: the theorem's
    charge: bool  # whether the row that opens a leaf pays there
    prior: bool  # whether empty cells forecast 0, as in the paper, not what their parent does
    bound: float  # B where it is known beforehand, else 0


@inline
def take_rate_of_variance(loss, rule, tree):
    """Take the learning rate from the variance, if the total weight has passed a power of two."""
    head = tree.head_f
    total = head[TOTAL_WEIGHT]
    if total > 0.0 and total >= head[NEXT_ETA]:
        root = tree.d[tree.head_i[ROOT]]
        mean = root[SUM] / root[STAT]
        variance = root[SQUARES] / root[STAT] - mean * mean
        head[ETA] = loss.rate / variance if variance > 0.0 else 0.0
        rebuild_weights(rule, loss, tree)
        head[NEXT_ETA] = max(2.0, head[NEXT_ETA])
        while head[NEXT_ETA] <= total < np.inf:
            head[NEXT_ETA] *= 2.0


@inline
def take_rate_of_range(loss, rule, tree):
    """Lower the learning rate if the range of the labels has made it too large."""
    head = tree.head_f
    low, high = head[LABEL_MIN], head[LABEL_MAX]
    if loss.prior:  # forecasts may be 0 wherever the labels are
        bound = max(abs(low + head[OFFSET]), abs(high + head[OFFSET]))
    else:
        bound = 0.5 * (high - low)
    if bound > 0.0 and (head[ETA] == 0.0 or 8.0 * bound * bound * head[ETA] > 1.0):
        most = 1.0 / (8.0 * bound * bound)
        head[ETA] = most if head[ETA] == 0.0 else min(most, 0.5 * head[ETA])
        if tree.head_i[ROOT] >= 0:
            rebuild_weights(rule, loss, tree)


@implements(prepare, Squared)
def prepare_squared(loss, rule, tree, y):
    head = tree.head_f
    if head[TOTAL_WEIGHT] == 0.0:
        head[OFFSET] = y
        if loss.bound > 0.0:
            head[ETA] = (loss.rate if loss.rate > 0.0 else 0.125) / (loss.bound * loss.bound)
    if loss.rate > 0.0 and loss.bound == 0.0:
        take_rate_of_variance(loss, rule, tree)
    head[LABEL_MIN] = min(head[LABEL_MIN], y - head[OFFSET])
    head[LABEL_MAX] = max(head[LABEL_MAX], y - head[OFFSET])
    if loss.rate == 0.0 and loss.bound == 0.0:
        take_rate_of_range(loss, rule, tree)


implements(at_once, Squared)(all_at_once)
implements(learn_above, Squared)(in_batches)


@implements(exponent, Squared)
def exponent_squared(loss, tree, v, y, w):
    n = tree.d[v, STAT]
    error = y - tree.head_f[OFFSET] - tree.d[v, SUM] / n
    cost = error * error
    if w != 1.0:  # w repeats: after i of them the mean is n / (n + i) as far from y
        cost *= n * n * (trigamma(n) - trigamma(n + w))
    tree.d[v, PRICE] += cost
    return -tree.head_f[ETA] * cost


exponent_squared_compiled = inline(exponent_squared)


@implements(price, Squared)
def price_squared(loss, tree, v, y, w):
    m, k = from_log(exponent_squared_compiled(loss, tree, v, y, w))
    return m, 1.0, k


@implements(opening_price, Squared)
def opening_price_squared(loss, tree, v, y, w):
    parent = tree.i[v, PARENT]
    if not loss.charge or (parent < 0 and not loss.prior):
        return 1.0, np.int64(0)
    if loss.prior:
        error = y
    else:
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
    if not loss.prior:
        out[0] += weight * (tree.head_f[OFFSET] + tree.d[v, SUM] / tree.d[v, STAT])


@implements(forecast_at, Squared)
def forecast_at_squared(loss, tree, v, y):
    return tree.head_f[OFFSET] + tree.d[v, SUM] / tree.d[v, STAT]


@implements(forecast_loss, Squared)
def forecast_loss_squared(loss, total, n_trees, y):
    error = y - total[0] / n_trees
    return error * error
