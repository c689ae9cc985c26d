"""Boosted sets as experts of forests that follow a stream: their face, and where they end."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dmondrian
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.drift.drift_forest import DriftForest, forest_from_state
from dmondrian.errors import CorruptError, DataError, ParameterError
from tests.drift.streams import numbers, switching

BOTH = ("mondrian", "boosted")


def together(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of 40 columns, two of which matter, and only together."""
    rng = np.random.default_rng(0)
    X = rng.random((n, 40)).astype(np.float32)
    return X, ((X[:, 3] > 0.5) ^ (X[:, 8] > 0.5)).astype(int)


def model(**settings: Any) -> AMFClassifier:
    return AMFClassifier(3, **{"drift": "follow", "experts": BOTH, "random_state": 0, **settings})


def of_numbers(**settings: Any) -> AMFRegressor:
    return AMFRegressor(3, **{"drift": "follow", "experts": BOTH, "random_state": 0, **settings})


def test_parameters_are_as_given() -> None:
    assert AMFClassifier().get_params()["experts"] == ("mondrian",)
    for given in (BOTH, list(BOTH)):
        asked = model(experts=given)
        assert clone(asked).get_params() == asked.get_params()
        assert asked.fit(*together(70)).get_params()["experts"] == given


def test_it_is_worth_most_where_columns_act_together() -> None:
    X, y = together(1500)
    plain = model(experts=("mondrian",)).fit(X[:1000], y[:1000])
    boosted = model().fit(X[:1000], y[:1000])
    assert boosted.score(X[1000:], y[1000:]) > 0.95
    assert plain.score(X[1000:], y[1000:]) < 0.7
    assert boosted.age_weights_.shape == (13,)
    assert boosted.age_weights_[-1] > 0.5


def test_permanent_and_covering_trees_are_those_without_boosted_sets() -> None:
    X, y = switching(300)
    plain, boosted = model(experts=("mondrian",)).fit(X, y), model().fit(X, y)
    (_, ours), (_, theirs) = boosted.forest_.state(), plain.forest_.state()
    assert pickle.dumps(ours) == pickle.dumps(theirs)
    assert not np.array_equal(boosted.predict_proba(X), plain.predict_proba(X))


def test_a_forest_without_boosted_sets_is_stored_as_before() -> None:
    header, _ = model(experts=("mondrian",)).fit(*switching(100)).forest_.state()
    assert header["drift"]["version"] == 3
    assert "boosted" not in header["drift"]
    assert set(header["parameters"]["drift"]) == {"first", "last", "delay"}


@pytest.mark.parametrize("delay", [1, 50])
def test_it_is_a_function_of_the_rows_in_order(tmp_path: Path, delay: int) -> None:
    X, y = switching(330, n_classes=3)
    names = np.array(["a", "b", "c"])
    whole = model(delay=delay, n_jobs=2).partial_fit(X, names[y], classes=names)
    part = model(delay=delay)
    part.partial_fit(X[:1], names[y[:1]], classes=names)
    part.partial_fit(X[1:217], names[y[1:217]])
    part.save(tmp_path / "model")
    others = [pickle.loads(pickle.dumps(part)), copy.deepcopy(part)]
    others.append(dmondrian.load(tmp_path / "model"))
    expected = whole.predict_proba(X)
    for other in others:
        assert tuple(other.experts) == BOTH
        other.partial_fit(X[217:], names[y[217:]])
        np.testing.assert_array_equal(other.predict_proba(X), expected)
        np.testing.assert_array_equal(other.age_weights_, whole.age_weights_)
        assert other.predict(X[:5]).tolist() == whole.predict(X[:5]).tolist()
    part.experts = list(BOTH)
    part.partial_fit(X[217:], names[y[217:]])
    np.testing.assert_array_equal(part.predict_proba(X[0:1]), expected[0:1])
    part.experts = ("mondrian",)
    with pytest.raises(ParameterError, match="parameters changed"):
        part.partial_fit(X, names[y])


