"""Odds of stopping at a node, and what it hands to its parent, against exact fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from dmondrian.losses.squared import Squared
from dmondrian.rules.aggregate import rebuild_odds
from dmondrian.stats.moments import MOMENTS, PRICE
from dmondrian.tree.box_encoding import boxless
from dmondrian.tree.nodes import (
    ETA,
    EXPONENT,
    LEFT,
    N_NODES,
    ODDS,
    PARENT,
    RIGHT,
    ROOT,
    Tree,
    first_in_postorder,
    make_tree,
    next_in_postorder,
)
from dmondrian.tree.scaled_float import (
    LARGEST_ODDS,
    SMALLEST_ODDS,
    from_log,
    mix_and_shift,
    mix_near,
)

UNIT = Fraction(2) ** 256
# Up to both ends of what is kept beside an exponent.
ODDS_HELD = (2.0**-127, 1e-9, 0.7, 3e11, 2.0**127)
PRICES = (1.0, 0.3, 2.0**-60, 2.0**-126)
# About both ends, where exponents begin, and what is far beyond.
FACTORS = (
    *PRICES, 3.0, 5e-324, 1e300, 0.0, np.inf, np.nan,
    *(end * near for end in (2.0**-128, 2.0**128) for near in (1 - 2**-53, 1.0, 1 + 2**-52)),
)  # fmt: skip


def exactly(m: float, k: int) -> Fraction:
    return Fraction(m) * UNIT**k


def is_near(m: float, k: int, exact: Fraction) -> bool:
    return abs(exactly(m, int(k)) - exact) <= exact * Fraction(1, 2**50)


@pytest.mark.parametrize("k", range(-3, 4))
@pytest.mark.parametrize("exponents", [(0, 0), (-1, 0), (0, -1), (-2, -1)])
def test_a_row_shifts_odds_and_hands_on_the_mixture(k: int, exponents: tuple[int, int]) -> None:
    tree = make_tree(boxless(1), 1, 1)
    tree.head_i[N_NODES] = 1
    kp, kq = exponents
    for odds, p, q in itertools.product(ODDS_HELD, PRICES, PRICES):
        tree.d[0, ODDS], tree.i[0, EXPONENT] = odds, k
        m, found = mix_and_shift(tree, 0, p, 1.0, np.int64(kp), q, np.int64(kq))
        held, price, below = exactly(odds, k), exactly(p, kp), exactly(q, kq)
        assert is_near(tree.d[0, ODDS], tree.i[0, EXPONENT], held * price / below)
        assert 2.0**-128 <= tree.d[0, ODDS] <= 2.0**128
        assert is_near(m, found, (held * price + below) / (1 + held))


@pytest.mark.parametrize("k", [-2, -1, 0, 1, 2])
def test_factors_near_one_are_mixed_as_all_are_or_not_at_all(k: int) -> None:
    tree, other = make_tree(boxless(1), 1, 1), make_tree(boxless(1), 1, 1)
    done = 0
    for odds, n, d, q in itertools.product(ODDS_HELD, FACTORS, (1.0, 3.0), FACTORS):
        for each in (tree, other):
            each.d[0, ODDS], each.i[0, EXPONENT] = odds, k
        with np.errstate(all="ignore"):
            is_done, near = mix_near(tree, 0, n, d, q)
            m, exponent = mix_and_shift(other, 0, n, d, np.int64(0), q, np.int64(0))
            held = SMALLEST_ODDS < odds * (n / d) / np.float64(q) < LARGEST_ODDS
            reported = k == 0 or SMALLEST_ODDS < (n / d if k > 0 else q) < LARGEST_ODDS
        done += is_done
        assert is_done == (held and reported)
        if is_done:
            assert np.array([near, 0.0]).tobytes() == np.array([m, exponent * 1.0]).tobytes()
            assert tree.d[0].tobytes() == other.d[0].tobytes()
            assert tree.i[0].tobytes() == other.i[0].tobytes()
        else:
            assert (tree.d[0, ODDS], tree.i[0, EXPONENT]) == (odds, k)
            assert near == q or np.isnan(q)
    assert done > 20


def grown_by_chance(n_leaves: int, largest: float) -> Tree:
    """Return a tree of splits of leaves drawn at random, in an order at random, with prices."""
    rng = np.random.default_rng(n_leaves)
    n = 2 * n_leaves - 1
    tree, order = make_tree(boxless(1), MOMENTS, n), rng.permutation(n)
    tree.head_i[ROOT], tree.head_i[N_NODES], tree.head_f[ETA] = order[0], n, 0.5
    tree.i[:, [LEFT, RIGHT, PARENT]] = -1
    leaves = [order[0]]
    for first in range(1, n, 2):
        v = leaves.pop(rng.integers(len(leaves)))
        tree.i[v, [LEFT, RIGHT]] = order[first : first + 2]
        tree.i[order[first : first + 2], PARENT] = v
        leaves += order[first : first + 2].tolist()
    tree.d[:, ODDS] = rng.random(n)
    tree.d[:, PRICE] = largest * rng.random(n) ** 3
    return tree


@pytest.mark.parametrize(
    ("n_leaves", "largest"),
    [
        *itertools.product([1, 2, 32, 33], [0.0, 3.0, 200.0, 1e5]),
        *itertools.product([64, 65], [0.0, 3.0, 200.0]),
        # The slow sums take seconds of these, and a minute of larger ones.
        *(pytest.param(n, 1e5, marks=pytest.mark.thorough) for n in (64, 65)),
        (161, 200.0),
    ],
)
def test_odds_that_are_rebuilt_are_those_of_the_weights(n_leaves: int, largest: float) -> None:
    tree = grown_by_chance(n_leaves, largest)
    loss, before = Squared(8.0, False, False, 0.0), tree.d.copy()
    weights = [exactly(*from_log(-0.5 * price)) for price in tree.d[:, PRICE]]
    rebuild_odds(loss, tree)
    mixtures, v = list(weights), first_in_postorder(tree)
    while v >= 0:
        left, right = tree.i[v, [LEFT, RIGHT]].tolist()
        if left >= 0:
            below = mixtures[left] * mixtures[right]
            assert is_near(tree.d[v, ODDS], tree.i[v, EXPONENT], weights[v] / below)
            mixtures[v] = (weights[v] + below) / 2
            before[v, ODDS] = tree.d[v, ODDS]
        v = next_in_postorder(tree, v)
    assert (before[:, ODDS:] == tree.d[:, ODDS:]).all()  # nothing else was written to
