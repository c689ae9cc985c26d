"""One row at a time: the short way refuses what the general one does, and leaves odd rows to it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.errors import DataError, ParameterError
from tests.estimators.test_amf import same_forest
from tests.estimators.test_single_row import FIXED, RATE, D, N, ask, begun, labels, rows


@pytest.mark.parametrize("kind", [AMFClassifier, AMFRegressor])
def test_what_is_refused_is_refused_of_a_row_alone(kind: Any) -> None:
    X = np.random.default_rng(0).random((80, 3)).astype(np.float32)
    settings = FIXED if kind is AMFClassifier else RATE
    forest = begun(kind(2, **settings), X, labels(kind(), np.hstack([X, X])))
    y = np.array(["no"]) if kind is AMFClassifier else np.ones(1)
    forest.partial_fit(X[:1], y)
    before = copy.deepcopy(forest)
    nan, far, wide = X[:1].copy(), X[:1].astype(np.float64), np.ones((1, 4), np.float32)
    nan[0, 1], far[0, 2] = np.nan, 1e300
    bad_labels: list[Any] = [y[:0], np.array([["no", "no"]])]
    if kind is AMFClassifier:
        bad_labels += [np.array(["never"]), np.array([1]), np.array([np.nan])]
    else:
        bad_labels += [np.array([np.nan]), np.array([np.inf]), np.array([1e150])]
        bad_labels += [np.array(["word"]), np.array([1j])]
    for row in (nan, far, wide, X[:1, :2], X[0], X[:0], nan.tolist(), -np.inf * X[:1]):
        with pytest.raises(ValueError):
            forest.partial_fit(row, y)
        with pytest.raises(ValueError):
            ask(forest, row)
    for label in bad_labels:
        with pytest.raises((ValueError, TypeError)):
            forest.partial_fit(X[:1], label)
    assert same_forest(forest, before)
    forest.partial_fit(X[:1], y)
    before.partial_fit(X[:1].tolist(), y.tolist())
    assert same_forest(forest, before)


def test_rows_outside_the_cube_and_beyond_float32_are_refused() -> None:
    X = np.random.default_rng(0).random((80, 2)).astype(np.float32)
    y = (X[:, 0] > 0.5).astype(int)
    on_cube = begun(AMFClassifier(2, **FIXED, domain="cube"), X, y).partial_fit(X[:1], y[:1])
    scaled = begun(AMFClassifier(2, **{**FIXED, "feature_scales": [1.0, 1e30]}), X, y)
    for forest, value, error in ((on_cube, 1.5, DataError), (scaled, 1e10, ParameterError)):
        ask(forest, X[:1])
        wrong = np.full((1, 2), value, np.float32)
        for call in (lambda w, f=forest: f.partial_fit(w, y[:1]), lambda w, f=forest: ask(f, w)):
            with pytest.raises(error):
                call(wrong)


def test_names_weights_and_classes_are_looked_at() -> None:
    frames = pytest.importorskip("pandas")
    X = np.random.default_rng(0).random((80, 2)).astype(np.float32)
    y = (X[:, 0] > 0.5).astype(int)
    named = frames.DataFrame(X, columns=["a", "b"])
    forest = begun(AMFClassifier(2, **FIXED), named, y)
    with pytest.warns(UserWarning, match="feature names"):
        forest.partial_fit(X[:1], y[:1])
    with pytest.warns(UserWarning, match="feature names"):
        forest.predict_proba(X[:1])
    with pytest.raises(ValueError, match="feature names"):
        forest.partial_fit(named.iloc[:1, ::-1], y[:1])
    plain = begun(AMFClassifier(2, **FIXED), X, y).partial_fit(X[:1], y[:1])
    with pytest.raises(ValueError, match="classes"):
        plain.partial_fit(X[:1], y[:1], classes=[0, 1, 2])
    weight = plain.forest_.total_weight
    plain.partial_fit(X[:1], y[:1], sample_weight=[2.5]).partial_fit(X[:1], y[:1], None, [0.5])
    assert plain.forest_.total_weight == weight + 3.0


def test_classes_reported_again_take_no_longer_way(monkeypatch: pytest.MonkeyPatch) -> None:
    X = rows()
    y = np.where(X[:, 0] > 0.5, "yes", "no")
    forest = begun(AMFClassifier(2, **FIXED), X, y)
    other = begun(AMFClassifier(2, **FIXED), X, y).partial_fit(X[:3], y[:3])

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the long way")

    with monkeypatch.context() as patch:
        patch.setattr("dmondrian.forest.forest.Forest.update", fail)
        forest.partial_fit(X[:1], y[:1], classes=["no", "yes"])
        forest.partial_fit(X[1:2], y[1:2], classes=np.array(["no", "yes"]))
        forest.partial_fit(X[2:3], y[2:3], classes=forest.classes_)
    assert same_forest(forest, other)
    forest.partial_fit(X[:1], y[:1], classes=["yes", "no"])
    forest.partial_fit(X[:1], y[:1], classes=None)
    for wrong in (["no"], [], ["no", "yes", "maybe"], [0, 1], [X[0], X[1]]):
        with pytest.raises(ValueError):
            forest.partial_fit(X[:1], y[:1], classes=wrong)
    numbers = begun(AMFClassifier(2, **FIXED), X, (X[:, 0] > 0.5).astype(int))
    of_arrays = [np.array([0]), np.array([1])]
    for odd in ([0j, 1 + 0j], np.array([0, 1], complex), np.array([0, 1], object), of_arrays):
        with pytest.raises((ValueError, TypeError)):
            numbers.partial_fit(X[:1], np.array([0]), classes=odd)
    regressor = begun(AMFRegressor(2, **RATE), X, X[:, 0])
    for wrong in ([], None):
        with pytest.raises(TypeError):
            regressor.partial_fit(X[:1], X[:1, 0], classes=wrong)
    assert forest.forest_.total_weight == N + 5
    assert regressor.forest_.total_weight == N


def test_a_row_that_cannot_be_kept_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees and the rows from which settings will be chosen know the same."""
    X = rows()
    y = (X[:, 0] > 0.5).astype(int)
    forest = begun(AMFClassifier(2, calibrate=False), X, y)
    other = begun(AMFClassifier(2, calibrate=False), X, y)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("dmondrian.tuning.auto_settings.Warmup.after_row", fail)
        with pytest.raises(MemoryError):
            forest.partial_fit(X[:1], y[:1])
    tiny = X[:1].astype(np.float64)
    tiny[0, 0] = 1e-42
    with np.errstate(all="raise"):
        forest.partial_fit(tiny, y[:1]).partial_fit(X[1:2], y[1:2])
    other.partial_fit(np.concatenate([tiny.astype(np.float32), X[1:2]]), y[:2])
    assert same_forest(forest, other)
    assert forest.forest_.state()[0] == other.forest_.state()[0]


