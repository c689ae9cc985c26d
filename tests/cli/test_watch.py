"""What following a run tells of a job that failed, and of one that somebody made good."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dmondrian.checkpoint import Lease, Run, jobs
from dmondrian.checkpoint import lease as leases
from dmondrian.checkpoint.lease import holder_of
from dmondrian.cli import watch
from dmondrian.cli.output import Output
from dmondrian.cli.watch import cancel, follow
from dmondrian.distributed import submit, train
from dmondrian.distributed.scoring import heartbeat
from dmondrian.distributed.scoring.heartbeat import Heartbeat
from dmondrian.errors import ClusterError, ParameterError
from dmondrian.store import Store
from tests.checkpoint.run_folders import ASKED, PLAN, commit
from tests.distributed.conftest import (
    ADULT,
    PATIENCE,
    forest,
    wait_until,
    worker_threads,
)

BEAT_SECONDS = 0.25  # between two signs of life, and two looks for them


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (leases, watch, heartbeat):
        monkeypatch.setattr(module, "BEAT_SECONDS", BEAT_SECONDS)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path / "run", ASKED, PLAN)
    commit(made, 10)
    return made


def reported(command: object, run: Run) -> str:
    text = io.StringIO()
    output = Output(as_json=False, stdout=text, stderr=text)
    assert command(Namespace(model=run.url), output) == 0  # type: ignore[operator]  # a command
    return text.getvalue()


def test_a_failed_job_is_reported_until_another_attempt_comes_after_it(run: Run) -> None:
    with Lease.take(run.store) as lease:
        lease.end("finished")
    jobs.end(run.store, jobs.hand_over(run.store), "DataError: a column is gone")
    with pytest.raises(ClusterError, match="a column is gone"):
        reported(follow, run)
    with Lease.take(run.store) as lease:
        lease.end("finished")
    assert "finished; its last checkpoint is at position 10" in reported(follow, run)


def test_a_job_that_waits_is_cancelled_and_one_that_is_done_is_not(run: Run) -> None:
    assert "nobody works on" in reported(cancel, run)
    job = jobs.hand_over(run.store)
    assert "will not begin" in reported(cancel, run)
    assert jobs.is_asked_to_stop(run.store, job)
    jobs.end(run.store, job)
    assert "nobody works on" in reported(cancel, run)


def test_a_checkpoint_is_neither_followed_nor_cancelled(run: Run) -> None:
    for command in (follow, cancel):
        with pytest.raises(ParameterError, match="leave @10 out"):
            command(Namespace(model=f"{run.url}@10"), Output(as_json=True))


STANDS = {
    "rows": 5,
    "n_rows": 10,
    "rows_per_second": 2.5,
    "durable": 4,
    "seconds_left": 2.0,
    "workers": 1,
    "recoveries": 0,
}


@pytest.mark.parametrize(
    ("beat", "is_reported"),
    [
        ({**STANDS, "a field of another version": 3}, True),
        ({**STANDS, "seconds_left": None}, True),
        ({name: value for name, value in STANDS.items() if name != "durable"}, False),
        ({**STANDS, "rows": "many"}, False),
        ({**STANDS, "metrics": {"log_loss": "small"}}, False),
        ({**STANDS, "seconds_left": float("inf")}, False),
    ],
    ids=["more", "no estimate", "less", "text for a number", "text for a metric", "for ever"],
)
def test_a_beat_of_another_version_is_reported_as_far_as_it_is_known(
    run: Run, beat: dict[str, Any], is_reported: bool
) -> None:
    line = "5 of 10 rows (50%), 2 rows/s"
    with Lease.take(run.store) as lease, following(run) as (printed, ending):
        wait_until(lambda: "process" in printed())
        lease.set_progress(beat)
        wait_until(lambda: (holder_of(run.store).beat or {}).get("told"))  # type: ignore[union-attr]  # one holds it
        if is_reported:
            wait_until(lambda: line in printed())
        time.sleep(2 * BEAT_SECONDS)
        lease.end("finished")
        lease.__exit__()
        text = ending.result(PATIENCE)
    assert (line in text) is is_reported
    assert "finished; its last checkpoint is at position 10" in text


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_job_that_scores_is_asked_to_stop_and_waited_for(run: Run, is_stopped: bool) -> None:
    job = jobs.hand_over(run.store)
    with Lease.take(run.store, job) as lease:
        lease.end("finished")

    def score() -> None:
        # Asked between its first beat and its first look for a request, it does not begin.
        with suppress(KeyboardInterrupt), Heartbeat(run.store, job):
            wait_until(lambda: jobs.is_asked_to_stop(run.store, job))
            time.sleep(2 * BEAT_SECONDS)
        jobs.end(run.store, job, is_stopped=is_stopped)

    with ThreadPoolExecutor(1) as pool:
        scoring = pool.submit(score)
        wait_until(lambda: jobs.find(run.store, job).scoring is not None)
        text = reported(cancel, run)
        assert jobs.find(run.store, job).is_done
        scoring.result()
    assert "the job has trained and scores: asked it to stop" in text
    assert ("stopped the scoring" in text) is is_stopped
    assert ("came to its end before it stopped" in text) is not is_stopped
    assert "will not begin" not in text


def test_a_request_from_before_the_scoring_is_obeyed(run: Run) -> None:
    job = jobs.hand_over(run.store)
    jobs.ask_to_stop(run.store, job)
    with pytest.raises(KeyboardInterrupt):
        Heartbeat(run.store, job).__enter__()


HOLDING = """
import sys, time
from dmondrian.checkpoint import Lease, Run
with Lease.take(Run.open(sys.argv[1]).store, sys.argv[2] or None):
    print("held", flush=True)
    time.sleep(600)
