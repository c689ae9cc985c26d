"""The chunks a worker has in memory: each is read, encoded and prepared once, ahead of need.

All shards of a run have one set of scales, units and domain, so rows are kept as trees see them
(:mod:`dmondrian.ensemble.rows.prepared_rows`); how boxes are written is up to each shard, and rows
keep what one of them has asked for. That is not counted in bytes: only chunks that are being
learned have it.

Relies on a `read` function that is a pure function of the chunk's number. Promises that shards of
one worker that ask for the same chunk share one copy, that a look-up costs the same however many
chunks there are, that a failed read is tried again by the
next caller, that a read which takes too long goes on and the next caller waits for it, that reading
ahead stops when the budget of bytes is used, that no wait is unbounded,
and that a store which fails for a moment is not taken for bad data.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from dmondrian.data import Encoded
from dmondrian.data.chunks import JOINED_BLOCKS
from dmondrian.ensemble.rows.prepared_rows import Preparation, PreparedRows
from dmondrian.errors import DataError, OutageError

AHEAD = 2
"""Chunks read ahead of the one asked for; one hides the reading, two its unevenness."""

READ_SECONDS = 300.0
"""Longest wait for a chunk, for each `JOINED_BLOCKS` row groups that it draws from."""

BUDGET_BYTES = 512 << 20
"""Encoded chunks kept by a worker; the chunk asked for is always kept."""


class PreparedChunk:
    """Rows of a chunk, encoded and prepared for the forests of a run.

    Parameters
    ----------
    encoded : Encoded
        Features that are within the domain. They are not kept.
    preparation : Preparation
        Of the run's parameters.

    Attributes
    ----------
    rows : PreparedRows
        n of them, as they are in `encoded`.
    y : float64 [n]
        0 where there is no target.
    weight : float64 [n] or None
    """

    def __init__(self, encoded: Encoded, preparation: Preparation) -> None:
        preparation.check_domain(encoded.X, encoded.names)
        self.rows = preparation.prepare(encoded.X)
        self.y = np.zeros(len(self.rows)) if encoded.y is None else encoded.y
        self.weight = encoded.weight
        self._encoded = replace(encoded, X=self.rows.values, y=self.y)

    @property
    def counts(self) -> dict[str, int]:
        """Events of encoding; see `encode_features`."""
        return self._encoded.counts

    @property
    def n_bytes(self) -> int:
        """Bytes of rows, targets and weights."""
        parts = self.rows.values, self.y, self.weight
        return sum(part.nbytes for part in parts if part is not None)

    def between(self, start: int, stop: int) -> tuple[PreparedRows, Encoded]:
        """Return the rows at the places `start` to `stop - 1`, dropped ones counted.

        Returns
        -------
        rows : PreparedRows
        about : Encoded
            Their targets, weights and counts; see `Encoded.between`.
        """
        return self.rows[self._encoded.left_between(start, stop)], self._encoded.between(
            start, stop
        )


class BlockCache:
    """Prepared chunks of one plan, by number.

    Parameters
    ----------
    read : callable
        `read(index) -> PreparedChunk`.
    n_blocks : int
        Chunks of the plan; nothing is read behind them.
    ahead, budget : int
        Chunks to read ahead, bytes to keep.
    seconds : callable or None
        `seconds(index) -> float`, the longest wait for a chunk; by default `READ_SECONDS`.
    """

    def __init__(
        self,
        read: Callable[[int], Any],
        n_blocks: int,
        ahead: int = AHEAD,
        budget: int = BUDGET_BYTES,
        seconds: Callable[[int], float] | None = None,
    ) -> None:
        self._read = read
        self._n_blocks = n_blocks
        self._ahead = ahead
        self._budget = budget
        self._seconds = seconds or (lambda index: READ_SECONDS)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, Future] = OrderedDict()
        self._sizes: dict[int, int] = {}  # bytes of those that are read
        self._bytes = 0  # of all of them: a look-up must not add them up
        self._floor = 0  # none below it is kept
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="dmondrian-read")
        self.reads = 0  # chunks read so far, repeats included

    def get(self, index: int, floor: int = 0) -> Any:
        """Return the encoded chunk; chunks below `floor` are needed by nobody and may go.

        Raises
        ------
        Exception
            Whatever `read` raised.
        TimeoutError
            The read took longer than it may; it goes on.
        """
        with self._lock:
            wanted = self._want(index)
            self._trim(index, floor)
            for later in range(index + 1, min(index + 1 + self._ahead, self._n_blocks)):
                if self._bytes < self._budget:
                    self._want(later)
        seconds = self._seconds(index)
        try:
            return wanted.result(timeout=seconds)
        except BaseException as error:
            if not wanted.done():
                if isinstance(error, TimeoutError):
                    raise TimeoutError(
                        f"chunk {index} was not read in {seconds:.0f} seconds"
                    ) from error
                raise
            with self._lock:
                if self._blocks.get(index) is wanted:
                    self._forget(index)
            raise

    def close(self) -> None:
        """Forget all chunks and end the reading thread."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for index in list(self._blocks):
                self._forget(index)

    def _want(self, index: int) -> Future:
        """Return the future of a chunk, started if need be, moved to the recently used end."""
        if index not in self._blocks:
            self.reads += 1
            self._blocks[index] = self._reader.submit(self._load, index)
        self._blocks.move_to_end(index)
        return self._blocks[index]

    def _load(self, index: int) -> Any:
        chunk = self._read(index)
        with self._lock:
            if index in self._blocks:
                size = chunk.n_bytes
                self._bytes += size - self._sizes.get(index, 0)
                self._sizes[index] = size
        return chunk

    def _forget(self, index: int) -> None:
        del self._blocks[index]
        self._bytes -= self._sizes.pop(index, 0)

    def _trim(self, index: int, floor: int) -> None:
        """Drop what nobody needs, then the least recently used, down to the budget."""
        for old in range(self._floor, floor):
            if old in self._blocks and old != index:
                self._forget(old)
        self._floor = min(floor, index)
        while self._bytes > self._budget:
            oldest = next((i for i in self._blocks if i != index), None)
            if oldest is None:
                return
            self._forget(oldest)


def seconds_for(n_groups: int) -> float:
    """Return the longest wait for a chunk that draws from so many row groups."""
    return READ_SECONDS * -(-n_groups // JOINED_BLOCKS)


def read_failure(error: Exception, uri: str) -> Exception:
    """Tell a store that did not answer, which may do so in a moment, from data that is bad.

    pyarrow raises the same OSError for a failed request and for some damaged files.
    """
    is_request = isinstance(error, DataError) and isinstance(error.__cause__, OSError)
    return OutageError(str(error)) if is_request and _is_remote(uri) else error


def _is_remote(uri: str) -> bool:
    return "://" in uri and not uri.startswith("file:")
