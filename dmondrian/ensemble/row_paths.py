"""The nodes that rows pass on their way from the root to a leaf, by splits alone.

Relies on trees as :mod:`dmondrian.tree.nodes` lays them out. Promises ids as they are stored, which
learning never changes.

Shapes: n rows, d features, T trees, m nodes of all trees.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_matrix

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.tree import nodes


def leaves_of_rows(ensemble: Ensemble, X: np.ndarray) -> np.ndarray:
    """Return the leaf that each row reaches, int64 [n, T]; -1 in a tree that has none.

    Parameters
    ----------
    ensemble : Ensemble
    X : float32 [n, d]
    """
    values = ensemble.prepare(X).values
    leaves = np.full((len(values), len(ensemble.store)), -1, np.int64)
    for t, tree in enumerate(ensemble.trees):
        for rows, at in _steps(tree, values):
            leaves[rows, t] = at
    return leaves


def paths_of_rows(ensemble: Ensemble, X: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
    """Return which nodes rows pass, int64 [n, m], and the first column of each tree, int64 [T + 1].

    Parameters
    ----------
    ensemble : Ensemble
    X : float32 [n, d]
    """
    values = ensemble.prepare(X).values
    sizes = [int(tree.head_i[nodes.N_NODES]) for tree in ensemble.trees]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    passed = [
        (rows, start + at)
        for tree, start in zip(ensemble.trees, first, strict=False)
        for rows, at in _steps(tree, values)
    ]
    none = [np.empty(0, np.int64)]
    rows = np.concatenate([each for each, _ in passed] or none)
    columns = np.concatenate([each for _, each in passed] or none)
    ones = np.ones(len(rows), np.int64)
    indicator = csr_matrix((ones, (rows, columns)), shape=(len(values), int(first[-1])))
    indicator.sort_indices()
    return indicator, first


def _steps(tree: nodes.Tree, values: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows and the node that each is at, both int64, level by level from the root."""
    if int(tree.head_i[nodes.ROOT]) < 0:
        return
    left, right = tree.i[:, nodes.LEFT], tree.i[:, nodes.RIGHT]
    feature, threshold = tree.i[:, nodes.FEATURE], tree.f[:, nodes.THRESHOLD]
    rows = np.arange(len(values))
    at = np.full(len(values), int(tree.head_i[nodes.ROOT]), np.int64)
    while len(rows):
        yield rows, at
        is_inner = left[at] >= 0
        rows, at = rows[is_inner], at[is_inner]
        goes_left = values[rows, feature[at]] <= threshold[at]
        at = np.where(goes_left, left[at], right[at]).astype(np.int64)
