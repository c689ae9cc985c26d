"""Models: a finished forest is a run folder with one commit, so any checkpoint can be loaded.

Relies on `Run` and the codec; `dmondrian.forest` is imported when it is needed. Promises that what
`load_model` returns was checked on the way: digests, sizes, dtypes, then the forest's own checks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dmondrian.checkpoint.codec import decode_forest, encode_forest, peek_forest
from dmondrian.checkpoint.manifest import Manifest
from dmondrian.checkpoint.run import Run
from dmondrian.errors import CheckpointError, CorruptError, FencedError, ParameterError

if TYPE_CHECKING:
    from dmondrian.forest import Forest

# Rows learned; in a run folder this is the manifest's position, so it is not stored twice.
ROWS_KEY = "n_seen"


@dataclass(frozen=True)
class Blob:
    """Trees of a model that are stored together."""

    run: str  # URL of the run folder that holds them
    shard: int  # number of the shard in that run
    first: int  # lowest tree number, by run.json
    stop: int  # behind the highest tree number
    digest: str
    n_bytes: int  # as stored


@dataclass(frozen=True)
class Contents:
    """What a blob says of itself at its start."""

    parameters: dict[str, Any]  # of the forest, as JSON
    numbers: tuple[int, ...]  # tree numbers
    sizes: tuple[int, ...]  # bytes of each tree in memory


def save_model(
    path: str | os.PathLike[str], forest: Forest, model_json: Mapping[str, Any]
) -> Manifest:
    """Write a fitted forest as a run folder with one shard and a final manifest.

    Saving again into the same folder adds a checkpoint when the model has learned more rows, and
    does nothing when it is the same model; the newest one is what `load_model` finds.

    Parameters
    ----------
    path : str or path-like
        Folder or URL.
    forest : Forest
    model_json : mapping
        What the estimator needs besides the forest: algorithm, parameters, classes, feature
        names, ``n_seen`` (rows learned).

    Raises
    ------
    CheckpointError
        The folder holds another model.
    StoreError
        The folder cannot be written.
    """
    content = {key: value for key, value in model_json.items() if key != ROWS_KEY}
    numbers = [int(number) for number in forest.tree_numbers]
    content.setdefault("n_estimators", len(numbers))
    content.setdefault("shards", [[min(numbers), max(numbers) + 1]] if numbers else [])
    content.setdefault("plan", None)
    data = encode_forest(*forest.state())
    run = Run.create(path, content)
    position = int(model_json.get(ROWS_KEY, 0))
    newer = [there for there in run.manifests() if there > position]
    if newer:
        raise CheckpointError(
            f"The folder {run.url} holds a model that learned {newer[-1]} rows, this one learned "
            f"{position}: loading would still find the other. Choose another folder."
        )
    shard = {"digest": run.put_blob(data), "bytes": len(data)}
    try:
        return run.commit(position, {0: shard}, final=True)
    except FencedError:
        raise CheckpointError(
            f"The folder {run.url} holds another model that learned as many rows ({position}). "
            "Choose another folder."
        ) from None


def load_model(url: str | os.PathLike[str]) -> tuple[Forest, dict[str, Any], Manifest]:
    """Read the newest checkpoint of a run or saved model, or the one at ``url@position``.

    Unlike a resumed training, which may go back to an earlier checkpoint and learn the rest
    again, this never answers with another model than the one asked for.

    Returns
    -------
    forest : Forest
        All shards joined.
    model_json : dict
        ``run.json``, with ``n_seen`` (rows learned) added.
    manifest : Manifest

    Raises
    ------
    CheckpointError
        There is no run or no checkpoint.
    CorruptError
        The checkpoint is damaged.
    """
    run = Run.open(url)
    manifest = _chosen(run)
    forest = load_trees(model_blobs(run, manifest))
    return forest, {**run.run_json, ROWS_KEY: manifest.position}, manifest


def look_at_model(url: str | os.PathLike[str]) -> tuple[list[Blob], dict[str, Any], Manifest]:
    """Find a model as `load_model` does, without its trees.

    Returns
    -------
    blobs : list of Blob
        Where the trees are, in the order of their numbers.
    model_json, manifest
        As of `load_model`.

    Raises
    ------
    CheckpointError
        There is no run or no checkpoint.
    CorruptError
        The checkpoint is damaged.
    """
    run = Run.open(url)
    manifest = _chosen(run)
    model_json = {**run.run_json, ROWS_KEY: manifest.position}
    return model_blobs(run, manifest), model_json, manifest


def model_blobs(run: Run, manifest: Manifest) -> list[Blob]:
    """List the blobs that make up a model, in the order of their trees' numbers."""
    if not manifest.shards:
        raise CorruptError(f"{manifest.name} in {run.url} names no shard: there is no forest.")
    declared = run.run_json.get("shards")
    ranges = declared if isinstance(declared, list) else [[0, 0]] * (max(manifest.shards) + 1)
    if not all(number < len(ranges) for number in manifest.shards):
        raise CorruptError(f"{manifest.name} in {run.url} names shards that run.json does not.")
    blobs = [
        Blob(run.url, number, first, stop, shard["digest"], shard["bytes"])
        for (number, shard), (first, stop) in (
            (item, ranges[item[0]]) for item in manifest.shards.items()
        )
    ]
    return sorted(blobs, key=lambda blob: (blob.first, blob.shard))


