"""Three memories of a node's labels: moments of all its rows, and two that forget with each visit.

Each memory is the weight, sum and sum of squares of :mod:`dmondrian.stats.moments`, multiplied by a
discount before a row is counted, and forecasts its mean. Their weights are those of the fixed share
of Herbster and Warmuth (1998) under squared loss, in units of the tree's own scale of errors
(:mod:`dmondrian.losses.discounted_squared`).

Statistics of a node, doubles: [n, sum, sum of squares] of labels less ``OFFSET``, the same twice
more, discounted, then three weights. The first is not discounted, so that the weight of the rows is
as of other moments.

References: Herbster, Warmuth (1998), "Tracking the best expert", Machine Learning 32; Vovk (1998),
"A game of prediction with expert advice", JCSS 56 (squared loss).
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._numba.jit import implements, inline
from dmondrian.tree.keyed_random import exp
from dmondrian.tree.nodes import ETA, OFFSET, STAT
from dmondrian.tree.policies import count, is_pure, is_pure_with

N_MEMORIES = 3
SIZE = 3  # doubles of a memory
WEIGHTS = STAT + N_MEMORIES * SIZE
N_STATS = N_MEMORIES * (SIZE + 1)
_THIRD = 1.0 / 3.0


class DiscountedMoments(NamedTuple):
    """Moments of all labels, and of late ones, weighted by how they forecast."""

    slow: float  # discount of the second memory by a visit
    fast: float  # of the third
    share: float  # of the weights that is spread anew by a visit
    rate: float  # of the weights, of errors in units of the tree's scale
    most: float  # squared error that counts, in these units


@inline
def relative_error(tree, error, most):
    """Return the square of an error in units of the tree's scale, at most ``most``."""
    square, scale = error * error, tree.head_f[ETA]
    if square >= most * scale:
        return most if square > 0.0 else 0.0
    return square / scale


@inline
def means(tree, v):
    """Return what each memory of ``v`` forecasts, less ``OFFSET``."""
    d = tree.d
    return (
        d[v, STAT + 1] / d[v, STAT],
        d[v, STAT + SIZE + 1] / d[v, STAT + SIZE],
        d[v, STAT + 2 * SIZE + 1] / d[v, STAT + 2 * SIZE],
    )


@inline
def mean_of(tree, v):
    """Return what ``v`` forecasts, less ``OFFSET``: the mean of its memories' means."""
    d = tree.d
    p, q, r = means(tree, v)
    return d[v, WEIGHTS] * p + d[v, WEIGHTS + 1] * q + d[v, WEIGHTS + 2] * r


@inline
def variance_of(tree, v):
    """Return the variance at ``v`` of the mixture of its memories' labels."""
    d = tree.d
    mean, square = 0.0, 0.0
    for k in range(N_MEMORIES):
        at = STAT + k * SIZE
        mean += d[v, WEIGHTS + k] * d[v, at + 1] / d[v, at]
        square += d[v, WEIGHTS + k] * d[v, at + 2] / d[v, at]
    return max(square - mean * mean, 0.0)


@implements(count, DiscountedMoments)
def count_discounted_moments(stat, tree, v, y, w):
    d, z = tree.d, y - tree.head_f[OFFSET]
    if d[v, STAT] == 0.0:
        for k in range(N_MEMORIES):
            d[v, WEIGHTS + k] = _THIRD
    else:
        p, q, r = means(tree, v)
        p = -relative_error(tree, z - p, stat.most)
        q = -relative_error(tree, z - q, stat.most)
        r = -relative_error(tree, z - r, stat.most)
        best, size = max(p, q, r), stat.rate * w
        p = d[v, WEIGHTS] * exp(size * (p - best))
        q = d[v, WEIGHTS + 1] * exp(size * (q - best))
        r = d[v, WEIGHTS + 2] * exp(size * (r - best))
        kept, spread = (1.0 - stat.share) / (p + q + r), stat.share * _THIRD
        d[v, WEIGHTS] = kept * p + spread
        d[v, WEIGHTS + 1] = kept * q + spread
        d[v, WEIGHTS + 2] = kept * r + spread
        for k in range(STAT + SIZE, STAT + 2 * SIZE):
            d[v, k] *= stat.slow
        for k in range(STAT + 2 * SIZE, WEIGHTS):
            d[v, k] *= stat.fast
    for k in range(N_MEMORIES):
        at = STAT + k * SIZE
        d[v, at] += w
        d[v, at + 1] += w * z
        d[v, at + 2] += w * z * z


@implements(is_pure_with, DiscountedMoments)
def is_pure_with_label(stat, tree, v, y):
    return False


@implements(is_pure, DiscountedMoments)
def is_one_label(stat, tree, v):
    return False
