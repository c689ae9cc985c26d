"""The Gaussian hierarchy: a mean for every node, drawn around its parent's; exact posterior.

The mean of a node is a Brownian motion run down the tree by the clock c(t) = g1 sigmoid(g2 t):
mu_v ~ N(mu_parent, c(end_v) - c(birth_v)), the prior mean m above the root at time 0, and labels
y ~ N(mu_leaf, s2). The posterior is exact, by message passing: a pass up gathers what the rows
below each node imply for its mean, as (precision, precision x mean); the way down to a point then
carries mean and variance of the path's last node. A point that branches off leaves the motion at
the branch and goes on alone until the lifetime; where the branch lies is averaged out by
quadrature in its quantile (16 points). Mean m and variance V are those of all
labels learned, and s2 = V / k, g1 = 2 V k / (k + 2), g2 = d / (2 log2 n), k = min(2 n, 500).

Relies on moments as statistics and on ``gather`` before predictions. Promises the mean of the label
at a point and its second moment about ``OFFSET``, its noise s2 included, or the Gaussians that
they are those of; far from all rows m and about V.

``messages``: one row (precision, precision x mean less m, clock at the end of the cell) per node,
then (m, s2, clock at time 0), (g1, g2, clock at the lifetime).

References: Lakshminarayanan, Roy, Teh (2016), sections 4 and 5.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.rules.gaussian_components import add_gaussian
from dmondrian.rules.leaf import (
    begin_empty,
    learns_nothing,
    needs_all_above,
    reads_way_alone,
)
from dmondrian.stats.moments import SQUARES, SUM
from dmondrian.tree.keyed_random import exp, log
from dmondrian.tree.nodes import (
    LEAST_SCRATCH,
    LEFT,
    OFFSET,
    PARENT,
    RIGHT,
    ROOT,
    STAT,
    birth_of,
    first_in_postorder,
    next_in_postorder,
    time_of,
)
from dmondrian.tree.policies import (
    add_branch,
    add_leaf,
    begin,
    branch_time,
    gather,
    ignores_above,
    pass_node,
    reads_siblings,
    second_moment,
)

# Gauss-Legendre in z, quantile z^2 (3 - 2 z): close points at both ends, where a clock that is
# fast or slow beside the branch's does its running. Off by at most 1.3e-5 g1.
_N_PLACES = 16
assert 3 * _N_PLACES <= LEAST_SCRATCH
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(_N_PLACES)
_Z = (_POINTS + 1.0) / 2.0
_QUANTILES = _Z * _Z * (3.0 - 2.0 * _Z)
_SHARES = 3.0 * _Z * (1.0 - _Z) * _WEIGHTS
_LN_2 = math.log(2.0)
_LEAST_VARIANCE = 1e-280  # that of labels whose precisions, n / s2, are finite numbers
_MOST = 500.0  # k stays below it: the share of the noise does not vanish


class GaussianHierarchy(NamedTuple):
    """Hierarchical smoothing of means."""

    lifetime: float  # of the prediction, at which leaves end
    is_listed: bool  # answers list each Gaussian of the mixture, not its moments


learns_nothing(GaussianHierarchy)
implements(begin, GaussianHierarchy)(begin_empty)
implements(reads_siblings, GaussianHierarchy)(reads_way_alone)
implements(ignores_above, GaussianHierarchy)(needs_all_above)


@inline
def clock(messages, time):
    """Return the variance that the motion gathers until ``time``."""
    g1, g2 = messages[-1, 0], messages[-1, 1]
    return g1 / (1.0 + exp(-g2 * time))


@inline
def write_scales(tree, lifetime):
    """Write m, s2, g1 and g2, and the clock at both ends."""
    root = tree.d[tree.head_i[ROOT]]
    n = root[STAT]
    mean = root[SUM] / n
    variance = root[SQUARES] / n - mean * mean
    variance = variance if variance > _LEAST_VARIANCE else 0.0
    k = min(2.0 * n, _MOST)
    tree.messages[-2, 0] = mean
    tree.messages[-2, 1] = variance / k
    tree.messages[-1, 0] = 2.0 * variance * k / (k + 2.0)
    tree.messages[-1, 1] = tree.n_features * _LN_2 / (2.0 * log(max(n, 2.0)))
    tree.messages[-2, 2] = clock(tree.messages, 0.0)
    tree.messages[-1, 2] = clock(tree.messages, lifetime)


@inline
def through(messages, v, span):
    """Return what the rows below ``v`` imply for the mean a variance ``span`` above its own."""
    scale = 1.0 / (1.0 + span * messages[v, 0])
    return messages[v, 0] * scale, messages[v, 1] * scale


@implements(gather, GaussianHierarchy)
def gather_gaussian(rule, tree):
    write_scales(tree, rule.lifetime)
    messages = tree.messages
    m, s2 = messages[-2, 0], messages[-2, 1]
    v = first_in_postorder(tree)
    while v >= 0:
        left, right = tree.i[v, LEFT], tree.i[v, RIGHT]
        time = time_of(tree, v)
        if left < 0 or time > rule.lifetime:  # labels without variance leave the prior
            n = tree.d[v, STAT]
            messages[v, 0] = n / s2 if s2 > 0.0 else 0.0
            messages[v, 1] = (tree.d[v, SUM] - n * m) / s2 if s2 > 0.0 else 0.0
            messages[v, 2] = messages[-1, 2] if time > rule.lifetime else clock(messages, time)
        else:
            now = clock(messages, time)
            messages[v, 0], messages[v, 1], messages[v, 2] = 0.0, 0.0, now
            for child in (left, right):
                precision, pull = through(messages, child, messages[child, 2] - now)
                messages[v, 0] += precision
                messages[v, 1] += pull
        v = next_in_postorder(tree, v)


@inline
def step(span, precision, pull, mean, variance):
    """Return the posterior (mean, variance) a variance ``span`` below a node that has these."""
    scale = 1.0 / (1.0 + span * precision)
    return scale * (mean + span * pull), scale * (scale * variance + span)


@inline
def ends_of(tree, v):
    """Return the clock at birth and end of the cell of ``v``."""
    messages, parent = tree.messages, tree.i[v, PARENT]
    return messages[parent, 2] if parent >= 0 else messages[-2, 2], messages[v, 2]


@inline
def below(tree, at, path):
    """Return the posterior (mean, variance) at the end of a node's cell."""
    messages = tree.messages
    born, ends = ends_of(tree, at.v)
    span = ends - born
    return step(span, messages[at.v, 0], messages[at.v, 1], path[0], path[1])


