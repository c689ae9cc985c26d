"""Threads: the same work on many trees or chunks of rows at once, and turns at one forest.

Kernels release the interpreter's lock, so two threads can be in one forest at a time. A forest that
is learning is in no state that could answer: its trees have learned different rows, and their
arrays move. :class:`Turns` keeps readers out of it meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from queue import Empty, SimpleQueue
from threading import Lock, RLock, get_ident
from time import monotonic
from typing import Any
from weakref import WeakSet

from dmondrian.errors import ParameterError

# Rows times trees that are learned before readers are admitted: some seconds at most, or, once a
# reader had to wait, some tens of milliseconds. Longer parts are a little faster.
_MOST_AT_ONCE, _MOST_WHERE_SHARED = 2**19, 2**14
_SOON = 0.05  # seconds that new readers wait for a learner that waits for earlier ones to leave
_MOST_OPENINGS = 16  # times that a learner then admits new readers, before it admits none
_LOOK_AGAIN = 0.1  # seconds; a thread that was interrupted as it left may have sent no signal


def run_threads(work: Callable[[Any], Any], items: Sequence[Any], n_threads: int) -> None:
    """Call ``work`` on every item, on up to ``n_threads`` threads."""
    if n_threads <= 1 or len(items) <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(n_threads, len(items))) as pool:
        for _ in pool.map(work, items):
            pass


class _Reader:
    """A thread that reads, or waits until it may.

    Attributes
    ----------
    is_in : bool
        Whether it may read; set under the mutex, and never cleared.
    opened : Lock, optional
        Released when ``is_in`` is set, where the thread waits.
    left : SimpleQueue, optional
        Where a learner waits for the thread to leave.
    """

    is_in = False
    opened: Lock | None = None
    left: SimpleQueue[None] | None = None


class Turns:
    """Turns of threads at one forest: readers together, a learner alone.

    ``reading`` holds the forest in one state. ``learning`` holds other learners off for a whole
    call, ``alone`` also readers, for a part of it: readers that waited for the part before come
    first, those that come meanwhile wait for its end. A reader that takes long keeps a learner
    waiting, but not other readers, until the learner has waited for many such readers, one after
    the other. All may be nested, but a thread that reads must not begin to learn.

    One row alone takes microseconds, so it needs no entry of a reader. A thread that holds
    ``mutex`` may read with it where :attr:`is_taken` is false, and learn where :attr:`is_occupied`
    is false too; :attr:`at_row` names which meanwhile.

    No thread becomes a reader, and no learner begins, without the mutex. Signal handlers may read
    and learn: they run on a thread that may be anywhere in this class, so the mutex is reentrant.
    An interrupt may come before the first step of any Python function, so what is to be undone is
    undone by single steps in a ``finally``, and a wait looks again even without a signal.

    Attributes
    ----------
    mutex : RLock
        Held for moments alone.
    is_taken : bool
        Whether a learner is alone, or waits for the last readers to leave; set by learners only.
    at_row : {None, "read", "learned"}
        What is done to one row, under the mutex. A thread that holds the mutex and finds it set
        is in a signal handler, which interrupted that.
    is_broken : bool
        Whether this process was forked from one that was changing the forest.
    """

    def __init__(self) -> None:
        self.mutex = RLock()
        self.is_taken = self.is_broken = False
        self.at_row: str | None = None
        self._learners = RLock()
        self._learner: int | None = None  # thread within ``learning``
        self._alone: int | None = None  # thread within ``alone``
        # Whether a reader waited for a learner in this call that learns, and in the one before.
        self._is_awaited = self._was_awaited = False
        self._readers: dict[int, _Reader] = {}  # by thread, which alone puts its own in and out
        _ALL.add(self)

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        """Be copied and pickled as new turns: a copy is of another forest."""
        return Turns, ()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the forest in the state that it is in."""
        me = get_ident()
        if self._learner == me:  # no other thread changes it
            yield
            return
        if (outer := self._readers.get(me)) is not None:
            if not outer.is_in:  # this is a signal handler, and what it interrupted waits
                self._wait_to_read(outer)
            yield
            return
        reader = _Reader()
        try:
            self._readers[me] = reader  # before there is any waiting: no row alone is learned now
            self._wait_to_read(reader)
            yield
        finally:
            self._readers.pop(me, None)
            if reader.left is not None:
                reader.left.put(None)

    def _wait_to_read(self, reader: _Reader) -> None:
        """Return when the thread of a reader may read."""
        while not reader.is_in:
            with self.mutex:
                if reader.is_in or not self.is_taken:
                    reader.is_in = True
                    return
                if self.is_broken:
                    raise ParameterError(_BROKEN)
                self._is_awaited = True
                if reader.opened is None:
                    opened = Lock()
                    opened.acquire()
                    reader.opened = opened
            reader.opened.acquire(timeout=_LOOK_AGAIN)

    def _admit(self) -> None:
        """Let all threads read that wait to."""
        with self.mutex:
            for reader in list(self._readers.values()):
                if not reader.is_in:
                    reader.is_in = True
                    if reader.opened is not None:
                        reader.opened.release()

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Keep other learners off, for a whole call; others may read where it is not `alone`."""
        with self._learners:
            before = self._learner
            try:
                self._learner = get_ident()
                with self.mutex:  # one row alone that is being learned ends first
                    pass
                yield
            finally:
                self._learner = before
                if before is None:
                    self._was_awaited, self._is_awaited = self._is_awaited, False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep readers off, within :meth:`learning`: the forest may be in any state meanwhile."""
        me = get_ident()
        if self._alone == me:
            yield
            return
        if self.is_broken:
            raise ParameterError(_BROKEN)
        was_taken = self.is_taken  # by this thread, whose signal handler this is
        try:
            self._take(me)
            self._alone = me
            yield
        finally:
            self._alone, self.is_taken = None, was_taken
            self._admit()

    def _take(self, me: int) -> None:
        """Admit no more readers, and wait until those that read have left."""
        self._admit()
        for seconds in (*[_SOON] * _MOST_OPENINGS, inf):
            self.is_taken = True
            with self.mutex:  # one row alone that is being read ends first
                if self.at_row == "learned":
                    raise ParameterError(_AMID_A_ROW)
                self.at_row = None  # it is read again: this is a signal handler amid that
            if self._await_readers(me, seconds):
                return
            self.is_taken = False  # one reads for long: others may as well
            self._admit()
            self._await_readers(me)

    def _await_readers(self, me: int, seconds: float = inf) -> bool:
        """Wait until all other threads that read now have left; return False if that takes long."""
        # a copy is made in one step; a list of pairs is not, where memory is collected amid it
        now = self._readers.copy().items()
        readers = [(thread, reader) for thread, reader in now if reader.is_in and thread != me]
        if not readers:
            return True
        left: SimpleQueue[None] = SimpleQueue()
        for _, reader in readers:
            reader.left = left
        end = monotonic() + seconds
        while readers := [pair for pair in readers if self._readers.get(pair[0]) is pair[1]]:
            if monotonic() > end:
                return False
            with suppress(Empty):
                left.get(timeout=min(_LOOK_AGAIN, seconds))
        return True

    @property
    def is_occupied(self) -> bool:
        """Whether a thread reads, waits for its turn to, or is within a call that learns."""
        return bool(self._readers) or self._learner is not None

    def rows_at_once(self, n_trees: int) -> int:
        """Return how many rows to learn alone before readers are admitted."""
        is_shared = self._is_awaited or self._was_awaited
        return max(1, (_MOST_WHERE_SHARED if is_shared else _MOST_AT_ONCE) // max(1, n_trees))

    def _begin_in_child(self) -> None:
        """Forget the threads that this process, which was forked, does not have."""
        me = get_ident()
        has_mutex = self.mutex.acquire(blocking=False)
        is_changed = self._alone not in (None, me) or (not has_mutex and self.at_row == "learned")
        self.is_broken = self.is_broken or is_changed
        if has_mutex:
            self.mutex.release()
        else:
            self.mutex, self.at_row = RLock(), None
        if self._learner != me:
            self._learners, self._learner, self._alone = RLock(), None, None
            self.is_taken = self.is_broken
        self._readers = {thread: reader for thread, reader in self._readers.items() if thread == me}


_AMID_A_ROW = (
    "a signal handler cannot learn while the row that it interrupted is being learned: let it set "
    "a flag, and learn when the interrupted call has ended"
)
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
    """Keep many forests in their states; entered in one order, so that no thread waits for ever."""
    with ExitStack() as stack:
        for each in sorted(set(turns), key=id):
            stack.enter_context(each.reading())
        yield
