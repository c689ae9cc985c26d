"""`dmondrian train`, as a user runs it: real processes, real data, killed and resumed."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import dmondrian
from tests.cli.command import (
    ADULT,
    JOB,
    PROJECT,
    TIMEOUT,
    call,
    digests,
    events,
    finish,
    manifests,
    start,
    train_words,
)

pytestmark = pytest.mark.slow

TEST_FILE = ADULT / "part-0001-test.parquet"
TEST_ROWS = 16_281
ROWS, GROUP = 12_288, 512


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Rows of adult in row groups so small that a run has a middle to be stopped in."""
    file = tmp_path_factory.mktemp("data") / "adult.parquet"
    table = pq.read_table(ADULT / "part-0000-train.parquet").slice(0, ROWS)
    pq.write_table(table, file, row_group_size=GROUP)
    return f"data.path={file}", "run.checkpoint_every=1000 rows"


@pytest.fixture(scope="module")
def undisturbed(keys, tmp_path_factory):
    """Four trees trained on adult by one worker process."""
    run = tmp_path_factory.mktemp("runs") / "undisturbed"
    stdout, stderr = finish(*train_words(run, *keys, "cluster.workers=1"))
    return run, stdout, stderr


def wait_for_a_checkpoint(process, run: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not list((run / "manifests").glob("*.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def scores(folder: Path):
    return pq.read_table(sorted(folder.glob("**/*.parquet")))


def test_training_reports_progress_and_metrics(undisturbed):
    run, stdout, stderr = undisturbed
    assert "12,288 of 12,288 rows (100%)" in stderr
    assert f"trained {run}" in stdout
    assert re.search(r"12,288 rows in \d+:\d+, \d+ checkpoints, 1 worker\n", stdout)
    for word in ("log loss", "accuracy"):
        assert word in stdout


def test_every_checkpoint_is_there_and_only_the_last_is_final(undisturbed):
    found = manifests(undisturbed[0])
    assert len(found) >= 3
    assert [manifest["final"] for manifest in found] == [False] * (len(found) - 1) + [True]
    assert found[-1]["position"] == ROWS


def test_describe_shows_the_run(undisturbed):
    (reported,) = events(call("describe", undisturbed[0], "--json")[0])
    assert reported["rows"] == ROWS
    assert reported["final"] is True
    assert reported["size"]["trees"] == 4
    assert reported["target"] == "income"
    assert reported["metrics"]["accuracy"] > 0.76  # the share of the greater class
    assert reported["checkpoints"][-1] == ROWS


def test_importances_are_those_of_the_columns_of_the_file(undisturbed):
    (reported,) = events(call("describe", undisturbed[0], "--json", "--importances")[0])
    forest = dmondrian.load(undisturbed[0])
    shares = dict(zip(forest.feature_names_in_, forest.feature_importances_, strict=True))
    assert set(reported["importances"]) == set(pq.read_schema(TEST_FILE).names) - {"income"}
    levels = [share for name, share in shares.items() if name.startswith("marital-status=")]
    assert len(levels) > 3
    assert reported["importances"]["marital-status"] == pytest.approx(sum(levels), rel=1e-12)
    assert reported["importances"]["age"] == shares["age"]
    assert sum(reported["importances"].values()) == pytest.approx(1.0)


def test_an_earlier_checkpoint_is_a_model_too(undisturbed, tmp_path):
    first = manifests(undisturbed[0])[0]["position"]
    stdout, _ = call("score", f"{undisturbed[0]}@{first}", TEST_FILE, tmp_path / "out", "--json")
    assert events(stdout)[-1]["rows"] == TEST_ROWS


def test_a_limit_of_memory_that_cannot_do_is_refused_with_one_that_would(undisturbed, tmp_path):
    words = ("score", undisturbed[0], TEST_FILE, tmp_path / "a", "--json")
    call(*words)
    limited = ("score", undisturbed[0], TEST_FILE, tmp_path / "b", "--json", "--workers", "1")
    _, reported = call(*limited, "--threads", "1", "--memory-limit", "100MiB", code=5)
    enough = re.search(r"([0-9,]+) MiB would do", reported)[1].replace(",", "")
    stdout, _ = call(*limited, "--threads", "1", "--memory-limit", f"{enough}MiB")
    scored = events(stdout)[-1]
    assert (scored["event"], scored["rows"]) == ("scored", scores(tmp_path / "a").num_rows)
    assert scored["trees_sharded"] > 1
    name = "_manifest.json"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_score_keeps_the_order_and_the_columns_asked_for(undisturbed, tmp_path):
    out = tmp_path / "out"
    call("score", undisturbed[0], TEST_FILE, out, "--keep", "fnlwgt,age", "--keep", "income")
    table = scores(out)
    rows = pq.read_table(TEST_FILE)
    assert table.num_rows == TEST_ROWS
    for name in ("fnlwgt", "age", "income"):
        assert table[name].to_pylist() == rows[name].to_pylist()
    assert {"prediction", "proba_<=50K", "proba_>50K", "spread", "distance"} <= set(
        table.column_names
    )
    assert set(table["prediction"].to_pylist()) == {"<=50K", ">50K"}
    call("score", undisturbed[0], TEST_FILE, tmp_path / "plain", "--no-details")
    plain = scores(tmp_path / "plain")
    assert plain.equals(table.drop_columns(["fnlwgt", "age", "income", "spread", "distance"]))


def test_evaluate_reports_the_metrics_of_the_test_file(undisturbed):
    (reported,) = events(call("evaluate", undisturbed[0], TEST_FILE, "--json")[0])
    metrics = reported["metrics"]
    assert metrics["rows"] == TEST_ROWS
    assert metrics["auc"] > 0.8  # four trees; the benchmarks hold the real bounds
    assert metrics["log_loss"] < 0.5
    assert 0.76 < metrics["accuracy"] < 1.0


def test_a_repeated_command_changes_nothing(undisturbed, keys, shared):
    run = undisturbed[0]
    before = {file: file.stat().st_mtime_ns for file in (run / "manifests").iterdir()}
    call(*train_words(run, *keys, f"cluster.scheduler={shared}"))
    assert {file: file.stat().st_mtime_ns for file in (run / "manifests").iterdir()} == before


@pytest.mark.thorough
def test_two_workers_make_the_same_bytes(undisturbed, keys, tmp_path):
    run = tmp_path / "two"
    finish(*train_words(run, *keys, "cluster.workers=2", "cluster.threads=1"))
    assert digests(run) == digests(undisturbed[0])


@pytest.mark.thorough
def test_killed_and_run_again_makes_the_same_bytes(undisturbed, keys, shared, tmp_path):
    run = tmp_path / "killed"
    process = start(*train_words(run, *keys, "cluster.workers=1"))
    wait_for_a_checkpoint(process, run)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT)
    assert not manifests(run)[-1]["final"]  # it was killed in the middle
    _, stderr = call(*train_words(run, *keys, f"cluster.scheduler={shared}"))
    assert "100%" in stderr
    assert digests(run) == digests(undisturbed[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_terminal_stops_it_at_a_checkpoint_and_the_command_goes_on(
    undisturbed, keys, shared, tmp_path, number
):
    """By Ctrl-C, or as it is closed: no worker is lost, and what was learned is saved."""
    run = tmp_path / "stopped"
    process = start(*train_words(run, *keys, "cluster.workers=1"))
    wait_for_a_checkpoint(process, run)
    os.killpg(process.pid, number)  # a terminal sends it to the whole group
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert "run the same command again to go on" in stderr
    assert "Traceback" not in stderr
    assert "lost worker" not in stderr
    assert not manifests(run)[-1]["final"]
    call(*train_words(run, *keys, f"cluster.scheduler={shared}"))
    assert digests(run) == digests(undisturbed[0])


@pytest.mark.thorough
def test_ctrl_c_twice_stops_at_once(undisturbed, keys, shared, tmp_path):
    run = tmp_path / "stopped"
    process = start(*train_words(run, *keys, "cluster.workers=1"))
    wait_for_a_checkpoint(process, run)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=TIMEOUT)
    # The second may come as the command ends, and end it by itself: a shell shows 130 for both.
    assert process.returncode in (130, -signal.SIGINT)
    call(*train_words(run, *keys, f"cluster.scheduler={shared}"))
    assert digests(run) == digests(undisturbed[0])


def test_a_folder_of_another_job_is_refused(undisturbed, keys):
    run = undisturbed[0]
    before = sorted(run.rglob("*"))
    _, stderr = call(*train_words(run, *keys, "forest.random_state=1"), code=4)
    assert "belongs to another job" in stderr
    assert "random_state: 0 there, 1 here" in stderr
    assert sorted(run.rglob("*")) == before


@pytest.mark.thorough
def test_a_job_with_a_score_table_trains_scores_and_evaluates(keys, tmp_path):
    run, out = tmp_path / "run", tmp_path / "scores"
    words = train_words(run, "forest.n_estimators=2", f"score.out={out}", *keys, job=JOB)
    reported = events(finish(*words, "--json")[0])
    names = [event["event"] for event in reported]
    assert [name for name in names if name != "progress"] == ["trained", "scored", "evaluated"]
    last = reported[names.index("trained") - 1]
    assert last["rows"] == last["n_rows"] == last["durable"] == ROWS
    assert reported[-1]["metrics"]["rows"] == TEST_ROWS
    again = tmp_path / "again"
    call("score", run, TEST_FILE, again)
    assert scores(out).equals(scores(again))


@pytest.mark.parametrize("how", [[], ["--detach"]], ids=["here", "detached"])
@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (["score.path={}/none.parquet"], "none.parquet"),
        (["score.path={}/notes.parquet"], "notes.parquet"),
        (["score.path={}/empty.parquet"], "none with"),
        (["score.keep=['age', 'height']"], "'height', asked for to be kept"),
    ],
    ids=["no file", "no Parquet", "no rows", "no such column"],
)
def test_what_could_not_be_scored_is_refused_before_training(given, printed, how, tmp_path):
    (tmp_path / "notes.parquet").write_text("to do")
    pq.write_table(pq.read_table(TEST_FILE).slice(0, 0), tmp_path / "empty.parquet")
    run, out = tmp_path / "run", tmp_path / "scores"
    given = [word.format(tmp_path) for word in given]
    _, stderr = call(*train_words(run, f"score.out={out}", *given, job=JOB), *how, code=3)
    assert printed in stderr
    assert not run.exists()
    assert not out.exists()


def test_data_without_a_column_of_the_model_are_refused_before_training(tmp_path):
    run, out, few = tmp_path / "run", tmp_path / "scores", tmp_path / "few.parquet"
    pq.write_table(pq.read_table(TEST_FILE).drop_columns(["age"]), few)
    words = train_words(run, f"score.out={out}", f"score.path={few}", job=JOB)
    _, stderr = call(*words, code=3)
    assert "few.parquet lacks the column 'age': expected" in stderr
    assert not run.exists()
    assert not out.exists()


@pytest.mark.thorough
def test_the_ready_job_of_a_kernel_trains_scores_and_evaluates(shared, tmp_path):
    """In two shards on two workers as in one on one: the forecasts are the same bytes."""
    job, file = PROJECT / "jobs" / "california_housing_kernel.toml", tmp_path / "rows.parquet"
    table = pq.read_table(PROJECT / "jobs/data/california_housing/part-0000.parquet")
    pq.write_table(table.slice(0, 900), file, row_group_size=300)
    given = [f"data.path={file}", f"score.path={file}", "forest.n_estimators=4"]
    given += ["run.checkpoint_every=400 rows"]
    reported = []
    for n in (1, 2):
        run, out = tmp_path / f"run-{n}", tmp_path / f"scores-{n}"
        own = [*given, f"score.out={out}", f"run.n_shards={n}"]
        if n == 1:
            own.append(f"cluster.scheduler={shared}")
            stdout, _ = call(*train_words(run, *own, job=job), "--json")
        else:
            stdout, _ = finish(*train_words(run, *own, "cluster.workers=2", job=job), "--json")
        lines = events(stdout)
        reported.append((lines[-1]["metrics"], scores(out)))
        assert [manifest["final"] for manifest in manifests(run)] == [False, False, True]
        assert manifests(run)[-1]["position"] == 900
    assert reported[0] == reported[1]
    metrics, forecasts = reported[0]
    y = table["medianHouseValue"].to_numpy()[:900]
    rmse = np.sqrt(np.mean((forecasts["prediction"].to_numpy() - y) ** 2))
    assert metrics["rmse"] == pytest.approx(rmse)
    assert metrics["rmse"] < 0.9 * y.std()
