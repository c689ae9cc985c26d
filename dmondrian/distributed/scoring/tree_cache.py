"""Cache of the trees in a worker's memory: few groups, within a planned number of bytes.

Relies on stored trees never changing under their digests. Promises that trees are loaded by one
task while others that need them wait, that a failed load is retried by the next task, that trees
are evicted only when no task uses them and loaded only within the capacity, and that no wait is
unbounded.

It is no `SingleFlightCache` (`dmondrian/data/single_flight_cache.py`): that learns a value's size
when it is there, and forgets values in use, whose memory would go on being held beside new ones.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

WAIT_SECONDS = 900.0
"""How long a task waits for others to load or release their trees."""

KEPT = 2
"""Groups of trees kept when another is loaded, with that one: those of earlier checkpoints go."""


@dataclass
class _Entry:
    """A group of trees, loaded or being loaded."""

    n_bytes: int  # upper bound, also during loading
    users: int = 0
    value: Any = None  # None during loading


class TreeCache:
    """Groups of trees by key, in order of last use."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: OrderedDict[Any, _Entry] = OrderedDict()

    @contextmanager
    def using(
        self, key: Any, n_bytes: int, capacity: int | None, load: Callable[[], Any]
    ) -> Iterator[Any]:
        """Yield a group of trees, kept in memory until exit.

        Parameters
        ----------
        key : hashable
        n_bytes, capacity : int, int or None
            Memory that these trees need at most, and limit for all cached trees.
        load : callable
            Returns the trees.

        Raises
        ------
        TimeoutError
            Other tasks used or loaded trees for too long.
        """
        entry, is_loader = self._take(key, n_bytes, capacity)
        try:
            if is_loader:
                self._fill(entry, load)
            yield entry.value
        finally:
            with self._changed:
                entry.users -= 1
                if entry.value is None and self._entries.get(key) is entry:
                    del self._entries[key]  # loading failed: the next task tries again
                self._changed.notify_all()

    def _take(self, key: Any, n_bytes: int, capacity: int | None) -> tuple[_Entry, bool]:
        """Return the entry of a loaded group, or a new one that the caller must load."""
        end = time.monotonic() + WAIT_SECONDS
        with self._changed:
            while True:
                entry = self._entries.get(key)
                if entry is not None and entry.value is not None:
                    entry.users += 1
                    self._entries.move_to_end(key)
                    return entry, False
                if entry is None and self._evict(n_bytes, capacity):
                    entry = self._entries[key] = _Entry(n_bytes, users=1)
                    return entry, True
                if not self._changed.wait(end - time.monotonic()):
                    raise TimeoutError(
                        f"waited {WAIT_SECONDS:.0f} seconds for other tasks of this worker to load "
                        "or to finish with their trees"
                    )

    def _evict(self, n_bytes: int, capacity: int | None) -> bool:
        """Evict idle groups, least recently used first, until `n_bytes` fit; return if they do.

        No more than `KEPT` stay even so, as a worker may learn meanwhile: it needs the memory.
        """
        while len(self._entries) >= KEPT or not self._fits(n_bytes, capacity):
            idle = next((key for key, entry in self._entries.items() if not entry.users), None)
            if idle is None:
                return not self._entries or self._fits(n_bytes, capacity)
            del self._entries[idle]
            pa.default_memory_pool().release_unused()
        return True

    def _fits(self, n_bytes: int, capacity: int | None) -> bool:
        held = sum(entry.n_bytes for entry in self._entries.values())
        return capacity is None or held + n_bytes <= capacity

    def _fill(self, entry: _Entry, load: Callable[[], Any]) -> None:
        value = load()
        # Return the memory used for decoding to the system before the trees are used.
        pa.default_memory_pool().release_unused()
        with self._changed:
            entry.value = value
            self._changed.notify_all()
