"""Huber's loss: (y - z)^2 / 2 where |y - z| <= delta, delta (|y - z| - delta / 2) beyond it.

A cell forecasts the z of least total loss (Z24, section 6.3), the root of the sum of the
derivatives, which are piecewise linear: Newton steps end after finitely many, and are halved where
they leave the bracket. Where a whole interval is least, its middle.

Relies on :mod:`dmondrian.stats.labels`. The derivative has variation 2 delta, so with forgotten
labels the mean derivative is known to within delta gap / n.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.losses.constant import add_empty_solution, add_solution, solution
from dmondrian.losses.quantile import clipped
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

_STEPS = 200  # of Newton or of halving: far more than a double has bits
_NOTHING = 1e-14  # what is rounding, as a share of delta or of the range of labels


class Huber(NamedTuple):
    """The robust mean of Huber's loss."""

    delta: float  # in units of the label
    size: int  # labels of a node
    bound: float  # of |z|; 0 for none
    prior: bool  # an empty cell forecasts 0, not what its parent forecasts
    priced: bool  # whether nodes add up what their forecasts cost


@inline
def huber(delta, z, y):
    """Return the loss of ``z`` at label ``y``."""
    error = abs(y - z)
    return 0.5 * error * error if error <= delta else delta * (error - 0.5 * delta)


@inline
def slope_at(loss, row, z, close):
    """Return (derivative of the total loss at ``z``, curvature, ends of where it is flat).

    All are relative to the least label, so that a large common shift costs no digits. Labels
    ``close`` to where the loss becomes linear are beyond it: z may be the end of where it is flat.
    """
    stat = Labels(loss.size)
    first, k = places(stat)[0], int(row[KEPT])
    slope, curvature, before = 0.0, 0.0, 0.0
    low, high = -np.inf, np.inf
    for i in range(k):
        upto = weight_upto(stat, row, i, k)
        y, weight = row[first + i] - row[first], upto - before
        before = upto
        if y <= z - loss.delta + close:
            slope += weight * loss.delta
            low = max(low, y + loss.delta)
        elif y >= z + loss.delta - close:
            slope -= weight * loss.delta
            high = min(high, y - loss.delta)
        else:
            slope += weight * (z - y)
            curvature += weight
    return slope, curvature, low, high


@implements(solution, Huber)
def robust_mean(loss, tree, v):
    row = tree.d[v]
    first, k = places(Labels(loss.size))[0], int(row[KEPT])
    low, high = 0.0, row[first + k - 1] - row[first]
    close = _NOTHING * min(loss.delta, high - low)
    nothing = close * row[STAT]
    z = 0.5 * low + 0.5 * high
    for _ in range(_STEPS):
        slope, curvature, flat_from, flat_to = slope_at(loss, row, z, close)
        if abs(slope) <= nothing:
            if curvature == 0.0:
                z = 0.5 * max(flat_from, low) + 0.5 * min(flat_to, high)
            break
        if slope > 0.0:
            high = z
        else:
            low = z
        step = z - slope / curvature if curvature > 0.0 else np.inf
        if not low < step < high:
            step = 0.5 * low + 0.5 * high
        if step == z:
            break
        z = step
    return clipped(loss.bound, row[first] + z)


implements(prepare, Huber)(set_origin)
implements(add_forecast, Huber)(add_solution)
implements(add_empty_forecast, Huber)(add_empty_solution)
implements(at_once, Huber)(in_parts)
implements(learn_above, Huber)(node_by_node)


@implements(price, Huber)
def price_huber(loss, tree, v, y, w):
    if loss.priced:
        tree.d[v, PRICE] += w * huber(loss.delta, solution(loss, tree, v), y)
    return 1.0, 1.0, np.int64(0)


@implements(opening_price, Huber)
def opening_price_huber(loss, tree, v, y, w):
    parent = tree.i[v, PARENT]
    if loss.priced and parent >= 0:
        z = 0.0 if loss.prior else solution(loss, tree, parent)
        tree.d[v, PRICE] += w * huber(loss.delta, z, y)
    return 1.0, np.int64(0)


@implements(forecast_loss, Huber)
def forecast_loss_huber(loss, total, n_trees, y):
    return huber(loss.delta, total[0] / n_trees, y)


@implements(risk, Huber)
def risk_huber(loss, tree, v):
    row, stat = tree.d[v], Labels(loss.size)
    first, k = places(stat)[0], int(row[KEPT])
    if k == 0:
        return 0.0
    z, before, total = solution(loss, tree, v), 0.0, 0.0
    for i in range(k):
        upto = weight_upto(stat, row, i, k)
        total += (upto - before) * huber(loss.delta, z, row[first + i])
        before = upto
    return total
