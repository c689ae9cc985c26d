"""A worker that hangs and a data store that fails for a moment hold nobody up."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from dmondrian.data import Plan
from dmondrian.distributed import TrainedRun
from dmondrian.distributed.cluster import client as cluster_client
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.training import attempt, shard_state
from dmondrian.distributed.training.shard_state import Limits
from dmondrian.distributed.worker import chunk_cache, tasks
from dmondrian.errors import DataError, PlanError, StoreError
from tests.distributed.cluster.test_workers import note, reported
from tests.distributed.conftest import Fit, Grow, digests, wait_until, workers_of


def test_word_is_left_for_a_worker_that_stopped_answering(cluster: Grow) -> None:
    _, client = cluster(2)
    reported.clear()
    workers = Workers(client)
    workers.run_on_unresponsive(note, 1)
    workers.unresponsive = {workers_of(client)[1], "inproc://nobody/1/1"}
    workers.run_on_unresponsive(note, 2)
    wait_until(lambda: reported)
    assert reported == [(workers_of(client)[1], 2)]


def test_a_worker_that_hangs_does_not_hold_up_the_start(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = cluster(2)
    register = client._register_worker_plugin

    async def hang(*about: Any, **options: Any) -> None:
        await register(*about, **options)
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "_register_worker_plugin", hang)
    monkeypatch.setattr(cluster_client, "REPLY_SECONDS", 0.5)
    assert digests(fit(client=client)) == digests(undisturbed)


@pytest.mark.parametrize("error", [DataError("AWS Error 503"), PlanError("cannot look at it")])
@pytest.mark.thorough(but="error1")
def test_a_remote_file_that_cannot_be_reached_is_read_again(
    fit: Fit, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch, error: DataError
) -> None:
    read, failed = tasks.read_chunk, []

    def flaky(plan: Plan, chunk: Any, floor: int, **options: Any) -> Any:
        if chunk.index == 4 and len(failed) < 2:
            failed.append(chunk.index)
            raise error from OSError("AWS Error 503")
        return read(plan, chunk, floor, **options)

    monkeypatch.setattr(tasks, "read_chunk", flaky)
    with pytest.raises(type(error), match=str(error)):
        fit("local")  # a file here that cannot be read is bad
    failed.clear()
    monkeypatch.setattr(chunk_cache, "_is_remote", lambda uri: True)
    assert digests(fit("remote")) == digests(undisturbed)
    assert len(failed) == 2


def test_an_outage_of_a_data_store_is_waited_for_and_ends_the_run_where_it_lasts(
    fit: Fit, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failed = tasks.read_chunk, []

    def unreachable(plan: Plan, chunk: Any, floor: int, **options: Any) -> Any:
        if chunk.index == 4 and len(failed) < n_failures:
            failed.append(chunk.index)
            raise DataError("AWS Error 503") from OSError("AWS Error 503")
        return read(plan, chunk, floor, **options)

    monkeypatch.setattr(tasks, "read_chunk", unreachable)
    monkeypatch.setattr(chunk_cache, "_is_remote", lambda uri: True)
    monkeypatch.setattr(shard_state, "_LONGEST_WAIT", 0.05)
    monkeypatch.setattr(tasks, "PATIENCE", 0.5)  # of the step behind one that failed
    n_failures = 8 * Limits().tries
    assert digests(fit("outage")) == digests(undisturbed)
    assert len(failed) == n_failures
    n_failures = 10**9
    monkeypatch.setattr(attempt, "Limits", partial(Limits, outage=0.5))
    with pytest.raises(StoreError, match="AWS Error 503"):
        fit("for good")
