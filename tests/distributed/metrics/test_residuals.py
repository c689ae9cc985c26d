"""Errors of numbers: their bars, a sample of rows, and coverage, against all rows at once."""

from __future__ import annotations

import json
from statistics import NormalDist

import numpy as np
import pytest

from dmondrian import CorruptError
from dmondrian.distributed.metrics.error_histogram import Outcomes
from dmondrian.distributed.metrics.residuals import CENTRAL, SAMPLE_ROWS, Coverage, Residuals


def rows_of(kind: str, n: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Forecasts, labels, weights."""
    draw = np.random.default_rng(2)
    y = draw.normal(size=n)
    error = {
        "normal": draw.normal(size=n) + 0.5,
        "heavy": draw.standard_cauchy(n) * 1e5,
        "tiny": draw.normal(size=n) * 1e-12,
        "exact": np.where(draw.random(n) < 0.995, 0.0, draw.normal(size=n)),
    }[kind]
    return y + error, y, draw.integers(0, 3, n) * 0.3


@pytest.mark.parametrize("kind", ["normal", "heavy", "tiny", "exact"])
def test_bars_are_counted_over_the_rows(kind: str) -> None:
    forecast, y, weight = rows_of(kind)
    found = Residuals()
    found.add(forecast, y, weight)
    error = forecast - y
    bars = found.bars()
    assert 2 <= len(bars) <= 34
    for low, high, share in bars:
        inside = (error >= low) & (error < high) if low >= 0.0 else (error > low) & (error <= high)
        inside &= (error != 0.0) if low < 0.0 else True
        assert share == pytest.approx(weight[inside].sum() / weight.sum(), abs=1e-12)
    assert sum(share for *_, share in bars) == pytest.approx(1.0)
    assert bars[0][2] + bars[-1][2] <= 0.01 + 1e-12
    widths = {high - low for low, high, _ in bars[1:-1]}
    assert len(widths) == 1
    assert [high for _, high, _ in bars[:-1]] == [low for low, *_ in bars[1:]]


def test_the_sample_is_of_all_rows_alike_and_by_number_alone() -> None:
    forecast, y, weight = rows_of("normal", 20_000)
    found = Residuals()
    found.add(forecast, y, weight)
    rows = np.array([row for row, *_ in found.sample])
    assert len(rows) == SAMPLE_ROWS
    assert (weight[rows] > 0.0).all()
    taken = [(forecast[row], y[row]) for row in rows.tolist()]
    assert [pair for _, *pair in found.sample] == [list(pair) for pair in taken]
    halves = np.histogram(rows, [0, 10_000, 20_000])[0]
    assert abs(int(halves[0]) - SAMPLE_ROWS // 2) < 60
    other = Residuals()
    other.add(forecast + 1.0, y, np.where(weight > 0.0, 1.0, 0.0))
    assert [row for row, *_ in other.sample] == rows.tolist()


def test_neither_cuts_nor_json_between_them_change_a_bit() -> None:
    forecast, y, weight = rows_of("heavy")
    std = np.random.default_rng(0).random(len(y)) * 1e5
    found = Outcomes("regression")
    for part in zip(*(np.split(v, (3, 1000)) for v in (forecast, y, weight, std)), strict=True):
        found.add(part[0][:, None], *part[1:3])
        found.coverage.add_deviations(part[0] - part[1], part[3], part[2])
        found = Outcomes.from_json("regression", json.loads(json.dumps(found.to_json())))
    whole = Outcomes("regression")
    whole.add(forecast[:, None], y, weight)
    whole.coverage.add_deviations(forecast - y, std, weight)
    assert found.to_json() == whole.to_json()


def test_coverage_is_the_share_of_labels_within() -> None:
    _, y, weight = rows_of("normal")
    std = np.where(np.arange(len(y)) < 10, np.nan, 1.0)  # of the first rows none is known
    found = Coverage()
    found.add_deviations(y, std, weight)
    known = np.isfinite(std)
    for level, share in found.shares():
        within = np.abs(y) <= NormalDist().inv_cdf((1.0 + level) / 2.0)
        assert share == pytest.approx(np.average(within[known], weights=weight[known]))
        assert share == pytest.approx(level, abs=0.03)
    assert [level for level, _ in found.shares()] == list(CENTRAL)
    assert found.rows == np.count_nonzero(weight[known])
    quantiles = np.broadcast_to(np.quantile(y, [0.1, 0.9]), (len(y), 2))
    of_quantiles = Coverage()
    of_quantiles.add_quantiles(quantiles, (0.1, 0.9), y, weight)
    wanted = [np.average(y <= quantiles[0, j], weights=weight) for j in range(2)]
    assert of_quantiles.shares() == [
        (0.1, pytest.approx(wanted[0])), (0.9, pytest.approx(wanted[1]))
    ]  # fmt: skip
    assert Coverage().shares() == []


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("residuals", {"sizes": [[10**6, 1.0, 1.0]]}),
        ("residuals", {"sample": [[60, 1.0, 1.0]]}),
        ("residuals", {"sample": [[1, 1.0, 1.0], [1, 1.0, 1.0]]}),
        ("residuals", {"exact": None}),
        ("coverage", {"kind": "guesses"}),
        ("coverage", {"levels": [0.5], "sums": []}),
    ],
)
def test_damaged_sums_are_refused(part: str, change: dict) -> None:
    found = Outcomes("regression")
    forecast, y, weight = rows_of("normal", 50)
    found.add(forecast[:, None], y, weight)
    stored = found.to_json()
    with pytest.raises(CorruptError, match="stored outcomes cannot be read"):
        Outcomes.from_json("regression", {**stored, part: {**stored[part], **change}})


def test_a_run_of_an_older_version_has_them_from_where_it_goes_on() -> None:
    forecast, y, weight = rows_of("normal", 300)
    found = Outcomes("regression")
    found.add(forecast[:, None], y, weight)
    stored = found.to_json()
    del stored["residuals"], stored["coverage"]
    resumed = Outcomes.from_json("regression", stored)
    resumed.add(forecast[:, None], y, weight)
    assert (resumed.rows, resumed.residuals.rows) == (600, 300)
