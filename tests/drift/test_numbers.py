"""AMFRegressor(drift="follow"): a pure function of its rows, honest, and ahead where they drift."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dmondrian
from dmondrian import AMFRegressor
from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.drift.age_weights import exponents_of
from dmondrian.drift.drift_forest import DriftForest, forest_from_state
from dmondrian.drift.guard import Guard, sum_shares
from dmondrian.drift.members import Members
from dmondrian.ensemble.settings.drift_settings import LARGEST_DELAY, DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.tree import nodes
from tests.drift.streams import CUTS, numbers


def parameters(**others: Any) -> ForestParameters:
    return ForestParameters(
        "amf-regressor", 4, 0, 3, learning_rate=8.0, charge_opening=False, **others
    )


def forest_of(n_members: int = 5, delay: int = 1) -> DriftForest:
    return DriftForest(parameters(drift=DriftSettings(5, 7, delay)), range(n_members))


def learned(X: np.ndarray, y: np.ndarray, **settings: Any) -> tuple[DriftForest, np.ndarray]:
    forest = forest_of(**settings)
    return forest, forest.forecast_and_learn(X, y)


def test_permanent_trees_are_those_of_a_forest_that_does_not_follow() -> None:
    X, y = numbers(300)
    follows, _ = learned(X, y)
    plain = Forest(parameters(), range(5))
    plain.update(X, y)
    for tree, other in zip(follows.trees, plain.trees, strict=True):
        ours, theirs = nodes.fields(tree), nodes.fields(other)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("delay", [1, 40])
def test_neither_cuts_nor_threads_change_a_byte(delay: int) -> None:
    X, y = numbers(450)
    w = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], 450)
    whole, parts = forest_of(delay=delay), forest_of(delay=delay)
    result = whole.forecast_and_learn(X, y, w)
    found = [parts.forecast_and_learn(X[a:b], y[a:b], w[a:b], n_threads=2) for a, b in CUTS]
    np.testing.assert_array_equal(np.concatenate(found), result)
    assert pickle.dumps(parts.state()) == pickle.dumps(whole.state())


@pytest.mark.parametrize("delay", [1, 40])
def test_members_in_shards_and_a_guard_are_the_forest(delay: int) -> None:
    X, y = numbers(200)
    whole, result = learned(X, y, delay=delay)
    shards = [Members(whole.parameters, some) for some in ([0, 3], [1], [2, 4])]
    guard = Guard(whole.parameters, range(5))
    shares = sum_shares([shard.share_and_learn(X, y) for shard in shards])
    found = guard.mix_and_step(shares, y, np.empty(0))
    np.testing.assert_array_equal(found, result)
    joined = DriftForest.of(Members.join(shards), json.loads(json.dumps(guard.to_json())))
    np.testing.assert_array_equal(joined.predict_mixture(X), whole.predict_mixture(X))
    assert pickle.dumps(joined.state()) == pickle.dumps(whole.state())


def test_a_forecast_is_what_the_forest_predicts_before_it_learns_the_row() -> None:
    X, y = numbers(100)
    _, result = learned(X, y)
    assert result[0].tolist() == [0.0, 0.0]  # of what no label is known
    again = forest_of()
    again.update(X[:1], y[:1])
    for t in range(1, 100):
        np.testing.assert_array_equal(again.predict_mixture(X[t : t + 1]), result[t : t + 1])
        again.update(X[t : t + 1], y[t : t + 1])


@pytest.mark.parametrize("delay", [1, 40])
def test_forecasts_know_no_label_of_their_block_or_later(delay: int) -> None:
    X, y = numbers(400)
    _, result = learned(X, y, delay=delay)
    start = 200
    _, other = learned(X, np.where(np.arange(400) < start, y, 50.0 - y), delay=delay)
    np.testing.assert_array_equal(other[: start + delay], result[: start + delay])
    assert not np.array_equal(other[start + delay :], result[start + delay :])
    later = X.copy()
    later[start + 1 :] = 1 - X[start + 1 :]
    np.testing.assert_array_equal(
        learned(later, y, delay=delay)[1][: start + 1], result[: start + 1]
    )


def test_shifting_and_scaling_labels_does_so_to_forecasts() -> None:
    X, y = numbers(300)
    y = np.round(y * 1024) / 1024  # then a shift is exact
    _, result = learned(X, y)
    _, other = learned(X, 4.0 * (y + 512.0))
    np.testing.assert_allclose(other[1:, 0], 4.0 * (result[1:, 0] + 512.0), rtol=1e-9)
    np.testing.assert_allclose(other[1:, 1], 16.0 * result[1:, 1], rtol=1e-6, atol=1e-9)


def test_it_follows_a_change_and_knows_how_sure_it_is() -> None:
    X, y = numbers(3000)
    _, result = learned(X, y, n_members=10)
    late = np.arange(2300, 3000)
    plain = AMFRegressor(10, random_state=0, feature_scales=None).fit(X[:2300], y[:2300])
    error = y[late] - result[late, 0]
    assert 3.0 * np.mean(error**2) < np.mean((y[late] - plain.predict(X[late])) ** 2)
    within = np.abs(error) < 1.96 * np.sqrt(result[late, 1])
    assert 0.9 < within.mean() < 0.985


def test_permuted_labels_cost_little_more_than_their_variance() -> None:
    X, _ = numbers(2000)
    y = np.random.default_rng(4).normal(size=2000)
    _, result = learned(X, y)
    assert 0.97 < np.mean((y - result[:, 0])[100:] ** 2) / y[100:].var() < 1.1


@pytest.mark.parametrize("position", [0, 1, 33, 100, 256])
def test_a_stored_forest_goes_on_from_any_position(position: int) -> None:
    X, y = numbers(330)
    whole, result = learned(X, y)
    part = forest_of()
    part.update(X[:position], y[:position])
    again: Any = forest_from_state(*decode_forest(encode_forest(*part.stored())))
    rest = again.forecast_and_learn(X[position:], y[position:])
    np.testing.assert_array_equal(rest, result[position:])
    assert pickle.dumps(again.state()) == pickle.dumps(whole.state())


@pytest.mark.parametrize("delay", [1, 50])
def test_pickles_and_checkpoints_of_the_estimator(tmp_path: Path, delay: int) -> None:
    X, y = numbers(330)
    model = AMFRegressor(3, drift="follow", delay=delay, random_state=0)
    model.partial_fit(X[:220], y[:220])
    model.save(tmp_path / "model")
    others = [pickle.loads(pickle.dumps(model)), dmondrian.load(tmp_path / "model")]
    others.append(copy.deepcopy(model))
    model.partial_fit(X[220:], y[220:])
    for other in others:
        assert (other.drift, other.delay) == ("follow", delay)
        other.partial_fit(X[220:], y[220:])
        for found, expected in zip(
            other.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(other.predict(X), model.predict(X))


def changed(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        at: Any = header["drift"]
        *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in way:
            at = at[part]
        at[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("guard.scale", [-1.0, 1.0, 1.0]),
        changed("guard.scale", [1.0]),
        changed("guard.weights", [[2.0] * 4] * 4),
        changed("members.0.mixer.scale", None),
        changed("members.0.mixer.weights", [[0.25] * 4] * 4),
        changed("members.1.trees.0.floats.1", "inf"),
        changed("members.1.trees.0.floats.2", "inf"),
        changed("members.1.trees.0.floats.3", 1e200),
    ],
)
def test_a_damaged_header_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    forest, _ = learned(*numbers(200), n_members=2)
    header, trees = forest.state()
    change(header)
    with pytest.raises(CorruptError):
        forest_from_state(header, trees)


@pytest.mark.parametrize(("at", "value"), [(-1, np.nan), (-1, 2.0), (0, 0.0), (2, -1.0)])
def test_a_damaged_memory_is_refused(at: int, value: float) -> None:
    forest, _ = learned(*numbers(200), n_members=2)
    header, trees = forest.state()
    trees[-2]["memory"][at] = value
    with pytest.raises(CorruptError):
        forest_from_state(header, trees)


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30, 1e120])
def test_labels_of_any_size(size: float) -> None:
    X, y = numbers(200)
    model = AMFRegressor(3, drift="follow", random_state=0).fit(X, size * y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (np.abs(mean) <= 1.01 * size * np.abs(y).max()).all()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), mean)


def test_a_label_far_off_is_got_over() -> None:
    X, y = numbers(1200)
    _, result = learned(X, y)
    y[600] = 1e12
    _, other = learned(X, y)
    error, usual = (np.median(np.abs(y - each[:, 0])[900:]) for each in (other, result))
    assert error < 2.0 * usual


def test_a_label_far_off_stays_in_the_deviation_for_long() -> None:
    """As documented: a label of some hundred deviations is got over, one far beyond is not."""
    X, y = numbers(3000)
    _, result = learned(X, y)
    late = slice(2000, 3000)

    def ratio(far: float) -> float:
        labels = y.copy()
        labels[1000] += far * y.std()
        _, other = learned(X, labels)
        return float(np.median(np.sqrt(other[late, 1] / result[late, 1])))

    assert 0.5 < ratio(100.0) < 2.0
    assert ratio(1e8) > 10.0


@pytest.mark.parametrize("offset", [1e13, 1e14])
def test_labels_far_from_0_are_mixed_as_well(offset: float) -> None:
    X, y = numbers(1500)
    _, result = learned(X, y)
    _, other = learned(X, y + offset)
    errors = [
        np.sqrt(np.mean((labels - found[:, 0])[300:] ** 2))
        for labels, found in ((y, result), (y + offset, other))
    ]
    assert errors[1] == pytest.approx(errors[0], rel=0.02)
    weights = [
        exponents_of(each.guard.mixer) for each in (learned(X, y)[0], learned(X, y + offset)[0])
    ]
    np.testing.assert_allclose(weights[1], weights[0], atol=0.05)


def test_one_label_for_all_rows_and_one_row() -> None:
    X, _ = numbers(150)
    model = AMFRegressor(3, drift="follow", random_state=0).fit(X, np.full(150, 7.5))
    for found, expected in zip(model.predict(X, return_std=True), (7.5, 0.0), strict=True):
        assert (found == expected).all()
    one = AMFRegressor(3, drift="follow", random_state=0).fit(X[:1], [3.0])
    assert one.predict(X[:2]).tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="NaN"):
        one.partial_fit(X[:1], [np.nan])


@pytest.mark.parametrize("weight", [300.0, 1000.0, 1e30])
def test_heavy_rows_leave_no_memory_without_a_number(weight: float) -> None:
    X, y = numbers(300)
    model = AMFRegressor(2, drift="follow", random_state=0)
    model.fit(X, y, sample_weight=np.full(300, weight))
    again = copy.deepcopy(model)
    assert np.isfinite(model.predict(X)).all()
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 0.5},
        {"learning_rate": "theory"},
        {"target_range": (0.0, 1.0)},
        {"charge_opening": True},
        {"use_aggregation": False},
        {"empty_cell": "prior"},
        {"predict_extension": "expected"},
        {"domain": "cube"},
        {"calibrate": True},
        {"feature_scales": "learned"},
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any]) -> None:
    X, y = numbers(50)
    with pytest.raises(ParameterError, match=f"{next(iter(settings))}=.*drift"):
        AMFRegressor(2, drift="follow", random_state=0, **settings).fit(X, y)


def test_a_delay_without_drift_and_values_out_of_range_are_refused() -> None:
    X, y = numbers(50)
    with pytest.raises(ParameterError, match="delay=3"):
        AMFRegressor(2, delay=3).fit(X, y)
    for wrong in ({"delay": 0}, {"delay": LARGEST_DELAY + 1}, {"drift": "adwin"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AMFRegressor(2, **{"drift": "follow", **wrong}).fit(X, y)  # type: ignore[arg-type]


def test_what_needs_sums_over_trees_is_refused_with_the_reason() -> None:
    X, y = numbers(80)
    model = AMFRegressor(2, drift="follow", random_state=0).fit(X, y)
    with pytest.raises(ParameterError, match="sum"):
        model.forest_.predict_sums(X)


def test_parameters_that_were_set_since_do_not_change_the_forest() -> None:
    X, y = numbers(80)
    for before, since in (("follow", None), (None, "follow")):
        model = AMFRegressor(2, drift=before, random_state=0).fit(X, y)
        result = model.predict(X, return_std=True)[1]
        model.set_params(drift=since)
        np.testing.assert_array_equal(model.predict(X, return_std=True)[1], result)
        with pytest.raises(ParameterError, match="parameters changed"):
            model.partial_fit(X, y)
