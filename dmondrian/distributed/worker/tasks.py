"""Dask tasks that restore and train the shards held in a worker's memory.

Relies on a plugin that gives every worker one registry, on the run folder for plan, parameters
and blobs, and on forests whose state depends on the rows in order only. Promises that an order
may be repeated, delayed, reordered or sent to the wrong worker without harm: a shard keeps its
position, an order that does not fit it changes nothing and its answer has the reason as status, and
a shard whose update failed half way is not used again before it is restored. Promises the same of
each order of a bundle: they share a message, and nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from distributed import Worker, WorkerPlugin, get_worker, secede

from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.checkpoint.deltas import Base, EncodedState, read_state
from dmondrian.checkpoint.manifest import manifest_name
from dmondrian.checkpoint.row_ranges import RANGES, shard_trees
from dmondrian.checkpoint.run import Run
from dmondrian.checkpoint.summary import Summary
from dmondrian.data import Chunk, Plan, count_missing, place, read_chunk
from dmondrian.data.keyed_lags import lag_name
from dmondrian.data.lag_settings import lag_of_key
from dmondrian.data.single_flight_cache import SingleFlightCache
from dmondrian.distributed.cluster.code_version import code_digest
from dmondrian.distributed.cluster.free_memory import free_memory
from dmondrian.distributed.worker.add_forecasts import add_forecasts
from dmondrian.distributed.worker.chunk_cache import (
    ChunkCache,
    PreparedChunk,
    read_failure,
    seconds_for,
)
from dmondrian.distributed.worker.messages import (
    DAMAGED,
    DIRTY,
    FAILED,
    LOST,
    MOVED,
    OK,
    Answer,
    Bundle,
    Order,
    Reply,
    Restore,
    Step,
)
from dmondrian.distributed.worker.sampling_profiler import stop_profiler
from dmondrian.distributed.worker.shard import (
    SavedState,
    Shard,
    encoded_state,
    learn_chunk,
    learn_jointly,
    rows_between,
)
from dmondrian.distributed.worker.step_queue import StepQueue, Storing
from dmondrian.distributed.worker.work_units import chunks_of
from dmondrian.drift.drift_forest import empty_shard, forest_from_state
from dmondrian.drift.scaled_trees import Scales
from dmondrian.ensemble.rows.prepared_rows import Preparation
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ClusterError, CorruptError, OutageError
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.minibatch import add_rows

PLUGIN = "dmondrian-shards"

PATIENCE = 5.0
"""Seconds a step waits for the previous one to arrive, where that does not run yet."""

SET_BYTES = 2**26
"""Bytes of boosted sets that a worker keeps for its shards that come to the row of birth later."""

MOST_SCALES = 8
"""Feature scales of scaled trees that a worker keeps for these shards."""

LEASE = 1800.0
"""Seconds after which an abandoned run's shards are dropped when another run begins."""


class _DamagedBlobError(CorruptError):
    """A blob is missing, or has other bytes than were saved."""


