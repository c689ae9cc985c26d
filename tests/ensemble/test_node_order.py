"""Where nodes lie changes no byte: forests whose nodes are moved all the time, and never."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    GeneralizedMondrianForestRegressor,
    MondrianForestClassifier,
    MondrianForestRegressor,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
)
from dmondrian.checkpoint import encode_forest
from dmondrian.ensemble import tree_store
from dmondrian.errors import ParameterError
from dmondrian.estimators.single_row import SingleRow
from dmondrian.export.plain_trees import plain_trees
from dmondrian.forest.forest import Forest
from dmondrian.tree import nodes
from dmondrian.tree.reorder import order_along_heavy_paths
from tests.estimators.test_amf import same_forest

N, BEGUN, D = 700, 400, 6
UNSCALED: dict[str, Any] = {"feature_scales": None}
CASES = [
    AMFClassifier(3, **UNSCALED),
    AMFClassifier(3, warmup_rows=150),
    AMFClassifier(3, **UNSCALED, predict_extension="expected", calibrate=True, warmup_rows=150),
    AMFClassifier(2, **UNSCALED, domain="cube", max_nodes=301),
    AMFRegressor(3, **UNSCALED),
    MondrianForestClassifier(3, aggregation="hierarchy", lifetime=3.0, **UNSCALED),
    MondrianForestRegressor(3, aggregation="mean", **UNSCALED),
    MondrianForestRegressor(3, aggregation="hierarchy", lifetime=3.0, **UNSCALED),
]
NEVER_MOVED = [
    OnlineRandomForestClassifier(3),
    GeneralizedMondrianForestRegressor(3),
    MondrianKernelRegressor(3),
]


@pytest.fixture
def moving() -> Iterator[pytest.MonkeyPatch]:
    """Have nodes moved whenever they have doubled, from few on."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tree_store, "_LEAST", 16)
        patched.setattr(tree_store, "_LEAST_ALONE", 16)
        patched.setattr(tree_store, "_DEEP", 0.0)
        yield patched


def rows(estimator: Any) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.random((N, D), np.float32)
    X[:, 3:] = X[:, 3:] > 0.5
    y = X[:, 0] + X[:, 3] * rng.random(N)
    return X, (y > 0.8).astype(int) if hasattr(estimator, "predict_proba") else y


def moved_trees(forest: Any) -> list[int]:
    """Return which trees have moved nodes."""
    return [t for t, tree in enumerate(forest.forest_.store.trees) if len(tree.ids)]


def learned(estimator: Any, by_single: bool = False, threads: int = 1, moves: bool = False) -> Any:
    """Return a forest of all rows: a batch, then rows one by one or parts.

    If it ``moves`` nodes are moved before each of these too.
    """
    X, y = rows(estimator)
    forest = pickle.loads(pickle.dumps(estimator)).set_params(random_state=5, n_jobs=threads)
    more = {"classes": [0, 1]} if hasattr(forest, "predict_proba") else {}
    forest.partial_fit(X[:BEGUN], y[:BEGUN], **more)
    step = 1 if by_single else 97
    for start in range(BEGUN, N, step):
        part = slice(start, min(start + step, N))
        if moves and start % 2 == 0:
            forest.forest_.move_nodes()
        forest.partial_fit(X[part], y[part])
    return forest


def everything(forest: Any, X: np.ndarray) -> list[np.ndarray]:
    """Return what a forest says of rows, together and one by one, frozen and not."""
    ask = forest.predict_proba if hasattr(forest, "predict_proba") else forest.predict
    own = forest.forest_
    sums = own.predict_sums(X, spread=True, distance=True)
    said = [ask(X), np.concatenate([ask(X[r : r + 1]) for r in range(20)]), sums.total]
    said += [sums.square, sums.distance, forest.weighted_depth(X)]
    own.freeze()
    sums = own.predict_sums(X, spread=True, distance=True)
    return [*said, ask(X), sums.total, sums.square, sums.distance]


