"""Forests of numbers that follow a stream are what the design has, tree by tree, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian.drift.drift_forest import DriftForest
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.tree import nodes
from tests.reference.drift_numbers import ReferenceNumberForest
from tests.reference.test_drift import stream


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted rows"])
@pytest.mark.thorough(but="")  # weighted rows take thrice as long, and come by time elsewhere
def test_forecasts_and_trees_are_those_of_the_reference(weighted: bool) -> None:
    n = 300
    X, classes = stream(n, 20, 5)
    y = 1000.0 + classes + np.random.default_rng(7).normal(size=n)
    y[170] = -4000.0
    w = np.random.default_rng(2).choice([1.0, 2.0, 0.5, 20.0], n) if weighted else None
    parameters = ForestParameters(
        "amf-regressor", 3, 0, 11, learning_rate=8.0, charge_opening=False,
        drift=DriftSettings(5, 7),
    )  # fmt: skip
    forest = DriftForest(parameters, range(5))
    result = forest.forecast_and_learn(X, y, w)
    reference = ReferenceNumberForest(11, 5, 3, 5, 7)
    weights = np.ones(n) if w is None else w
    expected = [
        reference.forecast_and_learn(list(x), label, float(weight))
        for x, label, weight in zip(X, y.tolist(), weights, strict=True)
    ]
    np.testing.assert_allclose(result, expected, rtol=1e-7, atol=1e-20)
    for member, known in zip(forest.members, reference.members, strict=True):
        alive = {tree.birth: tree for tree in known.trees}
        assert sorted(alive) == sorted(b for b in member.births.tolist() if b >= 0)
        for place, birth in enumerate(member.births.tolist()):
            if birth < 0:
                continue
            arrays, tree = nodes.fields(member.trees[place]), alive[birth]
            assert arrays["feature"].tolist() == [node.feature for node in tree.nodes]
            thresholds = [node.threshold or 0.0 for node in tree.nodes]
            np.testing.assert_allclose(arrays["threshold"], thresholds, rtol=1e-6)
            of_memories = [node.memory.weights for node in tree.nodes]
            np.testing.assert_allclose(arrays["stat"][:, -3:], of_memories, rtol=1e-6)
            np.testing.assert_allclose(member.scales[place], tree.scales, rtol=1e-6)
        np.testing.assert_allclose(member.levels, known.levels, rtol=1e-7, atol=1e-11)
        np.testing.assert_allclose(member.mixer.weights.experts, known.mixer.outer, rtol=1e-6)
