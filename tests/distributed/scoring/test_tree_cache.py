"""The tree cache loads once for all users, stays within its capacity, and has no unbounded wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dmondrian.distributed.scoring import tree_cache as module
from dmondrian.distributed.scoring.tree_cache import TreeCache
from tests.distributed.conftest import PATIENCE, wait_until


class Loads:
    """Counts the loads of each key."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def __call__(self, key: str) -> Callable[[], str]:
        def load() -> str:
            self.of[key] = self.of.get(key, 0) + 1
            return key.upper()

        return load


def use(
    cache: TreeCache, loads: Loads, key: str, n_bytes: int = 10, capacity: int | None = 10
) -> str:
    with cache.using(key, n_bytes, capacity, loads(key)) as value:
        return str(value)


def test_what_is_loaded_is_lent_again_until_the_memory_is_needed() -> None:
    cache, loads = TreeCache(), Loads()
    assert [use(cache, loads, key) for key in "aabba"] == list("AABBA")
    assert loads.of == {"a": 2, "b": 1}
    assert [use(cache, loads, key, capacity=20) for key in "baba"] == list("BABA")
    assert loads.of == {"a": 2, "b": 2}


@pytest.mark.parametrize("capacity", [None, 1000])
def test_the_last_two_are_kept_however_much_memory_there_is(capacity: int | None) -> None:
    cache, loads = TreeCache(), Loads()
    for key in "abacb":
        use(cache, loads, key, capacity=capacity)
    assert loads.of == {"a": 1, "b": 2, "c": 1}


def test_those_in_use_hinder_no_other_that_fits() -> None:
    cache, loads = TreeCache(), Loads()
    with cache.using("a", 10, 30, loads("a")), cache.using("b", 10, 30, loads("b")):
        assert use(cache, loads, "c", capacity=30) == "C"


def test_more_than_the_limit_is_loaded_alone() -> None:
    cache, loads = TreeCache(), Loads()
    assert use(cache, loads, "a", n_bytes=30) == "A"
    assert use(cache, loads, "b", n_bytes=5) == "B"
    assert use(cache, loads, "a", n_bytes=30) == "A"
    assert loads.of == {"a": 2, "b": 1}


def test_a_load_that_failed_is_tried_again() -> None:
    cache, loads = TreeCache(), Loads()

    def fail() -> Any:
        raise OSError("no such luck")

    with pytest.raises(OSError, match="luck"), cache.using("a", 10, 10, fail):
        pass
    assert use(cache, loads, "a") == "A"


def test_many_at_once_wait_for_one_load() -> None:
    cache, loads, go = TreeCache(), Loads(), threading.Event()

    def load() -> str:
        assert go.wait(PATIENCE)
        return loads("a")()

    def lend() -> str:
        with cache.using("a", 10, 10, load) as value:
            return str(value)

    with ThreadPoolExecutor(4) as pool:
        lent: list[Future[str]] = [pool.submit(lend) for _ in range(4)]
        go.set()
        assert [future.result(PATIENCE) for future in lent] == ["A"] * 4
    assert loads.of == {"a": 1}


def test_others_wait_until_the_memory_is_free() -> None:
    cache, loads, at_work = TreeCache(), Loads(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with cache.using("a", 10, 10, loads("a")):
            other = pool.submit(lambda: (at_work.set(), use(cache, loads, "b"))[1])
            wait_until(at_work.is_set)
            assert use(cache, loads, "a") == "A"
            assert "b" not in loads.of
            assert not other.done()
        assert other.result(PATIENCE) == "B"


def test_a_wait_for_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.05)
    cache, loads = TreeCache(), Loads()
    with cache.using("a", 10, 10, loads("a")), pytest.raises(TimeoutError, match="other tasks"):
        use(cache, loads, "b")
    assert use(cache, loads, "b") == "B"
