"""Weights and targets at the limits of doubles: learned, stored and restored, or refused whole."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianForestRegressor,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
)
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import DataError, ParameterError
from dmondrian.estimators.single_row import SingleRow
from dmondrian.forest.forest import Forest

N = 40
KINDS: tuple[Any, ...] = (
    AMFClassifier,
    AMFRegressor,
    MondrianForestRegressor,
    lambda *args, **given: GeneralizedMondrianForestRegressor(*args, lifetime=5.0, **given),
)


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random((N, 3), np.float32), rng.integers(0, 2, N).astype(np.float64)


def learned(kind: Any, y: np.ndarray, w: np.ndarray | None) -> Any:
    made = kind(2, random_state=0)
    more = {"classes": [0, 1]} if kind is AMFClassifier else {}
    return made.partial_fit(rows()[0], y, sample_weight=w, **more)


WEIGHTS = {
    "largest": np.full(N, 1e100 / (N + 1)),
    "least": np.full(N, 1e-100),
    "from the least to the largest": 10.0 ** np.linspace(-100.0, 99.9, N),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_within_the_limits_are_learned_and_restored(kind: Any, weights: str) -> None:
    X, y = rows()
    made = learned(kind, y, WEIGHTS[weights])
    expected = made.predict(X)
    assert np.isfinite(expected).all()
    again = pickle.loads(pickle.dumps(made))  # checks what is stored
    assert np.array_equal(again.predict(X), expected)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize(("size", "weight"), [(1e140, 1e8), (1e48, 1e100 / (N + 1))])
def test_targets_within_the_limits_are_learned_and_restored(
    kind: Any, size: float, weight: float
) -> None:
    X, y = rows()
    made = learned(kind, (2.0 * y - 1.0) * size, np.full(N, weight))
    expected = made.predict(X)
    assert np.isfinite(expected).all()
    assert np.array_equal(pickle.loads(pickle.dumps(made)).predict(X), expected)


@pytest.mark.parametrize("kind", [*KINDS, MondrianKernelRegressor])
@pytest.mark.parametrize("w", [1e-101, 1e-300, 5e-324, 1e101, 1e300, 1e308])
def test_weights_beyond_the_limits_change_nothing(kind: Any, w: float) -> None:
    X, y = rows()
    reported = "1e.100|does not change"
    with pytest.raises(ParameterError, match=reported):
        learned(kind, y, np.full(N, w))
    made = learned(kind, y, None)
    before = made.predict(X)
    with pytest.raises(ParameterError, match=reported):
        made.partial_fit(X, y, sample_weight=np.append(np.ones(N - 1), w))
    assert made.forest_.total_weight == N
    assert np.array_equal(made.predict(X), before)


def test_targets_beyond_the_limits_change_nothing() -> None:
    X, y = rows()
    forest = Forest(ForestParameters("amf-regressor", 3, 0, 1), range(2), calibrate=True)
    for _ in range(2):
        for wrong, w in ((1e200, None), (1e140, np.full(N, 1e9)), (-1e60, np.full(N, 1e95))):
            with pytest.raises(DataError, match="scale the target"):
                forest.update(X, np.append(y[1:], wrong), w)
        assert forest.total_weight in (0, N)
        if forest.total_weight == 0:
            forest.update(X, y)
    forest = Forest(ForestParameters("amf-regressor", 3, 0, 1), range(2))
    forest.update(X, np.append(y[1:], 1e100))
    with pytest.raises(DataError, match="scale the target"):  # the largest of those before
        forest.update(X, y, np.full(N, 1e90))
    assert not SingleRow(forest).learn(X[:1], 1e140)


@pytest.mark.parametrize(
    "kind", [AMFClassifier, AMFRegressor, OnlineRandomForestClassifier, MondrianForestRegressor]
)
@pytest.mark.parametrize("missing", [None, pd.NA])
def test_labels_that_are_missing_are_counted_and_refused(kind: Any, missing: Any) -> None:
    X = np.random.default_rng(0).random((20, 2))
    y = np.where(X[:, 0] > 0.5, 1, 0).astype(object)
    forest = kind(2, random_state=0).fit(X, y.astype(int))
    before = pickle.dumps(forest)
    y[[3, 7]] = missing
    for given in (y, y.tolist(), pd.Series(y)):
        for learn in (kind(2).fit, forest.partial_fit):
            with pytest.raises(DataError, match="2 of 20 labels are missing"):
                learn(X, given)
    with pytest.raises(DataError, match="missing"):
        forest.partial_fit(X[:1], y[3:4])
    assert pickle.dumps(forest) == before


def test_labels_of_a_regressor_are_numbers() -> None:
    X = np.random.default_rng(0).random((20, 2))
    texts = np.array([f"{value:.3f}" for value in X[:, 0]])
    for kind in (AMFRegressor, MondrianForestRegressor):
        reported = kind(2, random_state=0).fit(X, texts).predict(X)
        assert np.array_equal(
            reported, kind(2, random_state=0).fit(X, texts.astype(float)).predict(X)
        )
        for other in (np.where(texts > "0.5", "yes", "no"), X[:, 0].astype("M8[s]")):
            with pytest.raises(DataError, match="a regressor learns numbers"):
                kind(2, random_state=0).fit(X, other)


def test_more_nodes_than_there_are_numbers_are_no_bound() -> None:
    X, y = rows()
    made = AMFClassifier(2, random_state=0, max_nodes=10**20).fit(X, y)
    expected = AMFClassifier(2, random_state=0, max_nodes=10**6).fit(X, y)
    assert np.array_equal(made.predict_proba(X), expected.predict_proba(X))