@pytest.mark.parametrize("by_single", [False, True], ids=["parts", "one by one"])
@pytest.mark.parametrize("estimator", CASES, ids=str)
def test_forests_are_the_same(estimator: Any, by_single: bool, moving: pytest.MonkeyPatch) -> None:
    X = rows(estimator)[0]
    with pytest.MonkeyPatch.context() as never:
        never.setattr(tree_store, "_LEAST", 1 << 40)
        never.setattr(tree_store, "_LEAST_ALONE", 1 << 40)
        plain = learned(estimator)
    assert not moved_trees(plain)
    moved = learned(estimator, by_single, threads=2, moves=True)
    own = moved.forest_
    assert len(moved_trees(moved)) == len(own.store)
    assert all(
        a.tobytes() == b.tobytes()
        for a, b in zip(everything(plain, X), everything(moved, X), strict=True)
    )
    assert encode_forest(*own.stored()) == encode_forest(*plain.forest_.stored())
    assert own.state()[0] == plain.forest_.state()[0]
    assert same_forest(moved, plain)
    assert moved_trees(moved)  # to be stored they were not moved back
    again = pickle.loads(pickle.dumps(moved))
    for forest in (plain, moved, again):
        forest.partial_fit(*rows(estimator))
    assert same_forest(moved, plain)
    assert same_forest(again, plain)


@pytest.mark.parametrize("estimator", NEVER_MOVED, ids=str)
def test_nodes_that_others_know_by_their_places_stay(
    estimator: Any, moving: pytest.MonkeyPatch
) -> None:
    forest = learned(estimator)
    forest.forest_.move_nodes()
    assert not moved_trees(forest)


