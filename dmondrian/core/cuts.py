"""All lifetimes in one sweep: the cuts of all trees in the order of time, and a fit after each.

At a cut one column leaves and two enter. Ridge weights follow by updates of one factor
(:mod:`dmondrian.core.cholesky`), O(c^2) per cut; where trees are fitted each for itself a cut
changes the values of its two cells alone. Rows of weight 0 are forecast, and not learned.

Shapes: m nodes of all trees together, T trees, n rows, k outputs, q cuts, c columns.

References: Balog et al. (2016), sections 4.1 and 4.2.1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._jit import inner, kernel
from dmondrian._memory import borrow
from dmondrian.core.cholesky import append_column, remove_column, solve_into
from dmondrian.core.nodes import LEFT, borrow_tree, first_in_postorder, next_in_postorder


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


class Fit(NamedTuple):
    """What is known of the columns there are; written by the sweep."""

    factor: np.ndarray  # float64 [C, C] for up to C columns
    node_at: np.ndarray  # int64 [C], node of a column
    place: np.ndarray  # int64 [m], column of a node, -1 where it has none
    cell: np.ndarray  # int64 [T, n], node that holds a row
    sums: np.ndarray  # float64 [1 + k, m], weight of a node's rows, sums of their targets
    values: np.ndarray  # float64 [k, m]
    work: np.ndarray  # float64 [3, C]


@kernel
def write_spans(tree, counts, first, last):
    """Write where each node's rows begin and end, if leaves hold ``counts`` int64 [m]. O(m)."""
    tree, counts = borrow_tree(tree), borrow(counts)
    first, last = borrow(first), borrow(last)
    at = 0
    v = np.int64(first_in_postorder(tree))
    while v >= 0:
        if tree.i[v, LEFT] < 0:
            first[v] = at
            at += counts[v]
        else:
            first[v] = first[tree.i[v, LEFT]]
        last[v] = at
        v = np.int64(next_in_postorder(tree, v))


@inner
def open_column(cuts, fit, c, v, weights, ridge):
    """Give node ``v`` the column after the ``c`` there are. O(c^2 + T n_v)."""
    n_trees = cuts.roots.shape[0]
    a = fit.work[0]
    a[:c] = 0.0
    t = cuts.tree[v]
    for at in range(cuts.first[v], cuts.last[v]):
        r = cuts.rows[t, at]
        if weights[r] > 0.0:
            for s in range(n_trees):
                column = fit.place[fit.cell[s, r]]
                if s != t and 0 <= column < c:
                    a[column] += weights[r]
    for s in range(c):
        a[s] /= n_trees
    append_column(fit.factor, c, a, fit.sums[0, v] / n_trees + ridge)
    fit.node_at[c] = v
    fit.place[v] = c


@inner
def close_column(fit, c, v):
    """Take the column of node ``v`` from the ``c`` there are. O(c^2)."""
    at = fit.place[v]
    remove_column(fit.factor, c, at, fit.work[0])
    fit.place[v] = -1
    for s in range(at, c - 1):
        fit.node_at[s] = fit.node_at[s + 1]
        fit.place[fit.node_at[s]] = s


@inner
def enter(cuts, fit, v, targets, weights):
    """Let node ``v`` hold its rows; return whether any of them is learned. O(n_v k)."""
    t = cuts.tree[v]
    for at in range(cuts.first[v], cuts.last[v]):
        r = cuts.rows[t, at]
        fit.cell[t, r] = v
        fit.sums[0, v] += weights[r]
        for j in range(targets.shape[1]):
            fit.sums[1 + j, v] += weights[r] * targets[r, j]
    return fit.sums[0, v] > 0.0


@inner
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
        log_det += 2.0 * np.log(fit.factor[s, s])
    return explained, log_det


@inner
def held_out_error(fit, targets, held):
    """Return the summed squared error of the rows ``held`` under the values. O(a T k)."""
    n_trees, total = fit.cell.shape[0], 0.0
    for i in range(held.shape[0]):
        r = held[i]
        for j in range(targets.shape[1]):
            said = 0.0
            for t in range(n_trees):
                said += fit.values[j, fit.cell[t, r]]
            error = targets[r, j] - said / n_trees
            total += error * error
    return total


