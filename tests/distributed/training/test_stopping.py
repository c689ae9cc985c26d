"""A run that is asked to stop saves at the next place where all shards can, and goes on there."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from dmondrian import MondrianKernelRegressor
from dmondrian.checkpoint import Run, load_model
from dmondrian.checkpoint.codec import decode_forest, encode_forest
from dmondrian.checkpoint.lease import ask_to_stop, holder_of
from dmondrian.distributed import Progress, TrainedRun, score
from dmondrian.distributed.cluster import workers
from dmondrian.distributed.training import attempt
from dmondrian.distributed.training.coordinator import Coordinator
from dmondrian.distributed.training.shard_state import Limits
from dmondrian.distributed.worker import tasks
from dmondrian.distributed.worker.messages import Step
from dmondrian.forest.forest import Forest
from tests.distributed.conftest import (
    GROUP,
    PATIENCE,
    Fit,
    Grow,
    Once,
    digests,
    resize,
    wait_until,
    workers_of,
)

pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of four units: runs of twelve would be at their end before they are stopped."""
    monkeypatch.setattr(attempt, "Limits", partial(Limits, largest_window=4))


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Asked:
    """A listener that asks to stop when rows are learned, and notes what was there then."""

    def __init__(
        self, run: Path, row: int = GROUP, ask: Any = interrupt, is_saved: bool = False
    ) -> None:
        self.run, self.row, self.ask = run, row, ask
        self.is_saved = is_saved  # whether the rows must be saved before it asks
        self.rows = -1  # learned when it asked
        self.checkpoints = -1
        self.received: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.received.append(progress)
        rows = progress.durable if self.is_saved else progress.rows
        if self.rows < 0 and rows >= self.row:
            self.rows, self.checkpoints = progress.rows, len(Run.open(self.run).manifests())
            self.ask()


def learn_once_held(monkeypatch: pytest.MonkeyPatch, waits: Callable[[Step], bool]) -> None:
    """Have some steps, once they are begun, wait until a worker is asked to begin no more."""
    learn, halt, is_asked = tasks._learn, tasks.HeldRun.halt, threading.Event()

    def learn_later(plan: Any, shard: Any, encoded: Any, order: Step) -> None:
        if waits(order):
            is_asked.wait(PATIENCE)
        learn(plan, shard, encoded, order)

    def halt_and_note(self: Any, generation: int) -> dict[int, int]:
        rests = halt(self, generation)
        is_asked.set()
        return rests

    monkeypatch.setattr(tasks, "_learn", learn_later)
    monkeypatch.setattr(tasks.HeldRun, "halt", halt_and_note)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shard learns its third unit before the workers were asked to begin no more steps."""
    learn_once_held(monkeypatch, lambda order: order.start >= 2 * GROUP)


@pytest.fixture
def one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two shards does not learn its second unit before that."""
    learn_once_held(monkeypatch, lambda order: order.shard == 1 and order.start >= GROUP)


@pytest.fixture
def uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    """One shard that is so slow that the others come as far ahead as they may."""
    learn = tasks._learn

    def learn_unevenly(plan: Any, shard: Any, encoded: Any, order: Any) -> None:
        time.sleep(0.15 if order.shard == 5 else 0.0)
        learn(plan, shard, encoded, order)

    monkeypatch.setattr(tasks, "_learn", learn_unevenly)


