"""Rows without any weight teach nothing and measure nothing: both are reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFClassifier
from dmondrian.distributed import evaluate, score, train
from dmondrian.errors import DataError, SchemaError


def write(folder: Path, name: str, weight: float) -> str:
    x = np.random.default_rng(0).random(50)
    table = pa.table({"x": x, "y": x > 0.5, "w": np.full(50, weight)})
    pq.write_table(table, folder / name)
    return str(folder / name)


def test_data_without_weight_is_refused(client: Client, tmp_path: Path) -> None:
    nothing, something = write(tmp_path, "0.parquet", 0.0), write(tmp_path, "1.parquet", 2.5)
    options = {"target": "y", "weight": "w", "client": client}
    with pytest.raises(DataError, match="positive weight"):
        train(AMFClassifier(2), nothing, run=tmp_path / "none", **options)
    run = train(AMFClassifier(2, random_state=0), something, run=tmp_path / "run", **options)
    assert evaluate(run.run_url, something)["rows"] == 50
    with pytest.raises(DataError, match="positive weight"):
        evaluate(run.run_url, nothing)
    with pytest.raises(SchemaError, match="asked for to be kept: it has the columns"):
        score(run.run_url, something, tmp_path / "out", keep=["x", "nocol"])


def test_rows_without_labels_are_refused_with_what_can_be_done(
    client: Client, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).random(50)
    pq.write_table(pa.table({"x": x, "y": x > 0.5}), tmp_path / "rows.parquet")
    blank = str(tmp_path / "blank.parquet")
    pq.write_table(pa.table({"x": x, "y": pa.nulls(50, pa.bool_())}), blank)
    reported = {
        "error": r"'y' is missing in 50 rows, first at .*blank\.parquet, row 0: fill them in, or "
        r'take such rows out.* null_target="drop" passes over them',
        "drop": r"^no row of the data has a label in 'y': there is nothing to measure$",
    }
    for null_target, message in reported.items():
        run = train(
            AMFClassifier(1, random_state=0), tmp_path / "rows.parquet", target="y",
            run=tmp_path / null_target, null_target=null_target, client=client,
        )  # fmt: skip
        with pytest.raises(DataError, match=message):
            evaluate(run.run_url, blank, client=client)
