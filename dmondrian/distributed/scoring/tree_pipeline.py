"""Sums over groups of trees on different workers, where one holds not all (`Relay`).

Floating-point addition is not associative, so sums are added in one order everywhere: tree by tree,
by number, as `Forest.predict_sums` does for a whole forest. Where a forest is cut into groups, a
part of the rows goes to the first group of trees, and its running sums go on to the worker that
holds the next; each tree is added to what is there. So the bytes do not depend on the groups, and
a forest that fits into every worker is simply a relay of one group. Adding up each group by itself
and then the groups would need no relay, but would give other bytes than the estimator's `predict`,
and other ones for each number of groups.

The groups of a pass are held by different workers; a pipeline of parts keeps them busy. Where all
workers together cannot hold the forest there are several passes: a wave of parts goes through the
groups of one pass, the sums stay in the workers' memory, and the wave goes through the next.

Relies on `lay_out` for what fits, on `Spread` for waits and retries, and on Dask for moving sums
from worker to worker and for making them again when they were lost. Promises that a worker holds
only trees for which room was planned, wherever Dask may run a task; and that the caller's process
reads no tree.
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
from dmondrian.distributed.cluster.client import connected_for, local_size
from dmondrian.distributed.cluster.workers import Fleet
from dmondrian.distributed.scoring.memory_plan import TOGETHER, Group, Layout, Needs, lay_out
from dmondrian.distributed.scoring.model_info import Model
from dmondrian.distributed.scoring.task_pool import Route, Spread
from dmondrian.distributed.scoring.tree_cache import Shelf
from dmondrian.ensemble.sums.prediction_sums import Sums, joined
from dmondrian.errors import ClusterError
from dmondrian.forest.forest import Forest
from dmondrian.uncertainty.density import DensityAnswers

_TICK = 0.1

_shelf = Shelf()


class Part(Protocol):
    """Consecutive rows, and what becomes of their sums."""

    @property
    def is_detailed(self) -> bool:
        """Whether squares and distances are summed too."""

    @property
    def tells_labels(self) -> bool:
        """Whether squares are summed, and are those of the label."""

    def found(self) -> Any:
        """Return the result if it is there already, else None."""

    def read(self) -> Iterator[Encoded]:
        """Read and encode the rows, block by block."""

    def finish(self, summed: Iterable[tuple[Encoded, Sums]]) -> Any:
        """Return the result from the sums over all trees, block by block."""


@dataclass(frozen=True)
class Leg:
    """One group of trees for one part."""

    part: Part
    group: Group
    room: int | None  # bytes of trees that the worker may hold
    is_last: bool
    n_draws: int | None  # that normalise a density


@dataclass(frozen=True)
class Done:
    """A result that the rest of the relay only hands on."""

    result: Any


def run_leg(leg: Leg, before: list[Sums] | Done | None) -> list[Sums] | Done:
    """Task: add a group's trees to the running sums of a part's blocks; the last makes the result.

    Parameters
    ----------
    leg : Leg
    before : list of Sums, one per block; or Done; or None
        What the leg before returned; None for the first one.
    """
    part, group = leg.part, leg.group
    if isinstance(before, Done):
        return before
    if before is None and (found := part.found()) is not None:
        return Done(found)
    key = group.blobs, leg.n_draws
    with _shelf.using(key, group.n_bytes, leg.room, lambda: _answering(*key)) as forest:
        summed = _summed(forest, part, before)
        return Done(part.finish(summed)) if leg.is_last else [sums for _, sums in summed]


def _answering(blobs: tuple[Blob, ...], n_draws: int | None) -> Forest | DensityAnswers:
    """Return what answers for stored trees: they themselves, or the density that they make."""
    forest = load_trees(blobs)
    return forest if n_draws is None else DensityAnswers(forest, n_draws)


def _summed(
    forest: Forest | DensityAnswers, part: Part, before: list[Sums] | None
) -> Iterator[tuple[Encoded, Sums]]:
    """Yield the part's blocks, each with its sums."""
    detailed, labels, done = part.is_detailed, part.tells_labels, 0
    for blocks, X in _together(forest, part.read()):
        onto = None if before is None else joined(before[done : done + len(blocks)])
        sums = forest.predict_sums(X, spread=detailed, distance=detailed, onto=onto, labels=labels)
        start = 0
        for rows in blocks:
            yield rows, sums.of(slice(start, start + len(rows.X)))
            start += len(rows.X)
        done += len(blocks)


