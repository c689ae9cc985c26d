"""A run after it was trained, and while somebody else trains it, as a user handles it."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dmondrian.cli import main
from tests.cli.command import ADULT, TIMEOUT, call, digests, events, manifests, start, train_words
from tests.cli.test_output import terminal

pytestmark = pytest.mark.slow

ROWS, GROUP = 12_288, 512


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adult's training rows in row groups so small that a run has a middle to be stopped in."""
    file = tmp_path_factory.mktemp("data") / "adult.parquet"
    table = pq.read_table(ADULT / "part-0000-train.parquet").slice(0, ROWS)
    pq.write_table(table, file, row_group_size=GROUP)
    return file


@pytest.fixture(scope="module")
def trained(rows: Path, shared: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "trained"
    call(*train_words(run, f"data.path={rows}", f"cluster.scheduler={shared}"))
    return run


def end(process: subprocess.Popen[str], code: int) -> str:
    stdout, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == code, stderr
    return stdout


def wait_for(file_of: object, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not file_of():  # type: ignore[operator]  # a callable without a type of its own
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_is_grown_merged_and_pruned(
    trained: Path, rows: Path, shared: str, tmp_path: Path
) -> None:
    grown, merged = tmp_path / "grown", tmp_path / "merged"
    shutil.copytree(trained, grown)
    stdout, _ = call(
        "grow", grown, "--n-estimators", 6, "--shards", 2, "--scheduler", shared, "--json"
    )
    assert events(stdout)[-1]["event"] == "grown"
    reported = events(call("describe", grown, "--json")[0])[0]
    assert reported["size"]["trees"] == reported["parameters"]["n_estimators"] == 6
    assert reported["parts"] == [{"trees": [4, 6], "rows": ROWS, "final": True}]
    assert "trees 4 to 5, 12,288 rows" in call("describe", grown)[0]
    other = tmp_path / "other"
    keys = ("forest.n_estimators=2", "run.first_tree=4", "run.n_shards=2")
    call(*train_words(other, f"data.path={rows}", f"cluster.scheduler={shared}", *keys))
    assert "6 trees at position 12,288" in call("merge", trained, other, "--out", merged)[0]
    (part,) = (grown / "growth").iterdir()
    both = [*digests(grown).values(), *digests(part).values()]
    assert list(digests(merged).values()) == both
    n_before = len(manifests(grown))
    assert n_before > 3
    reported = events(call("prune", grown, "--keep", 2, "--dry-run", "--json")[0])[0]
    assert reported["dry_run"] is True
    assert len(manifests(grown)) == n_before
    stdout, _ = call("prune", grown, "--keep", 2)
    assert f"deleted {n_before - 2} checkpoints" in stdout
    assert events(call("describe", grown, "--json")[0])[0]["size"]["trees"] == 6
    (copied,) = events(call("copy", grown, tmp_path / "copied", "--json")[0])
    assert (copied["event"], copied["position"]) == ("copied", ROWS)
    assert list(digests(tmp_path / "copied").values()) == list(digests(grown).values())
    assert len(manifests(tmp_path / "copied")) == 1
    assert call("copy", grown, tmp_path / "copied")[0].startswith("nothing to do: ")
    _, stderr = call("copy", trained, tmp_path / "copied", code=2)
    assert "is not empty" in stderr
    _, stderr = call("describe", next((grown / "blobs").iterdir()), code=4)
    assert "is a file, where a folder is needed" in stderr


def test_a_run_is_followed_and_cancelled_from_elsewhere(
    trained: Path, rows: Path, shared: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    keys = (f"cluster.scheduler={shared}", "run.checkpoint_every=1000 rows")
    words = train_words(run, f"data.path={rows}", *keys)
    process = start(*words)
    wait_for(lambda: list((run / "manifests").glob("*.json")), process)
    process.send_signal(signal.SIGSTOP)  # it is not done before we have looked
    follower = start("describe", run, "--follow", "--json")
    canceller = start("cancel", run, "--json")
    wait_for(lambda: list((run / "lease").glob("*.stop")), canceller)
    assert follower.stderr is not None
    assert f"process {process.pid} on" in follower.stderr.readline()  # it has looked
    process.send_signal(signal.SIGCONT)
    end(process, 130)
    cancelled = events(end(canceller, 0))[-1]
    assert cancelled["was_running"] is True
    followed = events(end(follower, 0))
    assert followed[-1]["outcome"] == "stopped"
    assert any(event["event"] == "progress" for event in followed)
    assert 0 < manifests(run)[-1]["position"] < ROWS
    stdout, _ = call("describe", run, "--follow")
    assert "nobody works on" in stdout or "stopped; " in stdout
    assert events(call("cancel", run, "--json")[0])[0]["was_running"] is False
    call(*words)
    assert digests(run) == digests(trained)


def test_a_job_cannot_be_detached_from_a_local_cluster(rows: Path, tmp_path: Path) -> None:
    words = train_words(tmp_path / "run", f"data.path={rows}")
    _, stderr = call(*words, "--detach", code=2)
    assert "a local cluster ends with this command" in stderr
    assert not (tmp_path / "run").exists()


def test_a_detached_job_reports_that_it_will_not_evaluate(
    rows: Path, shared: str, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "scores"
    words = train_words(run, f"data.path={rows}", f"cluster.scheduler={shared}")
    stdout, _ = call(*words, f"--set=score.path={rows}", f"--set=score.out={out}", "--detach")
    assert "it scores after training, and evaluates nothing" in stdout
    command = stdout.splitlines()[-1].split()
    assert command == ["dmondrian", "evaluate", str(run), str(rows)]
    call("describe", run, "--follow")
    wait_for_end_of_job(run)
    assert (out / "_manifest.json").exists()
    stdout, _ = call(*command[1:], "--scheduler", shared)
    assert "accuracy" in stdout


def wait_for_end_of_job(run: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while not list((run / "jobs").glob("*.done")):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_new_files_are_reported(rows: Path, shared: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    table = pq.read_table(rows)
    pq.write_table(table.slice(0, 3000), data / "a.parquet")
    words = train_words(tmp_path / "run", f"data.path={data}", f"cluster.scheduler={shared}")
    call(*words)
    pq.write_table(table.slice(3000, 2000), data / "b.parquet")
    _, stderr = call(*words)
    assert "files that came since continue the stream: 1 with 2,000 rows" in stderr
    last = json.loads(sorted((tmp_path / "run/manifests").glob("*"))[-1].read_text())
    assert last["position"] == 5000


def test_data_that_are_gone_are_reported_and_described(
    rows: Path, shared: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    table = pq.read_table(rows)
    pq.write_table(table.slice(0, 3000), data / "a.parquet")
    words = train_words(tmp_path / "run", f"data.path={data}", f"cluster.scheduler={shared}")
    call(*words)
    note = "of the 1 file of the stream 1 is not among the data any more"
    assert note not in call("describe", tmp_path / "run")[1]
    (data / "a.parquet").unlink()
    pq.write_table(table.slice(3000, 2000), data / "b.parquet")
    _, stderr = call(*words)
    assert note in stderr
    _, stderr = call("describe", tmp_path / "run")
    assert note in stderr
    stdout, _ = call("describe", tmp_path / "run", "--json")
    (text,) = json.loads(stdout)["data"]["notes"]
    assert text.startswith(note)


def test_a_command_in_a_terminal_keeps_to_its_width(
    rows: Path, shared: str, tmp_path: Path
) -> None:
    words = train_words(tmp_path / "run", f"data.path={rows}", f"cluster.scheduler={shared}")
    with terminal(80) as (stream, shown), redirect_stderr(stream), redirect_stdout(io.StringIO()):
        assert main(words) == 0
        reported = shown()
    lines = [line for line in re.split("[\r\n]+", reported) if " rows, " in line]
    assert lines[-1].startswith("100%|")
    assert "12,288 of 12,288 rows" in lines[-1]
    assert max(map(len, lines)) < 80
