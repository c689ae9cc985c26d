"""Models: a finished forest is a run folder with one commit, so any checkpoint can be loaded.

Relies on `Run` and the codec; `dmondrian.forest.forest` is imported when it is needed. Promises
that what `load_model` returns was checked on the way: digests, sizes, dtypes, then the forest's own
checks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dmondrian.checkpoint.codec import encode_forest
from dmondrian.checkpoint.lease import check_free
from dmondrian.checkpoint.manifest import LARGEST_POSITION, Manifest
from dmondrian.checkpoint.parts import model_parts
from dmondrian.checkpoint.run import Run
from dmondrian.checkpoint.stored_trees import Blob, load_trees, model_blobs, peek_blobs
from dmondrian.checkpoint.summary import Summary, total
from dmondrian.ensemble.settings.stored_parameters import follows_stream
from dmondrian.errors import CheckpointError, CorruptError, FencedError
from dmondrian.store import open_store

if TYPE_CHECKING:
    from dmondrian.forest.forest import Forest

# Rows learned; in a run folder this is the manifest's position, so it is not stored twice.
ROWS_KEY = "n_seen"
CALIBRATION, GUARD = "calibration", "guard"  # entries of a manifest's metrics
COMPLETE = "is_complete"  # another: whether the labels of a forest that follows are all known


@dataclass(frozen=True)
class Trees:
    """Facts about a model's trees that need no reading of them.

    Attributes
    ----------
    summary : Summary
    parameters : dict
        Of the forest, in use, as JSON.
    calibration : dict or None
        As JSON.
    n_trees : int
    is_recorded : bool
        Whether the checkpoint has a summary. One that an earlier version wrote has none: then nodes
        are those that the blobs declare, their bytes an upper bound, and no gains are known.
    """

    summary: Summary
    parameters: Mapping[str, Any]
    calibration: Any
    n_trees: int
    is_recorded: bool


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
    FencedError
        Another process works on the folder, such as a server that learns.
    StoreError
        The folder cannot be written.
    """
    check_free(open_store(path))
    content = {key: value for key, value in model_json.items() if key != ROWS_KEY}
    numbers = [int(number) for number in forest.tree_numbers]
    content.setdefault("n_estimators", len(numbers))
    content.setdefault("shards", [[min(numbers), max(numbers) + 1]] if numbers else [])
    content.setdefault("plan", None)
    data = encode_forest(*forest.stored())
    # run.json has no settings that the rows chose: it is that of earlier and later saves too.
    summary = replace(Summary.of(forest), parameters=forest.parameters.to_json())
    metrics: dict[str, Any] = {}
    if forest.calibration is not None:
        metrics[CALIBRATION] = forest.calibration.to_json()
    if getattr(forest, "labels_are_known", False):
        metrics[COMPLETE] = True
    run = Run.create(path, content)
    # Rows of huge weights count as at most the largest position; the forest stores their weight.
    position = min(int(model_json.get(ROWS_KEY, 0)), LARGEST_POSITION)
    newer = [there for there in run.manifests() if there > position]
    if newer:
        raise CheckpointError(
            f"The folder {run.url} holds a model that learned {newer[-1]} rows, this one learned "
            f"{position}: loading would still find the other. Choose another folder."
        )
    shard = {"digest": run.put_blob(data), "bytes": len(data)}
    try:
        return run.commit(position, {0: shard}, metrics, final=True, forest=summary)
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
    if manifest.metrics.get(CALIBRATION) is not None:  # of a run: its shards know none
        from dmondrian.uncertainty.temperature_scaling import kind_of

        kind = kind_of(forest.parameters.gives_label_variance)
        forest.calibration = kind.from_json(manifest.metrics[CALIBRATION])
    if forest.parameters.follows_stream and manifest.metrics.get(GUARD) is not None:  # as above
        from dmondrian.drift.drift_forest import DriftForest

        members: Any = forest
        forest = DriftForest.of(members, manifest.metrics[GUARD])
        forest.labels_are_known = True
    elif forest.parameters.follows_stream:
        follower: Any = forest
        follower.labels_are_known = manifest.metrics.get(COMPLETE) is True
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
    parts = model_parts(run)
    blobs = model_blobs(parts)
    about = {**run.run_json, ROWS_KEY: parts[0][1].position}
    if len(parts) > 1:
        n_trees = sum(int(part.run_json["n_estimators"]) for part, _ in parts)
        about["n_estimators"] = n_trees
        about["estimator"] = {**about["estimator"], "n_estimators": n_trees}
    # Metrics are those of the run without its parts, but where all trees are mixed by what they
    # forecast: there the newest part has those of all.
    newest = -1 if follows_stream(run.run_json.get("parameters", {})) else 0
    shards = {n: blob.entry for n, blob in enumerate(blobs)}
    forest = total([manifest.forest for _, manifest in parts])
    manifest = replace(parts[0][1], metrics=parts[newest][1].metrics)
    return blobs, about, replace(manifest, shards=shards, forest=forest)


def known_trees(url: str | os.PathLike[str]) -> tuple[Trees, dict[str, Any], Manifest]:
    """Return what is known of a model's trees without reading them, however many they are.

    Returns
    -------
    trees : Trees
    model_json, manifest
        As of `load_model`.

    Raises
    ------
    CheckpointError
        There is no run or no checkpoint.
    CorruptError
        The checkpoint is damaged.
    """
    blobs, about, manifest = look_at_model(url)
    summary, calibration = manifest.forest, manifest.metrics.get(CALIBRATION)
    parameters: Mapping[str, Any]
    if summary is not None:
        parameters = summary.parameters or about["parameters"]
        n_trees = int(about["n_estimators"])
        return Trees(summary, parameters, calibration, n_trees, True), about, manifest
    seen = peek_blobs(blobs)
    n_nodes = sum(stored.n_nodes for stored in seen)
    declared = Summary(n_nodes, sum(size for stored in seen for size in stored.sizes), None)
    calibration = seen[0].calibration if calibration is None else calibration
    n_trees = sum(len(stored.numbers) for stored in seen)
    return Trees(declared, seen[0].parameters, calibration, n_trees, False), about, manifest


def summary_from_trees(url: str | os.PathLike[str]) -> Summary:
    """Return the summary of a model that an earlier version wrote: shard by shard, as it is read.

    Takes the memory of the largest shard.
    """
    blobs, _, _ = look_at_model(url)
    summary = total([Summary.of(load_trees([blob])) for blob in blobs])
    assert summary is not None  # each has one
    return summary
