"""The variance factor in a run: that of the same forest fitted in one process, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFRegressor
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.merging import merge
from dmondrian.cli.describe import _facts
from dmondrian.cli.score import metrics_table
from dmondrian.data import read_block
from dmondrian.distributed import TrainedRun, evaluate, score
from tests.distributed.conftest import Fit

TARGET = "hours-per-week"


def forest(**given: object) -> AMFRegressor:
    return AMFRegressor(
        **{"n_estimators": 4, "feature_scales": None, "calibrate": True, "random_state": 2, **given}
    )


@pytest.fixture
def calibrated(fit: Fit) -> TrainedRun:
    return fit("calibrated", estimator=forest(), target=TARGET, n_shards=3)


def rows_of(run: TrainedRun) -> tuple[pd.DataFrame, np.ndarray]:
    encoded = [read_block(run.plan, block) for block in run.plan.blocks]
    y = np.concatenate([e.y for e in encoded if e.y is not None])
    X = np.concatenate([e.X for e in encoded])
    return pd.DataFrame(X, columns=run.plan.schema.feature_names), y


def test_a_run_has_the_factor_of_one_process(calibrated: TrainedRun, fit: Fit) -> None:
    X, y = rows_of(calibrated)
    alone = forest().fit(X[:700], y[:700]).partial_fit(X[700:], y[700:])
    shared = calibrated.to_local()
    assert shared.forest_.calibration == alone.forest_.calibration
    assert shared.variance_factor_ != 1.0
    reported = _facts(calibrated.run_url, False)
    assert reported["variance_factor"] == alone.variance_factor_
    assert reported["calibrated"] == f"variances of the label times {alone.variance_factor_:.3f}"
    other = fit("other", estimator=forest(), target=TARGET, n_shards=1, checkpoint_every=None)
    assert other.to_local().forest_.calibration == alone.forest_.calibration
    assert other.metrics == calibrated.metrics


def test_scores_and_metrics_have_the_deviation(
    calibrated: TrainedRun, adult: Path, client: Client, tmp_path: Path
) -> None:
    X, y = rows_of(calibrated)
    mean, std = calibrated.to_local().predict(X, return_std=True)
    score(calibrated.run_url, adult, tmp_path / "out", client=client)
    table = pq.read_table(tmp_path / "out" / "part-000000.parquet")
    assert table.column_names == ["prediction", "std", "distance"]
    assert np.array_equal(table.column("std").to_numpy(), std)
    assert np.array_equal(table.column("prediction").to_numpy(), mean)
    metrics = evaluate(calibrated.run_url, adult, client=client)
    score_of = (y - mean) / std
    nll = (0.5 * np.log(2.0 * np.pi) + np.log(std) + 0.5 * score_of**2).mean()
    assert metrics["nll"] == pytest.approx(nll, rel=1e-12)
    assert metrics["coverage_90"] == pytest.approx((np.abs(score_of) <= 1.6448536269514722).mean())
    assert "Gaussian log loss" in metrics_table(metrics)
    assert metrics["rmse"] == pytest.approx(np.sqrt(((y - mean) ** 2).mean()), rel=1e-12)


def test_a_merged_run_begins_with_the_mean_of_its_parts(fit: Fit, tmp_path: Path) -> None:
    reported = []
    for name, first in (("a", 0), ("b", 2)):
        fit(name, estimator=forest(n_estimators=2), target=TARGET, first_tree=first)
        manifest = Run.open(tmp_path / name).latest()
        assert manifest is not None
        reported.append(manifest.metrics["calibration"]["squares"])
    _, manifest = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert reported[0] != reported[1]
    assert manifest.metrics["calibration"]["squares"] == pytest.approx(sum(reported) / 2, rel=1e-14)
