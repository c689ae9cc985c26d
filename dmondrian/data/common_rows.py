"""The number of first rows that two streams have in common.

Relies on their plans. Promises never to take other rows for the same: files are the same where
their fingerprints agree; where a plan of an earlier version has none, where name, size and time of
change agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from dmondrian.data.block_table import Block
from dmondrian.data.plan import Plan


def common_rows(first: Plan, second: Plan) -> int:
    """Return how many rows from the first on are the same in both streams, in the same order.

    The encoding of the rows is not compared: columns that are left out in one of them are rows of
    the same files still.
    """
    if (first.shuffle, bool(first.bands)) != (second.shuffle, bool(second.bands)):
        return 0
    if first.shuffle and first.seed != second.seed:
        return 0
    n_rows = 0
    for block_of_first, block_of_second in zip(_blocks(first), _blocks(second), strict=False):
        if not _is_same(block_of_first, block_of_second):
            break
        n_rows = block_of_first[0].position + block_of_first[0].rows
    return _whole_bands(first, second, n_rows) if first.bands else n_rows


def _blocks(plan: Plan) -> Iterator[tuple[Block, tuple[Any, ...], tuple[Any, ...]]]:
    """Yield each block, which rows of a file it has, and what is known of the file."""
    for block in plan.blocks:
        rows: tuple[Any, ...] = block.position, block.row_group, block.offset, block.rows
        rows += block.group_rows, block.partition
        if plan.shuffle:
            rows += (block.group,)
        yield block, rows, plan.origins.get(block.uri, (block.uri, block.stamp))


def _is_same(
    first: tuple[Block, tuple[Any, ...], tuple[Any, ...]],
    second: tuple[Block, tuple[Any, ...], tuple[Any, ...]],
) -> bool:
    (block, rows, file), (other_block, other_rows, other_file) = first, second
    if rows != other_rows or block.size != other_block.size:
        return False
    if block.fingerprint and other_block.fingerprint:
        return block.fingerprint == other_block.fingerprint
    return file == other_file


def _whole_bands(first: Plan, second: Plan, n_rows: int) -> int:
    """Return the end of the last band whose row groups, mixed with each other, are all the same."""
    end = 0
    for band, other_band in zip_longest(first.bands, second.bands):
        if band is None or band != other_band or band.stop > n_rows:
            break
        end = band.stop
    return end
