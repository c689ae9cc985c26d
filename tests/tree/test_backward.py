"""What a row teaches on its way up is the same, however nodes take their turns."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
import pytest

from dmondrian._numba.jit import inline
from dmondrian.losses.kt import KT, learn_above_kt
from dmondrian.losses.squared import Squared
from dmondrian.rules.aggregate import Aggregate
from dmondrian.stats.counts import Counts
from dmondrian.stats.moments import MOMENTS, Moments
from dmondrian.tree.backward import in_batches, node_by_node
from dmondrian.tree.box_encoding import boxless
from dmondrian.tree.nodes import (
    ETA,
    EXPONENT,
    LEFT,
    N_NODES,
    ODDS,
    PARENT,
    ROOT,
    STAT,
    Tree,
    make_tree,
)
from dmondrian.tree.prefetch import N_NOTED, CachedPath

LENGTHS = [0, 1, 7, 8, 47, 48, 49, 96, 130]


@functools.cache  # compiled for each test it would take minutes
def compiled(function: Any) -> Any:
    """Return one of the ways up as a kernel would call it."""
    part = inline(function)

    @numba.njit(error_model="numpy")
    def call(loss, stat, rule, tree, leaf, q, kq, shift, y, w, way):  # type: ignore[no-untyped-def]  # compiled for what it is given
        part(loss, stat, rule, tree, leaf, q, kq, shift, y, w, way)

    return call


def way_up(n_above: int, n_stats: int, eta: float = 1.0) -> Tree:
    """Return a tree of one way up from node 0, whose numbers are drawn."""
    rng = np.random.default_rng(n_above)
    tree = make_tree(boxless(1), n_stats, n_above + 1)
    tree.head_i[ROOT], tree.head_i[N_NODES], tree.head_f[ETA] = n_above, n_above + 1, eta
    tree.i[:, LEFT] = np.arange(n_above + 1) - 1
    tree.i[:, PARENT] = [*range(1, n_above + 1), -1]
    tree.d[:, STAT] = rng.integers(1, 1000, n_above + 1)
    share = rng.random(n_above + 1) if n_stats == 3 else rng.normal(size=n_above + 1)
    tree.d[:, STAT + 1] = np.floor(tree.d[:, STAT] * share)
    tree.d[:, ODDS] = np.exp(rng.normal(scale=20.0, size=n_above + 1))
    tree.i[::9, EXPONENT] = rng.integers(-2, 3, len(tree.i[::9]))
    if n_stats == 3:  # no row of the class yet, where odds have an exponent and elsewhere
        tree.d[::4, STAT + 1] = 0.0
    return tree


def ways(n_above: int) -> list[CachedPath]:
    """Return notes of the way up that are true, of another way, and none."""
    nodes = np.full(N_NOTED, 7, np.int32)
    known = min(n_above - 1, N_NOTED)
    true, n = nodes.copy(), max(known, 0)
    true[:n] = n_above - 1 - np.arange(n)
    mixed = true.copy()
    mixed[n // 2 : n // 2 + 3] = 0
    return [CachedPath(true, n), CachedPath(mixed, n), CachedPath(nodes, n), CachedPath(nodes, 0)]


@pytest.mark.parametrize("n_above", LENGTHS)
@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_lots_and_notes_change_no_bit(n_above: int, weight: float) -> None:
    least = []
    one_by_one, together = compiled(node_by_node), compiled(in_batches)
    for eta in (0.0, 0.1, 5.0, 1e3):  # no price, small ones, some too large for one number, most
        given: tuple[Any, ...] = Squared(8.0, False, False, 0.0), Moments(MOMENTS), Aggregate(True)
        row = 0, 0.7, np.int64(-1), 0.75, 3.0, weight
        first = way_up(n_above, MOMENTS, eta)
        before = first.d.copy()
        one_by_one(*given, first, *row, ways(n_above)[0])
        for go in (one_by_one, together, in_batches):
            for way in ways(n_above):
                tree = way_up(n_above, MOMENTS, eta)
                go(*given, tree, *row, way)
                assert tree.i.tobytes() == first.i.tobytes()
        paid = eta * (first.d[1:, STAT + 3] - before[1:, STAT + 3])
        least.append(np.sum(paid > 88.0))
        assert (first.d[1:] != before[1:]).any(axis=1).all()
    if n_above > 48 and weight == 1.0:
        assert 0 == least[0] == least[1] < least[2] < least[3]


@pytest.mark.parametrize("n_above", LENGTHS)
@pytest.mark.parametrize("q", [(0.7, 0), (0.7, -1), (2.0**-127, 0), (1e-30, 2)])
def test_most_rows_of_classes_learn_as_all_do(n_above: int, q: tuple[float, int]) -> None:
    general, most = compiled(node_by_node), compiled(learn_above_kt)
    for alpha in (0.5, 1e-60):  # a price that no exponent of 0 holds
        given: tuple[Any, ...] = KT(alpha, 2, 1.0, True), Counts(2), Aggregate(True)
        row = 0, q[0], np.int64(q[1]), 0.75, 1.0
        first = way_up(n_above, 3)
        general(*given, first, *row, 1.0, ways(n_above)[0])
        for go in (most, learn_above_kt):
            for way in ways(n_above):
                tree = way_up(n_above, 3)
                go(*given, tree, *row, 1.0, way)
                assert tree.i.tobytes() == first.i.tobytes()
        for weight, rate in ((2.0, 1.0), (0.5, 1.0), (1.0, 0.25)):
            slow: tuple[Any, ...] = KT(alpha, 2, rate, True), *given[1:]
            first, tree = way_up(n_above, 3), way_up(n_above, 3)
            general(*slow, first, *row, weight, ways(n_above)[0])
            most(*slow, tree, *row, weight, ways(n_above)[0])
            assert tree.i.tobytes() == first.i.tobytes()
