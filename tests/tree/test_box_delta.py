"""Boxes as differences: nothing where they nest, and whatever they were, to the last bit."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest import forest as forest_module
from dmondrian.forest.forest import Forest
from dmondrian.tree import nodes
from dmondrian.tree.box_delta import add_differences, box_differences
from dmondrian.tree.box_encoding import Columns, Stepped, all_numeric, make_columns
from dmondrian.tree.sparse_rows import SparseRows, dense_rows

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
    lower, upper = box_differences(tree, int(tree.head_i[nodes.N_NODES]))
    return dense_rows(lower), dense_rows(upper)


def rank(bits: np.ndarray) -> np.ndarray:
    """An integer that rises with the float of these bits."""
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


def reference(tree: nodes.Tree) -> tuple[np.ndarray, np.ndarray]:
    """Differences of all bounds as floats, whatever a tree writes for them."""
    m = int(tree.head_i[nodes.N_NODES])
    low, high = (np.array(end).view(np.int32) for end in nodes.read_boxes(tree, slice(0, m)))
    a, b = tree.i[:m, nodes.LEFT], tree.i[:m, nodes.RIGHT]
    lower, upper = low.copy(), high ^ low
    inside = (a >= 0) & (a < m) & (b >= 0) & (b < m)
    a, b = a[inside], b[inside]
    lower[inside] = low[inside] ^ rank(np.minimum(rank(low[a]), rank(low[b])))
    upper[inside] = high[inside] ^ rank(np.maximum(rank(high[a]), rank(high[b])))
    return lower, upper


def encoded(rng: np.random.Generator) -> Columns:
    """Columns of some features of each kind, in any order, up to three words of two values."""
    kinds = [int(rng.integers(0, most + 1)) for most in (4, 12, 130)]
    _, stepped, binary = np.split(rng.permutation(sum(kinds) + 1), np.cumsum(kinds)[:2] + 1)
    units = 2.0 ** rng.integers(-20, 4, len(stepped)) if rng.random() < 0.5 else None
    steps = Stepped(
        np.sort(stepped),
        np.full(len(stepped), 0.25) if units is None else units,
        rng.integers(-9, 9, len(stepped)),
    )
    values = rng.choice(np.array([0.0, 1.0, 0.25, -3.0, 1e-45], np.float32), (len(binary), 2))
    values[:, 0] = np.where(rng.random(len(binary)) < 0.5, 0.0, values[:, 0])
    return make_columns(sum(kinds) + 1, np.sort(binary), values, steps)


def filled(
    columns: Columns, n_leaves: int, rng: np.random.Generator, nests: bool, has_rows: bool
) -> nodes.Tree:
    """A tree of any shape, its leaves with any boxes, its splits with theirs together or any.

    Without ``has_rows`` there may be neither value of a feature, as in cells of the cube.
    """
    links = shape(n_leaves, rng)
    m = len(links["left"])
    tree = nodes.make_tree(columns, 3, m)
    tree.head_i[nodes.ROOT], tree.head_i[nodes.N_NODES] = root(links), m
    tree.i[:, nodes.LEFT], tree.i[:, nodes.RIGHT] = links["left"], links["right"]
    p, g, b = len(columns.numeric), len(columns.stepped), len(columns.binary)
    tree.box[:, : 2 * p] = rng.choice(ODD, (m, 2 * p))
    ends = rng.integers(-6, 6, (m, 2 * g))
    ends[:, :g] = np.where(rng.random((m, g)) < 0.5, ends[:, g:], ends[:, :g])
    tree.steps[:, 4 * p : 4 * p + 2 * g] = ends
    seen = rng.random((2, m, b)) < rng.choice([0.2, 0.5, 0.9])
    seen[0] |= ~seen[1] & has_rows
    if nests:
        close(tree, links, seen)
    words = np.zeros((m, 2, tree.bits.shape[1] // 2 * 8), np.uint8)
    words[:, :, : -(-b // 8)] = np.packbits(seen, axis=2, bitorder="little").transpose(1, 0, 2)
    tree.bits[:] = words.reshape(m, -1).view("<u8")
    return tree


def close(tree: nodes.Tree, links: dict[str, np.ndarray], seen: np.ndarray) -> None:
    """Give each split the smallest box around its children's."""
    p, g = len(tree.columns.numeric), len(tree.columns.stepped)
    bits = tree.box.view(np.int32)

    def visit(v: int) -> None:
        a, b = int(links["left"][v]), int(links["right"][v])
        if a < 0:
            return
        visit(a)
        visit(b)
        seen[:, v] = seen[:, a] | seen[:, b]
        low, high = slice(0, p), slice(p, 2 * p)
        bits[v, low] = rank(np.minimum(rank(bits[a, low]), rank(bits[b, low])))
        bits[v, high] = rank(np.maximum(rank(bits[a, high]), rank(bits[b, high])))
        low, high = slice(4 * p, 4 * p + g), slice(4 * p + g, 4 * p + 2 * g)
        tree.steps[v, low] = np.minimum(tree.steps[a, low], tree.steps[b, low])
        tree.steps[v, high] = np.maximum(tree.steps[a, high], tree.steps[b, high])

    visit(root(links))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.booleans(), st.booleans())
