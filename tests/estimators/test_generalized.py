"""GeneralizedMondrianForest*: streams, weights, chosen lifetimes, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dmondrian
from dmondrian import (
    ConvexLoss,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
)
from dmondrian.ensemble.lifetime_selection import sweep
from dmondrian.ensemble.lifetime_selection_kernels import assess
from dmondrian.ensemble.settings.loss_settings import BINARY, REGRESSION
from dmondrian.errors import DataError, ParameterError
from dmondrian.forest.forest import Forest
from tests.estimators.test_amf import rows, same_forest
from tests.reference.convex import DELTA, LOSSES, pinball

Regressor, Classifier = GeneralizedMondrianForestRegressor, GeneralizedMondrianForestClassifier
WAYS: list[tuple[type, dict[str, Any]]] = [
    (Regressor, {"loss": "poisson", "lifetime": "penalized", "max_lifetime": 30.0}),
    (Regressor, {"loss": "quantile", "quantile": [0.9, 0.1], "max_rows_per_leaf": 8}),
    (Regressor, {"loss": "huber", "lifetime": "prequential", "max_rows_per_leaf": 8}),
    (Regressor, {"loss": "geometric", "domain": "cube", "max_lifetime": 20.0}),
    (Classifier, {"loss": "exponential", "lifetime": "prequential"}),
    (Classifier, {"loss": "bernoulli", "aggregation": "aggregate", "bound": 3.0,
                  "lifetime": None}),
]  # fmt: skip


def labels(kind: type) -> np.ndarray:
    rng, X = np.random.default_rng(1), rows()
    if kind is Classifier:
        return (rng.random(300) < X[:, 0]).astype(int)
    return rng.poisson(1.0 + 5.0 * X[:, 0]).astype(float)


def more(kind: type) -> dict[str, Any]:
    return {"classes": [0, 1]} if kind is Classifier else {}


@pytest.mark.parametrize(("kind", "options"), WAYS)
def test_batches_weights_threads_and_files_keep_every_byte(kind, options, tmp_path) -> None:
    X, y = rows(), labels(kind)
    w = np.random.default_rng(0).integers(0, 4, 300)
    whole = kind(n_estimators=3, random_state=7, **options).fit(X, y, w)
    parts = kind(n_estimators=3, random_state=7, n_jobs=2, **options)
    X_long, y_long = np.repeat(X, w, 0), np.repeat(y, w)
    for start in range(0, len(X_long), 50):
        parts.partial_fit(X_long[start : start + 50], y_long[start : start + 50], **more(kind))
        if start == 150:
            parts.predict(X)
            parts.save(tmp_path / "model")
            parts = dmondrian.load(tmp_path / "model")
            assert parts.get_params() == kind(3, random_state=7, n_jobs=2, **options).get_params()
    assert same_forest(whole, parts)
    assert np.array_equal(whole.predict(X), parts.predict(X))
    assert np.array_equal(whole.lifetimes_, parts.lifetimes_)


def test_quantiles_never_cross_and_come_in_the_order_asked() -> None:
    X, y = rows(), np.random.default_rng(0).standard_t(2, 300)
    levels = [0.5, 0.95, 0.05, 0.25]
    forest = Regressor(5, loss="quantile", quantile=levels, max_rows_per_leaf=16, random_state=0)
    found = forest.fit(X, y).predict(rows(200, seed=9))
    assert found.shape == (200, 4)
    assert (np.diff(found[:, np.argsort(levels)]) >= 0.0).all()
    assert (np.diff(found[:, np.argsort(levels)]) > 0.0).any()
    alone = Regressor(5, loss="quantile", quantile=0.95, max_rows_per_leaf=16, random_state=0)
    assert np.array_equal(alone.fit(X, y).predict(rows(200, seed=9)), found[:, 1])
    for staged, lifetime in zip(forest.staged_predict(X[:9], [1.0, 2.0]), [1.0, 2.0], strict=True):
        assert np.array_equal(staged, forest.predict(X[:9], lifetime=lifetime))


def test_the_score_of_several_quantiles_is_their_share_of_pinball_loss() -> None:
    X, y = rows(), np.random.default_rng(0).standard_t(2, 300)
    levels, w = [0.9, 0.2], np.arange(300) % 3
    forest = Regressor(3, loss="quantile", quantile=levels, max_rows_per_leaf=16, random_state=0)
    reported = forest.fit(X, y).predict(X)
    shares = []
    for level, q in zip(levels, reported.T, strict=True):
        least = min((y - c) * (level - (y < c)) @ w for c in y)
        shares.append(1.0 - (y - q) * (level - (y < q)) @ w / least)
    assert forest.score(X, y, w) == pytest.approx(np.mean(shares), rel=1e-9)
    assert 0.0 < forest.score(X, y) < 1.0
    one = Regressor(3, loss="quantile", quantile=[0.5], max_rows_per_leaf=16, random_state=0)
    q = one.fit(X, y).predict(X)[:, 0]
    least = np.abs(y - np.median(y)).sum()
    assert one.score(X, y) == pytest.approx(1.0 - np.abs(y - q).sum() / least, rel=1e-9)


@pytest.mark.parametrize(
    ("loss", "domain"),
    [
        *((loss, "range") for loss in (*REGRESSION, *BINARY)),
        ("quantile", "cube"),
        *(
            pytest.param(loss, "cube", marks=pytest.mark.thorough)
            for loss in (*REGRESSION, *BINARY)
            if loss != "quantile"
        ),
    ],
)
def test_the_sweep_is_the_risk_of_forests_trained_at_each_lifetime(loss, domain) -> None:
    kind, more_options = (Classifier, {}) if loss in BINARY else (Regressor, {"delta": DELTA})
    X, y = rows(), labels(kind)
    price = pinball(0.5) if loss == "quantile" else LOSSES[loss]
    options = {"loss": loss, "domain": domain, "random_state": 3, "n_estimators": 1, **more_options}
    ask = "decision_function" if kind is Classifier else "predict_link"
    long = kind(lifetime=12.0, **options).fit(X, y)
    cost = long.forest_.parameters.cost
    policy = long.forest_.policies.loss
    times, risks = sweep(long.forest_.trees[0], policy, cost)
    assert len(times) > 20
    assert (np.diff(times) > 0.0).all()
    for at in [0.01, 0.8, 2.5, 6.0, 12.0]:
        short = kind(lifetime=at, **options).fit(X, y)
        reported = short.nodes(0)
        leaves = reported["left"] < 0
        i = np.searchsorted(times, at, side="right") - 1
        assert risks[i] == pytest.approx(reported["risk"][leaves].sum() / 300, rel=1e-9)
        assert np.array_equal(short.predict(X), long.predict(X, lifetime=at))
        z = getattr(short, ask)(X)
        assert price(z, y).mean() == pytest.approx(risks[i], rel=1e-9)


def test_prequential_risks_are_losses_of_forecasts_made_before() -> None:
    """At each lifetime: a forest of that lifetime, asked about every row before it is learned."""
    X, y = rows(120), labels(Regressor)[:120]
    options = {"loss": "poisson", "random_state": 3, "n_estimators": 1, "bound": 2.0}
    long = Regressor(lifetime="prequential", max_lifetime=8.0, **options).fit(X, y)
    cost = long.forest_.parameters.cost
    times, risks = sweep(long.forest_.trees[0], long.forest_.policies.loss, cost)
    for at in [1e-6, 1.5, 8.0]:
        online = Regressor(lifetime=at, **options).partial_fit(X[:1], y[:1])
        total = 0.0
        for i in range(1, 120):
            before = online.predict_link(X[i : i + 1])[0]
            online.partial_fit(X[i : i + 1], y[i : i + 1])
            reported = online.nodes(0)
            v = reported["root"]
            while reported["left"][v] >= 0:
                goes_left = X[i, reported["feature"][v]] <= reported["threshold"][v]
                parent, v = v, reported["left"][v] if goes_left else reported["right"][v]
            if reported["n_rows"][v] == 1.0:  # it opened a cell, which had its parent's forecast
                rest = reported["n_rows"][parent] - 1.0
                mean = (reported["mean"][parent] * (rest + 1.0) - y[i]) / rest
                before = np.clip(np.log(max(mean, 1e-300)), -2.0, 2.0)
            total += np.exp(before) - y[i] * before
        i = np.searchsorted(times, at, side="right") - 1
        assert risks[i] == pytest.approx(total / 120, rel=1e-9)


def test_penalized_trees_choose_the_least_of_their_own_objective() -> None:
    X, y = rows(), np.sin(12.0 * rows()[:, 0])
    forest = Regressor(4, lifetime="penalized", penalty=0.01, random_state=0).fit(X, y)
    path = forest.lifetime_path_
    assert path.risks.shape == (4, len(path.lifetimes))
    assert (path.penalty == 0.01).all()
    assert np.array_equal(path.chosen, forest.lifetimes_)
    assert len(np.unique(path.chosen)) > 1
    for t, tree in enumerate(forest.forest_.trees):
        cost, policy = forest.forest_.parameters.cost, forest.forest_.policies.loss
        times, risks = sweep(tree, policy, cost)
        best = times[np.argmin(risks + 0.01 * times)]
        assert path.chosen[t] == best
        assert path.objective[t].min() == pytest.approx((risks + 0.01 * times).min(), rel=1e-12)
    alone = [
        Regressor(4, lifetime=None, random_state=0).fit(X, y).forest_.trees[t] for t in range(4)
    ]
    free = Regressor(4, lifetime=None, random_state=0).fit(X, y)
    by_tree = []
    for t in range(4):
        free.forest_ = Forest(free.forest_.parameters, [t], trees=[alone[t]])
        by_tree.append(free.predict(X, lifetime=float(max(forest.lifetimes_[t], 1e-9))))
    np.testing.assert_allclose(np.mean(by_tree, axis=0), forest.predict(X), rtol=1e-12)
    dear = Regressor(2, lifetime="penalized", penalty=1e6, random_state=0).fit(X, y)
    assert (dear.lifetimes_ == 0.0).all()
    np.testing.assert_allclose(dear.predict(X), y.mean(), rtol=1e-5)


def test_scaling_the_label_changes_no_chosen_lifetime() -> None:
    X, y = rows(), np.sin(12.0 * rows()[:, 0])
    for lifetime in ("penalized", "prequential", "validation"):
        one = Regressor(3, lifetime=lifetime, random_state=0).fit(X, y)
        two = Regressor(3, lifetime=lifetime, random_state=0).fit(X, 1024.0 * y)
        assert np.array_equal(one.lifetimes_, two.lifetimes_)
        assert (one.lifetimes_ > 0.1).all()


def test_held_out_rows_choose_one_lifetime(tmp_path) -> None:
    X = rows(900, seed=4)
    y = np.random.default_rng(5).poisson(np.exp(2.0 * np.sin(5.0 * X[:, 0]))).astype(float)
    options = {"loss": "poisson", "n_estimators": 5, "random_state": 0}
    forest = Regressor(lifetime="validation", validation_fraction=0.25, **options).fit(X, y)
    held = np.arange(900) % 4 == 3
    plain = Regressor(lifetime=None, **options).fit(X[~held], y[~held])
    path, z = forest.lifetime_path_, None
    losses = []
    for reported in plain.staged_predict(X[held], path.lifetimes):
        z = np.log(reported)
        least = y[held] - y[held] * np.log(np.maximum(y[held], 1.0))  # of a forecast of the label
        losses.append((np.exp(z) - y[held] * z - least).mean())
    np.testing.assert_allclose(path.risks[0], losses, rtol=1e-9)
    assert forest.lifetime_ == path.lifetimes[np.argmin(losses)] == path.chosen[0]
    assert path.lifetimes[0] < forest.lifetime_ < path.lifetimes[-1]
    assert np.array_equal(forest.predict(X), plain.predict(X, lifetime=forest.lifetime_))
    same = Regressor(lifetime=None, **options).fit(X[~held], y[~held])
    same.choose_lifetime(X[held], y[held])
    assert same.lifetime_ == forest.lifetime_
    forest.partial_fit(X[:9], y[:9]).save(tmp_path / "m")
    loaded = dmondrian.load(tmp_path / "m")
    assert loaded.lifetime_ == path.chosen[0]
    for reported, stored in zip(loaded.lifetime_path_, path, strict=True):
        assert np.array_equal(reported, stored)
    with pytest.raises(AttributeError, match="no lifetime was chosen"):
        _ = plain.lifetime_path_
    refitted = forest.set_params(lifetime="penalized").fit(X, y)
    assert refitted.lifetime_path_.risks.shape[0] == 5  # of the trees, not of held-out rows
    weighted = Regressor(lifetime=None, **options).fit(X[~held], y[~held])
    weighted.choose_lifetime(X[held], y[held], np.full(held.sum(), 2.0))
    assert weighted.lifetime_ == path.chosen[0]


def test_streams_cannot_hold_out_rows() -> None:
    with pytest.raises(ParameterError, match="choose_lifetime with held-out rows"):
        Regressor(lifetime="validation").partial_fit(rows(), labels(Regressor))
    with pytest.raises(ParameterError, match="leaves none"):
        Regressor(lifetime="validation").fit(rows(5), labels(Regressor)[:5])


def test_a_horizon_bounds_trees_and_growing_lifetimes() -> None:
    X, y = rows(), labels(Regressor)
    forest = Regressor(1, max_lifetime=1.5, random_state=0).fit(X, y)
    assert forest.lifetime_ == 1.5
    times = forest.nodes(0)["time"]
    assert times[np.isfinite(times)].max() <= 1.5
    with pytest.raises(ParameterError, match=r"realised up to 1\.5 only"):
        forest.predict(X, lifetime=2.0)


@pytest.mark.parametrize("loss", ["poisson", "geometric"])
def test_negative_counts_are_refused_and_nothing_is_learned(loss) -> None:
    forest = Regressor(2, loss=loss).fit(rows(), labels(Regressor))
    before = forest.forest_.total_weight
    with pytest.raises(DataError, match=r"labels >= 0, got -2 in row 1"):
        forest.partial_fit(rows(3), [1.0, -2.0, 0.0])
    assert forest.forest_.total_weight == before


@pytest.mark.parametrize("level", [0.0, 1.0, [0.5, 1.5], [0.5, 0.5], [], ["much"], -0.1])
def test_impossible_levels_are_refused(level) -> None:
    with pytest.raises(ValueError, match="quantile"):
        Regressor(loss="quantile", quantile=level).fit(rows(), labels(Regressor))


@pytest.mark.parametrize("n_classes", [1, 3])
def test_binary_costs_are_of_two_classes(n_classes) -> None:
    with pytest.raises(DataError, match="Only binary classification is supported"):
        Classifier().fit(rows(), np.arange(300) % n_classes)


def test_the_hinge_has_no_probabilities() -> None:
    forest = Classifier(loss="hinge", random_state=0).fit(rows(), labels(Classifier))
    assert not hasattr(forest, "predict_proba")
    assert not hasattr(forest, "predict_log_proba")
    sign = forest.decision_function(rows()) > 0.0
    assert np.array_equal(forest.predict(rows()), sign.astype(int))
    assert not hasattr(forest.set_params(loss="logistic"), "predict_proba")  # it learned the hinge
    other = Classifier(random_state=0).fit(rows(), labels(Classifier)).set_params(loss="hinge")
    assert other.predict_proba(rows()).shape == (300, 2)


@pytest.mark.parametrize(
    "loss",
    ["bernoulli", "logistic", "exponential", "square", "modified_square", "smoothed_hinge"],
)
def test_probabilities_of_a_cell_are_its_shares(loss) -> None:
    X, y = np.zeros((8, 1), np.float32), np.array([0, 1, 1, 1, 0, 1, 1, 1])
    forest = Classifier(1, loss=loss, bound=20.0).fit(X, y)
    np.testing.assert_allclose(forest.predict_proba(X[:1]), [[0.25, 0.75]], rtol=1e-12)
    flipped = Classifier(1, loss=loss, bound=20.0).fit(X, 1 - y)
    np.testing.assert_allclose(flipped.predict_proba(X[:1]), [[0.75, 0.25]], rtol=1e-12)


def test_empty_cells_predict_zero_where_asked() -> None:
    X = np.array([[0.1, 0.1], [0.12, 0.1]], np.float32)
    query = rows(200, seed=2)[:, :2]
    options = {"loss": "quantile", "lifetime": 6.0, "domain": "cube", "random_state": 0}
    prior = Regressor(3, empty_cell="prior", **options).fit(X, [5.0, 5.0]).predict(query)
    parent = Regressor(3, empty_cell="parent", **options).fit(X, [5.0, 5.0]).predict(query)
    assert (parent == 5.0).all()
    assert 0.0 in prior
    assert set(np.round(prior * 3.0 / 5.0, 9)) <= {0.0, 1.0, 2.0, 3.0}
    with pytest.raises(ParameterError, match="geometric"):
        Regressor(loss="geometric", empty_cell="prior").fit(X, [1, 2])
    for more_options in ({"bound": 0.5}, {"bound": 1.0, "aggregation": "aggregate", "lifetime": 1}):
        with pytest.raises(ParameterError, match="bound > 1"):
            Regressor(loss="geometric", **more_options).fit(X, [1, 2])


@pytest.mark.parametrize(
    ("loss", "bound"), [("poisson", 800.0), ("squared", 1e200), ("squared", 1e-200)]
)
def test_bounds_without_a_learning_rate_are_refused(loss: str, bound: float) -> None:
    options = {"loss": loss, "bound": bound, "lifetime": 2.0}
    Regressor(1, **options).fit(rows(), np.zeros(300))
    with pytest.raises(ParameterError, match="beyond what a double holds"):
        Regressor(1, aggregation="aggregate", **options).fit(rows(), np.zeros(300))


def test_a_mixture_over_prunings_knows_large_labels() -> None:
    """Halving the label and the bound halves predictions: the rate is in units of the label."""
    X, y = rows(), 1e5 * rows()[:, 0].astype(np.float64)
    options = {"aggregation": "aggregate", "lifetime": None, "random_state": 0}
    large = Regressor(2, bound=2.0**17, **options).fit(X, y)
    small = Regressor(2, bound=2.0, **options).fit(X, y / 2.0**16)
    assert np.array_equal(large.predict(X), small.predict(X) * 2.0**16)
    assert np.ptp(large.predict(X)) > 1e4


def test_every_node_is_assessed_once() -> None:
    forest = Regressor(1, loss="huber", random_state=0).fit(rows(), labels(Regressor))
    tree = forest.forest_.trees[0]
    m = len(forest.nodes(0)["risk"])
    out, risks = np.ones((m, 1)), np.ones(m)
    assess(forest.forest_.policies.loss, tree, out, risks)
    np.testing.assert_allclose(risks, forest.nodes(0)["risk"] + 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    "loss", [pytest.param(x, marks=pytest.mark.thorough if x == "huber" else ())
             for x in (*REGRESSION, *BINARY)],
)  # fmt: skip
def test_each_loss_knows_weights_and_merges(loss: str) -> None:
    """A weight is so many repeats, to the byte; halves merged are the whole."""
    kind = Classifier if loss in BINARY else Regressor
    X, y = rows(), labels(kind)
    options = {"loss": loss, "domain": "cube", "lifetime": 5.0, "random_state": 0}
    forest = kind(2, **options, **({} if loss in BINARY else {"max_rows_per_leaf": 512}))
    w = np.random.default_rng(3).integers(0, 4, 300)
    weighted = forest.fit(X, y, w)
    query = rows(80, seed=6)
    repeated = clone(forest).fit(np.repeat(X, w, 0), np.repeat(y, w))
    assert same_forest(weighted, repeated)
    parts = [
        clone(forest).partial_fit(X[at], y[at], sample_weight=w[at], **more(kind))
        for at in (slice(0, 90), slice(90, 300))
    ]
    merged = parts[0].merge(parts[1])
    ask = "decision_function" if loss in BINARY else "predict_link"
    reported, expected = getattr(merged, ask)(query), getattr(weighted, ask)(query)
    np.testing.assert_allclose(reported, expected, rtol=1e-12, atol=1e-12)
    assert not np.allclose(getattr(parts[0], ask)(query), expected, rtol=1e-3)


def test_forests_of_other_losses_of_your_own_are_not_merged() -> None:
    options = {"domain": "cube", "lifetime": 2.0, "random_state": 0}
    one, two = (
        Regressor(2, loss=ConvexLoss(square, solution=mean), **options).fit(rows(), rows()[:, 0])
        for mean in (float, np.positive)
    )
    with pytest.raises(ParameterError, match="other losses"):
        one.merge(two)
    assert one.merge(one).predict(rows()).shape == (300,)


def square(z: float, y: float) -> float:
    return (y - z) ** 2


def test_rows_without_weight_choose_no_lifetime() -> None:
    forest = Regressor(2, lifetime=None, random_state=0).fit(rows(), labels(Regressor))
    with pytest.raises(ParameterError, match="positive weight"):
        forest.choose_lifetime(rows(), labels(Regressor), np.zeros(300))
    assert forest.lifetime_ == np.inf


def test_tiny_means_of_the_geometric_family_are_no_overflow() -> None:
    forest = Regressor(2, loss="geometric", random_state=0).fit(rows(), np.full(300, 5e-320))
    with np.errstate(all="raise", under="ignore"):
        assert np.allclose(forest.predict(rows()), 5e-320, rtol=1e-3, atol=0.0)


def test_predictions_are_of_the_loss_learned_whatever_is_set_since() -> None:
    X, y = rows(), labels(Regressor)
    quantiles = Regressor(2, loss="quantile", quantile=[0.9, 0.1], random_state=0).fit(X, y)
    before = quantiles.predict(X)
    for changed in ({"quantile": [0.1, 0.9]}, {"quantile": 0.5}, {"loss": "squared"}):
        assert np.array_equal(quantiles.set_params(**changed).predict(X), before)
    shares = Classifier(2, loss="logistic", random_state=0).fit(X, labels(Classifier))
    reported = shares.predict_proba(X)
    assert np.array_equal(shares.set_params(loss="exponential").predict_proba(X), reported)
