"""Faults on a cluster of threads: lost, stopped, joining and failing workers, a failing store."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.distributed import Progress, TrainedRun
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.training.coordinator import Coordinator
from dmondrian.distributed.training.shard_state import Limits, ShardState
from dmondrian.distributed.worker import tasks
from dmondrian.distributed.worker.messages import OK, Answer, Restore, Step
from dmondrian.distributed.worker.work_units import Unit
from dmondrian.errors import ClusterError, ParameterError, StoreError
from tests.distributed.conftest import (
    ROWS,
    Fit,
    Grow,
    Once,
    digests,
    forest,
    giving_up_after,
    resize,
)


@pytest.mark.usefixtures("talkative")
def test_a_worker_that_joins_takes_shards_over_at_the_next_checkpoint(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun
) -> None:
    workers, client = cluster(1)
    join = Once(lambda: resize(workers, client, 2))
    run = fit(client=client, progress=join, checkpoint_every="500 rows", window=1)
    assert join.is_done
    assert run.summary["workers"] == 2
    assert run.summary["recoveries"] == 0
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


def shards_held(dask_worker: Any) -> set[int]:
    """Numbers of the shards that a worker has in memory."""
    holder = dask_worker.plugins.get(tasks.PLUGIN)  # a worker that starts has none yet
    runs = holder.registry._runs.values() if holder is not None else ()
    return {number for held in runs for number in held.shards}


@pytest.mark.usefixtures("talkative")
def test_a_shard_that_moved_is_let_go_by_the_worker_that_held_it(fit: Fit, cluster: Grow) -> None:
    workers, client = cluster(1)
    seen: list[dict[str, set[int]]] = []

    def listen(progress: Progress) -> None:
        if progress.metrics and progress.rows < ROWS:  # all shards have learned some
            if not seen:
                resize(workers, client, 2)
            seen.append(client.run(shards_held))

    fit(client=client, progress=listen, checkpoint_every="500 rows", window=1)
    assert [len(held) for held in seen[0].values()].count(6) == 1
    a, b = seen[-1].values()
    assert len(a) == len(b) == 3
    assert a | b == set(range(6))


@pytest.mark.usefixtures("talkative")
def test_an_idle_worker_takes_no_order_from_a_busy_one(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, take_answer, statuses = tasks._learn, Coordinator._take_answer, set()

    def learn_slowly(*about: Any) -> None:
        time.sleep(0.05)  # long enough for the scheduler to see who is busy
        learn(*about)

    def note(self: Coordinator, state: Any, unit: int | None, answer: Answer) -> None:
        statuses.add(answer.status)
        take_answer(self, state, unit, answer)

    monkeypatch.setattr(tasks, "_learn", learn_slowly)
    monkeypatch.setattr(Coordinator, "_take_answer", note)
    workers, client = cluster(1)
    join = Once(lambda: resize(workers, client, 2))
    run = fit(client=client, progress=join, checkpoint_every=None, window=1)
    assert join.is_done
    assert run.summary["workers"] == 1  # nothing moves but at a checkpoint
    assert statuses == {OK}
    assert digests(run) == digests(undisturbed)


@pytest.fixture
def without_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that give up at the first loss."""
    monkeypatch.setattr(
        "dmondrian.distributed.training.attempt.Limits", partial(Limits, lost_workers=0)
    )


@pytest.mark.usefixtures("talkative", "without_losses")
def test_a_worker_that_retires_hands_its_shards_on_and_counts_as_no_loss(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun
) -> None:
    workers, client = cluster(2)
    retire = Once(lambda: resize(workers, client, 1))
    run = fit(client=client, progress=retire, window=1)
    assert retire.is_done
    assert run.summary["workers"] == 2
    assert run.summary["recoveries"] == 3
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


