"""The aggregate rule: the exact mixture over all prunings, and the leaf alone.

``Aggregate`` is context-tree weighting (M21, section 2.2): prior 2^-(nodes of the
pruning that are not leaves of the tree), posterior by exponential weights. ``Leaf``
listens to the leaf only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._jit import implements, inner
from dmondrian.core.nodes import LEFT, N_NODES, PARENT, RIGHT, ROOT
from dmondrian.core.policies import (
    inherit_weight,
    inserted_factor,
    insertion,
    log_weight,
    rebuild_weights,
    shift_weight,
    stop_weight,
)
from dmondrian.core.weights import (
    add,
    from_log,
    inherit_odds,
    mix_and_shift,
    normalise,
    set_odds,
    stop_probability,
)


class Aggregate(NamedTuple):
    """Mixture over all prunings."""

    is_exact: bool  # always True: no pruning is left out


class Leaf(NamedTuple):
    """The leaf alone."""

    is_exact: bool  # always False


@implements(stop_weight, Aggregate)
def stop_weight_aggregate(rule, tree, v):
    return stop_probability(tree, v)


# A parent u inserted above v starts with w_u = w_v and an empty leaf beside v, so W_u =
# (w_v + W_v) / 2 = (s_v + 1/2) W_v, or W_v itself above a leaf; its odds w_u / W_v are
# 2 s_v, or 1 above a leaf. So the factor is (1 + odds) / 2 in both cases. The odds of the
# nodes above, w / (W_left W_right), are divided by it: the row's own factor carries it up.


@implements(insertion, Aggregate)
def insertion_aggregate(rule, tree, v, v_is_leaf):
    odds = 1.0 if v_is_leaf else 2.0 * stop_probability(tree, v)
    return odds / (1.0 + odds), 0.5 + 0.5 * odds


@implements(inserted_factor, Aggregate)
def inserted_factor_aggregate(rule, tree, new):
    stop = stop_probability(tree, new)
    return 0.5 / (1.0 - stop)  # odds <= 2, so stop <= 2/3


@implements(shift_weight, Aggregate)
def shift_weight_aggregate(rule, tree, v, p, kp, q, kq):
    return mix_and_shift(tree, v, p, kp, q, kq)


@implements(inherit_weight, Aggregate)
def inherit_weight_aggregate(rule, tree, new, v, v_is_leaf):
    inherit_odds(tree, new, v, v_is_leaf)


@inner
def next_in_postorder(tree, v):
    """Return the node visited after ``v`` when children come before parents, or -1."""
    parent = tree.i[v, PARENT]
    if parent < 0 or tree.i[parent, RIGHT] == v:
        return parent
    v = tree.i[parent, RIGHT]
    while tree.i[v, LEFT] >= 0:
        v = tree.i[v, LEFT]
    return v


@implements(rebuild_weights, Aggregate)
def rebuild_weights_aggregate(rule, loss, tree):
    m = np.empty(tree.head_i[N_NODES])
    k = np.empty(tree.head_i[N_NODES], np.int64)
    v = tree.head_i[ROOT]
    while tree.i[v, LEFT] >= 0:
        v = tree.i[v, LEFT]
    while v >= 0:
        own, k_own = from_log(log_weight(loss, tree, v))
        left, right = tree.i[v, LEFT], tree.i[v, RIGHT]
        if left >= 0:
            below, k_below = normalise(m[left] * m[right], k[left] + k[right])
            set_odds(tree, v, own / below, k_own - k_below)
            own, k_own = add(0.5 * own, k_own, 0.5 * below, k_below)
        m[v], k[v] = own, k_own
        v = next_in_postorder(tree, v)


@implements(stop_weight, Leaf)
def stop_weight_leaf(rule, tree, v):
    return 0.0


@implements(insertion, Leaf)
def insertion_leaf(rule, tree, v, v_is_leaf):
    return 0.0, 1.0


@implements(inserted_factor, Leaf)
def inserted_factor_leaf(rule, tree, new):
    return 1.0


@implements(shift_weight, Leaf)
def shift_weight_leaf(rule, tree, v, p, kp, q, kq):
    return q, kq


@implements(inherit_weight, Leaf)
def inherit_weight_leaf(rule, tree, new, v, v_is_leaf):
    pass


@implements(rebuild_weights, Leaf)
def rebuild_weights_leaf(rule, loss, tree):
    pass