def test_differences_are_those_of_bounds_as_floats(
    seed: int, n_leaves: int, nests: bool, has_rows: bool
) -> None:
    rng = np.random.default_rng(seed)
    tree = filled(encoded(rng), n_leaves, rng, nests, has_rows)
    for expected, found in zip(reference(tree), differences(tree), strict=True):
        assert expected.tobytes() == found.tobytes()


def test_a_tree_of_some_blocks_of_nodes() -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        tree = filled(encoded(rng), 1800, rng, nests=True, has_rows=True)
        for expected, found in zip(reference(tree), differences(tree), strict=True):
            assert expected.tobytes() == found.tobytes()


def test_boxes_of_each_kind_that_nest_differ_by_nothing() -> None:
    steps = Stepped(np.array([1, 4]), np.array([0.5, 0.5]), np.array([3.0, -2.0]))
    values = np.array([[0.0, 1.0], [-1.0, 0.5], [2.0, 2.0]], np.float32)
    rng = np.random.default_rng(3)
    tree = filled(make_columns(6, np.array([0, 2, 5]), values, steps), 200, rng, True, True)
    inside = tree.i[:, nodes.LEFT] >= 0
    for found in differences(tree):
        assert not found.view(np.int32)[inside].any()
        assert found.view(np.int32)[~inside].any()


def test_how_boxes_are_written_changes_no_byte_of_what_is_stored() -> None:
    """Floats where there were steps and bits: the same blob."""
    rng = np.random.default_rng(4)
    X = (rng.integers(0, 40, (300, 9)) / 8.0).astype(np.float32)
    X[:, 4:7], X[:, 8] = X[:, 4:7] > 2.0, rng.random(300)
    forest = Forest(ForestParameters("amf-classifier", 9, 2, seed=0), range(2))
    forest.update(X, (X[:, 0] > 2.0).astype(np.float64))
    trees = forest.trees
    kinds = trees[0].columns
    assert [len(kinds.numeric), len(kinds.stepped), len(kinds.binary)] == [1, 5, 3]
    plain = [nodes.lay_out(tree, all_numeric(9)) for tree in trees]
    for tree, other in zip(trees, plain, strict=True):
        m = int(tree.head_i[nodes.N_NODES])
        for one, two in zip(box_differences(tree, m), box_differences(other, m), strict=True):
            assert one.marks.tobytes() == two.marks.tobytes()
            assert one.words.tobytes() == two.words.tobytes()


@pytest.mark.parametrize("least", [0, 10**6])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_stored_is_what_was(name: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest_module, "LEAST_SPARSE", least)
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


def test_wide_fields_are_without_zeros_where_a_tree_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(6)
    X = rng.random((200, D)).astype(np.float32)
    forest = Forest(ForestParameters("amf-classifier", D, 2, seed=1), range(2))
    forest.update(X, (X[:, 0] > 0.5).astype(np.float64))
    sizes = [int(tree.head_i[nodes.N_NODES]) for tree in forest.trees]
    assert len(set(sizes)) > 1
    read = []
    for least, is_sparse in ((max(sizes), True), (max(sizes) + 1, False)):
        monkeypatch.setattr(forest_module, "LEAST_SPARSE", least)
        for tree in forest.stored()[1]:
            wide = {name for name, array in tree.items() if isinstance(array, SparseRows)}
            assert wide == ({"stat", "lower", "upper"} if is_sparse else set())
        read.append(decode_forest(encode_forest(*forest.stored())))
    (header, trees), (other, others) = read
    assert header == other
    for one, two in zip(trees, others, strict=True):
        assert {name: array.tobytes() for name, array in one.items()} == {
            name: array.tobytes() for name, array in two.items()
        }


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
