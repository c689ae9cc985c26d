"""Dask collections are written once, in their order, and learned as any Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pandas as pd
import pyarrow.dataset
import pytest
from distributed import Client

from dmondrian.distributed import TrainedRun, train
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.training.stage_dask import part_name, stage
from dmondrian.errors import CheckpointError, ClusterError, DataError, ParameterError
from tests.distributed.conftest import PATIENCE, Fit, Grow, digests, forest, giving_up_after
from tests.flipped import carries_checksums

dask_frames = pytest.importorskip("dask.dataframe")


@pytest.fixture
def table(adult: Path) -> pd.DataFrame:
    return pyarrow.dataset.dataset(adult).to_table().to_pandas()


def test_a_dask_dataframe_is_learned_in_the_order_of_its_partitions(
    fit: Fit, table: pd.DataFrame, undisturbed: TrainedRun
) -> None:
    frame = dask_frames.from_pandas(table, npartitions=5)
    run = fit(data=frame)
    assert digests(run) == digests(undisturbed)
    files = sorted(path.name for path in Path(run.run_url, "stream").glob("*.parquet"))
    assert files == [part_name(i) for i in range(5)]
    written = Path(run.run_url, "stream", files[0]).read_bytes()
    assert carries_checksums(written)


def test_a_second_call_reads_what_the_first_one_wrote(
    fit: Fit, table: pd.DataFrame, undisturbed: TrainedRun
) -> None:
    run = fit(data=dask_frames.from_pandas(table, npartitions=3))
    for manifest in sorted(Path(run.run_url, "manifests").iterdir())[1:]:
        manifest.unlink()
    again = fit(data=failing(dask_frames.from_pandas(table, npartitions=3), 1, table))
    assert again.summary["resumed_at"] == 2000  # the first of checkpoints 2,000 rows apart
    assert digests(again) == digests(undisturbed)


def test_partitions_that_are_missing_are_written(
    fit: Fit, table: pd.DataFrame, undisturbed: TrainedRun, tmp_path: Path, client: Client
) -> None:
    frame = dask_frames.from_pandas(table, npartitions=4)
    stage(client, frame, "income", str(tmp_path / "run"))
    (tmp_path / "run/stream" / part_name(2)).unlink()
    assert digests(fit(data=frame)) == digests(undisturbed)


def test_arrays_are_learned_like_an_estimator_learns_them(client: Client, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(700, 3))
    X[:2] = [[0.0] * 3, [1.0] * 3]  # the encoding scales to [0, 1]
    y = (X[:, 0] + X[:, 1] > 1).astype(int)
    run = train(
        forest(),
        dask.array.from_array(X, chunks=(300, 2)),
        target=dask.array.from_array(y, chunks=250),
        run=tmp_path / "run",
        client=client,
    )
    alone = forest().fit(X.astype(np.float32), y)
    rows = pd.DataFrame(X[:50].astype(np.float32), columns=["x0", "x1", "x2"])
    assert np.array_equal(run.to_local().predict_proba(rows), alone.predict_proba(rows.to_numpy()))
    assert run.plan.schema.feature_names == ["x0", "x1", "x2"]


@pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
@pytest.mark.thorough(but="last")
def test_other_rows_in_the_same_folder_are_refused(fit: Fit, table: pd.DataFrame, at: int) -> None:
    table["age"] = table["age"].where(table.index % 7 > 0)  # NaN, which equals nothing
    fit(data=dask_frames.from_pandas(table, npartitions=3))
    fit(data=dask_frames.from_pandas(table, npartitions=3))
    other = table.copy()
    other.loc[other.index[at], "hours-per-week"] += 1
    with pytest.raises(CheckpointError, match="holds other rows than this collection"):
        fit(data=dask_frames.from_pandas(other, npartitions=3))


def test_another_collection_in_the_same_folder_is_refused(fit: Fit, table: pd.DataFrame) -> None:
    fit(data=dask_frames.from_pandas(table, npartitions=2))
    with pytest.raises(CheckpointError, match="another collection"):
        fit(data=dask_frames.from_pandas(table, npartitions=3))


@pytest.mark.parametrize(
    ("rows", "targets", "printed"),
    [
        (dask.array.zeros((10, 2)), dask.array.zeros(9), "9 rows"),
        (dask.array.zeros((10, 2)), "income", "one-dimensional"),
        (dask.array.zeros(10), dask.array.zeros(10), "two-dimensional"),
    ],
    ids=["lengths", "name", "shape"],
)
def test_arrays_that_do_not_fit_are_refused(
    fit: Fit, rows: object, targets: object, printed: str
) -> None:
    with pytest.raises(ParameterError, match=printed):
        fit(data=rows, target=targets)


def failing(frame: Any, number: int, table: pd.DataFrame) -> Any:
    """The same frame, of which one partition cannot be computed."""

    def fail(part: pd.DataFrame, partition_info: dict | None = None) -> pd.DataFrame:
        if partition_info is not None and partition_info["number"] == number:
            raise KeyError("nothing there")
        return part

    return frame.map_partitions(fail, meta=table.iloc[:0])


def test_a_partition_that_fails_is_named(fit: Fit, table: pd.DataFrame) -> None:
    frame = failing(dask_frames.from_pandas(table, npartitions=3), 1, table)
    with pytest.raises(DataError, match=r"partition 1 .*nothing there"):
        fit(data=frame)


@pytest.mark.parametrize("n_workers", [0, 1])
def test_partitions_are_written_by_workers_that_join_or_never(
    cluster: Grow, table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    n_workers: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(Workers, "__init__", giving_up_after(PATIENCE if n_workers else 0.5))
    frame = dask_frames.from_pandas(table, npartitions=2)
    workers, client = cluster(0)
    if n_workers:
        workers.scale(n_workers)
        stage(client, frame, "income", str(tmp_path / "run"))
        assert len(list((tmp_path / "run/stream").glob("*.parquet"))) == 2
    else:
        with pytest.raises(ClusterError, match="has no workers"):
            stage(client, frame, "income", str(tmp_path / "run"))
