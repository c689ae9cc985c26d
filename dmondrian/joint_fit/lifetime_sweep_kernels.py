"""All lifetimes in one sweep: the cuts of all trees in the order of time, and a fit after each.

At a cut one column leaves and two enter. Ridge weights follow by updates of one factor
(:mod:`dmondrian.joint_fit.cholesky_kernels`), O(c^2) per cut; where trees are fitted each for
itself a cut changes the values of its two cells alone. Rows of weight 0 are forecast, and not
learned.

Rows can also be those that were learned long ago, of which the finest cells' sums are left: then
each of p finest cells stands for its rows, in the tree that it is of, and the weights of rows that
are in two of them are given for each pair.

Shapes: m nodes of all trees together, T trees, n rows, k outputs, q cuts, c columns, p pairs, a
rows that are asked about.

References: Balog et al. (2016), sections 4.1 and 4.2.1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import inline, kernel
from dmondrian.joint_fit.cholesky_kernels import (
    append_column,
    remove_column,
    solve_into,
    take_entry,
)
from dmondrian.tree.box_encoding import row_of
from dmondrian.tree.keyed_random import exp, log
from dmondrian.tree.nodes import LEFT, ROOT, first_in_postorder, leaf_of, next_in_postorder


class Cuts(NamedTuple):
    """Trees as a sweep sees them: nodes have numbers of their own over all trees."""

    left: np.ndarray  # int64 [m]
    right: np.ndarray  # int64 [m]
    first: np.ndarray  # int64 [m], first row of a node in ``rows`` of its tree
    last: np.ndarray  # int64 [m], behind its last row
    tree: np.ndarray  # int64 [m]
    rows: np.ndarray  # int64 [T, n], rows, those of a node together
    roots: np.ndarray  # int64 [T]
    nodes: np.ndarray  # int64 [q], nodes that are cut, in the order of time
    pairs: np.ndarray  # float64 [p, p], weights of rows in two finest cells; [0, 0] where rows are
    owner: np.ndarray  # int64 [p], tree of a finest cell, which is "row" 0 .. p - 1


class Fit(NamedTuple):
    """Sums, factor and values of the columns there are; written by the sweep."""

    factor: np.ndarray  # float64 [C, C] for up to C columns
    node_at: np.ndarray  # int64 [C], node of a column
    place: np.ndarray  # int64 [m], column of a node, -1 where it has none
    cell: np.ndarray  # int64 [T, n], node that holds a row
    sums: np.ndarray  # float64 [1 + k, m], weight of a node's rows, sums of their targets
    values: np.ndarray  # float64 [k, m]
    work: np.ndarray  # float64 [3, C]
    solved: np.ndarray  # float64 [C, a], U^{-T} times ones in the columns of rows asked about


class Labels(NamedTuple):
    """Labels that are fitted, and those whose errors are measured."""

    targets: np.ndarray  # float64 [n, k], less their mean
    weights: np.ndarray  # float64 [n]
    held: np.ndarray  # int64 [a], rows whose error is measured
    total: float  # weight of all rows
    squares: float  # of all targets, weighted
    scale: float  # s of the prior of the weights; 0 where it is integrated out


class Average(NamedTuple):
    """The average over lifetimes under their posterior; arrays [0] where it is not asked for.

    Sums are in units of the largest worth so far, which they are made smaller by when it grows.
    """

    prior: np.ndarray  # float64 [q + 1], of the lifetimes from one cut to the next
    shares: np.ndarray  # float64 [q + 1], log worth, likelihood times prior; -inf where it is 0
    values: np.ndarray  # float64 [k, m], worth times value, summed


class Spread(NamedTuple):
    """The variance of forecasts about their average over lifetimes; arrays [0] where not asked for.

    Of the first output. Rows asked about are the last ones.
    """

    shares: np.ndarray  # float64 [q + 1], of the lifetimes from one cut to the next
    means: np.ndarray  # float64 [a], averages over lifetimes, of targets less their mean
    variances: np.ndarray  # float64 [a], of the function, written
    noise: np.ndarray  # float64 [1], the variance of a target about the function, written


@kernel
def write_prior(ends, is_logarithmic, prior):
    """Write to ``prior`` [q] what lies between increasing ``ends`` [q + 1], or their logarithms."""
    for i in range(prior.shape[0]):
        low, high = ends[i], ends[i + 1]
        prior[i] = max(log(high) - log(low) if is_logarithmic else high - low, 0.0)


@kernel
def write_leaves(tree, rows, leaves):
    """Write the leaf that the cuts lead to, for each row, to ``leaves`` int64 [n]. O(n depth)."""
    for r in range(leaves.shape[0]):
        leaves[r] = leaf_of(tree, tree.head_i[ROOT], row_of(rows, r))


@kernel
def sort_rows(tree, leaves, first, last, order):
    """Write where each node's rows begin and end in ``order`` int64 [n], those of a node together.

    ``first`` and ``last`` int64 [m]. ``leaves`` int64 [n]: a row's leaf, -1 for those that are not
    in the tree. O(n + m).
    """
    n, at = order.shape[0], 0
    last[:] = 0
    for r in range(n):
        if leaves[r] >= 0:
            last[leaves[r]] += 1
    v = np.int64(first_in_postorder(tree))
    while v >= 0:
        if tree.i[v, LEFT] < 0:
            first[v] = at
            at += last[v]
            last[v] = first[v]  # so far
        else:
            first[v] = first[tree.i[v, LEFT]]
            last[v] = at
        v = np.int64(next_in_postorder(tree, v))
    for r in range(n):
        if leaves[r] >= 0:
            order[last[leaves[r]]] = r
            last[leaves[r]] += 1


@inline
def add_pairs_of_rows(cuts, fit, c, v, weights, a):
    """Add to ``a`` [c] the weights of the rows that node ``v`` shares with columns. O(T n_v)."""
    t = cuts.tree[v]
    for at in range(cuts.first[v], cuts.last[v]):
        r = cuts.rows[t, at]
        if weights[r] > 0.0:
            for s in range(cuts.roots.shape[0]):
                column = fit.place[fit.cell[s, r]]
                if s != t and 0 <= column < c:
                    a[column] += weights[r]


@inline
def add_pairs_of_cells(cuts, fit, c, v, a):
    """Add to ``a`` [c] what :func:`add_pairs_of_rows` does, from the finest cells. O(p_v p)."""
    t, p = cuts.tree[v], cuts.pairs.shape[0]
    for at in range(cuts.first[v], cuts.last[v]):
        i = cuts.rows[t, at]
        if i < p:
            for j in range(p):
                s = cuts.owner[j]
                if s != t:
                    column = fit.place[fit.cell[s, j]]
                    if 0 <= column < c:
                        a[column] += cuts.pairs[i, j]


@inline
def open_column(cuts, fit, c, v, weights, ridge):
    """Give node ``v`` the column after the ``c`` there are. O(c^2 + T n_v)."""
    n_trees = cuts.roots.shape[0]
    a = fit.work[0]
    a[:c] = 0.0
    if cuts.pairs.shape[0] > 0:
        add_pairs_of_cells(cuts, fit, c, v, a)
    else:
        add_pairs_of_rows(cuts, fit, c, v, weights, a)
    for s in range(c):
        a[s] /= n_trees
    n_asked = fit.solved.shape[1]
    if n_asked > 0:
        t, before = cuts.tree[v], fit.cell.shape[1] - n_asked
        fit.solved[c] = 0.0
        for at in range(cuts.first[v], cuts.last[v]):
            r = cuts.rows[t, at]
            if r >= before:
                fit.solved[c, r - before] = 1.0
    append_column(fit.factor, fit.solved, c, a, fit.sums[0, v] / n_trees + ridge)
    fit.node_at[c] = v
    fit.place[v] = c


@inline
def close_column(fit, c, v):
    """Take the column of node ``v`` from the ``c`` there are. O(c^2)."""
    at = fit.place[v]
    spare = fit.solved[fit.solved.shape[0] - 1]
    remove_column(fit.factor, fit.solved, c, at, fit.work[0], spare)
    fit.place[v] = -1
    for s in range(at, c - 1):
        fit.node_at[s] = fit.node_at[s + 1]
        fit.place[fit.node_at[s]] = s


@inline
def weight_of(cuts, v, weights):
    """Return the weight of the rows of node ``v``. O(n_v)."""
    t, weight = cuts.tree[v], 0.0
    for at in range(cuts.first[v], cuts.last[v]):
        weight += weights[cuts.rows[t, at]]
    return weight


@inline
def move(cuts, cells, v, name, weights):
    """Write that the rows of node ``v`` are in it, by a ``name``; return their weight. O(n_v)."""
    t, weight = cuts.tree[v], 0.0
    for at in range(cuts.first[v], cuts.last[v]):
        r = cuts.rows[t, at]
        cells[t, r] = name
        weight += weights[r]
    return weight


@inline
def enter(cuts, fit, v, labels):
    """Let node ``v`` hold its rows. O(n_v k)."""
    fit.sums[0, v] = move(cuts, fit.cell, v, v, labels.weights)
    t = cuts.tree[v]
    for at in range(cuts.first[v], cuts.last[v]):
        r = cuts.rows[t, at]
        for j in range(labels.targets.shape[1]):
            fit.sums[1 + j, v] += labels.weights[r] * labels.targets[r, j]


@inline
def solve_values(fit, c, is_joint):
    """Write the values of all columns; return what they explain, and ln det of the matrix."""
    explained, log_det = 0.0, 0.0
    if not is_joint:
        return explained, log_det  # each was written when its cell came into being
    b, z = fit.work[1], fit.work[2]
    for j in range(fit.values.shape[0]):
        for s in range(c):
            b[s] = fit.sums[1 + j, fit.node_at[s]]
        explained += solve_into(fit.factor, c, b, z)
        for s in range(c):
            fit.values[j, fit.node_at[s]] = z[s]
    for s in range(c):
        log_det += 2.0 * log(fit.factor[s, s])
    return explained, log_det


@inline
def left_of(labels, n_trees, explained):
    """Return the squares that a fit leaves, its price of the weights included, > 0."""
    return max(labels.squares - explained / n_trees, 2.2250738585072014e-308)


@inline
def log_likelihood(labels, ridge, n_trees, explained, log_det, c):
    """Return the log marginal likelihood of a fit up to a constant (lifetime_search.py)."""
    left = left_of(labels, n_trees, explained)
    k = labels.targets.shape[1]
    log_det = k * (log_det + (labels.total - c) * log(ridge))
    if labels.scale > 0.0:
        return -0.5 * log_det - 0.5 * left / (ridge * labels.scale * labels.scale)
    return -0.5 * log_det - 0.5 * k * labels.total * (log(left) - log(ridge))


@inline
def held_out_error(fit, labels):
    """Return the summed squared error of the rows that are held out. O(a T k)."""
    n_trees, total = fit.cell.shape[0], 0.0
    for i in range(labels.held.shape[0]):
        r = labels.held[i]
        for j in range(labels.targets.shape[1]):
            forecast = 0.0
            for t in range(n_trees):
                forecast += fit.values[j, fit.cell[t, r]]
            error = labels.targets[r, j] - forecast / n_trees
            total += error * error
    return total


@inline
def add_to(average, fit, c, stage, top, likelihood):
    """Add the values of ``c`` columns after a cut to an average; return the largest worth."""
    if average.prior[stage] <= 0.0:
        average.shares[stage] = -np.inf
        return top
    worth = likelihood + log(average.prior[stage])
    average.shares[stage] = worth
    if worth > top:
        scale = exp(top - worth)
        for j in range(average.values.shape[0]):
            for v in range(average.values.shape[1]):
                average.values[j, v] *= scale
        top = worth
    share = exp(worth - top)
    for s in range(c):
        v = fit.node_at[s]
        for j in range(fit.values.shape[0]):
            average.values[j, v] += share * fit.values[j, v]
    return top


@inline
def square_of_scale(labels, ridge, n_trees, explained):
    """Return s^2, or its posterior mean under p(s^2) = 1 / s^2: inf for up to two labels."""
    if labels.scale > 0.0:
        return labels.scale * labels.scale
    n = labels.total * labels.targets.shape[1]
    return left_of(labels, n_trees, explained) / ridge / (n - 2.0) if n > 2.0 else np.inf


@inline
def add_spread(fit, c, share, square, ridge, spread):
    """Add a fit's variances of the function, and squared distances from the average. O(a (c + T)).

    A row's forecast is a mean over trees: its cells that have a column vary by the inverse of the
    matrix, each other one by the prior.
    """
    n_trees, n_asked = fit.cell.shape[0], fit.solved.shape[1]
    before = fit.cell.shape[1] - n_asked
    for r in range(n_asked):
        forecast, absent, within = 0.0, 0.0, 0.0
        for t in range(n_trees):
            v = fit.cell[t, before + r]
            forecast += fit.values[0, v]
            absent += fit.place[v] < 0
        for s in range(c):
            within += fit.solved[s, r] * fit.solved[s, r]
        apart = forecast / n_trees - spread.means[r]
        variance = square * (ridge * within + absent) / n_trees
        spread.variances[r] += share * (apart * apart + variance)
    spread.noise[0] += share * square * ridge


@inline
def finish(average, n_stages, top):
    """Make worths shares, which add up to one, and sums averages."""
    total = 0.0
    for stage in range(average.shares.shape[0]):
        worth = average.shares[stage] if stage < n_stages else -np.inf
        average.shares[stage] = exp(worth - top)
        total += average.shares[stage]
    for stage in range(average.shares.shape[0]):
        average.shares[stage] /= total
    for j in range(average.values.shape[0]):
        for v in range(average.values.shape[1]):
            average.values[j, v] /= total


@inline
def note(fit, c, stage, is_new, labels, ridge, is_joint, measures):
    """Write what the fit after a cut is worth: a row of ``measures``."""
    measures[stage, 2] = c
    if is_new:
        explained, log_det = solve_values(fit, c, is_joint)
        measures[stage, 0], measures[stage, 1] = explained, log_det
        if is_joint:
            n_trees = fit.cell.shape[0]
            measures[stage, 4] = log_likelihood(labels, ridge, n_trees, explained, log_det, c)
    else:
        measures[stage, 0], measures[stage, 1] = measures[stage - 1, 0], measures[stage - 1, 1]
        measures[stage, 4] = measures[stage - 1, 4]
    measures[stage, 3] = held_out_error(fit, labels)


@inline
def fit_alone(fit, v, ridge):
    """Write the values of a cell that is fitted alone: its mean, shrunk by the ridge."""
    for j in range(fit.values.shape[0]):
        fit.values[j, v] = fit.sums[1 + j, v] / (fit.sums[0, v] + ridge)


@inline
def leave_column(cuts, fit, c, at, empty):
    """Let the rows asked about in a cell that has no others be in no column. O(n_v + c (c + a))."""
    n_asked = fit.solved.shape[1]
    t, before, some = cuts.tree[empty], fit.cell.shape[1] - n_asked, False
    if n_asked == 0:
        return
    which = fit.solved[fit.solved.shape[0] - 1]  # beyond all columns: scratch
    which[:] = 0.0
    for i in range(cuts.first[empty], cuts.last[empty]):
        r = cuts.rows[t, i]
        if r >= before:
            which[r - before], some = 1.0, True
    if some:
        take_entry(fit.factor, fit.solved, c, at, fit.work[1], which)


@inline
def divide(cuts, fit, c, v, labels, ridge, is_joint):
    """Let the children of ``v`` take its place; return whether rows are parted that are learned."""
    left, right = cuts.left[v], cuts.right[v]
    enter(cuts, fit, left, labels)
    enter(cuts, fit, right, labels)
    at_left, at_right = fit.sums[0, left] > 0.0, fit.sums[0, right] > 0.0
    if not is_joint:
        if at_left:
            fit_alone(fit, left, ridge)
        if at_right:
            fit_alone(fit, right, ridge)
    elif at_left and at_right:
        close_column(fit, c, v)
        open_column(cuts, fit, c - 1, left, labels.weights, ridge)
        open_column(cuts, fit, c, right, labels.weights, ridge)
    elif at_left or at_right:  # the cell is smaller, its rows are the same
        heir = left if at_left else right
        fit.place[heir] = fit.place[v]
        fit.node_at[fit.place[v]] = heir
        fit.place[v] = -1
        for j in range(fit.values.shape[0]):
            fit.values[j, heir] = fit.values[j, v]
        leave_column(cuts, fit, c, fit.place[heir], right if at_left else left)
    return at_left and at_right


@kernel
def sweep(cuts, fit, labels, ridge, is_joint, measures, average, spread):
    """Go through the cuts; return after how many there is no capacity for one more column.

    Writes ``measures`` float64 [q + 1, 5], before the first cut and after each: b' A^{-1} b, ln det
    A (both 0 where trees are fitted each for itself), columns, the squared error of the rows held
    out, and the log marginal likelihood up to a constant (0 in this case too). What rows asked
    about vary by is added up in ``spread``.
    """
    is_averaged = average.prior.shape[0] > 0
    n_trees, is_asked = cuts.roots.shape[0], spread.shares.shape[0] > 0
    c, capacity, done, top = 0, fit.node_at.shape[0], 0, -np.inf
    for t in range(cuts.roots.shape[0]):
        enter(cuts, fit, cuts.roots[t], labels)
    for t in range(cuts.roots.shape[0]):
        if is_joint:
            open_column(cuts, fit, c, cuts.roots[t], labels.weights, ridge)
        else:
            fit_alone(fit, cuts.roots[t], ridge)
        c += 1
    note(fit, c, 0, True, labels, ridge, is_joint, measures)
    if is_averaged:
        top = add_to(average, fit, c, 0, top, measures[0, 4])
    if is_asked and spread.shares[0] > 0.0:
        square = square_of_scale(labels, ridge, n_trees, measures[0, 0])
        add_spread(fit, c, spread.shares[0], square, ridge, spread)
    while done < cuts.nodes.shape[0]:
        v = cuts.nodes[done]
        if is_joint and c + 2 > capacity:
            left, right = cuts.left[v], cuts.right[v]
            if min(weight_of(cuts, left, labels.weights), weight_of(cuts, right, labels.weights)):
                break
        is_new = divide(cuts, fit, c, v, labels, ridge, is_joint)
        c += is_new
        done += 1
        note(fit, c, done, is_new, labels, ridge, is_joint, measures)
        if is_averaged:
            top = add_to(average, fit, c, done, top, measures[done, 4])
        if is_asked and spread.shares[done] > 0.0:
            square = square_of_scale(labels, ridge, n_trees, measures[done, 0])
            add_spread(fit, c, spread.shares[done], square, ridge, spread)
    if is_averaged:
        finish(average, done + 1, top)
    return done
