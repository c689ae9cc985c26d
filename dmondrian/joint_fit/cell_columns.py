"""Columns: cells that hold rows, numbered in the order in which rows open them, for good.

Relies on trees that are realised to the kernel's lifetime. What a leaf knows moves with its rows
when its cell is split further, so its number does too (:data:`dmondrian.stats.cell_values.MARK`,
one more than the number). Promises numbers that depend on the rows in order and the tree numbers
alone.

Shapes: n rows, T trees.
"""

from __future__ import annotations

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.systems import Policies
from dmondrian.joint_fit.point_draws_kernels import write_point_draws
from dmondrian.losses.cell import Cell
from dmondrian.losses.occupied import Occupied
from dmondrian.rules.leaf import Leaf
from dmondrian.stats.cell_values import MARK
from dmondrian.stats.moments import MOMENTS, Moments
from dmondrian.tree import nodes


def leaves_of(
    ensemble: Ensemble, X: np.ndarray | PreparedRows, lifetime: float | None = None
) -> np.ndarray:
    """Return the node of each row's cell, int64 [n, T]; -1 where no row has been.

    At a shorter lifetime than the forest's, if one is given. On the range of the data, which ends
    where rows end, a row outside is of the cell next to it.
    """
    growth = ensemble.policies.at_leaves.growth
    # Nobody is asked about statistics: the types of other forests have kernels already.
    chosen = Policies(growth, Moments(MOMENTS), Cell(True), Leaf(False))
    at = np.array([lifetime or ensemble.parameters.realised_lifetime])
    leaves: np.ndarray = ensemble.answers(X, chosen, at, 1)[:, :, 0, 0].T.astype(np.int64)
    return leaves


def presence_of(ensemble: Ensemble, X: np.ndarray) -> np.ndarray:
    """Return how probably rows stay in the cells next to them, float64 [n, T].

    On the range of the data that is less than one outside the boxes of rows that were learned,
    where the process may part them; on the cube it is one.
    """
    if not ensemble.parameters.splits_range:
        return np.ones((len(X), len(ensemble.store)))
    growth = ensemble.policies.growth._replace(expected=True)
    chosen = Policies(growth, Moments(MOMENTS), Occupied(1.0), Leaf(False))
    at = np.array([ensemble.parameters.realised_lifetime])
    probabilities: np.ndarray = ensemble.answers(X, chosen, at, 1)[:, :, 0, 0].T
    return np.ascontiguousarray(probabilities)


def are_parted(ensemble: Ensemble, X: np.ndarray) -> np.ndarray:
    """Return whether rows are parted from all rows of their cells, bool [n, T].

    That is drawn as if the partitions were extended to a row, and nothing is learned; the draws
    are keyed by the row, so that it has the same answer each time. On the range of the data.
    """
    stays = presence_of(ensemble, X)
    draws = np.empty(stays.shape)
    numbers = ensemble.tree_numbers.astype(np.uint64)
    write_point_draws(
        np.uint64(ensemble.parameters.seed), numbers, ensemble.prepare(X).values, draws
    )
    return np.asarray(draws > stays)


def columns_of(ensemble: Ensemble, X: np.ndarray, extended: bool = False) -> np.ndarray:
    """Return the column of each row's cell, int64 [n, T]; -1 where there is none.

    Parameters
    ----------
    ensemble : Ensemble
    X : float32 [n, d]
    extended : bool, default=False
        Whether a row outside the boxes of its cells may be in a cell of its own: -1.
    """
    leaves = leaves_of(ensemble, X)
    if extended and ensemble.parameters.splits_range:
        leaves = np.where(are_parted(ensemble, X), -1, leaves)
    columns = np.empty_like(leaves)
    for t, tree in enumerate(ensemble.store.trees):
        known = tree.d[leaves[:, t], MARK].astype(np.int64) - 1
        columns[:, t] = np.where(leaves[:, t] >= 0, known, -1)
    return columns


def grow_columns(
    ensemble: Ensemble,
    X: np.ndarray | PreparedRows,
    w: np.ndarray | None,
    n_threads: int,
    n_columns: int,
) -> np.ndarray:
    """Split the trees for rows; return the columns of their cells, int64 [n, T].

    Cells without a number get those from ``n_columns`` on. Rows of weight 0 open no cell: their
    columns may be -1.
    """
    X = ensemble.prepare(X)
    Ensemble.update(ensemble, X, np.zeros(len(X)), w, n_threads)
    if ensemble.total_weight == 0.0:
        return np.full((len(X), len(ensemble.store)), -1)
    trees = ensemble.store.trees
    learned = np.arange(len(X)) if w is None else np.flatnonzero(w > 0.0)
    columns = np.full((len(X), len(ensemble.store)), -1)
    leaves = leaves_of(ensemble, X)[learned]
    marks = np.stack(
        [tree.d[leaves[:, t], MARK] for t, tree in enumerate(ensemble.store.trees)], axis=1
    )
    new = np.flatnonzero(marks.ravel() == 0.0)
    which = new % len(ensemble.store), leaves.ravel()[new]
    size = 1 + max(int(tree.head_i[nodes.N_NODES]) for tree in ensemble.store.trees)
    _, first = np.unique(which[0] * size + which[1], return_index=True)
    for number, at in enumerate(np.sort(first), start=n_columns + 1):
        trees[which[0][at]].d[which[1][at], MARK] = number
    for tree in ensemble.store.trees:  # what moved to a child is forgotten above
        inside = np.flatnonzero(tree.i[: tree.head_i[nodes.N_NODES], nodes.LEFT] >= 0)
        tree.d[inside, nodes.STAT + 1 : nodes.STAT + tree.n_stats] = 0.0
    marks = np.stack(
        [tree.d[leaves[:, t], MARK] for t, tree in enumerate(ensemble.store.trees)], axis=1
    )
    columns[learned] = marks.astype(np.int64) - 1
    return columns
