"""Chunks: consecutive rows of a stream that are read and encoded together.

Relies on the blocks of a frozen plan. Promises that chunks are contiguous, in stream order and
numbered from 0, and depend on nothing but the plan; and that extending a plan does not change its
existing chunks.

Small row groups are joined, so that a stream of many small files costs a step, an encoding and an
answer per chunk and not per file. And a mixed stream is cut into *bands* of row groups: each of the
chunks of a band draws an equal share of the rows of every row group of the band (see
:mod:`dmondrian.data.shuffle`), so that rows which lie far apart are neighbours, while no more than
one row group and one chunk are in memory (of a store a bounded number of row groups, see
:mod:`dmondrian.data.read`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from dmondrian.data.block_table import BlockTable
from dmondrian.data.shuffle import share_size

JOINED_ROWS = 1024
"""Small blocks are joined into one chunk up to this many rows."""

JOINED_BLOCKS = 256
"""Most blocks of a joined chunk: each may be a request to a store, and a read has a deadline."""

MIXED_ROWS = 2**20
"""Most rows of a chunk of a mixed stream, unless row groups are far larger."""

MIXED_VALUES = 2**24
"""Most encoded values of a chunk of a mixed stream: 64 MiB, and some chunks are read ahead."""

MIXED_GROUPS = 16
"""Fewest row groups that a chunk of a mixed stream draws from, if possible."""

MOST_SHARES = 8
"""Most times that a row group is decoded, if the decoded rows of a band are not kept."""

MOST_GROUPS = 8192
"""Most row groups in a band: all of them are read for one chunk."""


class Rows(Protocol):
    """Rows with a position in the stream, such as a block."""

    @property
    def position(self) -> int:
        """Number of the first row of the chunk."""

    @property
    def rows(self) -> int:
        """Number of rows in the chunk."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of the stream that are read and encoded together."""

    index: int  # place among the chunks of the plan
    start: int  # position of its first row in the stream
    stop: int  # position after its last row
    first: int  # number of the first block that it draws from
    last: int  # number after the last one
    share: int = 0  # number of its share of each of these blocks
    shares: int = 1  # shares that each of them is cut into

    @property
    def rows(self) -> int:
        """Rows between `start` and `stop`."""
        return self.stop - self.start


@dataclass(frozen=True)
class Band:
    """Consecutive row groups that are mixed with each other."""

    stop: int  # position after its last row
    shares: int  # chunks that it is cut into; each takes a share of every row group


def join(
    blocks: Sequence[Rows],
    seams: Collection[int] = (),
    max_rows: int | None = None,
    max_blocks: int | None = JOINED_BLOCKS,
) -> tuple[Chunk, ...]:
    """Return the chunks of a stream in the order of its blocks.

    Parameters
    ----------
    blocks : sequence of Block
    seams : collection of int
        Positions that no chunk spans: ends of the plans that this one extends.
    max_rows : int or None
        Blocks are joined while they have no more rows than this together; 0 joins none. By default
        `JOINED_ROWS`.
    max_blocks : int or None
        Most blocks of a chunk.
    """
    max_rows = JOINED_ROWS if max_rows is None else max_rows
    positions, rows = _columns(blocks)
    chunks: list[Chunk] = []
    first = 0
    for i, (position, n) in enumerate(zip(positions, rows, strict=True)):
        start, stop = positions[first], position + n
        is_full = i + 1 == len(rows) or i + 1 - first == max_blocks or stop in seams
        if is_full or stop + rows[i + 1] - start > max_rows:
            chunks.append(Chunk(len(chunks), start, stop, first, i + 1))
            first = i + 1
    return tuple(chunks)


def mix(blocks: Sequence[Rows], bands: Sequence[Band]) -> tuple[Chunk, ...]:
    """Return the chunks of a mixed stream.

    Parameters
    ----------
    blocks : sequence of Block
        Whole row groups, in the order in which bands take them.
    bands : sequence of Band
        Each ends with a block.
    """
    positions, rows = _columns(blocks)
    chunks: list[Chunk] = []
    first, start = 0, 0
    for band in bands:
        last = first
        while last < len(rows) and positions[last] < band.stop:
            last += 1
        for share in range(band.shares):
            stop = start + sum(share_size(n, share, band.shares) for n in rows[first:last])
            chunks.append(Chunk(len(chunks), start, stop, first, last, share, band.shares))
            start = stop
        first = last
    return tuple(chunks)


def _columns(blocks: Sequence[Rows]) -> tuple[list[int], list[int]]:
    """Return positions and rows of blocks."""
    if isinstance(blocks, BlockTable):
        return blocks.column("position").tolist(), blocks.column("rows").tolist()
    return [block.position for block in blocks], [block.rows for block in blocks]


def lay_bands(rows: Sequence[int], n_features: int, start: int = 0) -> tuple[Band, ...]:
    """Group row groups, in the given order, into bands.

    A band has as many row groups as fit into a chunk. If these are fewer than `MIXED_GROUPS`, it
    has more, and is cut into up to `MOST_SHARES` chunks that draw from all of them.

    Parameters
    ----------
    rows : sequence of int
        Of each row group.
    n_features : int
        Columns of an encoded row.
    start : int
        Position of the first row.
    """
    chunk_rows = max(1, min(MIXED_ROWS, MIXED_VALUES // max(1, n_features)))
    ends = [0]
    total = 0
    for i, n in enumerate(rows):
        count = i - ends[-1]
        limit = chunk_rows * (MOST_SHARES if count < MIXED_GROUPS else 1)
        if count and (total + n > limit or count == MOST_GROUPS):
            ends.append(i)
            total = 0
        total += n
    # A short last band would be mixed worse than the others: merge it with the previous one.
    if len(ends) > 1 and 2 * total < sum(rows[ends[-2] : ends[-1]]):
        ends.pop()
    bands: list[Band] = []
    for first, last in pairwise([*ends, len(rows)]):
        n_rows, largest = sum(rows[first:last]), max(rows[first:last])
        start += n_rows
        bands.append(Band(start, min(-(-n_rows // chunk_rows), MOST_SHARES, largest)))
    return tuple(bands)
