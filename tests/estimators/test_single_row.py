"""One row at a time: the short way gives the bytes of the general one.

What it refuses is in `test_single_refused`.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dmondrian
from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianForestClassifier,
    MondrianForestRegressor,
    OnlineRandomForestClassifier,
    OnlineRandomForestRegressor,
    PowerLifetime,
)
from dmondrian.ensemble.threads import Turns
from dmondrian.errors import ParameterError
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.single_row import SingleRow
from dmondrian.tree import nodes
from tests.estimators.test_amf import same_forest

N, BEGUN, D = 260, 60, 7
N_ALONE = 170  # of them, where each kind is tried: from row 130 on a column has three values
UNSCALED: dict[str, Any] = {"feature_scales": None, "feature_units": None}
FIXED: dict[str, Any] = {
    "alpha": 0.25, "charge_opening": False, "calibrate": False, **UNSCALED
}  # fmt: skip
CALIBRATED: dict[str, Any] = {**FIXED, "calibrate": "auto"}
RATE: dict[str, Any] = {"learning_rate": 1.0, **UNSCALED}
SCALES = [4.0, 0.5, 3.0, 1.0, 1.0, 0.125, 1.0]
# (estimator, whether rows alone are learned, and asked about, by the short way)
CASES = [
    (AMFClassifier(3, **FIXED), True, True),
    (AMFClassifier(19, **FIXED, max_nodes=21), True, True),
    (AMFClassifier(3, **{**FIXED, "feature_scales": SCALES}, use_aggregation=False), True, True),
    (AMFClassifier(3, **{**FIXED, "feature_scales": np.array(SCALES)}), True, True),
    (AMFClassifier(3, **FIXED, predict_extension="expected"), True, True),
    (AMFClassifier(3, **{**FIXED, "feature_units": "auto"}, warmup_rows=50), True, True),
    (AMFRegressor(3, feature_scales=SCALES, warmup_rows=50), True, True),
    (AMFClassifier(3, **FIXED, domain="cube"), True, True),
    (AMFClassifier(3, **FIXED, domain="cube", clip=True), True, True),
    (AMFClassifier(3, **{**FIXED, "calibrate": True}), True, True),
    (AMFClassifier(3, **CALIBRATED), True, True),
    (AMFClassifier(19, **CALIBRATED, max_nodes=21, predict_extension="expected"), True, True),
    pytest.param(  # compiled for these alone, as are others that are thorough
        AMFClassifier(3, **CALIBRATED, use_aggregation=False), True, True,
        marks=pytest.mark.thorough,
    ),
    pytest.param(
        AMFClassifier(3, **CALIBRATED, domain="cube"), False, True, marks=pytest.mark.thorough
    ),
    (AMFRegressor(3, **RATE, calibrate=True), False, True),
    (AMFClassifier(3, feature_scales="learned", warmup_rows=100, calibrate=False), True, True),
    (AMFRegressor(3, **RATE), True, True),
    (AMFRegressor(3), True, True),  # its settings are not chosen yet
    (AMFClassifier(3, warmup_rows=110, calibrate=False), True, True),
    (AMFClassifier(3, warmup_rows=110), True, True),
    (MondrianForestClassifier(3, aggregation="vote", feature_units=None), True, True),
    (MondrianForestClassifier(3, aggregation="hierarchy", lifetime=2.5, **UNSCALED), True, True),
    (MondrianForestRegressor(3, lifetime=PowerLifetime(0.5, 0.3), warmup_rows=50), True, True),
    (MondrianForestRegressor(3, aggregation="hierarchy", lifetime=2.5, **UNSCALED), True, False),
    (MondrianForestClassifier(3, lifetime=PowerLifetime(0.5, 0.3), calibrate="auto"), True, True),
    (OnlineRandomForestClassifier(3, min_samples_leaf=2.0), True, True),
    pytest.param(
        OnlineRandomForestClassifier(3, aggregation="vote"), True, True, marks=pytest.mark.thorough
    ),
    (OnlineRandomForestRegressor(3, min_samples_leaf=2.0), True, True),
    (GeneralizedMondrianForestRegressor(3), False, True),
    pytest.param(
        OnlineRandomForestClassifier(3, aggregation="vote", calibrate="auto"), False, True,
        marks=pytest.mark.thorough,
    ),
]  # fmt: skip


def rows() -> np.ndarray:
    """Return rows of two kinds of columns, of which one turns from two values to three."""
    X = np.random.default_rng(5).random((N, D)).astype(np.float32)
    X[:, 2:6] = X[:, 2:6] > 0.5
    X[N // 2 :, 4] *= np.where(X[N // 2 :, 0] > 0.5, np.float32(0.25), np.float32(1.0))
    return X


def labels(estimator: BaseForest, X: np.ndarray) -> np.ndarray:
    if estimator.algorithm.endswith("classifier"):
        return np.array(["no", "perhaps", "yes"])[(X[:, 0] + 2 * X[:, 2]).astype(int) % 3]
    return (X[:, 0] - 0.75 * X[:, 2]).astype(np.float64)


def begun(estimator: BaseForest, X: np.ndarray, y: np.ndarray) -> Any:
    """Return a forest of that kind, with its first rows."""
    forest = copy.deepcopy(estimator).set_params(random_state=3)
    more = {"classes": np.unique(y)} if hasattr(forest, "predict_proba") else {}
    return forest.partial_fit(X, y, **more)


def ask(forest: Any, X: Any) -> np.ndarray:
    return (forest.predict_proba if hasattr(forest, "predict_proba") else forest.predict)(X)


def in_some_form(X: np.ndarray, r: int) -> Any:
    """Return row ``r`` as one of the things that rows come as."""
    one = X[r : r + 1]
    if r % 7 == 6:
        one = one.copy()
        one.flags.writeable = False
    forms = (
        lambda: one,
        lambda: one.astype(np.float64),
        lambda: np.asfortranarray(X)[r : r + 1],
        lambda: np.repeat(one, 2, axis=1)[:, ::2],
        lambda: one.tolist(),
        lambda: pickle.loads(pickle.dumps(one)),
        lambda: one,
    )
    return forms[r % 7]()


@pytest.mark.parametrize(("estimator", "learns", "answers"), CASES, ids=str)
def test_rows_alone_are_learned_as_rows_together(
    estimator: BaseForest, learns: bool, answers: bool
) -> None:
    X = rows()[:N_ALONE]
    y = labels(estimator, X)
    if getattr(estimator, "clip", False):
        X[::3, 0] += np.float32(0.5)
        X[::5, 1] = -0.0
    whole, parts = begun(estimator, X[:BEGUN], y[:BEGUN]), begun(estimator, X[:BEGUN], y[:BEGUN])
    whole.partial_fit(X[BEGUN:], y[BEGUN:])
    for r in range(BEGUN, N_ALONE):
        before = ask(parts, in_some_form(X, r))
        assert np.array_equal(before, ask(parts, X[[r, 0]])[:1])
        parts.partial_fit(in_some_form(X, r), y[r : r + 1])
    assert same_forest(whole, parts)
    assert whole.forest_.state()[0] == parts.forest_.state()[0]
    assert np.array_equal(ask(whole, X), ask(parts, X))
    alone_asked = np.concatenate([ask(parts, X[r:][:1]) for r in range(N_ALONE)])
    assert np.array_equal(ask(whole, X), alone_asked)
    assert (SingleRow(parts.forest_).mean(X[1:2]) is not None) == answers
    label = 1.0 if hasattr(parts, "classes_") else float(y[1])
    alone = SingleRow(parts.forest_)
    assert any(alone.learn(X[r:][:1], label) for r in (1, 2, 4)) == learns
    if getattr(estimator, "clip", False):
        assert parts.n_clipped_ == whole.n_clipped_ > 0


@pytest.mark.parametrize(("estimator", "learns", "answers"), CASES, ids=str)
def test_a_plain_row_does_not_take_the_general_way(
    estimator: BaseForest, learns: bool, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = rows()
    y = labels(estimator, X)
    forest = begun(estimator, X[:BEGUN], y[:BEGUN])
    taken = []

    def general(self: Any, *_: Any, **__: Any) -> None:
        taken.append(self)

    monkeypatch.setattr(type(forest), "_learn", general)
    for r in range(BEGUN, BEGUN + 3):
        forest.partial_fit(X[r : r + 1], y[r : r + 1])
    assert len(taken) < 3 if learns else len(taken) == 3


@pytest.mark.parametrize(("estimator", "learns", "answers"), CASES, ids=str)
def test_a_plain_row_is_answered_without_a_stay_among_readers(
    estimator: BaseForest, learns: bool, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = rows()
    y = labels(estimator, X)
    forest = begun(estimator, X[:BEGUN], y[:BEGUN])
    stays, reading = [], Turns.reading

    def stay(self: Turns) -> Any:
        stays.append(self)
        return reading(self)

    monkeypatch.setattr(Turns, "reading", stay)
    ask(forest, X[BEGUN : BEGUN + 1])
    assert bool(stays) != answers


@pytest.mark.parametrize(("estimator", "learns", "answers"), CASES, ids=str)
def test_a_row_alone_is_answered_by_frozen_trees_as_by_others(
    estimator: BaseForest, learns: bool, answers: bool
) -> None:
    X = rows()
    y = labels(estimator, X)
    forest = begun(estimator, X[:BEGUN], y[:BEGUN])
    for first, last in ((BEGUN, 150), (150, 151), (151, 200)):
        forest.partial_fit(X[first:last], y[first:last])
        other = copy.deepcopy(forest)
        before = [ask(forest, X[r : r + 1]) for r in range(40)]
        forest.forest_.freeze()
        after = [ask(forest, X[r : r + 1]) for r in range(40)]
        assert np.array_equal(before, after)
        assert np.array_equal(np.concatenate(after), ask(other, X[:40]))


def test_frozen_trees_answer_a_row_alone() -> None:
    """They do so at once, and not after the next row is learned; the kernel shows which did."""
    X = rows()
    forest = begun(AMFRegressor(3, **RATE), X, X[:, 0])
    expected = ask(forest, X[:1])
    forest.forest_.freeze()
    assert np.array_equal(ask(forest, X[:1]), expected)
    kept = forest.forest_.predictor.frozen_cache.kept
    assert kept is not None
    for one in kept.trees:
        one.answers[:] = 7.0
    assert ask(forest, X[:1]) == 7.0
    forest.partial_fit(X[:1], X[:1, 0])
    assert ask(forest, X[:1]) != 7.0


def test_many_rows_alone_have_trees_frozen() -> None:
    X = np.random.default_rng(0).random((1500, 3)).astype(np.float32)
    forest = AMFRegressor(2, **RATE, random_state=0).fit(X, X[:, 0])
    expected = ask(copy.deepcopy(forest), X)
    for r in range(1024):
        assert forest.forest_.predictor.frozen_cache.kept is None
        assert ask(forest, X[r : r + 1]) == expected[r]
    assert forest.forest_.predictor.frozen_cache.kept is not None
    assert [float(ask(forest, X[r : r + 1])[0]) for r in range(50)] == expected[:50].tolist()


def test_rows_alone_between_lessons_have_no_tree_frozen() -> None:
    """What is frozen would answer one row."""
    X = np.random.default_rng(0).random((1500, 3)).astype(np.float32)
    forest = AMFRegressor(2, **RATE, random_state=0).fit(X, X[:, 0])
    for r in range(1030):
        ask(forest, X[r : r + 1])
        assert forest.forest_.predictor.frozen_cache.kept is None
        forest.partial_fit(X[r : r + 1], X[r : r + 1, 0])


@pytest.mark.parametrize("n_rows", [1, 100])
def test_frozen_trees_vanish_before_rows_are_learned(n_rows: int) -> None:
    X = rows()
    forest = begun(AMFRegressor(3, **RATE), X, X[:, 0])
    forest.forest_.freeze()
    ask(forest, X[:1])
    kept = forest.forest_.predictor.frozen_cache.kept
    assert kept is not None
    alive = weakref.ref(kept.trees[0].groups)
    del kept
    forest.partial_fit(X[:n_rows], X[:n_rows, 0])
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "save", "forest", "fit"])
def test_copies_have_trees_of_their_own(how: str, tmp_path: Path) -> None:
    X = rows()
    y = (X[:, 0] > 0.5).astype(int)
    forest, reference = (begun(AMFClassifier(3, **FIXED), X[:150], y[:150]) for _ in range(2))
    forest.partial_fit(X[150:151], y[150:151])
    ask(forest, X[:1])
    other: Any
    if how == "save":
        forest.save(tmp_path / "model")
        other = dmondrian.load(tmp_path / "model")
    elif how == "forest":  # the same estimator, of a forest that was copied by itself
        other = copy.deepcopy(forest)
        other.forest_ = pickle.loads(pickle.dumps(forest.forest_))
    elif how == "fit":
        other, forest = forest, copy.deepcopy(forest)
        other.fit(X[:9], y[:9])
        ask(other, X[:1])
        other.fit(X[:151], y[:151])
    else:
        assert not any(name.startswith("_single") for name in forest.__getstate__())
        other = pickle.loads(pickle.dumps(forest)) if how == "pickle" else copy.deepcopy(forest)
    for r in range(N):
        forest.partial_fit(X[r : r + 1], 1 - y[r : r + 1])  # must not show in the other
    for r in range(151, N):
        other.partial_fit(X[r : r + 1], y[r : r + 1])
        ask(other, X[r : r + 1])
    reference.partial_fit(X[150:], y[150:])
    assert same_forest(other, reference)
    answers = np.concatenate([ask(other, X[r : r + 1]) for r in range(N)])
    assert np.array_equal(answers, ask(reference, X))


def test_batches_and_rows_alone_go_together() -> None:
    X = rows()
    y = (X[:, 0] > 0.5).astype(int)
    whole, parts = (begun(AMFClassifier(3, **FIXED), X[:20], y[:20]) for _ in range(2))
    whole.partial_fit(X[20:], y[20:])
    start = 20
    for size in (1, 1, 30, 1, 2, 90, 1, 1, 1, 60, 1, 40, 1, 10):
        part = slice(start, min(start + size, N))
        parts.partial_fit(X[part], y[part])
        assert np.array_equal(ask(parts, X[:1]), ask(parts, X[:20])[:1])
        start = part.stop
    assert start == N
    assert same_forest(whole, parts)


def test_answers_are_not_those_of_before() -> None:
    X = rows()
    y = (X[:, 0] > 0.5).astype(int)
    forest = begun(AMFClassifier(3, **FIXED), X, y)
    forest.forest_.freeze()
    first = ask(forest, X[:1])
    kept = first.copy()
    for _ in range(5):
        forest.partial_fit(X[:1], 1 - y[:1])
    assert not np.array_equal(ask(forest, X[:1]), kept)
    assert np.array_equal(first, kept)  # an array of the caller's own
    assert np.array_equal(
        ask(forest, X), np.concatenate([ask(forest, X[r:][:1]) for r in range(N)])
    )


def test_scores_of_intervals_are_forgotten_after_a_row_alone() -> None:
    X = rows()
    forest = begun(MondrianForestRegressor(3), X[:200], X[:200, 0])
    forest.partial_fit(X[:1], X[:1, 0])
    forest.calibrate_intervals(X[200:], X[200:, 0])
    forest.partial_fit(X[:1], X[:1, 0])
    assert not hasattr(forest, "interval_scores_")


def test_threads_that_ask_at_once_are_reported_the_same() -> None:
    X = rows()
    forest = begun(AMFClassifier(10, **FIXED), X, (X[:, 0] > 0.5).astype(int))
    expected = forest.predict_proba(X)

    def work(start: int) -> bool:
        order = np.roll(np.arange(N), start)
        return all(
            np.array_equal(forest.predict_proba(X[r : r + 1])[0], expected[r])
            for _ in range(20)
            for r in order
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(0, 4 * 60, 60)))


def test_an_interrupted_forest_refuses_a_row_alone() -> None:
    X = rows()
    forest = begun(AMFRegressor(3, **RATE), X, X[:, 0]).partial_fit(X[:1], X[:1, 0])
    forest.forest_.store.is_torn = True
    for call in (lambda: forest.predict(X[:1]), lambda: forest.partial_fit(X[:1], X[:1, 0])):
        with pytest.raises(ParameterError, match="interrupted"):
            call()


def test_a_row_alone_fits_in_the_arrays() -> None:
    X = np.random.default_rng(0).random((900, 4)).astype(np.float32)
    forest = begun(AMFRegressor(2, **RATE), X[:5], X[:5, 0])
    lengths = {len(tree.i) for tree in forest.forest_.trees}
    for r in range(5, 900):
        forest.partial_fit(X[r : r + 1], X[r : r + 1, 0])
    assert min(len(tree.i) for tree in forest.forest_.trees) > max(lengths)
    assert all(tree.head_i[nodes.N_NODES] > 500 for tree in forest.forest_.trees)
    assert same_forest(forest, begun(AMFRegressor(2, **RATE), X, X[:, 0]))
