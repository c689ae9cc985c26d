"""Ways that are noted when rows are looked ahead for: deeper trees, and rows beyond a block."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest

from dmondrian import AMFClassifier, MondrianForestClassifier
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.sums.exact_sums import whole_shares
from dmondrian.growth import range as range_growth
from dmondrian.tree import nodes, prefetch
from dmondrian.tree.address_table import table_of, tree_at
from dmondrian.tree.box_encoding import Row, row_of
from dmondrian.tree.box_encoding_choice import query_rows, without_boxes
from dmondrian.tree.keyed_random import tree_key
from dmondrian.tree.nodes import _with_views
from dmondrian.tree.policies import grow
from dmondrian.tree.prefetch import (
    _BOXES,
    _FEW,
    _N_NEAR,
    N_AHEAD,
    N_NOTED,
    CachedPath,
    PrefetchedPath,
    RowInTrees,
    RowsInTree,
    fetch_boxes,
    look_ahead,
    prefetch_for,
)

N = 500


def chain(estimator: AMFClassifier | MondrianForestClassifier) -> tuple[Ensemble, np.ndarray]:
    """Trees that mostly part the largest point from all others, and those points."""
    X = (2.0 ** (126 - 0.5 * np.arange(N))).astype(np.float32)[:, None]
    forest = Ensemble(estimator._forest_parameters(1, 2), range(3))
    forest.update(X, np.arange(N) % 2 * 1.0)
    return forest, X


def depth_of(tree: nodes.Tree) -> int:
    depths, deepest = {int(tree.head_i[nodes.ROOT]): 0}, 0
    waiting = list(depths)
    while waiting:
        v = waiting.pop()
        deepest = max(deepest, depths[v])
        for child in tree.i[v, [nodes.LEFT, nodes.RIGHT]].tolist():
            if child >= 0:
                depths[child] = depths[v] + 1
                waiting.append(child)
    return deepest


@pytest.mark.parametrize(
    "estimator",
    [
        AMFClassifier(random_state=0, predict_extension="leaf"),
        AMFClassifier(random_state=0, predict_extension="expected"),
        pytest.param(
            MondrianForestClassifier(random_state=0, aggregation="hierarchy", lifetime=None),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["leaf", "expected", "hierarchy"],
)
def test_paths_that_are_noted_are_those_of_the_splits(
    estimator: AMFClassifier | MondrianForestClassifier,
) -> None:
    forest, X = chain(estimator)
    assert min(depth_of(tree) for tree in forest.trees) > N_NOTED
    assert N > N_AHEAD  # so a second block comes, over the notes of the first
    asked = np.concatenate([X, 0.75 * X]).astype(np.float32)
    batch = forest.predict_sums(asked).total
    alone = np.concatenate([forest.predict_sums(row[None]).total for row in asked])
    assert batch.tobytes() == alone.tobytes()
    lifetime = np.array([forest.parameters.lifetime_at(float(N))])
    by_tree = forest.answers(asked, forest.policies, lifetime, 2)[:, :, 0]
    assert np.allclose(by_tree.sum(axis=0), batch, rtol=1e-14)
    for i in (0, 30, N - 1, N, 2 * N - 1):  # of rows that are learned next no way is noted
        other, _ = chain(estimator)
        first = np.zeros(1, np.int64)
        reported, _ = other.answer_and_learn(
            asked[i : i + 1], np.zeros(1), None, 1, first, lifetime
        )
        assert (reported[0] == sum(whole_shares(answer[i : i + 1])[0] for answer in by_tree)).all()


@numba.njit(error_model="numpy")
def looked_ahead(table, columns, rows, scratch, at, noted, is_by_row):  # type: ignore[no-untyped-def]  # compiled for what it is given
    if is_by_row:
        for r in range(rows.values.shape[0]):
            ways = RowInTrees(table, columns, row_of(rows, r), 0, scratch)
            look_ahead(ways, table.shape[0], at[r], noted[r], True, False)
    else:
        for t in range(table.shape[0]):
            ways = RowsInTree(tree_at(table, t, columns, scratch), rows, 0)
            look_ahead(ways, rows.values.shape[0], at[t], noted[t], True, True)


@numba.njit(error_model="numpy")
def taken_in(growth, stat, rule, tree, x, y, key, prefetched):  # type: ignore[no-untyped-def]  # as above
    return grow(growth, stat, rule, tree, x, y, key, prefetched)


def way_in(tree: nodes.Tree, row: np.ndarray) -> list[int]:
    """Return the nodes on a row's way, below the root."""
    v, found = int(tree.head_i[nodes.ROOT]), []
    while tree.i[v, nodes.LEFT] >= 0:
        goes_left = row[tree.i[v, nodes.FEATURE]] <= tree.f[v, nodes.THRESHOLD]
        v = int(tree.i[v, nodes.LEFT if goes_left else nodes.RIGHT])
        found.append(v)
    return found


