"""A lifetime for each column: the columns multiplied by them, and the kernel of these widths."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import dmondrian
from dmondrian import (
    ConvexLoss,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianDensity,
    MondrianFeatures,
    MondrianForestClassifier,
    MondrianForestRegressor,
    MondrianKernelClassifier,
    MondrianKernelRegressor,
)
from dmondrian.errors import ParameterError
from dmondrian.estimators.save import plain_params
from tests.estimators.test_custom_loss import expectile, expectile_slope

LIFETIMES = [0.3, 7.0, 1.7]
KINDS = [
    (MondrianForestClassifier, {}),
    (MondrianForestClassifier, {"aggregation": "hierarchy"}),
    (MondrianForestRegressor, {}),
    (GeneralizedMondrianForestRegressor, {"loss": "huber"}),
    (GeneralizedMondrianForestRegressor, {"loss": ConvexLoss(expectile, expectile_slope)}),
    (GeneralizedMondrianForestRegressor, {"aggregation": "aggregate", "bound": 2.0}),
    (GeneralizedMondrianForestClassifier, {}),
    (MondrianKernelRegressor, {"solver": "cholesky"}),
    (MondrianKernelRegressor, {"solver": "sgd"}),
    (MondrianKernelClassifier, {"fitting": "independent"}),
    (MondrianFeatures, {}),
    (MondrianFeatures, {"unseen": "extend"}),
]


def rows(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).random((n, 3)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] > 1.0).astype(int)


def answer(fitted: Any, X: np.ndarray) -> np.ndarray:
    if isinstance(fitted, MondrianFeatures):
        return fitted.transform(X).toarray()
    return np.asarray(fitted.predict(X))


def made(kind: type, options: dict[str, Any], lifetime: Any) -> Any:
    size = {"n_components" if kind is MondrianFeatures else "n_estimators": 3}
    return kind(lifetime=lifetime, random_state=0, **size, **options)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_it_is_the_columns_multiplied_to_the_byte(kind: type, options: dict[str, Any]) -> None:
    (X, y), query = rows(), rows(50, seed=1)[0] * 1.2
    scale = np.array(LIFETIMES, np.float32)
    given = made(kind, options, LIFETIMES).fit(X, y)
    outside = made(kind, options, 1.0).fit(X * scale, y)
    mine, others = given.forest_.state()[1], outside.forest_.state()[1]
    assert sum(len(tree["left"]) for tree in mine) > 30
    for one, other in zip(mine, others, strict=True):
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert np.array_equal(answer(given, query), answer(outside, query * scale))
    assert given.lifetime_ == 1.0 if hasattr(given, "lifetime_") else True
    assert given.feature_scales_.tolist() == scale.tolist()


def test_equal_numbers_are_one_lifetime() -> None:
    """A power of two multiplies exactly: the same splits at shares of the lifetime."""
    X, y = rows()
    each = MondrianForestRegressor(3, lifetime=[4.0] * 3, random_state=0).fit(X, y)
    one = MondrianForestRegressor(3, lifetime=4.0, random_state=0).fit(X, y)
    assert np.array_equal(each.predict(X), one.predict(X))
    assert np.array_equal(each.predict(X, lifetime=0.5), one.predict(X, lifetime=2.0))
    np.testing.assert_allclose(4.0 * each.nodes(0)["time"], one.nodes(0)["time"], rtol=1e-12)


def test_two_rows_are_together_with_the_probability_of_the_laplace_kernel() -> None:
    X = np.array([[0.1, 0.2, 0.3], [0.5, 0.2, 0.3], [0.1, 0.35, 0.3], [0.4, 0.3, 0.9]], np.float32)
    n = 5_000
    features = MondrianFeatures(n, lifetime=LIFETIMES, random_state=0).fit(X)
    phi = features.transform(X)
    found = (phi @ phi.T).toarray()
    expected = np.exp(-(np.abs(X[:, None] - X) * LIFETIMES).sum(axis=2))
    np.testing.assert_allclose(found, expected, atol=4.0 * np.sqrt(0.25 / n))


def test_they_are_kept_and_compared(tmp_path) -> None:
    X, y = rows()
    for lifetimes in (LIFETIMES, tuple(LIFETIMES), np.array(LIFETIMES)):
        begun = MondrianForestClassifier(2, lifetime=lifetimes, random_state=0)
        begun.partial_fit(X[:100], y[:100], classes=[0, 1])
        folder = tmp_path / type(lifetimes).__name__
        begun.save(folder)
        again = [begun, dmondrian.load(folder), pickle.loads(pickle.dumps(begun))]
        reported = [each.partial_fit(X[100:], y[100:]).predict_proba(X) for each in again]
        assert np.array_equal(reported[0], reported[1])
        assert np.array_equal(reported[0], reported[2])
    given = np.array(LIFETIMES)
    changed = MondrianForestClassifier(2, lifetime=given, random_state=0).fit(X, y)
    given[1] = 2.0
    with pytest.raises(ParameterError, match="parameters changed"):
        changed.partial_fit(X, y)


@pytest.mark.parametrize(
    ("kind", "options", "reported"),
    [
        (MondrianForestClassifier, {"lifetime": [1.0, 2.0]}, r"lifetime has shape \(2,\)"),
        (MondrianForestClassifier, {"lifetime": [1.0, 2.0, 0.0]}, r"lifetime\[2\] is"),
        (MondrianForestClassifier, {"lifetime": ["a", "b", "c"]}, "lifetime should be numbers"),
        (MondrianForestClassifier, {"domain": "cube"}, r"cube \[0, 1\]\^d is fixed"),
        (MondrianFeatures, {"domain": "cube"}, r"cube \[0, 1\]\^d is fixed"),
        (MondrianKernelRegressor, {"domain": "cube"}, r"cube \[0, 1\]\^d is fixed"),
        (MondrianDensity, {}, r"cube \[0, 1\]\^d is fixed"),
        (MondrianForestRegressor, {"feature_scales": [1.0, 2.0, 3.0]}, "give one of the two"),
        (GeneralizedMondrianForestRegressor, {"feature_scales": "learned"}, "give one of the two"),
    ],
)
def test_what_is_refused(kind: type, options: dict[str, Any], reported: str) -> None:
    with pytest.raises(ParameterError, match=reported):
        kind(**{"lifetime": LIFETIMES, **options}).fit(*rows(30))


@pytest.mark.parametrize("wrong", [["a", 3.0], [[1.0], [3.0, 2.0]]])
def test_what_is_no_array_of_numbers_is_refused_wherever_it_is_looked_at(wrong: Any) -> None:
    X = np.random.default_rng(0).random((20, 2))
    message = "lifetime should be numbers > 0"
    with pytest.raises(ParameterError, match=message):
        plain_params(MondrianForestRegressor(2, lifetime=wrong))  # as jobs do
    with pytest.raises(ParameterError, match=message):
        MondrianForestRegressor(2, lifetime=wrong).fit(X, X[:, 0])
    forest = MondrianForestRegressor(2, lifetime=[2.0, 4.0]).fit(X, X[:, 0])
    forest.lifetime = wrong
    with pytest.raises(ParameterError, match=message):
        forest.partial_fit(X, X[:, 0])
