"""Lost workers are reported at once: which, when, how many are left, and what is restored."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.lease import holder_of
from dmondrian.distributed import TrainedRun, score
from dmondrian.distributed.cluster.events import Events, counted, listed
from dmondrian.distributed.cluster.workers import POLL_SECONDS, Workers
from dmondrian.distributed.worker import tasks
from dmondrian.errors import ClusterError
from tests.distributed.conftest import (
    PATIENCE,
    ROWS,
    Fit,
    Grow,
    Once,
    digests,
    giving_up_after,
    resize,
    table_of,
    wait_until,
    workers_of,
)


@pytest.fixture
def reported(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    """The events that are logged."""
    found: list[dict[str, Any]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if hasattr(record, "event"):
                found.append({**record.event, "level": record.levelname})
                assert record.getMessage() == record.event["text"]

    handler, logger = Handler(), logging.getLogger("dmondrian")
    logger.addHandler(handler)
    with caplog.at_level(logging.INFO, "dmondrian"):
        yield found
    logger.removeHandler(handler)


def only(reported: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (event,) = [event for event in reported if event["event"] == kind]
    return event


@pytest.mark.usefixtures("talkative")
def test_a_killed_worker_is_reported_once_with_what_is_restored(
    fit: Fit, pair: Client, undisturbed: TrainedRun, reported: list[dict[str, Any]]
) -> None:
    address, pid = min(pair.run(os.getpid).items())

    def replaced() -> None:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(workers := workers_of(pair)) == 2 and address not in workers)

    run = fit(client=pair, progress=Once(replaced), window=1)
    assert digests(run) == digests(undisturbed)
    event = only(reported, "worker_lost")
    assert event["level"] == "WARNING"
    assert event["worker"] == address
    assert event["workers"] == 1
    assert len(event["shards"]) == 3
    assert re.match(r"\d\d:\d\d:\d\d lost worker tcp://.* \(1 worker left\)", event["text"])
    assert f"it held {listed('shard', event['shards'])}: restoring from row" in event["text"]
    assert only(reported, "restored")["workers"] in (1, 2)  # the run may be at its end before
    joined = [event["workers"] for event in reported if event["event"] == "worker_joined"]
    assert joined in ([], [2])
    kinds = [event["event"] for event in reported]
    assert kinds[0] == "worker_lost"
    holder = holder_of(Run.open(run.run_url).store)
    assert holder is not None
    assert holder.beat is not None
    kept = [event["event"] for event in holder.beat["events"]]
    assert kept[: len(kinds)] == kinds


@pytest.mark.usefixtures("talkative")
def test_a_worker_that_retires_is_no_loss(
    fit: Fit, cluster: Grow, reported: list[dict[str, Any]]
) -> None:
    workers, client = cluster(2)
    fit(client=client, progress=Once(lambda: resize(workers, client, 1)), window=1)
    assert only(reported, "worker_retired")["level"] == "INFO"
    assert "worker_lost" not in [event["event"] for event in reported]


def test_an_undisturbed_run_has_no_event_and_one_that_goes_on_has_its_start(
    fit: Fit, reported: list[dict[str, Any]]
) -> None:
    run = fit()
    assert reported == []
    for manifest in sorted(Path(run.run_url, "manifests").iterdir())[1:]:
        manifest.unlink()
    fit()
    event = only(reported, "resuming")
    assert (event["row"], event["n_rows"]) == (2000, ROWS)
    assert event["text"] == "resuming from row 2,000 of 6,000 (33%)"


def test_a_failure_that_shards_have_in_common_is_reported_once(
    fit: Fit, reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, broken = tasks._learn, []

    def fail_once(plan: Any, shard: Any, encoded: Any, order: Any) -> None:
        if order.stop > 2000 and order.shard not in broken:
            broken.append(order.shard)
            raise FloatingPointError("no such number")
        learn(plan, shard, encoded, order)

    monkeypatch.setattr(tasks, "_learn", fail_once)
    fit()
    assert len(broken) > 1
    event = only(reported, "shard_failed")
    assert event["error"] == "FloatingPointError: no such number"
    assert "restoring it and trying again" in event["text"]


def test_a_wait_for_a_worker_is_reported_when_it_begins(
    fit: Fit, cluster: Grow, reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "__init__", giving_up_after(4.0))
    with pytest.raises(ClusterError, match="has no workers for"):
        fit(client=cluster(0)[1])
    event = only(reported, "no_workers")
    assert 0.0 < event["seconds"] <= 4.0
    assert "waiting for one, for up to" in event["text"]


class Scheduler:
    """A scheduler and a worker in processes of their own."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])
        self.address = f"tcp://127.0.0.1:{self._port}"
        self._begin()

    def _begin(self) -> None:
        common = ["--host", "127.0.0.1", "--no-dashboard"]
        for words in (
            ["scheduler", "--port", self._port, *common],
            ["worker", self.address, "--nthreads", "1", "--no-nanny", *common],
        ):
            line = [sys.executable, "-m", "dask", *words]
            self._started.append(subprocess.Popen(line, stderr=subprocess.DEVNULL))

    def kill(self) -> None:
        """Kill both."""
        for process in self._started:
            process.kill()
            process.wait(PATIENCE)
        self._started.clear()

    def start_again(self) -> None:
        """Kill both and start others at the same address."""
        self.kill()
        self._begin()


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    started = Scheduler()
    yield started
    started.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("talkative")
