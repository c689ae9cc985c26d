r"""Confidence intervals for the regression function from a Mondrian forest on the cube.

The forest's mean of cells is linear in the labels, f(x) = sum_i W_i(x) y_i, with weights
W_i(x) = mean over trees of 1{x_i in the cell of x} / N(cell of x). The partition does not look at
the labels, so given rows and partition the variance of f(x) is the sum of W_i(x)^2 sigma^2(x_i),
about sigma^2(x) ||W(x)||^2, and f(x) +- z sigma(x) ||W(x)|| is the interval.
What the interval leaves out: the bias, and the predictions of other trees.

**Bias.** With many rows a cell of lifetime l reaches from an interior x by independent
E_1, E_2 ~ Exp(l) down and up each axis (M17, Appendix A). For u uniform on [-E_1, E_2], E u = 0 and
E u^2 = E (E_1^2 - E_1 E_2 + E_2^2) / 3 = 1 / l^2; sides are independent, so mixed terms vanish. A
large forest under a uniform design thus has the bias b(l) = sum_j d_jj f(x) / (2 l^2) + O(l^-4).

**Debiasing** (generalised jackknife of order J = 1). w_0 f_l + w_1 f_al keeps constants if
w_0 + w_1 = 1 and cancels b if w_0 + w_1 / a^2 = 0: w_0 = -1 / (a^2 - 1), w_1 = a^2 / (a^2 - 1),
which is -0.8 and 1.8 at a = 1.5. What is left is O(l^-4): -d^4 f / (3 a^2 l^4) where d = 1. CKU
take other trees for each lifetime; here both are asked of the same trees. With many trees that is
the same, with few it is better: the errors of a tree at l and at al go together and w_0 is
negative, and nothing more is trained.

**Variance.** Let g_l(s) be the expectation of 1{E_2 > s} / (E_1 + E_2). With many rows and trees
n ||W||^2 -> prod_j 2 int g_l g_k ds for lifetimes l and k, and
2 int g_l g_k = (2/3) (l (1 - (l/k) ln(1 + k/l)) + k (1 - (k/l) ln(1 + l/k))): for l = k that is
l (4 - 4 ln 2) / 3 per feature. Nothing here uses this limit: ||W|| is counted from the rows.

Relies on :meth:`dmondrian.ensemble.ensemble.Ensemble.answers`. Promises weights that are exactly
those of the forest's predictions, or an error where the rows are not those that it learned.

Shapes: n rows to predict, m rows learned, d features, T trees, L lifetimes.

References: Cattaneo, Klusowski, Underwood (2023), "Inference with Mondrian Random Forests",
arXiv:2310.09702 (CKU); Mourtada, Gaiffas, Scornet (2017) (M17).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.errors import DataError
from dmondrian.losses.cell import Cell
from dmondrian.tree import nodes

RATIO = 1.5  # of the two lifetimes of a debiased forest, as in the code of CKU
_CHUNK = 256  # rows whose weights are held at once


def debiasing_weights(ratio: float = RATIO) -> np.ndarray:
    """Return the weights of predictions at l and ``ratio`` l that cancel the bias, float64 [2]."""
    square = ratio * ratio
    return np.array([-1.0, square]) / (square - 1.0)


def weight_norms(
    forest: Ensemble, X: np.ndarray, learned: np.ndarray, lifetimes: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """Return ||W(x)|| of each row, float64 [n].

    W are the weights of the rows learned in the sum over lifetimes of share times prediction. Time
    O((n + m) T depth) and the weights that are not zero; memory O(m T L).

    Parameters
    ----------
    forest : Ensemble
        Means of cells, on the cube.
    X : float32 [n, d]
    learned : float32 [m, d]
        All rows that the forest learned, in any order.
    lifetimes, shares : float64 [L]

    Raises
    ------
    DataError
        If ``learned`` are other rows.
    """
    predicting, members = _predicting_nodes(forest, X, learned, lifetimes)
    share = np.broadcast_to((shares / len(forest.trees))[:, None], predicting.shape)
    who = np.broadcast_to(np.arange(len(X))[:, None, None], predicting.shape)
    has_node = predicting >= 0
    places = who[has_node], predicting[has_node]
    chosen = sparse.csr_matrix((share[has_node], places), (len(X), members.shape[0]))
    norms = np.empty(len(X))
    for start in range(0, len(X), _CHUNK):
        weights = chosen[start : start + _CHUNK] @ members
        norms[start : start + _CHUNK] = sparse.linalg.norm(weights, axis=1)
    return norms


def _predicting_nodes(
    forest: Ensemble, X: np.ndarray, learned: np.ndarray, lifetimes: np.ndarray
) -> tuple[np.ndarray, sparse.csr_matrix]:
    """Return the node that predicts each row, by lifetime and tree, and the rows of each node.

    The first, int64 [n, L, T], numbers the nodes of all trees that predict at all; it is -1 where
    an empty cell predicts 0. The second is [nodes, m], 1 / N where a row is one of the N below the
    node.
    """
    loss = Cell(bool(forest.parameters.empty_prior))
    of_cells = forest.policies._replace(loss=loss)
    end = np.array([forest.parameters.realised_lifetime])
    cells = forest.answers(X, of_cells, lifetimes, 1)[..., 0].astype(np.int64)
    leaves = forest.answers(learned, of_cells, end, 1)[:, :, 0, 0].astype(np.int64)
    predicting, n_nodes = np.full((*cells.shape[1:], len(cells)), -1), 0
    where, which = [], []
    for t, tree in enumerate(forest.trees):
        nodes_here, index = np.unique(cells[t], return_inverse=True)
        n_empty = int(nodes_here[0] < 0)
        index = index.reshape(cells.shape[1:])
        predicting[..., t] = np.where(index < n_empty, -1, index - n_empty + n_nodes)
        at, row = _members(tree, nodes_here[n_empty:], leaves[t])
        where.append(at + n_nodes)
        which.append(row)
        n_nodes += len(nodes_here) - n_empty
    places = np.concatenate(where), np.concatenate(which)
    share = 1.0 / np.bincount(places[0], minlength=n_nodes)[places[0]]
    return predicting, sparse.csr_matrix((share, places), (n_nodes, len(learned)))


def _members(
    tree: nodes.Tree, chosen_nodes: np.ndarray, leaf: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs (which of the nodes, row below it), int64 each; rows are given by their leaf."""
    number = np.full(len(tree.i), -1)
    number[chosen_nodes] = np.arange(len(chosen_nodes))
    row, at = np.arange(len(leaf)), leaf
    where, which = [at[:0]], [row[:0]]
    while len(row):
        has_node = number[at] >= 0
        where.append(number[at[has_node]])
        which.append(row[has_node])
        at = tree.i[at, nodes.PARENT]
        row, at = row[at >= 0], at[at >= 0]
    pairs = np.concatenate(where), np.concatenate(which)
    n_below = np.bincount(pairs[0], minlength=len(chosen_nodes))
    total = tree.head_f[nodes.TOTAL_WEIGHT]
    if len(leaf) != total or (n_below != tree.d[chosen_nodes, nodes.STAT]).any():
        raise DataError(
            f"the {len(leaf)} rows given are not the {total:g} that the forest learned: give all "
            "of them, none of them twice; rows that were learned with weights cannot be given"
        )
    return pairs
