"""Nodes along heavy paths: the same tree, bit for bit, in another order."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from dmondrian.tree import nodes, reorder


def draw(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of which each third column takes two values, and labels."""
    rng = np.random.default_rng(7)
    X = rng.random((n, d), np.float32)
    X[:, ::3] = X[:, ::3] > 0.5
    return X, (X[:, 1] + X[:, 0] * rng.random(n) > 0.7).astype(np.float64)


def grown(n: int = 700, d: int = 7, **given: Any) -> Forest:
    """Return a forest that keeps its nodes where they came in."""
    own = {"algorithm": "amf-classifier", "n_classes": 2, "n_features": d, "seed": 1, **given}
    forest = Forest(ForestParameters(**own), [0])
    forest.update(*draw(n, d))
    assert not len(forest.store.trees[0].ids)
    return forest


def expected_order(tree: nodes.Tree) -> list[int]:
    """Return the nodes from the root down, the heavier child first."""
    found, waiting = [], [int(tree.head_i[nodes.ROOT])]
    while waiting:
        v = waiting.pop()
        found.append(v)
        left, right = int(tree.i[v, nodes.LEFT]), int(tree.i[v, nodes.RIGHT])
        if left >= 0:
            is_left = tree.d[left, nodes.STAT] >= tree.d[right, nodes.STAT]
            waiting += [right, left] if is_left else [left, right]
    return found


KINDS = {
    "classes": {},
    "labels": {"algorithm": "amf-regressor", "n_classes": 0},
    "wide": {"d": 60},
    "cube": {"domain": "cube"},
    "steps": {"feature_units": (2.0**-8,) * 7},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_heavier_child_is_behind_its_parent_and_nothing_else_changes(kind: str) -> None:
    (tree,) = grown(**KINDS[kind]).store.trees
    before, root = nodes.fields(tree), int(tree.head_i[nodes.ROOT])
    order = expected_order(tree)
    tree = reorder.order_along_heavy_paths(tree)
    ids = tree.ids
    assert ids.tolist() == order
    assert ids[tree.head_i[nodes.ROOT]] == root
    after = nodes.fields(tree)
    for name, values in before.items():
        moved = after[name]
        if name in ("left", "right", "parent"):
            moved = np.where(moved < 0, moved, ids[moved])
        assert moved.tobytes() == values[ids].tobytes(), name
    back = reorder.in_order_of_ids(tree)
    assert all(nodes.fields(back)[name].tobytes() == before[name].tobytes() for name in before)
    assert back.head_i[nodes.ROOT] == root
    assert np.array_equal(back.head_f, tree.head_f)


def test_nodes_that_came_in_since_are_moved_with_those_that_were_moved() -> None:
    plain, (X, y) = grown(900), draw(900, 7)
    forest = Forest(plain.parameters, [0])
    forest.update(X[:300], y[:300])
    forest.store.replace(0, reorder.order_along_heavy_paths(forest.store.trees[0]))
    forest.update(X[300:], y[300:])
    (tree,), same = forest.store.trees, nodes.fields(plain.trees[0])
    m = int(tree.head_i[nodes.N_NODES])
    assert 0 < len(tree.ids) < m
    for moved in (tree, reorder.order_along_heavy_paths(tree)):
        ids = reorder.ids_of(moved)
        assert sorted(ids.tolist()) == list(range(m))
        told = reorder.ids_at(moved, np.array([-1.0, 0.0, m - 1.0]))
        assert told.tolist() == [-1.0, ids[0], ids[-1]]
    back = nodes.fields(reorder.in_order_of_ids(moved))
    assert len(moved.ids) == m
    assert all(back[name].tobytes() == same[name].tobytes() for name in same)


def test_a_tree_of_one_node() -> None:
    (tree,) = grown(1).store.trees
    before = nodes.fields(tree)
    moved = reorder.order_along_heavy_paths(tree)
    assert moved.ids.tolist() == [0]
    after = nodes.fields(moved)
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)
    assert tree.head_i[nodes.ROOT] == 0


def test_what_lacks_memory_leaves_the_tree_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    (tree,) = grown().store.trees
    words, boxes, root = tree.i.copy(), tree.box.copy(), int(tree.head_i[nodes.ROOT])

    def refuse(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(reorder, "ids_of", refuse)
    with pytest.raises(MemoryError):
        reorder.order_along_heavy_paths(tree)
    assert np.array_equal(tree.i, words)
    assert np.array_equal(tree.box.view(np.int32), boxes.view(np.int32))
    assert tree.head_i[nodes.ROOT] == root


_MOVED = """
import pathlib
import numpy as np
from dmondrian import AMFRegressor
def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
X = np.random.default_rng(0).random((60_000, 20), np.float32)
forest = AMFRegressor(n_estimators=1, random_state=0, feature_scales=None)
forest.partial_fit(X[:999], X[:999, 0]).forest_.move_nodes()  # compiles
forest.partial_fit(X[999:], X[999:, 0])
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
before = peak()
forest.forest_.move_nodes()
print((peak() - before) / forest.forest_.n_bytes, len(forest.forest_.store.trees[0].ids))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the most that was taken")
def test_a_move_takes_less_than_half_of_the_memory_of_the_tree_alone() -> None:
    """A forest of one tree, the worst case."""
    run = subprocess.run([sys.executable, "-c", _MOVED], capture_output=True, text=True, check=True)
    more, moved = run.stdout.split()
    assert int(moved) == 2 * 60_000 - 1
    assert 0.1 < float(more) < 0.35
