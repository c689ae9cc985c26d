"""Ctrl-C: the first asks for a clean stop, the second stops at once.

Relies on being entered in the main thread; elsewhere signals cannot be caught and nothing changes.
Promises to leave alone what is ignored (by `nohup`, say) and to put the handlers back. Whoever
waits for the request looks at it again and again: a wait without end can miss a signal that comes
as it begins, and an `Event` that a handler sets then locks up.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

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
        self.is_requested = True
