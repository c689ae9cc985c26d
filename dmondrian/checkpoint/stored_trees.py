"""Trees of a model in a store: which blobs hold them, the header of a blob, and reading them.

Relies on `Run`, the codec and the pieces of a grown run. Promises the order of the trees' numbers,
and that nothing is decoded beyond the memory that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dmondrian._memory_limit import usable_bytes
from dmondrian.checkpoint.codec import peek_forest
from dmondrian.checkpoint.deltas import read_state
from dmondrian.checkpoint.manifest import base_of, shard_entry
from dmondrian.checkpoint.parts import ModelParts
from dmondrian.checkpoint.run import Run
from dmondrian.errors import CorruptError, ParameterError

if TYPE_CHECKING:
    from dmondrian.forest.forest import Forest


@dataclass(frozen=True)
class Blob:
    """Trees of a model that are stored together."""

    run: str  # URL of the run folder that holds them
    shard: int  # number of the shard in that run
    first: int  # lowest tree number, by run.json
    stop: int  # behind the highest tree number
    digest: str
    n_bytes: int  # as stored
    base: tuple[str, int] | None = None  # digest and bytes of what it is a difference from

    @property
    def all_bytes(self) -> int:
        """Bytes that are read for it."""
        return self.n_bytes + (0 if self.base is None else self.base[1])

    @property
    def entry(self) -> dict[str, Any]:
        """Entry of the state in a manifest."""
        return shard_entry((self.digest, self.n_bytes), self.base)


@dataclass(frozen=True)
class Contents:
    """The header of a blob."""

    parameters: dict[str, Any]  # of the forest, as JSON
    numbers: tuple[int, ...]  # tree numbers
    sizes: tuple[int, ...]  # bytes of each tree in memory, at most
    boxless_sizes: tuple[int, ...]  # the same without the boxes of its nodes
    n_nodes: int  # of all trees
    calibration: Any  # of the whole forest, as JSON, where it was saved by an estimator


def model_blobs(parts: ModelParts) -> list[Blob]:
    """List the blobs that make up a model, in the order of their trees' numbers.

    Raises
    ------
    CorruptError
        A manifest names other shards than its run.json.
    """
    blobs = []
    for run, manifest in parts:
        if not manifest.shards:
            raise CorruptError(f"{manifest.name} in {run.url} names no shard: there is no forest.")
        declared = run.run_json.get("shards")
        ranges = declared if isinstance(declared, list) else [[0, 0]] * len(manifest.shards)
        if sorted(manifest.shards) != list(range(len(ranges))):
            raise CorruptError(
                f"{manifest.name} in {run.url} names {len(manifest.shards)} shards, run.json "
                f"{len(ranges)}: a part of the forest is missing. Use an earlier checkpoint."
            )
        for number, shard in manifest.shards.items():
            first, stop = ranges[number]
            digest_and_size = shard["digest"], shard["bytes"]
            blobs.append(Blob(run.url, number, first, stop, *digest_and_size, base_of(shard)))
    return sorted(blobs, key=lambda blob: (blob.first, blob.shard))


def peek_blobs(blobs: Sequence[Blob]) -> list[Contents]:
    """Read the header of each blob, without reading its trees.

    Raises
    ------
    CorruptError
        The beginning of one is damaged, or it is missing.
    """
    runs = _runs(blobs)
    return [_peek(runs[blob.run], blob) for blob in blobs]


def load_trees(blobs: Sequence[Blob], with_boxes: bool = True) -> Forest:
    """Read blobs of one model, one after the other, as one forest.

    Parameters
    ----------
    blobs : sequence of Blob
    with_boxes : bool
        False for a forest whose parameters have it ``predicts_without_boxes``, to be asked alone:
        without the boxes of its nodes it takes a fraction of the memory, and learns nothing.

    Raises
    ------
    CorruptError
        A blob is missing or damaged, or they do not belong together.
    """
    runs = _runs(blobs)
    parts: list[Forest] = []
    free = usable_bytes()
    for blob in blobs:
        # Half: differences, and forests that follow a stream, are built beside all their arrays.
        other_shard = parts[0] if parts else None
        parts.append(_load(runs[blob.run], blob, free // 2, other_shard, with_boxes))
        free -= parts[-1].n_bytes
    try:
        return parts[0] if len(parts) == 1 else type(parts[0]).join(parts)
    except ParameterError as error:
        urls = ", ".join(sorted(runs))
        raise CorruptError(f"the shards of {urls}: {str(error)[:400]}") from error


def _runs(blobs: Sequence[Blob]) -> dict[str, Run]:
    return {url: Run.open(url) for url in {blob.run for blob in blobs}}


def _peek(run: Run, blob: Blob) -> Contents:
    def read(start: int, stop: int) -> bytes:
        return run.peek_blob(blob.digest, start, stop)

    header, rows, sizes = peek_forest(read, blob.n_bytes, name=_named(blob))
    left_out = _left_out(with_boxes=False)
    try:
        numbers = tuple(int(tree["number"]) for tree in header["trees"])
        parameters, calibration = dict(header["parameters"]), header.get("calibration")
        return Contents(
            parameters,
            numbers,
            tuple(sum(tree.values()) for tree in sizes),
            tuple(sum(n for name, n in tree.items() if name not in left_out) for tree in sizes),
            sum(rows),
            calibration,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{_named(blob)} is no forest: {error!r}") from error


def _load(
    run: Run, blob: Blob, max_bytes: int, other_shard: Forest | None, with_boxes: bool
) -> Forest:
    from dmondrian.drift.drift_forest import forest_from_state

    blob_id, without = (blob.digest, blob.n_bytes), _left_out(with_boxes)
    try:
        state = read_state(
            run.get_blob, *blob_id, name=_named(blob), max_bytes=max_bytes, without=without
        )
        return forest_from_state(state.header, state.trees, other_shard, with_boxes)
    except (CorruptError, ParameterError) as error:
        raise CorruptError(f"{_named(blob)} is no forest: {error}") from error


def _left_out(with_boxes: bool) -> tuple[str, ...]:
    """Return the fields of trees that are not read."""
    if with_boxes:
        return ()
    from dmondrian.forest.state import BOXES

    return BOXES


def _named(blob: Blob) -> str:
    return f"Shard {blob.shard} (blobs/{blob.digest} in {blob.run})"
