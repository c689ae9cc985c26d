"""Migration: a checkpoint of an earlier version, written anew in the format of this one.

Relies on the readers of all formats: a state that was read is in today's form, so to write it is
all there is to do. Promises that each state is read back and equal, in every number, to the one
that was read from the old folder: forecasts and further learning depend on nothing else. The old
folder is not changed.

The manifest is written last: what a killed migration leaves is no model, and the same migration
again goes on with it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dmondrian.checkpoint import document
from dmondrian.checkpoint.codec import encode_forest
from dmondrian.checkpoint.copying import (
    beside_shards,
    copied_pieces,
    put_object,
    refuse_within,
    taken,
)
from dmondrian.checkpoint.deltas import Read, are_same_trees, read_state
from dmondrian.checkpoint.manifest import Manifest
from dmondrian.checkpoint.parts import part_folder, tree_range
from dmondrian.checkpoint.run import BLOBS, Run
from dmondrian.checkpoint.stream import PLACES_NAME
from dmondrian.checkpoint.summary import Summary, total
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.store import Store, open_store

if TYPE_CHECKING:
    from dmondrian.forest.forest import Forest

_Put = Callable[[Store, str, bytes], bool]

NAME = "migrating.json"  # while a migration is at work: what it writes


@dataclass(frozen=True)
class Migrated:
    """A checkpoint that was written anew.

    Attributes
    ----------
    run : Run
    position : int
    blobs : int
        States of the checkpoint.
    rewritten : int
        Those whose bytes were not what this version writes.
    was_there : bool
        An earlier call had written all of it; this one compared it.
    """

    run: Run
    position: int
    blobs: int
    rewritten: int
    was_there: bool


def migrate(url: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Migrated:
    """Write the newest checkpoint of a run or saved model, or the one at ``url@position``, anew.

    Parameters
    ----------
    url : str or path
    folder : str or path
        Folder or URL; new, empty, or with what a killed migration of the same checkpoint left. A
        migration that is there already is compared.

    Raises
    ------
    CheckpointError
        There is no model.
    CorruptError
        A part of it is damaged or missing, or what was written reads otherwise.
    ParameterError
        The folder holds something, or trees that the run took later are not at this position's end.
    """
    model = Run.open(url)
    parts = copied_pieces(model)
    target = open_store(folder)
    refuse_within(target, model.store)
    digests = [hashlib.sha256(manifest.to_bytes()).hexdigest() for _, manifest in parts]
    mark = document.seal({"manifests": digests})
    there = target.list()
    was_there = NAME not in there and parts[0][1].name in there
    put = _compare_object if was_there else put_object
    if there and not was_there and (NAME not in there or target.get(NAME) != mark):
        raise taken(target, there[0])
    if not was_there:
        target.put(NAME, mark)
    written: dict[str, bytes] = {}  # manifests
    n_blobs, n_rewritten = 0, 0
    for number, (run, manifest) in enumerate(parts):
        below = f"{part_folder(*tree_range(run))}/" if number else ""
        shards: dict[int, dict[str, Any]] = {}
        summaries = []
        for shard, entry, summary in _shards(run, manifest, target, below, put):
            shards[shard] = entry
            summaries.append(summary)
            n_rewritten += entry["digest"] != manifest.shards[shard]["digest"]
        n_blobs += len(shards)
        for name, read in beside_shards(run):
            put(target, f"{below}{name}", read())
        known = manifest.forest if manifest.forest is not None else total(summaries)
        now = replace(manifest, shards=shards, forest=known)
        written[f"{below}{now.name}"] = now.to_bytes()
    for name, data in reversed(written.items()):  # that of the run itself last
        put(target, name, data)
    if not was_there:
        target.delete(NAME)
    return Migrated(Run.open(target.url), parts[0][1].position, n_blobs, n_rewritten, was_there)


def _compare_object(target: Store, name: str, data: bytes) -> bool:
    """Refuse a folder that has not this object; places are a folder's own."""
    if name != PLACES_NAME and (target.size(name) != len(data) or target.get(name) != data):
        raise taken(target, name)
    return False


def _shards(
    run: Run, manifest: Manifest, target: Store, below: str, put: _Put
) -> Iterator[tuple[int, dict[str, Any], Summary]]:
    """Write the states of a checkpoint, one after the other; yield shard, entry and summary."""
    for number, shard in manifest.shards.items():
        named = f"shard {number} of {manifest.name} in {run.url}"
        forest = _forest(run.get_blob, shard["digest"], named, shard["bytes"])
        data = encode_forest(*forest.stored())
        digest = hashlib.sha256(data).hexdigest()
        put(target, f"{below}{BLOBS}/{digest}", data)
        written = target.get(f"{below}{BLOBS}/{digest}")
        copied = None
        if written == data:
            copied = _forest(partial(_same, written), digest, named)
        if copied is None or not _are_equal(forest, copied):
            raise CorruptError(
                f"{named} reads otherwise after it was written to {target.url}: the migration "
                "ends here, and the old folder is as it was"
            )
        yield number, {"digest": digest, "bytes": len(data)}, Summary.of(forest)


def _same(data: bytes, *_: object) -> bytes:
    return data


def _forest(read: Read, digest: str, named: str, n_bytes: int | None = None) -> Forest:
    from dmondrian.drift.drift_forest import forest_from_state

    try:
        state = read_state(read, digest, n_bytes, name=named)
        return forest_from_state(state.header, state.trees)
    except (CorruptError, ParameterError) as error:
        raise CorruptError(f"{named} is no forest: {error}") from error


def _are_equal(forest: Forest, copy: Forest) -> bool:
    """Return whether two forests have the same state, in every number and header."""
    (header, trees), (copied_header, copied_trees) = (
        forest.state(copy=False),
        copy.state(copy=False),
    )
    return document.dump_json(header) == document.dump_json(copied_header) and are_same_trees(
        trees, copied_trees
    )