"""


def kill_a_holder(run: Run, job: str = "") -> int:
    """Have a process hold a run, and kill it; return its number."""
    words = [sys.executable, "-c", HOLDING, run.url, job]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.kill()
    return process.pid


@contextmanager
def following(run: Run) -> Iterator[tuple[Callable[[], str], Future[str]]]:
    """Follow a run beside what a block does; yield what is printed so far, and all in the end."""
    text = io.StringIO()
    output = Output(as_json=False, stdout=text, stderr=text)

    def call() -> str:
        follow(Namespace(model=run.url), output)
        return text.getvalue()

    with ThreadPoolExecutor(1) as pool:
        yield text.getvalue, pool.submit(call)


def test_a_job_whose_process_was_killed_is_waited_for_until_it_ends(run: Run) -> None:
    job = jobs.hand_over(run.store)
    pid = kill_a_holder(run, job)
    with following(run) as (printed, ending):
        wait_until(lambda: "was lost" in printed())
        time.sleep(2 * BEAT_SECONDS)
        assert not ending.done()
        with Lease.take(run.store, job) as lease:
            wait_until(lambda: "goes on" in printed())
            lease.end("finished")
        time.sleep(2 * BEAT_SECONDS)
        assert not ending.done()  # the job has not ended: it may score
        jobs.end(run.store, job)
        text = ending.result(PATIENCE)
    assert f"process {pid} on" in text
    assert "another worker" in text
    assert "its last checkpoint is at position 10" in text
    assert f"process {os.getpid()} on {socket.gethostname()} goes on where process {pid}" in text
    assert "finished; its last checkpoint is at position 10" in text


def test_a_job_that_nobody_starts_again_is_given_up_with_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_RESTART", 2.0)
    pid = kill_a_holder(run, jobs.hand_over(run.store))
    with pytest.raises(ClusterError) as raised:
        reported(follow, run)
    assert f"process {pid} on" in str(raised.value)
    assert "was lost and nobody took its place" in str(raised.value)
    assert "last checkpoint is at position 10" in str(raised.value)
    assert "the command that trains it, with --detach or without" in str(raised.value)


def test_a_process_that_was_killed_is_not_shown_as_ended(run: Run) -> None:
    pid = kill_a_holder(run)
    with pytest.raises(ClusterError, match=f"process {pid} on .* was killed"):
        reported(follow, run)
    assert "nobody works on" in reported(cancel, run)


def test_a_lost_job_that_is_cancelled_does_not_go_on(run: Run) -> None:
    job = jobs.hand_over(run.store)
    kill_a_holder(run, job)
    assert "will not go on" in reported(cancel, run)
    assert Lease.take(run.store, job).is_asked_to_stop


def test_events_of_the_run_are_reported_to_who_follows_it(run: Run) -> None:
    event = {"number": 1, "event": "worker_lost", "text": "lost worker a", "at": 0.0}
    with Lease.take(run.store) as lease:
        lease.set_progress(STANDS, events=[event])
        wait_until(lambda: (holder_of(run.store).beat or {}).get("events"))  # type: ignore[union-attr]  # one holds it
        with following(run) as (printed, ending):
            wait_until(lambda: "process" in printed())
            later = {**event, "number": 2, "text": "lost worker b"}
            of_no_version: list[Any] = [{"number": 3, "of": "another version"}, 7]
            lease.set_progress(STANDS, events=[event, later, *of_no_version])
            wait_until(lambda: "lost worker b" in printed())
            time.sleep(2 * BEAT_SECONDS)
            lease.end("finished")
            lease.__exit__()
            text = ending.result(PATIENCE)
    assert text.count("lost worker b") == 1
    assert "lost worker a" not in text  # it was there before


@pytest.mark.parametrize(
    ("outcome", "printed"), [("stopped", "stopped "), ("finished", "came to its end before")]
)
def test_cancelling_reports_how_it_ended(run: Run, outcome: str, printed: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        with Lease.take(run.store) as lease:
            cancelling = pool.submit(reported, cancel, run)
            wait_until(lambda: list(Path(run.url, "lease").glob("*.stop")))
            lease.end(outcome)
        text = cancelling.result(PATIENCE)
    assert f"\n{printed}" in text or f"{run.url} {printed}" in text
    assert "its last checkpoint is at position 10" in text


GATE = threading.Event()


def pass_the_gate() -> bool:
    """Task: hold a worker's thread until the gate is open."""
    return GATE.wait(PATIENCE)


