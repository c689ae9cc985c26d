"""Members that mix scaled trees are what the design has, row by row."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dmondrian.drift.drift_forest import DriftForest
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from tests.drift.streams import early_births
from tests.reference.drift import ReferenceDriftForest
from tests.reference.drift_by_time import TimedForest
from tests.reference.drift_numbers import ReferenceNumberForest
from tests.reference.scaled import Rows, ScaledMembers, births_until
from tests.reference.test_boosted_members import answers_of_sets
from tests.reference.test_drift_by_time import answers_of_sets as answers_of_sets_in_blocks
from tests.reference.test_drift_by_time import times_of

N = 230


def stream_of_one_column(n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows float32 [N, 3], and classes, float64 [N], that the first column decides upon."""
    X = np.random.default_rng(5).random((N, 3), np.float32)
    return X, np.floor(X[:, 0].astype(np.float64) * (2 * n_classes)) % n_classes


@pytest.fixture
def births(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows before which trees are born."""
    early_births(monkeypatch)
    births = births_until(N, 64, 128)
    assert births == [64, 128]
    return births


def scaled_by_row(
    parameters: ForestParameters, rows: Rows, births: list[int]
) -> list[list[list[float] | None]]:
    """Return what scaled trees that have learned the rows before forecast of each, by member."""
    trees = ScaledMembers(parameters, range(5), rows, births, 128)
    return [[trees.forecast(t, i, x) for i in range(5)] for t, x in enumerate(rows[0])]


@pytest.mark.parametrize(("n_classes", "weighted"), [(2, True), (3, False)])
def test_forecasts_are_those_of_the_reference(
    n_classes: int, weighted: bool, births: list[int]
) -> None:
    X, y = stream_of_one_column(n_classes)
    w = np.random.default_rng(2).choice([1.0, 2.0, 0.5], N) if weighted else np.ones(N)
    parameters = ForestParameters(
        "amf-classifier", 3, n_classes, 11, alpha=0.5 / n_classes, charge_opening=False,
        drift=DriftSettings(5, 7, boosted=True, scaled=True),
    )  # fmt: skip
    forest = DriftForest(parameters, range(5))
    forecasts = forest.forecast_and_learn(X, y, w if weighted else None)
    scaled = scaled_by_row(parameters, (X, y, w), births)
    sets = answers_of_sets(X, y, w, n_classes)
    reference = ReferenceDriftForest(11, 5, 3, n_classes, 0.5 / n_classes, 5, 7, True, True)
    expected = [
        reference.forecast_and_learn(list(x), int(label), float(weight), *others)
        for x, label, weight, *others in zip(X, y, w, sets, scaled, strict=True)
    ]
    np.testing.assert_array_equal(forecasts, expected)
    assert forest.scaled is not None
    assert forest.scaled.forest is not None
    assert forest.scaled.forest.parameters.feature_scales is not None


def test_forecasts_of_numbers_are_those_of_the_reference(births: list[int]) -> None:
    X, classes = stream_of_one_column(10)
    y = 1000.0 + classes + np.random.default_rng(7).normal(0.0, 0.1, size=N)
    y[170] = -4000.0
    w = np.ones(N)
    parameters = ForestParameters(
        "amf-regressor", 3, 0, 11, learning_rate=8.0, charge_opening=False,
        drift=DriftSettings(5, 7, boosted=True, scaled=True),
    )  # fmt: skip
    forest = DriftForest(parameters, range(5))
    forecasts = forest.forecast_and_learn(X, y)
    scaled = scaled_by_row(parameters, (X, y, w), births)
    sets = answers_of_sets(X, y, w, 0)
    reference = ReferenceNumberForest(11, 5, 3, 5, 7, True, True)
    expected = [
        reference.forecast_and_learn(list(x), label, 1.0, *others)
        for x, label, *others in zip(X, y.tolist(), sets, scaled, strict=True)
    ]
    np.testing.assert_allclose(forecasts, expected, rtol=1e-7, atol=1e-20)


@pytest.mark.parametrize(
    ("delay", "n_classes"),
    [(20, 2), (48, 3), (150, 2), (48, 0), ("16", 2), ("16", 0)],
)
def test_forecasts_of_labels_that_come_in_blocks_are_those_of_the_reference(
    delay: int | str, n_classes: int, births: list[int]
) -> None:
    """Trees are born at the ends of blocks: of two births in one the last counts."""
    X, y = stream_of_one_column(n_classes or 10)
    rng = np.random.default_rng(7)
    y = y if n_classes else 1000.0 + y + rng.normal(0.0, 0.1, size=N)
    w, is_timed = rng.choice([1.0, 2.0, 0.5], N), isinstance(delay, str)
    times = times_of(N) if is_timed else np.arange(N, dtype=np.float64)
    settings = DriftSettings.of_delay(delay, boosted=True, scaled=True)
    kind: dict[str, Any] = {"learning_rate": 8.0}
    if n_classes:
        kind = {"alpha": 0.5 / n_classes}
    parameters = ForestParameters(
        "amf-classifier" if n_classes else "amf-regressor", 3, n_classes, 11,
        charge_opening=False, drift=replace(settings, first=5, last=7), **kind,
    )  # fmt: skip
    forest = DriftForest(parameters, range(5))
    found = [
        forest.forecast_and_learn(
            X[a:b], y[a:b], w[a:b], 1 + a % 2, times[a:b] if is_timed else None
        )
        for a, b in itertools.pairwise([0, 1, 90, 101, N])
    ]
    known: Any = ReferenceNumberForest(11, 5, 3, 5, 7, True, True)
    if n_classes:
        known = ReferenceDriftForest(11, 5, 3, n_classes, 0.5 / n_classes, 5, 7, True, True)
    scaled = ScaledMembers(parameters, range(5), (X, y, w), births, 128)
    of_sets = answers_of_sets_in_blocks(X, y, w, n_classes)
    counted = None if is_timed else int(delay)
    reference = TimedForest(known, float(delay), of_sets, scaled.forecast, delay=counted)
    labels = y.astype(int).tolist() if n_classes else y.tolist()
    expected = [
        reference.forecast(list(x), label, float(weight), float(time))
        for x, label, weight, time in zip(X, labels, w, times, strict=True)
    ]
    assert scaled.position > 128
    if n_classes:
        np.testing.assert_array_equal(np.concatenate(found), expected)
    else:
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-7, atol=1e-20)
