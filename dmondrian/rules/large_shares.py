"""The mixture over all prunings without nodes of tiny shares, for a loss that divides by the rest.

It is what a tree that is born and dies with the stream forecasts: of its deep ways most nodes above
the leaf carry next to nothing.

Relies on the odds that :mod:`dmondrian.rules.aggregate` keeps. Promises the same numbers, to the
last bit, on the way of a row and where leaves are written out (``predictor_kernels.freeze``), which
is all that it can be asked for.

Shapes: k outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.rules.leaf import begin_empty
from dmondrian.tree.policies import add_forecast, add_leaf, begin, complete_forecast, pass_node
from dmondrian.tree.scaled_float import stop_probability

_LEAST_SHARE = 2.0**-20  # of a node above the leaf in a forecast


class LargeShares(NamedTuple):
    """The nodes of a way whose shares are at least 2^-20, and its leaf.

    Answers have the sum of the shares behind the outputs.
    """

    n_outputs: int


@inline
def add_share(loss, tree, v, depth, share, is_leaf, out):
    """Add the forecast of node ``v`` times its share; return the share, or 0 if it is left out."""
    if not is_leaf and share < _LEAST_SHARE:
        return 0.0
    add_forecast(loss, tree, v, depth, share, out)
    return share


implements(begin, LargeShares)(begin_empty)


@implements(pass_node, LargeShares)
def pass_node_of_large_shares(rule, loss, tree, at, path):
    stop, total = stop_probability(tree, at.v), np.uint64(rule.n_outputs)
    path[total] += add_share(loss, tree, at.v, at.depth, at.rest * stop, False, path)
    return at.rest * (1.0 - stop)


@implements(add_leaf, LargeShares)
def add_leaf_of_large_shares(rule, loss, tree, at, scale, path, out):
    total = np.uint64(rule.n_outputs)
    path[total] += add_share(loss, tree, at.v, at.depth, at.rest, True, path)
    complete_forecast(loss, tree, path[total], path)
    for c in range(out.shape[0]):
        out[c] += scale * path[c]
