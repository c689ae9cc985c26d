"""Metadata of stored models, without their trees; and a cache of plans in a worker's memory.

Relies on checkpoints never changing under their digest. Promises that equal models have equal
digests, wherever they are stored; that a plan is read once per process, however many tasks need it
at the same time; that a failed read is retried by the next task, and that only the last few plans
are kept.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from dmondrian.checkpoint import look_at_model, peek_blobs
from dmondrian.checkpoint.stream import MAX_PLAN_BYTES
from dmondrian.data import Plan, Schema
from dmondrian.data.score_columns import has_label_std
from dmondrian.data.single_flight_cache import SingleFlightCache
from dmondrian.distributed.scoring.memory_plan import BlobMemory, memory_of
from dmondrian.drift.guard import Guard, guard_of, share_width
from dmondrian.drift.waiting_rows import check_learned
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError, DataError
from dmondrian.store import open_store
from dmondrian.uncertainty.temperature_scaling import FittedCalibration, kind_of

READ_SECONDS = 900.0
"""Longest wait for a read."""

_KEPT = 2  # plans per process: the current and the previous one


@dataclass(frozen=True)
class Model:
    """The stored trees of a model, and how its rows are encoded."""

    trees: tuple[BlobMemory, ...]  # in the order of their numbers
    n_outputs: int  # width of a prediction
    has_label_std: bool  # whether variances are of the label, not between trees
    schema: Schema
    digest: str  # of trees, schema and calibration
    parameters: ForestParameters
    calibration: FittedCalibration | None = None  # of its predictions
    n_draws: int | None = None  # draws that normalise a density, which needs all trees at once
    has_distance: bool = True  # whether nodes have boxes
    guard: Guard | None = None  # of a forest that follows the stream
    with_boxes: bool = True  # whether its trees are read with the boxes of their nodes

    @property
    def n_trained(self) -> int:
        """Rows that a forest which follows the stream was trained on; 0 for others."""
        return 0 if self.guard is None else self.guard.position

    @property
    def delay(self) -> int | None:
        """Rows of a block of labels, of time of the last full one; None if it does not follow."""
        return None if self.guard is None else self.guard.blocks.delay

    @property
    def sum_width(self) -> int:
        """Numbers of a row that are summed over trees, without details."""
        if self.guard is None:
            return self.n_outputs
        return 1 + self.n_outputs + share_width(self.parameters)


_plans: SingleFlightCache[Plan] = SingleFlightCache(_KEPT, seconds=READ_SECONDS)


def open_model(url: str, measures_distance: bool = True) -> Model:
    """Return the metadata of a model that was trained on a plan.

    Parameters
    ----------
    url : str
    measures_distance : bool
        Whether it will be asked how far rows are from the boxes of their leaves.

    Raises
    ------
    CheckpointError
        There is no model, or its metadata are damaged.
    DataError
        The model was fitted on arrays, and has no schema to encode the columns of a file.
    ParameterError
        All rows of a model that follows its stream wait for their labels: it has learned none.
    """
    blobs, about, manifest = look_at_model(url)
    if about.get("schema") is None:
        raise DataError(
            f"{url} was fitted on arrays and holds no schema: load it with dmondrian.load and call "
            f"predict, or train it with dmondrian.distributed.train"
        )
    contents = peek_blobs(blobs)
    first = contents[0].parameters
    numbers = [number for stored in contents for number in stored.numbers]
    if any(stored.parameters != first for stored in contents) or numbers != sorted(set(numbers)):
        raise CorruptError(
            f"the shards of {url} do not belong together: they have other parameters, or trees "
            f"that overlap; use an earlier checkpoint"
        )
    parameters = ForestParameters.from_json(first)
    with_boxes = measures_distance or not parameters.predicts_without_boxes
    in_turn = not parameters.follows_stream
    trees = tuple(
        memory_of(blob, stored.sizes if with_boxes else stored.boxless_sizes, stored.sizes, in_turn)
        for blob, stored in zip(blobs, contents, strict=True)
    )
    content = {
        "schema": about["schema"],
        "position": manifest.position,
        "trees": [blob.digest for blob in blobs],
    }
    calibration = None
    if manifest.metrics.get("calibration") is not None:
        kind = kind_of(parameters.gives_label_variance)
        calibration = kind.from_json(manifest.metrics["calibration"])
        content["calibration"] = calibration.to_json()
    guard = None
    if parameters.follows_stream:
        content["guard"] = manifest.metrics.get("guard")
        guard = guard_of(parameters, numbers, content["guard"])
        check_learned(guard.rows_so_far, parameters.following, f"{url}: ")
        guard.learn_waiting()  # as members do that are asked
    n_draws = None
    if parameters.is_density:
        n_draws = content["n_draws"] = _draws_of(about, url)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    schema = Schema.from_json(about["schema"])
    shape = parameters.n_features, parameters.n_classes
    if (schema.n_features, schema.n_classes) != shape:
        raise CorruptError(
            f"{url}: run.json describes {schema.n_features} features and {schema.n_classes} "
            f"classes, the forest has {shape[0]} and {shape[1]}"
        )
    is_of_label = has_label_std(parameters, calibration, guard)
    k, has_boxes = parameters.n_outputs, parameters.has_boxes
    return Model(
        trees, k, is_of_label, schema, digest, parameters, calibration, n_draws, has_boxes, guard,
        with_boxes,
    )  # fmt: skip


def _draws_of(about: dict[str, Any], url: str) -> int:
    n_draws = (about.get("estimator") or {}).get("n_draws")
    if type(n_draws) is not int or not 2 <= n_draws < 2**62:
        raise CorruptError(f"{url}: run.json's n_draws cannot be {str(n_draws)[:80]!r}")
    return n_draws


def plan_here(folder: str, name: str, digest: str) -> Plan:
    """Return a stored plan, read once per process."""

    def read() -> Plan:
        data = open_store(folder).get(name, MAX_PLAN_BYTES)
        try:
            plan = Plan.from_parquet(data)
        except CorruptError as error:
            text = f"{name} in {folder}: {error}; delete it and run the same command again"
            raise CorruptError(text) from error
        if plan.digest != digest:
            raise CorruptError(f"{name} in {folder} is another plan than the one asked for")
        return plan

    return _plans.get((folder, name, digest), read)
