"""Training on batches of rows that come one after the other, from a Python iterable.

Relies on :mod:`dmondrian.data.batch_files`, which writes them to the run's folder first, and on the
continuation of runs. Promises the forest of a run on Parquet files with the same rows, whatever
ends the process meanwhile; and that files are deleted when the two newest checkpoints have their
rows.
"""

from __future__ import annotations

from typing import Any

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.parts import parts_of
from dmondrian.checkpoint.stream import BATCHES
from dmondrian.data import BatchFiles
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
    return files


def newest_position(url: str) -> int:
    """Return the position of the newest checkpoint in a folder, 0 if there is none."""
    try:
        return max(Run.open(url).manifests(), default=0)
    except CheckpointError:
        return 0


def drop_learned(files: BatchFiles, run: Run) -> None:
    """Delete the files that a run needs no more, also where its newest checkpoint is damaged."""
    positions = [sorted(one.manifests())[-2:] for one in (run, *parts_of(run))]
    if all(len(two) == 2 for two in positions):
        files.drop(min(two[0] for two in positions))


def refuse_with_labels(labels: Any) -> None:
    """Refuse labels that come in files of their own, for rows that come in no files."""
    if labels is not None:
        raise ParameterError(
            "labels are joined with rows that come in files; join them before, or write the "
            "batches as Parquet and give that place"
        )
