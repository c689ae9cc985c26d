"""Spreading independent tasks over the workers, with bounded waits and bounded retries.

Relies on tasks that may run twice without harm, and on Dask for starting them elsewhere when a
worker is lost. Promises that only a few tasks are under way at a time, that results are handed on
in the order of the orders, that an error made by dmondrian itself stops everything at once, and
that no task is left on the cluster, however it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client

from dmondrian.distributed.fleet import Fleet
from dmondrian.distributed.inbox import Arrival, Inbox
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
    """Runs `task(order)` for all orders."""

    def __init__(
        self, client: Client, task: Callable[[Any], Any], orders: Sequence[Any], name: str
    ) -> None:
        self._client, self._task, self._orders, self._name = client, task, orders, name
        self._fleet = Fleet(client)
        self._inbox = Inbox(client)  # tasks under way: number of the order
        self._failures: dict[int, int] = {}

    def run(self, hand: Callable[[Any], None]) -> None:
        """Hand over the results, one by one, in the order of the orders.

        Raises
        ------
        DMondrianError
            What a task raised, or failed with too often.
        ClusterError
            There were no workers, or no results, for too long.
        """
        try:
            self._run(hand)
        finally:
            self._inbox.close()

    def _run(self, hand: Callable[[Any], None]) -> None:
        results: dict[int, Any] = {}
        sent = handed = 0
        heard = time.monotonic()
        while handed < len(self._orders):
            self._fleet.look()
            # Twice the threads: while one task runs, the next is there.
            room = 2 * sum(self._fleet.threads.values()) + 1
            limit = min(len(self._orders), handed + 4 * room)
            while sent < limit and len(self._inbox) < room:
                self._send(sent)
                sent += 1
            arrival = self._inbox.take(_TICK)
            if arrival is None:
                self._check_silence(heard)
                continue
            heard = time.monotonic()
            self._judge(arrival, results)
            while handed in results:
                hand(results.pop(handed))
                handed += 1

    def _send(self, index: int) -> None:
        future = self._client.submit(
            guarded, self._task, self._orders[index], pure=False, retries=0, priority=-index
        )
        self._inbox.watch(future, index)

    def _judge(self, arrival: Arrival, results: dict[int, Any]) -> None:
        """Note a result; send a failed order again."""
        # An error of the task's own is a lost worker, memory or network: try again.
        result, failure = (None, arrival.error) if arrival.error else arrival.result
        if failure is None:
            results[arrival.about] = result
        elif isinstance(failure, DMondrianError) and not isinstance(failure, StoreError):
            raise failure
        else:
            self._retry(arrival.about, failure)

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

    def _check_silence(self, heard: float) -> None:
        if time.monotonic() - heard > SILENCE:
            raise ClusterError(
                f"no {self._name} was finished for {SILENCE:.0f} seconds; "
                f"{len(self._inbox)} are under way: look at the workers' logs"
            )
