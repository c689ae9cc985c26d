"""Plain trees in shap: values that sum to the prediction, and are Shapley's."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from math import factorial

import numpy as np
import pytest
from sklearn.datasets import make_classification

from dmondrian import (
    AMFClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianForestRegressor,
    OnlineRandomForestClassifier,
)
from dmondrian.export import shap_trees

# What it plots with warns of it, by matplotlib.
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


@pytest.fixture
def explainer():
    from shap import TreeExplainer

    return partial(TreeExplainer, feature_perturbation="tree_path_dependent")


def test_values_sum_to_the_prediction(explainer) -> None:
    X, y = make_classification(1000, 6, n_informative=5, n_redundant=0, n_classes=3, random_state=0)
    X = X.astype(np.float32)
    scales = [0.3, 1.0, 2.0, 3.7, 0.11, 1.9]
    given = {"calibrate": False, "random_state": 0, "feature_scales": scales}
    forest = AMFClassifier(n_estimators=3, **given).fit(X, y)
    explained = explainer(shap_trees(forest))
    values = explained.shap_values(X[:40].astype(np.float64))
    whole = values.sum(axis=1) + explained.expected_value
    np.testing.assert_allclose(whole, forest.predict_proba(X[:40]), atol=1e-12)


def test_quantiles_are_in_the_order_asked_for(explainer) -> None:
    X = np.random.default_rng(0).random((400, 2)).astype(np.float32)
    asked = {"loss": "quantile", "quantile": [0.9, 0.1, 0.5], "random_state": 0}
    forest = GeneralizedMondrianForestRegressor(3, **asked).fit(X, X[:, 0])
    explained = explainer(shap_trees(forest))
    whole = explained.shap_values(X[:40].astype(np.float64)).sum(axis=1) + explained.expected_value
    np.testing.assert_allclose(whole, forest.predict_link(X[:40]), atol=1e-12)
    assert (whole[:, 0] > whole[:, 1]).any()


def test_rows_of_a_split_are_those_of_its_leaves(explainer) -> None:
    """Splits of an online random forest stop counting, leaves go on: weights should add up."""
    X = np.random.default_rng(0).random((3000, 3)).astype(np.float32)
    y = X[:, 0] + X[:, 1] > 1
    forest = OnlineRandomForestClassifier(3, min_samples_leaf=2.0, random_state=0).fit(X, y)
    trees = shap_trees(forest)
    for number, tree in enumerate(trees["trees"]):
        reported, weight = forest.nodes(number), tree["node_sample_weight"]
        left, right = tree["children_left"], tree["children_right"]
        inside = left >= 0
        assert inside.sum() == (reported["left"] >= 0).sum() > 3
        assert np.array_equal(weight[inside], weight[left[inside]] + weight[right[inside]])
        leaves = reported["n_rows"][reported["left"] < 0]
        assert np.array_equal(np.sort(weight[~inside]), np.sort(leaves))
        assert weight[0] == leaves.sum() != reported["n_rows"][0]
    explained = explainer(trees)
    whole = explained.shap_values(X[:40].astype(np.float64)).sum(axis=1)
    reported = forest.predict_proba(X[:40])
    np.testing.assert_allclose(whole + explained.expected_value, reported, atol=1e-12)


def expected(tree, known, x, v=0) -> float:
    """Mean of a tree where only some features are known: both ways, by their rows, elsewhere."""
    if tree["children_left"][v] < 0:
        return tree["values"][v, 0]
    left, right = tree["children_left"][v], tree["children_right"][v]
    feature = tree["features"][v]
    if feature in known:
        return expected(tree, known, x, left if x[feature] <= tree["thresholds"][v] else right)
    rows = tree["node_sample_weight"]
    parts = [rows[below] * expected(tree, known, x, below) for below in (left, right)]
    return sum(parts) / (rows[left] + rows[right])


def test_values_are_those_of_shapley_by_his_formula(explainer) -> None:
    X = np.random.default_rng(0).random((60, 3)).astype(np.float32)
    forest = MondrianForestRegressor(n_estimators=2, lifetime=3.0, random_state=0)
    trees = shap_trees(forest.fit(X, X[:, 0] * X[:, 1]))
    values = explainer(trees).shap_values(X[:5].astype(np.float64))
    for x, reported in zip(X[:5], values, strict=True):
        for j in range(3):
            others = [i for i in range(3) if i != j]
            share = 0.0
            for size in range(3):
                weight = factorial(size) * factorial(2 - size) / factorial(3)
                for known in combinations(others, size):
                    for tree in trees["trees"]:
                        gain = expected(tree, {*known, j}, x) - expected(tree, set(known), x)
                        share += weight * gain
            assert abs(reported[j] - share) < 1e-12


def test_with_a_background_values_sum_to_the_prediction_on_many_sparse_columns() -> None:
    """Without one they do not, as the docstring of `shap_trees` tells."""
    from shap import TreeExplainer
    from shap.utils._exceptions import ExplainerError

    draw = np.random.default_rng(0)
    X = (draw.random((600, 100)) * (draw.random((600, 100)) < 0.1)).astype(np.float32)
    forest = AMFClassifier(3, calibrate=False, feature_scales=None, random_state=0)
    forest.fit(X, X[:, :3].sum(axis=1) > 0.1)
    trees, rows = shap_trees(forest), X[:20].astype(np.float64)
    explained = TreeExplainer(trees, data=X[20:40].astype(np.float64))
    whole = explained.shap_values(rows).sum(axis=1) + explained.expected_value
    np.testing.assert_allclose(whole, forest.predict_proba(X[:20]), atol=1e-6)
    # The words until version 0.50, and since.
    with pytest.raises(ExplainerError, match=r"does not cover all the leaves|Additivity check"):
        TreeExplainer(trees).shap_values(rows)
