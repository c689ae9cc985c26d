"""Squared loss of a node that mixes three means, two of which forget, in units that forget too.

A row costs a node ``rate`` times its squared error over the tree's scale, at most ``most``. The
scale is a discounted mean of the squared errors of what the tree itself forecast of its rows, each
at most ``most`` times what the scale was, and known before the row; until it has forecast any, it
is the variance of its labels. So the learning rate follows the noise that there is now: the weights
of prunings are those of losses that are multiplied by numbers known beforehand, and no weight is
ever rebuilt. The row that opens a leaf is free.

Mean and variance of a label at a node are those of the mixture of its memories, but that the
variance of the node above counts as the square of one row more, as in
:mod:`dmondrian.losses.label`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.losses.repeats import all_at_once
from dmondrian.stats.discounted_moments import mean_of, relative_error, variance_of
from dmondrian.tree.backward import in_batches
from dmondrian.tree.nodes import ETA, NEXT_ETA, OFFSET, PARENT, ROOT, STAT, TOTAL_WEIGHT
from dmondrian.tree.policies import (
    add_forecast,
    at_once,
    complete_forecast,
    exponent,
    learn_above,
    note_forecast,
    opening_price,
    prepare,
    price,
    worth,
)
from dmondrian.tree.scaled_float import from_log

_START = 4.0  # forecasts that the variance of the labels counts as


class DiscountedSquared(NamedTuple):
    """The mean of three memories' means under squared loss."""

    rate: float  # of weights, of errors in units of the scale
    most: float  # squared error that counts, in these units
    rows: float  # forecasts over which the scale is averaged


@implements(prepare, DiscountedSquared)
def prepare_discounted_squared(loss, rule, tree, y):
    head = tree.head_f
    if head[TOTAL_WEIGHT] == 0.0:
        head[OFFSET] = y
    elif head[NEXT_ETA] == 0.0:
        head[ETA] = variance_of(tree, np.uint64(tree.head_i[ROOT]))


@implements(note_forecast, DiscountedSquared)
def note_forecast_squared(loss, tree, out, y):
    head = tree.head_f
    error, scale = y - out[0], head[ETA]
    square = error * error if scale == 0.0 else min(error * error, loss.most * scale)
    head[NEXT_ETA] = min(max(head[NEXT_ETA], _START) + 1.0, loss.rows)
    head[ETA] += (square - scale) / head[NEXT_ETA]


implements(at_once, DiscountedSquared)(all_at_once)
implements(learn_above, DiscountedSquared)(in_batches)


@implements(exponent, DiscountedSquared)
def exponent_discounted_squared(loss, tree, v, y, w):
    error = y - tree.head_f[OFFSET] - mean_of(tree, v)
    return -loss.rate * w * relative_error(tree, error, loss.most)


exponent_compiled = inline(exponent_discounted_squared)


@implements(price, DiscountedSquared)
def price_discounted_squared(loss, tree, v, y, w):
    m, k = from_log(exponent_compiled(loss, tree, v, y, w))
    return m, 1.0, k


@implements(opening_price, DiscountedSquared)
def opening_price_discounted_squared(loss, tree, v, y, w):
    return 1.0, np.int64(0)


@implements(worth, DiscountedSquared)
def worth_squared(loss, tree, v, y):
    error = y - tree.head_f[OFFSET] - mean_of(tree, v)
    return -relative_error(tree, error, loss.most)


@implements(add_forecast, DiscountedSquared)
def add_forecast_discounted_squared(loss, tree, v, depth, weight, out):
    """Add the mean less ``OFFSET``, and the second moment about that, of a label."""
    n, u, mean, variance = (
        tree.d[v, STAT],
        tree.i[v, PARENT],
        mean_of(tree, v),
        variance_of(tree, v),
    )
    if u >= 0:
        variance = (n * variance + variance_of(tree, np.uint64(u))) / max(n, 1.0)
    out[0] += weight * mean
    out[1] += weight * (mean * mean + variance)


@implements(complete_forecast, DiscountedSquared)
def complete_forecast_squared(loss, tree, share, out):
    mean = out[0] / share
    out[1] = max(out[1] / share - mean * mean, 0.0)
    out[0] = tree.head_f[OFFSET] + mean
