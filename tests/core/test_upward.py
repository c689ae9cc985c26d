"""What a row teaches on its way up is the same, whether nodes take their turns alone or in lots."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from dmondrian._jit import inner
from dmondrian.core.columns import boxless
from dmondrian.core.nodes import ETA, EXPONENT, LEFT, N_NODES, ODDS, PARENT, STAT, Tree, make_tree
from dmondrian.core.upward import in_lots, node_by_node
from dmondrian.losses.squared import Squared
from dmondrian.rules.aggregate import Aggregate
from dmondrian.stats.moments import MOMENTS, Moments

_one_by_one, _together = inner(node_by_node), inner(in_lots)


@numba.njit(error_model="numpy")
def one_by_one(loss, stat, rule, tree, leaf, q, kq, shift, y, w):  # type: ignore[no-untyped-def]  # compiled for what it is given
    _one_by_one(loss, stat, rule, tree, leaf, q, kq, shift, y, w)


@numba.njit(error_model="numpy")
def together(loss, stat, rule, tree, leaf, q, kq, shift, y, w):  # type: ignore[no-untyped-def]  # as above
    _together(loss, stat, rule, tree, leaf, q, kq, shift, y, w)


def way_up(n_above: int, eta: float) -> Tree:
    """Return a tree of one way up from node 0, whose numbers are drawn."""
    rng = np.random.default_rng(n_above)
    tree = make_tree(boxless(1), MOMENTS, n_above + 1)
    tree.head_i[N_NODES], tree.head_f[ETA] = n_above + 1, eta
    tree.i[:, LEFT] = np.arange(n_above + 1) - 1
    tree.i[:, PARENT] = [*range(1, n_above + 1), -1]
    tree.d[:, STAT] = rng.integers(1, 1000, n_above + 1)
    tree.d[:, STAT + 1] = tree.d[:, STAT] * rng.normal(size=n_above + 1)
    tree.d[:, ODDS] = np.exp(rng.normal(scale=20.0, size=n_above + 1))
    tree.i[::9, EXPONENT] = rng.integers(-2, 3, len(tree.i[::9]))
    return tree


@pytest.mark.parametrize("n_above", [0, 1, 7, 8, 47, 48, 49, 96, 130])
@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_lots_change_no_bit(n_above: int, weight: float) -> None:
    least = []
    for eta in (0.0, 0.1, 5.0, 1e3):  # no price, small ones, some too large for one number, most
        given: tuple[Any, ...] = Squared(8.0, False), Moments(MOMENTS), Aggregate(True)
        row = 0, 0.7, np.int64(-1), 0.75, 3.0, weight
        trees = [way_up(n_above, eta) for _ in range(3)]
        before = trees[0].d.copy()
        for way, tree in zip((one_by_one, together, in_lots), trees, strict=True):
            way(*given, tree, *row)
            assert tree.i.tobytes() == trees[0].i.tobytes()
        paid = eta * (trees[0].d[1:, STAT + 3] - before[1:, STAT + 3])
        least.append(np.sum(paid > 88.0))
        assert (trees[0].d[1:] != before[1:]).any(axis=1).all()
    if n_above > 48 and weight == 1.0:
        assert 0 == least[0] == least[1] < least[2] < least[3]
