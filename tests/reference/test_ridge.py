"""O19: a sweep at a lifetime is the model built there from scratch; and online is batch."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian import MondrianForestRegressor, MondrianKernelRegressor
from dmondrian.ensemble.settings.kernel_settings import Joint
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.cell_columns import columns_of, leaves_of
from dmondrian.kernel_machine.lifetime_search import realised, sweep_exactly
from tests.reference.ridge import features, weights_of

RIDGE, T = 0.3, 5


def data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.random((n, 2), dtype=np.float32)
    return X, np.sin(6.0 * X[:, 0]) + X[:, 1] + random.normal(0.0, 0.1, n) + 7.0


def parameters(domain: str, lifetime: float = 2.0, **joint: object) -> ForestParameters:
    chosen = Joint(1, **{"solver": "cholesky", "ridge": RIDGE, **joint})  # type: ignore[arg-type]  # as named
    return ForestParameters(
        "mondrian-kernel-regressor", 2, 0, 5, aggregation="mean", lifetime=lifetime,
        split_pure=True, domain=domain, expected_extension=domain == "range", joint=chosen,
    )  # fmt: skip


@pytest.mark.parametrize("domain", ["cube", "range"])
def test_the_sweep_is_a_model_from_scratch_at_every_lifetime(domain: str) -> None:
    X, y = data(60)
    weights = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    held = np.flatnonzero(weights == 0.0)
    forest = realised(parameters(domain), T, X, weights, 1, 12.0, None)
    whole = sweep_exactly(forest, X, y, weights, held)
    assert len(whole.lifetimes) > 40
    mean = weights @ y / weights.sum()
    for stage in np.linspace(0, len(whole.lifetimes) - 1, 12).astype(int):
        at = whole.lifetimes[stage]
        swept = sweep_exactly(forest, X, y, weights, held, until=at)
        offsets = np.concatenate([[0], np.cumsum([len(t.i) for t in forest.trees])[:-1]])
        fresh = realised(parameters(domain, at), T, X, weights, 1, max(at, 1e-9), None)
        cells = leaves_of(fresh, X) + offsets
        phi = features(np.concatenate([cells, cells]))[: len(X)]
        has_rows = phi[weights > 0.0].any(axis=0)
        w, log_det, likelihood = weights_of(phi[:, has_rows], y - mean, weights, RIDGE)
        assert swept.table[-1, 1] == pytest.approx(log_det, rel=1e-8)
        constant = whole.log_likelihoods[0] - first_likelihood(y, weights)
        assert swept.log_likelihoods[-1] - constant == pytest.approx(likelihood, rel=1e-8)
        values = swept.fit.values[0, swept.fit.cell].mean(axis=0)
        assert values == pytest.approx(phi[:, has_rows] @ w, abs=1e-8)
        error = ((y[held] - mean - phi[held][:, has_rows] @ w) ** 2).sum()
        assert whole.table[stage, 3] == pytest.approx(error, rel=1e-8)


def first_likelihood(y: np.ndarray, weights: np.ndarray) -> float:
    """Of one cell in each tree."""
    phi = np.full((len(y), T), 1.0 / np.sqrt(T))
    mean = weights @ y / weights.sum()
    return weights_of(phi, y - mean, weights, RIDGE)[2]


@pytest.mark.parametrize("domain", ["cube", "range"])
@pytest.mark.parametrize("n", [2, 255, 256, 300, 700])
def test_online_is_ridge_regression_on_all_rows(domain: str, n: int) -> None:
    X, y = data(n)
    forest = Forest(parameters(domain), range(T))
    for row in range(min(n, 40)):
        forest.update(X[row : row + 1], y[row : row + 1])
    forest.update(X[40:290], y[40:290])
    forest.update(X[290:], y[290:])
    phi = features(columns_of(forest, X))
    w = weights_of(phi, y - y.mean(), np.ones(n), RIDGE)[0]
    predicted = forest.predict_sums(X).mean[:, 0]
    assert predicted == pytest.approx(phi @ w + y.mean(), abs=1e-9)
    whole = Forest(parameters(domain), range(T))
    whole.update(X, y)
    assert whole.state()[0] == forest.state()[0]
    for mine, its in zip(whole.state()[1], forest.state()[1], strict=True):
        assert all(mine[field].tobytes() == its[field].tobytes() for field in mine)


def test_a_forest_is_ridge_regression_in_each_tree() -> None:
    X, y = data(200)
    forest = Forest(parameters("cube", is_joint=False), range(T))
    forest.update(X, y)
    swept = sweep_exactly(
        realised(parameters("cube", is_joint=False), T, X, np.ones(200), 1, 2.0, None),
        X, y, np.ones(200), np.arange(200),
    )  # fmt: skip
    by_tree = [
        np.bincount(cells, y - y.mean())[cells] / (np.bincount(cells)[cells] + RIDGE)
        for cells in leaves_of(forest, X).T
    ]
    expected = np.mean(by_tree, axis=0)
    assert swept.fit.values[0, swept.fit.cell].mean(axis=0) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [10, 300])
def test_independent_fits_do_not_depend_on_the_order_of_rows(n: int, weighted: bool) -> None:
    X, y = data(n)
    w = np.random.default_rng(1).integers(0, 4, n) * 0.5 if weighted else np.ones(n)
    model = MondrianKernelRegressor(
        5, lifetime=3.0, fitting="independent", regularization=5.0, domain="cube", random_state=0
    )
    predicted = model.fit(X, y, w).predict(X)
    mean = np.average(y, weights=w)
    by_tree = [
        np.bincount(cells, w * (y - mean))[cells] / (np.bincount(cells, w)[cells] + 5.0)
        for cells in leaves_of(model.forest_, X).T
        if (cells >= 0).all()
    ]
    if not weighted:  # cells of rows without weight are empty, and forecast the mean
        assert predicted == pytest.approx(mean + np.mean(by_tree, axis=0), abs=1e-12)
    for order in (slice(None, None, -1), np.random.default_rng(2).permutation(n)):
        assert model.fit(X[order], y[order], w[order]).predict(X) == pytest.approx(
            predicted, abs=1e-12
        )
    more, labels = X[:4], y[:4] + 1.0
    moved = model.partial_fit(more, labels).predict(more)
    assert (moved != predicted[:4]).any()
    assert np.isfinite(moved).all()


def test_independent_fits_without_a_ridge_are_the_forest_of_the_same_partitions() -> None:
    X, y = data(300)
    given = {"lifetime": 2.0, "domain": "cube", "random_state": 3}
    forest = MondrianForestRegressor(6, **given).fit(X, y)
    same = MondrianKernelRegressor(6, fitting="independent", regularization=1e-9, **given)
    assert same.fit(X, y).predict(X) == pytest.approx(forest.predict(X), abs=1e-6)
    joint = MondrianKernelRegressor(6, **given).fit(X, y)
    for mine, its in zip(joint.forest_.state()[1], forest.forest_.state()[1], strict=True):
        assert all(np.array_equal(mine[name], its[name]) for name in ("left", "feature", "time"))
    errors = [np.mean((model.predict(X) - y) ** 2) for model in (joint, forest)]
    assert errors[0] < 0.5 * errors[1]
