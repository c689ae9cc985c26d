"""How many steps a bundle has: enough to cost little, and few enough to be answered soon.

An order costs scheduler and coordinator some milliseconds, however many steps it has. But its
answer comes when all of them are done: later progress, a later sign that the worker is alive, and
more forecasts in one message.

Relies on the times of steps that workers return. Promises that no forest depends on it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from dmondrian.distributed.training.shard_state import Limits
from dmondrian.distributed.training.sum_tree import are_joined
from dmondrian.distributed.worker.messages import OK, Answer

ORDER_SECONDS = 1.0
"""Least time that a bundle is made to take, where there are steps for it."""

ORDERS_PER_SECOND = 30.0
"""Orders of all workers a second that take a small share of scheduler and coordinator."""

ORDER_BYTES = 64 << 20
"""Most forecasts that a bundle returns, unless one step has more."""

WINDOW_BYTES = 256 << 20
"""Most forecasts that a worker's shards keep until they are settled, unless a few units have more.

The coordinator keeps those of one shard: it adds them as they come. Where many workers answer as
one, so does each of those that join their replies, for the units of one order.
"""


class OrderSizes:
    """Steps of a bundle for each worker, by the times of its latest steps.

    Parameters
    ----------
    step_bytes : int
        Most forecasts that a step returns.
    """

    def __init__(self, step_bytes: int) -> None:
        self._step_bytes = max(1, step_bytes)
        self._most = max(1, ORDER_BYTES // self._step_bytes)
        self._seconds: dict[tuple[str, bool], float] = {}  # by worker and whether the step saves
        self._typical: dict[bool, float | None] = {}  # by whether it saves: median of the workers

    def note(self, answers: Iterable[Answer]) -> None:
        """Record the times of a bundle's steps.

        Some may have been learned before, and took no time: a time shrinks by half at most.
        """
        slowest: dict[tuple[str, bool], float] = {}
        for answer in answers:
            if answer.status == OK:
                key = answer.worker, answer.saved is not None
                slowest[key] = max(slowest.get(key, 0.0), answer.seconds)
        for key, seconds in slowest.items():
            self._seconds[key] = max(seconds, self._seconds.get(key, 0.0) / 2.0)
        self._typical.clear()

    def _of_step(self, address: str, is_saving: bool, n_workers: int) -> float | None:
        """Return the seconds of a step, None if they are not known.

        Where many workers answer as one, the same for all: they are to be sent the same units.
        """
        if not are_joined(n_workers):
            return self._seconds.get((address, is_saving))
        if is_saving not in self._typical:
            known = [seconds for (_, saves), seconds in self._seconds.items() if saves == is_saving]
            self._typical[is_saving] = statistics.median(known) if known else None
        return self._typical[is_saving]

    def steps(self, address: str, is_saving: bool, threads: int, n_workers: int) -> int:
        """Return how many steps a bundle for a worker has at most: without times one a thread.

        Until a worker has saved, its steps that save count as others: states are stored beside.
        """
        seconds = self._of_step(address, is_saving, n_workers)
        if seconds is None:
            seconds = self._of_step(address, False, n_workers)
        if seconds is None:
            return max(1, min(threads, self._most))
        wanted = _seconds_of_order(n_workers)
        return max(1, min(self._most, int(wanted * threads / max(seconds, 1e-9))))

    def window(
        self, address: str, n_shards: int, threads: int, n_workers: int, limits: Limits
    ) -> int:
        """Return how many units the shards of a worker may be ahead of the last settled one.

        Parameters
        ----------
        address : str
        n_shards, threads : int
            Of this worker; shards are at least those of the typical one.
        n_workers : int
        limits : Limits
            The least and the greatest window, and the number of orders that should fit in.
        """
        seconds = self._of_step(address, False, n_workers)
        if seconds is None:
            return limits.window
        in_order = _seconds_of_order(n_workers) * threads / max(seconds * n_shards, 1e-9)
        most = WINDOW_BYTES // (self._step_bytes * max(1, n_shards))
        units = min(limits.largest_window, most, int(limits.depth * in_order))
        return max(limits.window, units)


def _seconds_of_order(n_workers: int) -> float:
    return max(ORDER_SECONDS, n_workers / ORDERS_PER_SECOND)
