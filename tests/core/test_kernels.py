"""What kernels are compiled for, and how many of them."""

from __future__ import annotations

import numpy as np
import pytest
from numba import config

from dmondrian.core.loops import predict, update
from dmondrian.forest import Forest
from dmondrian.parameters import ForestParameters


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_weights_and_ways_to_speak_need_no_kernels_of_their_own() -> None:
    X, y = np.zeros((2, 3), np.float32), np.zeros(2)

    def learn(aggregation: str, weights: np.ndarray | None) -> int:
        given = {"algorithm": "mondrian-forest-classifier", "n_features": 3, "n_classes": 2}
        parameters = ForestParameters(**given, seed=1, aggregation=aggregation)
        Forest(parameters, [0]).update(X, y, weights)
        return len(update.signatures)

    first = learn("mean", None)
    assert learn("mean", np.ones(2)) == first
    assert learn("vote", None) == first
    assert learn("hierarchy", None) == first


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.parametrize("domain", ["range", "cube"])
def test_a_row_alone_needs_no_kernels_of_its_own(domain: str) -> None:
    X = np.random.default_rng(0).random((20, 5)).astype(np.float32)
    X[:, 1:] = X[:, 1:] > 0.5  # boxes write such features as bits
    given = {"algorithm": "amf-classifier", "n_features": 5, "n_classes": 2, "domain": domain}
    forest = Forest(ForestParameters(**given, seed=1), [0, 1])
    forest.update(X, X[:, 1].astype(np.float64))
    forest.predict_sums(X)
    before = [*update.signatures, *predict.signatures]
    for row in (X[:1], X[:1].astype(np.float64)):
        assert forest.mean_of_row(row) is not None
        assert forest.learn_row(row, 1.0)
    assert [*update.signatures, *predict.signatures] == before
