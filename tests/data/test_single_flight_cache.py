"""A cache in which each value is computed once, whoever asks for it at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dmondrian.data.single_flight_cache import SingleFlightCache

PATIENCE = 60.0  # seconds


def test_the_newest_is_kept_whatever_its_size() -> None:
    kept, made = SingleFlightCache(10, len), []

    def get(key: str, size: int) -> None:
        def make() -> str:
            made.append(key)
            return "x" * size

        assert kept.get(key, make) == "x" * size

    for key, size in [("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4)]:
        get(key, size)
    assert made == ["a", "b", "c", "b"]
    get("large", 100)
    get("large", 100)
    get("a", 4)
    assert made == ["a", "b", "c", "b", "large", "a"]


class Size(int):
    """A size that counts how often sizes are added up."""

    additions = 0

    def __radd__(self, other: int) -> int:
        Size.additions += 1
        return int(self) + other


def test_a_look_up_does_not_add_up_the_sizes_of_all_that_is_kept() -> None:
    kept: SingleFlightCache[int] = SingleFlightCache(10_000, lambda _: Size(1))
    for _ in range(2):
        for i in range(500):
            assert kept.get(i, lambda i=i: i) == i  # type: ignore[misc]  # a default binds i
    assert Size.additions <= 4 * 500


def test_a_failure_is_not_kept() -> None:
    kept: SingleFlightCache[int] = SingleFlightCache(2)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 // 0)
    assert kept.get("a", lambda: 1) == 1


def test_threads_that_ask_at_once_share_one_computation() -> None:
    kept: SingleFlightCache[int] = SingleFlightCache(2)
    go, made = threading.Event(), []

    def make() -> int:
        assert go.wait(PATIENCE)
        made.append(1)
        return 7

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(kept.get, "a", make) for _ in range(4)]
        assert kept.find("a") is None
        go.set()
        assert [one.result(PATIENCE) for one in asked] == [7] * 4
    assert made == [1]
    assert kept.find("a") == 7


def test_a_wait_for_another_thread_ends() -> None:
    kept: SingleFlightCache[int] = SingleFlightCache(2, seconds=0.01)
    begun, go = threading.Event(), threading.Event()

    def make() -> int:
        begun.set()
        assert go.wait(PATIENCE)
        return 7

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(kept.get, "a", make)
        assert begun.wait(PATIENCE)
        with pytest.raises(TimeoutError):
            kept.get("a", make)
        go.set()
        assert first.result(PATIENCE) == 7
    assert kept.get("a", make) == 7