def test_who_asks_for_the_trees_finds_nodes_where_they_came_in(moving: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as never:
        never.setattr(tree_store, "_LEAST", 1 << 40)
        plain = learned(CASES[0])
    moved, X = learned(CASES[0]), rows(CASES[0])[0]
    own = moved.forest_
    assert sum(tree.ids.nbytes for tree in own.store.trees) >= 4 * plain.forest_.n_nodes / 2
    for told, expected in zip(moved.nodes(0).items(), plain.nodes(0).items(), strict=True):
        assert told[0] == expected[0]
        assert np.array_equal(told[1], expected[1])
    assert np.array_equal(moved.feature_importances_, plain.feature_importances_)
    for ours, theirs in zip(plain_trees(moved), plain_trees(plain), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert len(own.trees) == len(own.trees[1:]) + 1 == 3
    assert moved_trees(moved)  # they were not moved back
    held, n_ids = own.n_bytes, sum(len(tree.ids) for tree in own.store.trees)
    own.store.assign([tree._replace(ids=tree.ids[:0]) for tree in own.store.trees])
    assert held - own.n_bytes == 4 * n_ids > 0
    assert own.predict_sums(X).total.tobytes() == plain.forest_.predict_sums(X).total.tobytes()


def test_nodes_that_answer_are_told_by_their_ids(moving: pytest.MonkeyPatch) -> None:
    X, y = rows(CASES[6])
    X, asked = X * 0.9 + 0.05, X[:30] * 0.9 + 0.05
    said = []
    for moves in (False, True):
        moving.setattr(tree_store, "_LEAST", 16 if moves else 1 << 40)
        forest = MondrianForestRegressor(
            20, aggregation="mean", domain="cube", feature_scales=None, lifetime=4.0, random_state=1
        ).fit(X, y)
        assert bool(moved_trees(forest)) == moves
        said.append(forest.confidence_interval(asked, X))
    assert np.array_equal(*said)


def test_what_knows_nodes_by_their_places_is_let_go_of(moving: pytest.MonkeyPatch) -> None:
    forest, X = learned(CASES[0]).forest_, rows(CASES[0])[0] * np.float32(1.1)
    moving.setattr(tree_store, "_LEAST", 1 << 40)
    plain = learned(CASES[0]).forest_
    for moves in range(2):
        forest.freeze()
        assert np.array_equal(
            forest.predict_sums(X, distance=True).distance,
            plain.predict_sums(X, distance=True).distance,
        ), moves
        forest.move_nodes()
    alone, other = SingleRow(forest), SingleRow(plain)
    for r in range(N):  # moved for rows alone
        assert alone.learn(X[r : r + 1], 1.0) == other.learn(X[r : r + 1], 1.0)
        if r % 100 == 0:
            forest.freeze()
            plain.freeze()
            told = forest.predict_sums(X, distance=True), plain.predict_sums(X, distance=True)
            assert np.array_equal(told[0].distance, told[1].distance)


def test_only_deep_trees_are_moved_while_many_rows_come(moving: pytest.MonkeyPatch) -> None:
    X, y = rows(CASES[4])
    forest = learned(CASES[4])
    tree = forest.forest_.trees[0]
    weights, is_inner = tree.d[:, nodes.STAT], tree.i[:, nodes.LEFT] >= 0
    used = int(tree.head_i[nodes.N_NODES])
    passed = weights[:used][is_inner[:used]].sum() / N
    for factor, is_moved in ((0.5, True), (2.0, False)):
        moving.setattr(tree_store, "_DEEP", factor * passed * N / used)
        other = pickle.loads(pickle.dumps(CASES[4])).partial_fit(X, y).partial_fit(X, y)
        assert bool(moved_trees(other)) == is_moved


def test_rows_alone_pay_for_a_tree_at_a_time(moving: pytest.MonkeyPatch) -> None:
    moving.setattr(tree_store, "_LEAST", 1 << 40)
    moving.setattr(tree_store, "_LEAST_ALONE", 200)
    X, y = rows(CASES[0])
    forest = AMFClassifier(3, random_state=5, **UNSCALED).partial_fit(X, y, classes=[0, 1])
    own, seen = forest.forest_, []
    assert min(int(tree.head_i[nodes.N_NODES]) for tree in own.store.trees) > 200
    moving.setattr(tree_store, "_PER_ROW", 2)
    rng = np.random.default_rng(8)
    for _ in range(1200):
        row = rng.random((1, D), np.float32)
        forest.partial_fit(row, np.array([int(row[0, 0] > 0.5)]))
        seen.append(len(moved_trees(forest)))
    first = [seen.index(n) for n in (1, 2, 3)]
    assert first[0] > 100  # rows for about as many nodes, and two for each row
    assert np.diff(first).min() > 100
    assert np.diff(seen).max() == 1


def test_without_memory_nodes_stay_and_learning_goes_on(moving: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise MemoryError

    plain = learned(CASES[0])
    moving.setattr(tree_store, "order_along_heavy_paths", refuse)
    forest = learned(CASES[0], by_single=True)
    assert not moved_trees(forest)
    assert same_forest(forest, plain)


@pytest.mark.parametrize("how", ["rows", "one by one", "at once"])
def test_an_interrupt_on_the_way_is_told(how: str, moving: pytest.MonkeyPatch) -> None:
    def interrupt(tree: nodes.Tree) -> Any:
        order_along_heavy_paths(tree)
        raise KeyboardInterrupt

    X, y = rows(CASES[0])
    begun = 20 if how == "rows" else N
    moving.setattr(tree_store, "_LEAST", 16 if how == "rows" else 1 << 40)
    forest = Forest(learned(CASES[0]).forest_.parameters, range(2))
    forest.update(X[:begun], y[:begun].astype(np.float64))
    moving.setattr(tree_store, "order_along_heavy_paths", interrupt)

    def learn() -> None:
        if how == "at once":
            forest.move_nodes()
        alone = SingleRow(forest)
        for r in range(2 * N) if how == "one by one" else ():
            assert alone.learn(X[r % N : r % N + 1], float(y[r % N]))
        forest.update(X[20:], y[20:].astype(np.float64))

    with pytest.raises(KeyboardInterrupt):
        learn()
    for ask in (
        lambda: forest.predict_sums(X),
        lambda: forest.weighted_depth(X),
        lambda: forest.trees,
        forest.freeze,
        forest.state,
        forest.move_nodes,
    ):
        with pytest.raises(ParameterError, match="interrupted"):
            ask()
    assert not SingleRow(forest).learn(X[:1], 0.0)


def test_many_may_ask_at_the_same_time(moving: pytest.MonkeyPatch) -> None:
    forest, X = learned(CASES[0]), rows(CASES[0])[0]
    expected, importances = forest.predict_proba(X), forest.feature_importances_
    for _ in range(5):
        forest.forest_.move_nodes()

        def ask(i: int) -> bool:
            if i % 3 == 0:
                return np.array_equal(forest.feature_importances_, importances)
            return np.array_equal(forest.predict_proba(X), expected)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, range(24)))
