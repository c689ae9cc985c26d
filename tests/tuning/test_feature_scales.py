"""The search for feature scales: what it looks at, what it leaves out, and when it ends."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.datasets import make_classification

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianForestClassifier,
    MondrianForestRegressor,
    OnlineRandomForestClassifier,
)
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.encoded_rows import encode_rows
from dmondrian.ensemble.settings.feature_units import round_to, units_of
from dmondrian.prequential.progressive_validation import Trial, late_loss
from dmondrian.tree import nodes
from dmondrian.tree.nodes import fields
from dmondrian.tuning import auto_settings, feature_scales, scale_slopes
from dmondrian.tuning.feature_scales import (
    _gains,
    _idle,
    _losses_alone,
    _n_trees,
    _scaled,
    _ScoringTrial,
    _signs,
    _standard_error,
    learn_scales,
)
from tests.estimators.test_amf import same_forest
from tests.estimators.test_scales import LAST, SHORT, wave


@pytest.mark.parametrize(
    "estimator",
    [
        AMFClassifier(random_state=0),
        MondrianForestClassifier(random_state=0, aggregation="mean"),
        pytest.param(
            MondrianForestRegressor(random_state=0, aggregation="hierarchy", lifetime=None),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            GeneralizedMondrianForestRegressor("huber", random_state=0),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_a_few_columns_are_found_among_many(estimator: Any) -> None:
    """Also by forests that are not aggregated, whose splits have no scores."""
    X = np.random.default_rng(0).random((LAST, 40)).astype(np.float32)
    y = (X[:, :3].sum(axis=1) > 1.5).astype(np.float64)
    drawn = estimator._forest_parameters(40, *([2] if is_classifier(estimator) else []))
    scales = np.array(learn_scales(drawn, (X, y, np.ones(len(X))), n_threads=2))
    assert set(np.argsort(scales)[-3:]) == {0, 1, 2}
    assert np.median(scales) <= 2.0**-4 * scales[:3].min()


def test_a_few_columns_are_found_among_hundreds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By steps along the score, without random ones."""
    monkeypatch.setattr(feature_scales, "_by_evolution", None)
    X = np.random.default_rng(0).random((LAST, 201)).astype(np.float32)
    y, w = (X[:, :3].sum(axis=1) > 1.5).astype(np.float64), np.ones(LAST)
    drawn = AMFClassifier(random_state=0)._forest_parameters(201, 2)
    scales = np.array(learn_scales(drawn, (X, y, w), 2))
    assert set(np.argsort(scales)[-3:]) == {0, 1, 2}
    idle = _idle(drawn, np.ones(201, bool), (X, y, w), 2)
    assert idle.sum() > 100
    assert (scales[idle] == 2.0**-16).all()


@pytest.mark.parametrize(("d", "is_last"), [(200, True), (201, True), (201, False)])
def test_more_steps_follow_the_score_where_no_random_ones_do(
    monkeypatch: pytest.MonkeyPatch, d: int, is_last: bool
) -> None:
    steps, evolved, by_score = [], [], feature_scales._by_score

    def searched(*given: Any) -> Any:
        steps.append(given[3])
        return by_score(*given)

    def by_evolution(_: Any, log_scales: np.ndarray, *others: Any) -> Any:
        evolved.append(log_scales)
        return log_scales, log_scales

    monkeypatch.setattr(feature_scales, "_by_score", searched)
    monkeypatch.setattr(feature_scales, "_by_evolution", by_evolution)
    X = np.random.default_rng(0).random((SHORT, d)).astype(np.float32)
    drawn = AMFRegressor(random_state=0)._forest_parameters(d)
    learn_scales(drawn, (X, X[:, 0].astype(np.float64), np.ones(SHORT)), 2, is_last)
    is_alone = d > 200 and is_last
    assert steps == [feature_scales._STEPS_ALONE if is_alone else feature_scales._STEPS]
    assert len(evolved) == (is_last and not is_alone)


