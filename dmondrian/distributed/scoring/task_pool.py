"""Spreading independent routes of tasks over the workers, with bounded waits and bounded retries.

Relies on tasks that may run twice without harm, and on Dask for starting them elsewhere when a
worker is lost, those that made what was lost with it included. Promises that only a few routes are
under way at a time, that results are handed on in the order of the routes, that an error made by
dmondrian itself stops everything at once, and that no task is left on the cluster, however it
ends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future

from dmondrian.distributed.cluster.events import Events
from dmondrian.distributed.cluster.results import Arrival, Inbox
from dmondrian.distributed.cluster.workers import Fleet
from dmondrian.distributed.training.lost_workers import Losses
from dmondrian.errors import ClusterError, DMondrianError, StoreError

TRIES = 4
"""Failures of one route before the job gives up."""

SILENCE = 1800.0
"""Seconds without any result after which the job gives up."""

_TICK = 0.5


@dataclass(frozen=True)
class Route:
    """Tasks in a row, each given what the one before it returned."""

    steps: Sequence[tuple[Any, str | None]]  # order of each task, and the worker it belongs to
    before: Future | None = None  # what the first task is given
    stays: bool = False  # the result stays with its worker: its future is handed over


def guarded(
    task: Callable[[Any, Any], Any], order: Any, before: tuple[Any, Any] | None
) -> tuple[Any, DMondrianError | None]:
    """Task: run another one; returns an error meant for people instead of raising it.

    What a task raises is logged by the workers with its traceback. After an error the rest of the
    route only hands it on.
    """
    given, failure = before or (None, None)
    if failure is not None:
        return None, failure
    try:
        return task(order, given), None
    except DMondrianError as error:
        return None, error


def receipt(before: tuple[Any, Any]) -> tuple[None, DMondrianError | None]:
    """Task: say that a result is there, and leave it where it is."""
    return None, before[1]


class Spread:
    """Runs `task(order, what came before)` along all routes.

    Parameters
    ----------
    client : Client
    task : callable
    routes : sequence of Route
    name : str
        What a route makes, for messages.
    window : int or None
        Routes under way at a time; by default as many as keep all threads busy.
    """

    def __init__(
        self,
        client: Client,
        task: Callable[[Any, Any], Any],
        routes: Sequence[Route],
        name: str,
        window: int | None = None,
    ) -> None:
        self._client, self._task, self._routes, self._name = client, task, routes, name
        self._word = name.replace(" ", "-")
        self._window = window
        self._fleet = Fleet(client)
        what = f"what it did of any {name} is done again on another"
        self._losses = Losses(self._fleet, (), lambda unit: 0, Events(), what)
        self._inbox = Inbox(client)  # routes under way: their numbers
        self._failures: dict[int, int] = {}
        self._staying: dict[int, Future] = {}

    def run(self, hand: Callable[[Any], None]) -> None:
        """Hand over the results, one by one, in the order of the routes.

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
            for future in self._staying.values():
                future.release()

    def _run(self, hand: Callable[[Any], None]) -> None:
        results: dict[int, Any] = {}
        sent = handed = 0
        heard = time.monotonic()
        while handed < len(self._routes):
            if self._fleet.look():
                self._losses.tell()
            # Twice the threads: while one task runs, the next is there.
            room = self._window or 2 * sum(self._fleet.threads.values()) + 1
            limit = min(len(self._routes), handed + 4 * room)
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
        # Results that came out of order are handed over without a look in between: a worker that
        # was lost meanwhile is reported all the same.
        self._fleet.look(now=True)
        self._losses.tell()

    def _send(self, index: int) -> None:
        route = self._routes[index]
        last = route.before
        for order, worker in route.steps:
            # A task that is bound to a lost worker alone would wait for ever.
            place = {"workers": [worker], "allow_other_workers": True} if worker else {}
            last = self._submit(index, self._word, guarded, self._task, order, last, **place)
        assert last is not None  # a route has steps
        if route.stays:
            self._staying[index] = last
            last = self._submit(index, "receipt", receipt, last)
        self._inbox.watch(last, index)

    def _submit(
        self, index: int, word: str, task: Callable[..., Any], *args: Any, **place: Any
    ) -> Future:
        key = f"dmondrian-{word}-{index}-{uuid.uuid4().hex}"  # the dashboard shows the words
        return self._client.submit(
            task, *args, key=key, pure=False, retries=0, priority=-index, **place
        )

    def _judge(self, arrival: Arrival, results: dict[int, Any]) -> None:
        """Note a result; send a failed route again."""
        # An error of the task's own is a lost worker, memory or network: try again.
        result, failure = (None, arrival.error) if arrival.error else arrival.result
        if failure is None:
            results[arrival.about] = self._staying.pop(arrival.about, result)
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
