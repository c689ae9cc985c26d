"""Ctrl-C that waits: a step that must be done as a whole ends before KeyboardInterrupt is raised.

A forest that other threads may ask learns part by part, and holds off interrupts while a part is
learned: it is never torn by them, and goes on from the row after that part. Parts are those between
which readers are admitted. Of a forest that follows the stream they are pieces of at most 1,024
rows, or the rows of a block that is full; what is born with a piece, and settings that are chosen
from the first rows, are found before, where an interrupt ends it at once. Cells that are fitted
jointly take long, and are let alone.

Relies on signal handlers running on the main thread alone. Promises that the handler of before is
called, once for each signal that came, in their order and even if one raises, after the step; and
that other threads, where no interrupt is raised, are let alone.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold off Ctrl-C and other signals that a program handles, until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: dict[int, FrameType | None] = {}  # in the order in which they first came
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        came.setdefault(number, frame)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):  # by default SIGTERM ends the process at once
                before[number] = handler
                signal.signal(number, note)
        yield
    finally:
        for held, handler in before.items():
            signal.signal(held, handler)
        _call([(before[number], number, frame) for number, frame in came.items()])


def _call(handlers: list[tuple[Any, int, FrameType | None]]) -> None:
    """Call handlers in their order, those behind one that raises too."""
    if handlers:
        (handler, number, frame), *rest = handlers
        try:
            handler(number, frame)
        finally:
            _call(rest)
