"""Prediction by groups of trees on different workers, for models that do not fit into one.

Floating-point addition is not associative, so predictions are summed in one order everywhere: tree
by tree, by number, as `Forest.predict_sums` does for a whole forest. If a forest is cut into
groups, a part of the rows goes to the worker with the first group, and its running sums go on to
the worker with the next, where each tree is added to them. So the bytes do not depend on the
groups, and a forest that fits into every worker is a pipeline of one stage. Summing each group
separately would need no pipeline, but would give other bytes than the estimator's `predict`, and
other ones for each number of groups.

The groups of a pass are on different workers; a pipeline of parts keeps them busy. If all workers
together cannot hold the forest there are several passes: a wave of parts goes through the groups of
one pass, the sums stay in the workers' memory, and the wave goes through the groups of the next.

Relies on `place_trees` for the memory plan, on `TaskPool` for waits and retries, and on Dask for
moving sums between workers and for computing lost ones again. Promises that the trees that
a worker holds stay within its planned capacity, wherever Dask runs a task; and that the caller's
process reads no tree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from distributed import Client, Future

from dmondrian.checkpoint import Blob, load_trees
from dmondrian.data import Encoded
from dmondrian.data.score_columns import Summing, summing
from dmondrian.distributed.cluster.client import connected_for, local_size
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.scoring.memory_plan import (
    TOGETHER,
    Group,
    Needs,
    TreePlacement,
    place_trees,
)
from dmondrian.distributed.scoring.model_info import Model
from dmondrian.distributed.scoring.task_pool import TaskChain, TaskPool
from dmondrian.distributed.scoring.tree_cache import TreeCache
from dmondrian.ensemble.sums.prediction_sums import Sums, joined
from dmondrian.errors import ClusterError
from dmondrian.uncertainty.density import DensityAnswers

_TICK = 0.1

_tree_cache = TreeCache()


class Part(Protocol):
    """Consecutive rows, and how their sums become a result."""

    @property
    def is_detailed(self) -> bool:
        """Whether squares and distances are summed."""

    @property
    def calibrates_std(self) -> bool:
        """Whether squares of the label are summed."""

    def found(self) -> Any:
        """Return the result if it exists already, else None."""

    def read(self) -> Iterator[Encoded]:
        """Read and encode the rows, block by block."""

    def finish(self, summed: Iterable[tuple[Encoded, Sums]]) -> Any:
        """Return the result from the sums over all trees, block by block."""


@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline: a group of trees for a part."""

    part: Part
    group: Group
    capacity: int | None  # bytes of trees that the worker may hold
    is_last: bool
    n_draws: int | None  # draws that normalise a density
    with_boxes: bool  # whether trees are read with the boxes of their nodes


@dataclass(frozen=True)
class Done:
    """A final result, which later stages return as it is."""

    result: Any


def run_stage(stage: Stage, before: list[Sums] | Done | None) -> list[Sums] | Done:
    """Task: add a group's trees to the running sums of a part; the last stage makes the result.

    Parameters
    ----------
    stage : Stage
    before : list of Sums, one per block; or Done; or None
        Result of the previous stage; None for the first.
    """
    part, group = stage.part, stage.group
    if isinstance(before, Done):
        return before
    if before is None and (result := part.found()) is not None:
        return Done(result)
    key = group.blobs, stage.n_draws, stage.with_boxes
    with _tree_cache.using(key, group.n_bytes, stage.capacity, lambda: _load(*key)) as forest:
        summed = _summed(forest, part, before)
        return Done(part.finish(summed)) if stage.is_last else [sums for _, sums in summed]


def _load(blobs: tuple[Blob, ...], n_draws: int | None, with_boxes: bool) -> Summing:
    """Return the predictor of stored trees: their forest, or the density of `n_draws`."""
    return summing(load_trees(blobs, with_boxes), n_draws)


def _summed(
    forest: Summing, part: Part, before: list[Sums] | None
) -> Iterator[tuple[Encoded, Sums]]:
    """Yield each block of the part with its sums."""
    detailed, labels, done = part.is_detailed, part.calibrates_std, 0
    for blocks, X in _batches(forest, part.read()):
        onto = None if before is None else joined(before[done : done + len(blocks)])
        sums = forest.predict_sums(X, spread=detailed, distance=detailed, onto=onto, labels=labels)
        start = 0
        for rows in blocks:
            yield rows, sums.of(slice(start, start + len(rows.X)))
            start += len(rows.X)
        done += len(blocks)


def _batches(
    forest: Summing, blocks: Iterator[Encoded]
) -> Iterator[tuple[list[Encoded], np.ndarray]]:
    """Yield consecutive blocks to predict together, and all their rows.

    Loading a tree into the cache of the processor takes as long for few rows as for many.
    """
    waiting: list[Encoded] = []
    n_values = 0
    for rows in blocks:
        forest.check_domain(rows.X, rows.names)
        if waiting and (n_values + rows.X.size > TOGETHER or isinstance(forest, DensityAnswers)):
            # Release the blocks' own arrays before the stacked ones are used.
            ready, waiting, n_values = _stacked(waiting), [], 0
            yield ready
        waiting.append(rows)
        n_values += rows.X.size
    if waiting:
        ready, waiting = _stacked(waiting), []
        yield ready


