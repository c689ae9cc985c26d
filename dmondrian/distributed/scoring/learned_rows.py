"""Count of the rows of a data set that a model was trained on, whose metrics are too good.

Relies on the plan of the model's run, which has each file with its size and modification time.
Promises to open no file. Copies are recognised by their bytes; where a plan of an earlier version
has no fingerprints, if they keep the name, size and time of a file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.parts import model_parts
from dmondrian.data import Block, Plan, stored_plan
from dmondrian.errors import CheckpointError, StoreError

RowGroup = tuple[tuple[str | int, ...], int]  # identity of a file, and the row group's number


def count_learned(model_url: str, blocks: Iterable[Block]) -> int | None:
    """Return how many rows of some blocks a model has learned, by the plan of its run.

    Rows that wait for their labels are not learned. None if there is no readable plan: evaluation
    does not need it.
    """
    run = Run.open(model_url)
    if run.run_json.get("plan") is None:
        return None
    try:
        plan, manifest = stored_plan(run.stream), model_parts(run)[0][1]
    except (CheckpointError, StoreError):
        return None
    rows = None if manifest.forest is None else manifest.forest.rows
    waiting = 0 if rows is None else int(rows["waiting"])
    learned = _rows_before(plan, max(manifest.position - waiting, 0))
    return sum(
        min(rows, max(learned[group] for group in groups))
        for groups, rows in _rows_of_groups(blocks).items()
    )


def files_in_common(blocks: Iterable[Block], other_blocks: Iterable[Block]) -> list[str]:
    """Return the files of `others` that are files of `blocks` too, as far as is known."""
    there = {key for block in _one_of_each(blocks) for key, _ in _groups(block)}
    return [
        block.uri
        for block in _one_of_each(other_blocks)
        if any(key in there for key, _ in _groups(block))
    ]


def _one_of_each(blocks: Iterable[Block]) -> Iterable[Block]:
    """Return one block of each file."""
    return {block.uri: block for block in blocks}.values()


def _rows_before(plan: Plan, position: int) -> Counter[RowGroup]:
    """Return the rows of each row group before a position, under each of its identities.

    Of rows that are shuffled, all of the blocks that some of these are mixed from.
    """
    rows_of_groups: Counter[RowGroup] = Counter()
    for block in plan.blocks_before(position):
        rows = block.rows if plan.bands else min(block.rows, position - block.position)
        for group in _groups(block):
            rows_of_groups[group] += rows
    return rows_of_groups


def _rows_of_groups(blocks: Iterable[Block]) -> Counter[tuple[RowGroup, ...]]:
    rows_of_groups: Counter[tuple[RowGroup, ...]] = Counter()
    for block in blocks:
        rows_of_groups[_groups(block)] += block.rows
    return rows_of_groups


def _groups(block: Block) -> tuple[RowGroup, ...]:
    place = block.uri if "://" in block.uri else os.path.realpath(block.uri)
    name = place.rpartition("/")[2]
    by_place, by_name = (place, block.size), (name, block.size, block.stamp)
    keys: list[tuple[str | int, ...]] = [by_place, by_name]
    if block.fingerprint:
        keys.append(("fingerprint", block.fingerprint, block.size))
    return tuple((key, block.row_group) for key in keys)
