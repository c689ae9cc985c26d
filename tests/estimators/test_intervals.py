"""Quantiles and intervals of MondrianForestRegressor: what they promise, and what is refused."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dmondrian
from dmondrian import MondrianForestRegressor
from dmondrian.checkpoint.document import seal
from dmondrian.errors import CorruptError, DataError, ParameterError

WAYS = [{"aggregation": "hierarchy", "lifetime": None}, {"aggregation": "mean", "lifetime": 8.0}]


def data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2)).astype(np.float32)
    return X, np.sin(6.0 * X[:, 0]) + rng.normal(0.0, 0.1 + 0.5 * X[:, 1], n)


@pytest.fixture(scope="module", params=WAYS, ids=["hierarchy", "mean"])
def forest(request: pytest.FixtureRequest) -> MondrianForestRegressor:
    return MondrianForestRegressor(10, random_state=0, **request.param).fit(*data(1500))


def test_intervals_lie_between_quantiles_that_increase(forest) -> None:
    X = data(400, seed=1)[0]
    found = forest.predict_quantiles(X, [0.05, 0.25, 0.5, 0.75, 0.95])
    assert found.shape == (400, 5)
    assert (np.diff(found, axis=1) >= 0.0).all()
    lower, upper = forest.predict_interval(X, 0.9)
    np.testing.assert_allclose(np.stack([lower, upper]), found[:, [0, 4]].T, rtol=1e-12, atol=1e-14)
    at = forest.predict_quantiles(X[:3], [0.5], lifetime=forest.lifetime_)
    assert np.array_equal(at, forest.predict_quantiles(X[:3], [0.5]))
    assert not np.array_equal(at, forest.predict_quantiles(X[:3], [0.5], lifetime=1.0))


@pytest.mark.parametrize(
    "quantiles", [[], [0.0], [1.0], [0.5, 0.5], [0.9, 0.1], ["a"], [np.nan], 3]
)
def test_impossible_quantiles_are_refused(forest, quantiles) -> None:
    with pytest.raises(ParameterError, match="quantiles should"):
        forest.predict_quantiles(data(3)[0], quantiles)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.5, "half", True, np.nan])
def test_impossible_probabilities_are_refused(forest, coverage) -> None:
    with pytest.raises(ParameterError, match="coverage should"):
        forest.predict_interval(data(3)[0], coverage)


def test_calibrated_intervals_hold_as_many_rows_as_their_rank_implies(forest) -> None:
    """Of the m rows calibrated on, exactly ceil(coverage (m + 1)): errors are distinct."""
    X, y = data(199, seed=2)
    other = copy.deepcopy(forest).calibrate_intervals(X, y)
    for coverage, rank in ((0.5, 100), (0.55, 110), (0.9, 180), (0.95, 190), (0.001, 1)):
        lower, upper = other.predict_interval(X, coverage, calibrated=True)
        reach = other.interval_scores_[rank - 1] * (1.0 + 1e-12)
        mean, std = other.predict(X, return_std=True)
        assert int((np.abs(y - mean) <= reach * std).sum()) == rank
        np.testing.assert_allclose(upper - lower, 2.0 * reach * std, rtol=1e-9)
    lower, upper = other.predict_interval(X, 0.999, calibrated=True)
    assert (lower == -math.inf).all()
    assert (upper == math.inf).all()


def test_calibration_holds_its_promise_on_new_rows() -> None:
    poor = MondrianForestRegressor(10, aggregation="hierarchy", lifetime=3.0, random_state=0)
    poor.fit(*data(1000)).calibrate_intervals(*data(2000, seed=3))
    X, y = data(4000, seed=4)
    for coverage in (0.5, 0.8, 0.95):
        for calibrated in (False, True):
            lower, upper = poor.predict_interval(X, coverage, calibrated=calibrated)
            held = np.mean((lower <= y) & (y <= upper))
            # Both samples err: four standard deviations of the difference.
            near = 4.0 * np.sqrt(coverage * (1.0 - coverage) * (1.0 / 2000 + 1.0 / 4000))
            assert (abs(held - coverage) < near) == calibrated


def test_calibration_is_kept_in_files_and_forgotten_by_learning(forest, tmp_path) -> None:
    X, y = data(50, seed=5)
    with pytest.raises(ParameterError, match="not calibrated"):
        forest.predict_interval(X, calibrated=True)
    mine = copy.deepcopy(forest).calibrate_intervals(X, y)
    mine.save(tmp_path / "model")
    expected = mine.predict_interval(X, 0.8, calibrated=True)
    for other in (copy.deepcopy(mine), dmondrian.load(tmp_path / "model")):
        assert np.array_equal(other.predict_interval(X, 0.8, calibrated=True), expected)
        other.partial_fit(X, y)
        assert not hasattr(other, "interval_scores_")
        assert not hasattr(clone(other), "interval_scores_")
    about = json.loads((tmp_path / "model" / "run.json").read_text())
    for wrong in ([0.5, 0.1], [-1.0], "many", ["inf", 3.0]):
        (tmp_path / "model" / "run.json").write_bytes(seal({**about, "interval_scores": wrong}))
        with pytest.raises(CorruptError, match="interval scores"):
            dmondrian.load(tmp_path / "model")


def test_labels_without_spread_have_points_as_intervals() -> None:
    X = data(60)[0]
    forest = MondrianForestRegressor(3, lifetime=5.0, random_state=0).fit(X, np.full(60, 2.5))
    assert (forest.predict_quantiles(X, [0.1, 0.9]) == 2.5).all()
    forest.calibrate_intervals(X, np.where(X[:, 0] < 0.05, 7.0, 2.5))
    assert set(forest.interval_scores_.tolist()) <= {0.0, math.inf}
    assert (np.stack(forest.predict_interval(X, 0.8, calibrated=True)) == 2.5).all()
    assert np.isinf(np.stack(forest.predict_interval(X, 0.98, calibrated=True))).all()


def test_a_forest_without_rows_has_no_distribution() -> None:
    X, y = data(5)
    forest = MondrianForestRegressor(2)
    with pytest.raises(NotFittedError):
        forest.predict_quantiles(X, [0.5])
    forest.partial_fit(X, y, sample_weight=np.zeros(5))
    for call in (
        lambda: forest.predict_quantiles(X, [0.5]),
        lambda: forest.calibrate_intervals(X, y),
    ):
        with pytest.raises(ParameterError, match="no row of positive weight"):
            call()


def test_inference_is_for_cells_means_on_the_cube() -> None:
    X, y = data(100)
    for options in ({"domain": "range"}, {"domain": "cube", "aggregation": "hierarchy"}):
        other = MondrianForestRegressor(2, random_state=0, **options).fit(X, y)
        with pytest.raises(ParameterError, match="inference is for"):
            other.confidence_interval(X, X)
        with pytest.raises(ParameterError, match="inference is for"):
            other.predict_debiased(X)
    forest = MondrianForestRegressor(5, domain="cube", lifetime=3.0, random_state=0).fit(X, y)
    with pytest.raises(ParameterError, match="of at most 2 with these trees, got 3"):
        forest.predict_debiased(X)
    whole = MondrianForestRegressor(2, domain="cube", lifetime=None, random_state=0).fit(X, y)
    with pytest.raises(ParameterError, match="of at most a finite number with these trees"):
        whole.predict_debiased(X)
    with pytest.raises(ParameterError, match="level should"):
        forest.confidence_interval(X, X, level=1.0)
    with pytest.raises(DataError, match="100"):
        forest.confidence_interval(X, X[:99])
    middle = np.mean(forest.confidence_interval(X, X), axis=0)
    np.testing.assert_allclose(middle, forest.predict(X), rtol=1e-12)
    middle = np.mean(forest.confidence_interval(X, X, lifetime=2.0, debias=True), axis=0)
    np.testing.assert_allclose(middle, forest.predict_debiased(X, 2.0), rtol=1e-12)
    stages = np.array(list(forest.staged_predict(X, [2.0, 3.0])))
    np.testing.assert_allclose(middle, 1.8 * stages[1] - 0.8 * stages[0], rtol=1e-10, atol=1e-12)
