"""Parts: trees that a run took later are runs of their own below it, over the same stream.

::

    growth/000200-000400/    run.json, plan, blobs and manifests of trees 200 to 399

Relies on states that depend on tree number and stream alone, so that trees learned later are those
of a run that had them from the start. Promises that a part counts once it has come to the end of
the stream for the first time, and that a model's trees have all learned the same rows: while parts
lag behind, it is the newest position at which all of them have a checkpoint.
"""

from __future__ import annotations

import re
import warnings

from dmondrian.checkpoint.manifest import Manifest
from dmondrian.checkpoint.run import Run
from dmondrian.errors import CheckpointError
from dmondrian.store import open_store

FOLDER = "growth"
_PART = re.compile(rf"{FOLDER}/([0-9]{{6,9}})-([0-9]{{6,9}})/run\.json")

Pieces = list[tuple[Run, Manifest]]


def part_url(run: Run, first: int, stop: int) -> str:
    """Folder of the part of a run that holds trees `first` to `stop - 1`."""
    return f"{run.url.rstrip('/')}/{FOLDER}/{first:06d}-{stop:06d}"


def parts_of(run: Run) -> list[Run]:
    """Return the parts of a run, by their first tree; without the run itself."""
    names = run.store.list(FOLDER)
    ranges = sorted((int(m[1]), int(m[2])) for m in map(_PART.fullmatch, names) if m)
    return [Run.open(open_store(part_url(run, *range_))) for range_ in ranges]


def tree_range(run: Run) -> tuple[int, int]:
    """First tree of a run or part, and the number behind its last."""
    shards = run.run_json["shards"]
    return int(shards[0][0]), int(shards[-1][1])


def pieces(run: Run) -> Pieces:
    """Return the runs and checkpoints that make up a model, in the order of their trees.

    Parameters
    ----------
    run : Run
        At the position that its address picked, or at the newest one that all parts have.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or none that all parts have.
    CorruptError
        A manifest is damaged.
    """
    whole = {}
    for part in parts_of(run):
        positions = part.manifests()
        if any(part.manifest(position).final for position in reversed(positions)):
            whole[part] = set(positions)
    position = run.position
    if position is None:
        found = run.manifests()
        if not found:
            raise CheckpointError(
                f"The run {run.url} has no checkpoint yet: wait for the first one, or train it."
            )
        shared = [p for p in found if all(p in there for there in whole.values())]
        if not shared:
            raise CheckpointError(
                f"The run {run.url} and its parts have no checkpoint at the same position: run the "
                "command that trains it again."
            )
        position = shared[-1]
    absent = [part for part, there in whole.items() if position not in there]
    for part in absent:
        first, stop = tree_range(part)
        warnings.warn(
            f"trees {first} to {stop - 1} of {run.url} have no checkpoint at position {position}: "
            "the model is without them",
            stacklevel=3,
        )
    runs = [run, *(part for part in whole if part not in absent)]
    return [(one, one.manifest(position)) for one in runs]
