"""Generalised forests: what cells say is what scipy finds, whatever the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from dmondrian import GeneralizedMondrianForestClassifier, GeneralizedMondrianForestRegressor
from dmondrian.ensemble.settings.loss_settings import BINARY
from dmondrian.prequential.progressive_validation_kernels import write_losses
from dmondrian.stats.moments import PRICE
from tests.estimators.test_amf import same_forest
from tests.reference.convex import DELTA, LEVELS, LOSSES, SLOPES, limits, pinball

N_ROWS = 220
BOUNDS = [None, 1.5]


def data(loss: str) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and labels fit for a loss; some leaves hold one class, or zeros alone."""
    rng = np.random.default_rng(3)
    X = rng.random((N_ROWS, 2)).astype(np.float32)
    if loss in BINARY:
        return X, (rng.random(N_ROWS) < X[:, 0] ** 3).astype(float)
    if loss in ("poisson", "geometric"):
        return X, rng.poisson(3.0 * X[:, 0] ** 4).astype(float)
    return X, np.sin(7.0 * X[:, 0]) + rng.standard_t(2, N_ROWS)


def fitted(loss: str, bound: float | None = None, **options: Any) -> tuple[Any, np.ndarray]:
    X, y = data(loss)
    given: dict[str, Any] = {"n_estimators": 2, "lifetime": 4.0, "random_state": 1, **options}
    if loss in BINARY:
        forest = GeneralizedMondrianForestClassifier(loss=loss, bound=bound, **given)
    else:
        forest = GeneralizedMondrianForestRegressor(
            loss=loss, bound=bound, delta=DELTA, quantile=LEVELS,
            **{"max_rows_per_leaf": N_ROWS, **given},
        )  # fmt: skip
    return forest.fit(X, y), y


