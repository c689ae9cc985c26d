"""What the caller compiles before there are workers is all that workers need to train and save."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 600.0  # seconds, for a process that compiles all kernels

SCRIPT = """
import json, sys
import numpy as np
from dmondrian._numba import jit
from dmondrian.checkpoint import encode_forest
from dmondrian.checkpoint.summary import Summary
from dmondrian.distributed.cluster.client import warm
from dmondrian.forest.forest import Forest
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.prequential.forecasts import forecast_and_learn_all

given, calibrates = json.loads(sys.argv[1]), sys.argv[2] == "True"
parameters = ForestParameters(n_features=6, seed=0, **given)
warm(parameters, calibrates)
compiled = {kernel.__qualname__: set(kernel.signatures) for kernel in jit._KERNELS}
rng = np.random.default_rng(0)
X = (rng.random((400, 6)) > 0.5).astype(np.float32)
X[:, 0] = rng.random(400)
y = (X[:, 0] > 0.5).astype(np.float64)
forest = Forest(parameters, [0, 1], calibrate=calibrates)
forest.update(X, y, np.ones(400))
X[:, 1:4] = 0.5
forest.predict_sums(X, n_threads=2)
forecast_and_learn_all(forest, X, y, None, 2, position=400, n_trees=2, samples=calibrates)
encode_forest(*forest.stored())
Summary.of(forest)
print(json.dumps([
    name for kernel in jit._KERNELS
    if set(kernel.signatures) - compiled.get(name := kernel.__qualname__, set())
]))
"""


@pytest.mark.parametrize(
    ("algorithm", "calibrates"),
    [("amf-classifier", False), ("amf-classifier", True), ("amf-regressor", False)],
)
@pytest.mark.thorough(but="amf-classifier-False")
def test_workers_find_all_kernels(algorithm: str, calibrates: bool) -> None:
    given = {"algorithm": algorithm, "n_classes": 2 if algorithm == "amf-classifier" else 0}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(given), str(calibrates)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


FOLLOWING = """
import json, sys
import numpy as np
from dmondrian._numba import jit
from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.checkpoint.summary import Summary
from dmondrian.distributed.cluster.client import warm
from dmondrian.drift.drift_forest import empty_shard, forest_from_state
from dmondrian.ensemble.settings.parameters import ForestParameters

parameters = ForestParameters.from_json(
    ForestParameters("amf-classifier", 6, 2, 0).to_json() | json.loads(sys.argv[1])
)
warm(parameters)
compiled = {kernel.__qualname__: set(kernel.signatures) for kernel in jit._KERNELS}
rng = np.random.default_rng(0)
X = (rng.random((400, 6)) > 0.5).astype(np.float32)
X[:, 0] = rng.random(400)
y = (X[:, 0] > 0.5).astype(np.float64)
shard = empty_shard(parameters, [0, 1])
for w in (np.ones(400), None):
    rows = shard.prepare(X)
    shard.share_and_learn(rows[:333], y[:333], None if w is None else w[:333], n_threads=2)
    shard = forest_from_state(*decode_forest(encode_forest(*shard.stored())))
    X[:, 1:4] = 0.5
Summary.of(shard)
print(json.dumps([
    name for kernel in jit._KERNELS
    if set(kernel.signatures) - compiled.get(name := kernel.__qualname__, set())
]))
"""


@pytest.mark.parametrize("delay", [1, 48])
def test_workers_find_all_kernels_that_follow_the_stream(delay: int) -> None:
    given = {"drift": {"first": 5, "last": 7, "delay": delay}}
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWING, json.dumps(given)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
