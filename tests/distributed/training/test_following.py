"""Forests that follow the stream, on a cluster: the bytes of one process, whatever happens."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier, load
from dmondrian.checkpoint import Run
from dmondrian.drift.drift_forest import DriftForest
from tests.distributed.conftest import ROWS, Fit
from tests.distributed.training.test_generalized import rows_of


def following(n_estimators: int = 5, delay: int = 1, **others: Any) -> AMFClassifier:
    return AMFClassifier(n_estimators, drift="follow", delay=delay, random_state=7, **others)


def state_of(model: Any) -> bytes:
    return pickle.dumps(model.forest_.state())


@pytest.mark.parametrize("delay", [1, 64])
def test_a_run_is_the_forest_of_one_process(fit: Fit, delay: int) -> None:
    run = fit("run", estimator=following(delay=delay), checkpoint_every="700 rows")
    X, y = rows_of(run)
    values = X.to_numpy()
    alone = following(delay=delay)
    shared = run.to_local()
    alone.partial_fit(X, shared.classes_[y.astype(int)], classes=shared.classes_)
    assert isinstance(shared.forest_, DriftForest)
    assert state_of(shared) == state_of(alone)
    np.testing.assert_array_equal(shared.predict_proba(X), alone.predict_proba(X))
    # Metrics are those of all forecasts of the guard.
    forest = DriftForest(alone.forest_.parameters, range(5))
    told = forest.forecast_and_learn(values, y)
    losses = -np.log(told[np.arange(ROWS), y.astype(int)])
    assert run.metrics["log_loss"] == pytest.approx(losses.mean(), rel=1e-12)
    assert run.metrics["accuracy"] == (told.argmax(axis=1) == y).mean()
    # Any checkpoint goes on, amid a block too.
    positions = Run.open(run.run_url).manifests()
    assert positions[0] == 700
    before = load(f"{run.run_url}@{positions[0]}")
    assert len(before.forest_.waiting.y) == (700 % delay)
    before.partial_fit(X[700:], before.classes_[y[700:].astype(int)])
    assert state_of(before) == state_of(alone)
