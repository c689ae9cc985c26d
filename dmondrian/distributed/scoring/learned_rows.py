"""Which rows of a data set a model has learned: its metrics of these are too good.

Relies on the plan of the model's run, which names each file with its size and last change. Promises
to open no file. A copy that keeps name, size and time of a file is known; another one is not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.parts import pieces
from dmondrian.data import Block, stored_plan
from dmondrian.errors import CheckpointError, StoreError

RowGroup = tuple[tuple[str | int, ...], int]  # what identifies a file, and the group's number


def count_learned(model_url: str, blocks: Iterable[Block]) -> int:
    """Return how many rows of some blocks a model has learned, by the plan of its run.

    0 where there is no plan, or none that can be read: it is not needed to measure the model.
    """
    run = Run.open(model_url)
    if run.run_json.get("plan") is None:
        return 0
    try:
        plan, position = stored_plan(run.stream), pieces(run)[0][1].position
    except (CheckpointError, StoreError):
        return 0
    learned = _rows(plan.blocks_before(position))
    return sum(
        min(rows, max(learned[group] for group in groups))
        for groups, rows in _rows_of_groups(blocks).items()
    )


def _rows(blocks: Iterable[Block]) -> Counter[RowGroup]:
    """Return the rows of each row group, under each name by which it may be known."""
    found: Counter[RowGroup] = Counter()
    for block in blocks:
        for group in _groups(block):
            found[group] += block.rows
    return found


def _rows_of_groups(blocks: Iterable[Block]) -> Counter[tuple[RowGroup, ...]]:
    found: Counter[tuple[RowGroup, ...]] = Counter()
    for block in blocks:
        found[_groups(block)] += block.rows
    return found


def _groups(block: Block) -> tuple[RowGroup, ...]:
    place = block.uri if "://" in block.uri else os.path.realpath(block.uri)
    name = place.rpartition("/")[2]
    by_place, by_name = (place, block.size), (name, block.size, block.stamp)
    return (by_place, block.row_group), (by_name, block.row_group)
