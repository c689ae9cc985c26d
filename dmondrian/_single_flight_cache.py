"""Cache of the last used values by key, each computed once however many threads ask for it.

Promises that a value is computed by one thread while others wait for it, that a failure is raised
in all that wait and is not kept, and that the newest value is kept, however large it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlightCache(Generic[T]):
    """Values by key; the least recently used go first.

    Parameters
    ----------
    capacity : int
        Largest sum of sizes.
    size_of : callable or None
        Size of a value; by default each counts 1, from before it is computed.
    seconds : float or None
        Longest wait for a value that another thread computes.
    """

    def __init__(
        self,
        capacity: int,
        size_of: Callable[[T], int] | None = None,
        seconds: float | None = None,
    ) -> None:
        self._capacity, self._size_of, self._seconds = capacity, size_of, seconds
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Future[T]] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._total = 0  # of the sizes, so that a look-up is O(1)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, computed by `make` if it is not there.

        Raises
        ------
        TimeoutError
            Another thread took too long; it goes on.
        """
        with self._lock:
            future = self._values.get(key)
            is_mine = future is None
            if future is None:
                future = self._values[key] = Future()
                self._resize(key, 1 if self._size_of is None else 0)
            self._values.move_to_end(key)
            self._evict()
        if is_mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._values.get(key) is future:
                        self._forget(key)
                future.set_exception(error)
                raise
            self._measure(key, future)
        return future.result(timeout=self._seconds)

    def find(self, key: Hashable) -> T | None:
        """Return the value of a key if it is computed, else None."""
        with self._lock:
            future = self._values.get(key)
            if future is None or not future.done() or future.exception() is not None:
                return None
            self._values.move_to_end(key)
            return future.result()

    def _measure(self, key: Hashable, future: Future[T]) -> None:
        if self._size_of is None:
            return
        with self._lock:
            if self._values.get(key) is future:
                self._resize(key, self._size_of(future.result()))
                self._evict()

    def _resize(self, key: Hashable, size: int) -> None:
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _forget(self, key: Hashable) -> None:
        del self._values[key]
        self._total -= self._sizes.pop(key)

    def _evict(self) -> None:
        while self._total > self._capacity and len(self._values) > 1:
            self._forget(next(iter(self._values)))
