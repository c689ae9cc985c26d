"""Pool that runs independent chains of tasks on the workers, with bounded waits and retries.

Relies on tasks that may run twice without harm, and on Dask for rerunning them on another worker
when theirs is lost, together with the tasks whose results were lost. Promises that only a few
chains are pending at a time, that results are returned in the order of the chains, that an error of
dmondrian stops everything at once, and that no task is left on the cluster, however it ends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future

from dmondrian.distributed.cluster.events import Events
from dmondrian.distributed.cluster.results import FinishedTask, ResultQueue
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.worker.lost_workers import LostWorkers
from dmondrian.errors import ClusterError, DMondrianError, StoreError

TRIES = 4
"""Failures of one chain before the job gives up."""

SILENCE = 1800.0
"""Seconds without any result after which the job gives up."""

_TICK = 0.5


@dataclass(frozen=True)
class TaskChain:
    """Tasks that run one after the other, each given the result of the previous one."""

    steps: Sequence[tuple[Any, str | None]]  # argument of each task, and its worker if it has one
    before: Future | None = None  # passed to the first task as previous result
    stays: bool = False  # keep the result at its worker, and return its future


def run_guarded(
    task: Callable[[Any, Any], Any], order: Any, before: tuple[Any, Any] | None
) -> tuple[Any, DMondrianError | None]:
    """Task: run a function; return (result, None), or (None, error) for errors of dmondrian.

    Workers log what a task raises with its traceback, which these errors do not need. After an
    error the remaining tasks of the chain return it.
    """
    result_before, failure = before or (None, None)
    if failure is not None:
        return None, failure
    try:
        return task(order, result_before), None
    except DMondrianError as error:
        return None, error


def confirm(before: tuple[Any, Any]) -> tuple[None, DMondrianError | None]:
    """Task: confirm that a result exists, without moving it."""
    return None, before[1]


class TaskPool:
    """Runs `task(order, previous result)` along all chains.

    Parameters
    ----------
    client : Client
    task : callable
    chains : sequence of TaskChain
    name : str
        What a chain makes, for messages.
    window : int or None
        Chains pending at a time; by default as many as keep all threads busy.
    """

    def __init__(
        self,
        client: Client,
        task: Callable[[Any, Any], Any],
        chains: Sequence[TaskChain],
        name: str,
        window: int | None = None,
    ) -> None:
        self._client, self._task, self._chains, self._name = client, task, chains, name
        self._key_prefix = name.replace(" ", "-")
        self._window = window
        self._workers = Workers(client)
        what = f"what it did of any {name} is done again on another"
        self._lost_workers = LostWorkers(self._workers, (), lambda unit: 0, Events(), what)
        self._results = ResultQueue(client)  # pending chains, by number
        self._failures: dict[int, int] = {}
        self._staying: dict[int, Future] = {}

    def run(self, on_result: Callable[[Any], None]) -> None:
        """Call `on_result` with each result, in the order of the chains.

        Raises
        ------
        DMondrianError
            What a task raised, or failed with too often.
        ClusterError
            There were no workers, or no results, for too long.
        """
        try:
            self._run(on_result)
        finally:
            self._results.close()
            for future in self._staying.values():
                future.release()

    def _run(self, on_result: Callable[[Any], None]) -> None:
        waiting: dict[int, Any] = {}  # results that arrived before an earlier chain's
        sent = delivered = 0
        last_result = time.monotonic()
        while delivered < len(self._chains):
            if self._workers.refresh():
                self._lost_workers.report()
            # Twice the threads: while a task runs, the next is queued at the worker.
            window = self._window or 2 * sum(self._workers.threads.values()) + 1
            limit = min(len(self._chains), delivered + 4 * window)
            while sent < limit and len(self._results) < window:
                self._send(sent)
                sent += 1
            finished = self._results.take(_TICK)
            if finished is None:
                self._check_silence(last_result)
                continue
            last_result = time.monotonic()
            self._process(finished, waiting)
            while delivered in waiting:
                on_result(waiting.pop(delivered))
                delivered += 1
        # Results that arrived out of order are returned without a poll in between: report workers
        # that were lost meanwhile.
        self._workers.refresh(now=True)
        self._lost_workers.report()

    def _send(self, index: int) -> None:
        chain = self._chains[index]
        last = chain.before
        for order, worker in chain.steps:
            # A task pinned to a lost worker would wait forever.
            place = {"workers": [worker], "allow_other_workers": True} if worker else {}
            last = self._submit(
                index, self._key_prefix, run_guarded, self._task, order, last, **place
            )
        assert last is not None  # a chain has steps
        if chain.stays:
            self._staying[index] = last
            last = self._submit(index, "confirm", confirm, last)
        self._results.watch(last, index)

    def _submit(
        self, index: int, prefix: str, task: Callable[..., Any], *args: Any, **place: Any
    ) -> Future:
        key = f"dmondrian-{prefix}-{index}-{uuid.uuid4().hex}"  # the dashboard shows the prefix
        return self._client.submit(
            task, *args, key=key, pure=False, retries=0, priority=-index, **place
        )

    def _process(self, finished: FinishedTask, waiting: dict[int, Any]) -> None:
        """Record a result; resubmit a failed chain."""
        # Errors raised by a task come from a lost worker, memory or network: try again.
        result, failure = (None, finished.error) if finished.error else finished.result
        if failure is None:
            waiting[finished.context] = self._staying.pop(finished.context, result)
        elif isinstance(failure, DMondrianError) and not isinstance(failure, StoreError):
            raise failure
        else:
            self._retry(finished.context, failure)

    def _retry(self, index: int, error: BaseException) -> None:
        self._failures[index] = self._failures.get(index, 0) + 1
        if self._failures[index] >= TRIES:
            if isinstance(error, StoreError):
                raise error
            raise ClusterError(
                f"{self._name} {index} failed {TRIES} times, last with {type(error).__name__}: "
                f"{error}; what is written stands: run the same command again"
            ) from error
        self._send(index)

    def _check_silence(self, last_result: float) -> None:
        if time.monotonic() - last_result > SILENCE:
            raise ClusterError(
                f"no {self._name} was finished for {SILENCE:.0f} seconds; "
                f"{len(self._results)} are under way: look at the workers' logs"
            )
