"""Several numbers at once say what one after the other would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import config
from numba.core.errors import TypingError

from dmondrian._numba.intrinsics import flat_view, speculate
from dmondrian._numba.mode import is_stock
from dmondrian.tree.keyed_random import exp
from dmondrian.tree.simd.exp import lowest_bit, quotients, three_quotients, write_exponentials
from dmondrian.tree.simd.lanes import LANES, WORDS, way_on


@numba.njit
def compiled(groups, group, x):  # type: ignore[no-untyped-def]  # compiled for what it is given
    return way_on(groups, group, x)


def one_by_one(groups: np.ndarray, group: int, x: np.ndarray) -> int:
    features, thresholds, sides, exits = np.split(groups[group], [LANES, 2 * LANES, 2 * LANES + 1])
    for k in range(LANES):
        is_right = x[features[k]] > thresholds.view(np.float32)[k]
        if is_right != bool(sides[0] >> k & 1):
            return exits[k]
    return exits[LANES]


def test_a_row_takes_the_exit_of_the_first_condition_that_parts() -> None:
    rng = np.random.default_rng(0)
    groups = np.zeros((500, WORDS), np.int32)
    groups[:, :LANES] = rng.integers(0, 7, (500, LANES))
    few = np.array([-np.inf, -1.5, -0.0, 0.0, 1e-45, 1.5, np.inf], np.float32)  # ties, subnormals
    groups[:, LANES : 2 * LANES] = rng.choice(few, (500, LANES)).view(np.int32)
    groups[:, 2 * LANES] = rng.integers(0, 16, 500) + 16
    exits = np.array([5, ~7, 2**31 - 1, -(2**31), 0])  # groups and leaves
    groups[:, 2 * LANES + 1 : 2 * LANES + 6] = exits
    found = []
    for group in range(500):
        x = rng.choice(few, 7).astype(np.float32)
        found.append(one_by_one(groups, group, x))
        assert compiled(groups, np.uint64(group), x) == found[-1]
        assert way_on(groups, group, x) == found[-1]
    assert set(found) == set(exits)


@numba.njit
def compiled_lowest(word):  # type: ignore[no-untyped-def]  # as above
    return lowest_bit(word)


@pytest.mark.parametrize("way", [compiled_lowest, lowest_bit])
def test_the_lowest_bit_is_found(way: Callable[..., int]) -> None:
    for bit in range(64):
        assert way(np.uint64(1) << np.uint64(bit)) == bit
        assert way(np.uint64(2**64 - 2**bit)) == bit


@numba.njit
def compiled_exponentials(values, n):  # type: ignore[no-untyped-def]  # as above
    write_exponentials(values, n)


@pytest.mark.parametrize("way", [compiled_exponentials, write_exponentials])
def test_exponentials_are_those_of_one_number_to_the_last_bit(way: Callable[..., None]) -> None:
    rng = np.random.default_rng(0)
    halves = (np.arange(-100, 101) + 0.5) * np.log(2.0)  # where the power of two steps
    steps = [halves, np.nextafter(halves, -np.inf), np.nextafter(halves, np.inf)]
    wide, near = rng.uniform(-700, 700, 1000), rng.normal(0.0, 1e-3, 200)
    given = np.concatenate([*steps, wide, near, [0.0, -0.0, 5e-324, -700.0, 700.0]])
    expected = np.array([exp(x) for x in given])
    for n in (0, 1, 7, 8, 9, 48, len(given)):
        values = np.full(-(-n // 8) * 8 + 1, 3.0)
        values[:n] = given[:n]
        way(values, np.uint64(n))
        assert values[:n].tobytes() == expected[:n].tobytes()
        assert values[-1] == 3.0


@numba.njit
def divided(a, b, c, d):  # type: ignore[no-untyped-def]  # compiled for what it is given
    return quotients(a, b, c, d)


@numba.njit
def divided_thrice(a, b, c, d, e, f):  # type: ignore[no-untyped-def]
    return three_quotients(a, b, c, d, e, f)


def test_three_quotients_are_those_of_each() -> None:
    odd = [0.0, 1.0, 3.0, 0.1, 1e-310, 1e300, 5e-324]
    for a, c in [(a, c) for a in odd for c in odd if c]:
        with np.errstate(over="ignore"):
            pairs = (a, c), (c, 3.0), (7.0, c)
            expected = tuple(np.float64(one) / np.float64(other) for one, other in pairs)
            assert three_quotients(a, c, 7.0, c, 3.0, c) == expected
            assert divided_thrice(a, c, 7.0, c, 3.0, c) == expected


def test_two_quotients_are_those_of_each() -> None:
    odd = [0.0, 1.0, 3.0, 0.1, 1e-310, 1e300, 5e-324]
    for a, c in [(a, c) for a in odd for c in odd if c]:
        with np.errstate(over="ignore"):
            expected = np.float64(a) / np.float64(c), np.float64(c) / np.float64(3.0)
            assert quotients(a, c, c, 3.0) == expected
            assert divided(a, c, c, 3.0) == expected


@numba.njit
def stepped(number, guess, level):  # type: ignore[no-untyped-def]  # as above
    return speculate(number, guess, level)


@pytest.mark.parametrize("go", [stepped, speculate], ids=["compiled", "plain"])
def test_a_guess_changes_no_number(go: Any) -> None:
    assert go(7, 7, 4) == (7, 3)
    assert go(7, 8, 4) == (7, 4)
    assert go(-1, -1, 0) == (-1, -1)
    assert go(0, -1, -1) == (0, -1)


@numba.njit
def flat(array):  # type: ignore[no-untyped-def]  # as above
    return flat_view(array).copy()


@pytest.mark.skipif(config.DISABLE_JIT or is_stock(), reason="NumPy copies where it has to")
def test_only_what_is_contiguous_is_taken_for_a_row() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert flat(array).tolist() == flat_view(array).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(TypingError):
        flat(array.T)
