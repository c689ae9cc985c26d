"""`describe` prints what a person asks of a run, in lines that fit a screen."""

from __future__ import annotations

import re
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np

import dmondrian
from dmondrian.checkpoint import Run, document
from tests.cli.command import call, events


def lines_of(text: str) -> dict[str, str]:
    """The first table: what is reported, by name."""
    rows = [line.split("  ", 1) for line in text.split("\nparameters:")[0].splitlines()]
    return {name.strip(): value.strip() for name, value in rows}


def test_it_shows_data_dates_duration_versions_and_size(classified) -> None:
    text, _ = call("describe", classified.run_url)
    reported = lines_of(text)
    (file,) = {block.uri for block in classified.plan.blocks}
    assert reported["data"] == f"3,000 rows in {file}"
    pattern = r"\d{4}-\d\d-\d\d \d\d:\d\d( to .*)? UTC, [0-9.:]+( s)? of work in 1 attempt"
    assert re.fullmatch(pattern, reported["trained"])
    assert f"dmondrian {version('dmondrian')}, " in reported["written by"]
    assert "pyarrow" in reported["written by"]
    (event,) = events(call("describe", classified.run_url, "--json")[0])
    stored = [one for one in Path(classified.run_url).rglob("*") if one.is_file()]
    assert event["size"]["on_disk_bytes"] == sum(one.stat().st_size for one in stored)
    assert event["data"] == {
        "rows": 3000, "files": [file], "shuffle": False, "notes": [], "label_delay": None,
    }  # fmt: skip
    assert event["trained"]["attempts"] == 1
    assert 0.0 < event["trained"]["seconds"] <= event["trained"]["ended"]


def test_units_are_counted_and_reported_by_feature_where_asked_for(of_numbers) -> None:
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
    reported = lines_of(call("describe", copy)[0])
    assert reported["data"].startswith("their plan cannot be read: ")
    assert "trained" not in reported
    assert reported["rows learned"] == "3,000"
    note.write_bytes(document.seal({"outcome": "finished"}))  # of another version
    assert Run.open(copy).attempts() == [{"outcome": "finished"}]
    assert "trained" not in lines_of(call("describe", copy)[0])


def test_a_model_of_arrays(tmp_path) -> None:
    model = dmondrian.AMFClassifier(n_estimators=1, random_state=0)
    model.fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "m")
    reported = lines_of(call("describe", tmp_path / "m")[0])
    assert "data" not in reported
    assert reported["nodes"] == "3 (3 per tree)"


def test_metrics_stand_beside_the_last_rows_baselines_and_the_delay(classified, of_numbers) -> None:
    text, _ = call("describe", classified.run_url)
    (event,) = events(call("describe", classified.run_url, "--json")[0])
    reported = event["metrics"]
    assert reported["delay"] == 1
    assert "metrics (each row forecast just before it was learned, delay 1 row):\n" in text
    lines = text.split("delay 1 row):\n")[1].splitlines()
    columns = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert columns[0] == ["so far", f"last {reported['window']['rows']:,} rows",
                          "faded, half after 1,024 rows"]  # fmt: skip
    spans = (reported, reported["window"], reported["faded"])
    assert columns[2] == ["log loss", *(f"{span['log_loss']:.4f}" for span in spans)]
    assert columns[4][0] == "baseline: last label"
    assert columns[4][2] == f"{reported['window']['baselines']['last_label']['log_loss']:.4f}"
    assert reported["baselines"]["class_frequencies"]["log_loss"] > reported["log_loss"]
    assert reported["drift"]["found"] == 0
    text, _ = call("describe", of_numbers.run_url)
    assert re.search(r"\n    baseline: mean so far +[\d,.]+ +[\d,.]+ +[\d,.]+\n", text)


def test_line_ends_in_names_end_no_line(tmp_path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a\nb": [0.0, 1.0] * 40, "y": ["one\nline", "tab\there"] * 40})
    pq.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "job.toml").write_text(
        f'[data]\npath = "{tmp_path}/rows.parquet"\ntarget = "y"\n[forest]\nalgorithm = '
        f'"mondrian-forest-classifier"\nn_estimators = 1\n[run]\npath = "{tmp_path}/run"\n'
        "[cluster]\nworkers = 1\n"
    )
    call("train", tmp_path / "job.toml")
    text, _ = call("describe", tmp_path / "run", "--importances", "--features")
    assert r"2: one\nline, tab\there" in text
    assert r"a\nb" in text
    assert "a\nb" not in text
    text, _ = call("schema", tmp_path / "run")
    assert "\na\\nb    number" in text


def test_a_saved_model_of_balanced_classes_is_described(tmp_path: Path) -> None:
    X = np.arange(20.0).reshape(-1, 1)
    model = dmondrian.AMFClassifier(1, class_weight="balanced", random_state=0)
    model.fit(X, [0] * 15 + [1] * 5).save(tmp_path / "model")
    assert "balanced" in call("describe", tmp_path / "model")[0]
