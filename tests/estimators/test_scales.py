"""Feature scales: what they are worth, and what they never change."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
)
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError
from dmondrian.forest.forest import Forest
from dmondrian.prequential.progressive_validation import late_loss
from dmondrian.tuning.feature_scales import _signs, learn_scales
from tests.estimators.test_amf import same_forest

LAST = 1024
"""Rows that scales are learned from here: enough for these data, and a quarter of the time."""
SHORT = 256
"""Rows where the question is what becomes of scales, not how good they are."""


def wave(n: int, noise_columns: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A target that turns quickly in the first column, and in no other."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 1 + noise_columns)).astype(np.float32)
    return X, np.sin(20 * X[:, 0]) + 0.1 * rng.standard_normal(n)


def test_scales_find_the_column_that_matters() -> None:
    X, y = wave(LAST + 2000)
    n = LAST + 1
    plain, learned = (
        AMFRegressor(10, feature_scales=scales, warmup_rows=LAST, random_state=0, n_jobs=2).fit(
            X[:n], y[:n]
        )
        for scales in (None, "learned")
    )
    assert learned.feature_scales_[0] == 1.0
    assert (learned.feature_scales_[1:] <= 2.0**-4).all()
    assert plain.score(X[LAST:], y[LAST:]) < 0.8
    assert learned.score(X[LAST:], y[LAST:]) > 0.95
    classes = (y > 0).astype(int)
    scales = AMFClassifier(5, feature_scales="learned", warmup_rows=LAST, n_jobs=2, random_state=0)
    scales.fit(X[:n], classes[:n])
    assert scales.feature_scales_[0] == 1.0
    assert (scales.feature_scales_[1:] <= 2.0**-4).all()


def test_columns_may_be_as_large_as_a_float32_while_scales_are_learned() -> None:
    X, y = wave(2 * LAST)
    X *= np.float32(2.0**128 * (1 - 2.0**-23))  # up to the largest one; twice that is none
    assert np.isfinite(X).all()
    model = AMFRegressor(10, feature_scales="learned", warmup_rows=LAST, random_state=0, n_jobs=2)
    model.fit(X[:LAST], y[:LAST])
    model.partial_fit(X[LAST : LAST + 1], y[LAST : LAST + 1])
    assert model.feature_scales_.max() == model.feature_scales_[0] == 1.0
    assert model.score(X[LAST:], y[LAST:]) > 0.95


def test_scales_that_do_not_help_are_not_used() -> None:
    rng = np.random.default_rng(3)
    X = rng.random((LAST, 3)).astype(np.float32)
    drawn = AMFRegressor(random_state=0)._forest_parameters(3)
    noise = X, rng.standard_normal(LAST), np.ones(LAST)
    assert learn_scales(drawn, noise, n_threads=2) is None
    x, y = wave(LAST, noise_columns=2)
    signal = x, 1e130 * y, np.ones(LAST)
    scales = learn_scales(drawn, signal, n_threads=2)
    chosen = dataclasses.replace(drawn, feature_scales=scales)
    assert late_loss(chosen, range(10), signal) < 0.5 * late_loss(drawn, range(10), signal)


def test_every_seed_has_its_own_signs() -> None:
    seeds = [0, 1, 2**63 + 1, 2**63 + 2, 2**64 - 1]
    drawn = [_signs(seed, turn, 16, 20) for seed in seeds for turn in range(2)]
    assert len({signs.tobytes() for signs in drawn}) == len(drawn)
    assert set(np.unique(drawn)) == {-1.0, 1.0}
    assert abs(np.mean(drawn)) < 0.1


def test_a_forest_of_scales_is_the_forest_of_scaled_columns() -> None:
    X, y = wave(500, noise_columns=2)
    scales = np.array([1.0, 0.125, 2.0**-12], np.float32)
    drawn = AMFRegressor(random_state=5)._forest_parameters(3)
    inside = Forest(dataclasses.replace(drawn, feature_scales=tuple(scales.tolist())), range(3))
    outside = Forest(drawn, range(3))
    inside.update(X, y)
    outside.update(X * scales, y)
    for mine, other in zip(inside.state()[1], outside.state()[1], strict=True):
        assert all(mine[name].tobytes() == other[name].tobytes() for name in mine)
    found, expected = inside.predict_sums(X), outside.predict_sums(X * scales)
    assert found.total.tobytes() == expected.total.tobytes()
    assert (inside.weighted_depth(X) == outside.weighted_depth(X * scales)).all()


def leaves_of(nodes: dict[str, np.ndarray], X: np.ndarray) -> np.ndarray:
    """The leaf of each row, by the thresholds that `nodes` tells."""
    at = np.full(len(X), nodes["root"])
    while (nodes["feature"][at] >= 0).any():
        feature = nodes["feature"][at]
        goes_left = X[np.arange(len(X)), np.maximum(feature, 0)] <= nodes["threshold"][at]
        below = np.where(goes_left, nodes["left"][at], nodes["right"][at])
        at = np.where(feature >= 0, below, at)
    return at


def test_nodes_are_reported_in_the_units_of_the_data() -> None:
    X, y = wave(SHORT + 1)
    forest = AMFRegressor(
        1, feature_scales="learned", warmup_rows=SHORT, use_aggregation=False, random_state=0
    ).fit(X, y)
    assert forest.feature_scales_.min() < 1.0
    nodes = forest.nodes(0)
    units = forest.feature_units_ / forest.feature_scales_  # half of one may be rounded away
    assert (units > 0.0).all()
    assert (np.abs(nodes["lower"][nodes["root"]] - X.min(axis=0)) <= units / 2).all()
    assert (np.abs(nodes["upper"][nodes["root"]] - X.max(axis=0)) <= units / 2).all()
    assert (nodes["mean"][leaves_of(nodes, X)] == forest.predict(X)).all()


def test_chunks_threads_and_storing_change_no_byte(tmp_path: Path) -> None:
    X, y = wave(SHORT + 50, noise_columns=1)
    given = {"feature_scales": "learned", "warmup_rows": SHORT, "random_state": 2}
    whole = AMFRegressor(2, n_jobs=2, **given).fit(X, y)
    parts = AMFRegressor(2, **given)
    for start in range(0, 240, 60):
        parts.partial_fit(X[start : start + 60], y[start : start + 60])
    parts.save(tmp_path / "model")
    for half in (parts, dmondrian.load(tmp_path / "model")):
        assert (half.feature_scales_ == 1.0).all()
        assert same_forest(whole, half.partial_fit(X[240:], y[240:]))
        assert half.forest_.parameters == whole.forest_.parameters
        assert half.forest_.parameters.feature_scales is not None


def scales_of(X: np.ndarray, y: np.ndarray, seed: int = 0) -> np.ndarray:
    drawn = AMFRegressor(random_state=seed)._forest_parameters(X.shape[1])
    found = learn_scales(drawn, (X, y, np.ones(len(X))), n_threads=2)
    assert found is not None
    return np.array(found)


def test_scales_go_with_their_columns() -> None:
    X, y = wave(LAST, noise_columns=4)
    for order in ([0, 1, 2, 3, 4], [1, 2, 3, 4, 0]):
        scales = scales_of(np.ascontiguousarray(X[:, order]), y)
        mine = order.index(0)
        assert scales[mine] == 1.0
        assert (np.delete(scales, mine) <= 2.0**-3).all()


def split_shares(X: np.ndarray, y: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """How often each column is split on, as a share of all splits."""
    forest = AMFRegressor(20, feature_scales=scales, random_state=0).fit(X, y)
    features = np.concatenate([forest.nodes(t)["feature"] for t in range(20)])
    counts = np.bincount(features[features >= 0], minlength=X.shape[1])
    return counts / counts.sum()


def test_a_duplicated_column_shares_its_weight() -> None:
    X, y = wave(LAST, noise_columns=4)
    scales = scales_of(X, y)
    alone = split_shares(X, y, scales)
    twice = np.ascontiguousarray(np.column_stack([X[:, 0], X]))
    shares = split_shares(twice, y, scales_of(twice, y))
    assert 0.2 < shares[0] / (shares[0] + shares[1]) < 0.8
    assert abs(shares[0] + shares[1] - alone[0]) < 0.15
    given = split_shares(twice, y, np.array([0.5, 0.5, *scales[1:]]))
    assert abs(given[0] + given[1] - alone[0]) < 0.01  # halves of the weight are the weight
    assert abs(given[0] - given[1]) < 0.03


def test_a_constant_column_gets_no_split_and_no_scale() -> None:
    X, y = wave(LAST, noise_columns=2)
    wider = np.ascontiguousarray(np.column_stack([X, np.full(len(X), 3.0, np.float32)]))
    scales = scales_of(wider, y)
    assert scales[0] == scales[3] == 1.0  # nothing is known of it: it may vary later
    assert (scales[1:3] <= 2.0**-3).all()
    assert split_shares(wider, y, scales)[3] == 0.0


def test_rows_without_a_column_that_varies_have_no_scales() -> None:
    X, y = np.ones((LAST, 3), np.float32), wave(LAST)[1]
    drawn = AMFRegressor(random_state=0)._forest_parameters(3)
    assert learn_scales(drawn, (X, y, np.ones(LAST)), n_threads=2) is None


def test_scales_are_learned_unasked_of_up_to_some_thousand_columns() -> None:
    every = "alpha", "charge_opening", "feature_scales", "feature_units"
    assert AMFClassifier()._auto_settings(4096, 2) == every
    assert AMFClassifier()._auto_settings(4097, 2) == tuple(n for n in every if "scales" not in n)
    assert AMFClassifier(feature_scales="learned")._auto_settings(4097, 2) == every
    assert AMFClassifier(domain="cube")._auto_settings(5, 2) == every[:2]
    assert AMFRegressor()._auto_settings(4096, 0) == every[2:]
    assert AMFRegressor(domain="cube")._auto_settings(2, 0) == ()
    assert AMFRegressor(feature_scales=None)._auto_settings(2, 0) == ("feature_units",)
    assert AMFRegressor(feature_units=None)._auto_settings(2, 0) == ("feature_scales",)
    asked = AMFRegressor(feature_scales="learned", domain="cube")._auto_settings(2, 0)
    assert asked == ("feature_scales",)
    AMFRegressor(1, domain="cube").fit(*wave(10))


@pytest.mark.parametrize("scales", [[1.0], [1.0, 1e39], [1.0, 0.0], [1.0, float("nan")], [1, 1]])
def test_impossible_scales_are_refused(scales: list[float]) -> None:
    reported = AMFRegressor(random_state=0)._forest_parameters(2).to_json()
    ForestParameters.from_json({**reported, "feature_scales": [1.0, 0.5]})
    with pytest.raises(CorruptError):
        ForestParameters.from_json({**reported, "feature_scales": scales})
