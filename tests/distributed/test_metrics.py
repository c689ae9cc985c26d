"""Test-then-train metrics agree with scikit-learn and survive JSON exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn import metrics as sk

from dmondrian.distributed.metrics import CURVE_POINTS, HeldOut, Progressive, slices


@pytest.mark.parametrize("position", [0, 1, 500, 10**9])
@pytest.mark.parametrize("n", [0, 1, 31, 5000])
def test_slices_cover_a_block_once(position: int, n: int) -> None:
    cuts = list(slices(position, n))
    assert [row for start, stop in cuts for row in range(start, stop)] == list(range(n))


def test_no_row_is_forecast_long_after_the_last_one_learned() -> None:
    for start, stop in slices(0, 100_000):
        assert stop - start <= max(32, start // 8)


def class_rows(seed: int, n: int = 400, k: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mean = rng.dirichlet(np.ones(k), n)
    return mean, rng.integers(0, k, n).astype(float), rng.uniform(0.5, 2.0, n)


@pytest.mark.parametrize("weighted", [False, True])
def test_classification_totals_are_those_of_scikit_learn(weighted: bool) -> None:
    mean, y, w = class_rows(0)
    total = Progressive("classification")
    for start in range(0, 400, 37):
        part = slice(start, start + 37)
        total.add(mean[part], y[part], w[part] if weighted else None)
    weight = w if weighted else None
    expected = {
        "log_loss": sk.log_loss(y, mean, labels=[0, 1, 2], sample_weight=weight),
        "accuracy": sk.accuracy_score(y, mean.argmax(axis=1), sample_weight=weight),
    }
    assert total.totals() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_regression_totals_are_those_of_scikit_learn_also_far_from_zero(weighted: bool) -> None:
    rng = np.random.default_rng(1)
    y = 1e6 + rng.normal(size=400)
    mean = (y + rng.normal(scale=0.5, size=400))[:, None]
    w = rng.uniform(0.5, 2.0, 400) if weighted else None
    total = Progressive("regression")
    for start in range(0, 400, 37):
        part = slice(start, start + 37)
        total.add(mean[part], y[part], None if w is None else w[part])
    expected = {
        "rmse": sk.root_mean_squared_error(y, mean[:, 0], sample_weight=w),
        "mae": sk.mean_absolute_error(y, mean[:, 0], sample_weight=w),
        "r2": sk.r2_score(y, mean[:, 0], sample_weight=w),
    }
    assert total.totals() == pytest.approx(expected, rel=1e-9)


def test_totals_go_on_through_json_bit_for_bit() -> None:
    mean, y, w = class_rows(2)
    whole, halves = Progressive("classification"), Progressive("classification")
    for start in range(0, 400, 10):
        part = slice(start, start + 10)
        whole.add(mean[part], y[part], w[part])
        halves.add(mean[part], y[part], w[part])
        halves = Progressive.from_json(json.loads(json.dumps(halves.to_json())))
    assert halves.to_json() == whole.to_json()


def test_a_long_curve_is_thinned_and_keeps_its_reach() -> None:
    total = Progressive("classification")
    for i in range(5 * CURVE_POINTS):
        total.add(np.array([[0.5, 0.5]]), np.array([float(i % 2)]), None)
    curve = total.report()["curve"]
    assert CURVE_POINTS // 2 <= len(curve) <= CURVE_POINTS
    steps = np.diff([point["rows"] for point in curve])
    assert len(set(steps)) == 1
    assert curve[-1]["rows"] > 4.9 * CURVE_POINTS
    assert curve[-1]["log_loss"] == pytest.approx(np.log(2))


def test_a_certain_and_wrong_forecast_has_a_finite_loss() -> None:
    total = Progressive("classification")
    total.add(np.array([[1.0, 0.0]]), np.array([1.0]), None)
    assert 30 < total.totals()["log_loss"] < 40


def test_held_out_rows_of_two_classes_have_an_area_under_the_curve() -> None:
    mean, y, w = class_rows(3, k=2)
    total = HeldOut("classification")
    total.add(mean[:100], y[:100], w[:100])
    total.add(mean[100:], y[100:], w[100:])
    assert total.report()["auc"] == pytest.approx(sk.roc_auc_score(y, mean[:, 1], sample_weight=w))


def test_reliability_is_confidence_against_accuracy_by_bins() -> None:
    mean, y, w = class_rows(4, k=3)
    mean[0], mean[1] = [1.0, 0.0, 0.0], [0.4, 0.3, 0.3]  # a bin's upper bound belongs to it
    total = HeldOut("classification")
    for start in range(0, 400, 90):
        total.add(*(column[start : start + 90] for column in (mean, y, w)))
    told = total.report()
    error = 0.0
    for b in told["reliability"]:
        rows = [
            r for r in range(400) if b["above"] < max(mean[r]) <= b["up_to"] and w[r] > 0
        ]  # fmt: skip
        weight = sum(w[r] for r in rows)
        sure = sum(w[r] * max(mean[r]) for r in rows) / weight
        right = sum(w[r] for r in rows if mean[r, int(y[r])] == max(mean[r])) / weight
        assert b["share"] == pytest.approx(weight / w.sum())
        assert (b["confidence"], b["accuracy"]) == pytest.approx((sure, right))
        error += weight / w.sum() * abs(sure - right)
    assert sum(b["share"] for b in told["reliability"]) == pytest.approx(1.0)
    assert told["ece"] == pytest.approx(error)
    assert error > 0.01


def test_a_calibrated_forecast_has_next_to_no_error() -> None:
    rng = np.random.default_rng(0)
    share = rng.random(100_000)
    y = (rng.random(100_000) < share).astype(float)
    errors = []
    for power in (1.0, 0.4):  # the same ranking, less sure
        powers = np.column_stack([1.0 - share, share]) ** power
        total = HeldOut("classification")
        total.add(powers / powers.sum(axis=1, keepdims=True), y, None)
        errors.append(total.report()["ece"])
    assert errors[0] < 0.005
    assert errors[1] > 0.1


def test_one_class_alone_has_no_area() -> None:
    total = HeldOut("classification")
    total.add(np.array([[0.2, 0.8]]), np.array([1.0]), None)
    assert "auc" not in total.report()


def test_gaussians_are_scored_where_rows_count_and_where_there_is_no_spread() -> None:
    mean = np.array([[0.0, 1.0], [1.0, 2.0], [5.0, 0.0]])
    y, w = np.array([0.5, -3.0, 6.0]), np.array([1.0, 3.0, 0.0])
    total = HeldOut("regression", tells_std=True)
    total.add(mean, y, w)
    z = np.array([0.5, 2.0])
    nats = 0.5 * np.log(2.0 * np.pi) + np.log([1.0, 2.0]) + 0.5 * z * z
    assert total.report()["nll"] == pytest.approx(w[:2] @ nats / 4.0)
    assert total.report()["coverage_90"] == 0.25
    for label, nll in ((5.0, -np.inf), (6.0, np.inf)):
        alone = HeldOut("regression", tells_std=True)
        alone.add(mean[2:], np.array([label]), None)
        assert alone.report()["nll"] == nll
