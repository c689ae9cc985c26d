"""Forests on the cube that learned parts of the rows are, together, the one that learned all."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from dmondrian.forest.merge import merge
from dmondrian.tree.invariants import check

N = 90
HANG_SECONDS = 300.0


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def rows(d: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of which all features but two take two values, the last one late."""
    rng = np.random.default_rng(d)
    X = (rng.random((N, d)) < 0.5).astype(np.float32)
    X[:, :2] = np.round(rng.random((N, 2)), 1)
    X[: N // 2, -1] = 0.0
    return X, (X[:, 0] > X[:, 2]).astype(np.float64)


def forest(of: slice) -> Forest:
    parameters = ForestParameters(
        "mondrian-forest-classifier", 6, 2, 3, aggregation="mean", domain="cube", lifetime=4.0
    )
    made = Forest(parameters, [0, 5])
    X, y = rows()
    made.update(X[of], y[of])
    return made


@pytest.mark.parametrize("cuts", [(0,), (N,), (40,), (0, 0), (0, 1, 1, 60), (N // 2, N)])
def test_parts_with_rows_or_without_are_the_whole(cuts: tuple[int, ...]) -> None:
    ends = [0, *cuts, N]
    parts = [forest(slice(a, b)) for a, b in pairwise(ends)]
    merged, whole = merge(parts), forest(slice(0, N))
    for tree in merged.trees:
        check(tree, may_be_empty=True)
    X, y = rows()
    query = np.random.default_rng(1).random((50, 6)).astype(np.float32)
    for _ in range(2):
        for asked in (X, query):
            expected = whole.predict_sums(asked).total
            np.testing.assert_array_equal(merged.predict_sums(asked).total, expected)
        merged.update(X[:, ::-1].copy(), y)
        whole.update(X[:, ::-1].copy(), y)


def test_sums_about_another_origin_are_those_of_labels() -> None:
    """Squares of labels at the origin of the first part are 0, and not below it by roundings."""
    parameters = ForestParameters(
        "mondrian-forest-regressor", 1, 0, 3, aggregation="mean", domain="cube", lifetime=50.0
    )
    X = np.array([[0.25], [0.75]], np.float32)
    for n in range(3, 40):
        origin = 1000.0 + n / 10.0
        parts = [Forest(parameters, [0]) for _ in range(2)]
        parts[0].update(X[:1], np.array([origin]))
        parts[1].update(X[[0] + [1] * n], np.append(1000.0, np.full(n, origin)))
        restored = Forest.from_state(*merge(parts).state())  # checks what is stored
        (tree,) = restored.state()[1]
        assert tree["stat"][:, 2].max() < 2.0 * (origin - 1000.0) ** 2


def test_parts_without_rows_are_a_forest_without_rows() -> None:
    merged = merge([forest(slice(0)), forest(slice(0))])
    assert merged.total_weight == 0.0
    X, y = rows()
    merged.update(X, y)
    expected = forest(slice(0, N)).predict_sums(X).total
    np.testing.assert_array_equal(merged.predict_sums(X).total, expected)
