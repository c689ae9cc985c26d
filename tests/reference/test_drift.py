"""Forests that follow a stream are what the design has, tree by tree and row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian.drift.drift_forest import DriftForest
from dmondrian.drift.member import Ages
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.tree import nodes
from tests.reference.drift import ReferenceDriftForest


def stream(n: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose labels change what they depend on half-way."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 3)).astype(np.float32)
    X[:, 2] = np.round(X[:, 2] * 4) / 4
    column = np.where(np.arange(n) < n // 2, X[:, 0], 1.0 - X[:, 1])
    y = np.minimum((column * n_classes).astype(int), n_classes - 1)
    y = np.where(rng.random(n) < 0.1, rng.integers(0, n_classes, n), y)
    return X, y.astype(np.float64)


def parameters(n_classes: int, seed: int = 11) -> ForestParameters:
    return ForestParameters(
        "amf-classifier", 3, n_classes, seed, alpha=0.5 / n_classes, charge_opening=False,
        drift=DriftSettings(5, 7),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("n_classes", "weighted"), [pytest.param(2, False, marks=pytest.mark.thorough), (3, True)]
)
def test_forecasts_and_trees_are_those_of_the_reference(n_classes: int, weighted: bool) -> None:
    n = 400
    X, y = stream(n, n_classes, 5)
    w = np.random.default_rng(2).choice([1.0, 2.0, 0.5], n) if weighted else None
    forest = DriftForest(parameters(n_classes), range(5))
    forecasts = forest.forecast_and_learn(X, y, w)
    reference = ReferenceDriftForest(11, 5, 3, n_classes, 0.5 / n_classes, 5, 7)
    weights = np.ones(n) if w is None else w
    expected = [
        reference.forecast_and_learn(list(x), int(label), float(weight))
        for x, label, weight in zip(X, y, weights, strict=True)
    ]
    np.testing.assert_array_equal(forecasts, expected)
    for member, known in zip(forest.members, reference.members, strict=True):
        alive = {tree.birth: tree for tree in known.trees}
        assert sorted(alive) == sorted(b for b in member.births.tolist() if b >= 0)
        for place, birth in enumerate(member.births.tolist()):
            if birth < 0:
                continue
            arrays, tree = nodes.fields(member.trees[place]), alive[birth]
            assert arrays["feature"].tolist() == [node.feature for node in tree.nodes]
            thresholds = [node.threshold or 0.0 for node in tree.nodes]
            np.testing.assert_array_equal(arrays["threshold"], np.float32(thresholds))
            factors = [node.memory.factors for node in tree.nodes]
            np.testing.assert_array_equal(arrays["stat"][:, -3:], factors)
            odds = [tree.odds.get(node.number, (1.0, 0)) for node in tree.nodes]
            np.testing.assert_array_equal(arrays["odds"], [m for m, _ in odds])
            np.testing.assert_array_equal(arrays["odds_exponent"], [k for _, k in odds])
            np.testing.assert_array_equal(member.scales[place], tree.scales)
        np.testing.assert_array_equal(member.levels, known.levels)
        np.testing.assert_array_equal(member.mixer.weights.experts, known.mixer.outer)
        for e, takes in enumerate(known.mixer.takes):
            np.testing.assert_array_equal(
                member.mixer.weights.inputs[e, takes], known.mixer.weights[e]
            )


@pytest.mark.parametrize("ages", [Ages(5, 5), Ages(5, 7), Ages(6, 9)])
def test_one_tree_is_in_each_octave_of_age(ages: Ages) -> None:
    step = 1 << ages.first
    alive: dict[int, int] = {}  # birth to death
    for t in range(6 << ages.last):
        if t % step == 0:
            nu = ages.last
            while t % (1 << nu):
                nu -= 1
            alive = {b: end for b, end in alive.items() if end > t} | {t: t + (2 << nu)}
        found = ages.births_before(t + 1)
        assert sorted(found[found >= 0]) == sorted(alive)
        assert len(alive) <= ages.n_places
        for k in range(ages.first, ages.last + 1):
            n = sum(1 << k <= t - birth < 2 << k for birth in alive)
            assert n == (t >= 1 << k)


@given(st.integers(1, 2**50), st.integers(0, 2**49))
def test_some_tree_has_seen_a_quarter_of_the_rows_since_any_start(t: int, start: int) -> None:
    ages = Ages()
    start = min(start, t)
    if t - start < 4 << ages.first:
        return
    births = ages.births_before(t)
    late = [t - birth for birth in births.tolist() if birth >= start]
    assert max(late) >= min((t - start) // 4, 1 << ages.last)
