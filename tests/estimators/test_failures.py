"""Calls that fail leave the estimator as it was; what cannot work is refused in words."""

from __future__ import annotations

import copy
import itertools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    MondrianDensity,
    MondrianFeatures,
    MondrianForestRegressor,
    MondrianKernelRegressor,
)
from dmondrian.ensemble import threads
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.errors import DataError, ParameterError
from dmondrian.estimators import row_parts
from dmondrian.forest.forest import Forest
from tests.estimators.test_amf import rows, same_forest


def fitted() -> AMFClassifier:
    X = rows(50)
    return AMFClassifier(2, random_state=0).fit(X, np.where(X[:, 0] > 0.5, "b", "a"))


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f.fit(rows(9, d=1), ["c", "d", "d"] * 3, sample_weight=-np.ones(9)),
        lambda f: f.fit(rows(9, d=1), ["c", "d", "d"] * 3, sample_weight=np.zeros(9)),
        lambda f: f.fit(rows(9, d=1), ["c", "d", "d"] * 3, sample_weight=np.ones(8)),
        lambda f: f.fit(rows(9, d=1), ["c", "d", "d"] * 3, sample_weight=[np.nan] * 9),
        lambda f: f.fit(rows(9, d=1), rows(9)[:, 0]),
        lambda f: f.set_params(n_jobs=0).fit(rows(9, d=1), ["c", "d", "d"] * 3),
        lambda f: f.partial_fit(rows(9, d=1), ["a"] * 9),
        lambda f: f.partial_fit(rows(9), ["c"] * 9),
        lambda f: f.partial_fit(rows(9), [1] * 9),
        lambda f: f.set_params(alpha=0.5).partial_fit(rows(9), ["a"] * 9),
    ],
)
def test_a_refused_call_changes_nothing(call) -> None:
    forest = fitted()
    before = copy.deepcopy(forest)
    with pytest.raises(ValueError):
        call(forest)
    assert forest.n_features_in_ == 4
    assert forest.classes_.tolist() == ["a", "b"]
    assert same_forest(forest, before)
    forest.set_params(n_jobs=None)
    assert (forest.predict_proba(rows(9)) == before.predict_proba(rows(9))).all()


@pytest.mark.parametrize(
    ("label", "reason"),
    [(None, "labels are missing"), (np.datetime64("2026-01-01"), "y has labels")],
)
def test_labels_that_are_missing_or_of_another_kind_are_refused_in_words(
    label: Any, reason: str
) -> None:
    X = rows(9)
    forest = AMFClassifier(2, random_state=0).fit(X, [0, 1, 1] * 3)
    before = copy.deepcopy(forest)
    for y in (np.array([label]), np.array([0, label], dtype=object)):
        with pytest.raises(DataError, match=reason):
            forest.partial_fit(X[: len(y)], y)
    assert same_forest(forest, before)


@pytest.mark.parametrize("label", [None, "nan", np.nan])
def test_numbers_that_are_missing_are_refused_and_not_learned(label: Any) -> None:
    X = rows(9)
    forest = MondrianForestRegressor(2, random_state=0).fit(X, X[:, 0])
    before = copy.deepcopy(forest)
    for y in ([label], [0.5, label]):
        given = np.array(y, dtype=object)
        for call in (forest.fit, forest.partial_fit, forest.calibrate_intervals):
            with pytest.raises(ValueError, match=r"contains NaN|labels are missing"):
                call(X[: len(y)], given)
    assert same_forest(forest, before)


def test_a_value_just_outside_the_cube_is_shown_as_it_is() -> None:
    X = rows(9)
    X[3, 1] = np.nextafter(np.float32(1), np.float32(2))  # as MinMaxScaler makes of float32
    with pytest.raises(DataError, match=r"column 1 has values in \[0\.0, 1\.0000001\]"):
        MondrianDensity(2).fit(X)


def test_rows_of_another_width_never_reach_a_kernel() -> None:
    forest = fitted().forest_
    for wrong in (rows(3, d=1), rows(3, d=5), rows(3)[0]):
        with pytest.raises(ParameterError, match="4 features"):
            forest.predict_sums(wrong)
        with pytest.raises(ParameterError, match="4 features"):
            forest.update(wrong, np.zeros(3))


