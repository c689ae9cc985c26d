"""Cache of a worker's chunks: each is read, encoded and prepared once, ahead of need.

All shards of a run have one set of scales, units and domain, so rows are kept as trees see them
(:mod:`dmondrian.ensemble.rows.prepared_rows`). How boxes are encoded differs between shards; rows
keep each encoding that a shard has asked for. Encodings are not counted in bytes: only chunks that
are being learned have them.

Relies on a `read` function that is a pure function of the chunk's number. Promises that the shards
of a worker share one copy of a chunk, that a look-up is O(1), that a failed read is retried by the
next caller, that a read which exceeds its time goes on and the next caller waits for it, that
read-ahead stops when the byte budget is used up, that no wait is unbounded, and that a temporary
failure of a store is not reported as bad data.

It is no `SingleFlightCache` (`dmondrian/data/single_flight_cache.py`): there a value is made by the
thread that asks, which could not read ahead, nor leave a read that takes too long to go on.
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
"""Chunks read ahead; one hides the time to read, two also its variation."""

READ_SECONDS = 300.0
"""Longest wait for a chunk, per `JOINED_BLOCKS` row groups that it reads from."""

BUDGET_BYTES = 512 << 20
"""Bytes of encoded chunks that a worker keeps; the requested chunk is always kept."""


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
    def earlier(self) -> np.ndarray | None:
        """Labels of earlier rows of the same key, float64 [n]; None where they are not read."""
        return self._encoded.earlier

    @property
    def n_bytes(self) -> int:
        """Bytes of rows, targets, weights, times and earlier labels."""
        parts = self.rows.values, self.y, self.weight, self._encoded.times, self.earlier
        return sum(part.nbytes for part in parts if part is not None)

    def between(self, start: int, stop: int) -> tuple[PreparedRows, Encoded]:
        """Return the rows at the places `start` to `stop - 1`, dropped ones counted.

        Returns
        -------
        rows : PreparedRows
        encoded : Encoded
            Their targets, weights and counts; see `Encoded.between`.
        """
        rows = self.rows[self._encoded.left_between(start, stop)]
        return rows, self._encoded.between(start, stop)


class ChunkCache:
    """Prepared chunks of one plan, by number.

    Parameters
    ----------
    read : callable
        `read(index) -> PreparedChunk`.
    n_chunks : int
        Number of chunks of the plan.
    ahead, budget : int
        Chunks to read ahead, bytes to keep.
    seconds : callable or None
        `seconds(index) -> float`, the longest wait for a chunk; by default `READ_SECONDS`.
    readers : int
        Chunks read at a time: as many places of the stream are learned at once.
    """

    def __init__(
        self,
        read: Callable[[int], Any],
        n_chunks: int,
        ahead: int = AHEAD,
        budget: int = BUDGET_BYTES,
        seconds: Callable[[int], float] | None = None,
        readers: int = 1,
    ) -> None:
        self._read = read
        self._n_chunks = n_chunks
        self._ahead = ahead
        self._budget = budget
        self._seconds = seconds or (lambda index: READ_SECONDS)
        self._lock = threading.Lock()
        self._chunks: OrderedDict[int, Future] = OrderedDict()
        self._sizes: dict[int, int] = {}  # bytes of each chunk that is read
        self._bytes = 0  # sum of the sizes, so that a look-up is O(1)
        self._floor = 0  # no chunk below it is kept
        self._reader = ThreadPoolExecutor(readers, thread_name_prefix="dmondrian-read")
        self.reads = 0  # chunks read so far, including repeated reads

    def get(self, index: int, floor: int = 0) -> Any:
        """Return the encoded chunk; chunks below `floor` are not needed any more and are dropped.

        Raises
        ------
        Exception
            Whatever `read` raised.
        TimeoutError
            The read exceeded its time; it goes on.
        """
        with self._lock:
            wanted = self._want(index)
            self._trim(index, floor)
            for later in range(index + 1, min(index + 1 + self._ahead, self._n_chunks)):
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
                if self._chunks.get(index) is wanted:
                    self._forget(index)
            raise

    def close(self) -> None:
        """Drop all chunks and end the reader thread."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for index in list(self._chunks):
                self._forget(index)

    def _want(self, index: int) -> Future:
        """Return the future of a chunk, submitted if needed, and mark it as most recently used."""
        if index not in self._chunks:
            self.reads += 1
            self._chunks[index] = self._reader.submit(self._load, index)
        self._chunks.move_to_end(index)
        return self._chunks[index]

    def _load(self, index: int) -> Any:
        chunk = self._read(index)
        with self._lock:
            if index in self._chunks:
                size = chunk.n_bytes
                self._bytes += size - self._sizes.get(index, 0)
                self._sizes[index] = size
        return chunk

    def _forget(self, index: int) -> None:
        del self._chunks[index]
        self._bytes -= self._sizes.pop(index, 0)

    def _trim(self, index: int, floor: int) -> None:
        """Drop chunks below the floor, then the least recently used, down to the budget."""
        for old in range(self._floor, floor):
            if old in self._chunks and old != index:
                self._forget(old)
        self._floor = min(floor, index)
        while self._bytes > self._budget:
            oldest = next((i for i in self._chunks if i != index), None)
            if oldest is None:
                return
            self._forget(oldest)


def seconds_for(n_groups: int) -> float:
    """Return the longest wait for a chunk that reads from `n_groups` row groups."""
    return READ_SECONDS * -(-n_groups // JOINED_BLOCKS)


def read_failure(error: Exception, uri: str) -> Exception:
    """Return an `OutageError` for a failed request to a store, other errors unchanged.

    pyarrow raises the same OSError for a failed request and for some damaged files.
    """
    is_request = isinstance(error, DataError) and isinstance(error.__cause__, OSError)
    return OutageError(str(error)) if is_request and _is_remote(uri) else error


def _is_remote(uri: str) -> bool:
    return "://" in uri and not uri.startswith("file:")
