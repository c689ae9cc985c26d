"""Boxes as differences: nothing where they nest, and whatever they were, to the last bit."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest

from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from dmondrian.tree import nodes
from dmondrian.tree.box_delta import add_differences, take_differences
from dmondrian.tree.box_encoding import all_numeric

D = 5
KINDS = {
    "classifier": {"algorithm": "amf-classifier", "n_classes": 3},
    "leaves of several rows": {"algorithm": "amf-classifier", "n_classes": 3, "max_nodes": 41},
    "regressor": {"algorithm": "amf-regressor", "n_classes": 0},
    "cells without rows": {"algorithm": "amf-classifier", "n_classes": 3, "domain": "cube"},
    "no rows": {"algorithm": "amf-regressor", "n_classes": 0},
}
ODD = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 3e38, -1.5], np.float32)


def grown(name: str) -> Forest:
    given = {"n_features": D, "seed": 3, "split_pure": True}
    forest = Forest(ForestParameters(**{**given, **KINDS[name]}), range(2))
    rng = np.random.default_rng(5)
    X = rng.random((0 if name == "no rows" else 300, D)).astype(np.float32)
    X[:, 1] = X[:, 1] > 0.5
    X[:, 2:4] = np.round(X[:, 2:4], 1)
    X[::7, 2] = -0.0 if forest.parameters.domain == "range" else 0.0
    X[:, 4] = X[:, 1]
    forest.update(X, np.floor(3 * X[:, 0]).astype(np.float64))
    return forest


def differences(tree: nodes.Tree) -> tuple[np.ndarray, np.ndarray]:
    lower, upper = np.full((2, int(tree.head_i[nodes.N_NODES]), D), np.nan, np.float32)
    take_differences(tree, lower, upper)
    return lower, upper


@pytest.mark.parametrize("name", KINDS)
def test_what_is_stored_is_what_was(name: str) -> None:
    forest = grown(name)
    header, trees = forest.state()
    reported, stored = decode_forest(encode_forest(*forest.stored()))
    assert reported == {**header, "format": 3}
    again = Forest.from_state(reported, stored)
    assert reported == header
    for mine, read, theirs in zip(trees, stored, again.state()[1], strict=True):
        assert {key: array.tobytes() for key, array in mine.items()} == {
            key: array.tobytes() for key, array in theirs.items()
        }
        assert mine["lower"].tobytes() == read["lower"].tobytes()
    assert encode_forest(*again.stored()) == encode_forest(*forest.stored())


@pytest.mark.parametrize("name", ["classifier", "leaves of several rows", "regressor"])
def test_boxes_that_nest_differ_by_nothing(name: str) -> None:
    for tree in grown(name).trees:
        lower, upper = (array.view(np.int32) for array in differences(tree))
        reported = nodes.fields(tree)
        inside = reported["left"] >= 0
        assert inside.sum() > 15
        # Zeros of both signs are one number, and which of them a box has is not for boxes to say.
        for array, end in ((lower, reported["lower"]), (upper, reported["upper"])):
            assert not array[inside[:, None] & (end != 0.0)].any()
            assert (array[inside] & 0x7FFFFFFF == 0).all()
        assert lower[~inside].tobytes() == reported["lower"][~inside].tobytes()
        is_point = reported["lower"] == reported["upper"]
        assert not upper[~inside[:, None] & is_point].any()
        assert upper[~inside].any() == (name == "leaves of several rows")


def test_a_stored_forest_takes_less() -> None:
    forest = grown("classifier")
    assert len(encode_forest(*forest.stored())) < 0.8 * len(encode_forest(*forest.state()))


def test_any_bounds_come_back() -> None:
    """Boxes that nest in no way, of numbers that are none, in trees of any shape."""
    rng = np.random.default_rng(0)
    for n_leaves in (1, 2, 3, 40):
        links = shape(n_leaves, rng)
        m = len(links["left"])
        tree = nodes.make_tree(all_numeric(D), 3, m)
        tree.head_i[nodes.ROOT], tree.head_i[nodes.N_NODES] = root(links), m
        tree.i[:, nodes.LEFT], tree.i[:, nodes.RIGHT] = links["left"], links["right"]
        tree.box[:] = rng.choice(ODD, (m, 2 * D))
        lower, upper = differences(tree)
        back = add_differences({**links, "lower": lower, "upper": upper}, root(links))
        assert back["lower"].tobytes() == np.ascontiguousarray(tree.box[:, :D]).tobytes()
        assert back["upper"].tobytes() == np.ascontiguousarray(tree.box[:, D:]).tobytes()


def test_bounds_are_written_where_their_differences_were() -> None:
    reported, stored = decode_forest(encode_forest(*grown("classifier").stored()))
    given = [(tree["lower"], tree["upper"]) for tree in stored]
    Forest.from_state(reported, stored)
    for tree, (lower, upper) in zip(stored, given, strict=True):
        assert np.shares_memory(tree["lower"], lower)
        assert np.shares_memory(tree["upper"], upper)


def test_arrays_that_are_read_only_stay_as_they_are() -> None:
    links = {"left": [1, -1, -1], "right": [2, -1, -1], "parent": [-1, 0, 0]}
    given = {name: np.array(values, np.int32) for name, values in links.items()}
    ends = {name: np.ones((3, D), np.float32) for name in ("lower", "upper")}
    for array in ends.values():
        array.flags.writeable = False
    assert (add_differences({**given, **ends}, 0)["upper"] == 0.0).any()
    assert all((array == 1.0).all() for array in ends.values())


def test_either_child_may_be_the_left_one() -> None:
    rng = np.random.default_rng(1)
    tree = nodes.make_tree(all_numeric(D), 3, 3)
    tree.head_i[nodes.ROOT], tree.head_i[nodes.N_NODES] = 0, 3
    tree.i[:, nodes.LEFT], tree.i[:, nodes.RIGHT] = [1, -1, -1], [2, -1, -1]
    for _ in range(20):
        tree.box[:] = rng.choice(ODD, (3, 2 * D))
        reported = [end.tobytes() for end in differences(tree)]
        tree.i[0, [nodes.LEFT, nodes.RIGHT]] = tree.i[0, [nodes.RIGHT, nodes.LEFT]]
        assert reported == [end.tobytes() for end in differences(tree)]


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="where the processor's settings lie is another thing elsewhere",
)
def test_the_processor_may_take_small_numbers_for_zero() -> None:
    """Libraries compiled with -ffast-math leave a thread so."""
    forest = Forest(ForestParameters("amf-classifier", D, 2, seed=0, split_pure=True), [0])
    X = np.random.default_rng(0).integers(0, 50, (200, D)).astype(np.int32).view(np.float32)
    forest.update(X, np.arange(200.0) % 2)
    libm, own, other = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    assert libm.fegetenv(own) == libm.fegetenv(other) == 0
    other[7] |= 0x8040  # the last word is MXCSR: denormals are zeros, flush to zero
    plain = encode_forest(*forest.stored())
    try:
        assert libm.fesetenv(other) == 0
        assert np.float32(1e-45) == 0.0
        found = encode_forest(*forest.stored())
        reported = add_differences(
            decode_forest(plain)[1][0], int(forest.trees[0].head_i[nodes.ROOT])
        )
    finally:
        assert libm.fesetenv(own) == 0
    assert found == plain
    mine = nodes.fields(forest.trees[0])
    assert {name: end.tobytes() for name, end in reported.items()} == {
        name: mine[name].tobytes() for name in reported
    }


def test_nothing_beyond_the_nodes_is_read() -> None:
    """A tree that learns meanwhile has links to nodes that came later."""
    tree = nodes.make_tree(all_numeric(D), 3, 40)
    tree.head_i[nodes.ROOT], tree.head_i[nodes.N_NODES] = 0, 3
    tree.i[:3, nodes.LEFT], tree.i[:3, nodes.RIGHT] = [1, 20, -1], [2, 21, -1]
    tree.box[:3] = np.arange(3 * 2 * D).reshape(3, 2 * D)
    found = []
    for beyond in (1.0, -7.0):
        tree.box[3:] = beyond
        found.append([end.tobytes() for end in differences(tree)])
    assert found[0] == found[1]


def test_a_deep_tree() -> None:
    n = 30_000
    left = np.concatenate([np.arange(1, n), np.full(n, -1)]).astype(np.int32)
    right = np.concatenate([np.arange(n, 2 * n - 1), np.full(n, -1)]).astype(np.int32)
    parent = np.full(2 * n - 1, -1, np.int32)
    left, right = left[: 2 * n - 1], right[: 2 * n - 1]
    parent[left[: n - 1]] = parent[right[: n - 1]] = np.arange(n - 1)
    links = {"left": left, "right": right, "parent": parent}
    ends = np.zeros((2 * n - 1, D), np.float32)
    ends[left < 0] = np.arange(n, dtype=np.float32)[:, None]
    reported = add_differences({**links, "lower": ends, "upper": np.zeros_like(ends)}, 0)
    assert (reported["lower"][0] == 0.0).all()
    assert (reported["upper"][0] == n - 1).all()
    assert (reported["lower"] <= reported["upper"]).all()


def shape(n_leaves: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Links of a random tree, its nodes in random order."""
    m = 2 * n_leaves - 1
    number, open_ = rng.permutation(m).astype(np.int32), [0]
    left, right, parent = np.full((3, m), -1, np.int32)
    for v in range(0, m - 1, 2):
        above = open_.pop(rng.integers(len(open_)))
        a, b, up = number[v + 1], number[v + 2], number[above]
        left[up], right[up], parent[a], parent[b] = a, b, up, up
        open_ += [v + 1, v + 2]
    return {"left": left, "right": right, "parent": parent}


def root(links: dict[str, np.ndarray]) -> int:
    return int(np.flatnonzero(links["parent"] < 0)[0])
