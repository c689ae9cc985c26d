"""The result queue returns what is finished, reports lost results, and releases the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, Future, LocalCluster

from dmondrian.distributed.cluster.results import FinishedTask, LostResultError, ResultQueue
from tests.distributed.conftest import PATIENCE, resize, wait_until, worker_threads, workers_of


@pytest.fixture
def own() -> Iterator[tuple[LocalCluster, Client]]:
    with worker_threads(2) as made:
        yield made


def take(queue: ResultQueue) -> FinishedTask:
    finished = queue.take(PATIENCE)
    assert finished is not None
    return finished


def tasks_known(client: Client) -> set[str]:
    return client.run_on_scheduler(lambda dask_scheduler: set(map(str, dask_scheduler.tasks)))


def test_results_come_with_what_was_reported_about_them(client: Client) -> None:
    queue = ResultQueue(client)
    for i in range(20):
        queue.watch(client.submit(pow, i, 2, pure=False), i)
    assert len(queue) == 20
    found = [take(queue) for _ in range(20)]
    assert {a.context: a.result for a in found} == {i: i**2 for i in range(20)}
    assert {a.error for a in found} == {None}
    assert len(queue) == 0
    assert queue.take(0.0) is None


def test_a_task_s_own_error_comes_as_it_was_raised(client: Client) -> None:
    queue = ResultQueue(client)
    queue.watch(client.submit(divmod, 1, 0, pure=False), "about")
    finished = take(queue)
    assert isinstance(finished.error, ZeroDivisionError)
    assert (finished.context, finished.result) == ("about", None)


def test_what_is_dropped_is_never_taken_and_forgotten_at_once(client: Client) -> None:
    queue = ResultQueue(client)
    # Both are held here, as a traceback would; the first one no worker can run.
    waits = client.submit(pow, 3, 2, pure=False, resources={"absent": 1})
    done = client.submit(pow, 3, 2, pure=False)
    keys = {queue.watch(waits, "waits"), queue.watch(done, "done")}
    wait_until(lambda: done.status == "finished")
    for future in (waits, done, done):
        queue.drop(str(future.key))
    assert queue.take(0.5) is None
    wait_until(lambda: not tasks_known(client) & keys)


def test_closing_lets_go_of_everything(client: Client) -> None:
    queue = ResultQueue(client)
    futures = [client.submit(pow, i, 2, pure=False) for i in range(5)]
    keys = {queue.watch(future, None) for future in futures}
    wait_until(lambda: all(future.done() for future in futures))
    queue.close()
    assert len(queue) == 0
    assert queue.take(0.0) is None
    wait_until(lambda: not tasks_known(client) & keys)


def test_a_result_lost_with_its_worker_is_reported_as_lost(
    own: tuple[LocalCluster, Client],
) -> None:
    cluster, client = own
    address = workers_of(client)[0]
    future = client.submit(pow, 3, 2, pure=False, workers=[address], allow_other_workers=True)
    wait_until(lambda: future.status == "finished")
    resize(cluster, client, 0)
    queue = ResultQueue(client)
    queue.watch(future, "about")
    finished = take(queue)
    assert isinstance(finished.error, LostResultError)
    assert finished.context == "about"


def test_a_worker_that_hangs_holds_back_its_own_results_only(
    own: tuple[LocalCluster, Client],
) -> None:
    cluster, client = own
    let_go = asyncio.Event()
    hanging, honest = cluster.workers.values()

    async def hang(**context: Any) -> None:
        await let_go.wait()

    hanging.handlers["get_data"] = hang
    queue = ResultQueue(client)

    def submit(worker: Any, value: int) -> Future:
        return client.submit(pow, value, 2, pure=False, workers=[worker.address])

    futures = [submit(hanging, i) for i in range(8)] + [submit(honest, i) for i in range(8, 16)]
    wait_until(lambda: all(future.status == "finished" for future in futures))
    for i, future in enumerate(futures):
        queue.watch(future, i)
    assert {take(queue).context for _ in range(8)} == set(range(8, 16))
    assert queue.take(0.0) is None
    queue.close()
    cluster.loop.add_callback(let_go.set)
