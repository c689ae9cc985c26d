"""A drift of a run is reported once; baselines know what a forecast knows, however it is made."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import AMFClassifier, MondrianForestRegressor, MondrianKernelRegressor
from dmondrian.distributed import train
from dmondrian.joint_fit.minibatch import pieces
from dmondrian.prequential.forecast_lag import slices
from dmondrian.report import write_report
from tests.cli.command import call

PLAIN: dict[str, Any] = {"alpha": 0.25, "charge_opening": False, "feature_scales": None}


def test_a_drift_is_reported_once_and_advice_given(client, tmp_path, caplog) -> None:
    draw = np.random.default_rng(0)
    x = draw.random((9000, 2))
    y = np.where(np.arange(9000) < 4500, x[:, 0] > 0.5, x[:, 1] > 0.5)
    table = pa.table({"a": x[:, 0], "b": x[:, 1], "y": y})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=1000)
    result = []
    for name, every in (("whole", None), ("parts", "700 rows")):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            run = train(
                AMFClassifier(n_estimators=2, random_state=0, **PLAIN), tmp_path / "rows.parquet",
                target="y", run=tmp_path / name, client=client, checkpoint_every=every,
            )  # fmt: skip
        (warning,) = [r.message for r in caplog.records if "the stream drifts" in r.message]
        result.append((run.metrics["drift"], warning))
    assert result[0] == result[1]
    drift, warning = result[0]
    assert drift["found"] == 1
    (rise,) = drift["rises"]
    assert rise["before_stop"] <= 4500 < rise["stop"] <= 9000
    assert drift["text"] in warning
    assert 'drift="follow"' in warning
    assert warning in call("describe", tmp_path / "whole")[1]
    page = write_report(tmp_path / "whole", tmp_path / "page.html").read_text()
    assert "The stream drifts: the mean log loss" in page
    assert 'class="place"' in page
    assert "at\nmost 1% give this notice" in page


@pytest.mark.parametrize("kind", ["slices", "batches"])
def test_the_label_that_is_known_is_that_before_the_slice_or_batch(client, tmp_path, kind) -> None:
    n, draw = 3000, np.random.default_rng(0)
    x, y = draw.random(n), np.cumsum(draw.normal(size=n))
    pq.write_table(pa.table({"x": x, "y": y}), tmp_path / "rows.parquet", row_group_size=n)
    estimator: Any
    if kind == "slices":
        estimator = MondrianForestRegressor(
            n_estimators=1, lifetime=2.0, aggregation="hierarchy", random_state=0
        )
        starts, delay = [start for start, _ in slices(0, n)], 4096
    else:
        estimator = MondrianKernelRegressor(n_estimators=1, lifetime=1.0, random_state=0)
        delay = estimator.batch_size
        starts = [start for start, _ in pieces(0, n, delay)]
    run = train(
        estimator, tmp_path / "rows.parquet", target="y", run=tmp_path / "run", client=client
    )
    assert run.metrics["delay"] == delay
    known = np.full(n, np.nan)
    for start, stop in zip(starts, [*starts[1:], n], strict=True):
        known[start:stop] = y[start - 1] if start else np.nan
    error = np.where(np.isnan(known), 0.0, known - y)
    result = run.metrics["baselines"]
    assert result["last_label_by_delay"]["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-9)
    assert result["last_label"]["mae"] == pytest.approx(np.abs(np.diff(y)).sum() / n, rel=1e-9)
    assert f"delay up to {delay:,} rows" in call("describe", tmp_path / "run")[0]