def test_a_forest_that_was_interrupted_while_it_learned_refuses_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = rows(100), rows(100, seed=1)[:, 0]
    forest = AMFRegressor(3, random_state=0, n_jobs=2).fit(X, y)  # tree by tree
    learn = type(forest.forest_)._learn

    def break_off(self: object, span: tuple[int, int], *rest: np.ndarray) -> None:
        if span[0] == 1:
            raise KeyboardInterrupt
        learn(self, span, *rest)  # type: ignore[arg-type]  # a method taken as a function

    with monkeypatch.context() as patch:
        patch.setattr(type(forest.forest_), "_learn", break_off)
        with pytest.raises(KeyboardInterrupt) as stopped:
            forest.partial_fit(X, y)
    assert "behind the first 0, and refuses to go on" in stopped.value.__notes__[0]
    for call in (lambda: forest.predict(X), lambda: forest.partial_fit(X, y), forest.__getstate__):
        with pytest.raises(ParameterError, match="interrupted"):
            call()
    assert same_forest(forest.fit(X, y), AMFRegressor(3, random_state=0).fit(X, y))


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("calibrate", [False, True])
def test_ctrl_c_waits_for_the_end_of_a_part_and_costs_no_row(
    monkeypatch: pytest.MonkeyPatch, n_jobs: int, calibrate: bool
) -> None:
    X, y = rows(2000), np.arange(2000) % 2
    how = {"random_state": 0, "warmup_rows": 50, "calibrate": calibrate}
    forest, whole = (AMFClassifier(3, n_jobs=n_jobs, **how) for _ in range(2))
    whole.fit(X[:100], y[:100]).partial_fit(X, y)
    forest.fit(X[:100], y[:100])
    learn, n_calls = Ensemble._learn, itertools.count()

    def interrupted(*given: Any) -> None:
        if next(n_calls) == 4:
            signal.raise_signal(signal.SIGINT)  # in another thread it reaches the main one
        learn(*given)

    with monkeypatch.context() as patch:
        patch.setattr(threads, "_MOST_AT_ONCE", 900)  # a part is 300 rows
        patch.setattr(Ensemble, "_learn", interrupted)
        with pytest.raises(KeyboardInterrupt) as stopped:
            forest.partial_fit(X, y)
    (note,) = stopped.value.__notes__
    n = int(note.split(" first ")[1].split()[0])
    assert note == f"the forest has learned the first {n} of the 2000 rows"
    assert 0 < n < 2000
    forest.predict(X)
    assert same_forest(forest.partial_fit(X[n:], y[n:]), whole)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_error_counts_the_rows_that_are_learned(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = csr_matrix(rows(60)), np.arange(60) % 2
    whole = AMFClassifier(2, random_state=0).fit(X, y)
    forest = copy.deepcopy(whole)
    update, n_parts = Forest._update, itertools.count()

    def fail(self: Forest, *given: Any) -> None:
        if next(n_parts) == n_before:
            raise error
        update(self, *given)

    for first, learned in ((3, 30), (0, 0)):
        n_before, n_parts = first, itertools.count()
        with monkeypatch.context() as patch:
            patch.setattr(row_parts, "PART_BYTES", 4 * 4 * 10)  # ten rows
            patch.setattr(Forest, "_update", fail)
            with pytest.raises(error) as failed:
                forest.partial_fit(X, y)
        assert failed.value.__notes__ == [
            f"the forest has learned the first {learned} of the 60 rows"
        ]
    assert same_forest(forest.partial_fit(X[30:], y[30:]), whole.partial_fit(X, y))
    n_before, n_parts = 0, itertools.count()
    monkeypatch.setattr(Forest, "_update", fail)
    with pytest.raises(error) as failed:
        forest.fit(X, y)
    assert failed.value.__notes__ == [
        "no row is learned: the estimator is as it was before the call"
    ]
    assert same_forest(forest, whole)


@pytest.mark.parametrize(
    "forest",
    [
        MondrianKernelRegressor(5, solver="cholesky", random_state=0),
        MondrianKernelRegressor(5, solver="sgd", random_state=0),
        MondrianFeatures(5, random_state=0),
        AMFRegressor(3, random_state=0),  # whose first rows settings are chosen from
    ],
)
def test_trees_that_are_ahead_of_what_is_kept_beside_them_refuse_to_answer(
    forest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows(100), rows(100, seed=1)[:, 0]
    forest.fit(X, y)
    learn = Ensemble.update

    def break_off_behind(*given: Any, **named: Any) -> None:
        learn(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ensemble, "update", break_off_behind)
        with pytest.raises(KeyboardInterrupt):
            forest.partial_fit(X, y)
    for call in (lambda: forest.apply(X), lambda: forest.partial_fit(X, y), forest.__getstate__):
        with pytest.raises(ParameterError, match="interrupted"):
            call()


def test_cuts_do_not_decide_what_is_refused() -> None:
    X, y = rows(8), [0, 1] * 4
    w = np.array([0.0, 0.0, 1.0, 0.0, 1e17, 2e17, 0.0, 1e16])
    whole = AMFClassifier(2, random_state=0).fit(X, y, sample_weight=w)
    parts = AMFClassifier(2, random_state=0)
    for i in range(8):
        parts.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1], sample_weight=w[i : i + 1])
    assert same_forest(whole, parts)
    with pytest.raises(ParameterError, match="rescale the weights"):
        parts.partial_fit(X[:1], y[:1], sample_weight=[1.0])


