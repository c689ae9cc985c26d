"""Metrics of the last rows, faded ones and baselines are those of the rows that they name."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from dmondrian import CorruptError
from dmondrian.distributed.metrics import progressive
from dmondrian.distributed.metrics.curve import points_by_window
from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.distributed.metrics.windows import HALF_LIFE, WINDOW
from dmondrian.prequential.forecast_lag import BATCHES, EACH, LAG, SLICES
from tests.distributed.metrics.test_progressive import rows_of

TASKS = ["classification", "regression"]


def metrics_of(task: str, mean: np.ndarray, y: np.ndarray, w: np.ndarray) -> dict[str, float]:
    """What scikit-learn finds of some rows."""
    if task == "classification":
        labels = range(mean.shape[1])
        return {
            "log_loss": sk.log_loss(y, mean, labels=labels, sample_weight=w),
            "accuracy": sk.accuracy_score(y, mean.argmax(axis=1), sample_weight=w),
        }
    return {
        "rmse": sk.root_mean_squared_error(y, mean[:, 0], sample_weight=w),
        "mae": sk.mean_absolute_error(y, mean[:, 0], sample_weight=w),
        "r2": sk.r2_score(y, mean[:, 0], sample_weight=w),
    }


def measured(task: str, n: int, **how: Any) -> Progressive:
    total = Progressive(task, **how)
    total.add(*rows_of(task, n))
    return total


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n", [300, 5000])
def test_each_span_is_what_scikit_learn_finds_of_its_rows(task: str, n: int) -> None:
    mean, y, w = rows_of(task, n)
    report = measured(task, n).report()
    last = slice(n - report["window"]["rows"], n)
    assert report["window"]["rows"] == min(n, WINDOW + (n - WINDOW) % 128)
    assert report["faded"]["half_life"] == HALF_LIFE
    fading = 2.0 ** (-np.arange(n)[::-1] / HALF_LIFE)
    spans = {
        "window": metrics_of(task, mean[last], y[last], w[last]),
        "faded": metrics_of(task, mean, y, fading * w),
    }
    for span, wanted in spans.items():
        result = {name: report[span][name] for name in wanted}
        assert result == pytest.approx(wanted, rel=1e-8)


@pytest.mark.parametrize("task", TASKS)
def test_baselines_are_scored_on_the_rows_they_stand_beside(task: str) -> None:
    n = 3000
    _, y, w = rows_of(task, n)
    report = measured(task, n).report()
    forecasts = np.roll(y, 1)
    for i in range(1, n):  # rows of weight 0 are not remembered
        if w[i - 1] == 0.0:
            forecasts[i] = forecasts[i - 1]
    forecasts[: np.argmax(w > 0.0) + 1] = np.nan
    known = w * ~np.isnan(forecasts)
    for span in (report, report["window"], report["faded"]):
        assert list(span["baselines"])[1:] == ["last_label"]
    rows = slice(n - report["window"]["rows"], n)
    result = report["window"]["baselines"]["last_label"]
    if task == "classification":
        assert result["accuracy"] == pytest.approx(
            sk.accuracy_score(y[rows], forecasts[rows], sample_weight=known[rows])
        )
        frequencies = report["baselines"]["class_frequencies"]["log_loss"]
        assert 1.09 < frequencies < 1.12  # three classes, drawn alike
    else:
        wanted = metrics_of(task, forecasts[rows, None], y[rows], known[rows])
        assert result == pytest.approx(wanted, rel=1e-8)
        assert report["baselines"]["mean"]["r2"] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(("delay", "lag"), [(1, None), (64, None), (1000, None), (1, 1), (64, 70)])
@pytest.mark.parametrize("task", TASKS)
def test_neither_cuts_nor_json_between_them_change_a_bit(
    task: str, delay: int, lag: int | None
) -> None:
    n, result = 6000, []
    mean, y, w = rows_of(task, n)
    earlier = np.concatenate([np.full(1000, np.nan), y[:-1000]])
    for cuts in ([], [1, 2, 40, 4095, 4096, 4097, 5999], range(700, n, 700)):
        total = Progressive(task, delay=delay, lag_of_key=lag)
        for start, stop in itertools.pairwise([0, *cuts, n]):
            part = slice(start, stop)
            total.add(mean[part], y[part], w[part], earlier=None if lag is None else earlier[part])
            total = Progressive.from_json(json.loads(json.dumps(total.to_json())))
        result.append(total.to_json())
    assert result[0] == result[1] == result[2]
    assert result[0]["stream"]["points"]
    stored = {**result[0], "stream": {**result[0]["stream"], "baselines": [7]}}
    with pytest.raises(CorruptError):
        Progressive.from_json(stored)
    if lag is None:
        return
    name = "last_label_of_key" if lag == 1 else "label_70_back_of_key"
    total.continue_as(EACH, 3)
    total.add(mean, y, w, earlier=earlier)
    assert list(total.report()["window"]["baselines"])[-1] == name


def test_a_run_of_an_earlier_version_goes_on_without_labels_of_keys() -> None:
    mean, y, w = rows_of("regression", 600)
    old = Progressive("regression")
    old.add(mean[:300], y[:300], w[:300])
    now = Progressive.from_json(json.loads(json.dumps(old.to_json())))
    for total, earlier in ((old, None), (now, y[300:])):
        total.add(mean[300:], y[300:], w[300:], earlier=earlier)
    assert now.to_json() == old.to_json()
    assert list(now.report()["baselines"]) == ["mean", "last_label"]


@pytest.mark.parametrize("delay", [2, 64])
def test_a_label_by_delay_is_that_of_the_block_before(delay: int) -> None:
    n = 40 * delay
    y = np.random.default_rng(0).integers(0, 2, n).astype(float)
    total = Progressive("classification", delay=delay)
    total.add(np.full((n, 2), 0.5), y, None)
    result = total.report()["baselines"]
    known = np.repeat(y[delay - 1 :: delay][:-1], delay)
    assert list(result) == ["class_frequencies", "last_label", "last_label_by_delay"]
    hits = (known == y[delay:]).sum()  # the first block is forecast as classes alike: class 0
    first = result["last_label_by_delay"]["accuracy"] * n - hits
    assert 0 <= first <= delay
    assert result["last_label"]["accuracy"] * n - (y[1:] == y[:-1]).sum() in (0, 1)


def test_blocks_count_rows_of_weight_alone() -> None:
    """As forests with a delay number their rows."""
    y = np.array([0.0, 1.0, 9.0, 1.0, 0.0, 9.0, 9.0, 0.0, 0.0])
    w = (y < 9.0).astype(float)
    some = w > 0.0
    found = []
    for labels, weights in ((np.minimum(y, 1.0), w), (y[some], None)):
        total = Progressive("classification", delay=2)
        total.add(np.full((len(labels), 2), 0.5), labels, weights)
        found.append(total.report()["baselines"])
    assert found[0] == found[1]


@pytest.mark.parametrize("task", TASKS)
def test_windows_of_the_curve_are_of_the_rows_between_its_points(task: str) -> None:
    n = 5000
    mean, y, w = rows_of(task, n)
    report = measured(task, n).report()
    windows = report["windows"]
    assert [window["rows"] for window in windows] == [p["rows"] for p in report["curve"][:-1]]
    assert [window["start"] for window in windows[1:]] == [w["rows"] for w in windows[:-1]]
    for window in windows[5::7]:
        part = slice(window["start"], window["rows"])
        wanted = metrics_of(task, mean[part], y[part], w[part])
        wanted.pop("r2", None)
        assert {name: window[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)
        fading = 2.0 ** (-np.arange(part.stop)[::-1] / HALF_LIFE)
        first = slice(0, part.stop)
        faded = metrics_of(task, mean[first], y[first], fading * w[first])
        faded.pop("r2", None)
        assert window["faded"] == pytest.approx(faded, rel=1e-9)


def test_windows_of_few_rows_are_drawn_as_one() -> None:
    report = measured("regression", 20_000).report()
    points = points_by_window(report["windows"], "rmse")
    steps = np.diff([0.0, *(rows for rows, _ in points)])
    assert 10 <= len(points) <= 32
    assert (steps >= 500).all()
    mean, y, w = rows_of("regression", 20_000)
    for (start, _), (stop, value) in itertools.pairwise([(0.0, 0.0), *points]):
        part = slice(int(start), int(stop))
        wanted = metrics_of("regression", mean[part], y[part], w[part])["rmse"]
        assert value == pytest.approx(wanted, rel=1e-9)


def test_windows_count_rows_by_their_weight() -> None:
    n = 4096
    y, w = np.zeros(n), np.where(np.arange(n) % 128 < 64, 9.0, 1.0)
    mean = np.where(w == 9.0, 1.0, 3.0)[:, None]  # rows of weight 9 have an error of 1, others 3
    for at_once in (n, 32):
        total = Progressive("regression")
        for i in range(0, n, at_once):
            part = slice(i, i + at_once)
            total.add(mean[part], y[part], w[part])
        points = points_by_window(total.report()["windows"], "mae")
        assert points[-1][1] == pytest.approx((9 * 1.0 + 1 * 3.0) / 10)


def test_a_huge_error_changes_no_window_but_its_own() -> None:
    n = 8000
    mean, y, w = rows_of("regression", n)
    far = mean.copy()
    far[700] = 1e60
    reports = []
    for forecasts in (mean, far):
        total = Progressive("regression")
        total.add(forecasts, y, w)
        reports.append(total.report()["windows"])
    for plain, beside in zip(*reports, strict=True):
        if beside["start"] <= 700 < beside["rows"]:
            assert beside["mae"] > 1e50
            continue
        assert beside["rmse"] == plain["rmse"] > 0.0
        assert beside["mae"] == plain["mae"]
        assert beside["baselines"] == plain["baselines"]


@pytest.mark.parametrize("task", TASKS)
def test_a_curve_that_is_thinned_has_the_rows_of_dropped_points(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, result = 20_000, []
    monkeypatch.setattr(progressive, "CURVE_POINTS", 8)
    mean, y, w = rows_of(task, n)
    for cuts in ([], [1, 333, 4095, 4096, 4097, 11_000], range(512, n, 512)):
        total = Progressive(task)
        for start, stop in itertools.pairwise([0, *cuts, n]):
            total.add(mean[start:stop], y[start:stop], w[start:stop])
            total = Progressive.from_json(json.loads(json.dumps(total.to_json())))
        result.append(total.to_json())
    assert result[0] == result[1] == result[2]
    windows = total.report()["windows"]
    assert 2 <= len(windows) <= 8
    assert windows[0]["start"] == 0
    for window in windows:
        part = slice(window["start"], window["rows"])
        wanted = metrics_of(task, mean[part], y[part], w[part])
        wanted.pop("r2", None)
        assert {name: window[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_sums_so_far_of_an_earlier_version_go_on_as_windows(task: str) -> None:
    mean, y, w = rows_of(task, 5000)
    old = Progressive(task)
    old.add(mean[:3000], y[:3000], w[:3000])
    stored = json.loads(json.dumps(old.to_json()))
    stream, total = stored["stream"], np.zeros(len(stored["stream"]["windows"]["total"]))
    del stream["dropped"], stream["windows"]["since"]
    for point in stream["points"]:
        total = total + point[1 : 1 + len(total)]
        point[1 : 1 + len(total)] = total.tolist()
    resumed = Progressive.from_json(stored)
    resumed.add(mean[3000:], y[3000:], w[3000:])
    for own, plain in zip(
        resumed.report()["windows"], measured(task, 5000).report()["windows"], strict=True
    ):
        for name in ("weight", "rows", *(("rmse",) if task == "regression" else ("log_loss",))):
            assert own[name] == pytest.approx(plain[name], rel=1e-9)


def test_a_long_curve_keeps_windows_of_its_points_alone() -> None:
    total = Progressive("classification")
    for _ in range(5):
        total.add(np.full((300_000, 2), 0.5), np.arange(300_000) % 2 * 1.0, None)
    report = total.report()
    curve = {point["rows"] for point in report["curve"]}
    assert {window["rows"] for window in report["windows"]} <= curve
    assert len(report["windows"]) > 128
    assert len(json.dumps(total.to_json())) < 100_000


@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_a_version_without_it_has_it_from_there_on(task: str) -> None:
    mean, y, w = rows_of(task, 5000)
    old = Progressive(task)
    old.add(mean[:2000], y[:2000], w[:2000])
    stored = old.to_json()
    for key in ("stream", "delay", "ages"):
        del stored[key]
    resumed = Progressive.from_json(json.loads(json.dumps(stored)))
    assert "window" not in resumed.report()
    resumed.continue_as(resumed.kind, 1)
    resumed.add(mean[2000:], y[2000:], w[2000:])
    whole, report = measured(task, 5000), resumed.report()
    assert resumed.totals() == whole.totals()
    assert report["curve"] == whole.report()["curve"]
    assert "baselines" not in report  # they would not be of the rows so far
    assert report["windows"][0]["start"] == 2000
    alone = Progressive(task)
    alone.add(mean[2000:], y[2000:], w[2000:])
    assert report["window"] == alone.report()["window"]


def test_where_rows_are_forecast_in_slices_or_batches_the_delay_is_theirs() -> None:
    assert Progressive("regression", SLICES).report()["delay"] == LAG
    assert Progressive("regression", SLICES).delay_in_words == "delay up to 4,096 rows"
    assert Progressive("regression").delay_in_words == "delay 1 row"
    batches = Progressive("regression", BATCHES, 0, 256)
    assert batches.delay_in_words == "delay up to 256 rows"
    y = np.arange(8.0)
    batches.add(y[:, None], y, None, after_learning=[0, 4])
    result = batches.report()["baselines"]
    assert result["last_label"]["mae"] == 7 / 8
    assert result["last_label_by_delay"]["mae"] == (0 + 1 + 2 + 3 + 1 + 2 + 3 + 4) / 8
    blocks = Progressive("classification", delay=64)
    assert blocks.in_words == "rows forecast 64 at a time, before any of their labels was known"
    old = Progressive.from_json({**batches.to_json(), "delay": None, "stream": None})
    assert old.delay_in_words == "delay up to a mini-batch"


@pytest.mark.parametrize(
    "change",
    [
        {"since": 1},
        {"since": None},
        {"numbered": 10_000},
        {"points": [[32, 1.0]]},
        {"test": {}},
        {"windows": []},
        {"baselines": None},
    ],
)
def test_damaged_metrics_of_a_stream_are_refused(change: dict) -> None:
    stored = measured("classification", 400).to_json()
    Progressive.from_json(stored)
    with pytest.raises(CorruptError, match="stored metrics"):
        Progressive.from_json({**stored, "stream": {**stored["stream"], **change}})


@pytest.mark.parametrize("delay", [0, "1", 1.5])
def test_a_damaged_delay_is_refused(delay: Any) -> None:
    stored = measured("classification", 40).to_json()
    with pytest.raises(CorruptError, match="stored metrics"):
        Progressive.from_json({**stored, "delay": delay})
