"""The aggregate rule: the exact mixture over all prunings.

Context-tree weighting (M21, section 2.2): prior 2^-(nodes of the pruning that are not leaves
of the tree), posterior by exponential weights. The weights are those of the whole tree, so the
rule predicts at no lifetime but the tree's own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import allocating, implements, inline
from dmondrian.rules.leaf import (
    add_cell_forecast,
    begin_empty,
    needs_all_above,
    reads_way_alone,
    second_moment_of_mean,
)
from dmondrian.tree.nodes import LEFT, N_NODES, PARENT
from dmondrian.tree.policies import (
    add_branch,
    add_empty_forecast,
    add_forecast,
    add_leaf,
    begin,
    ignores_above,
    inherit_weight,
    inserted_factor,
    log_weight,
    pass_node,
    reads_siblings,
    rebuild_weights,
    second_moment,
    shift_near,
    shift_weight,
)
from dmondrian.tree.scaled_float import (
    add,
    from_log,
    inherit_odds,
    is_near,
    mix_and_shift,
    mix_near,
    normalise,
    set_odds,
    stop_probability,
)
from dmondrian.tree.simd.exp import write_exponentials

_AT_ONCE = 64  # nodes whose exponentials are taken together, a multiple of 8


class Aggregate(NamedTuple):
    """Mixture over all prunings."""

    is_exact: bool  # always True: no pruning is left out


implements(begin, Aggregate)(begin_empty)
implements(reads_siblings, Aggregate)(reads_way_alone)
implements(ignores_above, Aggregate)(needs_all_above)
implements(second_moment, Aggregate)(second_moment_of_mean)


@implements(pass_node, Aggregate)
def pass_node_aggregate(rule, loss, tree, at, path):
    share = stop_probability(tree, at.v)
    if share == 0.0:  # as most nodes near the root of a large tree: it would add 0
        return at.rest
    add_forecast(loss, tree, at.v, at.depth, at.rest * share, path)
    return at.rest * (1.0 - share)


# A parent u inserted above v starts with w_u = w_v and an empty leaf beside v, so W_u =
# (w_v + W_v) / 2 = (s_v + 1/2) W_v, or W_v itself above a leaf; its odds w_u / W_v are
# 2 s_v, or 1 above a leaf. So the factor is (1 + odds) / 2 in both cases. The odds of the
# nodes above, w / (W_left W_right), are divided by it: the row's own factor carries it up.
# On the cube a leaf of one point may be split many times before a row parts from it (M21, Algorithm
# 3). Each of these cells has the leaf's weight, and an empty leaf beside its child: odds of 1.


@implements(add_branch, Aggregate)
def add_branch_aggregate(rule, growth, loss, tree, at, branch, scale, path, out):
    odds = 1.0 if at.is_leaf else 2.0 * stop_probability(tree, at.v)
    share = odds / (1.0 + odds)
    below = at.rest * (0.5 + 0.5 * odds)
    scale /= 1.0 - at.rest + below
    for c in range(out.shape[0]):
        out[c] += scale * path[c]
    rest, depth = scale * below, at.depth
    for _ in range(branch.n_splits):
        add_forecast(loss, tree, at.v, depth, rest * share, out)
        rest *= 1.0 - share
        share, depth = 0.5, depth + 1.0
    add_empty_forecast(loss, tree, at.v, depth, rest, out)


@implements(add_leaf, Aggregate)
def add_leaf_aggregate(rule, loss, tree, at, scale, path, out):
    add_cell_forecast(loss, tree, at, at.rest, path)
    for c in range(out.shape[0]):
        out[c] += scale * path[c]


@implements(inserted_factor, Aggregate)
def inserted_factor_aggregate(rule, tree, new):
    stop = stop_probability(tree, new)
    return 0.5 / (1.0 - stop)  # odds <= 2, so stop <= 2/3


@implements(shift_weight, Aggregate)
def shift_weight_aggregate(rule, tree, v, n, d, kp, q, kq):
    return mix_and_shift(tree, v, n, d, kp, q, kq)


@implements(shift_near, Aggregate)
def shift_near_aggregate(rule, tree, v, n, d, q):
    return mix_near(tree, v, n, d, q)


@implements(inherit_weight, Aggregate)
def inherit_weight_aggregate(rule, tree, new, v, v_is_leaf):
    inherit_odds(tree, new, v, v_is_leaf)


# Weights are rebuilt from each leaf in turn upwards, as long as the other child is known. What that
# needs of all nodes is written close together first, in the order of their numbers: the ways up
# would wait for the memory at each node. No weight is above one, nor that of a subtree below half
# of its root's own, so exponents stay within 2^30.


@inline
def write_node_weights(loss, tree, weights, exponents, parents):
    """Write w_v = ``weights`` [m + 8] 2^(256 ``exponents``) and ``parents`` of all nodes. O(m)."""
    n = tree.head_i[N_NODES]
    for first in range(0, n, _AT_ONCE):
        end, are_near = min(first + _AT_ONCE, n), True
        for v in range(first, end):
            u = np.uint64(v)
            weights[u], exponents[u] = log_weight(loss, tree, u), 0
            parents[u] = tree.i[u, PARENT]
            are_near = are_near and is_near(weights[u])
        if are_near:
            write_exponentials(weights[first:], np.uint64(end - first))
            continue
        for v in range(first, end):
            weights[v], k = from_log(weights[v])
            exponents[v] = np.int32(k)


@allocating
def rebuild_odds(loss, tree):
    """Set the odds of all nodes anew from their prices. O(m)."""
    n = tree.head_i[N_NODES]
    weights, exponents, parents = np.empty(n + 8), np.empty(n, np.int32), np.empty(n, np.int32)
    write_node_weights(loss, tree, weights, exponents, parents)
    sibling, k_sibling = np.full(n, -1.0), np.empty(n, np.int32)  # W of the child that was first
    for leaf in range(n):
        if tree.i[np.uint64(leaf), LEFT] >= 0:
            continue
        u = np.uint64(leaf)
        m, k, v = weights[u], np.int64(exponents[u]), np.int64(parents[u])
        while v >= 0:
            u = np.uint64(v)
            if sibling[u] < 0.0:
                sibling[u], k_sibling[u] = m, np.int32(k)
                break
            w, k_w = weights[u], np.int64(exponents[u])
            below, k_below = normalise(m * sibling[u], k + k_sibling[u])
            set_odds(tree, u, w / below, k_w - k_below)
            m, k = add(0.5 * w, k_w, 0.5 * below, k_below)
            v = np.int64(parents[u])


@implements(rebuild_weights, Aggregate)
def rebuild_weights_aggregate(rule, loss, tree):
    rebuild_odds(loss, tree)
