"""Threads: the same work on many trees or chunks of rows at once, and turns at one forest.

Kernels release the interpreter's lock, so two threads can be in one forest at a time. A forest that
is learning is in no state that could answer: its trees have learned different rows, and their
arrays move. :class:`Turns` keeps readers out of it meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from math import inf
from threading import Event, Lock, RLock, get_ident
from time import monotonic
from typing import Any
from weakref import WeakSet

from dmondrian.errors import ParameterError

# Rows times trees that are learned before others may read: some seconds at most, and once a reader
# had to wait some tens of milliseconds. Longer parts are a little faster.
_MOST_AT_ONCE, _MOST_WHERE_SHARED = 2**19, 2**14
_SOON = 0.05  # seconds that readers wait for a learner who waits for others to leave
_LOOK_AGAIN = 0.1  # seconds; who was interrupted when it left may not have said so


def run_threads(work: Callable[[Any], Any], items: Sequence[Any], n_threads: int) -> None:
    """Call ``work`` on every item, on up to ``n_threads`` threads."""
    if n_threads <= 1 or len(items) <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(n_threads, len(items))) as pool:
        for _ in pool.map(work, items):
            pass


class Turns:
    """Turns of threads at one forest: readers together, a learner alone.

    ``reading`` holds the forest in one state. ``learning`` holds other learners off for a whole
    call, ``alone`` also readers, for a part of it: those who waited for the part before come first,
    those who come while it goes on wait for its end. A reader that takes long keeps a learner
    waiting, but not other readers. All may be nested, but nobody who reads may begin to learn.

    One row alone takes microseconds, so it has a way without bookkeeping: who holds ``mutex`` may
    read it where :attr:`is_taken` is false then. To learn it, set that, and look whether
    :attr:`is_occupied` is false.

    Attributes
    ----------
    mutex : RLock
        Held for moments alone, so there is no waiting for it.
    is_taken : bool
        Whether a learner is alone, or waits for the last readers to leave.
    is_broken : bool
        Whether this process was forked from one that was changing the forest.
    """

    def __init__(self) -> None:
        self.mutex = RLock()
        self.is_taken = self.is_broken = False
        self._learners = RLock()
        self._learner: int | None = None  # thread within ``learning``
        self._alone: int | None = None  # thread within ``alone``
        self._was_awaited = False  # whether a reader ever waited for a learner
        # By thread, an object for each stay. What is done to a dictionary is done in one step of
        # the interpreter: readers need no lock.
        self._readers: dict[int, object] = {}
        self._queue: dict[int, Lock] = {}  # released when its thread is among the readers
        self._awaited: set[object] = set()  # stays whose end a learner waits for
        self._left = Event()  # set when they have ended
        _ALL.add(self)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the forest in the state that it is in."""
        me = get_ident()
        if me in self._readers or self._alone == me:
            yield
            return
        try:
            if not self._enter(me):
                self._queue_up(me)
            yield
        finally:
            self._leave(me)

    def _enter(self, me: int) -> bool:
        """Be a reader; return False, and be none, if a learner is alone or waits to be."""
        self._readers[me] = object()  # before the look: a learner looks in reverse order
        if self.is_taken:
            self._leave(me)
            return False
        return True

    def _leave(self, me: int) -> None:
        """Be a reader no more."""
        stay = self._readers.pop(me, None)
        if stay in self._awaited:
            self._awaited.discard(stay)
            if not self._awaited:
                self._left.set()

    def _queue_up(self, me: int) -> None:
        """Wait until a learner has come to the end of a part; be a reader then."""
        if self.is_broken:
            raise ParameterError(_BROKEN)
        self._was_awaited = True
        mine = Lock()
        try:
            while True:
                mine = Lock()
                mine.acquire()
                self._queue[me] = mine
                if self.is_taken or self._queue.pop(me, None) is None:
                    while not mine.acquire(timeout=_LOOK_AGAIN):  # released by :meth:`_admit`
                        if not self.is_taken and self._readers.get(me) is not mine:
                            break  # the learner was interrupted before it let this thread in
                    else:
                        return
                if self._enter(me):  # as at first: the learner ended before it saw this thread
                    return
        finally:
            if self._queue.pop(me, None) is None:
                mine.acquire(timeout=0.0 if me in self._readers else _LOOK_AGAIN)

    def _admit(self) -> None:
        """Let those in who wait."""
        for who in list(self._queue):
            if (lock := self._queue.pop(who, None)) is not None:
                self._readers[who] = lock
                lock.release()

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Keep other learners off, for a whole call; readers come in where it is not alone."""
        with self._learners:
            before = self._learner
            try:
                with self.mutex:  # one row alone that is being learned ends first
                    self._learner = get_ident()
                yield
            finally:
                self._learner = before

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep everybody off, within :meth:`learning`: the forest may be in any state meanwhile."""
        me = get_ident()
        if self._alone == me:
            yield
            return
        if self.is_broken:
            raise ParameterError(_BROKEN)
        try:
            self._admit()
            self.is_taken = True
            if not self._await_readers(me, _SOON):
                self.is_taken = False  # somebody reads for long: others may as well
                self._admit()
                self._await_readers(me)
                self.is_taken = True
                self._await_readers(me)
            with self.mutex:  # one row alone that is being read ends first
                self._alone = me
            yield
        finally:
            self._alone, self.is_taken = None, False
            self._admit()

    def _await_readers(self, me: int, seconds: float = inf) -> bool:
        """Wait until all others who read now have left; return False if that takes too long."""
        end = monotonic() + seconds
        stays = [(who, stay) for who, stay in list(self._readers.items()) if who != me]
        try:
            self._left.clear()
            self._awaited = {stay for _, stay in stays}
            while stays := [(who, stay) for who, stay in stays if self._readers.get(who) is stay]:
                if monotonic() > end:
                    return False
                self._left.wait(min(_LOOK_AGAIN, seconds))
            return True
        finally:
            self._awaited = set()

    @property
    def is_occupied(self) -> bool:
        """Whether a thread reads, waits for its turn to, or is within a call that learns."""
        return bool(self._readers or self._queue) or self._learner is not None

    def rows_at_once(self, n_trees: int) -> int:
        """Return how many rows to learn alone before those who wait are let in."""
        most = _MOST_WHERE_SHARED if self._was_awaited else _MOST_AT_ONCE
        return max(1, most // max(1, n_trees))

    def _begin_in_child(self) -> None:
        """Forget the threads that this process, which was forked, does not have."""
        me = get_ident()
        is_mine = self.mutex.acquire(blocking=False)
        is_other = self._alone not in (None, me) or not is_mine  # who changes the forest, if it is
        self.is_broken = self.is_broken or (self.is_taken and is_other)
        if is_mine:
            self.mutex.release()
        else:
            self.mutex = RLock()
        if self._learner != me:
            self._learners, self._learner, self._alone = RLock(), None, None
            self.is_taken = self.is_broken
        self._readers = {who: stay for who, stay in self._readers.items() if who == me}
        self._queue, self._awaited, self._left = {}, set(), Event()


_BROKEN = (
    "this process was forked while another thread was changing the forest, so that its copy here "
    "may have learned a row in a part of its trees: fit anew, load what was saved, or fork before "
    "threads learn"
)
_ALL: WeakSet[Turns] = WeakSet()


def _begin_all_in_child() -> None:
    for turns in list(_ALL):
        turns._begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all_in_child)


@contextmanager
def reading_all(turns: Sequence[Turns]) -> Iterator[None]:
    """Keep many forests in the states that they are in; in one order, so that nobody is stuck."""
    with ExitStack() as stack:
        for each in sorted(set(turns), key=id):
            stack.enter_context(each.reading())
        yield
