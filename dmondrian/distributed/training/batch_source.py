"""Training on batches of rows that come one after the other, from a Python iterable.

Relies on :mod:`dmondrian.data.batch_files`, which writes them to the run's folder first, and on the
continuation of runs. Promises the forest of a run on Parquet files with the same rows, whatever
ends the process meanwhile; and that files are deleted when the two newest checkpoints have their
rows. Once a run has begun, a batch whose columns or labels it cannot learn is refused before it is
written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.parts import parts_of
from dmondrian.checkpoint.pruning import position_apart
from dmondrian.checkpoint.stream import BATCHES
from dmondrian.data import BatchFiles, Schema, stored_plan
from dmondrian.data.columns import check_types
from dmondrian.data.encode import encode_target
from dmondrian.data.paths import check_paths
from dmondrian.distributed.training.kept_plan import kept_plan
from dmondrian.distributed.training.run_setup import IN_MEMORY
from dmondrian.distributed.training.unlearned_files import advice
from dmondrian.errors import CheckpointError, DataError, ParameterError

ROUND_ROWS = 1 << 20
"""Rows that are written before they are learned; the first ones determine the encoding."""


def batch_files(data: Any, url: str) -> BatchFiles:
    """Return what writes the batches of a source into the folder of a run.

    Raises
    ------
    DataError
        The run has learned rows that are not of these files.
    """
    files = BatchFiles(data, f"{url.rstrip('/')}/{BATCHES}")
    learned = newest_position(url)
    if learned > files.position.rows:
        raise DataError(
            f"the run has learned {learned:,} rows, and {files.out} has the position behind "
            f"{files.position.rows:,}: where to begin is not known. Put the newest file of that "
            "folder back (`dmondrian copy` has it), or name the data that the run learned from"
        )
    files.check(learned)
    return files


def rows_to_take(files: BatchFiles, url: str) -> int:
    """Return how many rows are to be written before rows are learned.

    A run that has not begun takes its encoding from what is written first: it goes on to the same
    row as if nothing had ended it.
    """
    try:
        run = Run.open(url)
    except CheckpointError:
        return 0 if files.is_round else max(0, ROUND_ROWS - files.position.rows)
    if files.check_rows is None:
        files.check_rows = partial(_check_rows, stored_plan(run.stream).schema)
    return ROUND_ROWS


def _check_rows(schema: Schema, rows: pa.Table) -> None:
    """Refuse rows whose columns or labels a run cannot learn, before they are written."""
    source = "a batch of the source, which is not written,"
    check_types(schema, dict(zip(rows.schema.names, rows.schema.types, strict=True)), source)
    if schema.target is not None and rows.column_names.count(schema.target) == 1:
        encode_target(schema, rows[schema.target], lambda row: f"row {row} of {source[:-1]}")


def refuse_row_parts(row_parts: int | None) -> None:
    """Refuse parts of rows that are not there yet.

    Raises
    ------
    ParameterError
    """
    if row_parts is not None:
        raise ParameterError(
            f"row_parts={row_parts} does not go with a source of batches, whose rows come one "
            "after the other: write them as Parquet and give the path, or leave row_parts out"
        )


def check_data(data: Any) -> None:
    """Refuse data that are neither places of Parquet nor batches of rows.

    Raises
    ------
    ParameterError
    """
    try:
        check_paths(data, IN_MEMORY)
    except ParameterError as error:
        raise ParameterError(
            f"{error}. Batches of rows are taken too: an iterable of Arrow record batches or "
            "tables (`table.to_batches()`, `[batch]`, `scanner.to_batches()`; of a pandas frame "
            "`[pyarrow.Table.from_pandas(frame)]`), or a function of a Position that returns one"
        ) from error


@contextmanager
def about_batches(files: BatchFiles | None) -> Iterator[None]:
    """Add to errors of data how rows that cannot be learned are given anew."""
    try:
        yield
    except DataError as error:
        named = (
            None
            if files is None
            else re.search(rf"{re.escape(files.out)}/\d+\.parquet", str(error))
        )
        if files is None or named is None:
            raise
        plan = kept_plan(files.out.removesuffix(f"/{BATCHES}"))
        is_of_checkpoint = plan is not None and named[0] in set(plan.table.uris())
        what = advice("the source", files.out, named[0].rpartition("/")[2], is_of_checkpoint)
        raise type(error)(
            f"{error}. The files in {files.out} are made of the batches of the source, and what "
            f"they hold is not asked for again: {what}"
        ) from error


def newest_position(url: str) -> int:
    """Return the position of the newest checkpoint in a folder, 0 if there is none."""
    try:
        return max(Run.open(url).manifests(), default=0)
    except CheckpointError:
        return 0


def drop_learned(files: BatchFiles, run: Run) -> None:
    """Delete the files that a run needs no more, also where its newest checkpoint is damaged."""
    if position := safe_position(run):
        files.drop(position)


def safe_position(run: Run) -> int:
    """Return up to which row two checkpoints of a run and its parts are; 0 without.

    The newest one, and the newest before it that one damaged blob does not spoil along with it.
    """
    return min(position_apart(run_or_part) or 0 for run_or_part in (run, *parts_of(run)))


def refuse_with_labels(labels: Any) -> None:
    """Refuse labels that come in files of their own, for rows that come in no files."""
    if labels is not None:
        raise ParameterError(
            "labels are joined with rows that come in files; join them before, or write the "
            "batches as Parquet and give that place"
        )
