"""Pinball loss: quantiles of the labels of a cell, several at a time (Z24, section 6.4).

A cell forecasts for each level tau the z of least sum of (y - z)(tau - 1{y < z}): the label at
which the weight of rows up to it passes tau n; where a whole interval is least, its middle. A
cell's quantiles rise with the level, so those of the forest, their means over trees, never cross.

Relies on :mod:`dmondrian.stats.labels` for F, exact or within its stated error.

Shapes: q levels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.losses.repeats import in_parts
from dmondrian.stats.labels import KEPT, Labels, places, weight_upto
from dmondrian.stats.moments import PRICE, set_origin
from dmondrian.tree.backward import node_by_node
from dmondrian.tree.nodes import PARENT, STAT
from dmondrian.tree.policies import (
    add_empty_forecast,
    add_forecast,
    at_once,
    forecast_loss,
    learn_above,
    opening_price,
    prepare,
    price,
    risk,
)

_CLOSE = 1e-12  # shares of the weight that differ by less are equal: tau n is rounded


class Pinball(NamedTuple):
    """Quantiles at increasing levels."""

    levels: np.ndarray  # float64 [q], increasing, in (0, 1)
    size: int  # labels of a node
    bound: float  # of |z|; 0 for none
    prior: bool  # an empty cell forecasts 0, not what its parent forecasts
    priced: bool  # whether nodes add up what their forecasts cost


@inline
def clipped(bound, z):
    """Return ``z`` moved to the bound, where there is one."""
    return min(max(z, -bound), bound) if bound > 0.0 else z


@inline
def quantile_from(loss, tree, v, level, i):
    """Return (quantile of the labels at ``v``, its label), looked for from label ``i`` on."""
    row, stat = tree.d[v], Labels(loss.size)
    first, k, n = places(stat)[0], int(row[KEPT]), row[STAT]
    while i < k - 1 and weight_upto(stat, row, i, k) < (level - _CLOSE) * n:
        i += 1
    z = row[first + i]
    if i < k - 1 and weight_upto(stat, row, i, k) <= (level + _CLOSE) * n:
        z = 0.5 * z + 0.5 * row[first + i + 1]
    return clipped(loss.bound, z), i


@inline
def pinball(level, z, y):
    """Return the loss of quantile ``z`` at label ``y``."""
    return (y - z) * (level if y >= z else level - 1.0)


implements(prepare, Pinball)(set_origin)
implements(at_once, Pinball)(in_parts)
implements(learn_above, Pinball)(node_by_node)


@inline
def pay(loss, tree, v, speaker, y, w):
    """Add to ``v`` what a row costs that finds the quantiles of ``speaker``, -1 for zeros."""
    i, paid = 0, 0.0
    for c in range(loss.levels.shape[0]):
        z = 0.0
        if speaker >= 0:
            z, i = quantile_from(loss, tree, speaker, loss.levels[c], i)
        paid += pinball(loss.levels[c], z, y)
    tree.d[v, PRICE] += w * paid


@implements(price, Pinball)
def price_pinball(loss, tree, v, y, w):
    if loss.priced:
        pay(loss, tree, v, v, y, w)
    return 1.0, 1.0, np.int64(0)


@implements(opening_price, Pinball)
def opening_price_pinball(loss, tree, v, y, w):
    parent = tree.i[v, PARENT]
    if loss.priced and parent >= 0:
        pay(loss, tree, v, -1 if loss.prior else parent, y, w)
    return 1.0, np.int64(0)


@implements(add_forecast, Pinball)
def add_quantiles(loss, tree, v, depth, weight, out):
    i = 0
    for c in range(loss.levels.shape[0]):
        z, i = quantile_from(loss, tree, v, loss.levels[c], i)
        out[c] += weight * z


@implements(add_empty_forecast, Pinball)
def add_empty_quantiles(loss, tree, v, depth, weight, out):
    i = 0
    for c in range(loss.levels.shape[0]):
        z, i = quantile_from(loss, tree, v, loss.levels[c], i)
        out[c] += 0.0 if loss.prior else weight * z


@implements(forecast_loss, Pinball)
def forecast_loss_pinball(loss, total, n_trees, y):
    paid = 0.0
    for c in range(loss.levels.shape[0]):
        paid += pinball(loss.levels[c], total[c] / n_trees, y)
    return paid


@implements(risk, Pinball)
def risk_pinball(loss, tree, v):
    row, stat = tree.d[v], Labels(loss.size)
    first, k = places(stat)[0], int(row[KEPT])
    total, start = 0.0, 0
    for c in range(loss.levels.shape[0]):
        if k > 0:
            z, start = quantile_from(loss, tree, v, loss.levels[c], start)
            before = 0.0
            for i in range(k):
                upto = weight_upto(stat, row, i, k)
                total += (upto - before) * pinball(loss.levels[c], z, row[first + i])
                before = upto
    return total