def peek_blobs(blobs: Sequence[Blob]) -> list[Contents]:
    """Read what each blob says of itself, without reading its trees.

    Raises
    ------
    CorruptError
        The beginning of one is damaged, or it is missing.
    """
    runs = _runs(blobs)
    return [_peek(runs[blob.run], blob) for blob in blobs]


def load_trees(blobs: Sequence[Blob]) -> Forest:
    """Read blobs of one model, one after the other, as one forest.

    Raises
    ------
    CorruptError
        A blob is missing or damaged, or they do not belong together.
    """
    from dmondrian.forest import Forest

    runs = _runs(blobs)
    parts = [_load(runs[blob.run], blob) for blob in blobs]
    return parts[0] if len(parts) == 1 else Forest.join(parts)


def _runs(blobs: Sequence[Blob]) -> dict[str, Run]:
    return {url: Run.open(url) for url in {blob.run for blob in blobs}}


def _peek(run: Run, blob: Blob) -> Contents:
    def read(start: int, stop: int) -> bytes:
        return run.peek_blob(blob.digest, start, stop)

    header, sizes = peek_forest(read, blob.n_bytes, name=_named(blob))
    try:
        numbers = tuple(int(tree["number"]) for tree in header["trees"])
        return Contents(dict(header["parameters"]), numbers, tuple(sizes))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{_named(blob)} is no forest: {error!r}") from error


def _load(run: Run, blob: Blob) -> Forest:
    from dmondrian.forest import Forest

    data = run.get_blob(blob.digest, blob.n_bytes)
    try:
        return Forest.from_state(*decode_forest(data, name=_named(blob)))
    except (CorruptError, ParameterError) as error:
        raise CorruptError(f"{_named(blob)} is no forest: {error}") from error


def _named(blob: Blob) -> str:
    return f"Shard {blob.shard} (blobs/{blob.digest} in {blob.run})"


def _chosen(run: Run) -> Manifest:
    positions = run.manifests()
    if run.position is None and not positions:
        raise CheckpointError(
            f"The run {run.url} has no checkpoint yet: wait for the first one, or train it."
        )
    manifest = run.manifest(positions[-1] if run.position is None else run.position)
    declared = run.run_json.get("shards")
    if isinstance(declared, list) and len(declared) != len(manifest.shards):
        raise CorruptError(
            f"{manifest.name} in {run.url} names {len(manifest.shards)} shards, run.json "
            f"{len(declared)}: a part of the forest is missing. Use an earlier checkpoint."
        )
    return manifest
