"""Units: how a plan's blocks are cut into steps, and where a run may checkpoint.

Relies on the blocks of a frozen plan: contiguous, in stream order, numbered from 0. Promises that
units depend on nothing but the plan, so that a resumed run and a run on other workers see the same
units; and that a unit ends only where a block ends, or, where cells are fitted jointly, a
mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmondrian.data import Plan
from dmondrian.errors import CorruptError
from dmondrian.kernel.batches import pieces

UNIT_ROWS = 65_536
"""Small blocks are joined into one step up to this many rows; a task costs a few milliseconds."""


@dataclass(frozen=True)
class Unit:
    """A run of consecutive blocks: what one step learns."""

    index: int  # number of the unit in its plan
    first: int  # number of its first block
    last: int  # number behind its last block
    start: int  # position of its first row in the stream
    stop: int  # position behind its last row

    @property
    def rows(self) -> int:
        """Rows between `start` and `stop`."""
        return self.stop - self.start


def cut(
    blocks: tuple[Any, ...], max_rows: int | None = None, every: int | None = None
) -> list[Unit]:
    """Cut a plan's blocks into units.

    Parameters
    ----------
    blocks : tuple of Block
        In stream order.
    max_rows : int or None
        Blocks are joined while they hold no more rows than this together; by default `UNIT_ROWS`.
    every : int or None
        A unit also ends with the block that reaches a multiple of `every` rows, so that a
        checkpoint can be taken there.

    Returns
    -------
    list of Unit
    """
    max_rows = UNIT_ROWS if max_rows is None else max_rows
    units: list[Unit] = []
    first = 0
    for i, block in enumerate(blocks):
        stop = block.position + block.rows
        start = blocks[first].position
        is_last = i + 1 == len(blocks)
        is_full = is_last or stop + blocks[i + 1].rows - start > max_rows
        is_due = every is not None and stop // every > block.position // every
        if is_full or is_due:
            units.append(Unit(len(units), first, i + 1, start, stop))
            first = i + 1
    return units


def cut_jointly(blocks: tuple[Any, ...], batch_size: int) -> list[Unit]:
    """Cut a plan's blocks where mini-batches end, and where blocks do: see `cut`."""
    units: list[Unit] = []
    for i, block in enumerate(blocks):
        for start, stop in pieces(block.position, block.rows, batch_size):
            ends = block.position + start, block.position + stop
            units.append(Unit(len(units), i, i + 1, *ends))
    return units


def block_with(plan: Plan, position: int) -> int:
    """Return the number of the block that holds the row at a position."""
    if position == plan.n_rows:
        return len(plan.blocks)
    starts = [block.position for block in plan.blocks]
    return int(np.searchsorted(starts, position, side="right")) - 1


def block_at(plan: Plan, position: int) -> int:
    """Return the number of the block that starts at a position."""
    if position == plan.n_rows:
        return len(plan.blocks)
    starts = [block.position for block in plan.blocks]
    index = int(np.searchsorted(starts, position))
    if index == len(starts) or starts[index] != position:
        raise CorruptError(f"no block of the plan starts at position {position}")
    return index
