"""A run after it was trained, and while somebody else trains it, as a user handles it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.command import ADULT, TIMEOUT, digests, events, finish, manifests, start, train_words

pytestmark = pytest.mark.slow

ROWS = 32_561


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adult's training rows in row groups so small that a run has a middle to be stopped in."""
    file = tmp_path_factory.mktemp("data") / "adult.parquet"
    pq.write_table(pq.read_table(ADULT / "part-0000-train.parquet"), file, row_group_size=1024)
    return file


@pytest.fixture(scope="module")
def trained(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "trained"
    finish(*train_words(run, f"data.path={rows}", "cluster.workers=1"))
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


def test_a_run_is_grown_merged_and_pruned(trained: Path, rows: Path, tmp_path: Path) -> None:
    grown, merged = tmp_path / "grown", tmp_path / "merged"
    shutil.copytree(trained, grown)
    stdout, _ = finish("grow", grown, "--n-estimators", 6, "--shards", 2, "--workers", 1, "--json")
    assert events(stdout)[-1]["event"] == "grown"
    told = events(finish("describe", grown, "--json")[0])[0]
    assert told["size"]["trees"] == told["parameters"]["n_estimators"] == 6
    assert told["parts"] == [{"trees": [4, 6], "rows": ROWS, "final": True}]
    assert "trees 4 to 5, 32,561 rows" in finish("describe", grown)[0]
    other = tmp_path / "other"
    keys = ("forest.n_estimators=2", "run.first_tree=4", "run.n_shards=2")
    finish(*train_words(other, f"data.path={rows}", "cluster.workers=1", *keys))
    assert "6 trees at position 32,561" in finish("merge", trained, other, "--out", merged)[0]
    (part,) = (grown / "growth").iterdir()
    both = [*digests(grown).values(), *digests(part).values()]
    assert list(digests(merged).values()) == both
    n_before = len(manifests(grown))
    assert n_before > 3
    told = events(finish("prune", grown, "--keep", 2, "--dry-run", "--json")[0])[0]
    assert told["dry_run"] is True
    assert len(manifests(grown)) == n_before
    stdout, _ = finish("prune", grown, "--keep", 2)
    assert f"deleted {n_before - 2} checkpoints" in stdout
    assert events(finish("describe", grown, "--json")[0])[0]["size"]["trees"] == 6


def test_a_run_is_followed_and_cancelled_from_elsewhere(
    trained: Path, rows: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    keys = ("cluster.workers=1", "run.checkpoint_every=3000 rows")
    words = train_words(run, f"data.path={rows}", *keys)
    process = start(*words)
    wait_for(lambda: list((run / "manifests").glob("*.json")), process)
    process.send_signal(signal.SIGSTOP)  # it is not done before we have looked
    follower = start("describe", run, "--follow", "--json")
    canceller = start("cancel", run, "--json")
    wait_for(lambda: list((run / "lease").glob("*.stop")), canceller)
    time.sleep(2)
    process.send_signal(signal.SIGCONT)
    end(process, 130)
    cancelled = events(end(canceller, 0))[-1]
    assert cancelled["was_running"] is True
    followed = events(end(follower, 0))
    assert followed[-1]["outcome"] == "stopped"
    assert any(event["event"] == "progress" for event in followed)
    assert 0 < manifests(run)[-1]["position"] < ROWS
    stdout, _ = finish("describe", run, "--follow")
    assert "nobody works on" in stdout or "stopped; " in stdout
    assert events(finish("cancel", run, "--json")[0])[0]["was_running"] is False
    finish(*words)
    assert digests(run) == digests(trained)


def test_a_job_cannot_be_detached_from_a_local_cluster(rows: Path, tmp_path: Path) -> None:
    words = train_words(tmp_path / "run", f"data.path={rows}")
    _, stderr = finish(*words, "--detach", code=2)
    assert "a local cluster ends with this command" in stderr
    assert not (tmp_path / "run").exists()


def test_new_files_are_told(rows: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    table = pq.read_table(rows)
    pq.write_table(table.slice(0, 3000), data / "a.parquet")
    words = train_words(tmp_path / "run", f"data.path={data}", "cluster.workers=1")
    finish(*words)
    pq.write_table(table.slice(3000, 2000), data / "b.parquet")
    _, stderr = finish(*words)
    assert "files that came since continue the stream: 1 with 2,000 rows" in stderr
    last = json.loads(sorted((tmp_path / "run/manifests").glob("*"))[-1].read_text())
    assert last["position"] == 5000
