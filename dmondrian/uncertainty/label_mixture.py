"""The distribution of the label at a point: the mixture over trees of the labels of its cells.

Each tree predicts the distribution of the labels of the cell of x, trees weigh the same. That is
the estimate of quantile regression forests (Meinshausen 2006); the forest of Z24 predicts instead,
for each level, the mean over trees of the cells' quantiles. Where cells are small the two differ:
the quantiles of few labels lie inside of those of the label, and so does their mean, while the
mixture has the spread between trees as well.

Relies on :mod:`dmondrian.stats.labels`: exact up to the labels that cells keep, within their
certificate beyond. Promises that neither chunks nor threads change an answer.

Shapes: n rows, q levels, T trees, m nodes, k labels of a node.

References: Meinshausen (2006), "Quantile Regression Forests", JMLR 7.
"""

from __future__ import annotations

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.threads import run_threads
from dmondrian.losses.cell import Cell
from dmondrian.stats.labels import KEPT
from dmondrian.tree import nodes

_CHUNK = 256  # rows whose labels are held at once
_CLOSE = 1e-12  # shares of the weight that differ by less are equal, as in losses.quantile


def label_quantiles(
    forest: Ensemble, X: np.ndarray, levels: np.ndarray, lifetimes: np.ndarray, n_threads: int = 1
) -> np.ndarray:
    """Return quantiles of the mixture at each row, float64 [n, q], rising with the level.

    Where a whole interval is a quantile, its middle, as in :mod:`dmondrian.losses.quantile`.

    Parameters
    ----------
    forest : Ensemble
        Whose cells keep labels, with rows.
    X : float32 [n, d], C-contiguous
    levels : float64 [q]
        Increasing, in (0, 1).
    lifetimes : float64 [T]
        Of each tree.
    n_threads : int
        Threads over chunks of rows.
    """
    quantiles = np.empty((len(X), len(levels)))

    def work(start: int) -> None:
        rows = slice(start, start + _CHUNK)
        labels, weights = _mixtures(forest, X[rows], lifetimes)
        quantiles[rows] = _quantiles(labels, weights, levels)

    run_threads(work, range(0, len(X), _CHUNK), n_threads)
    return quantiles


def _mixtures(
    forest: Ensemble, X: np.ndarray, lifetimes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and their shares at each row, float64 [n, T k]; shares of 0 are of no row."""
    chosen = forest.policies.at_leaves._replace(loss=Cell(bool(forest.parameters.empty_prior)))
    asked, which = np.unique(lifetimes, return_inverse=True)
    answers = forest.answers(X, chosen, asked, 1)[..., 0]
    labels, weights = [], []
    for t, tree in enumerate(forest.trees):
        there, cell = np.unique(answers[t, :, which[t]].astype(np.int64), return_inverse=True)
        kept, weight = kept_labels(tree, np.maximum(there, 0))
        empty = there < 0  # an empty cell predicts 0
        kept[empty], weight[empty] = 0.0, np.eye(1, kept.shape[1])
        labels.append(kept[cell])
        weights.append((weight / weight.sum(axis=1, keepdims=True))[cell])
    return np.concatenate(labels, axis=1), np.concatenate(weights, axis=1)


def _quantiles(labels: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return quantiles of weighted labels, row by row."""
    labels = np.where(weights > 0.0, labels, np.inf)
    order = np.argsort(labels, axis=1, kind="stable")
    labels = np.take_along_axis(labels, order, axis=1)
    upto = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
    n_labels = np.isfinite(labels).sum(axis=1)
    quantiles = np.empty((len(labels), len(levels)))
    row = np.arange(len(labels))
    for c, level in enumerate(levels):
        wanted = level * upto[:, -1]
        close = _CLOSE * upto[:, -1]
        i = np.minimum((upto < (wanted - close)[:, None]).sum(axis=1), n_labels - 1)
        is_end = upto[row, i] <= wanted + close
        following = labels[row, np.minimum(i + is_end, n_labels - 1)]
        quantiles[:, c] = 0.5 * labels[row, i] + 0.5 * following
    return quantiles


def kept_labels(tree: nodes.Tree, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and weights of nodes, float64 [m, k]; behind those kept repeats of weight 0."""
    size = (tree.n_stats - (KEPT + 1 - nodes.STAT)) // 3
    stored = tree.d[which, KEPT + 1 : nodes.STAT + tree.n_stats].reshape(len(which), 3, size)
    kept = tree.d[which, KEPT].astype(np.int64)
    place = np.minimum(np.arange(size), kept[:, None] - 1)
    labels, below, upto = (np.take_along_axis(stored[:, c], place, axis=1) for c in range(3))
    after = np.concatenate([below[:, 1:], below[:, -1:]], axis=1)
    rank = 0.5 * (upto + after)  # the middle of what is known, as in stats.labels.weight_upto
    rank = np.where(np.arange(size) >= kept[:, None] - 1, tree.d[which, nodes.STAT, None], rank)
    return labels, np.diff(rank, axis=1, prepend=0.0)
