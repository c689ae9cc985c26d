"""The Gaussian of a cell: mean and variance of its labels, listed as a part of a mixture.

Relies on moments as statistics, and on the loss for the mean: that of the list is the forecast.
Promises that a cell no row has reached has the spread of the smallest cell above it with rows.
Only :func:`dmondrian.tree.loops.collect` may be asked: the rule has no sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.rules.gaussian_components import add_gaussian
from dmondrian.rules.leaf import (
    add_cell_forecast,
    begin_empty,
    needs_none_above,
    pass_node_unheard,
    reads_way_alone,
)
from dmondrian.stats.moments import SQUARES, SUM
from dmondrian.tree.nodes import PARENT, STAT
from dmondrian.tree.policies import (
    add_branch,
    add_empty_forecast,
    add_leaf,
    begin,
    ignores_above,
    pass_node,
    reads_siblings,
)


class Cells(NamedTuple):
    """Gaussian distributions of cells."""

    is_listed: bool  # always True


@inline
def cell_variance(tree, v):
    """Return the variance of the labels at ``v``, which has rows."""
    n = tree.d[v, STAT]
    mean = tree.d[v, SUM] / n
    return max(tree.d[v, SQUARES] / n - mean * mean, 0.0)


implements(begin, Cells)(begin_empty)
implements(reads_siblings, Cells)(reads_way_alone)
implements(ignores_above, Cells)(needs_none_above)
implements(pass_node, Cells)(pass_node_unheard)


@implements(add_branch, Cells)
def add_branch_cells(rule, growth, loss, tree, at, branch, scale, path, out):
    path[0] = 0.0
    add_empty_forecast(loss, tree, at.v, at.depth + 1.0, 1.0, path)
    add_gaussian(rule.is_listed, path[0], 0.0, cell_variance(tree, at.v), scale, out)


@implements(add_leaf, Cells)
def add_leaf_cells(rule, loss, tree, at, scale, path, out):
    path[0] = 0.0
    add_cell_forecast(loss, tree, at, 1.0, path)
    known = at.v if tree.d[at.v, STAT] > 0.0 else np.uint64(tree.i[at.v, PARENT])
    add_gaussian(rule.is_listed, path[0], 0.0, cell_variance(tree, known), scale, out)
