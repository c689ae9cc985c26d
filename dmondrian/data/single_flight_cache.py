"""The last values of this process by key, as many as fit into a bound.

Promises that a value is made by one thread while others wait for it, that a failure is told to
those who wait and forgotten, and that the newest value is kept, however large it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Values by key; those that were not asked for the longest go first.

    Parameters
    ----------
    most : int
        Sizes of all values together.
    size_of : callable or None
        Size of a value; by default each counts 1, from before it is made.
    """

    def __init__(self, most: int, size_of: Callable[[T], int] | None = None) -> None:
        self._most, self._size_of = most, size_of
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Future[T]] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._total = 0  # of the sizes: a look-up must not add them all up

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, made by `make` if it is not there."""
        with self._lock:
            future = self._values.get(key)
            is_mine = future is None
            if future is None:
                future = self._values[key] = Future()
                self._resize(key, 1 if self._size_of is None else 0)
            self._values.move_to_end(key)
            self._let_go()
        if is_mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._values.get(key) is future:
                        self._forget(key)
                future.set_exception(error)
                raise
            self._weigh(key, future)
        return future.result()

    def find(self, key: Hashable) -> T | None:
        """Return the value of a key that is made; None if it is not there."""
        with self._lock:
            future = self._values.get(key)
            if future is None or not future.done() or future.exception() is not None:
                return None
            self._values.move_to_end(key)
            return future.result()

    def _weigh(self, key: Hashable, future: Future[T]) -> None:
        if self._size_of is None:
            return
        with self._lock:
            if self._values.get(key) is future:
                self._resize(key, self._size_of(future.result()))
                self._let_go()

    def _resize(self, key: Hashable, size: int) -> None:
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _forget(self, key: Hashable) -> None:
        del self._values[key]
        self._total -= self._sizes.pop(key)

    def _let_go(self) -> None:
        while self._total > self._most and len(self._values) > 1:
            self._forget(next(iter(self._values)))
