"""Progress on a stream: a tqdm bar on a terminal or in a notebook, lines at intervals elsewhere.

Relies on tqdm for bars: it is loaded when the first one is shown. Promises that where a bar cannot
be redrawn, as in a log file, lines come at intervals and only when there is something new.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TextIO

LOG_SECONDS = 5.0
"""Between two lines where they cannot be redrawn in place."""

_WITH_BAR, _TEXT_ALONE = "{percentage:3.0f}%|{bar}| {desc}", "{desc}"


def is_notebook() -> bool:
    """Whether a notebook's kernel runs this; loads nothing to find out."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class ProgressBar:
    """Bar, or lines, of the current state of some work.

    Parameters
    ----------
    stream : text stream or None
        By default stderr, or the output of a notebook's cell.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_redrawn = is_notebook() if stream is None else stream.isatty()
        self._stream, self._clock = stream or sys.stderr, clock
        self._bar: Any = None  # the bar that is shown
        self._written: object = None  # state of the last line elsewhere
        self._at = -math.inf  # when it was written, seconds

    def show(
        self,
        text: str,
        done: int = 0,
        total: int | None = None,
        *,
        line: str | None = None,
        state: object = None,
        now: bool = False,
    ) -> None:
        """Show a state of the work.

        Parameters
        ----------
        text : str
            Follows the bar: what is wanted most comes first, since a terminal may be narrow.
        done, total : int, int or None
            Length of the bar; without a total there is the text alone.
        line : str, optional
            What is written where no bar can be shown; by default the text.
        state : object
            What the line depends on: one of an equal state is not written again. By default the
            line.
        now : bool
            Whether a line may come before the next interval.
        """
        if not self._is_redrawn:
            self._append(text if line is None else line, state, now)
            return
        form = _TEXT_ALONE if total is None else _WITH_BAR
        if self._bar is not None and self._bar.bar_format == form:
            self._bar.n, self._bar.total = done, total
            self._bar.set_description_str(text)  # and draws it
            return
        self.close()
        self._bar = _bar_class()(
            initial=done,
            total=total,
            desc=text,
            file=None if is_notebook() else self._stream,
            bar_format=form,
            dynamic_ncols=True,
        )

    def make_way(self) -> None:
        """Clear the line of a bar that goes on, end that of one at its end: text follows."""
        if self._bar is not None and self._bar.total and self._bar.n < self._bar.total:
            self._bar.clear()
        else:
            self.close()

    def close(self) -> None:
        """End the line of a bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _append(self, text: str, state: object, now: bool) -> None:
        state = text if state is None else state
        moment = self._clock()
        if state == self._written or (not now and moment - self._at < LOG_SECONDS):
            return
        self._stream.write(text + "\n")
        self._stream.flush()
        self._written, self._at = state, moment


@cache
def _bar_class() -> Any:
    """Return tqdm's bar for this process, without a monitoring thread or a lock of processes."""
    with warnings.catch_warnings():  # of notebooks without ipywidgets: they get a bar of text
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm

    class Bar(tqdm):
        monitor_interval = 0

    Bar.set_lock(threading.RLock())
    return Bar
