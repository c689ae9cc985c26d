"""Forests whose labels come by time are what the rule has, row by row."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.drift.drift_forest import DriftForest
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from tests.reference.boosting import births_until, sets_of
from tests.reference.drift import ReferenceDriftForest
from tests.reference.drift_by_time import Answer, TimedForest
from tests.reference.drift_by_time import X as Values
from tests.reference.drift_numbers import ReferenceNumberForest
from tests.reference.test_drift import stream

N, LENGTH = 420, 16.0


def times_of(n: int) -> np.ndarray:
    """Return times with ties, blocks of 1 to 90 rows, gaps of many blocks, and late rows."""
    rng = np.random.default_rng(3)
    steps = np.where(np.arange(n) % 150 < 90, rng.integers(0, 2, n) * 0.25, rng.integers(0, 9, n))
    steps[rng.integers(0, n, 3)] = 1000.0
    times = 5.0 + np.cumsum(steps)
    late = rng.random(n) < 0.05
    return np.where(late, times - rng.integers(0, 100, n), times)


def answers_of_sets(X: np.ndarray, y: np.ndarray, w: np.ndarray, n_classes: int) -> Answer:
    """Return what answers a row as the set does that is born last before a position.

    Positions are ends of blocks, in their order; of the sets born in a block the last is fitted.
    """
    births: list[int] = []
    sets: list[BoostedSet] = []

    def answer(position: int, x: Values) -> list[float] | None:
        newest = births_until(position)[-1:]
        if newest and newest != births[-1:]:
            births.extend(newest)
            sets[:] = sets_of(births, X, y, w, n_classes)
        return sets[-1].answer(np.array([x], np.float32))[0].tolist() if sets else None

    return answer


@pytest.mark.parametrize(
    "cuts",
    [pytest.param([0, N], marks=pytest.mark.thorough), [0, 1, 2, 90, 91, 300, N]],
)
@pytest.mark.parametrize(
    ("n_classes", "weighted", "boosted"),
    [
        pytest.param(2, False, False, marks=pytest.mark.thorough),
        pytest.param(3, True, False, marks=pytest.mark.thorough),
        (2, True, True),
    ],
)
def test_forecasts_and_weights_are_those_of_the_reference(
    n_classes: int, weighted: bool, boosted: bool, cuts: list[int]
) -> None:
    X, y = stream(N, n_classes, 5)
    w = np.random.default_rng(2).choice([1.0, 2.0, 0.5, 20.0], N) if weighted else np.ones(N)
    times = times_of(N)
    parameters = ForestParameters(
        "amf-classifier", 3, n_classes, 11, alpha=0.5 / n_classes, charge_opening=False,
        drift=DriftSettings(5, 7, boosted=boosted, period="16"),
    )  # fmt: skip
    forest = DriftForest(parameters, range(5))
    found = [
        forest.forecast_and_learn(
            X[a:b], y[a:b], w[a:b] if weighted else None, n_threads=1 + a % 2, times=times[a:b]
        )
        for a, b in itertools.pairwise(cuts)
    ]
    of_sets = answers_of_sets(X, y, w, n_classes) if boosted else None
    known = ReferenceDriftForest(11, 5, 3, n_classes, 0.5 / n_classes, 5, 7, boosted)
    reference = TimedForest(known, LENGTH, of_sets)
    expected = [
        reference.forecast(list(x), int(label), float(weight), float(time))
        for x, label, weight, time in zip(X, y, w, times, strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(found), expected)
    clock = forest.blocks.clock
    assert clock == forest.guard.blocks.clock
    assert (clock.block, clock.n_last_full, clock.n_late) == (
        reference.newest, reference.n_before, reference.n_late,
    )  # fmt: skip
    assert clock.n_rows == len(reference.rows[reference.newest]) == len(forest.waiting.y)
    assert clock.n_late > 5
    for member, other in zip(forest.members, known.members, strict=True):
        np.testing.assert_array_equal(member.mixer.weights.experts, other.mixer.outer)
        for e, takes in enumerate(other.mixer.takes):
            np.testing.assert_array_equal(
                member.mixer.weights.inputs[e, takes], other.mixer.weights[e]
            )


@pytest.mark.parametrize(
    ("cuts", "boosted"),
    [
        pytest.param([0, N], False, marks=pytest.mark.thorough),
        pytest.param([0, 1, 2, 90, 91, 300, N], False, marks=pytest.mark.thorough),
        ([0, 1, 2, 90, 91, 300, N], True),
    ],
)
def test_numbers_are_those_of_the_reference(cuts: list[int], boosted: bool) -> None:
    X, classes = stream(N, 20, 5)
    y = 1000.0 + classes + np.random.default_rng(7).normal(size=N)
    w, times = np.random.default_rng(2).choice([1.0, 2.0, 0.5], N), times_of(N)
    parameters = ForestParameters(
        "amf-regressor", 3, 0, 11, learning_rate=8.0, charge_opening=False,
        drift=DriftSettings(5, 7, boosted=boosted, period="16"),
    )  # fmt: skip
    forest = DriftForest(parameters, range(5))
    found = [
        forest.forecast_and_learn(X[a:b], y[a:b], w[a:b], 1 + a % 2, times[a:b])
        for a, b in itertools.pairwise(cuts)
    ]
    of_sets = answers_of_sets(X, y, w, 0) if boosted else None
    reference = TimedForest(ReferenceNumberForest(11, 5, 3, 5, 7, boosted), LENGTH, of_sets)
    expected = [
        reference.forecast(list(x), label, float(weight), float(time))
        for x, label, weight, time in zip(X, y.tolist(), w, times, strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-7, atol=1e-20)
    for member, other in zip(forest.members, reference.forest.members, strict=True):
        np.testing.assert_allclose(member.mixer.weights.experts, other.mixer.outer, rtol=1e-6)
