"""Faults on a cluster of threads: lost, stopped, joining and failing workers, a failing store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from dmondrian.checkpoint import Run
from dmondrian.distributed import TrainedRun, shards, train
from dmondrian.distributed.fleet import Fleet
from dmondrian.distributed.tracks import Limits
from dmondrian.errors import ClusterError, ParameterError, StoreError

from .conftest import ROWS, Fit, Once, digests, forest, worker_processes

Grow = Callable[[int], tuple[LocalCluster, Client]]


@pytest.fixture
def cluster() -> Iterator[Grow]:
    """Clusters of in-process workers of their own, to be changed while they run."""
    opened: list[tuple[LocalCluster, Client]] = []

    def start(n_workers: int) -> tuple[LocalCluster, Client]:
        made = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
        )
        opened.append((made, Client(made, set_as_default=False)))
        return opened[-1]

    yield start
    for made, client in opened:
        client.close()
        made.close()


@pytest.mark.usefixtures("talkative")
def test_a_worker_that_joins_takes_shards_over_at_a_checkpoint(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun
) -> None:
    workers, client = cluster(1)
    join = Once(lambda: (workers.scale(2), client.wait_for_workers(2, timeout=60)))
    run = fit(client=client, progress=join, checkpoint_every="500 rows")
    assert run.summary["workers"] == 2
    assert run.summary["recoveries"] == 0
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


@pytest.mark.usefixtures("talkative")
def test_a_worker_that_retires_hands_its_shards_on(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun
) -> None:
    workers, client = cluster(2)
    run = fit(client=client, progress=Once(lambda: workers.scale(1)))
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


@pytest.mark.usefixtures("talkative")
def test_a_stopped_process_is_given_up_and_does_no_harm_when_it_wakes(
    adult: Path, tmp_path: Path, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmondrian.distributed.trainer.Limits", partial(Limits, silence=3.0))
    with worker_processes(2) as client:
        # Kernels are loaded before, so that no honest step is silent that long.
        warm = tmp_path / "warm"
        train(forest(), adult, target="income", run=warm, client=client)
        pids = client.run(os.getpid)
        pid = pids[sorted(pids)[0]]
        stop = Once(lambda: os.kill(pid, signal.SIGSTOP))
        try:
            run = train(
                forest(), adult, target="income", run=tmp_path / "run", client=client,
                checkpoint_every="1000 rows", progress=stop,
            )  # fmt: skip
        finally:
            os.kill(pid, signal.SIGCONT)
    assert stop.is_done
    assert run.summary["recoveries"] == 3
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


def break_a_forest(dask_worker: Any) -> None:
    """Make the next update of each shard of this worker fail after some of its trees."""
    for held in dask_worker.plugins[shards.PLUGIN].registry._runs.values():
        for shard in held.shards.values():
            shard.forest.trees[-1] = None


@pytest.mark.usefixtures("talkative")
def test_a_step_that_fails_half_way_is_undone_and_done_again(
    fit: Fit, client: Client, undisturbed: TrainedRun
) -> None:
    run = fit(n_shards=2, progress=Once(lambda: client.run(break_a_forest)))
    assert run.summary["recoveries"] == 2
    assert run.metrics["log_loss"] == pytest.approx(undisturbed.metrics["log_loss"], rel=1e-12)
    assert digests(run) == digests(fit("other", n_shards=2))


def test_a_step_that_always_fails_ends_the_run_with_worker_shard_and_position(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = shards._learn

    def fail(plan: Any, shard: Any, encoded: Any, order: Any) -> None:
        if order.shard == 4 and order.stop > 2000:
            raise FloatingPointError("no such number")
        learn(plan, shard, encoded, order)

    monkeypatch.setattr(shards, "_learn", fail)
    with pytest.raises(
        ClusterError, match=r"shard 4 .*position 2000.*worker inproc.*no such number"
    ):
        fit()
    assert Run.open(tmp_path / "run").manifests() == [1000, 2000]


def test_a_store_that_fails_now_and_then_costs_nothing_but_time(
    fit: Fit, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, failed = Run.put_blob, []

    def flaky(self: Run, data: bytes) -> str:
        if len(failed) < 5:
            failed.append(len(data))
            raise StoreError("the store is busy")
        return put(self, data)

    monkeypatch.setattr(Run, "put_blob", flaky)
    run = fit()
    assert len(failed) == 5
    assert run.summary["recoveries"] == 0
    assert digests(run) == digests(undisturbed)


def test_a_store_that_always_fails_ends_the_run_by_name(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Run, data: bytes) -> str:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Run, "put_blob", refuse)
    with pytest.raises(ClusterError, match="the disk is full"):
        fit()


def test_workers_with_other_kernels_are_refused(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmondrian.distributed.coordinator.source_digest", lambda: "other")
    with pytest.raises(ClusterError, match="install the same dmondrian"):
        fit()


def test_a_cluster_without_workers_is_told_after_a_while(
    fit: Fit, cluster: Grow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fleet, "__init__", partial_init(0.5))
    _, client = cluster(0)
    with pytest.raises(ClusterError, match="has no workers"):
        fit(client=client)


def partial_init(patience: float) -> Callable[..., None]:
    before = Fleet.__init__

    def init(self: Fleet, client: Client) -> None:
        before(self, client, patience)

    return init


@pytest.mark.usefixtures("talkative")
def test_all_workers_leaving_for_good_ends_the_run_and_it_can_be_finished(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fleet, "__init__", partial_init(1.0))
    workers, client = cluster(2)
    with pytest.raises(ClusterError, match="run the same command again"):
        fit(client=client, progress=Once(lambda: workers.scale(0)))
    run = fit()
    assert run.summary["resumed_at"] < ROWS
    assert digests(run) == digests(undisturbed)


def test_sizes_and_a_client_exclude_each_other(fit: Fit) -> None:
    with pytest.raises(ParameterError, match="n_workers"):
        fit(threads=2)