@pytest.mark.parametrize("is_by_row", [False, True])
@pytest.mark.parametrize("n_rows", [1, 40, 500])
def test_leaves_depths_and_ways_are_those_of_the_trees(n_rows: int, is_by_row: bool) -> None:
    forest, X = chain(AMFClassifier(random_state=0))
    if n_rows < N:
        forest = Ensemble(forest.parameters, range(3))
        forest.update(X[:n_rows], np.arange(n_rows) % 2 * 1.0)
    rows, columns = without_boxes(X[N - N_AHEAD :]), forest.trees[0].columns
    first, second = (len(X[:N_AHEAD]), 3) if is_by_row else (3, N_AHEAD)
    at = np.zeros((first, 4 * N_AHEAD), np.int64)
    noted = np.zeros((first, N_AHEAD, N_NOTED), np.int32)
    table, scratch = table_of(forest.trees), forest.trees[0].scratch
    looked_ahead(table, columns, rows, scratch, at, noted, is_by_row)
    for i, j in itertools.product(range(first), range(second)):
        r, t = (i, j) if is_by_row else (j, i)
        way = way_in(forest.trees[t], rows.values[r])
        assert at[i, j] == [int(forest.trees[t].head_i[nodes.ROOT]), *way][-1]
        assert at[i, N_AHEAD + j] == len(way)
        known = way[:N_NOTED]
        assert noted[i, j, : len(known)].tolist() == known