def test_one_class_and_one_row_and_none_of_one_class_yet() -> None:
    X, y = switching(120)
    one = model().fit(X, np.zeros(120))
    np.testing.assert_allclose(one.predict_proba(X), 1.0)
    assert one.age_weights_.shape == (12,)
    row = model().fit(X[:1], y[:1])
    assert row.predict_proba(X[:2]).shape == (2, 1)
    late = model().partial_fit(X, np.zeros(120), classes=[0, 1])
    proba = late.predict_proba(X)
    assert (proba[:, 0] > 0.9).all()
    assert (proba[:, 1] > 0.0).all()
    late.partial_fit(X, y)
    assert late.score(X, y) > 0.7


def test_rows_that_are_no_numbers_are_refused_and_nothing_is_learned() -> None:
    X, y = switching(100)
    fitted = model().fit(X, y)
    before = fitted.__getstate__()["forest_"]
    for value in (np.nan, np.inf):
        bad = X.copy()
        bad[50, 1] = value
        with pytest.raises(ValueError, match="contains"):
            fitted.partial_fit(bad, y)
    with pytest.raises(DataError):
        fitted.partial_fit(X, y + 5)
    assert fitted.__getstate__()["forest_"] == before


def test_weights_of_zero_are_as_rows_that_did_not_come() -> None:
    X, y = switching(300)
    w = np.random.default_rng(1).choice([0.0, 1.0, 2.0], 300)
    some = model().fit(X, y, w)
    others = model().fit(X[w > 0], y[w > 0], w[w > 0])
    np.testing.assert_array_equal(some.predict_proba(X), others.predict_proba(X))


def test_an_interrupted_fit_of_a_set_costs_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = switching(200)
    fitted = model().fit(X[:120], y[:120])

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BoostedSet, "fit", stop)
    with pytest.raises(KeyboardInterrupt):
        fitted.partial_fit(X[120:], y[120:])
    monkeypatch.undo()
    n = fitted.forest_.rows_so_far["learned"]
    known = model().fit(X[:n], y[:n]).predict_proba(X)
    np.testing.assert_array_equal(fitted.predict_proba(X), known)
    fitted.partial_fit(X[n:], y[n:])
    expected = model().fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(fitted.predict_proba(X), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drift": None}, 'is of drift="follow"'),
        ({"experts": ()}, "not experts of a forest"),
        ({"experts": ("boosted",)}, "not experts of a forest"),
        ({"experts": ("mondrian", "boosting")}, "not experts of a forest"),
        ({"experts": ["mondrian", "boosted", "boosted"]}, "not experts of a forest"),
        ({"experts": "boosted"}, "experts"),
        ({"experts": None}, "experts"),
    ],
)
def test_other_experts_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(**settings).fit(*switching(80))


def test_what_takes_no_boosted_sets_refuses_them() -> None:
    asked = model()
    asked._check_run()
    with pytest.raises(ParameterError, match="not experts"):
        model(experts=["boosted"])._check_run()
    forest = asked.fit(*switching(80)).forest_
    assert isinstance(forest, DriftForest)
    with pytest.raises(ParameterError, match="cannot be joined"):
        DriftForest.join([forest, forest])


@pytest.mark.parametrize(("n", "delay"), [(1, 1), (100, 1), (190, 100), (40, 100)])
def test_kept_rows_are_stored_as_arrays_beside_a_short_header(n: int, delay: int) -> None:
    X, y = switching(n)
    forest = model(delay=delay).partial_fit(X, y, classes=[0, 1]).forest_
    header, trees, _ = forest.stored()
    plain, own = forest.state()
    n_kept, n_waiting = n // delay * delay, n % delay
    assert len(list(trees)) - len(own) == (n_kept > 0) + (n_waiting > 0)
    if n_kept:
        assert header["drift"]["boosted"]["kept"]["n"] == n_kept
    assert header["drift"]["version"] == (14 if n_waiting else 13)
    for stored in (encode_forest(*forest.stored()), encode_forest(plain, own)):
        read = forest_from_state(*decode_forest(stored))
        assert pickle.dumps(read.state()) == pickle.dumps(forest.state())


def test_damaged_kept_rows_are_refused() -> None:
    header, trees, _ = model().fit(*switching(100)).forest_.stored()
    *others, last = trees
    numbers = last["memory"]
    for n, memory in (
        (99, numbers),
        (0, numbers),
        (True, numbers),
        (100, numbers[:-1]),
        (100, None),
        (100, np.full(len(numbers), np.nan)),
        (100, np.append(numbers[:-1], 0.0)),  # a weight
        (99, numbers[: 99 * 6]),
    ):
        damaged = json.loads(json.dumps(header))
        damaged["drift"]["boosted"]["kept"]["n"] = n
        with pytest.raises(CorruptError):
            forest_from_state(damaged, [*others, {**last, "memory": memory}])
    with pytest.raises(CorruptError):
        forest_from_state(header, others)


