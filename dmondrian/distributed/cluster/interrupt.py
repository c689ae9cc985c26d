"""Ctrl-C: the first asks for a clean stop, the second stops at once.

Relies on being entered in the main thread; elsewhere signals cannot be caught and nothing changes.
Promises to leave alone what is ignored (by `nohup`, say) and to put the handlers back. Whoever
waits for the request looks at it again and again: a wait without end can miss a signal that comes
as it begins, and an `Event` that a handler sets then locks up.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any, TypeVar

Made = TypeVar("Made")
_TICK = 0.1  # seconds between two looks for a signal, where a wait does not end by one

# A terminal says SIGINT, and SIGHUP when it is closed; a queue or an orchestrator says SIGTERM.
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interrupts:
    """Notes a request to stop, while it is entered.

    Parameters
    ----------
    at_once : str
        What the KeyboardInterrupt of a second request says.
    """

    def __init__(self, at_once: str = "stopped at once; the last checkpoint stands") -> None:
        self.is_requested = False
        self._first = 0  # the signal that came first
        self._at_once = at_once
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt(self._at_once)
        self.is_requested, self._first = True, number


class HeldBack(Interrupts):
    """Holds the first request back until the end of a block that must not be cut short.

    At the end it is sent again, and whoever listened before hears of it.
    """

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if self.is_requested:
            signal.raise_signal(self._first)


def undisturbed(make: Callable[[], Made]) -> Made:
    """Call something in a thread that SIGINT does not reach, nor the processes started by it.

    Ctrl-C in a terminal reaches all processes of its group, also those that have not yet come to
    ignoring it.
    """
    made: list[Made] = []
    failures: list[BaseException] = []

    def run() -> None:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            made.append(make())
        except BaseException as failure:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(failure)

    if hasattr(signal, "pthread_sigmask"):
        # Started by the first process it would unblock SIGINT in the thread that starts that.
        resource_tracker.ensure_running()
    thread = threading.Thread(target=run, name="dmondrian-undisturbed", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_TICK)
    if failures:
        raise failures[0]
    return made[0]
