"""Trees in the memory of a worker process, within a planned number of bytes (`Shelf`).

Relies on stored trees never changing under their digests. Promises that trees are loaded by one
task while others that want the same wait, that a failed load is tried again by the next task, that
trees are put away only when no task uses them and new ones come only when there is room, and that
no wait is unbounded.
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
"""How long a task waits for others to load or to finish with their trees."""

KEPT = 2
"""Groups of trees kept where memory is not limited: the one in use and the one before."""


@dataclass
class _Place:
    """One group of trees, loaded or being loaded."""

    n_bytes: int  # at most, also while it is loaded
    users: int = 0
    value: Any = None  # None while it is being loaded


class Shelf:
    """Groups of trees by key, the last used behind."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._places: OrderedDict[Any, _Place] = OrderedDict()

    @contextmanager
    def using(
        self, key: Any, n_bytes: int, room: int | None, load: Callable[[], Any]
    ) -> Iterator[Any]:
        """Lend a group of trees.

        Parameters
        ----------
        key : hashable
        n_bytes, room : int, int or None
            What these trees need at most, and what all that are here may need.
        load : callable
            Reads the trees.

        Raises
        ------
        TimeoutError
            Other tasks used or loaded their trees for too long.
        """
        place, is_mine = self._take(key, n_bytes, room)
        try:
            if is_mine:
                self._fill(place, load)
            yield place.value
        finally:
            with self._changed:
                place.users -= 1
                if place.value is None and self._places.get(key) is place:
                    del self._places[key]  # the load failed: the next task tries again
                self._changed.notify_all()

    def _take(self, key: Any, n_bytes: int, room: int | None) -> tuple[_Place, bool]:
        """Become a user of a loaded group, or the one who loads it."""
        end = time.monotonic() + WAIT_SECONDS
        with self._changed:
            while True:
                place = self._places.get(key)
                if place is not None and place.value is not None:
                    place.users += 1
                    self._places.move_to_end(key)
                    return place, False
                if place is None and self._make_room(n_bytes, room):
                    place = self._places[key] = _Place(n_bytes, users=1)
                    return place, True
                if not self._changed.wait(end - time.monotonic()):
                    raise TimeoutError(
                        f"waited {WAIT_SECONDS:.0f} seconds for other tasks of this worker to load "
                        "or to finish with their trees"
                    )

    def _make_room(self, n_bytes: int, room: int | None) -> bool:
        """Put away what is idle, the longest unused first, until there is room; say if there is."""
        while not self._fits(n_bytes, room):
            idle = next((key for key, place in self._places.items() if not place.users), None)
            if idle is None:
                return room is None or not self._places
            del self._places[idle]
            pa.default_memory_pool().release_unused()
        return True

    def _fits(self, n_bytes: int, room: int | None) -> bool:
        if room is None:
            return len(self._places) < KEPT
        return sum(place.n_bytes for place in self._places.values()) + n_bytes <= room

    def _fill(self, place: _Place, load: Callable[[], Any]) -> None:
        value = load()
        # What decoding needed goes back to the machine before the trees are used.
        pa.default_memory_pool().release_unused()
        with self._changed:
            place.value = value
            self._changed.notify_all()
