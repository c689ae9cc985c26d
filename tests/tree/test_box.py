"""Bounds of how far a row lies outside a box: never less than it is, and little more."""

from __future__ import annotations

import platform
from typing import Any

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from dmondrian.tree import nodes
from dmondrian.tree.box import distance_to, enclose, measure, measure_bound, stretch
from dmondrian.tree.box_encoding import (
    Columns,
    Row,
    Rows,
    Stepped,
    all_numeric,
    make_columns,
    n_words,
    row_of,
)


@numba.njit
def measured(tree, boxes, x):  # type: ignore[no-untyped-def]  # compiled for what it is given
    """Return what is measured of ``x``, float64 [n, 3], for the boxes of n pairs of rows."""
    found = np.empty((boxes.values.shape[0] // 2, 3))
    for r in range(found.shape[0]):
        enclose(tree, 0, row_of(boxes, 2 * r))
        stretch(tree, 0, row_of(boxes, 2 * r + 1))
        found[r, 0] = measure(tree, 0, x, tree.scratch)
        found[r, 1] = measure_bound(tree, 0, x)
        found[r, 2] = distance_to(tree, 0, x, tree.scratch)
    return found


def as_rows(columns: Columns, X: np.ndarray) -> Rows:
    """Return rows as kernels take them, bit by bit."""
    half = n_words(columns) // 2
    bits = np.zeros((len(X), 2 * half), np.uint64)
    for k, j in enumerate(columns.binary):
        for side in range(2):
            has = X[:, j] == columns.values[k, side]
            bits[has, side * half + k // 64] |= np.uint64(1) << np.uint64(k % 64)
    steps = X[:, columns.stepped] / columns.units - columns.origins
    numeric = np.ascontiguousarray(X[:, columns.numeric])
    return Rows(X, numeric, np.ascontiguousarray(steps, np.int16), bits)


def reported(columns: Columns, X: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return measures of ``x`` and their bounds for boxes of pairs of rows of ``X``."""
    tree, row = nodes.make_tree(columns, 1, 1), as_rows(columns, x[None])
    found = measured(tree, as_rows(columns, X), Row(*(part[0] for part in row)))
    assert found[:, 2].tobytes() == found[:, 0].tobytes()  # in whatever order it is looked at
    return found[:, 0], found[:, 1]


def test_bounds_are_above_and_near() -> None:
    kinds = (1, 0, 0), (7, 0, 0), (20, 0, 0), (33, 0, 0), (9, 4, 0), (80, 70, 0), (140, 131, 0)
    stepped = (1, 0, 1), (8, 0, 8), (20, 0, 20), (33, 0, 33), (20, 0, 5), (9, 4, 5), (140, 70, 50)
    for d, n_binary, n_stepped in kinds + stepped:
        rng = np.random.default_rng([d, n_binary])
        order = rng.permutation(d)
        binary, written = np.sort(order[:n_binary]), np.sort(order[n_binary:][:n_stepped])
        values = rng.normal(size=(n_binary, 2)).astype(np.float32)
        units = np.exp2(rng.integers(-12, -9, n_stepped))
        origins = rng.integers(-9, 9, n_stepped)
        columns = make_columns(d, binary, values, Stepped(written, units, origins))
        X = rng.normal(size=(201, d)).astype(np.float32)
        tiny = np.setdiff1d(np.arange(d), written)[::2]  # sums of these and others are rounded
        X[:, tiny] *= np.float32(1e-9)
        X[:, written] = np.rint(X[:, written] / units) * units + 0.0
        X[:, binary] = values[np.arange(n_binary), rng.integers(2, size=(201, n_binary))]
        X[:50] = X[-1]  # boxes of which some hold the row
        total, bound = reported(columns, X[:-1], X[-1])
        assert total.tobytes() == reported(all_numeric(d), X[:-1], X[-1])[0].tobytes()
        assert 25 <= np.count_nonzero(total == 0.0) < 100
        assert (total[bound == 0.0] == 0.0).all()
        assert (bound >= total).all()
        assert (bound <= total * (1.0 + (d + 16) * 2.0**-22)).all()


def test_bounds_are_above_where_float32_loses_most() -> None:
    """Each lane adds 1 to 2^24 again and again, of which nothing remains."""
    d = 16 * 200
    x = np.ones(d, np.float32)
    x[:16] = 2.0**24
    (total,), (bound,) = reported(all_numeric(d), np.zeros((2, d), np.float32), x)
    assert total == 16 * 2.0**24 + d - 16
    assert bound >= total


def _switches(name: str) -> Any:
    """Return a function that reads or sets the word of the processor's switches."""

    @intrinsic
    def move(typing_context, word):  # type: ignore[no-untyped-def]  # numba's signature
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # as above
            place, byte = cgutils.alloca_once_value(builder, args[0]), ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte])
            function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.sse.{name}")
            builder.call(function, [builder.bitcast(place, byte)])
            return builder.load(place)

        return types.uint32(types.uint32), generate

    return numba.njit(lambda word: move(np.uint32(word)))


@pytest.mark.skipif(
    config.DISABLE_JIT or platform.machine() != "x86_64", reason="the processor's own switches"
)
def test_numbers_flushed_to_zero_hide_no_row() -> None:
    """As libraries that were built with -ffast-math make a processor do."""
    X = np.random.default_rng(0).uniform(1.2e-38, 1.3e-38, (200, 5)).astype(np.float32)
    y = np.arange(200) % 2.0
    given: dict = {
        "algorithm": "amf-classifier",
        "n_features": 5,
        "n_classes": 2,
        "split_pure": True,
    }

    def learned() -> list[bytes]:
        forest = Forest(ForestParameters(**given, seed=1), [0, 1])
        forest.update(X, y)
        return [array.tobytes() for tree in forest.state()[1] for array in tree.values()]

    read, write, zero_for_tiny = _switches("stmxcsr"), _switches("ldmxcsr"), 0x8000
    expected, before = learned(), int(read(0))
    try:
        write(before | zero_for_tiny)
        difference = X[0, 0] - X[1, 0]
        found = learned()
    finally:
        write(before)
    assert difference == 0.0
    assert found == expected
