"""The fleet sees all workers at every look, and shards go where they weigh least."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client

from dmondrian.distributed.cluster.client import connected
from dmondrian.distributed.cluster.workers import Fleet
from dmondrian.errors import ClusterError
from tests.distributed.conftest import Grow, wait_until, workers_of


def fleet_of(**threads: int) -> Fleet:
    """A fleet that has looked, and saw workers with that many threads."""
    fleet = Fleet(SimpleNamespace(status="closed"))
    fleet.threads = threads
    return fleet


def test_no_look_misses_a_worker_while_the_client_renews_what_it_knows(cluster: Grow) -> None:
    workers, _ = cluster(2)
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1 ms"}),
        Client(workers, set_as_default=False) as busy,
    ):
        fleet = Fleet(busy)
        for _ in range(300):
            assert fleet.look(now=True)
            assert sorted(fleet.threads) == workers_of(busy)
            assert len(fleet.threads) == 2


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
    fleet = Fleet(client, patience=60.0)
    fleet.look()
    seen = dict(fleet.threads)

    def late(*about: Any, **options: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(client, "sync", late)
    assert fleet.look(now=True)
    assert fleet.threads == seen
    fleet._patience = -1.0
    with pytest.raises(ClusterError):
        fleet.look(now=True)


def test_a_shard_goes_where_the_load_per_thread_is_least() -> None:
    fleet = fleet_of(a=1, b=4, c=2)
    load: dict[str, int] = {}
    for _ in range(7):
        address = fleet.place(load)
        assert address is not None
        load[address] = load.get(address, 0) + 1
    assert load == {"a": 1, "b": 4, "c": 2}
    assert fleet_of().place({}) is None


def test_a_shard_moves_only_where_that_lightens_the_load() -> None:
    fleet = fleet_of(a=1, b=1)
    assert fleet.better("a", {"a": 3}) == "b"
    assert fleet.better("a", {"a": 2, "b": 1}) is None
    assert fleet.better("gone", {"gone": 3}) is None


told: list[tuple[str, int]] = []


async def note(value: int, dask_worker: Any) -> None:
    told.append((dask_worker.address, value))


def test_workers_are_told_and_who_cannot_be_reached_is_passed_over(client: Client) -> None:
    told.clear()
    addresses = workers_of(client)
    fleet = Fleet(client)
    fleet.tell([addresses[0], "inproc://nobody/1/1"], note, 7)
    fleet.tell([], note, 8)
    wait_until(lambda: told)
    assert told == [(addresses[0], 7)]