@inline
def add_label(rule, tree, mean, variance, scale, out):
    """Add ``scale`` times a label, given less m and without noise, to ``out``."""
    origin = tree.head_f[OFFSET]
    mean += origin + tree.messages[-2, 0]
    add_gaussian(rule.is_listed, mean, origin, variance + tree.messages[-2, 1], scale, out)


@implements(pass_node, GaussianHierarchy)
def pass_node_gaussian(rule, loss, tree, at, path):
    path[0], path[1] = below(tree, at, path)
    return at.rest


@implements(add_leaf, GaussianHierarchy)
def add_leaf_gaussian(rule, loss, tree, at, scale, path, out):
    mean, variance = below(tree, at, path)
    add_label(rule, tree, mean, variance, scale, out)


@implements(add_branch, GaussianHierarchy)
def add_branch_gaussian(rule, growth, loss, tree, at, branch, scale, path, out):
    messages, n = tree.messages, _N_PLACES
    (born, ends), last = ends_of(tree, at.v), messages[-1, 2]
    birth = birth_of(tree, at.v)
    clocks, means, variances = (
        tree.scratch[:n],
        tree.scratch[n : 2 * n],
        tree.scratch[2 * n : 3 * n],
    )
    # Loops that only compute take several points at a time; additions keep their order.
    for i in range(n):
        time = birth + branch_time(growth, branch, _QUANTILES[i])
        clocks[i] = min(max(clock(messages, time), born), ends)
    for i in range(n):
        precision, pull = through(messages, at.v, ends - clocks[i])
        means[i], variances[i] = step(clocks[i] - born, precision, pull, path[0], path[1])
    for i in range(n):
        variance = variances[i] + (last - clocks[i])
        add_label(rule, tree, means[i], variance, scale * _SHARES[i], out)


@implements(second_moment, GaussianHierarchy)
def second_moment_gaussian(rule, tree, out, c):
    return out[1]