def test_a_state_with_boosted_sets_has_them_in_both_places() -> None:
    header, trees = model().fit(*switching(100)).forest_.state()
    assert header["drift"]["version"] == 13
    forest_from_state(json.loads(json.dumps(header)), trees)
    for change in (
        lambda header: header["parameters"]["drift"].pop("boosted"),
        lambda header: header["parameters"]["drift"].update(boosted=False),
        lambda header: header["parameters"]["drift"].update(boosted=1),
        lambda header: header["drift"].pop("boosted"),
        lambda header: header["drift"].update(version=3),
        lambda header: header["drift"].update(boosted=None),
        lambda header: header["drift"]["boosted"].update(set=None),
    ):
        damaged = json.loads(json.dumps(header))
        change(damaged)
        with pytest.raises(CorruptError):
            forest_from_state(damaged, trees)


def test_numbers_are_better_forecast_where_columns_act_together() -> None:
    X, y = together(1500)
    y = 5.0 * y + np.random.default_rng(1).normal(size=1500)
    plain = of_numbers(experts=("mondrian",)).fit(X[:1000], y[:1000])
    boosted = of_numbers().fit(X[:1000], y[:1000])
    assert boosted.score(X[1000:], y[1000:]) > 0.5
    assert plain.score(X[1000:], y[1000:]) < 0.1
    assert boosted.age_weights_.shape == (13,)
    assert boosted.age_weights_[-1] > 0.5
    mean, std = boosted.predict(X[1000:], return_std=True)
    assert 0.8 < (np.abs(mean - y[1000:]) < 1.645 * std).mean() < 0.99


@pytest.mark.parametrize("delay", [1, 50])
def test_forests_of_numbers_are_functions_of_the_rows_in_order(tmp_path: Path, delay: int) -> None:
    X, y = numbers(330)
    w = np.random.default_rng(1).choice([0.0, 1.0, 2.0], 330)
    whole = of_numbers(delay=delay, n_jobs=2).partial_fit(X, y, w)
    part = of_numbers(delay=delay, experts=list(BOTH))
    part.partial_fit(X[:1], y[:1], w[:1])
    part.partial_fit(X[1:217], y[1:217], w[1:217])
    part.save(tmp_path / "model")
    for other in (pickle.loads(pickle.dumps(part)), dmondrian.load(tmp_path / "model"), part):
        other.partial_fit(X[217:], y[217:], w[217:])
        for ours, theirs in zip(
            other.predict(X, return_std=True), whole.predict(X, return_std=True), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    plain = of_numbers(delay=delay, experts=("mondrian",)).partial_fit(X, y, w)
    (_, ours), (_, theirs) = whole.forest_.state(), plain.forest_.state()
    assert pickle.dumps(ours) == pickle.dumps(theirs)  # trees are those without sets
    assert not np.array_equal(whole.predict(X), plain.predict(X))


def test_numbers_that_are_equal_and_a_first_row() -> None:
    X, _ = numbers(100)
    constant = of_numbers().fit(X, np.full(100, 3.0))
    np.testing.assert_array_equal(constant.predict(X), 3.0)
    assert of_numbers().fit(X[:1], [2.0]).predict(X[:2]).tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match='is of drift="follow"'):
        of_numbers(drift=None).fit(X, np.ones(100))


def test_one_label_far_off_takes_nothing_from_sets_that_know_the_others() -> None:
    """All sets until row 3,000 are fitted to it: the error of rows beside others is as without."""
    X = np.random.default_rng(0).random((3000, 4)).astype(np.float32)
    y = 0.5 * X[:, 0] + 0.5 * X[:, 1] * X[:, 2]
    errors = []
    for label in (y[100], 1e6):
        y[100] = label
        forest = AMFRegressor(2, drift="follow", experts=BOTH, random_state=0).fit(
            X[:1000], y[:1000]
        )
        errors.append(np.median(np.abs(forest.predict(X[1000:]) - y[1000:])))
    assert errors[1] < 1.25 * errors[0]
