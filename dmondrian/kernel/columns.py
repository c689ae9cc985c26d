"""Columns: cells that hold rows, numbered in the order in which rows open them, for good.

Relies on trees that are realised to the kernel's lifetime. What a leaf knows moves with its rows
when its cell is split further, so its number does too (:data:`dmondrian.stats.values.MARK`, one
more than the number). Promises numbers that depend on the rows in order and the tree numbers alone.

Shapes: n rows, T trees.
"""

from __future__ import annotations

import numpy as np

from dmondrian.core import nodes
from dmondrian.ensemble import Ensemble
from dmondrian.growth.range import Range
from dmondrian.losses.cell import Cell
from dmondrian.parameters import Policies
from dmondrian.rules.leaf import Leaf
from dmondrian.stats.moments import MOMENTS, Moments
from dmondrian.stats.values import MARK


def leaves_of(ensemble: Ensemble, X: np.ndarray) -> np.ndarray:
    """Return the node of each row's cell, int64 [n, T]; -1 where no row has been.

    On the range of the data, which ends where rows end, a row outside is of the cell next to it.
    """
    growth = ensemble.policies.growth
    if isinstance(growth, Range):
        growth = growth._replace(expected=False)
    # Nobody is asked about statistics: the types of other forests have kernels already.
    chosen = Policies(growth, Moments(MOMENTS), Cell(True), Leaf(False))
    at = np.array([ensemble.parameters.realised_lifetime])
    found: np.ndarray = ensemble.answers(X, chosen, at, 1)[:, :, 0, 0].T.astype(np.int64)
    return found


def columns_of(ensemble: Ensemble, X: np.ndarray) -> np.ndarray:
    """Return the column of each row's cell, int64 [n, T]; -1 where there is none."""
    leaves = leaves_of(ensemble, X)
    columns = np.empty_like(leaves)
    for t, tree in enumerate(ensemble.placed):
        known = tree.d[leaves[:, t], MARK].astype(np.int64) - 1
        columns[:, t] = np.where(leaves[:, t] >= 0, known, -1)
    return columns


def grow_columns(
    ensemble: Ensemble, X: np.ndarray, w: np.ndarray | None, n_threads: int, n_columns: int
) -> np.ndarray:
    """Let the trees take rows in; return the columns of their cells, int64 [n, T].

    Cells without a number get those from ``n_columns`` on. Rows of weight 0 open no cell: their
    columns may be -1.
    """
    Ensemble.update(ensemble, X, np.zeros(len(X)), w, n_threads)
    if ensemble.total_weight == 0.0:
        return np.full((len(X), len(ensemble.placed)), -1)
    heard = np.arange(len(X)) if w is None else np.flatnonzero(w > 0.0)
    columns = np.full((len(X), len(ensemble.placed)), -1)
    leaves = leaves_of(ensemble, X)[heard]
    marks = np.stack([tree.d[leaves[:, t], MARK] for t, tree in enumerate(ensemble.placed)], axis=1)
    new = np.flatnonzero(marks.ravel() == 0.0)
    which = new % len(ensemble.placed), leaves.ravel()[new]
    size = 1 + max(int(tree.head_i[nodes.N_NODES]) for tree in ensemble.placed)
    _, first = np.unique(which[0] * size + which[1], return_index=True)
    for number, at in enumerate(np.sort(first), start=n_columns + 1):
        ensemble.placed[which[0][at]].d[which[1][at], MARK] = number
    for tree in ensemble.placed:  # what moved to a child is forgotten above
        inside = np.flatnonzero(tree.i[: tree.head_i[nodes.N_NODES], nodes.LEFT] >= 0)
        tree.d[inside, nodes.STAT + 1 : nodes.STAT + tree.n_stats] = 0.0
    marks = np.stack([tree.d[leaves[:, t], MARK] for t, tree in enumerate(ensemble.placed)], axis=1)
    columns[heard] = marks.astype(np.int64) - 1
    return columns
