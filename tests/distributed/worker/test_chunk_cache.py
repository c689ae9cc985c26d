"""The chunk cache reads ahead, reads once, reads again after a failure, and lets go."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from dmondrian.data.chunks import JOINED_BLOCKS, MOST_GROUPS
from dmondrian.distributed.worker.chunk_cache import READ_SECONDS, ChunkCache, seconds_for
from tests.distributed.conftest import wait_until


class Reader:
    def __init__(self, fails: int = 0, n_bytes: int = 8) -> None:
        self.calls: Counter[int] = Counter()
        self.fails = fails
        self.n_bytes = n_bytes
        self.lock = threading.Lock()

    def __call__(self, index: int) -> SimpleNamespace:
        with self.lock:
            self.calls[index] += 1
            if self.fails:
                self.fails -= 1
                raise OSError("no answer")
        time.sleep(0.002)
        return SimpleNamespace(n_bytes=self.n_bytes, index=index)


def test_threads_that_ask_for_the_same_chunks_share_one_read() -> None:
    reader = Reader()
    cache = ChunkCache(reader, 20)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: cache.get(i % 20).index, range(160)))
    assert found == [i % 20 for i in range(160)]
    assert set(reader.calls.values()) == {1}
    cache.close()


def test_the_next_chunks_are_read_before_anyone_asks_and_none_behind_the_end() -> None:
    reader = Reader()
    cache = ChunkCache(reader, 5, ahead=2)
    cache.get(2)
    wait_until(lambda: sum(reader.calls.values()) >= 3)
    assert sorted(reader.calls) == [2, 3, 4]
    cache.get(4)
    assert sorted(reader.calls) == [2, 3, 4]
    cache.close()


def test_a_failed_read_reaches_its_caller_and_is_tried_again() -> None:
    reader = Reader(fails=1)
    cache = ChunkCache(reader, 3, ahead=0)
    with pytest.raises(OSError, match="no answer"):
        cache.get(1)
    assert cache.get(1).index == 1
    cache.close()


def test_a_read_that_takes_too_long_goes_on_and_is_waited_for_again() -> None:
    reader, ending = Reader(), threading.Event()

    def read(index: int) -> SimpleNamespace:
        assert ending.wait(60)
        return reader(index)

    cache = ChunkCache(read, 3, ahead=0, seconds=lambda index: 60.0 if ending.is_set() else 0.01)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="chunk 1 was not read in"):
            cache.get(1)
    ending.set()
    assert cache.get(1).index == 1
    assert reader.calls[1] == cache.reads == 1
    cache.close()


def test_the_wait_for_a_chunk_grows_with_its_row_groups() -> None:
    assert seconds_for(1) == seconds_for(JOINED_BLOCKS) == READ_SECONDS
    assert seconds_for(MOST_GROUPS) == READ_SECONDS * MOST_GROUPS / JOINED_BLOCKS


def test_chunks_below_the_floor_are_let_go() -> None:
    reader = Reader()
    cache = ChunkCache(reader, 10, ahead=0)
    cache.get(0)
    cache.get(1)
    cache.get(2, floor=2)
    cache.get(0)
    assert reader.calls[0] == 2
    cache.close()


def test_what_is_kept_stays_near_the_budget() -> None:
    reader = Reader(n_bytes=1000)
    cache = ChunkCache(reader, 100, ahead=1, budget=3000)
    for i in range(20):
        cache.get(i)
    held = [future.result().index for future in list(cache._chunks.values())]
    assert 19 in held
    assert len(held) <= 3 + 2  # the budget, the chunk asked for and the one ahead
    cache.close()


class Weighed:
    """A chunk whose size is looked at."""

    looks = 0

    @property
    def n_bytes(self) -> int:
        Weighed.looks += 1
        return 8


def test_a_look_up_does_not_add_up_what_is_kept() -> None:
    Weighed.looks = 0
    cache = ChunkCache(lambda i: Weighed(), 500, ahead=0)
    for i in range(500):
        cache.get(i)
    for i in range(500):
        cache.get(i)
    assert Weighed.looks <= 2 * 500
    cache.close()
