"""The kernels give the same bytes compiled, as plain Python, and with bounds checks."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dmondrian import (
    AMFClassifier,
    GeneralizedMondrianForestRegressor,
    OnlineRandomForestClassifier,
    OnlineRandomForestRegressor,
)
from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.boosting.boosting_kernels import BoostingSettings, write_keys
from dmondrian.drift.drift_forest import DriftForest
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.tree.nodes import N_NODES
from tests.drift.streams import switching
from tests.reference.cases import random_case
from tests.reference.kernel import kernel_forest

N_CASES = 40


def digest() -> str:
    """Return a digest of the states and predictions of the first random cases."""
    found = hashlib.sha256()
    for number in range(N_CASES):
        for regression in (False, True):
            case = random_case(number, regression)
            forest = kernel_forest(case, regression, expected_extension=number % 2 == 0)
            header, trees = forest.state()
            found.update(json.dumps(header["trees"]).encode())
            for tree in trees:
                for name in sorted(tree):
                    found.update(tree[name].tobytes())
            found.update(forest.predict_sums(case.X, distance=True).total.tobytes())
            found.update(forest.weighted_depth(case.X).tobytes())
    for options in GENERALIZED:
        found.update(generalized(**options))
    for kind in (OnlineRandomForestClassifier, OnlineRandomForestRegressor):
        found.update(with_a_fringe(kind))
    found.update(row_by_row())
    found.update(following())
    found.update(boosted())
    return found.hexdigest()


def following() -> bytes:
    """Return forecasts and the state of a small forest that follows a stream."""
    X, y = switching(140, n_classes=3)
    w = np.random.default_rng(0).choice([0.5, 1.0, 2.0], len(y))
    drift = DriftSettings(5, 6)
    settings = ForestParameters(
        "amf-classifier", 4, 3, 5, alpha=0.2, charge_opening=False, drift=drift
    )
    forest = DriftForest(settings, range(2))
    reported = forest.forecast_and_learn(X, y.astype(float), w)
    header, trees = forest.state()
    arrays = [tree[name].tobytes() for tree in trees for name in sorted(tree)]
    return b"".join([reported.tobytes(), json.dumps(header).encode(), *arrays])


def boosted() -> bytes:
    """Return the trees and answers of small boosted sets, and the keys of rows."""
    found = []
    for n_classes in (2, 3):
        X, y = switching(50, n_classes)
        w = np.random.default_rng(0).choice([0.5, 1.0, 2.0], 50)
        fitted = BoostedSet.fit(
            X, y.astype(float), w, n_classes, BoostingSettings(2, 4, 0.3, 1.0, 2, 0.01, 1.0)
        )
        assert fitted.trees.n_splits.any()
        found += [part.tobytes() for part in (*fitted.trees, fitted.answer(X))]
    keys = np.empty(5, np.uint64)
    write_keys(np.uint64(3), np.arange(5), keys)
    return b"".join([*found, keys.tobytes()])


GENERALIZED: list[dict[str, Any]] = [
    {"loss": "quantile", "quantile": [0.1, 0.6], "max_rows_per_leaf": 6, "lifetime": 3.0},
    {"loss": "huber", "lifetime": "prequential", "max_rows_per_leaf": 6, "domain": "cube"},
    {"loss": "poisson", "lifetime": "penalized"},
    {"loss": "geometric", "lifetime": None, "aggregation": "aggregate", "bound": 2.0,
     "learning_rate": 0.5},
]  # fmt: skip


def generalized(**options: Any) -> bytes:
    """Return the statistics of a small generalised forest, and what it predicts."""
    rng = np.random.default_rng(0)
    X, y = rng.random((40, 2)).astype(np.float32), np.minimum(rng.poisson(0.7, 40), 1.0)
    forest = GeneralizedMondrianForestRegressor(2, random_state=0, **options).fit(X, y)
    trees = forest.forest_.state()[1]
    return b"".join(tree["stat"].tobytes() for tree in trees) + forest.predict_link(X).tobytes()


def with_a_fringe(kind: Any) -> bytes:
    """Return the arrays of a small online random forest, some of whose leaves wait."""
    rng = np.random.default_rng(0)
    X, w = rng.random((200, 2)).astype(np.float32), rng.integers(0, 3, 200)
    how = {"max_fringe": 3, "min_samples_leaf": 1.0, "min_gain": 0.0, "random_state": 0}
    forest = kind(2, n_thresholds=3, **how).fit(X, X[:, 0] + X[:, 1] > 1.0, sample_weight=w)
    trees = forest.forest_.state()[1]
    assert all((tree["fringe"] < (tree["left"] < 0)).any() for tree in trees)
    return b"".join(tree[name].tobytes() for tree in trees for name in sorted(tree))


def row_by_row() -> bytes:
    """Return what a forest predicts of rows that come alone, each before it is learned."""
    rng = np.random.default_rng(0)
    X, y = rng.random((140, 3)).astype(np.float32), rng.integers(0, 2, 140)
    how = {"feature_scales": None, "alpha": 0.5, "charge_opening": True, "random_state": 0}
    forest = AMFClassifier(2, **how).partial_fit(X[:100], y[:100], classes=[0, 1])
    reported = []
    for r in range(100, 140):  # while they fill their arrays
        reported.append(forest.predict_proba(X[r : r + 1]))
        forest.partial_fit(X[r : r + 1], y[r : r + 1])
    shares = [tree.head_i[N_NODES] / len(tree.i) for tree in forest.forest_.trees]
    assert max(shares) > 0.5
    return np.concatenate(reported).tobytes()


# NumPy checks the bounds in plain Python. With bounds checks all is compiled anew, for minutes.
FLAGS = ["NUMBA_DISABLE_JIT", pytest.param("NUMBA_BOUNDSCHECK", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.thorough
def test_same_bytes_under_the_flag(flag: str) -> None:
    program = "from tests.reference.test_plain_python import digest; print(digest())"
    answer = subprocess.run(
        # Plain Python warns where 64-bit products wrap around, as they must.
        [sys.executable, "-W", "ignore:overflow encountered:RuntimeWarning", "-c", program],
        env={**os.environ, flag: "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == digest()
