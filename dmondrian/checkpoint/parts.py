"""Parts: trees that a run took later are runs of their own below it, over the same stream.

::

    growth/000200-000400/    run.json, plan, blobs and manifests of trees 200 to 399

Relies on states that depend on tree number and stream alone, so that trees learned later are those
of a run that had them from the start. Promises that a part counts once it has come to the end of
the stream for the first time, and that a model's trees have all learned the same rows: while parts
lag behind, it is the newest position at which all of them have a checkpoint.
"""

from __future__ import annotations

import os
import re
import warnings
from itertools import pairwise

from dmondrian.checkpoint.manifest import Manifest
from dmondrian.checkpoint.row_ranges import learned_of_parts, unmerged_in_words
from dmondrian.checkpoint.run import Run
from dmondrian.ensemble.settings.stored_parameters import follows_stream
from dmondrian.errors import CheckpointError, CorruptError, ParameterError
from dmondrian.store import open_store

FOLDER = "growth"
BESIDE = "beside"
"""Entry of a part's run.json: ranges of the trees before it, where it follows the stream."""
_PART = re.compile(rf"{FOLDER}/([0-9]{{6,9}})-([0-9]{{6,9}})/run\.json")

ModelParts = list[tuple[Run, Manifest]]


def part_url(run: Run, first: int, stop: int) -> str:
    """Folder of the part of a run that holds trees `first` to `stop - 1`."""
    return f"{run.url.rstrip('/')}/{part_folder(first, stop)}"


def part_folder(first: int, stop: int) -> str:
    """Name of that folder below the run's."""
    return f"{FOLDER}/{first:06d}-{stop:06d}"


def open_whole(url: str | os.PathLike[str]) -> Run:
    """Open a run for something that concerns all of its checkpoints.

    Raises
    ------
    ParameterError
        The address picks one of them.
    """
    run = Run.open(url)
    if run.position is not None:
        raise ParameterError(
            f"{os.fspath(url)} is one checkpoint; expected the whole run: leave @{run.position} out"
        )
    return run


def parts_of(run: Run) -> list[Run]:
    """Return the parts of a run, by their first tree; without the run itself.

    Raises
    ------
    CorruptError
        Parts have trees in common.
    """
    names = run.store.list(FOLDER)
    ranges = sorted((int(m[1]), int(m[2])) for m in map(_PART.fullmatch, names) if m)
    for former, later in pairwise(ranges):
        if later[0] < former[1]:
            raise CorruptError(
                f"{part_url(run, *former)} and {part_url(run, *later)} have trees in common: "
                "delete one of these folders, then use the run again"
            )
    return [Run.open(open_store(part_url(run, *range_))) for range_ in ranges]


def runs_before(part: Run) -> list[Run]:
    """Return the run that a part follows the stream with, and its parts before; of others none.

    Raises
    ------
    CheckpointError
        They are not there, or have other trees.
    """
    beside = part.run_json.get(BESIDE)
    if beside is None:
        return []
    below = f"/{part_folder(*tree_range(part))}"
    url = part.url.rstrip("/")
    before: list[Run] = []
    if url.endswith(below):
        base = Run.open(open_store(url.removesuffix(below)))
        before = [
            candidate
            for candidate in (base, *parts_of(base))
            if tree_range(candidate) < tree_range(part)
        ]
    if [list(tree_range(earlier)) for earlier in before] != beside:
        raise CheckpointError(
            f"{part.url} was added to trees {str(beside)[:80]} of the run around its folder, which "
            "are not there: move the whole run, not a part of it"
        )
    return before


def is_whole(part: Run) -> bool:
    """Whether a part came to the end of the stream once, and so counts."""
    return newest_final(part) is not None


def newest_final(part: Run) -> int | None:
    """Position of a part's newest checkpoint at an end of the stream."""
    ends = (p for p in reversed(part.manifests()) if part.manifest(p).final)
    return next(ends, None)


def tree_range(run: Run) -> tuple[int, int]:
    """First tree of a run or part, and the number behind its last."""
    shards = run.run_json["shards"]
    return int(shards[0][0]), int(shards[-1][1])


def model_parts(run: Run) -> ModelParts:
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
    whole = {part: set(part.manifests()) for part in parts_of(run) if is_whole(part)}
    position = run.position
    if position is None:
        positions = run.manifests()
        if not positions:
            todo = "wait for the first one, or train it"
            if (learned := learned_of_parts(run)) is not None:
                parts = unmerged_in_words(run.run_json, learned)
                todo = f"it has {parts}: wait for that, or run the command that trains it again"
            raise CheckpointError(f"The run {run.url} has no checkpoint yet: {todo}.")
        shared = [p for p in positions if all(p in there for there in whole.values())]
        if not shared:
            raise CheckpointError(
                f"The run {run.url} and its parts have no checkpoint at the same position: run the "
                "command that trains it again."
            )
        position = shared[-1]
    absent = [part for part, there in whole.items() if position not in there]
    if absent and follows_stream(run.run_json["parameters"]):  # later ones were mixed with these
        absent = [*whole][[*whole].index(absent[0]) :]
    for part in absent:
        first, stop = tree_range(part)
        warnings.warn(
            f"trees {first} to {stop - 1} of {run.url} have no checkpoint at position {position}: "
            "the model is without them",
            stacklevel=3,
        )
    runs = [run, *(part for part in whole if part not in absent)]
    return [(run_of_trees, run_of_trees.manifest(position)) for run_of_trees in runs]