class HeldRun:
    """A run as one worker holds it: its plan, cached chunks and shards."""

    def __init__(self, order: Restore) -> None:
        self.attempt = order.attempt
        self._floor = order.floor
        self.run = Run.open(order.run)
        run_json = self.run.run_json
        self.parameters = ForestParameters.from_json(run_json["parameters"])
        self.trees_of_shards = shard_trees(run_json)
        stream = self.run.stream
        digest = stream.digests()[-1]
        self.plan = place(Plan.from_parquet(stream.read(digest)), stream.places()[1])
        if self.plan.digest != digest:
            raise CorruptError(
                f"the plan in {order.run} is not the one that run.json or plans/ names"
            )
        self._preparation = Preparation(self.parameters)
        lag = lag_of_key(run_json.get("lags"), run_json.get("target"))
        # Column with the label of an earlier row of the same key.
        self._earlier = None if lag is None else lag_name(run_json["target"], lag)
        self.chunks = chunks_of(self.plan, self.parameters.learns_jointly)
        self._starts = [chunk.start for chunk in self.chunks]
        self.shards: dict[int, Shard] = {}
        self.queue = StepQueue(self.shards, partial(_advance, self))
        self.sets = SingleFlightCache[BoostedSet](SET_BYTES, lambda fitted: fitted.n_bytes)
        self.scales = SingleFlightCache[Scales](MOST_SCALES)
        self.touched = time.monotonic()
        readers = min(len(run_json.get(RANGES, [None])), os.cpu_count() or 1)
        n_chunks = len(self.chunks)
        self.cache = ChunkCache(self._read, n_chunks, seconds=self._seconds, readers=readers)

    def _read(self, index: int) -> PreparedChunk:
        read = read_chunk(self.plan, self.chunks[index], self._floor, earlier=self._earlier)
        read.counts.update(count_missing(self.plan.schema, read.X))
        return PreparedChunk(read, self._preparation)

    def _seconds(self, index: int) -> float:
        """Return the longest wait for a chunk; its row groups may need many requests."""
        return seconds_for(self.chunks[index].last - self.chunks[index].first)

    def chunk_with(self, position: int) -> int:
        """Return the number of the chunk with the row at a position, at most the last one."""
        return bisect_right(self._starts, position) - 1

    def read_at(self, position: int) -> tuple[Chunk, PreparedChunk]:
        """Return the chunk with the row at a position, and its prepared rows.

        Raises
        ------
        Exception
            What reading raised.
        """
        number = self.chunk_with(position)
        try:
            return self.chunks[number], self.cache.get(number, self.floor())
        except Exception as error:
            uri = self.plan.blocks[self.chunks[number].first].uri
            raise read_failure(error, uri) from error

    def put(self, number: int, shard: Shard) -> None:
        """Hold a shard, in place of an earlier state of it."""
        with self.queue.changed:
            before = self.shards.get(number)
            if before is not None:
                before.is_dirty = True
            self.shards[number] = shard
            self.queue.look_again()

    def drop(self, shards: Sequence[int]) -> None:
        """Drop shards that are no longer held here."""
        with self.queue.changed:
            for number in shards:
                shard = self.shards.pop(number, None)
                if shard is not None:
                    shard.is_dirty = True
            self.queue.look_again()

    def halt(self, generation: int) -> dict[int, int]:
        """Begin no more steps of earlier generations; return the final position of each shard.

        That is the end of its running step, or else its position.
        """
        with self.queue.changed:  # steps begin under this lock: one is running or not begun
            self.queue.generation = max(self.queue.generation, generation)
            self.queue.look_again()
            return {
                number: shard.end if shard.is_running else shard.position
                for number, shard in self.shards.items()
            }

    def floor(self) -> int:
        """Return the number of the first chunk that a shard of this worker still needs."""
        positions = [shard.position for shard in list(self.shards.values())]
        return self.chunk_with(min(positions)) if positions else 0


class Registry:
    """The runs that a worker takes part in."""

    def __init__(self) -> None:
        self._runs: dict[str, HeldRun] = {}
        self._ended: deque[str] = deque(maxlen=100)  # ended attempts: their late orders are refused
        self._lock = threading.Lock()

    def find(self, order: Order | Bundle[Order]) -> HeldRun | None:
        """Return the run of an order, or None if this worker does not hold it."""
        held = self.peek(order.run, order.attempt)
        if held is not None:
            held.touched = time.monotonic()
        return held

    def peek(self, run: str, attempt: str) -> HeldRun | None:
        """Return a run as held by an attempt, or None."""
        held = self._runs.get(run)
        return held if held is not None and held.attempt == attempt else None

    def open(self, order: Restore) -> HeldRun:
        """Return the run of an order, opened if needed; drop the shards of another attempt.

        Raises
        ------
        ClusterError
            The attempt has ended.
        """
        with self._lock:
            held = self.find(order)
            if order.attempt in self._ended:
                raise ClusterError(f"attempt {order.attempt} at {order.run} has ended")
            if held is None:
                self._expire()
                self._drop(order.run)
                held = self._runs[order.run] = HeldRun(order)
            return held

    def forget(self, run: str, attempt: str, shards: Sequence[int] | None = None) -> None:
        """Drop some shards or the whole run, unless another attempt holds it."""
        with self._lock:
            held = self._runs.get(run)
            is_held = held is not None and held.attempt == attempt
            if shards is None:
                self._ended.append(attempt)
                if is_held:
                    self._drop(run)
            elif held is not None and is_held:
                held.drop(shards)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            for run in list(self._runs):
                self._drop(run)

    def _drop(self, run: str) -> None:
        held = self._runs.pop(run, None)
        if held is not None:
            held.drop(list(held.shards))
            held.cache.close()

    def _expire(self) -> None:
        oldest = time.monotonic() - LEASE
        for run in [name for name, held in self._runs.items() if held.touched < oldest]:
            self._drop(run)


