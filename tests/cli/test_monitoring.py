"""Held-out data and alerts of a job file: trained, followed, described, reported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.command import ADULT, call, events, train_words

ROWS, HELD = 6000, 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("held-out")
    table = pq.read_table(ADULT / "part-0000-train.parquet")
    (made / "data").mkdir()
    pq.write_table(table.slice(0, ROWS), made / "data/a.parquet", row_group_size=500)
    pq.write_table(table.slice(ROWS, HELD), made / "held.parquet")
    return made


EVENTS = 'alerts.events=["held_out"]'
ALERTS = 'alerts.when=["accuracy_window > 0.5", "log_loss_held_out < 0"]'


def words(folder: Path, shared: str, run: str, held: str = "held.parquet") -> list[str]:
    return train_words(
        folder / run,
        f"data.path={folder / 'data'}",
        f"validation.path={folder / held}",
        f"cluster.scheduler={shared}",
    )


@pytest.fixture(scope="module")
def trained(folder: Path, shared: str) -> list[dict[str, Any]]:
    write = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))"
    command = json.dumps([sys.executable, "-c", write, str(folder / "alert.json")])
    given = (ALERTS, EVENTS, f"alerts.command={command}", "alerts.timeout=100")
    alerts = [word for one in given for word in ("--set", one)]
    return events(call(*words(folder, shared, "run"), *alerts, "--json")[0])


def sent(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What the command was called with."""
    found = [json.loads(line) for line in (folder / "alert.json").read_text().splitlines()]
    return [one for one in found if one["event"] == kind]


def test_events_of_checkpoints_differ_from_progressive_metrics(
    trained: list[dict[str, Any]],
) -> None:
    reported = [event for event in trained if event["event"] == "held_out"]
    assert [event["position"] for event in reported] == [2000, 4000, 6000]
    end = next(event for event in trained if event["event"] == "trained")
    assert [one["position"] for one in end["held_out"]["checkpoints"]] == [2000, 4000, 6000]
    for event, one in zip(reported, end["held_out"]["checkpoints"], strict=True):
        assert {"position": event["position"], **event["metrics"]} == one
    assert end["metrics"]["rows"] == ROWS
    assert end["metrics"]["log_loss"] != end["held_out"]["checkpoints"][-1]["log_loss"]


def test_describe_and_report_name_the_newest_and_the_best(
    trained: list[dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    end = next(event for event in trained if event["event"] == "trained")
    newest, best = end["held_out"]["checkpoints"][-1], end["held_out"]["best"]
    stdout, _ = call("describe", folder / "run")
    assert "held-out metrics (500 rows in 1 file):" in stdout
    assert f"{newest['log_loss']:.4f}" in stdout.partition("held-out metrics")[2]
    assert f"at row {best:,}, @best" in stdout
    (facts,) = events(call("describe", folder / "run@best", "--json")[0])
    assert facts["rows"] == best
    assert facts["held_out"] == end["held_out"]
    call("report", folder / "run", "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"log loss {newest['log_loss']:.4f} at row 6,000" in page


def test_an_alert_is_an_event_a_call_and_described(
    trained: list[dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    (reported,) = [event for event in trained if event["event"] == "alert"]
    assert reported["when"] == "accuracy_window > 0.5"
    (given,) = sent(folder, "alert")
    assert given["run"] == str(folder / "run")
    assert {name: given[name] for name in ("when", "value", "row")} == {
        name: reported[name] for name in ("when", "value", "row")
    }
    stdout, _ = call("describe", folder / "run")
    assert f"accuracy_window > 0.5  holds since row {reported['row']:,}" in stdout
    (facts,) = events(call("describe", folder / "run", "--json")[0])
    assert [one["when"] for one in facts["alerts"]["on"]] == ["accuracy_window > 0.5"]
    call("report", folder / "run", "-o", tmp_path / "page.html")
    assert "1 alert, the last accuracy_window &gt; 0.5" in (tmp_path / "page.html").read_text()


def test_events_that_are_wanted_are_calls_too(trained: list[dict[str, Any]], folder: Path) -> None:
    reported = [event for event in trained if event["event"] == "held_out"]
    given = sorted(sent(folder, "held_out"), key=lambda one: one["position"])
    assert [one["position"] for one in given] == [2000, 4000, 6000]
    for one, event in zip(given, reported, strict=True):
        assert one["run"] == str(folder / "run")
        assert {name: one[name] for name in ("metrics", "text")} == {
            name: event[name] for name in ("metrics", "text")
        }
    assert sent(folder, "checkpoint") == []


def test_best_is_scored_evaluated_and_exported(
    trained: list[dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    best = trained[-1]["held_out"]["best"]
    held = folder / "held.parquet"
    of_best = events(call("evaluate", folder / "run@best", held, "--json")[0])[-1]["metrics"]
    of_row = events(call("evaluate", folder / f"run@{best}", held, "--json")[0])[-1]["metrics"]
    assert of_best == of_row
    for name in ("best", best):
        call("score", folder / f"run@{name}", held, tmp_path / f"{name}")
        call("export", folder / f"run@{name}", "-o", tmp_path / f"{name}.onnx")
    for file in ("{}.onnx", "{}/_manifest.json"):
        there = [(tmp_path / file.format(name)).read_bytes() for name in ("best", best)]
        assert there[0] == there[1]


def test_rows_that_are_trained_on_are_refused_by_train_and_follow(
    folder: Path, shared: str
) -> None:
    wrong = words(folder, shared, "wrong", "data/a.parquet")
    for command in (wrong, ["follow", *wrong[1:], "--once"]):
        _, stderr = call(*command, code=3)
        assert "of the held-out data is trained on as well" in stderr
    assert not (folder / "wrong/run.json").exists()


def test_follow_evaluates_what_it_learned(folder: Path, shared: str) -> None:
    alerts = ("--set", 'alerts.when="lag > 0.0001"')
    words_ = [*words(folder, shared, "followed"), *alerts]
    stdout, _ = call("follow", *words_[1:], "--once", "--json")
    reported = [event for event in events(stdout) if event["event"] == "held_out"]
    assert [event["position"] for event in reported] == [2000, 4000, 6000]
    raised = [event["when"] for event in events(stdout) if event["event"] == "alert"]
    assert raised == ["lag > 0.0001"]
    stdout, _ = call("follow", *words_[1:], "--once", "--json")
    assert not {"held_out", "alert"} & {event["event"] for event in events(stdout)}


def test_metrics_are_served_at_the_port_of_the_job_or_command(folder: Path, shared: str) -> None:
    for name, more in (
        ("by-job", ("--set", "metrics.port=0", "--set", "metrics.host=localhost")),
        ("by-command", ("--set", "metrics.port=1", "--metrics-port", "0")),
    ):
        _, stderr = call(*words(folder, shared, name), *more)
        assert "metrics are served at http://" in stderr
        assert ("localhost" in stderr) == (name == "by-job")
    _, stderr = call(*words(folder, shared, "x"), "--set", "metrics.prot=1", code=2)
    assert "did you mean 'port'" in stderr
