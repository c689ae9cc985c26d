"""The blocks a worker has in memory: each is read and encoded once, ahead of need.

Relies on a `read` function that is a pure function of the block's number. Promises that shards of
one worker that ask for the same block share one copy, that a failed read is tried again by the
next caller, that reading ahead stops when the budget of bytes is used, that no wait is unbounded,
and that a store which fails for a moment is not taken for bad data.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dmondrian.errors import DataError, OutageError

AHEAD = 2
"""Blocks read ahead of the one asked for; one hides the reading, two its unevenness."""

READ_SECONDS = 300.0
"""A read that takes longer is given up."""

BUDGET_BYTES = 512 << 20
"""Encoded blocks kept by a worker; the block asked for is always kept."""


class BlockCache:
    """Encoded blocks of one plan, by number.

    Parameters
    ----------
    read : callable
        `read(index) -> Encoded`.
    n_blocks : int
        Blocks of the plan; nothing is read behind them.
    ahead, budget : int
        Blocks to read ahead, bytes to keep.
    """

    def __init__(
        self,
        read: Callable[[int], Any],
        n_blocks: int,
        ahead: int = AHEAD,
        budget: int = BUDGET_BYTES,
    ) -> None:
        self._read = read
        self._n_blocks = n_blocks
        self._ahead = ahead
        self._budget = budget
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, Future] = OrderedDict()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="dmondrian-read")
        self.reads = 0  # blocks read so far, repeats included

    def get(self, index: int, floor: int = 0) -> Any:
        """Return the encoded block; blocks below `floor` are needed by nobody and may go.

        Raises
        ------
        Exception
            Whatever `read` raised.
        TimeoutError
            The read took longer than `READ_SECONDS`.
        """
        with self._lock:
            wanted = self._want(index)
            self._trim(index, floor)
            for later in range(index + 1, min(index + 1 + self._ahead, self._n_blocks)):
                if self._bytes() < self._budget:
                    self._want(later)
        try:
            return wanted.result(timeout=READ_SECONDS)
        except BaseException:
            with self._lock:
                if self._blocks.get(index) is wanted:
                    del self._blocks[index]
            raise

    def close(self) -> None:
        """Forget all blocks and end the reading thread."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._blocks.clear()

    def _want(self, index: int) -> Future:
        """Return the future of a block, started if need be, moved to the recently used end."""
        if index not in self._blocks:
            self.reads += 1
            self._blocks[index] = self._reader.submit(self._read, index)
        self._blocks.move_to_end(index)
        return self._blocks[index]

    def _trim(self, index: int, floor: int) -> None:
        """Drop what nobody needs, then the least recently used, down to the budget."""
        for old in [i for i in self._blocks if i < floor and i != index]:
            del self._blocks[old]
        while self._bytes() > self._budget:
            oldest = next((i for i in self._blocks if i != index), None)
            if oldest is None:
                return
            del self._blocks[oldest]

    def _bytes(self) -> int:
        done = (f for f in self._blocks.values() if f.done() and not f.cancelled())
        return sum(_size(f.result()) for f in done if f.exception() is None)


def _size(encoded: Any) -> int:
    parts = (encoded.X, encoded.y, encoded.weight)
    return sum(part.nbytes for part in parts if part is not None)


def read_failure(error: Exception, uri: str) -> Exception:
    """Tell a store that did not answer, which may do so in a moment, from data that is bad.

    pyarrow raises the same OSError for a failed request and for some damaged files.
    """
    is_request = isinstance(error, DataError) and isinstance(error.__cause__, OSError)
    return OutageError(str(error)) if is_request and _is_remote(uri) else error


def _is_remote(uri: str) -> bool:
    return "://" in uri and not uri.startswith("file:")
