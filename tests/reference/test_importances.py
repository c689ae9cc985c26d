"""Importances against the plain Python of their definition, and what they must show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestClassifier,
)
from dmondrian.estimators import ALGORITHMS
from tests.reference.importances import (
    kt_log_loss,
    mean_over_orders,
    reference_importances,
    running_mean_loss,
)


def rows(n: int = 250, d: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.random((n, d)).astype(np.float32)
    return X, np.sin(6.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(n)


@pytest.mark.parametrize("domain", ["range", "cube"])
@pytest.mark.parametrize(
    "kind", [k for k in ALGORITHMS.values() if "feature_scales" in k().get_params()]
)
def test_importances_are_those_of_the_definition(kind: type, domain: str) -> None:
    X, y = rows(150)
    n_classes = 3 if "Classifier" in kind.__name__ else 0
    y = np.digitize(y, [0.0, 1.0]).astype(float) if n_classes else y
    if kind is GeneralizedMondrianForestClassifier:  # of two classes, taken as numbers
        n_classes, y = 0, (y > 0.0).astype(float)
    more = {"feature_scales": [1.0, 0.7, 3.0]} if domain == "range" else {}
    forest = kind(4, domain=domain, random_state=0, **more).fit(
        X, y.astype(int) if n_classes else y
    )
    lifetime = getattr(forest, "lifetime_", math.inf)
    trees = [forest.nodes(t) for t in range(4)]
    expected = reference_importances(trees, X, y, n_classes, lifetime)
    np.testing.assert_allclose(forest.feature_importances_, expected, rtol=1e-9)
    assert forest.feature_importances_.sum() == pytest.approx(1.0)
    if lifetime < math.inf:  # splits that are not in use are not counted
        beyond = reference_importances(trees, X, y, n_classes, math.inf)
        assert not np.allclose(beyond, expected, rtol=1e-3)


def test_the_reference_is_right_about_orders() -> None:
    rng = np.random.default_rng(0)
    labels = rng.standard_normal(9).tolist()
    drawn = [running_mean_loss(list(rng.permutation(labels))) for _ in range(20_000)]
    error = np.std(drawn) / math.sqrt(len(drawn))
    assert abs(np.mean(drawn) - mean_over_orders(labels)) < 4.0 * error
    classes = rng.integers(0, 3, 30).tolist()
    assert kt_log_loss(classes, 3) == pytest.approx(kt_log_loss(sorted(classes), 3))


def test_noise_and_constants_have_the_least() -> None:
    X, y = rows(3000, 5)
    X[:, 4] = 0.5
    for forest in (AMFRegressor(10, random_state=0), AMFClassifier(10, random_state=0)):
        shares = forest.fit(X, y > 0 if forest.algorithm == "amf-classifier" else y)
        shares = forest.feature_importances_
        assert shares[0] > 0.5
        assert shares[0] > 4.0 * shares[1]
        assert shares[1] > max(shares[2], shares[3])
        assert shares[4] == 0.0


def test_a_duplicated_column_shares_its_importance() -> None:
    X, y = rows(3000, 3)
    alone = AMFRegressor(30, random_state=0).fit(X, y).feature_importances_
    twice = np.ascontiguousarray(np.column_stack([X[:, 0], X]))
    scales = [0.5, 0.5, 1.0, 1.0]
    shares = AMFRegressor(30, feature_scales=scales, random_state=0).fit(twice, y)
    shares = shares.feature_importances_
    assert abs(shares[0] + shares[1] - alone[0]) < 0.05
    assert abs(shares[0] - shares[1]) < 0.2


def test_where_no_split_pays_there_are_zeros() -> None:
    X, _ = rows(50)
    forest = AMFClassifier(2, random_state=0)
    with pytest.raises(AttributeError, match="not fitted"):
        forest.feature_importances_  # noqa: B018 - reading it is the test
    pure = forest.partial_fit(X, np.zeros(50, int), classes=[0, 1])
    assert pure.feature_importances_.tolist() == [0.0, 0.0, 0.0]
    flat = AMFRegressor(2, random_state=0).fit(X, np.full(50, 7.0))
    assert flat.feature_importances_.tolist() == [0.0, 0.0, 0.0]
