"""Training with more workers than trees: trees learn ranges of rows side by side, then are merged.

The ranges are shards of a run below the run's folder (:mod:`dmondrian.checkpoint.row_ranges`), so
that one coordinator places, saves and restores all of them at once, as it does the shards of any
run; a run for each range would need a coordinator each. What is new is the merge: the states of two
neighbouring ranges become one, those of two of these, and so on, each merge a task on any worker
whose result is a blob.

Relies on merged trees being those that learned all rows (:mod:`dmondrian.forest.merge`). Promises
that which states are merged with which depends on the ranges alone, so that the merged trees are
the same bytes for any number of workers and whatever was lost on the way; that states are merged
by the code that the coordinator has; and that what is merged again after a loss was not committed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from distributed import Client, get_worker

from dmondrian._text.wording import NOTED, counted
from dmondrian.checkpoint import Lease, Manifest, Run
from dmondrian.checkpoint.deltas import encode_state, read_state
from dmondrian.checkpoint.manifest import Blob, shard_entry
from dmondrian.checkpoint.opening import RUN_NAME, VERSIONS_KEY
from dmondrian.checkpoint.row_ranges import FOLDER, RANGES, ROW_PARTS
from dmondrian.checkpoint.summary import Summary, total
from dmondrian.data import Plan, places_of
from dmondrian.distributed.cluster.code_version import code_digest
from dmondrian.distributed.scoring.task_pool import TaskChain, TaskPool
from dmondrian.distributed.worker.work_units import UNIT_ROWS
from dmondrian.drift.drift_forest import forest_from_state
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CheckpointError, ClusterError, ParameterError
from dmondrian.forest.merge import merge, why_not_merged
from dmondrian.store import open_store

_log = logging.getLogger("dmondrian")

LEAST_PARTS = 2
MOST_PARTS = 4096
_OWN = ("format", VERSIONS_KEY, ROW_PARTS)  # entries of run.json that the run below sets itself

NO_METRICS = (
    "rows are learned in {parts} side by side, and merged at the end: no row is forecast just "
    "before it is learned, so there are no progressive metrics and no learning curve; evaluate on "
    "held-out rows"
)


def check_row_parts(estimator: Any, row_parts: Any) -> int | None:
    """Refuse parts of rows of a forest whose parts do not merge, before any row is read.

    Returns
    -------
    int or None
        Their number, which may come as one of NumPy.

    Raises
    ------
    ParameterError
        With the reason, and what to do.
    """
    from sklearn.base import clone, is_classifier  # not imported by workers

    if row_parts is None:
        return None
    is_number = isinstance(row_parts, Integral) and not isinstance(row_parts, bool)
    if not is_number or not LEAST_PARTS <= row_parts <= MOST_PARTS:
        raise ParameterError(
            f"row_parts is {row_parts!r}; expected a number from {LEAST_PARTS} to {MOST_PARTS:,}, "
            "or None to learn the rows one after the other"
        )
    if (why := _why_not(clone(estimator), is_classifier(estimator))) is not None:
        raise ParameterError(
            f"row_parts={row_parts} does not go with this {type(estimator).__name__}: {why}; or "
            "leave row_parts out: trees are then spread over workers, and rows are not"
        )
    return int(row_parts)


def _why_not(estimator: Any, is_classifier: bool) -> str | None:
    """Return why forests of an estimator of its own cannot learn parts of the rows."""
    if getattr(estimator, "use_aggregation", False):
        return (
            "its predictions are mixtures whose weights are products of what was forecast row by "
            "row: parts do not have them, and computed from merged counts they differ in the last "
            'bits; choose a MondrianForestClassifier or MondrianForestRegressor with domain="cube"'
        )
    if estimator.domain != "cube":
        return (
            "trees on the range of the data depend on the order of their rows; choose "
            'domain="cube" of a Mondrian forest, whose partition does not look at the rows'
        )
    if getattr(estimator, "calibrate", False) is not False:
        return (
            "a calibration is fitted to forecasts of rows by the forest that learned all rows "
            "before them, which no part did; choose calibrate=False"
        )
    from dmondrian.estimators._sklearn_private import check_parameters  # unlike workers

    check_parameters(estimator)
    estimator._seed = 0  # draws none
    return why_not_merged(estimator._run_parameters(1, 2 if is_classifier else 0))


def check_length(row_parts: int | None, n_rows: int) -> None:
    """Refuse more parts than there are rows.

    Raises
    ------
    ParameterError
    """
    if row_parts is not None and row_parts > n_rows:
        raise ParameterError(
            f"row_parts is {row_parts}, and the data have {counted(n_rows, 'row')}: expected at "
            "most as many parts as rows"
        )


def row_parts_advice(run: Run, n_rows: int, n_threads: int) -> str | None:
    """Return a line on parts of rows for a run that begins; None where they would not pay.

    Parameters
    ----------
    run : Run
    n_rows : int
        Of its stream.
    n_threads : int
        Of all workers.
    """
    parameters = ForestParameters.from_json(run.run_json["parameters"])
    n_trees = int(run.run_json["n_estimators"])
    is_calibrated = run.run_json["estimator"].get("calibrate", False) is not False
    if n_trees >= n_threads or n_rows < n_threads * UNIT_ROWS or is_calibrated:
        return None
    # Without a lifetime trees have as many nodes as rows, or more, and merging takes longest.
    if why_not_merged(parameters) is not None or math.isinf(parameters.realised_lifetime):
        return None
    return (
        f"{counted(n_trees, 'tree')} for {n_threads:,} threads of workers: the others have nothing "
        f"to learn; with row_parts = {-(-n_threads // n_trees)} all would learn, each its part of "
        "the rows, without progressive metrics, and sooner where a tree ends with far fewer nodes "
        "than rows"
    )


def run_below(run: Run, plan: Plan) -> Run:
    """Return the run that learns the ranges of another one; make it if needed."""
    about = {key: value for key, value in run.run_json.items() if key not in _OWN}
    about |= {RANGES: run.run_json[ROW_PARTS], "progressive": False}
    store = open_store(f"{run.url.rstrip('/')}/{FOLDER}")
    try:
        about["plan"] = Run.open(store).run_json["plan"]  # the stream may have gone on since
    except CheckpointError:  # none yet, or what a process that was killed has left
        drop_run_below(run)
        store = open_store(store.url)  # its folder was empty
        about["plan"] = plan.digest
    below = Run.create(store, about, plan.to_parquet())
    below.stream.lead_to(plan.digest, plan.to_parquet(), [digest for _, digest in plan.earlier])
    below.stream.note_places(places_of(plan), plan.about_learned)
    return below


def has_run_below(run: Run) -> bool:
    """Return whether something is left of the run that learned the ranges of this one."""
    return ROW_PARTS in run.run_json and bool(run.store.list(FOLDER))


def drop_run_below(run: Run) -> None:
    """Delete the run that learned the ranges of a run; first what makes the folder a run."""
    run.store.delete(f"{FOLDER}/{RUN_NAME}")
    run.store.delete(run.store.list(FOLDER))
    run.store.delete_empty_folders(FOLDER)


@dataclass(frozen=True)
class MergeOrder:
    """Request to merge states of the same trees that learned neighbouring ranges."""

    source: str  # URL of the run that has their blobs
    out: str  # URL of the run that gets the merged state
    states: tuple[Blob, Blob]  # in the order of the ranges
    code: str  # digest of the coordinator's code


@dataclass(frozen=True)
class MergedState:
    """A state in the store."""

    blob: Blob
    summary: Summary  # of its trees
    worker: str  # address of the one that merged


def merge_states(order: MergeOrder, before: None) -> MergedState:
    """Task: merge states, and store the result.

    Raises
    ------
    ClusterError
        This worker has other code than the coordinator.
    CorruptError
        A blob is missing or damaged.
    StoreError
        A store failed.
    """
    if order.code != code_digest():
        raise ClusterError(
            f"a worker has other code ({code_digest()}) than the coordinator ({order.code}): its "
            "trees would differ; install the same dmondrian on all hosts"
        )
    source, out, forests = Run.open(order.source), Run.open(order.out), []
    for digest, n_bytes in order.states:
        name = f"blobs/{digest} of {order.source}"
        state = read_state(source.get_blob, digest, n_bytes, name=name)
        forests.append(forest_from_state(state.header, state.trees))
    merged = merge(forests)
    data = encode_state(merged, is_whole=True, is_last=True).data
    blob = out.put_blob(data), len(data)
    return MergedState(blob, Summary.of(merged), get_worker().address)


def merge_ranges(
    run: Run,
    below: Run,
    learned: Manifest,
    plan: Plan,
    client: Client,
    lease: Lease,
    hosts: set[str],
) -> Manifest:
    """Merge the trees of all ranges, and commit them as the run's checkpoint at their end.

    Parameters
    ----------
    run : Run
    below : Run
        That learned the ranges.
    learned : Manifest
        Its last checkpoint.
    plan : Plan
        The stream of the run.
    client : Client
    lease : Lease
        Of the run.
    hosts : set of str
        Gets the addresses of the workers that merged.

    Raises
    ------
    CorruptError
        A state of a range is missing or damaged.
    KeyboardInterrupt
        The run was asked to stop.
    """
    began, n_parts = time.monotonic(), counted(len(below.run_json[RANGES]), "part")
    _log.info("merging the trees of %s of the rows", n_parts, extra=NOTED)
    n_each = len(below.run_json["shards"])
    blobs = [(shard["digest"], shard["bytes"]) for _, shard in sorted(learned.shards.items())]
    parts = [blobs[first : first + n_each] for first in range(0, len(blobs), n_each)]
    merged: list[MergedState] = []
    while len(parts) > 1:
        left_over = parts[len(parts) // 2 * 2 :]
        out = run if len(parts) == 2 else below
        try:
            merged = _merge_pairs(below, out, parts, client, lease)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped while {n_parts} of the rows were merged; their trees are saved: run the "
                "same command again to merge them, from the first two on"
            ) from None
        hosts |= {state.worker for state in merged}
        merged_blobs = [state.blob for state in merged]
        parts = [
            merged_blobs[first : first + n_each] for first in range(0, len(merged_blobs), n_each)
        ]
        parts += left_over
    lease.check()
    saved = {shard: shard_entry(state.blob) for shard, state in enumerate(merged)}
    position = learned.position
    manifest = run.commit(
        position, saved, learned.metrics, None, position == plan.n_rows, plan.digest_at(position),
        total([state.summary for state in merged]),
    )  # fmt: skip
    _log.info("merged in %.1f seconds", time.monotonic() - began, extra=NOTED)
    return manifest


def _merge_pairs(
    below: Run, out: Run, parts: Sequence[Sequence[Blob]], client: Client, lease: Lease
) -> list[MergedState]:
    """Merge each two neighbouring ranges, shard by shard; leave out the last of an odd number."""
    done: list[MergedState] = []
    orders = [
        MergeOrder(below.url, out.url, states, code_digest())
        for pair in zip(parts[::2], parts[1::2], strict=False)
        for states in zip(*pair, strict=True)
    ]

    def take(state: MergedState) -> None:
        lease.check(now=False)
        if lease.is_asked_to_stop:
            raise KeyboardInterrupt
        done.append(state)

    chains = [TaskChain([(order, None)]) for order in orders]
    TaskPool(client, merge_states, chains, "merge").run(take)
    return done
