"""Test-then-train metrics agree with scikit-learn and survive JSON exactly."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from sklearn import metrics as sk

from dmondrian import CorruptError
from dmondrian.distributed.metrics import progressive
from dmondrian.distributed.metrics.progressive import HeldOut, Progressive
from dmondrian.prequential.forecast_lag import EACH


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


def rows_of(task: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Forecasts, labels and weights, some of them zero, also at the beginning."""
    mean, y, w = class_rows(2, n)
    w[:5] = w[100:120] = 0.0
    if task == "regression":
        y = 1e6 + np.random.default_rng(5).normal(size=n)
        mean = y[:, None] + mean[:, :1] - 0.5
    return mean, y, w


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_neither_cuts_nor_json_between_them_change_a_bit(task: str) -> None:
    n, reported = 10_000, []
    mean, y, w = rows_of(task, n)
    for cuts in ([], [1, 2, 40, 4095, 4096, 4097, 9999], range(700, n, 700)):
        total = Progressive(task)
        for start, stop in itertools.pairwise([0, *cuts, n]):
            total.add(mean[start:stop], y[start:stop], w[start:stop])
            total = Progressive.from_json(json.loads(json.dumps(total.to_json())))
        reported.append(total.to_json())
    assert reported[0] == reported[1] == reported[2]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_points_of_a_curve_are_totals_at_fixed_positions(task: str) -> None:
    mean, y, w = rows_of(task, 3000)
    total = Progressive(task)
    total.add(mean, y, w)
    curve = total.report()["curve"]
    at = [32, 64, 96, 128, 160, 192, 224, 256, 288]
    assert [point["rows"] for point in curve][: len(at)] == at
    assert [point["rows"] for point in curve][-3:] == [2560, 2816, 3000]
    for point in curve[::10]:
        first = Progressive(task)
        first.add(*(column[: point["rows"]] for column in (mean, y, w)))
        wanted = {"rows": point["rows"], **first.totals()}
        wanted.pop("r2", None)
        assert point == wanted


def test_a_long_curve_is_thinned_and_keeps_its_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progressive, "CURVE_POINTS", 32)
    n = 5 * 32 * 4096 // 2  # thinned twice
    total = Progressive("classification")
    for _ in range(5):
        y = np.arange(n // 5) % 2 * 1.0
        total.add(np.full((n // 5, 2), 0.5), y, None)
    curve = total.report()["curve"]
    assert 16 <= len(curve) <= 32
    steps = np.diff([point["rows"] for point in curve])
    assert len(set(steps[len(steps) // 2 : -1])) == 1
    assert curve[-1]["rows"] == n
    assert curve[-1]["log_loss"] == pytest.approx(np.log(2))


def test_totals_of_a_version_that_forecast_in_slices_go_on_and_say_so() -> None:
    mean, y, w = rows_of("regression", 5000)
    whole, old = Progressive("regression"), Progressive("regression")
    whole.add(mean, y, w)
    old.add(mean[:4096], y[:4096], w[:4096])
    stored = old.to_json()
    for key in ("since", "kind", "exact_from"):
        del stored[key]
    resumed = Progressive.from_json(json.loads(json.dumps(stored)))
    assert "by the forest of up to 4,096 rows before" in resumed.in_words
    resumed.continue_as(EACH)
    resumed.add(mean[4096:], y[4096:], w[4096:])
    assert resumed.totals() == whole.totals()
    assert resumed.exact_from == 4096
    assert "(the first 4,096 rows: by the forest of" in resumed.report()["forecast"]
    assert whole.in_words == "each row forecast just before it was learned"


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "guessed"},
        {"exact_from": 401},
        {"since": [0.0]},
        {"since": ["x", 0.0]},
        {"start": -1},
    ],
)
def test_damaged_totals_are_refused(change: dict) -> None:
    total = Progressive("classification")
    total.add(*class_rows(2))
    with pytest.raises(CorruptError, match="stored metrics"):
        Progressive.from_json({**total.to_json(), **change})


def test_a_certain_and_wrong_forecast_has_a_finite_loss() -> None:
    total = Progressive("classification")
    total.add(np.array([[1.0, 0.0]]), np.array([1.0]), None)
    assert 30 < total.totals()["log_loss"] < 40


def test_held_out_rows_of_two_classes_have_an_area_under_the_curve() -> None:
    mean, y, w = class_rows(3, k=2)
    total = HeldOut("classification")
    total.add(mean[:100], y[:100], w[:100])
    total.add(mean[100:], y[100:], w[100:])
    area = sk.roc_auc_score(y, mean[:, 1], sample_weight=w)
    assert total.report()["auc"] == pytest.approx(area, rel=1e-12)


def test_reliability_is_confidence_against_accuracy_by_bins() -> None:
    mean, y, w = class_rows(4, k=3)
    mean[0], mean[1] = [1.0, 0.0, 0.0], [0.4, 0.3, 0.3]  # a bin's upper bound belongs to it
    total = HeldOut("classification")
    for start in range(0, 400, 90):
        total.add(*(column[start : start + 90] for column in (mean, y, w)))
    reported = total.report()
    error = 0.0
    for b in reported["reliability"]:
        rows = [
            r for r in range(400) if b["above"] < max(mean[r]) <= b["up_to"] and w[r] > 0
        ]  # fmt: skip
        weight = sum(w[r] for r in rows)
        sure = sum(w[r] * max(mean[r]) for r in rows) / weight
        right = sum(w[r] for r in rows if mean[r, int(y[r])] == max(mean[r])) / weight
        assert b["share"] == pytest.approx(weight / w.sum())
        assert (b["confidence"], b["accuracy"]) == pytest.approx((sure, right))
        error += weight / w.sum() * abs(sure - right)
    assert sum(b["share"] for b in reported["reliability"]) == pytest.approx(1.0)
    assert reported["ece"] == pytest.approx(error)
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
    total = HeldOut("regression", has_std=True)
    total.add(mean, y, w)
    z = np.array([0.5, 2.0])
    nats = 0.5 * np.log(2.0 * np.pi) + np.log([1.0, 2.0]) + 0.5 * z * z
    assert total.report()["nll"] == pytest.approx(w[:2] @ nats / 4.0)
    assert total.report()["coverage_90"] == 0.25
    for label, nll in ((5.0, -np.inf), (6.0, np.inf)):
        alone = HeldOut("regression", has_std=True)
        alone.add(mean[2:], np.array([label]), None)
        assert alone.report()["nll"] == nll