def _stacked(blocks: list[Encoded]) -> tuple[list[Encoded], np.ndarray]:
    """Return blocks with rows that are views of one array, and the array."""
    if len(blocks) == 1:
        return blocks, blocks[0].X
    X = np.concatenate([rows.X for rows in blocks])
    parts = np.split(X, np.cumsum([len(rows.X) for rows in blocks[:-1]]))
    return [
        replace(rows, X=rows_of_block) for rows, rows_of_block in zip(blocks, parts, strict=True)
    ], X


@contextmanager
def connected_pipeline(
    model: Model,
    needs: Needs,
    name: str,
    n_rows: int,
    client: Client | None,
    n_workers: int | None,
    threads: int | None,
    limit: int | None,
) -> Iterator[TreePipeline]:
    """Yield a pipeline on the caller's cluster, or on a local one that is closed on exit.

    Raises
    ------
    ClusterError
        The limit is too small for the model; raised before workers start.
    """
    if client is None and limit is not None:
        n_workers, threads = local_size(n_workers, threads)
        place_trees(model.trees, needs, {str(i): threads for i in range(n_workers)}, limit)
    with connected_for(n_rows, client, n_workers, threads, limit) as used:
        yield TreePipeline(used, model, needs, limit, name)


class TreePipeline:
    """Runs parts through all trees of a model.

    Parameters
    ----------
    client : Client
    model : Model
    needs : Needs
        Of the largest part.
    limit : int or None
        Bytes of memory of a worker, if less than its own limit.
    name : str
        What a part is, for messages.
    """

    def __init__(
        self, client: Client, model: Model, needs: Needs, limit: int | None, name: str
    ) -> None:
        self._client, self._model, self._needs = client, model, needs
        self._limit, self._name = limit, name
        self._workers = Workers(client)
        self.n_groups = 0  # groups of trees in the last placement; 1 is the whole model

    def run(self, parts: Sequence[Part], on_result: Callable[[Any], None]) -> None:
        """Call `on_result` with each result, in the order of the parts.

        Raises
        ------
        DMondrianError
            What a task raised, or failed with too often.
        ClusterError
            There were no workers, or no results, for too long; or a worker has too little memory.
        """
        left = list(parts)
        while left:
            placement = self._placement()
            wave = left if placement.wave is None else left[: placement.wave]
            self._run_wave(wave, placement, on_result)
            left = left[len(wave) :]

    def _run_wave(
        self, wave: Sequence[Part], placement: TreePlacement, on_result: Callable[[Any], None]
    ) -> None:
        sums: list[Future] = []
        for number, groups in enumerate(placement.passes):
            is_end = number + 1 == len(placement.passes)
            before, sums = sums, []
            stops = list(zip(groups, self._worker_of_each(groups), strict=True))
            chains = [
                TaskChain(
                    [
                        (
                            self._stage(part, group, placement, is_end and group is groups[-1]),
                            worker,
                        )
                        for group, worker in stops
                    ],
                    before[index] if before else None,
                    stays=not is_end,
                )
                for index, part in enumerate(wave)
            ]
            pool = TaskPool(self._client, run_stage, chains, self._name, placement.window)
            try:
                pool.run((lambda done: on_result(done.result)) if is_end else sums.append)
            except BaseException:
                _release(sums)
                raise
            finally:
                _release(before)

    def _stage(self, part: Part, group: Group, placement: TreePlacement, is_last: bool) -> Stage:
        model = self._model
        return Stage(part, group, placement.capacity, is_last, model.n_draws, model.with_boxes)

    def _placement(self) -> TreePlacement:
        """Return a placement for the current workers, after waiting for a first one."""
        self._workers.refresh(now=True)
        while not self._workers.threads:
            time.sleep(_TICK)
            self._workers.refresh()
        limits = [limit for limit in (*self._workers.memory.values(), self._limit or 0) if limit]
        limit = min(limits, default=None)
        placement = place_trees(self._model.trees, self._needs, self._workers.threads, limit)
        self.n_groups = placement.n_groups
        if self.n_groups > 1 and self._model.n_draws is not None:
            raise ClusterError(
                "a density is normalised by all of its trees at once, and they do not fit into a "
                "worker: give workers more memory, or train fewer trees or a shorter max_lifetime"
            )
        return placement

    def _worker_of_each(self, groups: Sequence[Group]) -> list[str | None]:
        """Return the worker of each group of a pass; None (any) if one holds the whole model."""
        if self.n_groups == 1:
            return [None]
        self._workers.refresh(now=True)
        there: list[str | None] = [*self._workers.threads] or [None]
        return [there[i % len(there)] for i in range(len(groups))]


def _release(futures: Iterable[Future]) -> None:
    """Release results at once, not when they are garbage-collected."""
    for future in futures:
        future.release()
