"""`describe` says what a person asks of a run, in lines that fit a screen."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import dmondrian
from dmondrian.checkpoint import Run, document
from tests.cli.command import call, events


def lines_of(text: str) -> dict[str, str]:
    """The first table: what is told, by name."""
    rows = [line.split("  ", 1) for line in text.split("\nparameters:")[0].splitlines()]
    return {name.strip(): value.strip() for name, value in rows}


def test_it_tells_data_dates_duration_versions_and_size(classified) -> None:
    text, _ = call("describe", classified.run_url)
    told = lines_of(text)
    (file,) = {block.uri for block in classified.plan.blocks}
    assert told["data"] == f"3,000 rows in {file}"
    pattern = r"\d{4}-\d\d-\d\d \d\d:\d\d( to .*)? UTC, [0-9.:]+( s)? of work in 1 attempt"
    assert re.fullmatch(pattern, told["trained"])
    assert f"dmondrian {dmondrian.__version__}, " in told["written by"]
    assert "pyarrow" in told["written by"]
    (event,) = events(call("describe", classified.run_url, "--json")[0])
    stored = [one for one in Path(classified.run_url).rglob("*") if one.is_file()]
    assert event["size"]["on_disk_bytes"] == sum(one.stat().st_size for one in stored)
    assert event["data"] == {"rows": 3000, "files": [file], "shuffle": False}
    assert event["trained"]["attempts"] == 1
    assert 0.0 < event["trained"]["seconds"] <= event["trained"]["ended"]


def test_units_are_counted_and_told_by_feature_where_asked_for(of_numbers) -> None:
    text, _ = call("describe", of_numbers.run_url)
    assert "feature_units     " in text
    assert "auto, now 3 of 3 features rounded" in text
    assert max(map(len, text.splitlines())) < 160
    text, _ = call("describe", of_numbers.run_url, "--features")
    units = of_numbers.to_local().forest_.parameters.feature_units
    rows = text.split("features in use:\n")[1].splitlines()[1:4]
    assert [float(row.split()[-1]) for row in rows] == [float(f"{unit:g}") for unit in units]
    assert [float(row.split()[-2]) for row in rows] == [1.0, 1.0, 1.0]


def test_a_plan_or_note_that_is_damaged_hides_nothing_else(classified, tmp_path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(classified.run_url, copy)
    (note,) = (copy / "attempts").iterdir()
    note.write_bytes(b"{")
    (copy / "plan.parquet").write_bytes(b"PAR1")
    told = lines_of(call("describe", copy)[0])
    assert "data" not in told
    assert "trained" not in told
    assert told["rows learned"] == "3,000"
    note.write_bytes(document.seal({"outcome": "finished"}))  # of another version
    assert Run.open(copy).attempts() == [{"outcome": "finished"}]
    assert "trained" not in lines_of(call("describe", copy)[0])


def test_a_model_of_arrays(tmp_path) -> None:
    model = dmondrian.AMFClassifier(n_estimators=1, random_state=0)
    model.fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "m")
    told = lines_of(call("describe", tmp_path / "m")[0])
    assert "data" not in told
    assert told["nodes"] == "3 (3 per tree)"