def _together(
    forest: Forest | DensityAnswers, blocks: Iterator[Encoded]
) -> Iterator[tuple[list[Encoded], np.ndarray]]:
    """Yield consecutive blocks that are answered together, and all their rows.

    To bring a tree into the cache takes as long for few rows as for many.
    """
    waiting: list[Encoded] = []
    n_values = 0
    for rows in blocks:
        forest.check_domain(rows.X, rows.names)
        if waiting and (n_values + rows.X.size > TOGETHER or isinstance(forest, DensityAnswers)):
            # The blocks' own arrays are let go of: beside those that are stacked nothing waits.
            ready, waiting, n_values = _stacked(waiting), [], 0
            yield ready
        waiting.append(rows)
        n_values += rows.X.size
    if waiting:
        ready, waiting = _stacked(waiting), []
        yield ready


def _stacked(blocks: list[Encoded]) -> tuple[list[Encoded], np.ndarray]:
    """Return blocks whose rows are parts of one array, and the array."""
    if len(blocks) == 1:
        return blocks, blocks[0].X
    X = np.concatenate([rows.X for rows in blocks])
    parts = np.split(X, np.cumsum([len(rows.X) for rows in blocks[:-1]]))
    return [replace(rows, X=own) for rows, own in zip(blocks, parts, strict=True)], X


@contextmanager
def connected_relay(
    model: Model,
    needs: Needs,
    name: str,
    n_rows: int,
    client: Client | None,
    n_workers: int | None,
    threads: int | None,
    limit: int | None,
) -> Iterator[Relay]:
    """Yield a relay on the caller's cluster, or on a local one that ends with the block.

    Raises
    ------
    ClusterError
        The limit is too small for the model: said before workers start that it would kill.
    """
    if client is None and limit is not None:
        n_workers, threads = local_size(n_workers, threads)
        lay_out(model.trees, needs, {str(i): threads for i in range(n_workers)}, limit)
    with connected_for(n_rows, client, n_workers, threads, limit) as used:
        yield Relay(used, model, needs, limit, name)


class Relay:
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
        self._fleet = Fleet(client)
        self.n_groups = 0  # groups of trees in the last layout; 1 is the whole model

    def run(self, parts: Sequence[Part], hand: Callable[[Any], None]) -> None:
        """Hand over the results, one by one, in the order of the parts.

        Raises
        ------
        DMondrianError
            What a task raised, or failed with too often.
        ClusterError
            There were no workers, or no results, for too long; or a worker has too little memory.
        """
        left = list(parts)
        while left:
            layout = self._layout()
            wave = left if layout.wave is None else left[: layout.wave]
            self._run_wave(wave, layout, hand)
            left = left[len(wave) :]

    def _run_wave(self, wave: Sequence[Part], layout: Layout, hand: Callable[[Any], None]) -> None:
        sums: list[Future] = []
        for number, groups in enumerate(layout.passes):
            is_end = number + 1 == len(layout.passes)
            before, sums = sums, []
            stops = list(zip(groups, self._workers(groups), strict=True))
            routes = [
                Route(
                    [
                        (self._leg(part, group, layout, is_end and group is groups[-1]), worker)
                        for group, worker in stops
                    ],
                    before[index] if before else None,
                    stays=not is_end,
                )
                for index, part in enumerate(wave)
            ]
            spread = Spread(self._client, run_leg, routes, self._name, layout.window)
            try:
                spread.run((lambda done: hand(done.result)) if is_end else sums.append)
            except BaseException:
                _release(sums)
                raise
            finally:
                _release(before)

    def _leg(self, part: Part, group: Group, layout: Layout, is_last: bool) -> Leg:
        return Leg(part, group, layout.room, is_last, self._model.n_draws)

    def _layout(self) -> Layout:
        """Plan for the workers there are; waits for a first one."""
        self._fleet.look(now=True)
        while not self._fleet.threads:
            time.sleep(_TICK)
            self._fleet.look()
        limits = [limit for limit in (*self._fleet.memory.values(), self._limit or 0) if limit]
        limit = min(limits, default=None)
        layout = lay_out(self._model.trees, self._needs, self._fleet.threads, limit)
        self.n_groups = layout.n_groups
        if self.n_groups > 1 and self._model.n_draws is not None:
            raise ClusterError(
                "a density is normalised by all of its trees at once, and they do not fit into a "
                "worker: give workers more memory, or train fewer trees or a shorter max_lifetime"
            )
        return layout

    def _workers(self, groups: Sequence[Group]) -> list[str | None]:
        """Worker for each group of a pass; the whole model may be used anywhere."""
        if self.n_groups == 1:
            return [None]
        self._fleet.look(now=True)
        there: list[str | None] = [*self._fleet.threads] or [None]
        return [there[i % len(there)] for i in range(len(groups))]


def _release(futures: Iterable[Future]) -> None:
    """Let the scheduler forget results; the garbage collector might take its time."""
    for future in futures:
        future.release()
