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


def common_rows(one: Plan, other: Plan) -> int:
    """Return how many rows from the first on are the same in both streams, in the same order.

    The encoding of the rows is not compared: columns that are left out in one of them are rows of
    the same files still.
    """
    if (one.shuffle, bool(one.bands)) != (other.shuffle, bool(other.bands)):
        return 0
    if one.shuffle and one.seed != other.seed:
        return 0
    n_rows = 0
    for own, of_other in zip(_blocks(one), _blocks(other), strict=False):
        if not _is_same(own, of_other):
            break
        n_rows = own[0].position + own[0].rows
    return _whole_bands(one, other, n_rows) if one.bands else n_rows


def _blocks(plan: Plan) -> Iterator[tuple[Block, tuple[Any, ...], tuple[Any, ...]]]:
    """Yield each block, which rows of a file it has, and what is known of the file."""
    for block in plan.blocks:
        rows: tuple[Any, ...] = block.position, block.row_group, block.offset, block.rows
        rows += block.group_rows, block.partition
        if plan.shuffle:
            rows += (block.group,)
        yield block, rows, plan.origins.get(block.uri, (block.uri, block.stamp))


def _is_same(
    one: tuple[Block, tuple[Any, ...], tuple[Any, ...]],
    other: tuple[Block, tuple[Any, ...], tuple[Any, ...]],
) -> bool:
    (own, rows, file), (of_other, other_rows, other_file) = one, other
    if rows != other_rows or own.size != of_other.size:
        return False
    if own.fingerprint and of_other.fingerprint:
        return own.fingerprint == of_other.fingerprint
    return file == other_file


def _whole_bands(one: Plan, other: Plan, n_rows: int) -> int:
    """Return the end of the last band whose row groups, mixed with each other, are all the same."""
    end = 0
    for own, of_other in zip_longest(one.bands, other.bands):
        if own is None or own != of_other or own.stop > n_rows:
            break
        end = own.stop
    return end
