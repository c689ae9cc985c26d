"""Class counts: [n, n_1 .. n_K], float64, exact for whole weights up to 2^53.

The gain of a split is in nats: log KT(left) + log KT(right) - log KT(v), where KT is the
probability that the Krichevsky-Trofimov forecaster (pseudo-counts of 1/2, whatever ``alpha``)
gives to a node's labels, in any order (M21, Equation 5).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.stats.impurity import HELLINGER, hellinger, impurity, rise
from dmondrian.stats.moments import add_sums
from dmondrian.stats.tallies import add_where
from dmondrian.tree.keyed_random import log_gamma
from dmondrian.tree.nodes import LEFT, RIGHT, STAT
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


class Counts(NamedTuple):
    """Weight of the rows, and of the rows of each class."""

    n_classes: int


@implements(count, Counts)
def count_class(stat, tree, v, y, w):
    tree.d[v, STAT] += w
    tree.d[v, STAT + 1 + int(y)] += w


@implements(is_pure_with, Counts)
def is_pure_with_class(stat, tree, v, y):
    return tree.d[v, STAT] == tree.d[v, STAT + 1 + int(y)]


@implements(is_pure, Counts)
def is_one_class(stat, tree, v):
    largest = 0.0
    for c in range(stat.n_classes):
        largest = max(largest, tree.d[v, STAT + 1 + c])
    return largest == tree.d[v, STAT]


implements(add_statistics, Counts)(add_sums)


@inline
def log_kt(stat, tree, v):
    """Return the log of the KT probability of the labels at ``v``."""
    half = 0.5 * stat.n_classes
    total = log_gamma(half) - log_gamma(tree.d[v, STAT] + half)
    for c in range(stat.n_classes):
        n_c = tree.d[v, STAT + 1 + c]
        if n_c > 0.0:
            total += log_gamma(n_c + 0.5) - log_gamma(0.5)
    return total


@implements(gain, Counts)
def gain_of_classes(stat, tree, v):
    below = log_kt(stat, tree, tree.i[v, LEFT]) + log_kt(stat, tree, tree.i[v, RIGHT])
    return below - log_kt(stat, tree, v)


# Tallies of candidate cells are [n, n_1 .. n_K], and for gains sum_c f(n_c) of the left cell (of
# the whole one, in its own tally) and of the right one.


@implements(tally_size, Counts)
def tally_size_of_classes(stat):
    return 1 + stat.n_classes, 2


@implements(tally, Counts)
def tally_class(stat, tree, at, stride, n, thresholds, value, y, w):
    add_where(tree, at, n, thresholds, value, w)
    add_where(tree, at + (1 + int(y)) * stride, n, thresholds, value, w)


@implements(note_gain, Counts)
def note_class(stat, tree, criterion, whole, left, stride, n, thresholds, value, y, w):
    if criterion == HELLINGER:
        return
    row, end = (1 + int(y)) * stride, (1 + stat.n_classes) * stride
    lefts, wholes, thresholds = np.uint64(left + row), np.uint64(whole + row), np.uint64(thresholds)
    sums, to_right = np.uint64(left + end), np.uint64(stride)
    for k in range(np.uint64(n)):  # without branches, which nothing could foresee
        on_left = tree.pool[lefts + k]
        goes_left = value <= tree.pool[thresholds + k]
        cell = on_left if goes_left else tree.pool[wholes + k] - on_left
        tree.pool[sums + k + (np.uint64(0) if goes_left else to_right)] += rise(criterion, cell, w)


@implements(spread, Counts)
def impurity_of_cell(stat, tree, criterion, whole, stride):
    n = tree.pool[whole]
    if criterion == HELLINGER or n <= 0.0:
        return 0.0
    return impurity(criterion, n, tree.pool[whole + (1 + stat.n_classes) * stride])


@implements(gain_of_split, Counts)
def gain_of_parting(stat, tree, criterion, before, whole, left, stride):
    pool, end = tree.pool, np.uint64((1 + stat.n_classes) * stride)
    whole, left, stride = np.uint64(whole), np.uint64(left), np.uint64(stride)
    n, n_left = pool[whole], pool[left]
    n_right = n - n_left
    if criterion == HELLINGER:
        second = stride + stride
        return hellinger(
            pool[whole + stride],
            pool[whole + second],
            pool[left + stride],
            pool[left + second],
        )
    if n_left <= 0.0 or n_right <= 0.0:
        return 0.0
    apart = impurity(criterion, n_left, pool[left + end])
    apart += impurity(criterion, n_right, pool[left + end + stride])
    return (before - apart) / n


@implements(gain_unit, Counts)
def bit(stat, tree, whole, stride):
    return 1.0


@implements(inherit, Counts)
def inherit_classes(stat, tree, v, whole, left, stride, goes_left):
    total = 0.0
    for c in range(stat.n_classes):
        on_left = tree.pool[left + (1 + c) * stride]
        on_right = max(tree.pool[whole + (1 + c) * stride] - on_left, 0.0)
        n_c = on_left if goes_left else on_right
        tree.d[v, STAT + 1 + c] = n_c
        total += n_c
    tree.d[v, STAT] = total


@implements(error, Counts)
def rows_of_other_classes(stat, tree, v):
    largest = 0.0
    for c in range(stat.n_classes):
        largest = max(largest, tree.d[v, STAT + 1 + c])
    return max(tree.d[v, STAT] - largest, 0.0)
