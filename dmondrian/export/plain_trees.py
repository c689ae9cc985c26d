"""Export of a fitted forest as plain trees: links, thresholds and leaf values.

Relies on :mod:`dmondrian.export.tree_arrays`. Promises that a row goes down a plain tree, by
``x <= threshold`` on the columns that the estimator takes, to the leaf that predicts it in the
forest, and that the leaf has the forest's value, to the last bit (of a regressor that follows the
stream, times its weight); or an error with the reason why the forest is no sum over leaves.

Shapes: m nodes of a tree, k outputs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmondrian.errors import ParameterError
from dmondrian.estimators.feature_scales import thresholds_of_given
from dmondrian.estimators.one_state import one_state
from dmondrian.export.member_trees import forest_to_export, summed_trees
from dmondrian.export.tree_arrays import PlainTree, plain_tree


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
        The prediction of a tree depends on more than the leaf, or on a Python function.
    """
    check_is_fitted(estimator)
    with one_state(estimator):
        forest = estimator.forest_
        parameters = forest.parameters
        if parameters.follows_stream and parameters.n_classes:
            raise ParameterError(
                'a classifier with drift="follow" mixes logarithms of what trees of all ages '
                "forecast, which is no sum over trees as in C source, SHAP values or partial "
                "dependence: export it to ONNX, or train a forest without drift; shap.Explainer "
                "takes any function, such as predict_proba"
            )
        _check_leafwise(parameters)
        if parameters.follows_stream:
            return summed_trees(forest_to_export(forest))
        forest.check_learned()
        pairs = zip(forest.store.trees, forest.frozen_trees(), strict=True)
        steps = [partial(thresholds_of_given, parameters=parameters)]
        return [plain_tree(tree, frozen, parameters.n_outputs, steps) for tree, frozen in pairs]


def _check_leafwise(parameters: Any) -> None:
    """Refuse forests that are no tree ensembles, with the reason."""
    if parameters.learns_jointly:
        raise ParameterError(
            "the Mondrian kernel finds for each row its cell of each partition, and is a linear "
            "model of these cells: no list of leaves has its predictions; keep the estimator, or "
            "export a forest"
        )
    if parameters.is_density:
        raise ParameterError(
            "a density divides the values of its cells by a normaliser of all trees, on cells that "
            "are drawn for each row: no tree ensemble has its predictions; keep the estimator"
        )
    if parameters.domain == "cube":
        raise ParameterError(
            'domain="cube": where no row was learned, a forest on the cube draws the cells of '
            "later splits when a row is predicted, so no list of leaves has its predictions; "
            'train with domain="range" to export'
        )
    if parameters.expected_extension:
        raise ParameterError(
            'predict_extension="expected" weighs, for each row, all places where it could branch '
            "off the tree: its predictions vary within a leaf, unlike those of a tree ensemble; "
            'train with predict_extension="leaf" to export'
        )
    if parameters.has_custom_loss:
        raise ParameterError(
            "a loss of your own computes predictions by a Python function, which cannot be "
            "exported; use a built-in loss to export"
        )


def shap_trees(estimator: Any) -> dict[str, Any]:
    """Return a fitted forest in the format for custom trees of ``shap.TreeExplainer``.

    Values are divided by the number of trees, so that SHAP values and the base value of a row sum
    to the mean over trees: class probabilities before calibration, the mean label, or z on the
    scale of a generalised forest's loss, quantiles in the order in which they were asked for.

    Parameters
    ----------
    estimator : fitted estimator of this package

    Returns
    -------
    dict
        ``{"trees": [...]}``, one dict of arrays per tree; give it to
        ``shap.TreeExplainer(trees, data=background)`` with some rows of the training data, encoded
        (100, say; time grows with them).

    Raises
    ------
    ParameterError
        The forest is no tree ensemble; the message has the reason.

    Notes
    -----
    Without a background shap takes its path-dependent algorithm, which loses digits on paths that
    split on many columns, as Mondrian trees do: sums are exact to 1e-12 for 20 columns, but off by
    0.02 on the adult data (116 features) and by more than any label on 100 sparse columns, where
    shap itself raises ``ExplainerError``. With a background its interventional algorithm adds up,
    to 1e-6, on trees of any depth; its values are relative to the mean prediction of these rows.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmondrian import AMFClassifier
    >>> from dmondrian.export import shap_trees
    >>> X, y = load_iris(return_X_y=True)
    >>> trees = shap_trees(AMFClassifier(random_state=0).fit(X, y))
    >>> len(trees["trees"])
    10
    >>> shap.TreeExplainer(trees, data=X[::3]).shap_values(X)  # doctest: +SKIP
    """
    check_is_fitted(estimator)
    if estimator._encodes_rows():
        raise ParameterError(
            'a forest with categories or missing_values="encode" splits on features that it makes '
            "of columns, and SHAP values would be of these features: train on rows that you encode "
            "yourself, or give shap.Explainer a function, such as predict_proba"
        )
    with one_state(estimator):
        trees = plain_trees(estimator)
        k, is_regressor = estimator.forest_.n_outputs, not hasattr(estimator, "classes_")
        if is_regressor and k > 1:
            ordered = (np.ascontiguousarray(estimator._in_order(tree.value)) for tree in trees)
            trees = [tree._replace(value=value) for tree, value in zip(trees, ordered, strict=True)]
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