def test_a_small_gain_among_hundreds_of_columns_is_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((LAST, 201)).astype(np.float32)
    y = (rng.random(LAST) < np.where(X[:, 0] > 0.5, 0.65, 0.35)).astype(np.float64)
    drawn, rows = AMFClassifier(random_state=0)._forest_parameters(201, 2), (X, y, np.ones(LAST))
    assert learn_scales(drawn, rows, 2) is None
    monkeypatch.setattr(feature_scales, "_SURE_BY_SCORE", 2.0)
    assert learn_scales(drawn, rows, 2) is not None


def test_idle_columns_are_those_that_are_worth_nothing_alone() -> None:
    rng = np.random.default_rng(1)
    X = rng.random((LAST, 9)).astype(np.float32)
    X[:, 8] = 0.5
    y = ((X[:, 0] > 0.3) & (np.abs(X[:, 1] - 0.5) < 0.3)).astype(np.float64)
    drawn = AMFClassifier(random_state=0)._forest_parameters(9, 2)
    rows = X, y, np.ones(LAST)
    idle = _idle(drawn, X.min(axis=0) < X.max(axis=0), rows, 2)
    assert not idle[:2].any()
    assert not idle[8]  # one that does not vary has no scale to lose
    assert idle[2:8].sum() >= 4  # of noise, a column is useful by chance now and then
    many = np.hstack([X[:, :2], rng.random((LAST, 50)).astype(np.float32)])
    drawn = AMFClassifier(random_state=0)._forest_parameters(52, 2)
    scales = np.array(learn_scales(drawn, (many, y, np.ones(LAST)), n_threads=2))
    assert np.mean(scales[2:] <= 2.0**-12) > 0.7  # the least before idle columns were left out
    assert (scales[:2] >= 2.0**-2).all()


@pytest.mark.parametrize(
    "estimator",
    [
        AMFClassifier(random_state=0),
        MondrianForestClassifier(random_state=0, aggregation="hierarchy", lifetime=None),
        MondrianForestClassifier(random_state=0, aggregation="mean"),
        AMFRegressor(random_state=0),
        MondrianForestRegressor(random_state=0, aggregation="hierarchy", lifetime=None),
        MondrianForestRegressor(random_state=0, aggregation="mean"),
    ],
    ids=repr,
)
def test_columns_alone_are_tried_as_among_columns_of_zeros(estimator: Any) -> None:
    rng = np.random.default_rng(4)
    X = rng.random((SHORT, 3)).astype(np.float32)
    y = (rng.random(SHORT) < X[:, 1]).astype(np.float64)
    n_classes = 2 * isinstance(estimator, AMFClassifier | MondrianForestClassifier)
    drawn, rows = estimator._forest_parameters(3, n_classes), (X, y, np.ones(SHORT))

    def among_zeros(j: int) -> float:
        alone = np.zeros_like(X)
        alone[:, j : j + 1] = X[:, j : j + 1]
        return late_loss(drawn, range(2), (alone, y, rows[2]), n_chunks=2)

    losses = [among_zeros(j) for j in range(4)]  # the last is that without columns
    reported = _losses_alone(drawn, np.array([True, False, True]), rows, 1)
    assert reported.tolist() == [losses[0], np.inf, losses[2], losses[3]]


