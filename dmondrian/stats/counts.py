"""Class counts: [n, n_1 .. n_K], float64, exact for whole weights up to 2^53.

The gain of a split is in nats: log KT(left) + log KT(right) - log KT(v), where KT is the
probability that the Krichevsky-Trofimov forecaster (pseudo-counts of 1/2, whatever ``alpha``)
gives to a node's labels, in any order (M21, Equation 5).
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._jit import implements, inner
from dmondrian.core.draws import log_gamma
from dmondrian.core.nodes import LEFT, RIGHT, STAT
from dmondrian.core.policies import add_statistics, count, gain, is_pure, is_pure_with
from dmondrian.stats.moments import add_sums


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


@inner
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
