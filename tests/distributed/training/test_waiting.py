"""Rows that wait for their labels are counted apart, and where trees learned none, it is clear."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.cli.train import summary_line
from dmondrian.distributed import Progress, TrainedRun, evaluate, score
from dmondrian.errors import ParameterError
from dmondrian.frames import FrameModel
from dmondrian.report.facts import gather
from dmondrian.report.sections import overview
from tests.cli.command import call, events
from tests.distributed.conftest import ROWS, Fit, forest

NOTHING = r"no row is learned yet: all 6,000 rows .*delay = 7000.*1,000 rows more.* at most 1500"


def following(delay: int) -> AMFClassifier:
    return AMFClassifier(2, drift="follow", delay=delay, random_state=7)


def some_waiting(fit: Fit, **options: Any) -> TrainedRun:
    return fit(estimator=following(3500), **options)


def test_rows_that_wait_are_counted_apart_wherever_a_run_is_shown(
    fit: Fit, adult: Path, client: Client
) -> None:
    records: list[Progress] = []
    run = some_waiting(fit, progress=records.append)
    assert (run.summary["learned"], run.summary["waiting"]) == (3500, 2500)
    assert records[-1].waiting == 2500
    assert "2,500 rows waiting for labels" in records[-1].line()
    line = summary_line(run.summary)
    assert line.endswith("; 3,500 rows learned by trees, 2,500 wait for their labels")
    text, _ = call("describe", run.run_url)
    assert "rows learned  3,500; 2,500 more wait for their labels (delay 3,500)\n" in text
    (event,) = events(call("describe", run.run_url, "--json")[0])
    assert (event["rows"], event["learned"], event["waiting"]) == (6000, 3500, 2500)
    facts = gather(run.run_url)
    assert facts.n_waiting == 2500
    page = str(overview(facts))
    assert "<b>3,500</b><span>of 6,000 rows learned</span>" in page
    assert "<b>2,500</b><span>rows wait for their labels</span>" in page
    # The same command once more has nothing to do, and prints that of the rows that wait too.
    again = some_waiting(fit)
    assert again.summary["rows"] == 0
    assert (again.summary["learned"], again.summary["waiting"]) == (3500, 2500)
    measured = evaluate(run.run_url, adult, client=client)
    assert measured["delay"] == 2500
    assert "learned 3,500 of these rows" in measured["learned"]


def test_a_run_of_which_all_rows_wait_is_warned_of_and_cannot_score(
    fit: Fit, adult: Path, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dmondrian"):
        run = fit(estimator=following(7000))
    assert [r.getMessage() for r in caplog.records if "no row is learned" in r.getMessage()]
    assert (run.summary["learned"], run.summary["waiting"]) == (0, ROWS)
    for ask in (
        lambda: score(run.run_url, adult, tmp_path / "out", client=client),
        lambda: evaluate(run.run_url, adult, client=client),
        lambda: FrameModel(run.run_url).predict(pq.read_table(adult).to_pandas()),
    ):
        with pytest.raises(ParameterError, match=NOTHING):
            ask()
    assert not (tmp_path / "out").exists()
    text, notes = call("describe", run.run_url)
    assert "rows learned  0; 6,000 more wait for their labels (delay 7,000)\n" in text
    assert "no row is learned yet" in notes


def test_a_run_that_waits_for_nothing_prints_nothing_of_it(fit: Fit) -> None:
    run = fit(estimator=following(3000))
    assert (run.summary["learned"], run.summary["waiting"]) == (6000, 0)
    assert "wait" not in summary_line(run.summary)
    assert "rows learned  6,000\n" in call("describe", run.run_url)[0]
    given = {"learning_rate": 1.0, "feature_scales": None, "random_state": 0}
    plain = fit("plain", estimator=AMFRegressor(2, **given), target="age")  # nothing to choose
    assert "waiting" not in plain.summary
    (event,) = events(call("describe", plain.run_url, "--json")[0])
    assert event["learned"] is None
    assert event["waiting"] is None


def test_describe_shows_no_parameter_that_a_forest_has_not(fit: Fit) -> None:
    def shown(run: TrainedRun) -> set[str]:
        _, lines = call("describe", run.run_url)[0].split("parameters:\n")
        indented = itertools.takewhile(lambda line: line.startswith("  "), lines.splitlines())
        return {line.split()[0] for line in indented}

    names = shown(some_waiting(fit))
    assert {"alpha", "delay", "drift", "experts"} <= names
    assert not {"learning_rate", "warmup_rows"} & names
    names = shown(fit("plain", estimator=forest(n_estimators=2)))
    assert {"drift", "learning_rate", "warmup_rows"} <= names
    assert not {"delay", "experts"} & names
