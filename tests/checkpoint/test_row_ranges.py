"""Ranges of rows that are learned side by side: each row is in one, and all advance together."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dmondrian.checkpoint.row_ranges import RANGES, RowRanges, cut_rows, shard_trees
from dmondrian.distributed.worker.work_units import cut_ranges


@given(st.data())
def test_each_row_of_the_stream_is_learned_once_whatever_the_checkpoints(
    data: st.DataObject,
) -> None:
    n_parts = data.draw(st.integers(2, 9))
    n_rows = data.draw(st.integers(n_parts, 500))
    every = data.draw(st.none() | st.integers(1, 600))
    stored = cut_rows(n_rows, n_parts)
    ranges = RowRanges.of({RANGES: stored}, 10**6)  # of a stream that went on since
    assert ranges.n_rows == n_rows
    units = cut_ranges(ranges, every)
    if len(units) > 1:  # a restart, where a checkpoint is
        at = data.draw(st.sampled_from(units[:-1])).stop
        units = cut_ranges(ranges, data.draw(st.none() | st.integers(1, 600)), (at,))
        assert at in [unit.stop for unit in units]
    learned = []
    for part in range(n_parts):
        ends = [ranges.row_at(part, position) for position in (0, *(u.stop for u in units))]
        assert all(start < stop for start, stop in pairwise(ends))
        assert all(ranges.row_at(part, ranges.position_at(part, row)) == row for row in ends)
        learned += [row for start, stop in pairwise(ends) for row in range(start, stop)]
    assert learned == [*range(n_rows)]
    lengths = [stop - start for start, stop in stored]
    assert max(lengths) - min(lengths) <= 1


def test_a_stream_that_is_not_cut_has_its_own_positions() -> None:
    whole = RowRanges.of({"shards": [[0, 2]]}, 1000)
    for row in (0, 1, 999, 1000):
        assert whole.row_at(0, row) == whole.position_at(0, row) == row


def test_shards_are_numbered_range_by_range() -> None:
    about = {"shards": [[3, 5], [5, 6]], RANGES: [[0, 4], [4, 9], [9, 14]]}
    assert shard_trees(about) == [range(3, 5), range(5, 6)] * 3
