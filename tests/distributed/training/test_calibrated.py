"""Calibration in a run: the exponent of the same forest fitted in one process, to the last bit."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dmondrian
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.merging import merge
from dmondrian.cli.describe import _facts
from dmondrian.data import read_block
from dmondrian.distributed import TrainedRun, evaluate, grow, score
from dmondrian.errors import CheckpointError
from tests.distributed.conftest import ROWS, Fit, Once, digests, forest


def calibration_of(run: TrainedRun | Path) -> dict[str, Any]:
    manifest = Run.open(run.run_url if isinstance(run, TrainedRun) else run).latest()
    assert manifest is not None
    return dict(manifest.metrics["calibration"])


def rows_of(run: TrainedRun) -> tuple[pd.DataFrame, np.ndarray]:
    encoded = [read_block(run.plan, block) for block in run.plan.blocks]
    names, classes = run.plan.schema.feature_names, run.plan.schema.classes
    assert classes is not None
    X = pd.DataFrame(np.concatenate([e.X for e in encoded]), columns=names)
    codes = np.concatenate([e.y for e in encoded if e.y is not None]).astype(int)
    return X, np.array(classes)[codes]


@pytest.fixture
def calibrated(fit: Fit) -> TrainedRun:
    return fit("calibrated", estimator=forest(calibrate=True))


def test_a_run_has_the_exponent_of_one_process(
    calibrated: TrainedRun, undisturbed: TrainedRun
) -> None:
    X, labels = rows_of(calibrated)
    alone = forest(calibrate=True)
    for start in range(0, ROWS, 1300):  # cuts that are no block's
        at = slice(start, start + 1300)
        alone.partial_fit(X[at], labels[at], classes=np.unique(labels))
    shared = calibrated.to_local()
    assert shared.forest_.calibration == alone.forest_.calibration
    assert shared.calibration_exponent_ != 1.0
    assert _facts(calibrated.run_url, False)["calibration_exponent"] == shared.calibration_exponent_
    assert np.array_equal(shared.predict_proba(X), alone.predict_proba(X))
    assert digests(calibrated) == digests(undisturbed)  # the trees know nothing of it
    more = alone.partial_fit(X, labels), shared.partial_fit(X, labels)
    assert more[0].forest_.calibration == more[1].forest_.calibration


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"n_shards": 1}, marks=pytest.mark.thorough),
        pytest.param({"n_shards": 2, "checkpoint_every": "0.01 s"}, marks=pytest.mark.thorough),
        {"n_shards": 6, "window": 1, "checkpoint_every": None},
        pytest.param({"progressive": False}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_shards_and_checkpoints_do_not_change_a_bit(
    fit: Fit, calibrated: TrainedRun, options: dict[str, Any]
) -> None:
    run = fit("other", estimator=forest(calibrate=True), **options)
    assert calibration_of(run) == calibration_of(calibrated)


@pytest.mark.usefixtures("talkative")
def test_a_run_that_was_stopped_goes_on_to_the_same_exponent(
    fit: Fit, calibrated: TrainedRun, tmp_path: Path
) -> None:
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    given: dict[str, Any] = {"estimator": forest(calibrate=True), "checkpoint_every": None}
    given["window"] = 1  # so that it is not at its end before it stops
    with pytest.raises(KeyboardInterrupt, match="run the same command again"):
        fit("stopped", progress=Once(stop), **given)
    assert 500 < Run.open(tmp_path / "stopped").manifests()[0] < ROWS
    run = fit("stopped", **given)
    assert run.summary["resumed_at"] > 0
    assert calibration_of(run) == calibration_of(calibrated)
    assert run.metrics == calibrated.metrics


def test_scores_and_metrics_are_calibrated(
    adult: Path, client: Client, tmp_path: Path, calibrated: TrainedRun, undisturbed: TrainedRun
) -> None:
    X, labels = rows_of(calibrated)
    proba = calibrated.to_local().predict_proba(X)
    score(calibrated.run_url, adult, tmp_path / "out", client=client)
    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    reported = np.concatenate(
        [pq.read_table(file).column("proba_>50K").to_numpy() for file in files]
    )
    assert np.array_equal(reported, proba[:, 1])
    metrics = evaluate(calibrated.run_url, adult, client=client)
    share = proba[np.arange(ROWS), (labels == ">50K").astype(int)]
    assert metrics["log_loss"] == pytest.approx(-np.log(share).mean(), rel=1e-12)
    raw = evaluate(undisturbed.run_url, adult, client=client)
    assert metrics["log_loss"] != raw["log_loss"]
    assert metrics["accuracy"] == raw["accuracy"]
    assert metrics["auc"] == pytest.approx(raw["auc"], abs=1e-9)
    # Rows are forecast with the exponent that was known then, not with the last one.
    assert calibrated.metrics["log_loss"] != undisturbed.metrics["log_loss"]
    assert calibrated.metrics["accuracy"] == undisturbed.metrics["accuracy"]


def test_a_grown_run_keeps_the_exponent_of_its_first_trees(
    calibrated: TrainedRun, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "grown"
    shutil.copytree(calibrated.run_url, folder)
    grow(folder, 8, client=client)
    grown = dmondrian.load(folder)
    assert len(grown.forest_.trees) == 8
    assert grown.forest_.calibration == calibrated.to_local().forest_.calibration


def test_a_merged_run_begins_with_the_mean_of_its_parts(fit: Fit, tmp_path: Path) -> None:
    for name, first, calibrate in (("a", 0, True), ("b", 3, True), ("plain", 3, False)):
        estimator = forest(n_estimators=3, calibrate=calibrate)
        fit(name, estimator=estimator, first_tree=first)
    run, _ = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    merged = dmondrian.load(run.url).forest_.calibration
    parts = [calibration_of(tmp_path / name) for name in "ab"]
    assert parts[0]["slopes"] != parts[1]["slopes"]
    mean = np.mean([part["slopes"] for part in parts], axis=0)
    assert merged.octave == parts[0]["octave"] == parts[1]["octave"]
    assert np.allclose(merged.slopes, mean, rtol=1e-14)
    # It is at its end; of the rows that its parts learned it has no metrics.
    again = fit("merged", estimator=forest(n_estimators=6, calibrate=True))
    assert again.summary["rows"] == 0
    assert not again.metrics
    _, manifest = merge([tmp_path / "a", tmp_path / "plain"], tmp_path / "half")
    assert not manifest.metrics


def test_a_run_of_an_earlier_version_goes_on_as_it_was_begun(fit: Fit) -> None:
    """Its run.json has what was the default then; the same job has another default now."""
    earlier = fit("earlier", estimator=forest())
    assert Run.open(earlier.run_url).run_json["estimator"]["calibrate"] is False
    again = fit("earlier", estimator=forest(calibrate="auto"))
    assert again.summary["rows"] == 0
    assert again.to_local().calibrate is False
    with pytest.raises(CheckpointError, match="calibrate: false there, true here"):
        fit("earlier", estimator=forest(calibrate=True))


def test_a_default_run_has_the_calibration_of_one_process(fit: Fit, tmp_path: Path) -> None:
    run = fit("default", estimator=forest(calibrate="auto"))
    X, labels = rows_of(run)
    alone = forest(calibrate="auto").fit(X, labels)
    assert run.to_local().forest_.calibration == alone.forest_.calibration
    assert "excess" in calibration_of(run)
    for name, first in (("a", 0), ("b", 3)):
        fit(name, estimator=forest(n_estimators=3, calibrate="auto"), first_tree=first)
    merged = dmondrian.load(merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")[0].url)
    parts = [calibration_of(tmp_path / name)["excess"] for name in "ab"]
    assert merged.forest_.calibration.excess == pytest.approx(sum(parts) / 2, rel=1e-14)