def test_memory_is_reserved_for_nodes_that_there_may_be() -> None:
    drawn = AMFClassifier(random_state=0)._forest_parameters(10, 2)
    for parameters, expected in (
        (drawn, 10_000),
        (dataclasses.replace(drawn, max_nodes=200), 200),
        (dataclasses.replace(drawn, max_nodes=3), 64),  # as there was
        (dataclasses.replace(drawn, n_classes=1000), 2**23 // (8 * (6 + 1000) + 80)),
        (dataclasses.replace(drawn, n_features=10**6), 64),
    ):
        forest = Ensemble(parameters, range(2))
        forest.reserve(10_000)
        assert [len(tree.i) for tree in forest.trees] == [expected] * 2


def test_a_trial_forecasts_rows_that_it_has_not_learned() -> None:
    X, y = wave(SHORT, noise_columns=1)
    drawn, w = AMFRegressor(random_state=0)._forest_parameters(2), np.ones(SHORT)
    trial, forest = Trial(drawn, range(3), (X, y, w), 100, n_chunks=2), Ensemble(drawn, range(3))
    forest.update(X[:100], y[:100], w[:100])
    losses = []
    for part in (slice(100, 178), slice(178, SHORT)):
        sums = forest.predict_sums(X[part])
        losses.append((sums.total[:, 0] / 3 - y[part]) ** 2)
        forest.update(X[part], y[part], w[part])
    assert np.allclose(trial.losses, np.concatenate(losses), rtol=1e-12)


def columns_of_all_kinds(n: int) -> np.ndarray:
    """Rows with bits, whole numbers, few and many decimals, a constant, and both zeros."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n, 12)).astype(np.float32)
    X[:, :4] = X[:, :4] > 0.0
    X[:, 4:6] = np.rint(100 * X[:, 4:6]) + 0.0  # no -0
    X[:, 6] = np.rint(8 * X[:, 6]) / 1024 + 0.0
    X[:, 7] = 3.5
    X[: n // 2, 8] = 0.0
    X[n // 2 :, 8] = -0.0
    return X


@pytest.mark.parametrize(
    ("d", "n_numeric", "n_stepped", "n_binary"), [(8, 0, 3, 5), (10, 2, 3, 5), (12, 7, 0, 5)]
)
@pytest.mark.parametrize("n_classes", [0, 3])
def test_rows_arranged_once_make_the_trees_of_their_products(
    n_classes: int, d: int, n_numeric: int, n_stepped: int, n_binary: int
) -> None:
    rng = np.random.default_rng(6)
    X = np.ascontiguousarray(columns_of_all_kinds(LAST)[:, :d])
    y = rng.integers(n_classes, size=LAST) if n_classes else X[:, 4] + rng.standard_normal(LAST)
    make = AMFClassifier if n_classes else AMFRegressor
    drawn = make(random_state=0)._forest_parameters(X.shape[1], *([n_classes] * (n_classes > 0)))
    once = encode_rows(drawn, X)
    assert once is not None
    kinds = once.columns.numeric, once.columns.stepped, once.columns.binary
    assert [len(features) for features in kinds] == [n_numeric, n_stepped, n_binary]
    for scales in (np.ones(X.shape[1]), np.exp2(rng.integers(-24, 2, X.shape[1]))):
        scaled = dataclasses.replace(drawn, feature_scales=tuple(scales.tolist()))
        mine, other = (
            Trial(scaled, range(2), (rows, y.astype(float), np.ones(LAST)), LAST // 2, n_chunks=2)
            for rows in (once, X)
        )
        assert mine.losses.tobytes() == other.losses.tobytes()
        assert all(
            a.tobytes() == b.tobytes()
            for one, two in zip(mine._forest.trees, other._forest.trees, strict=True)
            for a, b in zip(fields(one).values(), fields(two).values(), strict=True)
        )


def test_rows_whose_products_may_not_be_exact_are_not_arranged_once() -> None:
    X = np.ascontiguousarray(columns_of_all_kinds(SHORT)[:, :8])
    drawn = AMFClassifier(random_state=0)._forest_parameters(X.shape[1], 2)
    assert encode_rows(drawn, X) is not None
    for factor in (2.0**-70, 2.0**-130, 2.0**90):  # of whole numbers: values or units
        hostile = X.copy()
        hostile[:, 4] *= np.float32(factor)
        assert encode_rows(drawn, hostile) is None
    assert encode_rows(dataclasses.replace(drawn, domain="cube"), X) is None
    online = OnlineRandomForestClassifier(random_state=0)._forest_parameters(X.shape[1], 2)
    assert encode_rows(online, X) is None  # it has no boxes
    rounded = dataclasses.replace(drawn, feature_units=(2.0**-10,) * X.shape[1])
    assert encode_rows(rounded, X) is None


def test_columns_that_help_together_alone_stay() -> None:
    rng = np.random.default_rng(2)
    X = rng.random((LAST, 6)).astype(np.float32)
    y = ((X[:, 0] > 0.5) != (X[:, 1] > 0.5)).astype(np.float64)
    drawn, rows = AMFClassifier(random_state=0)._forest_parameters(6, 2), (X, y, np.ones(LAST))
    scales = np.array(learn_scales(drawn, rows, n_threads=2))
    assert scales[:2].min() >= 2.0**3 * scales[2:].max()


def reported_together(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of 40 columns whose first five tell the class, some of them beside others only."""
    X, y = make_classification(
        LAST, 40, n_informative=5, n_redundant=0, n_clusters_per_class=3, shuffle=False,
        random_state=seed,
    )  # fmt: skip
    order = np.random.default_rng(seed).permutation(LAST)
    return np.ascontiguousarray(X[order], np.float32), y[order].astype(float), np.ones(LAST)


@pytest.mark.thorough  # as above, among more columns
def test_columns_that_are_worth_more_together_than_alone_are_not_left_out() -> None:
    drawn, rows = AMFClassifier(random_state=0)._forest_parameters(40, 2), reported_together(5)
    scales = np.array(learn_scales(drawn, rows, n_threads=2))
    assert scales[:5].min() >= 2.0**-6
    assert np.median(scales[5:]) <= 2.0**-7


@pytest.mark.parametrize("auto", [("feature_scales",), ("feature_scales", "feature_units")])
def test_scales_are_tried_on_rows_that_are_rounded_as_later_ones_are(
    auto: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = wave(LAST + 1)
    seen: list[np.ndarray] = []

    def learn(parameters: Any, rows: Any, n_threads: int, is_last: bool) -> None:
        assert is_last
        seen.append(rows[0])

    monkeypatch.setattr(auto_settings, "learn_scales", learn)
    drawn = AMFRegressor(random_state=0)._forest_parameters(X.shape[1])
    auto_settings.choose(drawn, auto, (X, y, np.ones(len(X))), warmup_rows=LAST)
    units = units_of(X[: auto_settings.UNIT_ROWS])
    assert units is not None
    expected = round_to(X[:LAST], np.array(units)) if "feature_units" in auto else X[:LAST]
    assert not np.array_equal(round_to(X[:LAST], np.array(units)), X[:LAST])
    assert np.array_equal(seen[0], expected)


def test_trials_keep_no_rows_of_their_own() -> None:
    X, y = wave(SHORT)
    drawn = AMFRegressor(random_state=0)._forest_parameters(X.shape[1])
    scaled = dataclasses.replace(drawn, feature_scales=(0.5,) * X.shape[1])
    once = encode_rows(drawn, X)
    trial = Trial(scaled, range(2), (once, y, np.ones(SHORT)), SHORT // 2)
    assert trial._rows[0] is once


def test_an_early_choice_has_to_be_surer() -> None:
    """A small gain is believed where the choice is for good, and not before."""
    rng = np.random.default_rng(4)
    X = rng.random((LAST, 6)).astype(np.float32)
    y = (rng.random(LAST) < 0.05 + 0.9 * X[:, 0]).astype(np.float64)
    drawn, rows = AMFClassifier(random_state=0)._forest_parameters(6, 2), (X, y, np.ones(LAST))
    assert learn_scales(drawn, rows, 2) is not None
    assert learn_scales(drawn, rows, 2, is_last=False) is None
    clear = X, (X[:, 0] > 0.5).astype(np.float64), np.ones(LAST)
    assert learn_scales(drawn, clear, 2, is_last=False) is not None


def test_cuts_threads_and_storing_change_no_early_scale() -> None:
    X, y = wave(600, noise_columns=3)
    whole = AMFRegressor(3, random_state=0).fit(X, y)
    assert whole.feature_scales_[0] == 1.0  # of the first 512 rows
    assert (whole.feature_scales_[1:] < 1.0).all()
    parts = AMFRegressor(3, random_state=0, n_jobs=2)
    for start, stop in itertools.pairwise((0, 100, 257, 258, 512, 513, 600)):
        parts = pickle.loads(pickle.dumps(parts.partial_fit(X[start:stop], y[start:stop])))
        assert (parts.feature_scales_ != 1.0).any() == (stop > 256)
    assert same_forest(whole, parts)


def test_heavy_rows_decide() -> None:
    """Rows of nearly no weight, which another column is about, change little."""
    rng = np.random.default_rng(3)
    X = rng.random((1024, 6)).astype(np.float32)
    w = np.where(rng.random(1024) < 0.3, 1.0, 1e-3)
    y = np.where(w == 1.0, X[:, 0] > 0.5, X[:, 1] > 0.5).astype(np.float64)
    drawn = AMFClassifier(random_state=0)._forest_parameters(6, 2)
    scales = np.array(learn_scales(drawn, (X, y, w), 2))
    assert scales[0] == 1.0
    assert scales[1:].max() <= 2.0**-4


@pytest.mark.parametrize("n_classes", [0, 3])
def test_scores_are_those_of_forecasts_of_the_rows_that_are_left(n_classes: int) -> None:
    rng = np.random.default_rng(4)
    X, w = rng.random((200, 3)).astype(np.float32), rng.choice([0.5, 1.0, 3.0], 200)
    y = np.floor(3.0 * X[:, 0]).astype(np.float64)
    make = AMFClassifier if n_classes else AMFRegressor
    drawn = make(random_state=0)._forest_parameters(3, *([n_classes] * (n_classes > 0)))
    drawn = _scaled(drawn, np.array([0.0, -1.0, -2.0]))
    trial, forest = _ScoringTrial(drawn, (X, y, w), 1), Ensemble(drawn, range(10))
    forest.update(X[:100], y[:100], w[:100])
    expected = np.zeros((2, 3))
    for part in (slice(100, 150), slice(150, 200)):
        prepared = forest.prepare(X[part])
        sums = forest.predict_sums(prepared)
        if n_classes:  # the loss is -log of the label's share in the forecast
            slopes = [
                1.0 / row[int(own)] for row, own in zip(sums.total / 10, y[part], strict=True)
            ]
        else:  # and half the square of the error
            slopes = [own - mean for mean, own in zip(sums.total[:, 0] / 10, y[part], strict=True)]
        given = w[part] * np.array(slopes)
        expected += scale_slopes.scores(forest, prepared.values, y[part], given, w[part])
        forest.update(X[part], y[part], w[part])
    assert np.allclose(trial.scores, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "power", [-1040, *(pytest.param(p, marks=pytest.mark.thorough) for p in (-520, -60, 0)), 450]
)
def test_labels_of_any_size_have_the_same_scales(power: int) -> None:
    X, y = wave(SHORT, noise_columns=2)
    y = np.rint(2.0**20 * y / np.abs(y).max()) * 2.0**-20  # a power of two changes no digit
    drawn, w = AMFRegressor(random_state=0)._forest_parameters(3), np.ones(SHORT)
    scales = learn_scales(drawn, (X, y, w), 2)
    assert scales is not None
    assert learn_scales(drawn, (X, np.ldexp(y, power), w), 2) == scales


def test_neighbours_that_are_alike_are_no_evidence() -> None:
    """Columns and labels that are walks of their own go together for a while by chance."""
    n, d, found = 256, 6, 0
    for seed in range(8):
        steps = np.random.default_rng(seed).standard_normal((n, d + 1))
        walks = np.zeros((n, d + 1))
        for t in range(1, n):
            walks[t] = 0.95 * walks[t - 1] + steps[t]
        drawn = AMFRegressor(random_state=0)._forest_parameters(d)
        rows = walks[:, :d].astype(np.float32), walks[:, d], np.ones(n)
        found += learn_scales(drawn, rows, 2, is_last=False) is not None
    assert found <= 1


def test_a_standard_error_is_the_largest_of_all_blocks() -> None:
    values = np.repeat([1.0, -1.0], 32)  # 64: in blocks of 8 there are as few as may be
    assert _standard_error(values) == pytest.approx(np.sqrt(1.0 / 8.0))
    alternating = np.tile([1.0, -1.0], 32)
    assert _standard_error(alternating) == pytest.approx(np.sqrt(1.0 / 64.0))


def test_nothing_is_tried_where_one_column_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_scales, "_by_score", None)
    X = np.zeros((SHORT, 4), np.float32)
    X[:, 1] = np.arange(SHORT)
    drawn = AMFRegressor(random_state=0)._forest_parameters(4)
    assert learn_scales(drawn, (X, X[:, 1].astype(float), np.ones(SHORT))) is None


def test_few_trees_are_tried_where_there_are_many_classes() -> None:
    drawn = AMFClassifier(random_state=0)._forest_parameters(4, 2)
    classes = [(50, 10), (100, 5), (1000, 2)]
    for n_classes, trees in classes:
        assert _n_trees(dataclasses.replace(drawn, n_classes=n_classes)) == trees
    assert _n_trees(AMFRegressor(random_state=0)._forest_parameters(4)) == 10


def test_idle_columns_are_left_out_at_once_where_the_choice_is_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feature_scales, "_by_evolution", lambda _, found, *others: (found, found))
    X = np.random.default_rng(6).random((LAST, 40)).astype(np.float32)
    y = (X[:, 0] > 0.5).astype(np.float64)
    drawn, w = AMFClassifier(random_state=0)._forest_parameters(40, 2), np.ones(LAST)
    scales = np.array(learn_scales(drawn, (X, y, w), 2))
    idle = _idle(drawn, np.ones(40, bool), (X, y, w), 2)
    assert idle.sum() > 20
    assert (scales[idle] == 2.0**-16).all()
    monkeypatch.setattr(feature_scales, "_idle", None)
    early = np.array(learn_scales(drawn, (X, y, w), 2, is_last=False))
    assert early.min() >= 2.0**-12


@pytest.mark.parametrize(
    ("estimator", "n_classes"),
    [(AMFClassifier(random_state=0), 3), (AMFRegressor(random_state=0), 0),
     (MondrianForestClassifier(random_state=0, aggregation="mean"), 3)],
    ids=["log loss", "squares", "Brier score"],
)  # fmt: skip
def test_a_tree_gains_what_the_others_lose_less_with_it_twice(
    estimator: Any, n_classes: int
) -> None:
    rng = np.random.default_rng(4)
    X, w = rng.random((200, 3)).astype(np.float32), rng.choice([0.5, 1.0, 3.0], 200)
    y = np.floor(3.0 * X[:, 0]).astype(np.float64)
    drawn = estimator._forest_parameters(3, *([n_classes] * (n_classes > 0)))
    steps = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, -1.0], [0.0, 0.0, -3.0], [-1.0, 1.0, 0.0]])
    forecasts = []
    for step, number in zip(steps, (12, 13, 12, 13), strict=True):
        tree, own = Ensemble(_scaled(drawn, step), [number]), []
        for part in (slice(0, 100), slice(100, 150), slice(150, 200)):
            if part.start:
                own.append(tree.predict_sums(tree.prepare(X[part])).total)
            tree.update(X[part], y[part], w[part])
        forecasts.append(np.concatenate(own))

    def lost(counts: np.ndarray) -> float:
        mean = np.tensordot(counts / counts.sum(), np.array(forecasts), 1)
        if not n_classes:
            each = (y[100:] - mean[:, 0]) ** 2
        elif isinstance(estimator, AMFClassifier):
            each = -np.log(mean[np.arange(100), y[100:].astype(int)])
        else:
            each = ((mean - np.eye(3)[y[100:].astype(int)]) ** 2).sum(axis=1)
        return float(each @ w[100:])

    losses = np.array([lost(1.0 + np.eye(4)[i]) for i in range(4)])
    expected = -(losses - losses.min()) / np.ptp(losses)
    gains = feature_scales._gains(drawn, steps, 12, (X, y, w), 2)
    assert np.allclose(gains, expected, rtol=1e-9)


