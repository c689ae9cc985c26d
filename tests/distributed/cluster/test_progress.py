"""Progress where people look: notebooks, and the names of tasks on Dask's dashboard."""

from __future__ import annotations

import io

import dask.array as da
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from dmondrian.distributed import predict, score
from dmondrian.distributed.cluster import progress
from dmondrian.distributed.cluster.progress import BarWriter, Progress, Speed, Timeline
from tests.distributed.conftest import GROUP, ROWS, Fit, forest

CELL = """
from dask.distributed import Client
from dmondrian import AMFClassifier
from dmondrian.distributed import train
with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    forest = AMFClassifier(n_estimators=1, alpha=0.5, charge_opening=True, feature_scales=None)
    train(forest, {data!r}, target="income", run={run!r}, client=client, progress=True)
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what runs the notebook
@pytest.mark.thorough
def test_a_notebook_shows_one_bar_that_moves(adult, tmp_path) -> None:
    cell = CELL.format(data=str(adult / "part-0.parquet"), run=str(tmp_path / "run"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": "."}}).execute()
    outputs = notebook.cells[0].outputs
    shown = "".join(out.text for out in outputs if out.get("name") == "stderr")
    states = [line for line in shown.split("\r") if "rows" in line]
    assert states[-1].startswith("100%|")
    assert "3,000 of 3,000 rows" in states[-1]


def test_tasks_say_what_they_do(fit: Fit, client, adult, tmp_path) -> None:
    run = fit(estimator=forest(n_estimators=1), data=adult / "part-0.parquet")
    score(run.run_url, adult / "part-1.parquet", tmp_path / "scores", client=client)
    X = da.from_array(np.zeros((10, run.to_local().n_features_in_), np.float32), chunks=5)
    client.compute(predict(run.run_url, X), sync=True)
    reported = set(client.cluster.scheduler.task_prefixes)
    names = {"dmondrian-restore", "dmondrian-step", "dmondrian-output-file", "dmondrian-predict"}
    assert names <= reported


def test_a_timeline_is_thinned_and_ends_now(set_clock) -> None:
    now = [0.0]
    set_clock(progress, lambda: now[0])
    timeline = Timeline()
    for second in range(1000):
        now[0] = float(second)
        timeline.add(Progress(second, 1000, 1.0, 0, None, 2, second // 500))
    reported = timeline.all_points()
    assert len(reported) <= Timeline.most + 1
    assert reported[0] == [0.0, 0, 2, 0, 0]
    assert reported[-1] == [999.0, 999, 2, 1, 0]
    gaps = np.diff([point[0] for point in reported[:-1]])
    assert gaps.min() >= 8.0
    assert gaps.max() <= 17.0


def test_the_pace_is_that_of_the_last_minute() -> None:
    now = [0.0]
    speed = Speed(1000, lambda: now[0])
    assert speed.after(1000) == 0.0
    for second in range(1, 301):  # slowly, then fast
        now[0] = float(second)
        rate = speed.after(1000 + 10 * second)
    assert rate == pytest.approx(10.0)
    for second in range(301, 331):
        now[0] = float(second)
        rate = speed.after(4000 + 100 * (second - 300))
    assert rate == pytest.approx((30 * 10 + 30 * 100) / 60)
    for second in range(331, 391):
        now[0] = float(second)
        rate = speed.after(4000 + 100 * (second - 300))
    assert rate == pytest.approx(100.0)
    assert len(speed._points) < 65
    now[0] = 1000.0
    assert speed.after(13_000) == pytest.approx(0.0, abs=0.01)  # nothing for ten minutes
    now[0] = 1061.0
    assert speed.after(13_000) == 0.0


def test_a_pace_that_is_asked_for_often_keeps_a_point_a_second() -> None:
    now = [0.0]
    speed = Speed(0, lambda: now[0])
    for turn in range(1, 10_001):
        now[0] = turn / 100.0
        rate = speed.after(turn)
    assert rate == pytest.approx(100.0)
    assert len(speed._points) < 125


@pytest.mark.usefixtures("talkative")
def test_rows_move_with_each_shard_and_not_only_when_all_have_learned(fit: Fit) -> None:
    reported: list[Progress] = []
    fit(progress=reported.append)
    rows = [progress.rows for progress in reported]
    assert rows == sorted(rows)
    assert rows[-1] == ROWS
    assert any(row % GROUP for row in rows)


def test_a_log_shows_the_last_record_and_none_twice() -> None:
    stream = io.StringIO()
    write = BarWriter(stream)
    for rows in (5, 5, 10, 10):
        write(Progress(rows, 10, 1.0, rows, 10.0 - rows, 1, 0))
    assert stream.getvalue().splitlines() == [
        "5 of 10 rows (50%), 1 rows/s, 0:05 left, saved at 5",
        "10 of 10 rows (100%), 1 rows/s, 0:00 left, saved at 10",
    ]


def test_a_line_has_the_last_rows_a_baseline_and_the_delay() -> None:
    progress = Progress(
        5000, 9000, 0.0, 0, None, 1, 0, {"log_loss": 0.5, "accuracy": 0.75},
        window={"rows": 1030, "log_loss": 0.25, "accuracy": 0.875},
        baselines={"class_frequencies_log_loss": 0.69, "class_frequencies_accuracy": 0.5,
                   "last_label_log_loss": 0.6},
        delay=64,
    )  # fmt: skip
    assert progress.line().endswith(
        "log_loss 0.5 (0.25 of the last 1,030 rows), accuracy 0.75 (0.875 of the last 1,030 rows), "
        "class frequencies: log_loss 0.69, delay 64"
    )
    early = Progress(900, 9000, 0.0, 0, None, 1, 0, {"rmse": 2.0}, window={"rows": 900, "rmse": 2})
    assert early.line().endswith("saved at 0, rmse 2")
