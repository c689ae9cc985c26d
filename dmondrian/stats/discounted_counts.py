"""Three memories of class counts a node: of all its rows, and two that forget with each visit.

Each memory is the class counts of :mod:`dmondrian.stats.counts`, multiplied by a discount before
a row is counted, and forecasts as Krichevsky-Trofimov does. Their weights are those of the fixed
share of Herbster and Warmuth (1998): multiplied by the probability that each gave to the row, over
their sum, then moved to equal ones by ``share``. Rows of one label, of a cell, or of the whole
stream of late: the memory that forecast a node's own rows best weighs most.

Statistics of a node, doubles: [n, n_1 .. n_K], the same twice more, discounted, then three weights.
The first is not discounted, so that purity and the weight of the rows are as of other counts.

References: Herbster, Warmuth (1998), "Tracking the best
expert", Machine Learning 32.
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._numba.jit import implements, inline
from dmondrian.tree.keyed_random import exp, log
from dmondrian.tree.nodes import STAT
from dmondrian.tree.policies import count, is_pure, is_pure_with

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
def forecasts_of_class(tree, v, y, n_classes, alpha):
    """Return the probability that each memory of ``v`` gives to class ``y``."""
    size, whole = 1 + n_classes, n_classes * alpha
    first, second, third = STAT, STAT + size, STAT + size + size
    c = 1 + int(y)
    return (
        (tree.d[v, first + c] + alpha) / (tree.d[v, first] + whole),
        (tree.d[v, second + c] + alpha) / (tree.d[v, second] + whole),
        (tree.d[v, third + c] + alpha) / (tree.d[v, third] + whole),
    )


@implements(count, DiscountedCounts)
def count_discounted(stat, tree, v, y, w):
    d, size = tree.d, 1 + stat.n_classes
    second, third, weights = STAT + size, STAT + 2 * size, STAT + 3 * size
    c = 1 + int(y)
    if d[v, STAT] == 0.0:
        for k in range(N_MEMORIES):
            d[v, weights + k] = _THIRD
    else:
        p, q, r = forecasts_of_class(tree, v, y, stat.n_classes, stat.alpha)
        if w != 1.0:
            p, q, r = exp(w * log(p)), exp(w * log(q)), exp(w * log(r))
        p, q, r = d[v, weights] * p, d[v, weights + 1] * q, d[v, weights + 2] * r
        total = p + q + r
        kept, spread = 0.0, _THIRD
        if total > _LEAST_TOTAL:  # else no memory expected so heavy a row
            kept, spread = (1.0 - stat.share) / total, stat.share * _THIRD
        d[v, weights] = kept * p + spread
        d[v, weights + 1] = kept * q + spread
        d[v, weights + 2] = kept * r + spread
        for k in range(second, third):
            d[v, k] *= stat.slow
        for k in range(third, weights):
            d[v, k] *= stat.fast
    d[v, STAT] += w
    d[v, STAT + c] += w
    d[v, second] += w
    d[v, second + c] += w
    d[v, third] += w
    d[v, third + c] += w


@implements(is_pure_with, DiscountedCounts)
def is_pure_with_class(stat, tree, v, y):
    return tree.d[v, STAT] == tree.d[v, STAT + 1 + int(y)]


@implements(is_pure, DiscountedCounts)
def is_one_class(stat, tree, v):
    largest = 0.0
    for c in range(stat.n_classes):
        largest = max(largest, tree.d[v, STAT + 1 + c])
    return largest == tree.d[v, STAT]