def test_each_round_has_signs_and_trees_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, int, int, int]] = []
    numbers: list[int] = []

    def signs(*given: int) -> np.ndarray:
        drawn.append(given)
        return _signs(*given)

    def gains(*given: Any) -> np.ndarray:
        numbers.append(given[2])
        return _gains(*given)

    monkeypatch.setattr(feature_scales, "_signs", signs)
    monkeypatch.setattr(feature_scales, "_gains", gains)
    X, y = wave(SHORT, noise_columns=2)
    parameters = AMFRegressor(random_state=5)._forest_parameters(3)
    learn_scales(parameters, (X, y, np.ones(SHORT)), 2)
    assert drawn == [(parameters.seed, turn, 8, 3) for turn in range(20)]
    assert numbers == [10 + 8 * turn for turn in range(20)]


def test_trees_that_scales_were_not_found_with_judge_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales that were lucky with the trees that they were found with do not stay for that."""
    judge, judged = feature_scales._evaluate, []

    def noted(*given: Any) -> Any:
        judged.append((given[1].tolist(), given[4] if len(given) > 4 else 0))
        return judge(*given)

    ends = np.array([0.0, -3.0, -4.0]), np.array([0.0, -5.0, -5.0])
    monkeypatch.setattr(feature_scales, "_evaluate", noted)
    monkeypatch.setattr(feature_scales, "_by_evolution", lambda *_: ends)
    X, y = wave(SHORT, noise_columns=2)
    found = learn_scales(
        AMFRegressor(random_state=5)._forest_parameters(3), (X, y, np.ones(SHORT)), 2
    )
    last = judged[-4:]
    assert {first for _, first in last} == {feature_scales._JUDGES}
    assert [scales for scales, _ in last][::2] == [[0.0, 0.0, 0.0], ends[0].tolist()]
    assert last[3][0] == ends[1].tolist()
    assert found in {tuple(np.exp2(scales).tolist()) for scales, _ in last[1:]}
    assert feature_scales._JUDGES > 10 + 20 * 8


def test_no_step_is_beyond_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """None makes a column too large for a float32, or follows one that does not vary."""
    tried = []

    def gains(_: Any, steps: np.ndarray, *others: Any) -> np.ndarray:
        tried.append(steps)
        return steps.sum(axis=1)  # larger scales always gain

    monkeypatch.setattr(feature_scales, "_gains", gains)
    drawn = AMFRegressor(random_state=0)._forest_parameters(4)
    varies, least = np.array([True, True, True, False]), np.full(4, -12.0)
    most = np.array([np.inf, 0.0, np.inf, 0.0])
    ends = feature_scales._by_evolution(
        drawn, np.array([-1.0, -1.0, 0.0, 0.0]), varies, (least, most), (None, None, None), 1
    )
    steps = np.concatenate(tried)
    assert (steps.max(axis=0)[1:] == [0.0, 1.0, 0.0]).all()
    assert 0.0 < steps[:, 0].max() <= 1.0
    assert (steps[:, 3] == 0.0).all()
    for end in ends:
        assert end.max() == end[3] == 0.0
        assert end.min() >= -12.0


def test_the_boxes_of_large_trees_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = wave(SHORT, noise_columns=1)
    forest, w = Ensemble(AMFRegressor(random_state=0)._forest_parameters(2), range(2)), np.ones(100)
    forest.update(X[:100], y[:100], w)
    given = forest, X[100:], y[100:], np.ones(SHORT - 100), np.ones(SHORT - 100)
    whole = scale_slopes.scores(*given)
    assert (whole[0] != 0.0).all()
    monkeypatch.setattr(nodes, "_MOST_TOGETHER", 7)
    assert scale_slopes.scores(*given).tobytes() == whole.tobytes()


@pytest.mark.parametrize(("n", "stage", "is_last"), [(600, 512, False), (LAST + 1, LAST, True)])
def test_only_the_choice_on_all_rows_is_for_good(
    monkeypatch: pytest.MonkeyPatch, n: int, stage: int, is_last: bool
) -> None:
    seen: list[tuple[int, bool]] = []

    def learn(parameters: Any, rows: Any, n_threads: int, is_last: bool) -> None:
        seen.append((len(rows[0]), is_last))

    monkeypatch.setattr(auto_settings, "learn_scales", learn)
    X, y = wave(n)
    drawn = AMFRegressor(random_state=0)._forest_parameters(X.shape[1])
    auto_settings.choose(drawn, ("feature_scales",), (X, y, np.ones(n)), warmup_rows=LAST)
    assert seen == [(stage, is_last)]
