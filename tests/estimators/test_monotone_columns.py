"""Columns with which forecasts of a whole forest rise or fall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import dmondrian
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.drift.drift_forest import forest_from_state
from dmondrian.drift.member_sums import MemberSums
from dmondrian.errors import CorruptError, ParameterError

ALL = ("mondrian", "boosted", "scaled")
KINDS = {"classes": AMFClassifier, "numbers": AMFRegressor}


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows, and numbers that rise with the second column and fall with the third."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 4)).astype(np.float32)
    y = np.sin(6.0 * X[:, 0]) + 2.0 * X[:, 1] - 2.0 * X[:, 2] ** 2
    return X, y + 0.5 * rng.normal(size=n)


def fitted(kind: str, n: int = 1500, n_estimators: int = 3, **settings: Any) -> Any:
    X, y = rows(n)
    its = {"drift": "follow", "experts": ALL, "random_state": 0, **settings}
    return KINDS[kind](n_estimators, **its).fit(X, y if kind == "numbers" else y > 0.8)


def forecasts(model: Any, X: np.ndarray) -> np.ndarray:
    given: np.ndarray = (
        model.predict_proba(X)[:, 1] if hasattr(model, "classes_") else model.predict(X)
    )
    return given


def along(model: Any, column: int) -> np.ndarray:
    """Return the differences between forecasts of rows that differ in one column alone."""
    grid = np.linspace(-0.2, 1.2, 60, dtype=np.float32)
    X = np.repeat(rows(30, 1)[0], len(grid), 0)
    X[:, column] = np.tile(grid, 30)
    return np.diff(forecasts(model, X).reshape(30, len(grid)), axis=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delay", [1, 40])
def test_forecasts_rise_and_fall_as_asked(kind: str, delay: int, tmp_path: Path) -> None:
    free = fitted(kind, delay=delay)
    assert (along(free, 1) < -1e-4).any()
    bound = fitted(kind, delay=delay, monotonic_cst=[0, 1, -1, 0])
    bound.save(tmp_path / "model")
    for model in (bound, dmondrian.load(tmp_path / "model"), clone(bound).fit(*labels(kind))):
        for column, direction in ((1, 1), (2, -1)):
            steps = direction * along(model, column)
            assert (steps >= -1e-12).all()
            assert (steps > 1e-3).any()
        assert (along(model, 0) < -1e-3).any()
        assert (along(model, 0) > 1e-3).any()


def labels(kind: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = rows(1500)
    return X, y if kind == "numbers" else y > 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_the_opposite_of_the_truth_is_answered_by_a_constant(kind: str) -> None:
    model = fitted(kind, monotonic_cst=[0, -1, 0, 0])
    assert (along(model, 1) <= 1e-12).all()
    X, y = rows(2000)
    assert np.corrcoef(forecasts(model, X), y)[0, 1] > 0.3  # of the other columns


def test_no_tree_but_those_of_boosted_sets_splits_a_monotone_column() -> None:
    model = fitted("classes", monotonic_cst=[0, 1, -1, 0])
    split = {int(f) for f in model.nodes(0)["feature"] if f >= 0}
    assert split == {0, 3}
    of_sets = model.forest_.boosted_set.trees
    assert set(of_sets.columns[np.arange(14) < of_sets.n_splits[:, None]]) == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", KINDS)
def test_distances_are_in_the_columns_that_trees_see(kind: str) -> None:
    X = labels(kind)[0].copy()
    sums = MemberSums(fitted(kind, monotonic_cst=[0, 1, -1, 0]).forest_)

    def distance() -> np.ndarray:
        found = sums.predict_sums(X, distance=True).distance
        assert found is not None
        return found

    assert not distance().any()  # rows that were learned lie in the boxes of their leaves
    X[:, 1] += 9.0
    assert not distance().any()
    X[:, 0] += 9.0
    assert (distance() > 8.0).all()


def test_constraints_of_0_change_nothing() -> None:
    X, _ = rows(100, 2)
    expected = fitted("classes", n=300).predict_proba(X)
    for nothing in ([0, 0, 0, 0], {}):
        model = fitted("classes", n=300, monotonic_cst=nothing)
        np.testing.assert_array_equal(model.predict_proba(X), expected)
    assert fitted("classes", n=300, drift=None, experts=("mondrian",), monotonic_cst=[0] * 4)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_named_and_counted_as_they_are_given(kind: str) -> None:
    """Missing values and categories make more features; a dict is of names."""
    X, y = rows(700)
    frame = pd.DataFrame(X, columns=["a", "up", "down", "b"])
    frame["kind"] = pd.Categorical(np.array(["x", "y"])[np.arange(700) % 2])
    frame = frame[["kind", "a", "up", "down", "b"]]
    frame.loc[::7, "up"] = np.nan
    its: dict[str, Any] = {"drift": "follow", "experts": ALL[:2], "random_state": 0}
    its |= {"missing_values": "encode", "categorical_features": "from_dtype"}
    target = y if kind == "numbers" else y > 0.8
    named = KINDS[kind](2, **its, monotonic_cst={"up": 1, "down": -1}).fit(frame, target)
    placed = KINDS[kind](2, **its, monotonic_cst=np.array([0, 0, 1, -1, 0])).fit(frame, target)
    assert named.forest_.parameters == placed.forest_.parameters
    assert named.forest_.parameters.monotone == (0, 0, 0, 0, 0, 0, 1, 0, -1, 0, 0, 0)
    asked = frame.iloc[:50].copy()
    answers = []
    for value in np.linspace(0.0, 1.0, 20):
        asked["up"] = value
        answers.append(forecasts(named, asked))
    assert (np.diff(answers, axis=0) >= -1e-12).all()
    assert (np.diff(answers, axis=0) > 1e-3).any()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"monotonic_cst": [1, 0, 0, 0], "drift": None, "experts": ALL[:1]}, "binds boosted sets"),
        ({"monotonic_cst": [1, 0, 0, 0], "experts": ALL[:1]}, "binds boosted sets"),
        ({"monotonic_cst": [1, 0]}, "2 values, and rows have 4 columns"),
        ({"monotonic_cst": [[1, 0, 0, 0]]}, r"shape \(1, 4\), expected one value"),
        ({"monotonic_cst": [2, 0, 0, 0]}, "is 2 for column 0: expected 1"),
        ({"monotonic_cst": [0, 0, 0, 0.5]}, "is 0\\.5 for column 3"),
        ({"monotonic_cst": [True, 0, 0, 0]}, "is True for column 0"),
        ({"monotonic_cst": [np.nan, 0, 0, 0]}, "is nan for column 0"),
        ({"monotonic_cst": ["up", 0, 0, 0]}, "is 'up' for column 0"),
        ({"monotonic_cst": {"a": 1}}, "the rows have no names"),
    ],
)
def test_constraints_that_nothing_would_follow_are_refused(
    settings: dict[str, Any], reason: str
) -> None:
    for kind in KINDS:
        with pytest.raises(ParameterError, match=reason):
            fitted(kind, n=100, **settings)


def test_unknown_names_categories_and_more_classes_are_refused() -> None:
    X, y = rows(100)
    frame = pd.DataFrame(X, columns=list("abcd"))
    its: dict[str, Any] = {"drift": "follow", "experts": ALL[:2]}
    with pytest.raises(ParameterError, match=r"names 'e', .* there are 'a', 'b', 'c', 'd'"):
        AMFRegressor(2, monotonic_cst={"e": 1}, **its).fit(frame, y)
    with pytest.raises(ParameterError, match="with 3 classes"):
        AMFClassifier(2, monotonic_cst=[1, 0, 0, 0], **its).fit(X, np.digitize(y, [0.0, 1.0]))
    frame["d"] = pd.Categorical(np.array(["x", "y"])[np.arange(100) % 2])
    with pytest.raises(ParameterError, match="column 'd', whose categories have no order"):
        AMFRegressor(
            2, monotonic_cst={"d": 1}, categorical_features="from_dtype", **its
        ).fit(frame, y)  # fmt: skip


def test_a_forest_begun_with_other_constraints_learns_no_more() -> None:
    X, y = rows(100)
    model = fitted("numbers", n=200, monotonic_cst=[0, 1, 0, 0])
    model.set_params(monotonic_cst=np.array([0, 1, 0, 0])).partial_fit(X, y)
    with pytest.raises(ParameterError, match=r"monotonic_cst=.*was"):
        model.set_params(monotonic_cst=[0, -1, 0, 0]).partial_fit(X, y)


@pytest.mark.parametrize(
    "directions", [[], [0, 0, 0, 0], [0, 1, 0], [2, 0, 0, 0], [True, 0, 0, 0], "1", None]
)
def test_damaged_directions_are_refused(directions: Any) -> None:
    header, trees = fitted("numbers", n=100, monotonic_cst=[0, 1, 0, 0]).forest_.state()
    forest_from_state(header, trees)
    header["parameters"]["drift"]["monotone"] = directions
    with pytest.raises(CorruptError):
        forest_from_state(header, trees)


def test_negative_weights_of_sets_are_refused() -> None:
    header, trees = fitted("classes", n=100, monotonic_cst=[0, 1, 0, 0]).forest_.state()
    header["drift"]["members"][0]["mixer"]["weights"][0][-1] = -0.5
    with pytest.raises(CorruptError, match="mixing weights"):
        forest_from_state(header, trees)
