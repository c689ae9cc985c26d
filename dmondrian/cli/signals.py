"""Signals that ask a process to end, handled as Ctrl-C is.

Relies on being entered in the main thread; elsewhere signals cannot be caught and nothing changes.
Promises not to change signals that are ignored (for example by `nohup`) or not Python's to change,
and to restore the handlers; and that no interrupt is lost where Python cannot raise one, as in a
finalizer: it is raised again. Code that stops more gently
(:mod:`dmondrian.distributed.cluster.interrupt`) replaces them for a while.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Ctrl-C is an interrupt already. A queue or an orchestrator sends SIGTERM, a terminal SIGHUP.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

_SOON = 0.05  # seconds


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP, while the context lasts."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in _SIGNALS}
    caught = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    hook = sys.unraisablehook
    if caught:
        sys.unraisablehook = _raising_again(hook, caught[0])
    try:
        for number in caught:
            signal.signal(number, _interrupt)
        yield
    finally:
        sys.unraisablehook = hook
        for number in caught:
            signal.signal(number, before[number])


def _raising_again(report: Callable[[Any], Any], number: int) -> Callable[[Any], None]:
    """Return a hook that reports errors which cannot be raised, but raises interrupts again.

    That is by the signal of this number, as soon as what could not pass them on is over.
    """

    def hook(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report(lost)
            return
        again = threading.Timer(_SOON, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    return hook


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
