"""Three memories of class counts a node: of all its rows, and two that forget with each visit.

Each memory is the class counts of :mod:`dmondrian.stats.counts`, multiplied by a discount before
a row is counted, and forecasts as Krichevsky-Trofimov does. Their weights are those of the fixed
share of Herbster and Warmuth (1998): multiplied by the probability that each gave to the row, over
their sum, then moved to equal ones by ``share``. Rows of one label, of a cell, or of the whole
stream of late: the memory that forecast a node's own rows best weighs most.

Statistics of a node, doubles: [n, n_1 .. n_K], the same twice more, discounted, then three factors:
weight / (n + K alpha), so that a memory's share in the forecast of class c is its factor times
n_c + alpha, and nothing is divided to forecast.
The first is not discounted, so that purity and the weight of the rows are as of other counts.

References: Herbster, Warmuth (1998), "Tracking the best
expert", Machine Learning 32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.tree.keyed_random import exp, log
from dmondrian.tree.nodes import STAT
from dmondrian.tree.policies import count, is_pure, is_pure_with
from dmondrian.tree.simd.exp import three_quotients

N_MEMORIES = 3
_THIRD = 1.0 / 3.0
_LEAST_TOTAL = 1e-290  # below it its inverse, or a share over it, may be none


def n_stats_of(n_classes: int) -> int:
    """Return how many doubles a node's statistics are."""
    return N_MEMORIES * (n_classes + 1) + N_MEMORIES


class DiscountedCounts(NamedTuple):
    """Counts of all rows, and of late ones, weighted by what they forecast."""

    n_classes: int
    alpha: float  # pseudo-count of each class
    slow: float  # discount of the second memory by a visit
    fast: float  # of the third
    share: float  # of the weights that is spread anew by a visit


@inline
def places_of(y, n_classes):
    """Return where the counts of class ``y`` are in the three memories, then where factors are.

    A signed index costs a test for negative ones.
    """
    k, size = np.uint64(STAT + 1 + int(y)), np.uint64(1 + n_classes)
    return k, k + size, k + size + size, np.uint64(STAT + N_MEMORIES * (1 + n_classes))


@inline
def shares_of_class(tree, v, y, n_classes, alpha):
    """Return the shares of the memories of ``v`` in what it forecasts of class ``y``."""
    first, second, third, factors = places_of(y, n_classes)
    d, one = tree.d, np.uint64(1)
    return (
        d[v, factors] * (d[v, first] + alpha),
        d[v, factors + one] * (d[v, second] + alpha),
        d[v, factors + one + one] * (d[v, third] + alpha),
    )


@inline
def shares_of_repeats(tree, v, y, n_classes, alpha, w):
    """Return weights of memories times the probability of class ``y`` to the power ``w``."""
    size, whole, d = 1 + n_classes, n_classes * alpha, tree.d
    k, factors = STAT + 1 + int(y), STAT + N_MEMORIES * size
    first, second = d[v, STAT] + whole, d[v, STAT + size] + whole
    third = d[v, STAT + 2 * size] + whole
    p, q = (d[v, k] + alpha) / first, (d[v, k + size] + alpha) / second
    r = (d[v, k + 2 * size] + alpha) / third
    return (
        d[v, factors] * first * exp(w * log(p)),
        d[v, factors + 1] * second * exp(w * log(q)),
        d[v, factors + 2] * third * exp(w * log(r)),
    )


@implements(count, DiscountedCounts)
def count_discounted(stat, tree, v, y, w):
    d, whole, one = tree.d, stat.n_classes * stat.alpha, np.uint64(1)
    of_first, of_second, of_third, factors = places_of(y, stat.n_classes)
    first, size = np.uint64(STAT), np.uint64(1 + stat.n_classes)
    second, third = first + size, first + size + size
    first_weight, second_weight, third_weight = _THIRD, _THIRD, _THIRD
    if d[v, first] != 0.0:
        if w == 1.0:
            p, q, r = shares_of_class(tree, v, y, stat.n_classes, stat.alpha)
        else:
            p, q, r = shares_of_repeats(tree, v, y, stat.n_classes, stat.alpha, w)
        total = p + q + r
        if total > _LEAST_TOTAL:  # else no memory expected so heavy a row
            kept, spread = (1.0 - stat.share) / total, stat.share * _THIRD
            first_weight, second_weight = kept * p + spread, kept * q + spread
            third_weight = kept * r + spread
        for c in range(1 + stat.n_classes):
            k = second + np.uint64(c)
            d[v, k] *= stat.slow
            d[v, k + size] *= stat.fast
    d[v, first] += w
    d[v, of_first] += w
    d[v, second] += w
    d[v, of_second] += w
    d[v, third] += w
    d[v, of_third] += w
    d[v, factors], d[v, factors + one], d[v, factors + one + one] = three_quotients(
        first_weight, second_weight, third_weight,
        d[v, first] + whole, d[v, second] + whole, d[v, third] + whole,
    )  # fmt: skip


@implements(is_pure_with, DiscountedCounts)
def is_pure_with_class(stat, tree, v, y):
    return tree.d[v, STAT] == tree.d[v, STAT + 1 + int(y)]


@implements(is_pure, DiscountedCounts)
def is_one_class(stat, tree, v):
    largest = 0.0
    for c in range(stat.n_classes):
        largest = max(largest, tree.d[v, STAT + 1 + c])
    return largest == tree.d[v, STAT]