class ShardHolder(WorkerPlugin):
    """Worker plugin with the registry; Dask also sets it up on workers that join later."""

    name = PLUGIN
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Start with an empty registry."""
        self.registry = Registry()
        stop_profiler(worker)

    def teardown(self, worker: Worker) -> None:
        """Free the trees of a worker that leaves."""
        self.registry.clear()


def _this_worker(bundle: Bundle[Order]) -> tuple[Registry | None, int, str]:
    """Return this worker's registry, threads and address.

    The registry is None on a worker that the bundle is not addressed to.
    """
    worker = get_worker()
    holder = worker.plugins.get(PLUGIN)
    registry = None
    if worker.address == bundle.address and isinstance(holder, ShardHolder):
        registry = holder.registry
    return registry, worker.state.nthreads, worker.address


def restore(bundle: Bundle[Restore]) -> Reply:
    """Task: restore shards, each at a position, from its blob or as empty trees."""
    registry, n_threads, address = _this_worker(bundle)
    if registry is None:
        return _same_answer(MOVED, bundle, address)
    with ThreadPoolExecutor(n_threads, thread_name_prefix="dmondrian-restore") as pool:
        return Reply(list(pool.map(partial(_restore, registry), bundle.orders)))


def step(bundle: Bundle[Step]) -> Reply:
    """Task: train shards on the rows of orders; see the promises of this module."""
    registry, n_threads, address = _this_worker(bundle)
    if registry is None:
        return _same_answer(MOVED, bundle, address)
    held = registry.find(bundle)
    if held is None:
        return _same_answer(LOST, bundle, address)
    if bundle.adds:
        # The task gives its thread back, as tasks that add other forecasts are not to wait for
        # these steps. The queue runs no more steps than the worker has threads all the same.
        secede()
        answers = held.queue.run(bundle.orders, n_threads, PATIENCE)
        return add_forecasts(bundle.orders, answers, least=1)
    # While states are stored, the thread of this task is free for the next one.
    answers = held.queue.run(bundle.orders, n_threads, PATIENCE, secede)
    return add_forecasts(bundle.orders, answers)


def _same_answer(status: str, bundle: Bundle[Order], address: str) -> Reply:
    """Return the same answer to all orders."""
    return Reply([Answer(status, order.shard, address) for order in bundle.orders])


def _restore(registry: Registry, order: Restore) -> Answer:
    """Restore a shard at a position, from its blob or as empty trees."""
    started = time.perf_counter()
    try:
        _check_code(order)
        held = registry.open(order)
        if not order.floor <= order.position <= held.plan.n_rows:
            raise CorruptError(f"the plan of {order.run} has no position {order.position}")
        forest, base = _restored_forest(held, order)
        shard = Shard(forest, order.position, sum(map(len, held.trees_of_shards)), base=base)
        next_sums = _sum_next_batch(held, shard, order.next_stop, 1)
    except _DamagedBlobError as error:
        return _fault(DAMAGED, order, error)
    except Exception as error:  # noqa: BLE001 - errors of stores and blobs are sent to the coordinator by name
        return _fault(FAILED, order, error)
    held.put(order.shard, shard)
    seconds = time.perf_counter() - started
    return Answer(
        OK, order.shard, order.address, order.position, seconds=seconds, nodes=forest.n_nodes,
        next_sums=next_sums,
    )  # fmt: skip


def _sum_next_batch(held: HeldRun, shard: Shard, stop: int, n_threads: int) -> np.ndarray | None:
    """Add the rows up to `stop` to the trees, if any; return their summed predictions."""
    if stop <= shard.position:
        return None
    chunk, prepared = held.read_at(shard.position)
    X, _, w = rows_between(chunk, prepared, shard.position, stop)
    shard.next_batch = add_rows(shard.forest, X, w, n_threads)
    return shard.next_batch.sums


def _check_code(order: Restore) -> None:
    if order.code != code_digest():
        raise ClusterError(
            f"worker {order.address} has other code ({code_digest()}) than the coordinator "
            f"({order.code}): its trees would differ; install the same dmondrian on all hosts"
        )


def _restored_forest(held: HeldRun, order: Restore) -> tuple[Forest, Base | None]:
    """Return the trees of an order, and what their next state may be a difference from.

    Shards learn the same rows: what the first one fits or searches of them, the others get.
    """
    restored: tuple[Any, Base | None] = _read_forest(held, order)
    forest = restored[0]
    if forest.parameters.mixes_boosted_sets:
        forest.boosted.get_or_fit = held.sets.get
    if forest.parameters.mixes_scaled_trees:
        forest.scaled.get_or_search = held.scales.get
    return restored


def _read_forest(held: HeldRun, order: Restore) -> tuple[Forest, Base | None]:
    """Return trees without rows, or those of a blob, checked, and their base."""
    numbers = held.trees_of_shards[order.shard]
    if order.digest is None:
        return empty_shard(held.parameters, numbers), None

    def read(digest: str, n_bytes: int | None) -> bytes:
        try:
            return held.run.get_blob(digest, n_bytes)
        except CorruptError as error:
            raise _DamagedBlobError(str(error)) from error

    name = f"blobs/{order.digest} of {order.run}"
    state = read_state(read, order.digest, name=name)
    forest = forest_from_state(state.header, state.trees)
    if forest.parameters != held.parameters or list(forest.tree_numbers) != list(numbers):
        raise CorruptError(
            f"blob {order.digest} of {order.run} holds trees {list(forest.tree_numbers)} or "
            f"parameters of another run; shard {order.shard} expected trees {list(numbers)}"
        )
    _check_position(held, order, forest)
    return forest, state.base(forest)


def _check_position(held: HeldRun, order: Restore, forest: Forest) -> None:
    """Refuse trees that have learned rows after the position (checked for unweighted rows)."""
    if not held.plan.schema.has_weights and forest.total_weight > order.position:
        name = manifest_name(order.position)
        raise CorruptError(
            f"shard {order.shard} of {order.run} has learned {forest.total_weight:,.0f} rows, but "
            f"its checkpoint is at row {order.position:,} and would learn rows twice: an earlier "
            "version may have written it when the run was stopped while a worker was lost. Delete "
            f"{name} and run the same command again: it goes on from the checkpoint before"
        )


def _advance(held: HeldRun, shard: Shard, order: Step) -> Answer | Storing:
    """Train a shard that is at an order's start, or past it."""
    shard.forget_before(order.settled)
    while shard.position < order.stop:
        try:
            chunk, prepared = held.read_at(shard.position)
        except Exception as error:  # noqa: BLE001 - nothing was learned: the coordinator decides by the error's name
            return _fault(FAILED, order, error, shard.position)
        try:
            _learn(chunk, shard, prepared, order)
        except Exception as error:  # noqa: BLE001 - some trees may have learned the rows and others not
            shard.is_dirty = True
            return _fault(DIRTY, order, error, shard.position)
    if order.next_stop > order.stop == shard.position and shard.next_batch is None:
        try:
            sums = _sum_next_batch(held, shard, order.next_stop, order.n_threads)
        except OutageError as error:  # of a read: no row was added to a tree
            return _fault(FAILED, order, error, shard.position)
        except Exception as error:  # noqa: BLE001 - as above
            shard.is_dirty = True
            return _fault(DIRTY, order, error, shard.position)
        if order.start in shard.answers:  # otherwise all sums are known
            shard.answers[order.start].next_sums = sums
    return _finish(held, shard, order)


