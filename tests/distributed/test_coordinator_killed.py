"""A job whose own process dies or is interrupted leaves no process behind and can be finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dmondrian.checkpoint import Run
from dmondrian.distributed import TrainedRun

from .conftest import ROWS, Fit, digests

JOB = Path(__file__).with_name("job.py")
ROOT = Path(__file__).parents[2]


def start(adult: Path, run: Path) -> subprocess.Popen[bytes]:
    """Start the job as the leader of a group, as a shell does, and wait for its first commit."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(JOB), str(adult), str(run)],
        env=environment,
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: list((run / "manifests").glob("*.json")) or process.poll() is not None, 240)
    assert process.poll() is None, process.stderr.read() if process.stderr else b""
    return process


def wait_until(is_so: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


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
    adult: Path, tmp_path: Path, fit: Fit, undisturbed: TrainedRun
) -> None:
    process = start(adult, tmp_path / "run")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    position = Run.open(tmp_path / "run").manifests()[-1]
    assert 0 < position < ROWS
    wait_until(lambda: not group_of(process.pid), 60)
    run = fit()
    assert run.summary["resumed_at"] >= position
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


def test_ctrl_c_in_a_terminal_saves_and_ends_all_processes(
    adult: Path, tmp_path: Path, fit: Fit, undisturbed: TrainedRun
) -> None:
    process = start(adult, tmp_path / "run")
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode in (130, -signal.SIGINT), told
    assert b"run the same command again to go on" in told
    position = Run.open(tmp_path / "run").manifests()[-1]
    assert f"stopped at position {position}".encode() in told
    wait_until(lambda: not group_of(process.pid), 60)
    run = fit()
    assert run.summary["resumed_at"] == position
    assert digests(run) == digests(undisturbed)
