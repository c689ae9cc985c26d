"""Signals: what asks a process to end is an interrupt, as Ctrl-C is.

Relies on being entered in the main thread; elsewhere signals cannot be caught and nothing changes.
Promises to leave alone what is ignored (by `nohup`, say) or not Python's to change, and to put the
handlers back. Whoever stops more gently (:mod:`dmondrian.distributed.interrupt`) replaces them for
a while.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Ctrl-C is an interrupt already. A queue or an orchestrator says SIGTERM, a closed terminal SIGHUP.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP, while a block lasts."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in _SIGNALS}
    caught = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for number in caught:
            signal.signal(number, _interrupt)
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