@pytest.mark.thorough
def test_a_lost_scheduler_is_reported_with_what_will_happen(
    fit: Fit,
    scheduler: Scheduler,
    reported: list[dict[str, Any]],
    undisturbed: TrainedRun,
    tmp_path: Path,
) -> None:
    with Client(scheduler.address, set_as_default=False, timeout=PATIENCE) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        fit(
            client=client, progress=Once(scheduler.start_again), window=1
        )  # it is there again in time
        kinds = [event["event"] for event in reported]
        assert [kind for kind in kinds if kind != "worker_joined"][:2] == [
            "scheduler_lost",
            "scheduler_back",
        ]
        assert digests(tmp_path / "run") == digests(undisturbed)
        reported.clear()
        client._timeout = 2.0  # for which it tries to connect again
        with pytest.raises(ClusterError, match="did not come back for"):
            fit("other", client=client, progress=Once(scheduler.kill), window=1)
    event = only(reported, "scheduler_lost")
    saved = Run.open(tmp_path / "other").manifests()
    assert event["saved"] == max(saved, default=0) <= event["learned"]
    assert event["seconds"] == 2.0
    for word in ("trying to connect again for up to 2 seconds", "exit code 5", "the same command"):
        assert word in event["text"]
    assert "worker_lost" not in [event["event"] for event in reported]
    assert digests(fit("other")) == digests(undisturbed)


@pytest.mark.usefixtures("talkative")
def test_a_worker_that_is_killed_as_it_scores_is_reported(
    pair: Client,
    adult: Path,
    undisturbed: TrainedRun,
    reported: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 60)
    address, pid = min(pair.run(os.getpid).items())

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: address not in workers_of(pair))
        time.sleep(3.0 * POLL_SECONDS)  # until it looks again, also on a busy machine

    score(undisturbed.run_url, adult, tmp_path / "out", client=pair, progress=Once(kill, True))
    event = only(reported, "worker_lost")
    assert event["worker"] == address
    assert "what it did of any output file is done again on another" in event["text"]
    assert table_of(tmp_path / "out").num_rows == ROWS


def test_numbers_are_listed_and_many_are_counted() -> None:
    assert listed("shard", []) == "no shard"
    assert listed("shard", [3]) == "shard 3"
    assert listed("shard", [1, 3, 9]) == "shards 1, 3 and 9"
    assert listed("shard", range(9)) == "shards 0, 1, 2, 3, 4, 5 and 3 more"
    assert (counted(1, "worker"), counted(2, "worker")) == ("1 worker", "2 workers")


def test_the_newest_events_are_kept() -> None:
    events = Events()
    for number in range(Events.most + 5):
        events.add("resuming", "again", is_loss=False, row=number)
    kept = events.newest()
    assert len(kept) == Events.most
    assert [event["number"] for event in kept] == list(range(6, Events.most + 6))