def _learn(chunk: Chunk, shard: Shard, prepared: PreparedChunk, order: Step) -> None:
    is_joint = shard.forest.parameters.learns_jointly
    (learn_jointly if is_joint else learn_chunk)(chunk, shard, prepared, order)


def _finish(held: HeldRun, shard: Shard, order: Step) -> Answer | Storing:
    """Return the answer for learned rows, or how to store the state if that is requested."""
    answer = Answer(OK, order.shard, order.address, shard.position, nodes=shard.forest.n_nodes)
    starts: list[int] = []  # first rows of the chunks whose answers are asked for
    if order.start >= order.settled:
        chunks = range(held.chunk_with(order.start), held.chunk_with(order.stop - 1) + 1)
        starts = [max(order.start, held.chunks[number].start) for number in chunks]
    answers = [shard.answers[start] for start in starts if start in shard.answers]
    is_whole = len(answers) == len(starts)
    if order.forecasts:
        is_whole = is_whole and all(chunk.has_forecasts for chunk in answers)
    if order.samples:
        is_whole = is_whole and all(chunk.sampled is not None for chunk in answers)
    if order.next_stop:
        is_whole = is_whole and all(chunk.next_sums is not None for chunk in answers)
    if order.with_labels:
        is_whole = is_whole and all(chunk.y is not None for chunk in answers)
    if not is_whole:
        answer.status = LOST
        return answer
    answer.chunks = answers
    return _save(held, shard, order, answer) if order.save else answer


