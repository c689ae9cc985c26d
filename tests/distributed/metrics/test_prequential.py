"""Metrics of a run are of forecasts made before a row is learned; a poor forecast is warned of."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.cli import main
from dmondrian.data import read_block
from dmondrian.distributed import train
from dmondrian.distributed.metrics.progressive import WORSE
from dmondrian.report import write_report
from tests.prequential.test_forecasts import AMF, CLASSES, CUTS, X, metrics_of


@pytest.mark.parametrize("n_shards", [1, 3])
def test_a_run_forecasts_as_its_forests(client: Client, tmp_path: Path, n_shards: int) -> None:
    table = pa.table({**{f"x{j}": X[:, j] for j in range(3)}, "y": CLASSES.astype(np.int64)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=170)
    run = train(
        AMFClassifier(**AMF), tmp_path / "rows.parquet", target="y", run=tmp_path / "run",
        client=client, n_shards=n_shards,
    )  # fmt: skip
    rows = np.concatenate([read_block(run.plan, block).X for block in run.plan.blocks])
    totals = metrics_of(AMFClassifier(**AMF), CLASSES, *CUTS[0][:2], rows=rows)["totals"]
    assert {name: run.metrics[name] for name in totals} == totals
    assert run.metrics["forecast"] == "each row forecast just before it was learned"


def test_forecasts_that_are_worse_than_the_mean_are_warned_of_once(
    client: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    draw = np.random.default_rng(0)
    noise = pa.table({"x": draw.random(3000), "y": draw.normal(size=3000)})
    pq.write_table(noise, tmp_path / "noise.parquet", row_group_size=500)
    reported: dict[str, Any] = {"target": "y", "client": client, "checkpoint_every": "1000 rows"}
    given: dict[str, Any] = {"learning_rate": 1.0, "feature_scales": None}
    estimator = AMFRegressor(n_estimators=1, random_state=0, **given)
    run = train(estimator, tmp_path / "noise.parquet", run=tmp_path / "run", **reported)
    assert run.metrics["r2"] < -0.5
    assert [record.message for record in caplog.records].count(WORSE) == 1
    assert main(["describe", run.run_url]) == 0
    shown = capsys.readouterr()
    assert "metrics (each row forecast just before it was learned, delay 1 row):" in shown.out
    assert f"note: {WORSE}\n" in shown.err
    page = html.unescape(write_report(run.run_url, tmp_path / "page.html").read_text())
    assert "R2 is below 0" in page
    assert "Each row forecast just before it was learned (delay 1 row): no held-out rows" in page
    caplog.clear()
    reported["target"] = "x"
    mixed = draw.permutation(np.arange(3000.0))
    better = pa.table({"x": mixed, "y": mixed // 100})
    pq.write_table(better, tmp_path / "better.parquet", row_group_size=500)
    run = train(
        AMFRegressor(n_estimators=1, random_state=0), tmp_path / "better.parquet",
        run=tmp_path / "better", **reported,
    )  # fmt: skip
    assert run.metrics["r2"] > 0.0
    assert WORSE not in [record.message for record in caplog.records]
