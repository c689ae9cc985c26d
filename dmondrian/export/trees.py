"""A fitted forest as plain trees: links, thresholds and what each leaf says, ready for others.

Relies on trees at rest (:mod:`dmondrian.core.frozen`). Promises that a row goes down a plain tree,
by ``x <= threshold`` on the columns that the estimator takes, to the leaf that answers it in the
forest, and that the leaf says what the forest's own says, to the last bit; or an error that says
why the forest is no sum over leaves.

Shapes: m nodes of a tree, k outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian.core import nodes
from dmondrian.core.columns import has_boxes
from dmondrian.core.frozen import FrozenTree
from dmondrian.cost import OWN, OWN_OF_MEAN
from dmondrian.errors import ParameterError
from dmondrian.estimators.scaling import unscaled_thresholds

# Words of a node at rest that are read here; see core/frozen.py.
_FEATURE, _THRESHOLD, _CHILD, _LEAF = 0, 1, 2, 3


class PlainTree(NamedTuple):
    """One tree, the root first."""

    left: np.ndarray  # int32 [m], -1 at leaves
    right: np.ndarray  # int32 [m], -1 at leaves
    feature: np.ndarray  # int32 [m], -1 at leaves
    threshold: np.ndarray  # float32 [m]; rows with x <= threshold go left; 0 at leaves
    value: np.ndarray  # float64 [m, k], what a leaf says; 0 elsewhere
    weight: np.ndarray  # float64 [m], weight of the rows learned below


def plain_trees(estimator: Any) -> list[PlainTree]:
    """Return the trees of a fitted forest as they predict now.

    Parameters
    ----------
    estimator : fitted estimator of this package

    Returns
    -------
    list of PlainTree
        Their mean is the forest's: class probabilities before calibration, the mean label, or z on
        the scale of a generalised forest's loss.

    Raises
    ------
    ParameterError
        What a tree says of a row is not told by the leaf alone, or is told by a Python function.
    """
    check_is_fitted(estimator)
    forest = estimator.forest_
    parameters = forest.parameters
    _check_leafwise(parameters)
    forest.check_learned()
    scales = estimator.feature_scales_
    pairs = zip(forest.trees, forest.trees_at_rest(), strict=True)
    return [_plain(tree, frozen, scales, forest.n_outputs) for tree, frozen in pairs]


def _check_leafwise(parameters: Any) -> None:
    """Refuse forests that are no tree ensembles, with the reason."""
    if parameters.joint is not None:
        raise ParameterError(
            "the Mondrian kernel works out for each row which cell of a partition holds it, and is "
            "a linear model of these cells: no list of leaves holds its answers; keep the "
            "estimator, or export a forest"
        )
    if parameters.cost is not None and parameters.cost.loss == "density":
        raise ParameterError(
            "a density divides what its cells say by a normaliser of all trees, on cells that are "
            "drawn where a row asks for them: no tree ensemble holds its answers; keep the "
            "estimator"
        )
    if parameters.domain == "cube":
        raise ParameterError(
            'domain="cube": where no row was learned, a forest on the cube draws the cells that '
            "splits would have made when a row asks for them, so no list of leaves holds its "
            'answers; train with domain="range" to export'
        )
    if parameters.expected_extension:
        raise ParameterError(
            'predict_extension="expected" weighs, for each row, all places where it could branch '
            "off the tree: its answers change within a leaf, which no tree ensemble can say; "
            'train with predict_extension="leaf" to export'
        )
    if parameters.cost is not None and parameters.cost.loss in (OWN, OWN_OF_MEAN):
        raise ParameterError(
            "a loss of your own tells what a cell says by a Python function, which cannot leave "
            "with the trees; use a built-in loss to export"
        )


def _plain(tree: nodes.Tree, frozen: FrozenTree, scales: np.ndarray, k: int) -> PlainTree:
    is_leaf = frozen.i[:, _LEAF] >= 0
    inner = np.flatnonzero(~is_leaf)
    m = len(is_leaf)
    links = np.full((4, m), -1, np.int32)
    left, right, feature, origin = links
    left[inner] = frozen.i[inner, _CHILD]
    right[inner] = left[inner] + 1
    feature[inner] = frozen.i[inner, _FEATURE]
    threshold = np.zeros(m, np.float32)
    threshold[inner] = unscaled_thresholds(frozen.f[inner, _THRESHOLD], scales[feature[inner]])
    value = np.zeros((m, k))
    # A Gaussian hierarchy's answers have a second moment behind the mean.
    value[is_leaf] = frozen.answers[frozen.i[is_leaf, _LEAF], :k]
    origin[0] = tree.head_i[nodes.ROOT]
    level, levels = np.array([0]), []
    while len(level := level[~is_leaf[level]]):
        levels.append(level)
        below, above = left[level], origin[level]
        origin[below] = tree.i[above, nodes.LEFT]
        origin[below + 1] = tree.i[above, nodes.RIGHT]
        level = np.concatenate([below, below + 1])
    weight = tree.d[origin, nodes.STAT].copy()
    if not has_boxes(tree.columns):  # splits of an online random forest stop counting
        for level in reversed(levels):
            weight[level] = weight[left[level]] + weight[right[level]]
    return PlainTree(left.copy(), right.copy(), feature.copy(), threshold, value, weight)


def shap_trees(estimator: Any) -> dict[str, Any]:
    """Return a fitted forest as ``shap.TreeExplainer`` takes trees of its user's own.

    Values are divided by the number of trees, so that SHAP values and the base value of a row sum
    to the mean over trees: class probabilities before calibration, the mean label, or z on the
    scale of a generalised forest's loss.

    Parameters
    ----------
    estimator : fitted estimator of this package

    Returns
    -------
    dict
        ``{"trees": [...]}``, one dict of arrays per tree; give it to
        ``shap.TreeExplainer(..., feature_perturbation="tree_path_dependent")``.

    Raises
    ------
    ParameterError
        The forest is no tree ensemble; the message says why.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmondrian import AMFClassifier
    >>> from dmondrian.export import shap_trees
    >>> forest = AMFClassifier(random_state=0).fit(*load_iris(return_X_y=True))
    >>> len(shap_trees(forest)["trees"])
    10
    """
    trees = plain_trees(estimator)
    return {
        "trees": [
            {
                "children_left": tree.left,
                "children_right": tree.right,
                "children_default": tree.right,  # rows have no missing values
                "features": tree.feature,
                "thresholds": tree.threshold.astype(np.float64),
                "values": tree.value / len(trees),
                "node_sample_weight": tree.weight,
            }
            for tree in trees
        ]
    }
