"""Row ranges: parts of a stream that trees learn side by side, each on its own.

::

    row_parts/    run.json, plan, blobs and manifests of a run whose shards are trees of one range

The run around this folder gets one checkpoint, at the end of the last range, with the trees of all
ranges merged; then the folder is deleted. Rows behind the ranges are learned as in any run.

Relies on trees whose statistics add (:mod:`dmondrian.forest.merge`). Promises that ranges depend on
the length of the stream and the number of parts alone, and that all of them advance together: a
position of the run in that folder counts the rows of all ranges, and each has its share of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dmondrian._text.wording import counted
from dmondrian.checkpoint.held_out import positions
from dmondrian.checkpoint.run import Run
from dmondrian.store import open_store

ROW_PARTS = "row_parts"
"""Entry of run.json: the ranges [start, stop) whose trees were, or will be, merged."""

RANGES = "row_ranges"
"""Entry of run.json in the folder below: the same ranges, of which each shard has one."""

FOLDER = "row_parts"


@dataclass(frozen=True)
class RowRanges:
    """Consecutive ranges of a stream, of equal length but for one row.

    Shards of a run are numbered range by range, and in each by their trees.

    Parameters
    ----------
    bounds : sequence of (int, int)
        First row, and row after the last.
    """

    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def whole(cls, n_rows: int) -> RowRanges:
        """Return the one range of a stream: positions are those of the stream."""
        return cls(((0, n_rows),))

    @classmethod
    def of(cls, run_json: Mapping[str, Any], n_rows: int) -> RowRanges:
        """Return the ranges that the shards of a run learn; by default all rows of its stream."""
        ranges = run_json.get(RANGES)
        return cls.whole(n_rows) if ranges is None else cls(tuple((a, b) for a, b in ranges))

    @property
    def n_parts(self) -> int:
        """Number of ranges."""
        return len(self.bounds)

    @property
    def n_rows(self) -> int:
        """Rows of all ranges: the last position."""
        return self.bounds[-1][1]

    @property
    def shortest(self) -> int:
        """Rows of the shortest range."""
        return self.n_rows // self.n_parts

    def row_at(self, part: int, position: int) -> int:
        """Return the row of the stream up to which a range is learned at a position.

        Parameters
        ----------
        part : int
            Number of the range.
        position : int
            A multiple of the number of ranges, or the last one.
        """
        start, stop = self.bounds[part]
        return stop if position == self.n_rows else start + position // self.n_parts

    def position_at(self, part: int, row: int) -> int:
        """Return the position at which a range is learned up to a row of the stream."""
        start, stop = self.bounds[part]
        return self.n_rows if row == stop else (row - start) * self.n_parts


def cut_rows(n_rows: int, n_parts: int) -> list[list[int]]:
    """Cut a stream into ranges; return [start, stop) of each."""
    ends = [n_rows * part // n_parts for part in range(n_parts + 1)]
    return [[start, stop] for start, stop in pairwise(ends)]


def in_words(ranges: Sequence[Sequence[int]]) -> str:
    """Return what `describe` and reports say of ranges that were merged."""
    n_rows = ranges[-1][1] // len(ranges)
    return (
        f"{counted(len(ranges), 'part')} of {counted(n_rows, 'row')} each, learned side by side "
        "and merged: no row was forecast just before it was learned"
    )


def learned_of_parts(run: Run) -> int | None:
    """Return how many rows the parts of a run have learned and saved, until they are merged.

    Returns
    -------
    int or None
        Of all parts; None for a run without, or whose parts are merged.
    """
    if ROW_PARTS not in run.run_json or run.manifests():
        return None
    return max(positions(open_store(f"{run.url.rstrip('/')}/{FOLDER}")), default=0)


def unmerged_in_words(run_json: Mapping[str, Any], learned: int) -> str:
    """Return what `describe` and reports say of parts that are not merged yet."""
    ranges = run_json[ROW_PARTS]
    return (
        f"{counted(len(ranges), 'part')}, learned side by side up to row {learned:,} of "
        f"{ranges[-1][1]:,}, not merged yet"
    )


def shard_trees(run_json: Mapping[str, Any]) -> list[range]:
    """Return the tree numbers of each shard of a run, of every range."""
    of_each = [range(first, stop) for first, stop in run_json["shards"]]
    return of_each * len(run_json.get(RANGES, [None]))
