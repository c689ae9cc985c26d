"""Work units: the consecutive rows that one step learns; runs checkpoint at their ends.

Relies on the chunks of a frozen plan: contiguous, in stream order, numbered from 0. Promises that
units depend on nothing but the plan, the forest's outputs and the positions where checkpoints are
requested or were taken. A unit may end anywhere within a chunk; where rows are forecast in slices
(:mod:`dmondrian.prequential.forecast_lag`) only where a slice does, so that checkpoints change no
metric; and where cells are fitted jointly, where a mini-batch does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dmondrian.checkpoint.row_ranges import RowRanges
from dmondrian.data import Chunk, Plan
from dmondrian.joint_fit.minibatch import pieces
from dmondrian.prequential.forecast_lag import mark_from, mark_up_to

UNIT_ROWS = 65_536
"""Most rows of a step; a task has an overhead of a few milliseconds."""

UNIT_NUMBERS = 2**23
"""Most forecasts of a step, rows times outputs: 64 MiB. Several steps may wait to be scored."""


@dataclass(frozen=True)
class Unit:
    """Consecutive rows that one step learns."""

    index: int  # number of the unit in its plan
    start: int  # position of its first row in the stream
    stop: int  # position after its last row

    @property
    def rows(self) -> int:
        """Rows between `start` and `stop`."""
        return self.stop - self.start


def cut(
    chunks: Sequence[Chunk],
    max_rows: int | None = None,
    every: int | None = None,
    at: Collection[int] = (),
    n_outputs: int = 1,
    is_sliced: bool = False,
) -> list[Unit]:
    """Cut a stream into units.

    Parameters
    ----------
    chunks : sequence of Chunk
        In stream order.
    max_rows : int or None
        Most rows of a unit; by default `UNIT_ROWS`. A unit ends with a chunk if possible.
    every : int or None
        A unit also ends at each multiple of this number of rows, for a checkpoint.
    at : collection of int
        Other positions where a unit ends: checkpoints that were taken.
    n_outputs : int
        Forecasts per row; a unit has at most `UNIT_NUMBERS` of them, or one row.
    is_sliced : bool
        Whether rows are forecast in slices. Then a unit ends with a slice or a chunk: for each
        multiple of `every` with the next of them, up to 4,096 rows later. It may have more than
        `max_rows` rows where a slice has.

    Returns
    -------
    list of Unit
    """
    max_rows = UNIT_ROWS if max_rows is None else max_rows
    max_rows = min(max_rows, max(1, UNIT_NUMBERS // n_outputs))
    stops, marks = [chunk.stop for chunk in chunks], sorted(at)
    units: list[Unit] = []
    start, n_rows = 0, stops[-1] if stops else 0
    while start < n_rows:
        wanted = n_rows if every is None else min(n_rows, (start // every + 1) * every)
        if is_sliced:
            wanted = min(mark_from(wanted), stops[bisect_left(stops, wanted)])
        later = bisect_right(marks, start)
        if later < len(marks):
            wanted = min(wanted, marks[later])
        stop = min(wanted, start + max_rows)
        if stop < wanted and (whole := bisect_right(stops, stop)) and stops[whole - 1] > start:
            stop = stops[whole - 1]
        elif stop < wanted and is_sliced:
            mark = mark_up_to(stop)
            stop = mark if mark > start else min(mark_from(start + 1), wanted)
        units.append(Unit(len(units), start, stop))
        start = stop
    return units


def cut_ranges(ranges: RowRanges, every: int | None = None, at: Collection[int] = ()) -> list[Unit]:
    """Cut ranges that are learned side by side into units of equally many rows of each range.

    Parameters
    ----------
    ranges : RowRanges
    every : int or None
        A unit also ends at each multiple of this number of rows, rounded up to as many of each
        range.
    at : collection of int
        Other positions where a unit ends: checkpoints that were taken.

    Returns
    -------
    list of Unit
        At positions of all ranges; the last unit has the row that some are longer by.
    """
    n, length = ranges.n_parts, ranges.shortest
    of_each = cut(
        [Chunk(0, 0, length, 0, 1)],
        None,
        None if every is None else -(-every // n),
        [length if position == ranges.n_rows else position // n for position in at],
    )
    last = len(of_each) - 1
    return [
        Unit(unit.index, unit.start * n, ranges.n_rows if unit.index == last else unit.stop * n)
        for unit in of_each
    ]


def chunks_of(plan: Plan, is_joint: bool) -> tuple[Chunk, ...]:
    """Return the chunks in which a run reads its stream.

    Mini-batches count rows with a target. If rows without one are dropped, the forest depends on
    where steps end: they end with row groups, as in earlier versions.
    """
    is_cut = is_joint and plan.schema.null_target == "drop"
    return plan.chunks_by_block if is_cut else plan.chunks


def cut_jointly(chunks: Sequence[Chunk], batch_size: int, at: Collection[int] = ()) -> list[Unit]:
    """Cut a stream into units at the ends of mini-batches and chunks, and at given positions."""
    marks = sorted(at)
    units: list[Unit] = []
    for chunk in chunks:
        inside = marks[bisect_right(marks, chunk.start) : bisect_left(marks, chunk.stop)]
        for first, last in pairwise([chunk.start, *inside, chunk.stop]):
            for start, stop in pieces(first, last - first, batch_size):
                units.append(Unit(len(units), first + start, first + stop))
    return units
