"""Spreading independent tasks over the workers, with bounded waits and bounded retries.

Relies on tasks that may run twice without harm, and on Dask for starting them elsewhere when a
worker is lost. Promises that only a few tasks are under way at a time, that results are handed on
in the order of the orders, and that an error made by dmondrian itself stops everything at once.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from distributed import Client, Future

from dmondrian.distributed.fleet import Fleet
from dmondrian.errors import ClusterError, DMondrianError, StoreError

TRIES = 4
"""Failures of one task before the job gives up."""

SILENCE = 1800.0
"""Seconds without any result after which the job gives up."""

_TICK = 0.5


def guarded(task: Callable[[Any], Any], order: Any) -> tuple[Any, DMondrianError | None]:
    """Task: run another one; returns an error meant for people instead of raising it.

    What a task raises is logged by the workers with its traceback.
    """
    try:
        return task(order), None
    except DMondrianError as error:
        return None, error


class Spread:
    """Runs `task(order)` for all orders; iterate over it for the results in order."""

    def __init__(
        self, client: Client, task: Callable[[Any], Any], orders: Sequence[Any], name: str
    ) -> None:
        self._client, self._task, self._orders, self._name = client, task, orders, name
        self._fleet = Fleet(client)
        self._ready: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._under_way: dict[str, tuple[Future, int]] = {}
        self._failures: dict[int, int] = {}

    def __iter__(self) -> Iterator[Any]:
        """Yield the results in the order of the orders."""
        results: dict[int, Any] = {}
        sent = yielded = 0
        heard = time.monotonic()
        try:
            while yielded < len(self._orders):
                self._fleet.look()
                # Twice the threads: while one task runs, the next is there.
                room = 2 * sum(self._fleet.threads.values()) + 1
                limit = min(len(self._orders), yielded + 4 * room)
                while sent < limit and len(self._under_way) < room:
                    self._send(sent)
                    sent += 1
                try:
                    index, result = self._take(self._ready.get(timeout=_TICK))
                except queue.Empty:
                    self._check_silence(heard)
                    continue
                heard = time.monotonic()
                if index is not None:
                    results[index] = result
                while yielded in results:
                    yield results.pop(yielded)
                    yielded += 1
        finally:
            for future, _ in self._under_way.values():
                future.release()
            self._under_way.clear()

    def _send(self, index: int) -> None:
        future = self._client.submit(
            guarded, self._task, self._orders[index], pure=False, retries=0, priority=-index
        )
        self._under_way[str(future.key)] = future, index
        future.add_done_callback(self._ready.put)

    def _take(self, future: Future) -> tuple[int | None, Any]:
        """Return a result and its number; send a failed order again."""
        _, index = self._under_way.pop(str(future.key))
        try:
            result, failure = future.result(timeout=SILENCE)
        except Exception as error:  # noqa: BLE001 - a lost worker, memory or network: try again
            result, failure = None, error
        finally:
            future.release()
        if failure is None:
            return index, result
        if isinstance(failure, DMondrianError) and not isinstance(failure, StoreError):
            raise failure
        self._retry(index, failure)
        return None, None

    def _retry(self, index: int, error: Exception) -> None:
        self._failures[index] = self._failures.get(index, 0) + 1
        if self._failures[index] >= TRIES:
            if isinstance(error, StoreError):
                raise error
            raise ClusterError(
                f"{self._name} {index} failed {TRIES} times, last with {type(error).__name__}: "
                f"{error}; what is written stands: run the same command again"
            ) from error
        self._send(index)

    def _check_silence(self, heard: float) -> None:
        if time.monotonic() - heard > SILENCE:
            raise ClusterError(
                f"no {self._name} was finished for {SILENCE:.0f} seconds; "
                f"{len(self._under_way)} are under way: look at the workers' logs"
            )
