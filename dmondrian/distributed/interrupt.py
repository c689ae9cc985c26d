"""Ctrl-C: the first asks for a clean stop, the second stops at once.

Relies on being entered in the main thread; elsewhere signals cannot be caught and nothing changes.
Promises to put the handlers back.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # a queue or an orchestrator says SIGTERM


class Interrupts:
    """Counts requests to stop, while it is entered."""

    def __init__(self) -> None:
        self.is_requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt("stopped at once; the last checkpoint stands")
        self.is_requested = True
