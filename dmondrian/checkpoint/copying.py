"""Copies of a model: its newest checkpoint alone, to be packed up and taken elsewhere.

Relies on the pieces of a run. Promises a folder that loads, scores and goes on learning as the run
does at that position; without what only the run needs: earlier checkpoints, attempts, leases.

The manifest is written last: what a killed copy leaves is no model, and the same copy again goes on
with it. One that fails or is interrupted removes what it wrote, or leaves it to be gone on with.
The run may be in work: its plans are those of one moment, and a copy of what it takes away fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.checkpoint.file_notes import read_note
from dmondrian.checkpoint.held_out import NAME as HELD_OUT_NAME
from dmondrian.checkpoint.kept_shares import names_of
from dmondrian.checkpoint.opening import RUN_NAME
from dmondrian.checkpoint.parts import ModelParts, model_parts, part_folder, tree_range
from dmondrian.checkpoint.run import BLOBS, Run
from dmondrian.checkpoint.stream import (
    BATCHES,
    BATCHES_NOTE,
    FOLDER,
    LAGS,
    PLACES_NAME,
    PLAN_NAME,
)
from dmondrian.errors import (
    CheckpointError,
    CorruptError,
    FencedError,
    NotFoundError,
    ParameterError,
    StoreError,
)
from dmondrian.store import Store, open_store

SERVING = "serving"
"""Folder of what a saved estimator that learns while it serves knows of rows by key."""

_Read = Callable[[], bytes]


def copy_model(
    url: str | os.PathLike[str], folder: str | os.PathLike[str], *, resumable: bool = False
) -> Run:
    """Copy the newest checkpoint of a run or saved model, or the one at ``url@position``.

    Parameters
    ----------
    url : str or path
    folder : str or path
        Folder or URL; new, empty, or with what a killed copy of the same checkpoint left. A copy
        that is there already is compared.
    resumable : bool
        Leave what was written where the copy fails, so that the next one goes on with it.

    Returns
    -------
    Run
        The copy.

    Raises
    ------
    CheckpointError
        There is no model, or the run has taken the checkpoint away meanwhile.
    CorruptError
        A part of it is damaged or missing.
    ParameterError
        The folder holds something, or trees that the run took later are not at this position's end.
    """
    return copy_pieces(url, folder, resumable=resumable)[0]


def copy_pieces(
    url: str | os.PathLike[str], folder: str | os.PathLike[str], *, resumable: bool = False
) -> tuple[Run, int]:
    """Copy as :func:`copy_model`; return the copy, and how many objects this call wrote."""
    model = Run.open(url)
    parts = copied_pieces(model)
    objects = dict(_objects(parts))
    target = open_store(folder)
    refuse_within(target, model.store)
    there = target.list()
    unknown = [name for name in there if name not in objects and name != PLACES_NAME]
    if unknown:
        raise taken(target, unknown[0])
    if parts[0][1].name in there:  # it is a copy, whose places are its own
        objects.pop(PLACES_NAME, None)
    written: list[str] = []
    try:
        for name, read in objects.items():
            if put_object(target, name, read()):
                written.append(name)
    except BaseException as error:
        is_gone = isinstance(error, CorruptError) and not _are_there(parts)
        if not resumable or is_gone or type(error) is CheckpointError:
            with suppress(StoreError):  # what stays is no model, and in nobody's way
                target.delete(written)
        if is_gone:
            raise _gone(model, parts[0][1].name) from error
        raise
    return Run.open(target.url), len(written)


def _are_there(parts: ModelParts) -> bool:
    """Return whether the checkpoints of a model and its parts are still there."""
    return all(run.store.exists(manifest.name) for run, manifest in parts)


def copied_pieces(run: Run) -> ModelParts:
    """Return the runs and checkpoints that a copy of a model has, as of `model_parts`.

    Raises
    ------
    ParameterError
        Trees that the run took later are not at this position's end.
    """
    parts = model_parts(run)
    for part, manifest in parts[1:]:
        if not manifest.final:
            raise ParameterError(
                f"the trees of {part.url} are not at the end of a stream at position "
                f"{manifest.position}: copy the newest checkpoint, or train the run to its end"
            )
    return parts


def beside_shards(run: Run) -> Iterator[tuple[str, _Read]]:
    """Yield names of what a copy of a run has beside its shards and manifest, and what reads it."""
    for name in (PLAN_NAME, PLACES_NAME):
        if run.store.exists(name):  # a saved model has no plan
            yield name, partial(run.store.get, name)
    for name, data in _plans(run).items():
        yield name, partial(bytes, data)
    for name in (*_batches(run), *_lagged(run), *names_of(run)):
        yield name, partial(_get, run, name)
    for name in (keys_name(_learned(run)), HELD_OUT_NAME, RUN_NAME):
        if run.store.exists(name):  # most runs have neither keys nor held-out data
            yield name, partial(run.store.get, name)


def _plans(run: Run) -> dict[str, bytes]:
    """Return plans and links of a run as they are at one moment: one in work takes some away."""
    names = run.store.list(FOLDER)
    while True:
        before, plans = names, {}
        try:
            plans = {name: run.store.get(name) for name in before}
        except NotFoundError:
            if (names := run.store.list(FOLDER)) == before:
                raise
            continue
        if (names := run.store.list(FOLDER)) == before:
            return plans


def _get(run: Run, name: str) -> bytes:
    """Return an object that was listed."""
    try:
        return run.store.get(name)
    except NotFoundError as error:
        raise _gone(run, name) from error


def _gone(run: Run, name: str) -> CheckpointError:
    """Return the error of an object that a run in work has taken away."""
    return CheckpointError(
        f"{run.url} went on meanwhile, and {name} is not needed there any more: copy it again; if "
        "that is so each time, have the run keep more checkpoints, or copy it when it rests"
    )


def keys_name(position: int) -> str:
    """Return the name of the keys of rows that wait for labels, or were learned, at a position."""
    return f"{SERVING}/{position:018d}.arrow"


def _batches(run: Run) -> list[str]:
    """Return the files of a source's rows that a copy has: those with rows that are not learned.

    And the newest one, which has the position of the source.
    """
    names = sorted(run.store.list(BATCHES))
    if not names:
        return []
    newest = pa.BufferReader(run.store.get(names[-1]))
    try:
        sizes = read_note(pq.read_schema(newest).metadata, BATCHES_NOTE)["sizes"]
        begin = next((n for n, end in enumerate(accumulate(sizes)) if end > _learned(run)), None)
    except (pa.ArrowException, LookupError, TypeError, ValueError) as error:
        raise CorruptError(
            f"{run.url} has {names[-1]}, without the position of its source: {error!r}"
        ) from error
    if begin is None:
        return names[-1:]
    return [name for name in names if _position(name) > begin]  # numbered from 1


def _learned(run: Run) -> int:
    """Return the position of the checkpoint that is copied."""
    manifests = run.manifests()
    return (manifests[-1] if manifests else 0) if run.position is None else run.position


def _lagged(run: Run) -> list[str]:
    """Return the files with lags that a copy has: those it needs to go on, and what lags need."""
    learned = _learned(run)
    names = sorted(run.store.list(LAGS))
    rows = [name for name in names if name.count("/") == 1]
    states = [name for name in names if name.startswith(f"{LAGS}/_state/")]
    if states:  # the newest state, and all rows behind it
        learned = min(learned, _position(states[-1]))
    begin = max((n for n, name in enumerate(rows) if _position(name) <= learned), default=0)
    listings = [name for name in names if name.startswith(f"{LAGS}/_source/")]
    return [*rows[begin:], *states[-1:], *listings]


def _position(name: str) -> int:
    """Return the position in the name of a file."""
    return int(name.rpartition("/")[2].partition(".")[0])


def _objects(parts: ModelParts) -> Iterator[tuple[str, _Read]]:
    """Yield names of the copy, and what reads them, in the order of writing."""
    for number, (run, manifest) in reversed([*enumerate(parts)]):
        below = f"{part_folder(*tree_range(run))}/" if number else ""
        for digest, n_bytes in manifest.blobs.items():
            yield f"{below}{BLOBS}/{digest}", partial(run.get_blob, digest, n_bytes)
        yield from ((f"{below}{name}", read) for name, read in beside_shards(run))
        yield f"{below}{manifest.name}", manifest.to_bytes


def put_object(target: Store, name: str, data: bytes) -> bool:
    """Write an object unless it is there; return whether this call did."""
    if f"{BLOBS}/" not in name:
        try:
            return target.put_same(name, data)
        except FencedError:
            raise taken(target, name) from None
    # Large objects go up in parts, which is not conditional; these are named by what they hold.
    if target.size(name) == len(data) and target.get(name) == data:
        return False
    target.put(name, data)
    return True


def refuse_within(target: Store, model: Store) -> None:
    """Refuse a folder for something new that is a model's own, or lies within it.

    Raises
    ------
    ParameterError
    """
    new, old = (
        os.path.realpath(store.address.path) if store.is_local else store.url
        for store in (target, model)
    )
    if f"{new.rstrip('/')}/".startswith(f"{old.rstrip('/')}/"):
        raise ParameterError(
            f"{target.url} is the folder of the model itself, or within it, and the model is not "
            "to be changed: choose a folder elsewhere"
        )


def taken(target: Store, name: str) -> ParameterError:
    """Return the error of a copy to a folder that holds something else."""
    return ParameterError(f"{target.url} is not empty, it holds {name}: expected a new folder")
