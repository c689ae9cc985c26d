"""Members whose trees were frozen for many rows forecast what the trees do, to the last bit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from dmondrian.drift import member
from dmondrian.drift.drift_forest import DriftForest
from dmondrian.ensemble.predictor.predictor import FreezingCost
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from tests.drift.streams import early_births, numbers, switching
from tests.drift.test_drift_forest import parameters as of_classes
from tests.drift.test_numbers import parameters as of_numbers

N, FEW, MANY = 700, 150, 600  # rows learned; asked about at once, for which trees are not, or are
N_MEMBERS = 5  # each kind of feature scales


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few rows show what happens to many."""
    early_births(monkeypatch)
    monkeypatch.setattr(member, "_COST", FreezingCost(200, 8.0))


def learned(n_classes: int, delay: int) -> DriftForest:
    X, y = switching(N, n_classes) if n_classes else numbers(N)
    drift = DriftSettings(5, 8, delay, boosted=True, scaled=True)
    its = of_classes(n_classes, drift=drift) if n_classes else of_numbers(drift=drift)
    forest = DriftForest(its, range(N_MEMBERS))
    forest.update(X, y.astype(np.float64))
    return forest


def is_frozen(forest: DriftForest) -> list[bool]:
    """Return of the permanent trees, the scaled ones, and each member's whether they are frozen."""
    assert forest.scaled is not None
    scaled = forest.scaled.forest
    assert scaled is not None
    kept = [forest.predictor.frozen_cache.kept, scaled.predictor.frozen_cache.kept]
    return [
        one is not None for one in (*kept, *(each._frozen_cache.kept for each in forest.members))
    ]


def by_few(forest: DriftForest, X: np.ndarray) -> np.ndarray:
    """Return forecasts of rows by copies that are asked too seldom to freeze a tree."""
    parts = []
    for start in range(0, len(X), FEW):
        asked = copy.deepcopy(forest)
        parts.append(asked.predict_mixture(X[start : start + FEW]))
        assert not any(is_frozen(asked))
    return np.concatenate(parts)


def later(n: int) -> np.ndarray:
    """Return rows that lie within those learned and far outside, on both sides."""
    rng = np.random.default_rng(9)
    return rng.uniform(-0.5, 1.5, (n, 4)).astype(np.float32)


@pytest.mark.parametrize("delay", [1, 100])
@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_frozen_trees_forecast_what_they_did(n_classes: int, delay: int) -> None:
    forest, X = learned(n_classes, delay), later(MANY)
    expected = by_few(forest, X)
    found = forest.predict_mixture(X)
    assert all(is_frozen(forest))
    assert np.array_equal(found, expected)
    # Threads and single rows ask the same trees.
    assert np.array_equal(forest.predict_mixture(X, n_threads=2), expected)
    assert np.array_equal(forest.predict_mixture(X[7:8]), expected[7:8])


def test_what_is_learned_is_not_answered_by_trees_that_do_not_know_it() -> None:
    forest, X = learned(3, 1), later(MANY)
    asked = copy.deepcopy(forest)
    asked.predict_mixture(X)
    assert all(is_frozen(asked))
    more, labels = switching(40, 3, seed=1)
    forecasts = [one.forecast_and_learn(more, labels.astype(float)) for one in (forest, asked)]
    assert np.array_equal(*forecasts)
    assert not any(is_frozen(asked))
    assert np.array_equal(asked.predict_mixture(X), by_few(forest, X))


def test_memory_of_frozen_trees_counts() -> None:
    forest = learned(2, 1)
    before = forest.members[0].n_bytes
    forest.predict_mixture(later(MANY))
    kept: Any = forest.members[0]._frozen_cache.kept
    assert forest.members[0].n_bytes == before + sum(
        array.nbytes for tree in kept.trees for array in tree
    )


def test_few_rows_between_those_learned_freeze_no_covering_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    forest = learned(2, 1)
    forest.predict_mixture(later(member._COST.least_rows))
    assert not any(each._frozen_cache.kept for each in forest.members)
    forest.predict_mixture(later(member._COST.least_rows))
    assert all(each._frozen_cache.kept for each in forest.members)


def test_the_trees_that_are_asked_are_frozen_and_counted() -> None:
    forest = learned(2, 100)
    X, y = switching(30, 2, seed=1)
    forest.update(X, y.astype(np.float64))
    forest.labels_are_known, before = True, forest.n_bytes
    forest.freeze()
    assert not any(is_frozen(forest))
    assert all(is_frozen(forest.caught_up()))
    assert forest.n_bytes == before + forest.caught_up().n_bytes
