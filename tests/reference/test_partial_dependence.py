"""Partial dependence from trees is the definition's, and the mean of the forest's predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianForestClassifier,
    MondrianForestRegressor,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
    ParameterError,
)
from dmondrian.export import partial_dependence
from dmondrian.export.plain_trees import plain_trees

from .partial_dependence import of_trees, over_rows

FORESTS = {
    "amf": AMFClassifier(3, random_state=0, calibrate=False),
    "amf_regressor": AMFRegressor(3, random_state=0),
    "mondrian": MondrianForestClassifier(3, random_state=0, predict_extension="leaf"),
    "mondrian_regressor": MondrianForestRegressor(3, random_state=0, predict_extension="leaf"),
    "generalized": GeneralizedMondrianForestRegressor(3, random_state=0),
}


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Product of five values of the first feature and 30 of the two others; classes of both."""
    draw = np.random.default_rng(0)
    first, others = np.array([0.0, 1.0, 2.0, 5.0, 7.0]), draw.random((30, 2))
    X = np.array([[a, *b] for b in others for a in first])[draw.permutation(150)]
    return X, (X[:, 0] * X[:, 1] > 1.0).astype(int) + (X[:, 2] > 0.7), others


def predicts(forest: Any) -> Any:
    return forest.predict_proba if hasattr(forest, "predict_proba") else forest.predict


@pytest.mark.parametrize("name", [*FORESTS, "online"])
def test_it_is_the_walk_of_the_definition(name) -> None:
    X, y, _ = rows()
    X[:, 0] += X[:, 1]  # no product: features depend on each other
    forest = {**FORESTS, "online": OnlineRandomForestClassifier(3, random_state=0)}[name].fit(X, y)
    trees = plain_trees(forest)
    cuts = [float(tree.threshold[tree.feature == 0][0]) for tree in trees if 0 in tree.feature]
    asked = [-5.0, *cuts, 1.5, 30.0]  # on thresholds too, which are of the left
    assert cuts
    found = partial_dependence(forest, [0], [[value] for value in asked])
    wanted = [of_trees(trees, {0: value}) for value in asked]
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-15)
    pairs = X[:4][:, [2, 0]]
    found = partial_dependence(forest, [2, 0], pairs)
    wanted = [of_trees(trees, {2: pair[0], 0: pair[1]}) for pair in pairs]
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-15)
    assert np.ptp(found, axis=0).max() > 0.01


@pytest.mark.parametrize("name", FORESTS)
def test_of_a_product_of_rows_it_is_the_mean_of_the_forests_predictions(name) -> None:
    X, y, others = rows()
    forest = FORESTS[name].fit(X, y)
    for features, values in (([0], [[0.0], [1.4], [7.0]]), ([1, 2], others[:5])):
        found = partial_dependence(forest, features, values)
        wanted = [over_rows(predicts(forest), X, features, value) for value in values]
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_rows_count_by_their_weight() -> None:
    X, y, _ = rows()
    weight = (1.0 + X[:, 0]) * np.where(X[:, 1] > 0.5, 3.0, 1.0)  # a product too
    forest = AMFRegressor(3, random_state=0).fit(X, y, sample_weight=weight)
    found = partial_dependence(forest, [0], [[1.0], [5.0]])
    wanted = [over_rows(forest.predict, X, [0], value, weight) for value in ([1.0], [5.0])]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    plain = [over_rows(forest.predict, X, [0], value) for value in ([1.0], [5.0])]
    assert np.abs(found - plain).max() > 1e-3


def test_all_features_give_the_prediction_and_scales_do_not_matter() -> None:
    X, y, _ = rows()
    for scales in (None, [3.0, 1.0, 0.25]):
        forest = AMFClassifier(2, random_state=0, calibrate=False, feature_scales=scales).fit(X, y)
        found = partial_dependence(forest, [0, 1, 2], X[:20])
        np.testing.assert_allclose(found, forest.predict_proba(X[:20]), rtol=1e-12)


@pytest.mark.parametrize(
    ("features", "values", "message"),
    [
        ([3], [[1.0]], "expected some of 0 to 2"),
        ([0, 0], [[1.0, 1.0]], "expected some of 0 to 2"),
        ([-1], [[1.0]], "expected some of 0 to 2"),
        ([], [[]], "expected some of 0 to 2"),
        (["a"], [[1.0]], "expected some of 0 to 2"),
        ([0.5], [[1.0]], "expected some of 0 to 2"),
        ([True], [[1.0]], "expected some of 0 to 2"),
        (0, [[1.0]], "a list of numbers of columns"),
        ([0], [["b"]], "as many columns of numbers"),
        ([0], [[1e300]], "expected finite numbers"),
        ([0], [1.0], "expected finite numbers"),
        ([0, 1], [[1.0]], "expected finite numbers"),
        ([0], [[np.nan]], "expected finite numbers"),
    ],
)
def test_other_features_and_values_are_refused(features, values, message) -> None:
    X, y, _ = rows()
    forest = AMFClassifier(1, random_state=0).fit(X, y)
    with pytest.raises(ParameterError, match=message):
        partial_dependence(forest, features, values)


def test_forests_that_are_no_sum_over_leaves_are_refused() -> None:
    X, y, _ = rows()
    kernel = MondrianKernelRegressor(2, lifetime=1.0, random_state=0).fit(X, y)
    with pytest.raises(ParameterError, match="no list of leaves has its predictions"):
        partial_dependence(kernel, [0], [[1.0]])
    follows = AMFClassifier(1, drift="follow", random_state=0).fit(X, y)
    with pytest.raises(ParameterError, match="mixes logarithms of what trees of all ages"):
        partial_dependence(follows, [0], [[1.0]])
    X[0, 0] = np.nan
    encodes = AMFClassifier(1, missing_values="encode", random_state=0).fit(X, y)
    with pytest.raises(ParameterError, match=r"sklearn\.inspection"):
        partial_dependence(encodes, [0], [[1.0]])