def cells(forest: Any, y: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return each node of tree 0 with rows and the labels of these, found by routing them anew."""
    reported = forest.nodes(0)
    members: dict[int, list[float]] = {}
    for x, label in zip(data(forest.loss)[0], y, strict=True):
        v = reported["root"]
        while True:
            members.setdefault(v, []).append(label)
            if reported["left"][v] < 0:
                break
            goes_left = x[reported["feature"][v]] <= reported["threshold"][v]
            v = reported["left"][v] if goes_left else reported["right"][v]
    return [(v, np.array(labels)) for v, labels in members.items()]


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_cells_say_what_scipy_finds(loss: str, bound: float | None) -> None:
    forest, y = fitted(loss, bound)
    reported = forest.nodes(0)
    low, high = limits(loss, bound, y, N_ROWS)
    n_clipped = 0
    for v, labels in cells(forest, y):
        z = reported["forecast"][v, 0]

        def total(at: float, mine: np.ndarray = labels) -> float:
            return LOSSES[loss](at, mine).sum()

        def slope(at: float, mine: np.ndarray = labels) -> float:
            return SLOPES[loss](at, mine).sum()

        found = minimize_scalar(total, bounds=(low, high), method="bounded",
                                options={"xatol": 1e-11})  # fmt: skip
        least = min(found.fun, total(low), total(high))
        assert low - 1e-9 <= z <= high + 1e-9
        assert total(z) <= least + 1e-8 * max(1.0, abs(least))
        assert reported["risk"][v] == pytest.approx(total(z), rel=1e-9, abs=1e-9)
        n_clipped += int(z in (low, high))
        if loss in SLOPES and slope(low) < 0.0 < slope(high):
            assert z == pytest.approx(brentq(slope, low, high, xtol=1e-13), abs=1e-8)
    assert bound is None or n_clipped or loss in ("hinge", "smoothed_hinge", "square",
                                                  "modified_square")  # fmt: skip


@pytest.mark.parametrize("bound", BOUNDS)
def test_cells_say_the_quantiles_of_least_loss(bound: float | None) -> None:
    forest, y = fitted("quantile", bound)
    reported = forest.nodes(0)
    assert reported["forecast"].shape[1] == len(LEVELS)
    low, high = limits("quantile", bound, y, N_ROWS)
    for v, labels in cells(forest, y):
        assert (np.diff(reported["forecast"][v]) >= 0.0).all()
        at_stake = 0.0
        for level, z in zip(LEVELS, reported["forecast"][v], strict=True):
            loss = pinball(level)
            candidates = np.clip(labels, low, high)  # a minimum is at a label or a limit
            least = min(loss(c, labels).sum() for c in candidates)
            assert loss(z, labels).sum() == pytest.approx(least, abs=1e-8)
            assert low <= z <= high
            at_stake += loss(z, labels).sum()
        assert reported["risk"][v] == pytest.approx(at_stake, abs=1e-8)


def test_the_middle_of_an_interval_of_minima() -> None:
    X = np.zeros((4, 1), np.float32)
    y = np.array([0.0, 1.0, 3.0, 10.0])
    forest = GeneralizedMondrianForestRegressor(1, loss="quantile", quantile=[0.5, 0.25, 0.9])
    assert forest.fit(X, y).predict(X[:1]).tolist() == [[2.0, 0.5, 10.0]]
    forest = GeneralizedMondrianForestRegressor(1, loss="huber", delta=0.5)
    assert forest.fit(X, y).predict(X[:1])[0] == pytest.approx(2.0, abs=1e-12)
    even = GeneralizedMondrianForestClassifier(1, loss="hinge").fit(X, [0, 1, 0, 1])
    assert even.decision_function(X[:1])[0] == 0.0


@pytest.mark.parametrize("delta", [1e3, 1e13, 1e20])
def test_wide_huber_is_the_mean(delta: float) -> None:
    y = np.array([0.0, 0.1, 0.2, 9.0])
    forest = GeneralizedMondrianForestRegressor(1, loss="huber", delta=delta)
    assert forest.fit(np.zeros((4, 1)), y).predict([[0.0]])[0] == pytest.approx(2.325, rel=1e-13)


def test_the_forest_is_the_mean_over_trees() -> None:
    for loss in ("poisson", "quantile"):
        forest, _ = fitted(loss)
        X = data(loss)[0]
        by_tree = []
        for tree in range(2):
            reported = forest.nodes(tree)
            for i, x in enumerate(X[:40]):
                v = reported["root"]
                while reported["left"][v] >= 0:
                    goes_left = x[reported["feature"][v]] <= reported["threshold"][v]
                    v = reported["left"][v] if goes_left else reported["right"][v]
                by_tree.append((i, reported["forecast"][v]))
        mean = np.mean([[z for j, z in by_tree if j == i] for i in range(40)], axis=1)
        found = forest.predict_link(X[:40])
        np.testing.assert_allclose(found.reshape(40, -1), mean, rtol=1e-13)
        if loss == "poisson":
            np.testing.assert_allclose(forest.predict(X[:40]), np.exp(found), rtol=1e-13)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_losses_are_convex(loss: str) -> None:
    """The kernels' own loss: convex along a grid, and the reference's."""
    forest, y = fitted(loss)
    policy = forest.forest_.policies.loss
    z = np.linspace(-4.0, -0.05 if loss == "geometric" else 4.0, 41)
    for label in np.unique(y)[:3]:
        out = np.empty(len(z))
        for i, at in enumerate(z):
            write_losses(policy, np.array([[2.0 * at]]), 2, np.array([label]), out[i : i + 1])
        reported = LOSSES[loss](z, label)  # to a constant of the label: losses here are >= 0
        np.testing.assert_allclose(out - out[7], reported - reported[7], rtol=1e-9, atol=1e-9)
        assert (np.diff(out, 2) >= -1e-9).all()
        assert (out >= 0.0).all()
        best = {"poisson": np.log, "geometric": lambda m: np.log(m / (1.0 + m))}
        if label > 0.0 and loss in (*best, "squared", "gaussian", "huber"):
            at = best.get(loss, lambda m: m)(label)
            write_losses(policy, np.array([[at]]), 1, np.array([label]), out[:1])
            assert out[0] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("loss", ["squared", "gaussian", "huber", "quantile"])
def test_labels_far_from_zero_keep_their_digits(loss: str) -> None:
    """Labels in units of 2^-20 beside 2^30: sums of their squares have no digit left."""
    X, y = data(loss)
    y = np.round(y * 2.0**20) * 2.0**-20
    options = {"lifetime": "prequential", "max_rows_per_leaf": 16, "delta": DELTA}
    near, far = (
        GeneralizedMondrianForestRegressor(2, loss=loss, random_state=1, **options).fit(X, y + at)
        for at in (0.0, 2.0**30)
    )
    assert np.array_equal(near.lifetimes_, far.lifetimes_)
    np.testing.assert_allclose(far.predict(X) - 2.0**30, near.predict(X), atol=1e-6)
    np.testing.assert_allclose(
        far.lifetime_path_.risks, near.lifetime_path_.risks, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("size", [0.5, 3.0, 1e4, 1e12, 1e138])
def test_large_counts_keep_their_digits(size: float) -> None:
    X = np.zeros((2, 1), np.float32)
    for loss in ("poisson", "geometric"):
        forest = GeneralizedMondrianForestRegressor(1, loss=loss).fit(X, [size, 2.0 * size])
        assert forest.predict(X[:1])[0] == pytest.approx(1.5 * size, rel=2e-13)


@pytest.mark.parametrize("loss", ["poisson", "huber", "quantile"])
@pytest.mark.parametrize("w", [300, 2000, 2.5])
def test_a_large_weight_is_priced_as_its_repeats(loss: str, w: float) -> None:
    """The row of weight w moves a cell that others opened: each repeat finds it moved."""
    X = np.zeros((4, 1), np.float32)
    options = {"lifetime": "prequential", "bound": 5.0, "random_state": 0, "delta": DELTA}
    once, repeated, whole = (
        GeneralizedMondrianForestRegressor(1, loss=loss, **options).fit(X, [1.0, 2.0, 3.0, 2.0])
        for _ in range(3)
    )
    before = repeated.forest_.trees[0].d[0, PRICE]
    once.partial_fit(X[:1], [7.0], sample_weight=[w])
    parts = [1.0] * int(w) + ([w % 1.0] if w % 1.0 else [])
    repeated.partial_fit(np.repeat(X[:1], len(parts), 0), [7.0] * len(parts), parts)
    whole.partial_fit(X[:1], [7.0])
    reported, expected, first = (
        forest.forest_.trees[0].d[0, PRICE] - before for forest in (once, repeated, whole)
    )
    least = w * whole_price(loss, 7.0)
    assert abs(reported - expected) <= 0.01 * (expected - first - least) + 1e-9
    if w < 256:
        assert same_forest(once, repeated)
    np.testing.assert_allclose(once.predict(X[:1]), repeated.predict(X[:1]), rtol=1e-12)


def whole_price(loss: str, y: float) -> float:
    """Return what a row costs that finds what it predicts."""
    return np.exp(min(np.log(y), 5.0)) - y * np.log(y) if loss == "poisson" else 0.0
