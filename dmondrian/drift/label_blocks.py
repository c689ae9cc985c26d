"""Blocks of rows whose labels come together: a number of rows, or the rows of a period of time.

Blocks of time are counted from the time of the first row: row t is of block floor((T_t - T_0) / D),
D the delay. A row whose block is over, since one of a later block came before it, is of the open
one, where its label is known with those of the others; it is counted as late. A block ends when
the first row of a later one comes, one of rows after its last row. What depends on the rows of a
block, such as how far weights move by one, takes those of the last full one.

Relies on nothing that learns. Promises a pure function of the rows in order, whatever the cuts
between calls.

Shapes: n rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dmondrian._text.wording import counted
from dmondrian.ensemble.settings.drift_settings import LARGEST_DELAY, DriftSettings
from dmondrian.errors import CorruptError, DataError, ParameterError

_LARGEST_NUMBER = 2**53


class Clock(NamedTuple):
    """How far a stream has come in blocks of time."""

    first: float | None = None  # time of its first row
    block: int = 0  # number of the open block
    n_rows: int = 0  # rows of the open block so far
    n_last_full: int = 1  # rows of the last full block; 1 while there is none
    n_late: int = 0  # rows that came when their block was over


class LabelBlock(NamedTuple):
    """Rows that come next, of one block."""

    rows: slice
    is_after_end: bool  # whether the block before them ends when the first of them comes
    is_end: bool  # whether their own block ends with the last of them


class LabelBlocks:
    """Where a stream is in its blocks.

    Parameters
    ----------
    settings : DriftSettings

    Attributes
    ----------
    clock : Clock
        Of blocks of time.
    """

    def __init__(self, settings: DriftSettings) -> None:
        self._delay, self._period, self.clock = settings.delay, settings.length, Clock()

    @property
    def is_timed(self) -> bool:
        """Whether blocks are of time."""
        return self._period is not None

    @property
    def delay(self) -> int:
        """Rows of a block; of blocks of time those of the last full one."""
        return self.clock.n_last_full if self.is_timed else self._delay

    def n_waiting(self, n_rows: int) -> int:
        """Return how many of the ``n_rows`` that came are of a block that has not ended."""
        return self.clock.n_rows if self.is_timed else n_rows % self._delay

    def check(self, times: np.ndarray | None, n: int) -> None:
        """Refuse rows that lack times, or have some, or are too many of one block.

        Parameters
        ----------
        times : float64 [n] or None
            Of the rows of positive weight that come next.
        n : int
        """
        if self._period is None:
            if times is not None:
                raise ParameterError(
                    f"times go with a delay that is a time: delay={self._delay} counts rows; give "
                    'delay as text, such as "7 days", or leave out the times'
                )
            return
        words = self._period.in_words
        if times is None:
            raise ParameterError(
                f'delay="{words}" needs the time of each row, and rows came without: give times'
            )
        if times.shape != (n,) or not np.isfinite(times).all():
            raise DataError(f"times should be {n} finite numbers, one a row")
        for block in self.cut(0, n, times):
            size = block.rows.stop - block.rows.start
            size += 0 if block.is_after_end or block.rows.start else self.clock.n_rows
            if size > LARGEST_DELAY:
                raise DataError(
                    f"{counted(size, 'row')} came within {words}, and rows whose labels come "
                    f"together wait until then, at most {LARGEST_DELAY:,}: give a shorter delay, "
                    f"or one in rows{self._after_a_jump(times[block.rows])}"
                )

    def _after_a_jump(self, times: np.ndarray) -> str:
        """Return a hint for rows before the block that is open, whose time may be wrong."""
        begin, period = self.begin, self._period
        if begin is None or period is None or not (times < begin).any():
            return ""
        latest = _in_words(times.max(), period.is_dated)
        return (
            f". A row opened the block of {_in_words(begin, period.is_dated)}, and those after it "
            f"have earlier times, up to {latest}: if that time was wrong, train anew without it"
        )

    @property
    def begin(self) -> float | None:
        """Time at which the open block begins; None before any row."""
        first = self.clock.first
        if first is None or self._period is None:
            return None
        return first + self.clock.block * self._period.length

    def cut(self, position: int, n: int, times: np.ndarray | None) -> Iterator[LabelBlock]:
        """Yield the next ``n`` rows, from row ``position`` on, block by block.

        Where a block has one row, all rows at once. ``times`` float64 [n] are those of the rows,
        where blocks are of time.
        """
        if times is not None and self.is_timed:
            yield from self._cut_by_time(times)
            return
        start, delay = 0, self._delay
        while start < n:
            stop = n if delay == 1 else min(n, start + delay - (position + start) % delay)
            yield LabelBlock(slice(start, stop), False, (position + stop) % delay == 0)
            start = stop

    def _cut_by_time(self, times: np.ndarray) -> Iterator[LabelBlock]:
        block_numbers = self._numbers(times)
        numbers = np.maximum.accumulate(np.concatenate([[self.clock.block], block_numbers]))
        begins = np.flatnonzero(np.diff(numbers)).tolist()  # rows
        is_begun = begins[:1] == [0]  # by the first row
        starts = begins if is_begun else [0, *begins]
        for start, stop in zip(starts, [*starts[1:], len(times)], strict=True):
            if start < stop:
                yield LabelBlock(slice(start, stop), start > 0 or is_begun, False)

    def _numbers(self, times: np.ndarray) -> np.ndarray:
        """Return the number of the block of each time, float64 [n], whole."""
        assert self._period is not None  # as documented of those who ask
        if not len(times):
            return times
        first = times[0] if self.clock.first is None else self.clock.first
        with np.errstate(all="ignore"):
            numbers = np.floor_divide(times - first, self._period.length)
        if not (np.abs(numbers) < _LARGEST_NUMBER).all():
            raise DataError(
                f"times between {times.min():g} and {times.max():g} are too far apart for a delay "
                f"of {self._period.in_words}"
            )
        return numbers

    def count(self, times: np.ndarray | None) -> None:
        """Count rows, one or more, of one block: the open one, or one that they open."""
        if times is None or not self.is_timed:
            return
        numbers, clock = self._numbers(times), self.clock
        number = max(clock.block, int(numbers[0]))
        self.clock = Clock(
            float(times[0]) if clock.first is None else clock.first,
            number,
            clock.n_rows + len(numbers),
            clock.n_last_full,
            clock.n_late + int(np.count_nonzero(numbers < number)),
        )

    def end_block(self) -> None:
        """Count the open block as full."""
        if self.is_timed:
            self.clock = self.clock._replace(n_rows=0, n_last_full=self.clock.n_rows)

    def to_json(self) -> dict[str, Any]:
        """Return the entry "clock" of a state; none where blocks are of rows."""
        return {"clock": list(self.clock)} if self.is_timed else {}

    def load_json(self, stored: dict[str, Any], n_rows: int) -> None:
        """Take over what :meth:`to_json` wrote after ``n_rows`` rows.

        Raises
        ------
        CorruptError
            If it is no clock of so many rows, or one is there and should not be.
        """
        stored_clock = stored.get("clock")
        if stored_clock is None and not self.is_timed:
            return
        fields = stored_clock if isinstance(stored_clock, list) else []
        is_sound = self.is_timed and len(fields) == len(Clock._fields)
        if is_sound:
            first, *counts = fields
            clock, is_new = Clock(first, *counts), first is None
            is_sound = is_new or (isinstance(first, float) and bool(np.isfinite(first)))
            is_sound = is_sound and all(type(n) is int and 0 <= n <= 2**53 for n in counts)
        if is_sound:
            n_full = n_rows - clock.n_rows
            is_sound = (clock.n_rows > 0) == (n_rows > 0) and 0 <= clock.n_late < max(n_rows, 1)
            is_sound = is_sound and is_new == (n_rows == 0) and clock.n_rows <= LARGEST_DELAY
            is_sound = is_sound and 1 <= clock.n_last_full <= max(n_full, 1) and n_full >= 0
            is_sound = is_sound and (clock.block > 0) == (n_full > 0)
        if not is_sound:
            raise CorruptError(
                f"blocks of time after {n_rows} rows should be {list(Clock._fields)}, found "
                f"{str(stored_clock)[:80]}"
            )
        self.clock = clock


def _in_words(time: float, is_dated: bool) -> str:
    """Return a time for people: a date, or the number."""
    return f"{np.datetime64(int(time), 'us')} UTC" if is_dated else f"{time:g}"
