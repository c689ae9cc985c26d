"""Moments of the label: [n, sum, sum of squares, cumulated price], float64.

Labels are taken relative to the first label of the stream, so that a large common shift
costs no digits.

The gain of a split is in squared units of the label: price(v) - price(left) - price(right) - s_v^2.
The price is the squared error of forecasting each label by the mean of those before it, averaged
over all orders, SSE + s^2 H(n - 1) with s^2 = SSE / (n - 1) and H the harmonic numbers; the row
that opens the second cell pays the parent's variance.
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._numba.jit import implements, inline
from dmondrian.stats.tallies import add_where
from dmondrian.tree.keyed_random import harmonic
from dmondrian.tree.nodes import LEFT, OFFSET, RIGHT, STAT, TOTAL_WEIGHT
from dmondrian.tree.policies import (
    add_statistics,
    count,
    error,
    gain,
    gain_of_split,
    gain_unit,
    inherit,
    is_pure,
    is_pure_with,
    note_gain,
    spread,
    tally,
    tally_size,
)

SUM, SQUARES, PRICE = STAT + 1, STAT + 2, STAT + 3
MOMENTS = 4  # statistics of a node


class Moments(NamedTuple):
    """Weight, sum and sum of squares of the labels."""

    width: int


def set_origin(loss, rule, tree, y):
    """Take the first label as the origin of all."""
    if tree.head_f[TOTAL_WEIGHT] == 0.0:
        tree.head_f[OFFSET] = y


@implements(count, Moments)
def count_label(stat, tree, v, y, w):
    z = y - tree.head_f[OFFSET]
    tree.d[v, STAT] += w
    tree.d[v, SUM] += w * z
    tree.d[v, SQUARES] += w * z * z


@implements(is_pure_with, Moments)
def is_pure_with_label(stat, tree, v, y):
    return False  # labels are continuous: pausing on equal ones has no meaning


@implements(is_pure, Moments)
def is_one_label(stat, tree, v):
    return False


def add_sums(stat, tree, v, sums):
    for k in range(sums.shape[0]):
        tree.d[v, STAT + k] += sums[k]


implements(add_statistics, Moments)(add_sums)


@inline
def sample_variance(tree, v):
    """Return s^2 of the labels at ``v``; 0 where one row determines nothing of it."""
    n = tree.d[v, STAT]
    if n <= 1.0:
        return 0.0
    squares = tree.d[v, SQUARES] - tree.d[v, SUM] * tree.d[v, SUM] / n
    return max(squares, 0.0) / (n - 1.0)


@inline
def mean_price(tree, v):
    """Return the squared error of forecasts by the mean so far, averaged over all orders."""
    n = tree.d[v, STAT]
    if n <= 1.0:
        return 0.0
    return sample_variance(tree, v) * (n - 1.0 + harmonic(n - 1.0))


@implements(gain, Moments)
def gain_of_means(stat, tree, v):
    below = mean_price(tree, tree.i[v, LEFT]) + mean_price(tree, tree.i[v, RIGHT])
    return mean_price(tree, v) - below - sample_variance(tree, v)


@inline
def squared_error(n, total, squares):
    """Return the squared error of the mean, in all."""
    return max(squares - total * total / n, 0.0) if n > 0.0 else 0.0


# Tallies of candidate cells are [n, sum, sum of squares]; the gain of a split is the fall of the
# variance.


@implements(tally_size, Moments)
def tally_size_of_moments(stat):
    return 3, 0


@implements(tally, Moments)
def tally_label(stat, tree, at, stride, n, thresholds, value, y, w):
    z = y - tree.head_f[OFFSET]
    add_where(tree, at, n, thresholds, value, w)
    add_where(tree, at + stride, n, thresholds, value, w * z)
    add_where(tree, at + 2 * stride, n, thresholds, value, w * z * z)


@implements(note_gain, Moments)
def note_nothing(stat, tree, criterion, whole, left, stride, n, thresholds, value, y, w):
    pass


@implements(spread, Moments)
def squared_error_of_cell(stat, tree, criterion, whole, stride):
    pool = tree.pool
    return squared_error(pool[whole], pool[whole + stride], pool[whole + 2 * stride])


@implements(gain_of_split, Moments)
def fall_of_variance(stat, tree, criterion, before, whole, left, stride):
    pool = tree.pool
    n, total, squares = pool[whole], pool[whole + stride], pool[whole + 2 * stride]
    n_left, on_left = pool[left], pool[left + stride]
    squares_left = pool[left + 2 * stride]
    if n <= 0.0:
        return 0.0
    apart = squared_error(n_left, on_left, squares_left)
    apart += squared_error(n - n_left, total - on_left, squares - squares_left)
    return (before - apart) / n


@implements(gain_unit, Moments)
def variance_of_cell(stat, tree, whole, stride):
    n, total, squares = (
        tree.pool[whole],
        tree.pool[whole + stride],
        tree.pool[whole + 2 * stride],
    )
    return squared_error(n, total, squares) / n if n > 0.0 else 0.0


@implements(inherit, Moments)
def inherit_moments(stat, tree, v, whole, left, stride, goes_left):
    for k in range(3):
        on_left = tree.pool[left + k * stride]
        tree.d[v, STAT + k] = on_left if goes_left else tree.pool[whole + k * stride] - on_left
    tree.d[v, SQUARES] = max(tree.d[v, SQUARES], 0.0)


@implements(error, Moments)
def error_of_mean(stat, tree, v):
    return squared_error(tree.d[v, STAT], tree.d[v, SUM], tree.d[v, SQUARES])
