"""A value of each cell for each output, moved by the residuals of mini-batches.

[n, mark, weight in the batch, weight, then of each output: value at the batch's start, sum of
residuals since], float64. n counts rows when the tree takes them in, weight those that the value
has learned. The value now is value + sum * rate. Where trees are fitted jointly the residuals of a
leaf are those of all trees' mean, and the rate is 1 / max(weight in the batch + ridge, sqrt(weight
+ ridge)): the first bound keeps a step stable, as the mean over trees of projections has no
eigenvalue above one, and the second lets steps shrink. A root above leaves, and leaves of trees
fitted each for itself, move by their own residuals at the rate 1 / (weight + ridge): running means,
ridge estimates whatever the batches. Nodes between hold nothing of use.

The values at the start of the batch (its number is the mark) are kept while it lasts, so that
forecasts of its rows do not know them: how a batch is cut into calls changes nothing. A root that
is a leaf when a batch begins goes on as a leaf to its end, though it may be split meanwhile; its
mark is a half more. Exact fits and features use the mark for the number of the cell's column, plus
one.

A leaf begins with the value of the root, the running mean of all labels.

References: Balog et al. (2016), sections 4.2.2 and 5.

Shapes: n rows, k outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.intrinsics import unowned
from dmondrian._numba.jit import implements, inline, kernel
from dmondrian.tree.address_table import tree_at
from dmondrian.tree.nodes import LEFT, ROOT, STAT
from dmondrian.tree.policies import count, is_pure, is_pure_with

MARK, BATCH_WEIGHT, WEIGHT = STAT + 1, STAT + 2, STAT + 3
VALUE, RESIDUAL = STAT + 4, STAT + 5  # of the first output; of the others behind, in pairs
FIRST_VALUE = 4  # statistics before the values


class Values(NamedTuple):
    """Values of cells; residuals are added after the rows have gone through the tree."""

    is_joint: bool  # trees are fitted together
    ridge: float
    batch: float  # number of the batch at hand, > 0; -1 for none: values as they are now


@inline
def rate(weight, in_batch, ridge, is_joint):
    """Return the step per unit of summed residuals."""
    if is_joint:
        return 1.0 / max(in_batch + ridge, np.sqrt(weight + ridge))
    return 1.0 / (weight + ridge)


@inline
def is_leaf_in_batch(tree, v):
    """Return whether ``v`` is a leaf, or a root that was one when its last batch began."""
    mark = tree.d[v, MARK]
    return tree.i[v, LEFT] < 0 or mark != np.floor(mark)


@inline
def value_of(policy, tree, v, c):
    """Return the value of ``v``: at the start of the policy's batch if that is under way."""
    start = tree.d[v, VALUE + 2 * c]
    if np.floor(tree.d[v, MARK]) == policy.batch:
        return start
    is_joint = policy.is_joint and is_leaf_in_batch(tree, v)
    step = rate(tree.d[v, WEIGHT], tree.d[v, BATCH_WEIGHT], policy.ridge, is_joint)
    return start + step * tree.d[v, RESIDUAL + 2 * c]


@inline
def value_or_root_value(stat, tree, v, c):
    """Return the value of ``v``, or of the root where ``v`` has learned nothing."""
    known = np.uint64(v) if tree.d[v, WEIGHT] > 0.0 else np.uint64(tree.head_i[ROOT])
    return value_of(stat, tree, known, c)


@inline
def begin_batch(stat, tree, v, n_outputs):
    """Make the values of ``v`` those at the start of the batch at hand. O(k)."""
    if np.floor(tree.d[v, MARK]) == stat.batch:
        return
    for c in range(n_outputs):
        tree.d[v, VALUE + 2 * c] = value_or_root_value(stat, tree, v, c)
        tree.d[v, RESIDUAL + 2 * c] = 0.0
    tree.d[v, BATCH_WEIGHT] = 0.0
    is_only_leaf = tree.i[v, LEFT] < 0 and v == tree.head_i[ROOT]
    tree.d[v, MARK] = stat.batch + (0.5 if is_only_leaf else 0.0)


@inline
def add_residuals(stat, tree, v, target, forecast, w):
    """Add a row's residuals at ``v``: of the forecast of all trees, if they are fitted jointly."""
    is_joint = stat.is_joint and is_leaf_in_batch(tree, v)
    tree.d[v, BATCH_WEIGHT] += w
    tree.d[v, WEIGHT] += w
    for c in range(target.shape[0]):
        prediction = forecast[c] if is_joint else tree.d[v, VALUE + 2 * c]
        tree.d[v, RESIDUAL + 2 * c] += w * (target[c] - prediction)


@kernel
def begin_at_roots(stat, table, columns, n_outputs):
    """Begin the batch at roots that are leaves, before it splits them. O(T k)."""
    scratch = np.empty(0)
    for t in range(table.shape[0]):
        tree = tree_at(table, t, columns, unowned(scratch))
        root = tree.head_i[ROOT]
        if root >= 0 and tree.i[root, LEFT] < 0:
            begin_batch(stat, tree, root, n_outputs)


@kernel
def add_values(stat, table, columns, cells, rows, unit, sums):
    """Add the forecasts of the cells of ``rows``, in whole units, to ``sums`` [n, k]. O(n T k).

    ``cells`` int64 [T, .], -1 for none; ``rows`` int64 [n], places in it.
    """
    scratch = np.empty(0)
    for t in range(table.shape[0]):
        tree = tree_at(table, t, columns, unowned(scratch))
        for i in range(rows.shape[0]):
            v = cells[t, rows[i]]
            if v < 0:
                v = tree.head_i[ROOT]
            for c in range(sums.shape[1]):
                sums[i, c] += np.rint(value_or_root_value(stat, tree, v, c) / unit)


@kernel
def apply_residuals(stat, table, columns, cells, rows, targets, forecasts, weights):
    """Add the residuals of rows to cells and roots, in order.

    ``cells`` and ``rows`` as in :func:`add_values`; ``targets`` and ``forecasts``, what all trees
    forecast on average, float64 [n, k]; ``weights`` float64 [n], rows without one are passed over.
    O(n T k).
    """
    n_outputs, scratch = targets.shape[1], np.empty(0)
    for t in range(table.shape[0]):
        tree = tree_at(table, t, columns, unowned(scratch))
        root = tree.head_i[ROOT]
        for i in range(rows.shape[0]):
            v, w = cells[t, rows[i]], weights[i]
            if w > 0.0:
                begin_batch(stat, tree, v, n_outputs)
                add_residuals(stat, tree, v, targets[i], forecasts[i], w)
                if v != root:
                    begin_batch(stat, tree, root, n_outputs)
                    add_residuals(stat, tree, root, targets[i], forecasts[i], w)


@implements(count, Values)
def count_row(stat, tree, v, y, w):
    tree.d[v, STAT] += w


@implements(is_pure_with, Values)
def is_pure_with_value(stat, tree, v, y):
    return False  # cells do not look at labels


@implements(is_pure, Values)
def is_one_value(stat, tree, v):
    return False