@pytest.mark.usefixtures("talkative")
def test_shards_of_a_lost_worker_are_restored_on_all_others_at_once_and_forecast_no_row_again(
    fit: Fit, cluster: Grow, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = forest(n_estimators=16)
    calm = fit("calm", estimator=estimator, n_shards=16, checkpoint_every="2000 rows")
    workers, client = cluster(4)
    turn = 0
    restored: dict[int, tuple[int, str]] = {}  # turn and worker, by shard
    replayed: dict[tuple[int, int], bool] = {}  # whether it forecasts, by shard and first row
    receive, restore = Coordinator._receive, Coordinator._order_to_restore
    step = Coordinator._order_to_step

    def next_turn(self: Coordinator) -> None:
        nonlocal turn
        turn += 1
        receive(self)

    def note_restore(self: Coordinator, state: ShardState) -> Restore:
        if state.best >= 0:
            assert state.address is not None
            restored.setdefault(state.shard, (turn, state.address))
        return restore(self, state)

    def note_step(self: Coordinator, state: ShardState, unit: Unit, n_threads: int) -> Step:
        order = step(self, state, unit, n_threads)
        if unit.index <= state.best:
            replayed[state.shard, unit.start] = order.forecasts
        return order

    monkeypatch.setattr(Coordinator, "_receive", next_turn)
    monkeypatch.setattr(Coordinator, "_order_to_restore", note_restore)
    monkeypatch.setattr(Coordinator, "_order_to_step", note_step)
    lost = Once(lambda: resize(workers, client, 3))
    run = fit(
        client=client, estimator=estimator, n_shards=16, checkpoint_every="2000 rows",
        window=2, progress=lost,
    )  # fmt: skip
    assert digests(run) == digests(calm)
    assert run.metrics == calm.metrics
    turns, places = zip(*restored.values(), strict=True)
    assert len(restored) == 4
    assert len(set(turns)) == 1
    assert sorted(Counter(places).values()) == [1, 1, 2]
    assert {shard for shard, _ in replayed} == set(restored)
    assert not any(replayed.values())


@pytest.mark.usefixtures("talkative", "without_losses")
def test_a_shard_that_loses_workers_too_often_ends_the_run_with_its_position(
    fit: Fit, pair: Client
) -> None:
    address, pid = min(pair.run(os.getpid).items())
    kill = Once(lambda: os.kill(pid, signal.SIGKILL))
    reported = f"lost its worker 1 times without getting past position \\d+, last {address}"
    with pytest.raises(ClusterError, match=reported):
        fit(client=pair, progress=kill, window=1)
    assert kill.is_done


@pytest.mark.usefixtures("talkative")
def test_a_stopped_process_is_given_up_and_does_no_harm_when_it_wakes(
    fit: Fit, pair: Client, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Coordinator._check_silence
    address, pid = min(pair.run(os.getpid).items())
    stop = Once(lambda: os.kill(pid, signal.SIGSTOP))

    def check_at_once(self: Coordinator, now: float) -> None:
        if stop.is_done:  # it alone was silent for long, however slow this machine is
            self._last_answer.update(dict.fromkeys(self._workers.threads, now))
            self._last_answer[address] = -float("inf")
        check(self, now)

    monkeypatch.setattr(Coordinator, "_check_silence", check_at_once)
    try:
        run = fit(client=pair, progress=stop, window=1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert stop.is_done
    assert run.summary["recoveries"] == 3
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


@pytest.mark.usefixtures("talkative")
def test_a_step_that_fails_half_way_is_undone_and_done_again(
    fit: Fit, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, broken = tasks._learn, []

    def fail_once(plan: Any, shard: Any, encoded: Any, order: Any) -> None:
        if order.stop > 2000 and order.shard not in broken:
            broken.append(order.shard)
            n_features = shard.forest.parameters.n_features
            shard.forest.update(np.zeros((5, n_features), np.float32), np.zeros(5))
            raise FloatingPointError("half way")
        learn(plan, shard, encoded, order)

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "_learn", fail_once)
        run = fit(n_shards=2)
    assert sorted(broken) == [0, 1]
    assert run.summary["recoveries"] == 2
    assert run.metrics["log_loss"] == pytest.approx(undisturbed.metrics["log_loss"], rel=1e-12)
    assert digests(run) == digests(fit("other", n_shards=2))


def test_a_step_that_always_fails_ends_the_run_with_worker_shard_and_position(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = tasks._learn

    def fail(plan: Any, shard: Any, encoded: Any, order: Any) -> None:
        if order.shard == 4 and order.stop > 2000:
            raise FloatingPointError("no such number")
        learn(plan, shard, encoded, order)

    monkeypatch.setattr(tasks, "_learn", fail)
    with pytest.raises(
        ClusterError, match=r"shard 4 .*position 2000.*worker inproc.*no such number"
    ):
        fit()
    assert Run.open(tmp_path / "run").manifests() == [2000]


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
    with pytest.raises(StoreError, match=r"(?s)failed 4 times .*the disk is full.*what is saved"):
        fit()


def test_workers_with_other_code_are_refused(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmondrian.distributed.training.coordinator.code_digest", lambda: "other")
    with pytest.raises(ClusterError, match="install the same dmondrian"):
        fit()


def test_a_cluster_without_workers_is_reported_after_a_while(
    fit: Fit, cluster: Grow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "__init__", giving_up_after(0.5))
    _, client = cluster(0)
    with pytest.raises(ClusterError, match="has no workers"):
        fit(client=client)


@pytest.mark.usefixtures("talkative")
def test_all_workers_leaving_for_good_ends_the_run_and_it_can_be_finished(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, client = cluster(2)
    with monkeypatch.context() as patch:
        patch.setattr(Workers, "__init__", giving_up_after(1.0))
        with pytest.raises(ClusterError, match="run the same command again"):
            fit(client=client, progress=Once(lambda: resize(workers, client, 0)), window=1)
    run = fit()
    assert run.summary["resumed_at"] < ROWS
    assert digests(run) == digests(undisturbed)


def test_sizes_and_a_client_exclude_each_other(fit: Fit) -> None:
    with pytest.raises(ParameterError, match="n_workers"):
        fit(threads=2)
