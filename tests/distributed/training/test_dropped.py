"""Rows without a target are dropped, be it all rows of a file, of a step or of the first rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianForestRegressor,
    MondrianKernelRegressor,
)
from dmondrian.checkpoint import Run
from dmondrian.distributed import TrainedRun, train
from tests.distributed.conftest import SETTLED, digests
from tests.distributed.training.test_stream import StopError, stop_after

ROWS = 2000  # of a file
FIXED: dict[str, Any] = {"n_estimators": 2, "random_state": 0}
PLAIN: dict[str, Any] = {"feature_scales": None, "feature_units": None, **FIXED}
SLICED: dict[str, Any] = {
    "hierarchy": MondrianForestRegressor(aggregation="hierarchy", lifetime=None, **PLAIN),
    "lifetimes that trees choose": GeneralizedMondrianForestRegressor(
        loss="squared", lifetime="prequential", max_lifetime=5.0, **PLAIN
    ),
}
ESTIMATORS: dict[str, Any] = {
    "regressor": AMFRegressor(**PLAIN, calibrate=True),
    "hierarchy": SLICED["hierarchy"],
    "generalized classifier": GeneralizedMondrianForestClassifier(
        loss="logistic", lifetime=3.0, **PLAIN
    ),
    "classifier": AMFClassifier(**{**SETTLED, **FIXED, "calibrate": True}),
    "kernel": MondrianKernelRegressor(lifetime=1.5, n_passes=1, batch_size=128, **FIXED),
}
FEW = {("classifier", 1), ("kernel", 0)}


def write(folder: Path, is_null: list[bool], is_class: bool) -> Path:
    """Write files of which some have no target at all."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number, is_null_file in enumerate(is_null):
        a, b = draw.random((2, ROWS))
        a[:2], b[:2] = [0.0, 1.0], [1.0, 0.0]  # columns are scaled by the range of all files
        y: Any = a + 0.1 * draw.normal(size=ROWS) + 5.0
        y, kind = (y > 5.5, pa.bool_()) if is_class else (y, pa.float64())
        column = pa.nulls(ROWS, kind) if is_null_file else pa.array(y, kind)
        pq.write_table(pa.table({"a": a, "b": b, "y": column}), folder / f"{number}.parquet")
    return folder


def fit(client: Client, estimator: Any, data: Path, run: Path, **options: Any) -> TrainedRun:
    return train(
        estimator, data, target="y", run=run, client=client, null_target="drop", n_shards=2,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "at"),
    [
        pytest.param(name, at, marks=() if (name, at) in FEW else pytest.mark.thorough)
        for name in ESTIMATORS
        for at in (0, 1)
    ],
)
def test_a_file_without_any_target_teaches_and_measures_nothing(
    client: Client, tmp_path: Path, name: str, at: int
) -> None:
    estimator, is_class = ESTIMATORS[name], "classifier" in name
    data = write(tmp_path / "data", [i == at for i in range(3)], is_class)
    run = fit(client, estimator, data, tmp_path / "run", checkpoint_every="1000 rows")
    assert run.metrics["rows"] == 2 * ROWS
    assert run.metrics["accuracy" if is_class else "r2"] > 0.5
    unmeasured = fit(client, estimator, data, tmp_path / "unmeasured", progressive=False)
    assert digests(unmeasured) == digests(run)
    if name == "kernel":  # its mini-batches are cut by the positions of all rows
        return
    (data / f"{at}.parquet").unlink()
    without = fit(client, estimator, data, tmp_path / "without")
    assert digests(without) == digests(run)


def write_one(path: Path, is_null: np.ndarray, row_group_size: int | None = None) -> Path:
    """Write one file; numbers whose error would be large if 0 was forecast."""
    draw = np.random.default_rng(1)
    a, b = draw.random((2, len(is_null)))
    y = pa.array(a + 0.1 * draw.normal(size=len(is_null)) + 100.0, mask=is_null)
    pq.write_table(pa.table({"a": a, "b": b, "y": y}), path, row_group_size=row_group_size)
    return path


@pytest.mark.parametrize("name", ["regressor", "hierarchy"])
def test_where_a_checkpoint_is_taken_in_leading_rows_without_target_changes_no_metric(
    client: Client, tmp_path: Path, name: str
) -> None:
    data = write_one(tmp_path / "rows.parquet", np.arange(1800) < 999)
    runs = [
        fit(client, ESTIMATORS[name], data, tmp_path / f"{every}", checkpoint_every=every)
        for every in (None, 500, 999, 1000)
    ]
    assert all(run.metrics == runs[0].metrics for run in runs)
    assert runs[0].metrics["r2"] > 0.2


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("name", SLICED)
@pytest.mark.thorough(but="hierarchy")
def test_checkpoints_change_no_metric_of_rows_that_are_forecast_in_slices(
    client: Client, tmp_path: Path, name: str
) -> None:
    is_null = np.random.default_rng(2).random(3000) < 0.3
    is_null[700:1300] = True
    data = write_one(tmp_path / "rows.parquet", is_null, 1900)
    stopped: dict[str, Any] = {"checkpoint_every": 600, "progress": stop_after(600)}
    with pytest.raises(StopError):
        fit(client, SLICED[name], data, tmp_path / "1001", **stopped)
    runs = [
        fit(client, SLICED[name], data, tmp_path / f"{every}", checkpoint_every=every)
        for every in (None, 700, 1001)
    ]
    assert all(run.metrics == runs[0].metrics for run in runs)
    assert runs[0].metrics["rows"] == np.count_nonzero(~is_null)
    straight, one, resumed = [sorted(Run.open(run.run_url).manifests()) for run in runs]
    assert straight == [3000]
    assert one == [704, 1408, 2304, 2816, 3000]
    assert resumed[0] == 640
    assert resumed[-2:] == [2048, 3000]
