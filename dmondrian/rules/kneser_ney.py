"""Interpolated Kneser-Ney: each cell's frequencies, smoothed towards those of its parent.

With tab_vc = min(n_vc, 1), and n_vc the counts at a leaf, the sum of the children's tab inside,

    G_vc = (n_vc - D_v tab_vc + D_v tab_v. G_parent,c) / n_v.,   D_v = exp(-gamma span_v),

span_v from birth to split, and the parent of the root is uniform. The statistics a node keeps
are the plain counts: tab follows from them, also inside, so one way down gives G at every
lifetime, where a node whose split comes later is a leaf that ends there. A point that branches
off is forecast by the node at the branch, whose discount is taken in expectation over the place.

Relies on class counts as statistics. Promises probabilities that sum to one.

Shapes: K classes.

References: Lakshminarayanan, Roy, Teh (2014), section 5 and Appendix B.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.rules.leaf import learns_nothing, second_moment_of_mean
from dmondrian.tree.keyed_random import VANISHES, exp
from dmondrian.tree.nodes import LEFT, RIGHT, STAT, span_of
from dmondrian.tree.policies import (
    add_branch,
    add_leaf,
    begin,
    ignores_above,
    mean_decay,
    pass_node,
    reads_siblings,
    second_moment,
)


class KneserNey(NamedTuple):
    """Hierarchical smoothing of class frequencies."""

    n_classes: int
    gamma: float  # discount rate, per unit of time


learns_nothing(KneserNey)
implements(second_moment, KneserNey)(second_moment_of_mean)


@inline
def tables(tree, v, c):
    """Return tab of class ``c`` at ``v``."""
    return min(tree.d[v, STAT + 1 + c], 1.0)


@implements(reads_siblings, KneserNey)
def reads_siblings_kneser_ney(rule):
    return True


@implements(ignores_above, KneserNey)
def ignores_above_kneser_ney(rule, tree, v, lifetime):
    """Return whether D_v is 0; a cell without rows depends on its parent all the same."""
    return -rule.gamma * span_of(tree, v, lifetime) < VANISHES and tree.d[v, STAT] > 0.0


@implements(begin, KneserNey)
def begin_kneser_ney(rule, path):
    path[:] = 1.0 / rule.n_classes


@implements(pass_node, KneserNey)
def pass_node_kneser_ney(rule, loss, tree, at, path):
    v = at.v
    left, right = np.uint64(tree.i[v, LEFT]), np.uint64(tree.i[v, RIGHT])
    decay = exp(-rule.gamma * span_of(tree, v, at.lifetime))
    n, tab = 0.0, 0.0
    for c in range(rule.n_classes):
        n += tables(tree, left, c) + tables(tree, right, c)
        tab += tables(tree, v, c)
    for c in range(rule.n_classes):
        n_c = tables(tree, left, c) + tables(tree, right, c)
        path[c] = (n_c - decay * tables(tree, v, c) + decay * tab * path[c]) / n
    return at.rest


@implements(add_branch, KneserNey)
def add_branch_kneser_ney(rule, growth, loss, tree, at, branch, scale, path, out):
    decay = mean_decay(growth, branch, span_of(tree, at.v, at.lifetime), rule.gamma)
    tab = 0.0
    for c in range(rule.n_classes):
        tab += tables(tree, at.v, c)
    for c in range(rule.n_classes):
        out[c] += scale * ((1.0 - decay) * tables(tree, at.v, c) / tab + decay * path[c])


@implements(add_leaf, KneserNey)
def add_leaf_kneser_ney(rule, loss, tree, at, scale, path, out):
    v = at.v
    n = tree.d[v, STAT]
    if n == 0.0:  # an empty cell forecasts what its parent forecasts
        for c in range(rule.n_classes):
            out[c] += scale * path[c]
        return
    decay = exp(-rule.gamma * span_of(tree, v, at.lifetime))
    tab = 0.0
    for c in range(rule.n_classes):
        tab += tables(tree, v, c)
    for c in range(rule.n_classes):
        n_c = tree.d[v, STAT + 1 + c]
        out[c] += scale * (n_c - decay * tables(tree, v, c) + decay * tab * path[c]) / n