def _save(held: HeldRun, shard: Shard, order: Step, answer: Answer) -> Answer | Storing:
    """Encode a shard's state, which the next rows would change; it is stored while they do."""
    began = time.perf_counter()
    known = shard.saved.get(order.stop)
    if known is not None:
        return _with_saved(answer, known, began)
    state = shard.unsaved.get(order.stop)
    if state is None and (shard.position != order.stop or shard.next_batch is not None):
        answer.status = LOST
        return answer
    try:
        if state is None:
            state = encoded_state(shard, order)
    except Exception as error:  # noqa: BLE001 - the shard is intact
        return _fault(FAILED, order, error, shard.position)
    # Kept until it is stored: the next step may run before this one is repeated.
    shard.unsaved[order.stop] = state
    n_bytes = len(state[0].data)
    return Storing(partial(_store, held, shard, order, answer, state, began), n_bytes)


def _store(
    held: HeldRun,
    shard: Shard,
    order: Step,
    answer: Answer,
    state: tuple[EncodedState, Summary],
    began: float,
) -> Answer:
    """Store an encoded state; return the answer with its digest."""
    encoded, summary = state
    try:
        digest = held.run.put_blob(encoded.data)
    except Exception as error:  # noqa: BLE001 - the shard is intact; the store may recover
        return _fault(FAILED, order, error, order.stop)
    base = None if encoded.base is None else encoded.base.blob
    saved = SavedState((digest, len(encoded.data)), base, summary)
    shard.saved[order.stop] = saved
    if order.stop > shard.stored_position:  # states may be stored out of order
        shard.stored_position, shard.base = order.stop, encoded.base_after(digest)
    shard.unsaved.pop(order.stop, None)
    return _with_saved(answer, saved, began)


def _with_saved(answer: Answer, saved: SavedState, began: float) -> Answer:
    """Return an answer with the state that was saved, and the time this took."""
    answer.saved, answer.base, answer.summary = saved
    answer.saving = time.perf_counter() - began
    return answer


def _fault(status: str, order: Order, error: BaseException, position: int = -1) -> Answer:
    about = type(error).__name__, str(error)
    return Answer(status, order.shard, order.address, position, error=about)


async def halt(
    run: str, attempt: str, generation: int, dask_worker: Worker
) -> dict[int, int] | None:
    """Stop a worker from beginning the steps sent to it; see `HeldRun.halt`.

    Returns
    -------
    dict or None
        Final position of each shard; None if the worker holds none of the run.
    """
    holder = dask_worker.plugins.get(PLUGIN)
    held = holder.registry.peek(run, attempt) if isinstance(holder, ShardHolder) else None
    return None if held is None else held.halt(generation)


async def forget(run: str, attempt: str, shards: Sequence[int] | None, dask_worker: Worker) -> None:
    """Drop a run from this worker when an attempt ends, or shards that moved to another worker.

    A coroutine, because Dask runs only those without waiting for the result.
    """
    holder = dask_worker.plugins.get(PLUGIN)
    if isinstance(holder, ShardHolder):
        holder.registry.forget(run, attempt, shards)
        if shards is None:
            free_memory()  # queue and cache refer to the run that they are of, with all its trees
