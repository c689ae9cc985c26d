"""Models: a finished forest is a run folder with one commit, so any checkpoint can be loaded.

Relies on `Run` and the codec; `dmondrian.forest` is imported when it is needed. Promises that what
`load_model` returns was checked on the way: digests, sizes, dtypes, then the forest's own checks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dmondrian.checkpoint.codec import encode_forest
from dmondrian.checkpoint.manifest import LARGEST_POSITION, Manifest
from dmondrian.checkpoint.parts import pieces
from dmondrian.checkpoint.run import Run
from dmondrian.checkpoint.trees import Blob, load_trees, model_blobs
from dmondrian.errors import CheckpointError, CorruptError, FencedError

if TYPE_CHECKING:
    from dmondrian.forest import Forest

# Rows learned; in a run folder this is the manifest's position, so it is not stored twice.
ROWS_KEY = "n_seen"


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
    data = encode_forest(*forest.stored())
    run = Run.create(path, content)
    # Rows of huge weights are told as so many rows as a position can be; the forest knows better.
    position = min(int(model_json.get(ROWS_KEY, 0)), LARGEST_POSITION)
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
        All shards joined, those of parts too, with the run's calibration.
    model_json : dict
        ``run.json``, with ``n_seen`` (rows learned) added, and the number of all trees.
    manifest : Manifest
        With the shards of all parts.

    Raises
    ------
    CheckpointError
        There is no run or no checkpoint.
    CorruptError
        The checkpoint is damaged.
    """
    blobs, model_json, manifest = look_at_model(url)
    forest = load_trees(blobs)
    if not forest.trees:
        raise CorruptError(f"{os.fspath(url)} names no tree: there is no forest.")
    if manifest.metrics.get("calibration") is not None:  # of a run: its shards know none
        from dmondrian.calibration import kind_of

        kind = kind_of(forest.parameters.tells_labels)
        forest.calibration = kind.from_json(manifest.metrics["calibration"])
    return forest, model_json, manifest


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
    found = pieces(run)
    blobs = model_blobs(found)
    about = {**run.run_json, ROWS_KEY: found[0][1].position}
    if len(found) > 1:
        n_trees = sum(int(one.run_json["n_estimators"]) for one, _ in found)
        about["n_estimators"] = n_trees
        about["estimator"] = {**about["estimator"], "n_estimators": n_trees}
    # Metrics are those of the run without its parts.
    shards = {n: {"digest": blob.digest, "bytes": blob.n_bytes} for n, blob in enumerate(blobs)}
    return blobs, about, replace(found[0][1], shards=shards)
