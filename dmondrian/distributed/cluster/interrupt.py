"""Ctrl-C handling: the first signal requests a clean stop, the second stops at once.

Relies on being entered in the main thread; elsewhere signals cannot be caught and nothing changes.
Promises to leave ignored signals alone (by `nohup`, say) and to restore the handlers. The request
is a flag to poll: an unbounded wait can miss a signal that arrives as it begins, and an `Event` set
by a handler can deadlock.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any, TypeVar

Made = TypeVar("Made")
_TICK = 0.1  # seconds between two polls, where a signal does not end a wait

# A terminal sends SIGINT, and SIGHUP when it is closed; a batch queue or orchestrator, SIGTERM.
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


OF_TERMINALS = tuple(number for number in _SIGNALS if number != signal.SIGTERM)
"""Signals that a terminal sends to all processes of a command."""


class Interrupts:
    """Context manager that records a request to stop.

    Parameters
    ----------
    at_once : str
        Message of the KeyboardInterrupt that a second request raises.
    """

    def __init__(self, at_once: str = "stopped at once; the last checkpoint is kept") -> None:
        self.is_requested = False
        self._first = 0  # the signal that came first
        self._at_once = at_once
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        around = {getattr(handler, "__self__", None) for handler in self._previous.values()}
        self._restore()
        if self.is_requested:  # in its last moment, say: who is around this one ends too
            for handler_owner in around:
                if isinstance(handler_owner, Interrupts):
                    handler_owner.is_requested, handler_owner._first = True, self._first

    def _restore(self) -> None:
        """Restore the handlers that were there before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt(self._at_once)
        self.is_requested, self._first = True, number


class DeferredInterrupt(Interrupts):
    """Context manager that defers a signal to the end of a block that must not be interrupted.

    On exit the signal is raised again, for the handlers that were there before.
    """

    def __exit__(self, *exception: object) -> None:
        self._restore()
        if self.is_requested:
            signal.raise_signal(self._first)


def without_terminal(make: Callable[[], Made]) -> Made:
    """Return `make()`, called in a thread whose processes take neither SIGINT nor SIGHUP.

    Ctrl-C in a terminal, and closing it, reach all processes of its group, also those that do not
    ignore them yet.
    """
    made: list[Made] = []
    failures: list[BaseException] = []

    def run() -> None:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, OF_TERMINALS)
        try:
            made.append(make())
        except BaseException as failure:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(failure)

    if hasattr(signal, "pthread_sigmask"):
        # Started with the first process, it would unblock SIGINT in this thread; and it does not
        # ignore SIGHUP by itself.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        try:
            resource_tracker.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    thread = threading.Thread(target=run, name="dmondrian-without-terminal", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_TICK)
    if failures:
        raise failures[0]
    return made[0]
