"""Workers are polled for changes, and shards go where the load is least."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client

from dmondrian.distributed.cluster.client import connected
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.errors import ClusterError
from tests.distributed.conftest import Grow, wait_until, workers_of


def workers_with(**threads: int) -> Workers:
    """Workers with that many threads, as if polled."""
    workers = Workers(SimpleNamespace(status="closed"))
    workers.threads = threads
    return workers


def test_no_look_misses_a_worker_while_the_client_renews_what_it_knows(cluster: Grow) -> None:
    workers, _ = cluster(2)
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1 ms"}),
        Client(workers, set_as_default=False) as busy,
    ):
        workers = Workers(busy)
        for _ in range(300):
            assert workers.refresh(now=True)
            assert sorted(workers.threads) == workers_of(busy)
            assert len(workers.threads) == 2


def test_a_killed_local_worker_may_take_its_time_to_come_back() -> None:
    hasty = {
        "distributed.deploy.lost-worker-timeout": "200 ms",  # of the caller, not of our clusters
        "distributed.worker.preload": ["import time; time.sleep(1.0)"],
    }
    with dask.config.set(hasty), connected(None, 1, 1) as client:
        ((address, pid),) = client.run(os.getpid).items()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: workers_of(client) not in ([], [address]))
        assert list(client.cluster.workers) == [0]  # else it is about to be ended
        assert pid not in client.run(os.getpid).values()


def test_a_scheduler_that_is_late_with_its_answer_has_not_lost_its_workers(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(client, patience=60.0)
    workers.refresh()
    seen = dict(workers.threads)

    def late(*about: Any, **options: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(client, "sync", late)
    assert workers.refresh(now=True)
    assert workers.threads == seen
    workers._patience = -1.0
    with pytest.raises(ClusterError):
        workers.refresh(now=True)


def test_a_shard_goes_where_the_load_per_thread_is_least() -> None:
    workers = workers_with(a=1, b=4, c=2)
    load: dict[str, int] = {}
    for _ in range(7):
        address = workers.place(load)
        assert address is not None
        load[address] = load.get(address, 0) + 1
    assert load == {"a": 1, "b": 4, "c": 2}
    assert workers_with().place({}) is None


def test_a_shard_moves_only_where_that_lightens_the_load() -> None:
    workers = workers_with(a=1, b=1)
    assert workers.better_place("a", {"a": 3}) == "b"
    assert workers.better_place("a", {"a": 2, "b": 1}) is None
    assert workers.better_place("gone", {"gone": 3}) is None


reported: list[tuple[str, int]] = []


async def note(value: int, dask_worker: Any) -> None:
    reported.append((dask_worker.address, value))


def test_workers_are_reported_and_who_cannot_be_reached_is_passed_over(client: Client) -> None:
    reported.clear()
    addresses = workers_of(client)
    workers = Workers(client)
    workers.notify([addresses[0], "inproc://nobody/1/1"], note, 7)
    workers.notify([], note, 8)
    wait_until(lambda: reported)
    assert reported == [(addresses[0], 7)]
