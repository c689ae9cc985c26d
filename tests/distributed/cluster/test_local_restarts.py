"""A local cluster's workers that Dask gave up are started again, a few times, and no others are."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster, Worker

from dmondrian.distributed import TrainedRun, score
from dmondrian.distributed.cluster import local_restarts
from dmondrian.distributed.cluster import workers as workers_module
from dmondrian.distributed.cluster.local_restarts import RESTARTS, TIMEOUT
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.worker.tasks import ShardHolder
from dmondrian.errors import ClusterError
from tests.distributed.conftest import (
    Fit,
    Grow,
    Once,
    digests,
    giving_up_after,
    resize,
    wait_until,
    worker_processes,
    workers_of,
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts without grace."""
    monkeypatch.setattr(local_restarts, "GRACE_SECONDS", 0.0)


@pytest.fixture
def warned() -> Iterator[Callable[[], list[str]]]:
    """Warnings of restarts so far."""
    found: list[str] = []
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("dmondrian")
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield lambda: [text for text in found if text.startswith("Dask gave up")]
    logger.removeHandler(handler)


def close_all(cluster: LocalCluster) -> list[str]:
    """Close all workers as a nanny does that cannot start a process; return their names."""
    closed = dict(cluster.workers)
    for worker in closed.values():
        cluster.sync(worker.close)
    return list(closed)


def are_running(cluster: LocalCluster) -> bool:
    """Whether both nannies of a cluster have started their workers, for good."""
    return [worker.status.name for worker in cluster.workers.values()] == ["running"] * 2


@pytest.mark.usefixtures("talkative")
def test_a_run_goes_on_when_dask_has_given_up_all_workers(
    fit: Fit, undisturbed: TrainedRun, adult: Path, tmp_path: Path, warned: Callable[[], list[str]]
) -> None:
    """As it does by default where processes take longer than 15 seconds to start."""
    with dask.config.set({TIMEOUT: "1 ms"}), worker_processes(2) as client:
        made, killed = client.cluster, list[int]()
        assert isinstance(made, LocalCluster)

        def kill() -> None:
            wait_until(lambda: len(workers_of(client)) == 2 and are_running(made))
            names = set(made.workers)
            killed.extend(pids := list(client.run(os.getpid).values()))
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not names & set(made.workers))

        run = fit(client=client, progress=Once(kill), window=1)
        assert len(killed) == 2
        assert digests(run) == digests(undisturbed)
        first = warned()
        assert first
        assert "2 workers" in first[-1]
        assert f"within 1 ms of its loss, as on a busy machine ({TIMEOUT})" in first[-1]
        kill()
        assert score(run.run_url, adult, tmp_path / "out", client=client)["files"] > 0
        assert len(warned()) > len(first)


def test_workers_that_ended_are_started_under_other_names(
    cluster: Grow, warned: Callable[[], list[str]]
) -> None:
    made, client = cluster(2)
    workers = Workers(client)
    workers.refresh(now=True)
    names = close_all(made)
    wait_until(lambda: not workers_of(client))
    assert warned() == []
    workers.refresh(now=True)
    wait_until(lambda: len(workers_of(client)) == 2)
    workers.refresh(now=True)
    assert len(workers.threads) == 2
    assert len(made.workers) == 2
    assert not set(names) & set(made.workers)
    (warning,) = warned()
    assert "gave up 2 of the 2 workers" in warning
    assert f"restart 1 of at most {RESTARTS} in an hour" in warning
    close_all(made)
    wait_until(lambda: not workers_of(client))
    workers.refresh(now=True)
    assert len(warned()) == 1  # so soon after the last


def test_workers_that_nobody_wants_or_that_have_others_beside_them_are_left_alone(
    cluster: Grow, warned: Callable[[], list[str]]
) -> None:
    made, client = cluster(2)
    workers = Workers(client)
    workers.refresh(now=True)
    first = next(iter(made.workers.values()))
    made.sync(first.close)
    wait_until(lambda: len(workers_of(client)) == 1)
    workers.refresh(now=True)
    assert warned() == []
    resize(made, client, 0)
    workers.refresh(now=True)
    assert warned() == []
    assert made.workers == {}


def test_workers_that_start_under_names_of_earlier_ones_are_left_alone(
    cluster: Grow, warned: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled down, a cluster gives the same names again, and is seen before the workers are."""
    monkeypatch.setattr(local_restarts, "GRACE_SECONDS", 20.0)
    made, client = cluster(1)
    workers = Workers(client)
    workers.refresh(now=True)
    names = list(made.workers)
    for looks_between in (True, False):
        resize(made, client, 0)
        if looks_between:
            workers.refresh(now=True)
        made.scale(1)
        wait_until(lambda: workers.refresh(now=True) and workers.threads)
        assert list(made.workers) == names
    assert warned() == []


def test_workers_that_start_for_the_first_time_are_left_alone(
    cluster: Grow, warned: Callable[[], list[str]]
) -> None:
    made, client = cluster(0)
    workers = Workers(client)
    made.new_spec["options"]["preload"] = ["import time; time.sleep(1.0)"]
    made.scale(1)
    wait_until(lambda: workers.refresh(now=True) and workers.threads)
    assert list(made.workers) == [0]
    assert warned() == []


class WithoutDisk(Worker):
    """A worker that fails as it starts."""

    async def start_unsafe(self) -> Worker:
        raise OSError("no space left on the device")


def test_workers_that_never_start_end_a_run_with_the_reason(
    fit: Fit, cluster: Grow, monkeypatch: pytest.MonkeyPatch, warned: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(local_restarts, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(workers_module, "POLL_SECONDS", 0.05)
    made, client = cluster(1)
    Workers(client).refresh(now=True)
    made.new_spec["cls"] = WithoutDisk
    close_all(made)
    wait_until(lambda: not workers_of(client))
    monkeypatch.setattr(Workers, "__init__", giving_up_after(5.0))
    with pytest.raises(ClusterError, match="has no workers") as raised:
        fit(client=client)
    for text in ("none of the 1 worker ", f"started again ({RESTARTS} times)", "the same command"):
        assert text in str(raised.value)
    assert len(warned()) == RESTARTS


class DeadlyOnce(ShardHolder):
    """A plugin that kills the process of the first worker that it is set up on."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def setup(self, worker: Worker) -> None:
        """End this process unless one has ended."""
        with suppress(FileExistsError):
            self._mark.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        super().setup(worker)


def test_a_worker_that_is_lost_as_a_run_begins_is_a_loss_as_any(
    fit: Fit, pair: Client, undisturbed: TrainedRun, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    mark = tmp_path / "killed"
    monkeypatch.setattr(
        "dmondrian.distributed.training.attempt.ShardHolder", partial(DeadlyOnce, mark)
    )
    with suppress(ValueError):  # it is registered once
        pair.unregister_worker_plugin(ShardHolder.name)
    run = fit(client=pair)
    assert mark.exists()
    assert digests(run) == digests(undisturbed)
    pair.unregister_worker_plugin(ShardHolder.name)
