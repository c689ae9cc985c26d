"""The leaf alone, by its forecast or by a vote.

Relies on the loss for what a cell forecasts. Promises that a cell no row has reached has the
forecast of empty cells below its parent, and that nothing but statistics is learned.

Shapes: K classes.

References: Mourtada, Gaiffas, Scornet (2017), Algorithm 4 (vote) and Theorem 2 (mean).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.tree.nodes import OFFSET, PARENT, STAT, birth_of
from dmondrian.tree.policies import (
    add_branch,
    add_empty_forecast,
    add_forecast,
    add_leaf,
    begin,
    ignores_above,
    inherit_weight,
    inserted_factor,
    pass_node,
    reads_siblings,
    rebuild_weights,
    second_moment,
    shift_near,
    shift_weight,
)


class Leaf(NamedTuple):
    """The forecast of the leaf."""

    is_exact: bool  # always False: no other node counts


class Vote(NamedTuple):
    """One for the class that the leaf's forecast puts first, the first of equals."""

    n_classes: int


@inline
def add_cell_forecast(loss, tree, at, weight, out):
    """Add ``weight`` times the forecast of a leaf, which may have seen no row."""
    if tree.d[at.v, STAT] > 0.0:
        add_forecast(loss, tree, at.v, at.depth, weight, out)
    else:  # a root without rows is asked itself
        parent = tree.i[at.v, PARENT]
        near = np.uint64(parent) if parent >= 0 else at.v
        add_empty_forecast(loss, tree, near, at.depth, weight, out)


def inserted_factor_silent(rule, tree, new):
    return 1.0


def shift_weight_silent(rule, tree, v, n, d, kp, q, kq):
    return q, kq


def shift_near_silent(rule, tree, v, n, d, q):
    return True, q


def inherit_weight_silent(rule, tree, new, v, v_is_leaf):
    pass


def rebuild_weights_silent(rule, loss, tree):
    pass


def second_moment_of_mean(rule, tree, out, c):
    z = out[c] - tree.head_f[OFFSET]
    return z * z


def learns_nothing(rule):
    """Register what a rule answers that has no weights to learn."""
    implements(inserted_factor, rule)(inserted_factor_silent)
    implements(shift_weight, rule)(shift_weight_silent)
    implements(shift_near, rule)(shift_near_silent)
    implements(inherit_weight, rule)(inherit_weight_silent)
    implements(rebuild_weights, rule)(rebuild_weights_silent)


def begin_empty(rule, path):
    path[:] = 0.0


def reads_way_alone(rule):
    return False


def needs_all_above(rule, tree, v, lifetime):
    return False


def needs_none_above(rule, tree, v, lifetime):
    return lifetime == np.inf or birth_of(tree, v) <= lifetime  # else a node above is the leaf


def pass_node_unheard(rule, loss, tree, at, path):
    return at.rest


# The path stays empty on the way down and is scratch in a leaf.
for _rule in (Leaf, Vote):
    learns_nothing(_rule)
    implements(begin, _rule)(begin_empty)
    implements(reads_siblings, _rule)(reads_way_alone)
    implements(ignores_above, _rule)(needs_none_above)
    implements(pass_node, _rule)(pass_node_unheard)
    implements(second_moment, _rule)(second_moment_of_mean)


@implements(add_branch, Leaf)
def add_branch_leaf(rule, growth, loss, tree, at, branch, scale, path, out):
    add_empty_forecast(loss, tree, at.v, at.depth + 1.0, scale, out)


@implements(add_leaf, Leaf)
def add_leaf_leaf(rule, loss, tree, at, scale, path, out):
    add_cell_forecast(loss, tree, at, at.rest, path)
    for c in range(out.shape[0]):
        out[c] += scale * path[c]
        path[c] = 0.0


@inline
def add_vote(path, scale, out):
    """Give ``scale`` to the first of the largest entries of ``path``, which is cleared."""
    best = 0
    for c in range(1, path.shape[0]):
        best = c if path[c] > path[best] else best
    out[best] += scale
    path[:] = 0.0


@implements(add_branch, Vote)
def add_branch_vote(rule, growth, loss, tree, at, branch, scale, path, out):
    add_empty_forecast(loss, tree, at.v, at.depth + 1.0, 1.0, path)
    add_vote(path, scale, out)


@implements(add_leaf, Vote)
def add_leaf_vote(rule, loss, tree, at, scale, path, out):
    add_cell_forecast(loss, tree, at, 1.0, path)
    add_vote(path, scale, out)
