"""Runs to write pages of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFRegressor, MondrianDensity, MondrianKernelRegressor
from dmondrian.distributed import TrainedRun, train
from tests.distributed.conftest import ADULT, COLUMNS, forest, worker_threads

HOSTILE = '<script>console.log("no")</script>&"quoted"'


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    with worker_threads(1) as (_, client):
        yield client


@pytest.fixture(scope="session")
def classified(client: Client, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run with several checkpoints, of columns with names that no page should believe."""
    folder = tmp_path_factory.mktemp("classified")
    table = pq.read_table(ADULT, columns=COLUMNS).slice(0, 3000)
    hours = table["hours-per-week"]
    table = table.append_column(HOSTILE, hours).append_column("same", pa.array([1] * 3000))
    pq.write_table(table, folder / "rows.parquet", row_group_size=500)
    return train(
        forest(calibrate=True), folder / "rows.parquet", target="income", run=folder / "run",
        client=client, checkpoint_every="1000 rows",
    )  # fmt: skip


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of columns with names that are long, one of them without a place to break it."""
    folder = tmp_path_factory.mktemp("numbers")
    x = np.random.default_rng(0).random((2000, 3))
    columns = {f"a column with quite a long name, number {j}": x[:, j] for j in range(2)}
    columns["_".join(["without_a_space"] * 12)] = x[:, 2]
    pq.write_table(pa.table({**columns, "y": 1e5 * x[:, 0] ** 2}), folder / "rows.parquet")
    return folder / "rows.parquet"


@pytest.fixture(scope="session")
def of_numbers(client: Client, numbers: Path, tmp_path_factory: Any) -> TrainedRun:
    estimator = AMFRegressor(n_estimators=2, random_state=0, feature_scales=None)
    folder = tmp_path_factory.mktemp("of_numbers") / "run"
    return train(estimator, numbers, target="y", run=folder, client=client)


@pytest.fixture(scope="session")
def density(client: Client, numbers: Path, tmp_path_factory: Any) -> TrainedRun:
    estimator = MondrianDensity(n_estimators=2, lifetime=2.0, random_state=0)
    folder = tmp_path_factory.mktemp("density") / "run"
    return train(estimator, numbers, run=folder, exclude=["y"], client=client)


@pytest.fixture(scope="session")
def kernel(client: Client, numbers: Path, tmp_path_factory: Any) -> TrainedRun:
    estimator = MondrianKernelRegressor(n_estimators=3, lifetime=1.0, random_state=0)
    folder = tmp_path_factory.mktemp("kernel") / "run"
    return train(estimator, numbers, target="y", run=folder, client=client)


def page_of(run: TrainedRun, folder: Path) -> Path:
    from dmondrian.report import write_report

    return write_report(run.run_url, folder / "page.html")