def test_parameters_set_too_late_are_refused_also_when_saving(tmp_path: Path) -> None:
    forest = fitted().set_params(n_estimators=30)
    with pytest.raises(ParameterError, match=r"n_estimators=30 \(was 2\)"):
        forest.save(tmp_path / "model")
    forest.set_params(n_estimators=2, n_jobs=2).save(tmp_path / "model")
    loaded = dmondrian.load(tmp_path / "model").set_params(split_pure=True)
    with pytest.raises(ParameterError, match="split_pure"):
        loaded.partial_fit(rows(3), ["a", "b", "a"])


@pytest.mark.parametrize("labels", [[1, 2**63 + 5], [3, 7]])
@pytest.mark.parametrize("dtype", [np.uint64, np.int8, np.float32])
def test_labels_keep_their_type_when_saved(labels, dtype, tmp_path: Path) -> None:
    if labels[1] > 100 and dtype is not np.uint64:
        labels = [1, 5]
    y = np.array(labels * 5, dtype=dtype)
    AMFClassifier(1).fit(rows(10), y).save(tmp_path / "model")
    classes = dmondrian.load(tmp_path / "model").classes_
    assert classes.dtype == dtype
    assert (classes == np.unique(y)).all()


def test_targets_beyond_any_square_are_refused() -> None:
    with pytest.raises(DataError, match="scale the target"):
        AMFRegressor(1).fit(rows(3), [1.0, 1e160, 2.0])
    X, y = rows(60), rows(60, seed=1)[:, 0].astype(float)
    small, large = (AMFRegressor(2, random_state=0).fit(X, y * s) for s in (1.0, 2.0**400))
    np.testing.assert_allclose(large.predict(X) / 2.0**400, small.predict(X), rtol=1e-9)


@pytest.mark.parametrize("tree", [2, -1, "0", 1.0, None])
def test_trees_that_are_not_there_are_reported(tree) -> None:
    with pytest.raises(ParameterError, match=r"integer in 0\.\.1"):
        fitted().nodes(tree)


@pytest.mark.parametrize(
    "estimator",
    [
        AMFClassifier(10**9),
        AMFRegressor(10**8),
        MondrianFeatures(10**9),
        MondrianKernelRegressor(10**9),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_more_trees_than_memory_holds_are_refused_before_they_are_made(estimator) -> None:
    with pytest.raises(ParameterError, match=r"GiB.*give fewer|fewer components"):
        estimator.fit([[0.0], [1.0]], [0, 1])
    assert not hasattr(estimator, "forest_")
