"""A line of progress on a stream: rewritten in place on a terminal, a new line elsewhere.

Relies on the standard library alone. Promises that a line never exceeds the terminal, whose width
is asked for each time, so that it can be rewritten; and that where lines cannot be rewritten, as in
a log file, they come at intervals and only when there is something new.
"""

from __future__ import annotations

import math
import os
import shutil
import time
import unicodedata
from collections.abc import Callable, Sequence
from typing import TextIO

LOG_SECONDS = 5.0
"""Between two lines where they cannot be rewritten in place."""

_UNSEEN = ("Mn", "Me", "Cf")  # categories of characters that take no column of their own


def columns_of(stream: TextIO) -> int | None:
    """Return the columns of the terminal that a stream writes to; None where it is no terminal."""
    if not stream.isatty():
        return None
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # it has no number, or is no terminal of this machine's
        found = 0
    return found or shutil.get_terminal_size().columns


def width_of(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in _UNSEEN:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return the beginning of a text that fits into a number of columns."""
    if width_of(text) <= width:
        return text
    taken = 0
    for end, character in enumerate(text):
        taken += _columns(character)
        if taken > width:
            return text[:end]
    return text


def fitted(needed: Sequence[tuple[str, ...]], others: Sequence[str], width: int | None) -> str:
    """Join parts of a line by commas, as many as fit into a number of columns.

    Parameters
    ----------
    needed : sequence of tuple of str
        What is most wanted, first; of each part the ways to say it, the longest first. The last of
        them are shortened first.
    others : sequence of str
        What follows as far as there is room.
    width : int or None
        Columns; None for as many as it takes.
    """
    said = [ways[0] for ways in needed]
    if width is None:
        return ", ".join([*said, *others])
    for i in reversed(range(len(needed))):
        for way in needed[i]:
            said[i] = way
            if width_of(", ".join(said)) <= width:
                break
    line = cut(", ".join(said), width)
    for other in others:
        if width_of(line) + 2 + width_of(other) > width:
            break
        line = f"{line}, {other}"
    return line


class ProgressLine:
    """Where the newest state of the work is shown.

    Parameters
    ----------
    stream : text stream
    clock : callable
        Returns seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._open = 0  # columns of the line that stands open on a terminal
        self._written: object = None  # state of the last line elsewhere
        self._at = -math.inf  # when it was written, seconds

    def show(
        self, line: Callable[[int | None], str], state: object = None, *, now: bool = False
    ) -> None:
        """Show a line, if it is time for one.

        Parameters
        ----------
        line : callable
            Returns the text for a number of columns, or for any number.
        state : object
            What the line is of: elsewhere than on a terminal an equal one is not shown again. By
            default the text.
        now : bool
            Whether it may come before the next interval.
        """
        columns = columns_of(self._stream)
        if columns is None:
            self._append(line(None), state, now)
            return
        # The last column stays free: many terminals begin a new line when it is written.
        text = cut(line(columns - 1), max(1, columns - 1))
        width = width_of(text)
        self._stream.write("\r" + text + " " * (min(self._open, columns - 1) - width))
        self._stream.flush()
        self._open = width

    def _append(self, text: str, state: object, now: bool) -> None:
        state = text if state is None else state
        moment = self._clock()
        if state == self._written or (not now and moment - self._at < LOG_SECONDS):
            return
        self._stream.write(text + "\n")
        self._stream.flush()
        self._written, self._at = state, moment

    def close(self) -> None:
        """End a line that stands open."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = 0
