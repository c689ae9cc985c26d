"""Runs side by side: differences are those of the runs, and no run is called better without cause.

Metrics are checked against those that each run keeps itself.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dmondrian import AMFClassifier, CheckpointError, ParameterError
from dmondrian.checkpoint import Run
from dmondrian.data import Column
from dmondrian.data.schema import describe_encoding
from dmondrian.distributed import TrainedRun, train
from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.report import compare_runs, write_comparison
from dmondrian.report.comparison import _ComparableRuns, better_runs, compared
from dmondrian.report.comparison_tables import _as_toml, _differing
from dmondrian.report.facts import gather
from tests.cli.command import call, events
from tests.distributed.conftest import forest
from tests.report.conftest import HOSTILE

Again = Callable[..., TrainedRun]


@pytest.fixture(scope="module")
def rows(classified) -> Path:
    return Path(classified.plan.blocks[0].uri)


@pytest.fixture
def again(client, rows, tmp_path) -> Again:
    """Train on the rows of `classified` with other settings."""

    def run(name: str = "other", data: Any = None, **options: Any) -> TrainedRun:
        given = {"target": "income", "client": client, "checkpoint_every": "1000 rows", **options}
        estimator = given.pop("estimator", None) or forest(n_estimators=2, calibrate=True)
        return train(estimator, data or rows, run=tmp_path / name, **given)

    return run


def kept(url: str) -> dict[str, Any]:
    """What a run keeps of its forecasts."""
    newest = Run.open(url).latest()
    assert newest is not None
    return Progressive.from_json(newest.metrics["progressive"]).report()


def by_key(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {row["key"]: row["values"] for row in rows}


def spans(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["metric"], row["span"]): row for row in found["metrics"]}


def test_settings_metrics_and_curves_are_those_of_the_runs(classified, again) -> None:
    other = again()
    found = compare_runs([classified.run_url, other.run_url])
    assert by_key(found["settings"]) == {"forest.n_estimators": [6, 2], "run.n_shards": [6, 2]}
    assert (found["data"], found["versions"], found["reasons"]) == ([], [], [])
    assert found["alike"] == [{"runs": ["A", "B"], "rows": 3000, "delay": 1}]
    reports = [kept(run.run_url) for run in (classified, other)]
    for (metric, span), row in spans(found).items():
        own = reports if span == "so far" else [report["window"] for report in reports]
        assert row["values"] == [one[metric] for one in own]
        assert row["rows"] == [one["rows"] for one in own]
        best = (max if metric == "accuracy" else min)(row["values"])
        wanted = [name for name, value in zip("AB", row["values"], strict=True) if value == best]
        assert row["better"] == (wanted if len(wanted) == 1 else [])
    assert set(spans(found)) == {
        (metric, span) for metric in ("log_loss", "accuracy") for span in ("so far", "last rows")
    }
    assert any(row["better"] for row in found["metrics"])
    for metric, curve in found["curves"].items():
        assert curve["rows"] == [point["rows"] for point in reports[0]["curve"]]
        assert curve["values"] == [[p[metric] for p in report["curve"]] for report in reports]
    work = by_key(found["work"])
    assert work["trees"] == [6, 2]
    assert work["nodes"] == [run.to_local().forest_.n_nodes for run in (classified, other)]
    assert work["bytes stored"][0] > work["bytes stored"][1] > 0
    assert min(work["seconds of work"]) > 0.0


def test_runs_of_other_lengths_are_compared_where_both_have_been(classified, again) -> None:
    other = again()
    found = compare_runs([classified.run_url, f"{other.run_url}@1000"])
    assert by_key(found["data"])["rows learned"] == [3000, 1000]
    assert found["alike"] == [{"runs": ["A", "B"], "rows": 1000, "delay": 1}]
    metrics = spans(found)
    assert metrics["log_loss", "so far"]["better"] == []
    assert metrics["log_loss", "last rows"]["better"] == []
    shared = metrics["log_loss", "first rows in common"]
    curves = [{p["rows"]: p["log_loss"] for p in kept(run.run_url)["curve"]}
              for run in (classified, other)]  # fmt: skip
    at = max(rows for rows in curves[0].keys() & curves[1].keys() if rows <= 1000)
    assert at > 800
    assert shared["values"] == [curve[at] for curve in curves]
    assert shared["rows"] == [at, at]
    assert shared["better"] == ["AB"[shared["values"].index(min(shared["values"]))]]
    assert by_key(found["work"])["seconds of work"][1] is None


def test_a_copy_of_the_rows_is_the_same_rows_and_more_files_continue_them(
    classified, again, rows, tmp_path
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    shutil.copyfile(rows, folder / "a.parquet")
    shutil.copyfile(rows, folder / "b.parquet")
    longer = again(data=folder)
    found = compare_runs([classified.run_url, longer.run_url])
    assert found["alike"] == [{"runs": ["A", "B"], "rows": 3000, "delay": 1}]
    assert by_key(found["settings"])["data.path"] == [
        str(rows), [str(folder / name) for name in ("a.parquet", "b.parquet")]
    ]  # fmt: skip
    assert spans(found)["log_loss", "first rows in common"]["better"]
    assert by_key(found["data"])["rows of the stream"] == [3000, 6000]


def test_the_same_rows_with_other_columns_named_to_leave_out_are_the_same_data(
    classified, again
) -> None:
    assert [name for name, _ in classified.plan.schema.left_out] == ["same"]  # by itself
    other = again(exclude=["same"])
    assert other.plan.digest != classified.plan.digest
    found = compare_runs([classified.run_url, other.run_url])
    assert found["data"] == []
    text, _ = call("compare", classified.run_url, other.run_url)
    same = "rows and columns are the same; the jobs name other columns to leave out"
    assert same in text


def test_other_rows_and_other_encodings_are_other_data(classified) -> None:
    facts, other = gather(classified.run_url), gather(classified.run_url)
    assert facts.plan is not None
    assert facts.schema is not None
    assert compared([facts, other])["data"] == []
    other.plan = replace(facts.plan, shuffle=True, seed=3)
    assert by_key(compared([facts, other])["data"]) == {"first rows as those of A": [3000, 0]}
    other.plan = None
    assert by_key(compared([other, facts])["data"])["first rows as those of B"] == [None, 3000]
    other.plan, columns, first = facts.plan, facts.schema.columns, None
    for levels in ("abcde", "abcdf", "abxde"):  # a description names four
        column = Column("kind", "category", "string", levels=tuple(levels), n_distinct=5)
        other.schema = replace(facts.schema, columns=(*columns, column))
        if first is None:
            facts.schema, first = other.schema, column
            continue
        assert by_key(compared([facts, other])["data"]) == {
            "column kind": [
                "category of 5 levels", "category of 5 levels, not as of A"
            ] if levels == "abcdf" else [describe_encoding(first), describe_encoding(column)]
        }  # fmt: skip
    other.schema = replace(facts.schema, columns=facts.schema.columns[::-1])
    assert [*by_key(compared([facts, other])["data"])] == ["order of the columns"]


def test_fractions_have_four_digits_unless_they_would_look_the_same() -> None:
    def shown(*values: Any) -> tuple[str, ...]:
        settings = [{"key": "forest.x", "values": [*values]}]
        return _differing(settings, _as_toml)[0][0][1:]

    assert shown([1.1920928955078125e-07, 3], None) == ("[1.192e-07, 3]", "-")
    assert shown(0.1234567, 0.2) == ("0.1235", "0.2")
    assert shown(0.1234567, 0.1234568) == ("0.1234567", "0.1234568")
    assert shown(123456.5, 1) == ("123456.5", "1")


def test_one_checkpoint_each_is_no_curve(of_numbers, classified, tmp_path) -> None:
    file, _ = write_comparison([of_numbers.run_url] * 2, tmp_path / "page.html")
    assert "Nodes at checkpoints" not in file.read_text()
    file, _ = write_comparison([classified.run_url] * 2, file)
    assert "Nodes at checkpoints" in file.read_text()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shuffle": True}, "not of the same rows: their streams differ from the first row"),
        ({"target": "sex"}, "have other targets: income, and sex"),
        ({"weight": "education-num"}, "weigh rows in other ways"),
        (
            {"estimator": AMFClassifier(1, drift="follow", delay=64, random_state=0)},
            "do not forecast equally far ahead: delay 1 row, and delay up to 64 rows",
        ),
        ({"progressive": False}, "B has no metrics: it was trained with progressive = false"),
    ],
)
def test_no_run_is_better_where_metrics_are_of_other_things(
    classified, again, options, reason
) -> None:
    other = again(**options)
    found = compare_runs([classified.run_url, other.run_url])
    (only,) = found["reasons"]
    assert reason in only
    assert found["alike"] == []
    assert [row["better"] for row in found["metrics"]] == [[]] * len(found["metrics"])
    assert {row["values"][0] is None for row in found["metrics"]} == {False}
    text, _ = call("compare", classified.run_url, other.run_url)
    assert f"not compared: {only}" in text
    assert " *" not in text
    # A third run is compared with the one that is of the same rows as it is.
    found = compare_runs([other.run_url, classified.run_url, f"{classified.run_url}@2000"])
    assert found["alike"] == [{"runs": ["B", "C"], "rows": 2000, "delay": 1}]


def test_the_best_of_each_group_is_found() -> None:
    groups = [_ComparableRuns([0, 2], 10), _ComparableRuns([1, 3, 4], 10)]
    assert better_runs("log_loss", [0.3, 0.1, 0.2, 0.4, 0.1], groups) == ["C", "B", "E"]
    assert better_runs("r2", [0.3, 0.1, 0.2, 0.4, None], groups) == ["A", "D"]
    assert better_runs("rmse", [0.3, 0.1, 0.3, 0.1, float("nan")], groups) == []
    assert better_runs("rmse", [0.3, 0.1, 0.3, 0.2, 0.3], [_ComparableRuns([0], 10)]) == []


def test_models_without_metrics_are_shown_without(classified, density, tmp_path) -> None:
    AMFClassifier(n_estimators=1, random_state=0).fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "m")
    text, _ = call("compare", tmp_path / "m", classified.run_url)
    assert "not compared: A has no metrics: it was fitted on arrays" in text
    assert re.search(r"log loss, so far +- +0\.\d{4}\n", text)
    assert "n_estimators" in text
    text, _ = call("compare", density.run_url, density.run_url)
    assert "a density forecasts no labels" in text
    assert "no run has metrics" in text
    assert "no key of a job file differs" in text


def test_a_run_that_has_not_begun_is_shown(classified, tmp_path) -> None:
    about = {**Run.open(classified.run_url).run_json}
    del about["format"], about["created_by"]
    run = Run.create(tmp_path / "run", about, classified.plan.to_parquet())
    found = compare_runs([classified.run_url, run.url])
    assert found["reasons"] == ["B has no metrics: it has no checkpoint yet"]
    assert by_key(found["work"])["nodes"][1] == 0


def test_what_cannot_be_compared_is_refused(classified, of_numbers, density, tmp_path) -> None:
    _, stderr = call("compare", classified.run_url, of_numbers.run_url, code=2)
    assert "forecasts classes, and " in stderr
    assert "runs of different tasks cannot be compared" in stderr
    _, stderr = call("compare", classified.run_url, density.run_url, code=2)
    assert "the density of rows" in stderr
    _, stderr = call("compare", classified.run_url, code=2)
    assert "1 run to compare; expected 2 to 26" in stderr
    _, stderr = call("compare", classified.run_url, tmp_path / "nothing", code=4)
    assert "There is no folder" in stderr
    _, stderr = call("compare", classified.run_url, f"{classified.run_url}@7", code=4)
    assert "There is no checkpoint at position 7" in stderr
    with pytest.raises(CheckpointError):
        compare_runs([tmp_path, classified.run_url])
    with pytest.raises(ParameterError):
        compare_runs([classified.run_url] * 27)


def test_the_command_writes_text_json_and_a_page(classified, again, tmp_path) -> None:
    other = again(exclude=[HOSTILE])
    page = tmp_path / "page.html"
    text, _ = call("compare", classified.run_url, other.run_url, "--html", page)
    assert "log loss, so far" in text
    assert "column " in text
    stdout, _ = call("compare", classified.run_url, other.run_url, "--json")
    (found,) = events(stdout)
    assert found.pop("event") == "compared"
    assert found == compare_runs([classified.run_url, other.run_url])
    html = page.read_text()
    assert HOSTILE not in html
    assert "<script" not in html
    for row in found["metrics"]:
        assert f"<td>{row['values'][1]:.4f}" in html
    assert html.count('class="s1 line"') == html.count('class="s0 line"') == 5
    _, stderr = call("compare", classified.run_url, other.run_url, "--html", tmp_path, code=2)
    assert "cannot be written" in stderr
    file, again_found = write_comparison([classified.run_url, other.run_url], page)
    assert (file, again_found) == (page, found)


def test_numbers_have_r2_and_what_auto_chose(of_numbers) -> None:
    found = compare_runs([of_numbers.run_url, of_numbers.run_url])
    assert found["settings"] == []
    assert {row["metric"] for row in found["metrics"]} == {"rmse", "mae", "r2"}
    assert [row["better"] for row in found["metrics"]] == [[]] * len(found["metrics"])
