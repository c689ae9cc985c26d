"""A job whose own process dies or is interrupted leaves no process behind and can be finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dmondrian import AMFClassifier, MondrianForestClassifier, OnlineRandomForestClassifier
from dmondrian.checkpoint import Run, lease
from dmondrian.distributed import TrainedRun
from dmondrian.errors import FencedError
from tests.distributed.conftest import PATIENCE, ROWS, Fit, digests, wait_until
from tests.distributed.training.job import BOUNDED, FOLLOWING, IN_PARTS

JOB = Path(__file__).with_name("job.py")
ROOT = Path(__file__).parents[3]
START = 2 * PATIENCE  # seconds, for two processes to import, compile and learn

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(adult: Path, tmp_path: Path) -> Iterator[Start]:
    """Start the job as the leader of a group, as a shell does; return after its first commit."""
    started: list[subprocess.Popen[bytes]] = []

    def call(*algorithm: str) -> subprocess.Popen[bytes]:
        arguments = [str(adult), str(tmp_path / "run"), str(tmp_path / "go"), *algorithm]
        process = subprocess.Popen(
            [sys.executable, str(JOB), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        manifests = "run/**/manifests/*.json"  # of parts of the rows too
        wait_until(lambda: process.poll() is not None or [*tmp_path.glob(manifests)], START)
        assert process.poll() is None, process.communicate()[1]
        return process

    yield call
    for process in started:
        for pid in group_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def group_of(leader: int) -> list[int]:
    """Living processes of a session, zombies left out."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def test_a_killed_job_run_again_ends_with_the_same_blobs(
    start: Start, tmp_path: Path, fit: Fit, undisturbed: TrainedRun
) -> None:
    process = start()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=PATIENCE)
    wait_until(lambda: not group_of(process.pid))
    position = Run.open(tmp_path / "run").manifests()[-1]
    assert 0 < position < ROWS
    run = fit()
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


@pytest.mark.thorough
def test_a_killed_job_of_candidates_run_again_ends_with_the_same_blobs(
    start: Start, tmp_path: Path, fit: Fit
) -> None:
    process = start("online-forest-classifier")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=PATIENCE)
    wait_until(lambda: not group_of(process.pid))
    position = Run.open(tmp_path / "run").manifests()[-1]
    assert 0 < position < ROWS
    estimator = OnlineRandomForestClassifier(4, **BOUNDED)
    run, whole = fit(estimator=estimator), fit("undisturbed", estimator=estimator)
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(whole)
    assert run.metrics == whole.metrics


@pytest.mark.thorough
def test_a_killed_job_of_parts_run_again_ends_with_the_same_blobs(
    start: Start, tmp_path: Path, fit: Fit
) -> None:
    process = start("parts")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=PATIENCE)
    wait_until(lambda: not group_of(process.pid))
    position = Run.open(tmp_path / "run/row_parts").manifests()[-1]
    assert 0 < position < ROWS
    assert not Run.open(tmp_path / "run").manifests()
    options: dict[str, Any] = {"estimator": MondrianForestClassifier(2, **IN_PARTS), "row_parts": 3}
    run, whole = fit(**options), fit("undisturbed", **options)
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(whole)


@pytest.mark.thorough
def test_a_killed_job_that_follows_the_stream_goes_on_amid_a_block(
    start: Start, tmp_path: Path, fit: Fit
) -> None:
    process = start("following")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=PATIENCE)
    wait_until(lambda: not group_of(process.pid))
    position = Run.open(tmp_path / "run").manifests()[-1]
    assert 0 < position < ROWS
    assert position % FOLLOWING["delay"] > 0
    estimator = AMFClassifier(5, **FOLLOWING)
    run, whole = fit(estimator=estimator), fit("undisturbed", estimator=estimator)
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(whole)
    assert run.metrics == whole.metrics


def test_a_stopped_coordinator_is_taken_over_and_gives_way_when_it_wakes(
    start: Start,
    tmp_path: Path,
    fit: Fit,
    undisturbed: TrainedRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = start()
    with pytest.raises(FencedError, match=f"process {process.pid}"):
        fit()
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 2.0)
    run = fit()
    assert 0 < run.summary["resumed_at"] < ROWS
    assert digests(run) == digests(undisturbed)
    (tmp_path / "go").touch()
    os.kill(process.pid, signal.SIGCONT)
    _, reported = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, reported
    assert b"another process took over" in reported
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics
    wait_until(lambda: not group_of(process.pid))


@pytest.mark.thorough
def test_ctrl_c_in_a_terminal_saves_and_ends_all_processes(
    start: Start, tmp_path: Path, fit: Fit, undisturbed: TrainedRun
) -> None:
    process = start()
    os.killpg(process.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    _, reported = process.communicate(timeout=PATIENCE)
    assert process.returncode in (130, -signal.SIGINT), reported
    assert b"run the same command again to go on" in reported
    position = Run.open(tmp_path / "run").manifests()[-1]
    assert 0 < position < ROWS
    assert f"stopped at row {position:,} of {ROWS:,}, which is saved".encode() in reported
    wait_until(lambda: not group_of(process.pid))
    run = fit()
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(undisturbed)
