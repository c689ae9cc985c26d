"""What a call leaves on the caller's cluster, however it ends: no shard and no task.

Each failure is held while the cluster is looked at: its traceback keeps all frames of the call
alive, and with them any future that was left to the garbage collector.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.distributed import Progress, TrainedRun, evaluate, score
from dmondrian.distributed.worker import tasks
from dmondrian.errors import ClusterError, DataError, PlanError

from .conftest import Fit, Grow, wait_until, worker_threads


@pytest.fixture
def own(cluster: Grow) -> Client:
    """Two workers that nothing was asked of before."""
    return cluster(2)[1]


def runs_held(dask_worker: Any) -> int:
    holder = dask_worker.plugins.get(tasks.PLUGIN)
    return 0 if holder is None else len(holder.registry._runs)


def tasks_known(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def wait_until_empty(client: Client) -> None:
    """Let the cluster forget: it is asked without waiting for an answer."""
    wait_until(lambda: client.run_on_scheduler(tasks_known) == 0)
    wait_until(lambda: set(client.run(runs_held).values()) == {0})


class Stop:
    """A listener that fails in the middle, with the rows after which it did."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, progress: Progress) -> None:
        if 0 < progress.rows < progress.n_rows:
            self.rows = progress.rows
            raise KeyboardInterrupt("in the middle")


def test_a_finished_run_leaves_nothing(fit: Fit, own: Client) -> None:
    fit(client=own)
    wait_until_empty(own)


@pytest.mark.usefixtures("talkative")
def test_a_run_stopped_in_the_middle_leaves_nothing(fit: Fit, own: Client) -> None:
    stop = Stop()
    with pytest.raises(KeyboardInterrupt, match="in the middle") as raised:
        fit(client=own, progress=stop, window=1)
    assert stop.rows > 0
    wait_until_empty(own)
    assert raised.tb is not None


@pytest.mark.usefixtures("talkative")
def test_a_step_that_ends_the_run_leaves_nothing(
    fit: Fit, own: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = tasks._learn

    def fail(plan: Any, shard: Any, encoded: Any, order: Any) -> None:
        if order.shard == 4 and order.stop > 2000:
            raise PlanError("the file changed")
        learn(plan, shard, encoded, order)

    monkeypatch.setattr(tasks, "_learn", fail)
    with pytest.raises(PlanError, match="the file changed") as raised:
        fit(client=own)
    wait_until_empty(own)
    assert raised.tb is not None


def test_a_commit_that_fails_leaves_nothing(
    fit: Fit, own: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Run, *about: Any) -> None:
        raise ClusterError("no commit")

    monkeypatch.setattr(Run, "commit", refuse)
    with pytest.raises(ClusterError, match="no commit") as raised:
        fit(client=own)
    wait_until_empty(own)
    assert raised.tb is not None


def test_a_partition_that_cannot_be_written_leaves_nothing(
    adult: Path, fit: Fit, tmp_path: Path
) -> None:
    dask_frames = pytest.importorskip("dask.dataframe")
    table = pyarrow.dataset.dataset(adult).to_table().to_pandas()
    go = tmp_path / "go"

    def fail(part: pd.DataFrame, partition_info: dict | None = None) -> pd.DataFrame:
        number = partition_info["number"] if partition_info is not None else 0
        if number == 1:
            raise KeyError("nothing there")
        if number > 1:  # still under way when the other has failed
            wait_until(go.exists)
        return part

    frame = dask_frames.from_pandas(table, npartitions=4).map_partitions(fail, meta=table.iloc[:0])
    with worker_threads(1, threads=4) as (_, client):
        try:
            with pytest.raises(DataError, match="nothing there") as raised:
                fit(data=frame, client=client)
            wait_until_empty(client)
        finally:
            go.touch()
        assert raised.tb is not None


@pytest.mark.usefixtures("talkative")
def test_scores_stopped_in_the_middle_leave_nothing(
    adult: Path, own: Client, undisturbed: TrainedRun, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 500)
    stop = Stop()
    with pytest.raises(KeyboardInterrupt, match="in the middle") as raised:
        score(undisturbed.run_url, adult, tmp_path / "out", client=own, progress=stop)
    assert stop.rows == 500
    wait_until_empty(own)
    assert raised.tb is not None


def test_an_evaluation_that_fails_leaves_nothing(
    adult: Path, own: Client, undisturbed: TrainedRun, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("dmondrian.distributed.worker.work_units.UNIT_ROWS", 500)
    table = pq.read_table(adult / "part-0.parquet")
    labels = ["a third", *table.column("income").to_pylist()[1:]]
    index = table.column_names.index("income")
    table = table.set_column(index, "income", pyarrow.array(labels))
    pq.write_table(table, tmp_path / "new.parquet", row_group_size=500)
    with pytest.raises(DataError, match="a third") as raised:
        evaluate(undisturbed.run_url, tmp_path / "new.parquet", client=own)
    wait_until_empty(own)
    assert raised.tb is not None