def test_rows_that_labels_forbid_are_refused_alone_too() -> None:
    X = rows()
    forest = begun(AMFRegressor(2), X[:2], np.array([1e140, 0.0]))
    forest.partial_fit(X[2:3], np.zeros(1), [1e10 - 2.5])
    for _ in range(3):
        with pytest.raises(DataError):
            forest.partial_fit(X[3:4], np.zeros(1))


def test_parameters_that_change_are_noticed() -> None:
    X = rows()
    y = (X[:, 0] > 0.5).astype(int)
    scales = np.ones(D)
    for given, changes in (
        (FIXED, {"alpha": 0.5}),
        (FIXED, {"feature_scales": scales}),
        (FIXED, {"feature_scales": [1.0]}),
        ({**FIXED, "feature_scales": scales}, {"feature_scales": None}),
        ({**FIXED, "feature_scales": scales}, {"n_estimators": 3}),
    ):
        forest = begun(AMFClassifier(2, **given), X, y).partial_fit(X[:1], y[:1])
        was = forest.get_params()
        forest.set_params(**changes)
        with pytest.raises(ParameterError, match="parameters changed"):
            forest.partial_fit(X[:1], y[:1])
        forest.set_params(**{name: was[name] for name in changes}, n_jobs=2, random_state=9)
        forest.partial_fit(X[:1], y[:1])
    mine = np.ones(D)
    forest = begun(AMFClassifier(2, **FIXED).set_params(feature_scales=mine), X, y)
    forest.partial_fit(X[:1], y[:1]).feature_scales[2] = 2.0  # in its place
    with pytest.raises(ParameterError, match="parameters changed"):
        forest.partial_fit(X[:1], y[:1])
    forest = begun(AMFClassifier(2, **FIXED), X * 2, y).partial_fit(X[:1], y[:1])
    forest.predict_proba(X[:1])
    forest.set_params(domain="cube")
    with pytest.raises(DataError, match="cube"):
        forest.predict_proba(X[:1] * 2)