@inner
def note(fit, c, stage, is_new, targets, held, is_joint, told, shares, averages):
    """Write what the fit after a cut is worth: a row of ``told``; add its share of the averages."""
    if is_new:
        told[stage, 0], told[stage, 1] = solve_values(fit, c, is_joint)
    else:
        told[stage, 0], told[stage, 1] = told[stage - 1, 0], told[stage - 1, 1]
    told[stage, 2] = c
    told[stage, 3] = held_out_error(fit, targets, held)
    if shares.shape[0] > 0:
        share = shares[stage]
        for s in range(c):
            v = fit.node_at[s]
            for j in range(fit.values.shape[0]):
                averages[j, v] += share * fit.values[j, v]


@inner
def settle(fit, v, ridge):
    """Write the value of a cell that is fitted for itself."""
    for j in range(fit.values.shape[0]):
        fit.values[j, v] = fit.sums[1 + j, v] / (fit.sums[0, v] + ridge)


@kernel
def sweep(cuts, fit, targets, weights, held, ridge, is_joint, told, shares, averages):
    """Go through the cuts; return after how many there is no room for two more columns.

    Writes ``told`` float64 [q + 1, 4], before the first cut and after each: b' A^{-1} b, ln det A
    (both 0 where trees are fitted each for itself), columns, and the squared error of the rows
    ``held`` int64 [a]. ``shares`` float64 [q + 1] or [0]: values are added to ``averages``
    float64 [k, m] with these weights. ``targets`` float64 [n, k] less their mean, ``weights``
    float64 [n].
    """
    targets, weights, held = borrow(targets), borrow(weights), borrow(held)
    told, shares, averages = borrow(told), borrow(shares), borrow(averages)
    cuts = Cuts(
        borrow(cuts.left), borrow(cuts.right), borrow(cuts.first), borrow(cuts.last),
        borrow(cuts.tree), borrow(cuts.rows), borrow(cuts.roots), borrow(cuts.nodes),
    )  # fmt: skip
    fit = Fit(
        borrow(fit.factor), borrow(fit.node_at), borrow(fit.place), borrow(fit.cell),
        borrow(fit.sums), borrow(fit.values), borrow(fit.work),
    )  # fmt: skip
    c, room = 0, fit.node_at.shape[0]
    for t in range(cuts.roots.shape[0]):
        v = cuts.roots[t]
        enter(cuts, fit, v, targets, weights)
    for t in range(cuts.roots.shape[0]):
        v = cuts.roots[t]
        if is_joint:
            open_column(cuts, fit, c, v, weights, ridge)
        else:
            settle(fit, v, ridge)
        c += 1
    note(fit, c, 0, True, targets, held, is_joint, told, shares, averages)
    for stage in range(cuts.nodes.shape[0]):
        if is_joint and c + 2 > room:
            return stage
        v = cuts.nodes[stage]
        left, right = cuts.left[v], cuts.right[v]
        at_left = enter(cuts, fit, left, targets, weights)
        at_right = enter(cuts, fit, right, targets, weights)
        if not is_joint:
            if at_left:
                settle(fit, left, ridge)
            if at_right:
                settle(fit, right, ridge)
            c += at_left and at_right
        elif at_left and at_right:
            close_column(fit, c, v)
            open_column(cuts, fit, c - 1, left, weights, ridge)
            open_column(cuts, fit, c, right, weights, ridge)
            c += 1
        elif at_left or at_right:  # the cell is smaller, its rows are the same
            heir = left if at_left else right
            fit.place[heir] = fit.place[v]
            fit.node_at[fit.place[v]] = heir
            fit.place[v] = -1
            for j in range(fit.values.shape[0]):
                fit.values[j, heir] = fit.values[j, v]
        is_new = at_left and at_right
        note(fit, c, stage + 1, is_new, targets, held, is_joint, told, shares, averages)
    return cuts.nodes.shape[0]