@pytest.mark.usefixtures("waiting")
def test_steps_that_wait_at_a_worker_are_not_begun_any_more(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    asked = Asked(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt, match="run the same command again to go on from there"):
        fit(client=cluster(1)[1], checkpoint_every=None, progress=asked)
    (position,) = Run.open(tmp_path / "run").manifests()
    assert asked.rows <= position <= 3 * GROUP  # others were sent, and are not begun
    assert asked.received[-1].stopping_at == position
    again = fit(checkpoint_every=None)
    assert again.summary["resumed_at"] == position
    assert digests(again) == digests(undisturbed)
    assert again.metrics == undisturbed.metrics


@pytest.mark.usefixtures("uneven")
def test_the_next_checkpoint_is_the_last_however_far_the_others_are(
    fit: Fit, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    asked = Asked(tmp_path / "run", is_saved=True)
    with pytest.raises(KeyboardInterrupt, match="which is saved"):
        fit(checkpoint_every="500 rows", progress=asked)
    positions = Run.open(tmp_path / "run").manifests()
    assert len(positions) <= asked.checkpoints + 3  # two may be taken before it is seen
    again = fit(checkpoint_every="500 rows")
    assert again.summary["resumed_at"] == positions[-1]
    assert digests(again) == digests(undisturbed)


@pytest.mark.usefixtures("uneven")
def test_a_shard_that_is_ahead_and_not_saved_is_waited_for(
    fit: Fit, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    asked = Asked(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt, match="which is saved"):
        fit(checkpoint_every=None, progress=asked)
    (position,) = Run.open(tmp_path / "run").manifests()
    again = fit(checkpoint_every=None)
    assert again.summary["resumed_at"] == position
    assert digests(again) == digests(undisturbed)
    assert again.metrics == undisturbed.metrics


def test_before_the_first_row_there_is_nothing_to_save(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="before a row was learned"):
        fit(progress=Asked(tmp_path / "run", row=0))
    assert Run.open(tmp_path / "run").manifests() == []


def test_ctrl_c_is_described_to_stop_at_once_only_where_it_does(fit: Fit, tmp_path: Path) -> None:
    own = Asked(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fit(progress=own)
    assert own.received[-1].stops_at_once
    assert "(Ctrl-C again: at once)" in own.received[-1].line()
    beat = holder_of(Run.open(tmp_path / "run").store).beat  # type: ignore[union-attr]  # it was held
    assert beat["told"]["is_stopping"] is True  # type: ignore[index]  # and noted
    assert beat["told"]["stops_at_once"] is False  # type: ignore[index]  # as before

    def cancel() -> None:
        store = Run.open(tmp_path / "other").store
        ask_to_stop(store, holder_of(store))  # type: ignore[arg-type]  # one holds it

    cancelled = Asked(tmp_path / "other", ask=cancel)
    with pytest.raises(KeyboardInterrupt):
        fit("other", progress=cancelled, checkpoint_every="500 rows")
    last = cancelled.received[-1]
    assert last.is_stopping
    assert not last.stops_at_once
    assert f"stopping at row {last.stopping_at:,}" in last.line()
    assert "Ctrl-C" not in last.line()


@pytest.mark.parametrize("every", [None, "500 rows"])
@pytest.mark.thorough(but="500 rows")
def test_a_worker_that_is_lost_as_a_run_stops_is_made_good(
    fit: Fit, pair: Client, undisturbed: TrainedRun, tmp_path: Path, every: str | None
) -> None:
    _, pid = min(pair.run(os.getpid).items())

    def lose_and_ask() -> None:
        os.kill(pid, signal.SIGKILL)
        interrupt()

    with pytest.raises(KeyboardInterrupt, match="which is saved"):
        fit(client=pair, checkpoint_every=every, progress=Asked(tmp_path / "run", ask=lose_and_ask))
    position = Run.open(tmp_path / "run").manifests()[-1]
    again = fit()
    assert again.summary["resumed_at"] == position
    assert digests(again) == digests(undisturbed)
    assert again.metrics == undisturbed.metrics


def holds_first_shard(dask_worker: Any) -> bool:
    """Whether a worker has shard 0 of a run in memory."""
    runs = dask_worker.plugins[tasks.PLUGIN].registry._runs.values()
    return any(0 in held.shards for held in runs)


def trees_of(url: str) -> bytes:
    return encode_forest(*load_model(url)[0].state())


def rows_learned(run: Run, position: int) -> dict[int, float]:
    """Rows that the saved trees of each shard of a checkpoint have learned."""
    saved = run.manifest(position).shards.items()
    blobs = {number: decode_forest(run.get_blob(shard["digest"])) for number, shard in saved}
    return {number: Forest.from_state(*blob).total_weight for number, blob in blobs.items()}


def losing_first_shard(
    run: Path, workers: LocalCluster, client: Client, is_noticed: bool
) -> Callable[[Progress], None]:
    """A listener that closes the worker of shard 0 and asks to stop, at once or once it is noticed.

    By then this shard has learned 1,500 rows, which are saved, and the other one 500.
    """

    def lose() -> None:
        (address,) = (a for a, holds in client.run(holds_first_shard).items() if holds)
        (worker,) = (w for w in workers.workers.values() if w.address == address)
        client.sync(worker.close, callback_timeout=PATIENCE)
        wait_until(lambda: len(workers_of(client)) == 1)

    lost = Asked(run, row=2 * GROUP, ask=lose)
    is_asked: list[int] = []

    def listen(progress: Progress) -> None:
        lost(progress)
        if lost.rows >= 0 and progress.recoveries == is_noticed and not is_asked:
            is_asked.append(progress.rows)
            interrupt()

    return listen


@pytest.mark.usefixtures("one_waiting")
@pytest.mark.parametrize("is_noticed", [False, True])
@pytest.mark.thorough(but="True")
def test_a_shard_that_is_saved_ahead_and_lost_as_a_run_stops_is_waited_for(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun, tmp_path: Path, is_noticed: bool
) -> None:
    workers, client = cluster(2)
    how = {"client": client, "n_shards": 2, "checkpoint_every": "1500 rows"}
    listen = losing_first_shard(tmp_path / "run", workers, client, is_noticed)
    with pytest.raises(KeyboardInterrupt, match="stopped at row 1,500 of 6,000, which is saved"):
        fit(progress=listen, **how)
    run = Run.open(tmp_path / "run")
    assert run.manifests() == [1500]
    assert rows_learned(run, 1500) == {0: 1500, 1: 1500}
    again = fit(**how)
    assert again.summary["resumed_at"] == 1500
    assert digests(again) == digests(fit("whole", **how))
    assert trees_of(again.run_url) == trees_of(undisturbed.run_url)
    assert again.metrics == undisturbed.metrics


@pytest.mark.usefixtures("one_waiting")
def test_states_of_different_positions_are_never_committed_as_one(
    fit: Fit, cluster: Grow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, client = cluster(2)
    how = {"client": client, "n_shards": 2, "checkpoint_every": "1500 rows"}
    listen = losing_first_shard(tmp_path / "run", workers, client, is_noticed=True)
    # A wrong choice: the end of the second unit, behind which shard 0 is saved.
    monkeypatch.setattr(Coordinator, "_unit_that_ends_behind", lambda self, position: 1)
    with pytest.raises(KeyboardInterrupt, match="stopped before a row was learned"):
        fit(progress=listen, **how)
    assert Run.open(tmp_path / "run").manifests() == []
    again = fit(**how)
    assert digests(again) == digests(fit("whole", **how))


def test_a_worker_that_does_not_say_where_it_is_costs_a_window(
    fit: Fit, undisturbed: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.Workers, "query", lambda *about, **how: {})
    with pytest.raises(KeyboardInterrupt, match="which is saved"):
        fit(checkpoint_every=None, progress=Asked(tmp_path / "run"))
    assert len(Run.open(tmp_path / "run").manifests()) == 1
    again = fit()
    assert digests(again) == digests(undisturbed)


def test_without_a_worker_nothing_is_waited_for(
    fit: Fit, cluster: Grow, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    workers, client = cluster(1)

    def lose_and_ask() -> None:
        resize(workers, client, 0)
        interrupt()

    asked = Asked(tmp_path / "run", ask=lose_and_ask, is_saved=True)
    with pytest.raises(KeyboardInterrupt, match=r"stopped at row [0-9,]+ of 6,000, which is saved"):
        fit(client=client, progress=asked, checkpoint_every="500 rows", window=1)
    # The worker may have answered, just before it was lost, with all that the next one needs.
    there = len(Run.open(tmp_path / "run").manifests())
    assert there in (asked.checkpoints, asked.checkpoints + 1)
    assert digests(fit()) == digests(undisturbed)


def test_trees_that_are_fitted_together_stop_after_a_mini_batch(
    fit: Fit, adult: Path, tmp_path: Path
) -> None:
    estimator = MondrianKernelRegressor(5, lifetime=1.5, random_state=7, n_passes=1, batch_size=128)
    how = {"estimator": estimator, "target": "age", "n_shards": 3, "checkpoint_every": None}
    how["data"] = adult / "part-0.parquet"
    asked = Asked(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt, match="which is saved"):
        fit(progress=asked, **how)
    (position,) = Run.open(tmp_path / "run").manifests()
    assert asked.rows <= position <= asked.rows + 3 * 128
    assert digests(fit(**how)) == digests(fit("undisturbed", **how))


def test_scoring_that_is_stopped_reports_how_many_files_are_written(
    adult: Path,
    client: Client,
    undisturbed: TrainedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 500)
    out = tmp_path / "out"

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"stopped with \d+ of 12 files") as raised:
        score(undisturbed.run_url, adult, out, client=client, progress=Once(stop, True))
    n_reported = int(str(raised.value).split()[2])
    assert 1 <= n_reported <= len(list(out.glob("part-*"))) < 12
    again = score(undisturbed.run_url, adult, out, client=client)
    assert again["written"] <= 12 - n_reported
