"""Workers are polled for changes, and shards go where the load is least."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from dmondrian.distributed.cluster import workers as workers_module
from dmondrian.distributed.cluster.client import connected
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.errors import ClusterError
from tests.distributed.conftest import Grow, resize, wait_until, workers_of


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


def test_a_local_worker_that_is_killed_as_it_starts_is_no_mistake_of_a_script_alone() -> None:
    deadly = {"distributed.worker.preload": ["import os; os.kill(os.getpid(), 9)"]}
    with (
        dask.config.set(deadly),
        pytest.raises(ClusterError, match=r"start; .* nothing was killed, .* start fewer; "),
        connected(None, 1, 1),
    ):
        pass


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


def lightest(threads: dict[str, int], load: dict[str, int]) -> str:
    """The worker for one more shard, by a look at all."""
    return min(threads, key=lambda a: ((load.get(a, 0) + 1) / threads[a], a))


def test_a_shard_goes_where_the_load_per_thread_is_least() -> None:
    workers = workers_with(a=1, b=4, c=2)
    assert Counter(workers.places({}, 7)) == {"a": 1, "b": 4, "c": 2}
    load = {"a": 1, "c": 5, "gone": 9}
    for address in workers.places(load, 40):
        assert address == lightest(workers.threads, load)
        load[address] = load.get(address, 0) + 1
    assert workers_with().places({}, 3) == []


def test_a_shard_moves_only_where_that_lightens_the_load() -> None:
    workers = workers_with(a=1, b=1)
    assert list(workers.moves({0: "a", 1: "a", 2: "a"}, [2, 1, 0])) == [(2, "b")]
    assert list(workers.moves({0: "a", 1: "a", 2: "b"}, [2, 1, 0])) == []
    assert list(workers.moves({0: "gone", 1: "gone"}, [1, 0])) == []
    assert list(workers.moves({0: "a", 1: "a", 2: "a"}, [])) == []
    assert list(workers_with().moves({0: "a"}, [0])) == []


def test_moves_are_those_of_a_look_at_all_workers_for_each_shard() -> None:
    chance = np.random.default_rng(0)
    for _ in range(50):
        threads = {f"w{i}": int(n) for i, n in enumerate(chance.integers(1, 4, 6))}
        places = {shard: f"w{i}" for shard, i in enumerate(chance.integers(0, 3, 20))}
        shards, now, expected = list(reversed(range(20))), dict(places), []
        for shard in shards:
            load = Counter(now.values())
            address, target = now[shard], lightest(threads, load)
            if (load[target] + 1) / threads[target] < load[address] / threads[address]:
                expected.append((shard, target))
                now[shard] = target
        assert list(workers_with(**threads).moves(places, shards)) == expected
        assert expected


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets longer with each poll; looks may follow each other at once."""
    polls, query = list[int](), Workers._query_scheduler

    def note(self: Workers) -> Any:
        polls.append(len(polls))
        return query(self)

    monkeypatch.setattr(Workers, "_query_scheduler", note)
    monkeypatch.setattr(workers_module, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(workers_module, "_SUBSCRIBING", 0.0)
    return polls


def test_the_scheduler_is_polled_only_when_it_reports_a_change(
    cluster: Grow, polled: list[int]
) -> None:
    local, client = cluster(2)
    several = [Workers(client), Workers(client)]
    for workers in several:
        workers.follow()
        wait_until(
            lambda workers=workers: workers.refresh() and workers._is_known(time.monotonic())
        )
    n_polls = len(polled)
    for _ in range(100):
        assert all(workers.refresh() for workers in several)
    assert len(polled) == n_polls
    for n_workers in (3, 1):
        resize(local, client, n_workers)
        for workers in several:  # one call each
            wait_until(lambda w=workers, n=n_workers: w.refresh() and len(w.threads) == n)
    several[0].close()
    resize(local, client, 2)
    wait_until(lambda: several[1].refresh() and len(several[1].threads) == 2)
    several[1].close()
    n_polls = len(polled)
    assert [one.refresh() for one in several] == [True, True]
    assert len(polled) == n_polls + 2  # nothing is reported any more


def test_the_scheduler_is_polled_each_time_where_it_reports_nothing(
    cluster: Grow, polled: list[int]
) -> None:
    _, client = cluster(1)
    others: list[Any] = []
    client.subscribe_topic("all", others.append)  # of a user: it stays
    workers = Workers(client)
    workers.follow()
    for _ in range(5):
        workers.refresh()
    assert len(polled) == 5
    client.submit(int, pure=False).result()
    client.log_event("all", "a word")
    wait_until(lambda: others)


def test_an_audit_is_due_after_some_time(
    cluster: Grow, polled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = cluster(1)
    monkeypatch.setattr(workers_module, "AUDIT_SECONDS", 0.0)
    workers = Workers(client)
    workers.follow()
    for _ in range(5):
        workers.refresh()
    assert len(polled) == 5


reported: list[tuple[str, int]] = []


async def note(value: int, dask_worker: Any) -> None:
    reported.append((dask_worker.address, value))


def test_workers_are_reported_and_who_cannot_be_reached_is_passed_over(client: Client) -> None:
    reported.clear()
    addresses = workers_of(client)
    workers = Workers(client)
    workers.run_on([addresses[0], "inproc://nobody/1/1"], note, 7)
    workers.run_on([], note, 8)
    wait_until(lambda: reported)
    assert reported == [(addresses[0], 7)]