def beats_of(store: Store) -> int:
    """How many signs of life the scoring of the newest job has given."""
    job = jobs.newest(store)
    assert job is not None
    assert job.scoring is not None
    return int(job.scoring.get("count", 0))  # none amid its being written


def test_a_detached_job_stops_in_the_middle_of_its_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 1000)
    given = {"target": "income", "run": tmp_path / "run"}
    wanted = {"data": str(ADULT), "out": str(tmp_path / "scores")}
    with worker_threads(1) as (_, client), ThreadPoolExecutor(1) as pool:
        train(forest(), ADULT, client=client, **given)
        submit(forest(), ADULT, client=client, score=wanted, **given)
        blocker = client.submit(pass_the_gate, priority=10, pure=False)
        store = Run.open(tmp_path / "run").store
        wait_until(lambda: jobs.newest(store).scoring is not None)  # type: ignore[union-attr]  # it is there
        cancelling = pool.submit(reported, cancel, Run.open(tmp_path / "run"))
        wait_until(lambda: list((tmp_path / "run/jobs").glob("*.stop")))
        beats = beats_of(store)
        wait_until(lambda: beats_of(store) > beats + 1)  # behind each it looks
        assert not cancelling.done()
        GATE.set()
        text = cancelling.result()
        assert blocker.result()
    assert "stopped the scoring" in text
    assert not (tmp_path / "scores/_manifest.json").exists()
    assert len(list((tmp_path / "scores").glob("part-*"))) < 33  # of 32,561 rows
