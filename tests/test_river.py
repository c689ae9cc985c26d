"""river's own checks pass, and what is learned is what the estimator learns of the same rows."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from river import base, checks

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.errors import DataError, ParameterError
from dmondrian.river import RiverClassifier, RiverRegressor

MODELS = {
    "classifier": RiverClassifier(AMFClassifier(n_estimators=2, random_state=0)),
    "regressor": RiverRegressor(AMFRegressor(n_estimators=2, random_state=0)),
}
CASES = [
    pytest.param(name, check, id=f"{name}-{number}-{check.__name__}")
    for name, model in MODELS.items()
    for number, check in enumerate(checks.yield_checks(model))
]


@pytest.mark.parametrize(("name", "check"), CASES)
def test_checks_of_river(name: str, check: Any) -> None:
    check(copy.deepcopy(MODELS[name]))


def test_river_knows_what_they_are() -> None:
    assert isinstance(MODELS["classifier"], base.Classifier)
    assert isinstance(MODELS["regressor"], base.Regressor)


@pytest.mark.parametrize("drift", [None, "follow"])
def test_what_is_learned_is_what_the_estimator_learns(drift: Any) -> None:
    random = np.random.default_rng(0)
    X = random.random((80, 3), dtype=np.float32)
    y = np.where(X[:, 0] > 0.5, "yes", "no")
    estimator = AMFClassifier(n_estimators=2, drift=drift, random_state=0)
    own = RiverClassifier(estimator, classes=["no", "yes"])
    for row, label in zip(X.tolist(), y.tolist(), strict=True):
        own.learn_one(dict(zip("cab", [row[2], row[0], row[1]], strict=True)), label)
    known = AMFClassifier(n_estimators=2, drift=drift, random_state=0)
    known.partial_fit(X, y, classes=["no", "yes"])
    asked = dict(zip("abc", X[7].tolist(), strict=True))
    expected = dict(zip(known.classes_.tolist(), known.predict_proba(X[7:8])[0], strict=True))
    assert own.predict_proba_one(asked) == pytest.approx(expected, rel=1e-14)
    assert own.predict_one(asked) == known.predict(X[7:8])[0]
    assert not hasattr(estimator, "forest_")
    again = pickle.loads(pickle.dumps(own))
    assert again.predict_proba_one(asked) == own.predict_proba_one(asked)


def test_numbers_are_those_of_the_estimator() -> None:
    X = np.random.default_rng(0).random((40, 2), dtype=np.float32)
    own = RiverRegressor(AMFRegressor(n_estimators=2, random_state=0))
    assert own.predict_one({"a": 1.0}) == 0.0
    for row in X.tolist():
        own.learn_one({"a": row[0], "b": row[1]}, row[0])
    known = AMFRegressor(n_estimators=2, random_state=0).partial_fit(X, X[:, 0].astype(float))
    assert own.predict_one({"b": 0.5, "a": 0.25}) == known.predict([[0.25, 0.5]])[0]


def test_labels_need_not_be_named_and_those_that_came_are_answered() -> None:
    model = RiverClassifier(AMFClassifier(n_estimators=2, random_state=0), max_classes=3)
    assert model.predict_proba_one({"a": 1.0}) == {}
    for label in ("x", "y", "x", 7):
        model.learn_one({"a": float(len(str(label)))}, label)
    proba = model.predict_proba_one({"a": 1.0})
    assert list(proba) == ["x", "y", 7]
    assert sum(proba.values()) == pytest.approx(1.0)
    with pytest.raises(DataError, match=r"label 'z' is not among the 3 classes.*max_classes"):
        model.learn_one({"a": 1.0}, "z")
    assert model.predict_proba_one({"a": 1.0}) == proba


def test_features_that_lack_and_that_are_new() -> None:
    model = RiverRegressor(AMFRegressor(n_estimators=1, random_state=0), missing=0.5)
    with pytest.raises(DataError, match="no feature"):
        model.learn_one({}, 1.0)
    model.learn_one({"a": 0.0, "b": 1.0}, 0.0)
    model.learn_one({"a": 1.0, "b": 0.5, "c": 9.0}, 1.0)
    assert model.unknown_features == {"c"}
    assert model.predict_one({"a": 1.0}) == model.predict_one({"a": 1.0, "b": 0.5})
    with pytest.raises(DataError, match=r"features \['b'\] are no numbers"):
        model.learn_one({"a": 1.0, "b": "red"}, 1.0)


def test_no_class_at_all_is_refused() -> None:
    with pytest.raises(ParameterError, match="at least one"):
        RiverClassifier(AMFClassifier(), classes=[])


@pytest.mark.parametrize("name", MODELS)
def test_memory_is_what_the_forest_holds(name: str) -> None:
    model = copy.deepcopy(MODELS[name])
    empty = model._raw_memory_usage
    model.learn_one({"a": 1.0}, 1)
    assert 0 < empty < model._raw_memory_usage < empty + 1_000_000
    held = model._model.forest_.n_bytes
    assert held <= model._raw_memory_usage < held + 1_000


def test_weights_of_classes_are_by_the_labels_that_come() -> None:
    draw = np.random.default_rng(0)
    rows = [{"a": float(a), "b": float(b)} for a, b in draw.random((60, 2))]
    labels = ["no" if row["a"] < 0.6 else "yes" for row in rows]
    own = RiverClassifier(AMFClassifier(2, random_state=0, class_weight={"yes": 3}), max_classes=2)
    other = AMFClassifier(2, random_state=0)
    for row, label in zip(rows, labels, strict=True):
        own.learn_one(row, label)
        code, weight = [labels[0], label].index(label), [3.0 if label == "yes" else 1.0]
        other.partial_fit([[row["a"], row["b"]]], [code], classes=[0, 1], sample_weight=weight)
    known = other.predict_proba([[0.4, 0.4]])[0]
    found = own.predict_proba_one({"a": 0.4, "b": 0.4})
    np.testing.assert_allclose([found[label] for label in dict.fromkeys(labels)], known, rtol=1e-15)
    for given, names, message in (
        ("balanced", None, "only fit knows"),
        ({"maybe": 2}, ["no", "yes"], "not among"),
    ):
        with pytest.raises(ParameterError, match=message):
            RiverClassifier(AMFClassifier(class_weight=given), names)


def test_features_that_a_row_lacks_may_be_missing_values() -> None:
    draw = np.random.default_rng(0)
    X = draw.random((40, 2))
    X[draw.random(X.shape) < 0.3] = np.nan
    X[0] = 0.5
    own = RiverRegressor(AMFRegressor(2, random_state=0, missing_values="encode"), float("nan"))
    known = AMFRegressor(2, random_state=0, missing_values="encode")
    for row in X.tolist():
        given = {name: value for name, value in zip("ab", row, strict=True) if value == value}
        own.learn_one(given, row[0] if row[0] == row[0] else 0.0)
        known.partial_fit([row], [row[0] if row[0] == row[0] else 0.0])
    assert own.predict_one({"b": 0.3}) == known.predict([[np.nan, 0.3]])[0]


def test_monotone_features_are_named() -> None:
    draw = np.random.default_rng(0)
    given: dict[str, Any] = {"n_estimators": 1, "random_state": 0, "drift": "follow"}
    given["experts"] = ("mondrian", "boosted")
    own = RiverRegressor(AMFRegressor(**given, monotonic_cst={"b": -1}))
    known = AMFRegressor(**given, monotonic_cst=[0, -1])
    for a, b in draw.random((20, 2)):
        own.learn_one({"b": b, "a": a}, a - b)
        known.partial_fit([[a, b]], [a - b])
    assert own._model.forest_.parameters.following.monotone == (0, -1)
    assert own.predict_one({"a": 0.5, "b": 0.5}) == known.predict([[0.5, 0.5]])[0]
    assert own.estimator.monotonic_cst == {"b": -1}
    slip = RiverRegressor(AMFRegressor(**given, monotonic_cst={"pryce": 1}))
    with pytest.raises(ParameterError, match="did you mean 'price'"):
        slip.learn_one({"price": 1.0, 7: 2.0}, 0.0)
