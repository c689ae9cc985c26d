"""One tree as plain arrays: links, thresholds of the columns as they are given, and leaf values.

Relies on flat predictors (:mod:`dmondrian.ensemble.predictor.predictor_kernels`). Promises that a
row goes down a plain tree, by ``x <= threshold``, to the leaf that predicts it, and that the leaf
has the tree's value, to the last bit.

Shapes: m nodes, k outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dmondrian.ensemble.predictor.predictor_kernels import FrozenTree
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding import has_boxes

AsGiven = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Thresholds of columns one step nearer to the given ones, of thresholds and features."""


class PlainTree(NamedTuple):
    """One tree, the root first."""

    left: np.ndarray  # int32 [m], -1 at leaves
    right: np.ndarray  # int32 [m], the left one's next; -1 at leaves
    feature: np.ndarray  # int32 [m], -1 at leaves
    threshold: np.ndarray  # float32 [m]; rows with x <= threshold go left; 0 at leaves
    value: np.ndarray  # float64 [m, k], prediction of a leaf; 0 elsewhere
    weight: np.ndarray  # float64 [m], weight of the rows learned below


def plain_tree(
    tree: nodes.Tree, frozen: FrozenTree, k: int, as_given: Sequence[AsGiven]
) -> PlainTree:
    """Return a tree as it predicts frozen, its thresholds those of the columns as they are given.

    Parameters
    ----------
    tree : Tree
    frozen : FrozenTree
        The same, whose answers begin with the ``k`` outputs.
    k : int
    as_given : sequence of callable
        Each returns thresholds of float32 [m], and of their features [m], one step nearer to the
        rows as they are given.
    """
    # index of each leaf's value, -1 for splits
    leaf_index = np.full(int(tree.head_i[nodes.N_NODES]), -1)
    leaf_index[frozen.leaves] = np.arange(len(frozen.leaves))
    origin, m = np.array([tree.head_i[nodes.ROOT]]), 1  # nodes of a level, places given away
    levels, first_child = [], []
    while len(origin):  # level by level, children side by side
        is_split = leaf_index[origin] < 0
        levels.append(origin)
        first_child.append(np.where(is_split, m + 2 * (np.cumsum(is_split) - 1), -1))
        m += 2 * int(is_split.sum())
        origin = tree.i[origin[is_split]][:, [nodes.LEFT, nodes.RIGHT]].ravel()
    ends = np.cumsum([len(level) for level in levels])
    origin, left = np.concatenate(levels), np.concatenate(first_child).astype(np.int32)
    is_leaf = left < 0
    right = np.where(is_leaf, left, left + 1)
    feature = np.where(is_leaf, -1, tree.i[origin, nodes.FEATURE]).astype(np.int32)
    threshold_given = tree.f[origin, nodes.THRESHOLD]
    for step in as_given:
        threshold_given = step(threshold_given, feature)
    threshold = np.where(is_leaf, np.float32(0.0), threshold_given)
    value = np.zeros((m, k))
    # A Gaussian hierarchy's answers have a second moment behind the mean.
    value[is_leaf] = frozen.answers[leaf_index[origin[is_leaf]], :k]
    weight = tree.d[origin, nodes.STAT].copy()
    if not has_boxes(tree.columns):  # splits of an online random forest stop counting
        for level, end in zip(levels[::-1], ends[::-1], strict=True):
            at = np.arange(end - len(level), end)
            at = at[~is_leaf[at]]
            weight[at] = weight[left[at]] + weight[right[at]]
    return PlainTree(left, right, feature, threshold, value, weight)
