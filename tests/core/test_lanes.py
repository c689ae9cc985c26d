"""Several numbers at once say what one after the other would."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import config
from numba.core.errors import TypingError

from dmondrian._memory import in_a_row, step_up
from dmondrian.core.arithmetic import lowest_bit, quotients, write_exponentials
from dmondrian.core.draws import exp
from dmondrian.core.lanes import (
    LANES,
    SUM_LANES,
    WORDS,
    beyond,
    extend,
    rough_extension,
    way_on,
    widen,
)


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
def compiled_beyond(lower, upper, x):  # type: ignore[no-untyped-def]  # as above
    return beyond(lower, upper, x)


@numba.njit
def compiled_extend(lower, upper, x, extensions):  # type: ignore[no-untyped-def]  # as above
    return extend(lower, upper, x, extensions)


def test_any_feature_beyond_its_bounds_tells() -> None:
    for p in range(40):
        ends = np.sort(np.random.default_rng(p).normal(size=(2, p)).astype(np.float32), axis=0)
        # Rows of an array, at any byte; what lies beside them is beyond all bounds.
        memory = np.zeros((3, p + 11), np.float32)
        memory[:, 3 : 3 + p] = ends[0], ends[1], ends[p % 2]
        memory[2, :3], memory[2, 3 + p :] = np.inf, -np.inf
        lower, upper, x = memory[:, 3 : 3 + p]
        assert not compiled_beyond(lower, upper, x)  # on the bounds is within
        assert not beyond(lower, upper, x)
        for j in range(p):
            for end, past in ((lower, -np.inf), (upper, np.inf)):
                changed = x.copy()
                changed[j] = np.nextafter(end[j], np.float32(past))
                assert compiled_beyond(lower, upper, changed)
                assert beyond(lower, upper, changed)


def test_extensions_are_added_in_their_lanes() -> None:
    for p in range(40):
        rng = np.random.default_rng(p)
        lower, upper = np.sort(rng.normal(size=(2, p)).astype(np.float32), axis=0)
        x = (rng.normal(size=p) * 10.0 ** rng.integers(-9, 9, p)).astype(np.float32)
        x[::5] = lower[::5]
        expected = [0.0] * SUM_LANES
        written = np.full(p, -1.0)
        for j in range(p - p % SUM_LANES):
            written[j] = max(float(lower[j]) - float(x[j]), float(x[j]) - float(upper[j]), 0.0)
            expected[j % SUM_LANES] += float(written[j])
        for way in (compiled_extend, extend):
            extensions = np.full(p, -1.0)
            assert list(way(lower, upper, x, extensions)) == expected
            assert extensions.tobytes() == written.tobytes()


@numba.njit
def compiled_widen(lower, upper, x):  # type: ignore[no-untyped-def]  # as above
    widen(lower, upper, x)


@pytest.mark.parametrize("way", [compiled_widen, widen])
def test_bounds_are_widened_and_nothing_beside_them(way: Callable[..., None]) -> None:
    few = np.array([-np.inf, -1.5, -0.0, 0.0, 1e-45, 1.5, np.inf], np.float32)  # ties, subnormals
    for p, seed in itertools.product(range(40), range(5)):
        memory = np.random.default_rng([p, seed]).choice(few, (3, p + 11))
        memory[:2] = np.sort(memory[:2], axis=0)
        memory[:2, :3] = memory[:2, 3 + p :] = 0.0  # what lies beside the row is beyond its bounds
        memory[2, :3], memory[2, 3 + p :] = 1.0, -1.0
        expected = memory.copy()
        for j in range(3, 3 + p):  # 0 and -0 are equal: the one that came first stays
            lower, upper, x = memory[:, j]
            expected[0, j] = x if x < lower else lower
            expected[1, j] = x if x > upper else upper
        way(*memory[:, 3 : 3 + p])
        assert memory.tobytes() == expected.tobytes()


@numba.njit
def compiled_rough(lower, upper, x):  # type: ignore[no-untyped-def]  # as above
    return rough_extension(lower, upper, x)


@pytest.mark.parametrize("way", [compiled_rough, rough_extension])
def test_rough_extensions_are_near_and_tell_whether_there_are_any(
    way: Callable[..., np.float32],
) -> None:
    for p in range(70):
        rng = np.random.default_rng(p)
        memory = np.zeros((3, p + 11), np.float32)  # what lies beside a row is far outside
        memory[:, 3 : 3 + p] = np.sort(rng.normal(size=(3, p)), axis=0)[[0, 2, 1]]
        memory[2, :3] = memory[2, 3 + p :] = np.inf
        lower, upper, x = memory[:, 3 : 3 + p]
        assert way(lower, upper, x) == 0.0
        for j in range(p):
            for end, past in ((lower, -np.inf), (upper, np.inf)):
                changed = x.copy()
                changed[j] = np.nextafter(end[j], np.float32(past))
                assert way(lower, upper, changed) == abs(changed[j] - end[j]) > 0.0
        far = (rng.normal(size=p) * 10.0 ** rng.integers(-9, 9, p)).astype(np.float32)
        exact = np.maximum(lower - far.astype(np.float64), far - upper.astype(np.float64))
        total = exact.clip(min=0.0).sum()
        assert abs(way(lower, upper, far) - total) <= 2.0**-24 * (p + 1) * total
    ends, one = np.array([[-3e38], [-2e38], [3e38]], np.float32), np.ones(1, np.float32)
    assert way(*ends) == np.inf
    assert way(-one, one, np.full(1, np.nan, np.float32)) == 0.0
    small = np.array([1e-45], np.float32)
    assert way(small, small, 2 * small) == small[0]


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


def test_two_quotients_are_those_of_each() -> None:
    odd = [0.0, 1.0, 3.0, 0.1, 1e-310, 1e300, 5e-324]
    for a, c in [(a, c) for a in odd for c in odd if c]:
        with np.errstate(over="ignore"):
            expected = np.float64(a) / np.float64(c), np.float64(c) / np.float64(3.0)
            assert quotients(a, c, c, 3.0) == expected
            assert divided(a, c, c, 3.0) == expected


@numba.njit
def stepped(number, guess, level):  # type: ignore[no-untyped-def]  # as above
    return step_up(number, guess, level)


@pytest.mark.parametrize("go", [stepped, step_up], ids=["compiled", "plain"])
def test_a_guess_changes_no_number(go: Any) -> None:
    assert go(7, 7, 4) == (7, 3)
    assert go(7, 8, 4) == (7, 4)
    assert go(-1, -1, 0) == (-1, -1)
    assert go(0, -1, -1) == (0, -1)


@numba.njit
def flat(array):  # type: ignore[no-untyped-def]  # as above
    return in_a_row(array).copy()


@pytest.mark.skipif(config.DISABLE_JIT, reason="NumPy copies where it has to")
def test_only_what_is_contiguous_is_taken_for_a_row() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert flat(array).tolist() == in_a_row(array).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(TypingError):
        flat(array.T)