@pytest.mark.parametrize("is_by_row", [False, True])
@pytest.mark.parametrize("with_boxes", [False, True])
@pytest.mark.parametrize("n_ways", [1, 2, 3, _FEW, _FEW + 1, N_AHEAD])
def test_boxes_are_asked_for_once_and_before_their_turn(
    n_ways: int, with_boxes: bool, is_by_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {f.__name__: getattr(f, "py_func", f) for f in (look_ahead, prefetch_for)}
    asked: list[int] = []
    forest = Ensemble(AMFClassifier(random_state=0)._forest_parameters(2, 2), range(N_AHEAD))
    X = np.random.default_rng(0).random((N_AHEAD, 2)).astype(np.float32)
    forest.update(X, np.arange(N_AHEAD) % 2 * 1.0)
    rows, tree = without_boxes(X), forest.trees[0]
    by_row = RowInTrees(table_of(forest.trees), tree.columns, row_of(rows, 0), 0, tree.scratch)
    ways = by_row if is_by_row else RowsInTree(tree, rows, 0)
    at, noted = np.zeros(4 * N_AHEAD, np.int64), np.zeros((N_AHEAD, N_NOTED), np.int32)
    # Only now: kernels are compiled of what has these names.
    monkeypatch.setattr(prefetch, "look_ahead", plain["look_ahead"])
    depths: list[int] = []

    def ask(tree: nodes.Tree, leaf: int, known: np.ndarray, depth: int) -> None:
        asked.append(int(leaf))
        depths.append(int(depth))
        assert [int(tree.head_i[nodes.ROOT]), *known[:depth]][-1] == leaf

    monkeypatch.setattr(prefetch, "fetch_boxes", ask)
    for number in range(n_ways):
        plain["prefetch_for"](ways, number, n_ways, at, noted, with_boxes, False)
        soon = n_ways if n_ways <= _FEW else min(number + _N_NEAR + 1, n_ways)
        assert sorted(asked) == sorted(at[: soon if with_boxes else 0])
    trees = forest.trees[:n_ways] if is_by_row else [tree] * n_ways
    reported = X[:1].repeat(n_ways, axis=0) if is_by_row else X[:n_ways]
    leaves = [way_in(t, x)[-1] for t, x in zip(trees, reported, strict=True)]
    assert sorted(asked) == (sorted(leaves) if with_boxes else [])
    ends = [len(way_in(t, x)) for t, x in zip(trees, reported, strict=True)]
    assert sorted(depths) == (sorted(ends) if with_boxes else [])


@pytest.mark.parametrize("n_noted", [N_NOTED, 20])
def test_the_boxes_that_are_asked_for_are_the_lowest_on_the_way(
    n_noted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forest, X = chain(AMFClassifier(random_state=0))
    tree, lengths = forest.trees[0], set()
    boxes: list[int] = []
    bits: list[int] = []
    ask = getattr(fetch_boxes, "py_func", fetch_boxes)
    to = {id(tree.box): boxes, id(tree.bits): bits}
    monkeypatch.setattr(prefetch, "prefetch", lambda array, v: to[id(array)].append(v))
    monkeypatch.setattr(prefetch, "N_NOTED", n_noted)
    for row in X[::7]:
        way = way_in(tree, row)
        known = np.array(way[:n_noted], np.int32)
        boxes.clear(), bits.clear()
        ask(tree, way[-1], known, np.int64(len(way)))
        assert boxes == bits == way[: -_BOXES - 1 : -1]
        lengths.add(len(way))
    assert min(lengths) < _BOXES < N_NOTED + _BOXES < max(lengths)


def with_capacity(tree: nodes.Tree) -> nodes.Tree:
    """Return a copy with capacity for a hundred nodes more."""
    i, box, bits = (
        np.concatenate([a, np.zeros((100, a.shape[1]), a.dtype)])
        for a in (tree.i, tree.box, tree.bits)
    )
    return _with_views(tree._replace(i=i, box=box, bits=bits, head_i=tree.head_i.copy()))


def missed(
    tree: nodes.Tree, leaf: int, prefetched: PrefetchedPath | CachedPath, n_noted: int
) -> list[int]:
    """Return the nodes above a leaf for which another is expected."""
    v, level, found = leaf, n_noted - 1, []
    while (parent := int(tree.i[v, nodes.PARENT])) >= 0:
        if parent == (prefetched.nodes[level] if level >= 0 else tree.head_i[nodes.ROOT]):
            level -= 1
        else:
            found.append(parent)
        v = parent
    return found


@pytest.mark.parametrize(
    "estimator",
    [
        AMFClassifier(random_state=0, feature_scales=None),
        pytest.param(
            AMFClassifier(random_state=0, domain="cube"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            MondrianForestClassifier(random_state=0, domain="cube", lifetime=4.0),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["range", "cube", "cube, stopped"],
)
def test_a_row_that_is_taken_in_finds_its_way_up_as_noted(
    estimator: AMFClassifier | MondrianForestClassifier,
) -> None:
    X = np.random.default_rng(0).random((250, 2)).astype(np.float32)
    forest = Ensemble(estimator._forest_parameters(2, 2), range(1))
    growth, stat, _, rule = forest.policies
    deepest = n_inserted = 0
    for r in range(len(X)):
        tree = with_capacity(forest.trees[0])
        way = way_in(tree, X[r]) if r else []
        known, leaf = np.full(N_NOTED, -7, np.int32), [int(tree.head_i[nodes.ROOT]), *way][-1]
        known[: len(way)] = way
        prefetched, x = PrefetchedPath(leaf, 0, known, len(way)), row_of(without_boxes(X), r)
        key = tree_key(np.uint64(0), np.uint64(0))
        leaf, _, inserted, n_noted = taken_in(growth, stat, rule, tree, x, 0.0, key, prefetched)
        n_before = forest.trees[0].head_i[nodes.N_NODES]
        assert all(new >= n_before for new in missed(tree, leaf, prefetched, n_noted))
        deepest, n_inserted = max(deepest, len(way)), n_inserted + (inserted >= 0)
        forest.update(X[r : r + 1], np.array([r % 2 * 1.0]))
    assert deepest > 5
    assert (n_inserted > 50) == (estimator.domain == "range")


def test_boxes_are_looked_at_on_the_way_up_that_was_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    forest, X = chain(AMFClassifier(random_state=0))
    tree, wrong = forest.trees[0], []
    find, climb = (
        getattr(f, "py_func", f) for f in (range_growth.first_outside, range_growth.climb)
    )

    def note(
        tree: nodes.Tree, leaf: int, newest: int, x: Row, way: CachedPath
    ) -> tuple[int, int, int]:
        wrong.append(missed(tree, leaf, way, way.n))
        return climb(tree, leaf, newest, x, way)

    monkeypatch.setattr(range_growth, "climb", note)
    new = np.concatenate([0.75 * X[::7], -X[::100]]).astype(np.float32)  # beside rows, and below
    rows = query_rows(new, tree.columns)
    for r in range(len(new)):
        way, x = way_in(tree, new[r]), row_of(rows, r)
        known = np.full(N_NOTED, -7, np.int32)
        known[: len(way)] = way[:N_NOTED]
        others = known.copy()
        others[::3] = 0
        reported = [
            find(tree, PrefetchedPath(way[-1], 0, nodes_on, np.int64(len(way))), x)
            for nodes_on in (known, others, np.zeros_like(known))
        ]
        assert reported[0] == reported[1] == reported[2]
        assert len(wrong[-3]) == max(len(way) - 1 - N_NOTED, 0)  # those that are not noted
        assert len(wrong[-1]) >= len(way) - 2
        assert new[r] > 0.0 or reported[0][0] == tree.head_i[nodes.ROOT]
