"""Figures of forecasts on the page are those that scikit-learn computes from the rows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    precision_recall_fscore_support,
    r2_score,
    roc_auc_score,
)

from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.distributed.metrics.residuals import Coverage, Residuals
from dmondrian.distributed.metrics.score_histogram import ScoreHistogram
from dmondrian.report.facts import Facts, gather
from dmondrian.report.page import page
from dmondrian.report.sections import inputs, outcomes, overview
from tests.report.conftest import HOSTILE
from tests.report.test_page import OUTSIDE, PUSHED_OUT, UNFOLD, UNREADABLE, chromium

__all__ = ["chromium"]

N = 4000


def of_classes(run: str, k: int) -> tuple[Facts, np.ndarray, np.ndarray]:
    """Facts of a run whose forecasts are these probabilities, and the labels."""
    draw = np.random.default_rng(k)
    proba = np.floor(draw.dirichlet(np.full(k, 0.5), N) * 16.0) / 16.0  # bounds of bins
    proba[:, 0] += 1.0 - proba.sum(axis=1)
    y = np.array([draw.choice(k, p=0.5 * row + 0.5 / k) for row in proba])
    facts = gather(run)
    facts.progressive = Progressive("classification")
    facts.progressive.add(proba, y * 1.0, None)
    facts.run_json = {**facts.run_json, "classes": names_of(k)}
    return facts, proba, y


def names_of(k: int) -> list[str]:
    return [HOSTILE, *(f"class number {c} with a name that is quite long" for c in range(1, k))]


def of_errors(run: str) -> tuple[Facts, np.ndarray, np.ndarray]:
    """Facts of a run with these forecasts of numbers, with standard deviations."""
    draw = np.random.default_rng(0)
    y = 1e5 * draw.normal(size=N)
    forecast = y + 2e4 * draw.standard_t(3, size=N)
    facts = gather(run)
    facts.progressive = Progressive("regression")
    facts.progressive.add(forecast[:, None], y, None)
    coverage = facts.progressive.outcomes.coverage
    coverage.add_deviations(forecast - y, np.full(N, 3e4), np.ones(N))
    return facts, forecast, y


def rows_of_table(text: str) -> list[list[str]]:
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text, re.S)]


@pytest.mark.parametrize("k", [2, 5])
def test_metrics_by_class_are_those_of_scikit_learn(classified, k: int) -> None:
    facts, proba, y = of_classes(classified.run_url, k)
    rows = [row for row in rows_of_table(outcomes(facts)) if row]
    wanted = precision_recall_fscore_support(y, proba.argmax(axis=1))
    areas = [
        roc_auc_score(y == c, 1.0 - proba[:, 1] if (k, c) == (2, 0) else proba[:, c])
        for c in range(k)
    ]
    precise = [
        average_precision_score(y == c, 1.0 - proba[:, 1] if (k, c) == (2, 0) else proba[:, c])
        for c in range(k)
    ]
    assert len(rows) == k + 1
    for c in range(k):
        share, *numbers = rows[c][1:]
        assert share == f"{np.mean(y == c):.1%}"
        own = [*(column[c] for column in wanted[:3]), areas[c], precise[c]]
        assert numbers == [f"{value:.4f}" for value in own]
    means = [np.mean(column) for column in (*wanted[:3], areas, precise)]
    assert rows[-1][2:] == [f"{value:.4f}" for value in means]
    top = overview(facts)
    assert (f"<b>{areas[1]:.4f}</b>" if k == 2 else f"<b>{np.mean(areas):.4f}</b>") in top
    assert (f"average precision of {names_of(2)[1]} so far" in top) == (k == 2)
    assert ("average precision" in top) == (k == 2)


def test_the_top_has_baselines_beside_metrics_and_what_was_trained(of_numbers) -> None:
    facts, forecast, y = of_errors(of_numbers.run_url)
    top = overview(facts)
    assert f"<b>{r2_score(y, forecast):.4f}</b><span>R2 so far" in top
    for text in ("mean so far", "last label", "forest, last", "UTC on", "pyarrow", "versions"):
        assert text in top
    assert "2,000 rows of 3 columns encoded as 3 features, from " in top


def test_errors_and_coverage_are_those_of_the_rows(of_numbers) -> None:
    facts, forecast, y = of_errors(of_numbers.run_url)
    content = outcomes(facts)
    shown = re.findall(r"<title>(\S+) to (\S+): ([0-9.]+)% of the rows</title>", content)
    error = forecast - y
    below = [share for *_, share in facts.progressive.outcomes.residuals.bars()]
    assert len(shown) == len(below) - 2 >= 16
    bars = facts.progressive.outcomes.residuals.bars()[1:-1]
    for (low, high, _), (_, _, share) in zip(bars, shown, strict=True):
        assert share == f"{100.0 * np.mean((error > low) & (error < high)):.2f}"
    within = np.mean(np.abs(error) <= 1.6448536269514722 * 3e4)
    assert f"0.9: {within:.3f}" in content
    assert content.count('class="s0 point"') == 512
    assert "512 of 4,000 rows, chosen by their numbers" in content


def test_runs_of_earlier_versions_say_what_they_lack(classified, of_numbers) -> None:
    facts, *_ = of_classes(classified.run_url, 2)
    facts.progressive.outcomes.scores = ScoreHistogram()
    content = outcomes(facts)
    assert "There are no ROC curves: the run was trained by a version that kept no sums" in content
    assert "How often right" in content
    assert "ROC AUC so far" not in overview(facts)
    facts, *_ = of_errors(of_numbers.run_url)
    facts.progressive.outcomes.residuals = Residuals()
    facts.progressive.outcomes.coverage = Coverage()
    content = outcomes(facts)
    assert "There are no charts of forecasts against labels" in content
    assert "There is no coverage of intervals" in content
    assert "Rows with an error of at most this size" in content
    facts, proba, y = of_classes(classified.run_url, 2)
    facts.progressive.outcomes.scores = ScoreHistogram()
    facts.progressive.add(proba, y * 1.0, None)  # goes on with a version that keeps them
    assert "The curves are of the last 4,000 rows" in outcomes(facts)


def test_more_classes_than_can_be_read_and_one_class_alone(classified) -> None:
    facts, *_ = of_classes(classified.run_url, 21)
    assert "of more than 20 classes no sums are kept" in outcomes(facts)
    facts, proba, _ = of_classes(classified.run_url, 2)
    facts.progressive = Progressive("classification")
    facts.progressive.add(proba, np.zeros(N), None)
    assert "one class alone has occurred" in outcomes(facts)


def test_columns_are_ranked_and_those_of_wide_tables_are_folded(
    classified, chromium, tmp_path: Path
) -> None:
    facts = gather(classified.run_url)
    shares = dict(facts.importances)
    ranked = [row for row in rows_of_table(inputs(facts)) if row and row[1] != "left out"]
    assert len(ranked) == len(facts.schema.columns)
    shown = [float(row[3].rstrip("%")) for row in ranked]
    assert shown == sorted(shown, reverse=True)
    names = [column.name for column in facts.schema.columns]
    assert sum(shown) == pytest.approx(100.0 * sum(shares[name] for name in names), abs=3.0)
    first = facts.schema.columns[0]
    many = tuple(replace(first, name=f"column {j}") for j in range(45))
    many = (replace(first, name="weight_of_parcel_in_kg"), *many[1:])
    facts.schema = replace(facts.schema, columns=many)
    facts.importances = [(column.name, 1.0 / 45.0) for column in many]
    file = tmp_path / "page.html"
    file.write_text(page(facts))
    chromium.open(file, 400)
    last = "[...document.querySelectorAll('td')].find(cell => cell.textContent == 'column 44')"
    assert chromium.evaluate(f"{last}.checkVisibility()") is False
    chromium.evaluate(UNFOLD)
    assert chromium.evaluate(f"{last}.checkVisibility()") is True
    assert "more in this table" in file.read_text()
    lines = "let range = document.createRange(); range.selectNodeContents({}); range"
    lines += ".getClientRects().length"
    name = last.replace("column 44", "weight_of_parcel_in_kg")
    assert chromium.evaluate(lines.format(name)) == 1  # is not broken amid the word
    frame = "[...document.querySelectorAll('.wide')].find(one => one.scrollWidth > one.clientWidth)"
    drawn = chromium.evaluate(f"getComputedStyle({frame}).backgroundAttachment")
    assert drawn == "local, local, scroll, scroll"  # a shadow where the table goes on


def test_no_forecast_is_less_sure_than_one_of_its_classes(classified) -> None:
    facts, proba, _ = of_classes(classified.run_url, 2)
    assert (proba.max(axis=1) == 0.5).any()
    content = outcomes(facts)
    assert "50% to 60%" in content
    assert "40% to 50%" not in content


def test_how_probabilities_are_calibrated_is_below_the_chart(classified) -> None:
    facts, *_ = of_classes(classified.run_url, 2)
    facts.calibrated = "in a way that takes many words"
    assert re.search(r"\(ECE 0\.\d{4}\)</figcaption>", content := outcomes(facts))
    assert f'</svg><p class="caption">Calibrated: {facts.calibrated}</p>' in content


@pytest.mark.parametrize("width", [1200, 400, 360])
@pytest.mark.parametrize("name", ["two", "twenty", "numbers"])
def test_a_browser_shows_all_of_them(
    classified, of_numbers, chromium, tmp_path: Path, name: str, width: int
) -> None:
    facts = {
        "two": lambda: of_classes(classified.run_url, 2)[0],
        "twenty": lambda: of_classes(classified.run_url, 20)[0],
        "numbers": lambda: of_errors(of_numbers.run_url)[0],
    }[name]()
    file = tmp_path / "page.html"
    file.write_text(page(facts))
    assert len(file.read_text()) < 300_000
    chromium.open(file, width, is_dark=width == 400)
    chromium.evaluate(UNFOLD)
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    assert chromium.evaluate(OUTSIDE) == []
    assert chromium.evaluate(UNREADABLE) == 0
    assert chromium.evaluate(PUSHED_OUT) == 0
    named = chromium.evaluate(
        "[...document.querySelectorAll('svg')].map(svg => svg.getAttribute('aria-label'))"
    )
    assert all(named)
    assert len(set(named)) == len(named)
