"""Members that mix boosted sets are what the design has, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dmondrian.drift.drift_forest import DriftForest
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from tests.reference.boosting import births_until, sets_of
from tests.reference.drift import ReferenceDriftForest
from tests.reference.drift_numbers import ReferenceNumberForest
from tests.reference.test_drift import stream


def answers_of_sets(
    X: np.ndarray, y: np.ndarray, w: np.ndarray, n_classes: int, monotone: Sequence[int] = ()
) -> list[list[float] | None]:
    """Return what the set answers each row that is born last before it; None of none."""
    births, n = births_until(len(y)), len(y)
    assert births == [64, 80, 96, 112, 128, 160, 192, 224]
    answers: list[list[float] | None] = [None] * n
    for known, birth, end in zip(
        sets_of(births, X, y, w, n_classes, monotone), births, [*births[1:], n], strict=True
    ):
        answers[birth:end] = known.answer(X[birth:end]).tolist()
    return answers


@pytest.mark.parametrize(("n_classes", "weighted"), [(2, True), (3, False)])
def test_forecasts_are_those_of_the_reference(n_classes: int, weighted: bool) -> None:
    n = 230
    X, y = stream(n, n_classes, 5)
    w = np.random.default_rng(2).choice([1.0, 2.0, 0.5], n) if weighted else np.ones(n)
    parameters = ForestParameters(
        "amf-classifier", 3, n_classes, 11, alpha=0.5 / n_classes, charge_opening=False,
        drift=DriftSettings(5, 7, boosted=True),
    )  # fmt: skip
    forest = DriftForest(parameters, range(5))
    forecasts = forest.forecast_and_learn(X, y, w if weighted else None)
    answers = answers_of_sets(X, y, w, n_classes)
    reference = ReferenceDriftForest(11, 5, 3, n_classes, 0.5 / n_classes, 5, 7, True)
    expected = [
        reference.forecast_and_learn(list(x), int(label), float(weight), answer)
        for x, label, weight, answer in zip(X, y, w, answers, strict=True)
    ]
    np.testing.assert_array_equal(forecasts, expected)


def test_monotone_forecasts_are_those_of_the_reference() -> None:
    """Labels are turned round amid the stream, so that weights of sets are 0 for some rows."""
    n = 230
    X, y = stream(n, 2, 5)
    y = np.where(np.arange(n) < 130, y, 1 - y)
    parameters = ForestParameters(
        "amf-classifier", 3, 2, 11, alpha=0.25, charge_opening=False,
        drift=DriftSettings(5, 7, boosted=True, monotone=(1, 0, -1)),
    )  # fmt: skip
    forest = DriftForest(parameters, range(5))
    forecasts, weights = np.empty((n, 2)), []
    for i in range(0, n, 5):
        forecasts[i : i + 5] = forest.forecast_and_learn(X[i : i + 5], y[i : i + 5], None)
        weights += [member.mixer.weights.inputs[:3, -1].copy() for member in forest.members]
    answers = answers_of_sets(X, y, np.ones(n), 2, (1, 0, -1))
    reference = ReferenceDriftForest(11, 5, 3, 2, 0.25, 5, 7, True, monotone=(0, 2))
    expected = [
        reference.forecast_and_learn(list(x), int(label), 1.0, answer)
        for x, label, answer in zip(X, y, answers, strict=True)
    ]
    np.testing.assert_array_equal(forecasts, expected)
    assert min(map(min, weights)) == 0.0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.thorough(but="True")
def test_forecasts_of_numbers_are_those_of_the_reference(weighted: bool) -> None:
    n = 230
    X, classes = stream(n, 20, 5)
    y = 1000.0 + classes + np.random.default_rng(7).normal(size=n)
    y[170] = -4000.0
    w = np.random.default_rng(2).choice([1.0, 2.0, 0.5], n) if weighted else np.ones(n)
    parameters = ForestParameters(
        "amf-regressor", 3, 0, 11, learning_rate=8.0, charge_opening=False,
        drift=DriftSettings(5, 7, boosted=True),
    )  # fmt: skip
    forest = DriftForest(parameters, range(5))
    forecasts = forest.forecast_and_learn(X, y, w if weighted else None)
    answers = answers_of_sets(X, y, w, 0)
    reference = ReferenceNumberForest(11, 5, 3, 5, 7, True)
    expected = [
        reference.forecast_and_learn(list(x), label, float(weight), answer)
        for x, label, weight, answer in zip(X, y.tolist(), w, answers, strict=True)
    ]
    np.testing.assert_allclose(forecasts, expected, rtol=1e-7, atol=1e-20)
    for member, known in zip(forest.members, reference.members, strict=True):
        np.testing.assert_allclose(member.mixer.weights.experts, known.mixer.outer, rtol=1e-6)
