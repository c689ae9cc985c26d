"""References are counted to what kernels make alone: nothing is freed early, nothing stays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import config
from numba.core.errors import TypingError
from numba.core.runtime import _nrt_python, rtsys

from dmondrian import AMFRegressor, GeneralizedMondrianForestRegressor
from dmondrian._numba.jit import allocating, inline, kernel, noinline
from dmondrian._numba.mode import is_stock

pytestmark = pytest.mark.skipif(config.DISABLE_JIT or is_stock(), reason="our passes are not used")
ROWS = np.random.default_rng(0).random((2000, 3), dtype=np.float32)


@pytest.fixture
def balance() -> Iterator[Callable[[], tuple[int, int]]]:
    """Tells how many arrays kernels have made, and how many are left."""
    _nrt_python.memsys_enable_stats()
    before = rtsys.get_allocation_stats()

    def reported() -> tuple[int, int]:
        now = rtsys.get_allocation_stats()
        made, freed = now.mi_alloc - before.mi_alloc, now.mi_free - before.mi_free
        return made, made - freed

    yield reported
    _nrt_python.memsys_disable_stats()


@inline
def making_one(n: int) -> Any:
    return np.empty(n)[0]


@inline
def using_one(n: int) -> float:
    return float(making_one(n))


@kernel
def ask_a_part(n: int) -> float:
    return using_one(n)


def test_a_part_that_makes_an_array_is_refused() -> None:
    with pytest.raises(TypingError, match="empty"):
        ask_a_part(3)


@allocating
def made(n: int) -> Any:
    return np.zeros(n)


@kernel
def ask_for_an_array(n: int) -> float:
    return float(made(n)[0])


def test_an_array_that_nobody_would_free_is_refused() -> None:
    with pytest.raises(TypingError, match="nobody would free them"):
        ask_for_an_array(3)


def test_a_part_apart_is_a_call_and_others_are_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DMONDRIAN_CACHE_DIR", str(tmp_path))  # else an earlier run's code is found

    @noinline
    def half(x: float) -> float:
        return x / 2.0

    @inline
    def double(x: float) -> float:
        return x * 2.0

    @kernel
    def ask_both(x: float) -> float:
        return half(double(x))

    assert ask_both(3.0) == 3.0
    (called,), (copied,) = half.overloads.values(), double.overloads.values()
    assert "noinline" in called.library.get_llvm_str()
    assert "noinline" not in copied.library.get_llvm_str()


@kernel
def return_an_array(array: Any) -> Any:
    return array[1:]


def test_an_array_that_nobody_would_hold_is_refused() -> None:
    with pytest.raises(TypingError, match="kernels return numbers"):
        return_an_array(np.zeros(3))


@inline
def halves(array: Any) -> Any:
    middle = array.shape[0] // 2
    return array[:middle], (array[middle:], 1.0)


@inline
def last_of(array: Any) -> Any:
    return array[array.shape[0] - 1 :]


@allocating
def sum_of_squares(array: Any) -> float:
    squares = np.empty(array.shape[0])
    for k in range(array.shape[0]):
        squares[k] = array[k] * array[k]
    return float(squares.flatten().sum())  # a function of Numba's that returns an array


@kernel
def ask_for_parts(array: Any) -> float:
    total = 0.0
    for _ in range(100):
        first, (second, one) = halves(array)
        total += first[0] + one * second[0] + last_of(second)[0] + sum_of_squares(last_of(first))
    return total


def test_arrays_that_parts_return_are_neither_freed_nor_held(
    balance: Callable[[], tuple[int, int]],
) -> None:
    array = np.arange(4.0)
    known = sys.getrefcount(array)
    assert ask_for_parts(array) == 100 * (0.0 + 2.0 + 3.0 + 1.0)
    assert sys.getrefcount(array) == known
    assert balance() == (200, 0)  # squares, twice; none for the array that was handed over
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.thorough
def test_forests_free_what_their_kernels_made(balance: Callable[[], tuple[int, int]]) -> None:
    y = ROWS[:, 0] + ROWS[:, 1]
    forest = AMFRegressor(n_estimators=2, random_state=0).fit(ROWS, y)  # sets weights anew
    forest.forest_.freeze()
    forest.predict(ROWS)
    given = {"loss": "quantile", "lifetime": 4.0, "domain": "cube", "n_estimators": 2}
    pair = [
        GeneralizedMondrianForestRegressor(**given, random_state=0).fit(ROWS[rows], y[rows])
        for rows in (slice(1000), slice(1000, None))
    ]
    pair[0].merge(pair[1])  # unites labels
    n_made, n_left = balance()
    assert n_made > 100
    assert n_left == 0
