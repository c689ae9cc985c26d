"""Reports of lost workers: which, when, how many are left, and what is restored.

Lost workers are noticed by `Workers.refresh` (`cluster/workers.py`), hanging ones by
`Coordinator._check_silence` (`training/coordinator.py`).

Relies on the polls of `Workers` and on the coordinator's shard states. Promises one event for each
loss, at the poll that finds it, and one when all shards are restored; that an unreachable scheduler
is not reported as the loss of each of its workers; and that a failure common to many shards is
reported once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dmondrian.distributed.cluster.events import Events, counted, listed
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.worker.messages import DIRTY, LOST, Answer

_QUIET = 60.0  # seconds for which a failure is not reported again
_SAFE = "what is saved is safe, and the same command goes on from there"
_IDLE = "it held no shard"


class HeldShard(Protocol):
    """A shard as failures of its worker are reported."""

    @property
    def shard(self) -> int:
        """Number of the shard."""

    @property
    def address(self) -> str | None:
        """Address of the worker that holds the shard."""

    @property
    def saved_unit(self) -> int:
        """Unit after its saved state."""

    @property
    def is_held(self) -> bool:
        """Whether its worker holds it."""


class LostWorkers:
    """Compares the workers with those at the last poll, and reports differences as events.

    Parameters
    ----------
    workers : Workers
    states : sequence of HeldShard
        Of all shards; empty if tasks are bound to no worker.
    row : callable
        Returns the position at which a unit begins.
    events : Events
    idle : str
        Text about a lost worker that held no shard.
    """

    def __init__(
        self,
        workers: Workers,
        states: Sequence[HeldShard],
        row: Callable[[int], int],
        events: Events,
        idle: str = _IDLE,
    ) -> None:
        self._workers, self._states, self._row, self._events = workers, states, row, events
        self._idle = idle
        self._known: set[str] = set()  # workers at the last poll
        self._is_connected = True
        self._is_waiting = False  # for a first or a new worker
        self._restoring: set[int] = set()  # lost shards that are not restored yet
        self._failures: dict[
            tuple[str, ...], float
        ] = {}  # by failure: monotonic seconds of its last report

    def report(self, learned: int | None = None, saved: int | None = None) -> bool:
        """Report changes since the last poll; call this before lost shards are placed again.

        Parameters
        ----------
        learned, saved : int or None
            In training, the rows that all shards have learned and those of the newest checkpoint.

        Returns
        -------
        bool
            Whether the scheduler is back; it may be a new one, without plugins.
        """
        workers = self._workers
        is_back = workers.is_connected and not self._is_connected
        if workers.is_connected != self._is_connected:
            self._is_connected = workers.is_connected
            self._report_connection(learned, saved)
        if workers.is_connected:
            self._report_workers(saved)
        else:
            self._known = set()
            self._restoring.update(t.shard for t in self._states if t.is_held)
        return is_back

    def _report_workers(self, saved: int | None) -> None:
        workers = self._workers
        now = set(workers.threads)
        n_left = len(self._known & now)  # one that came at once is reported after
        for address in sorted(self._known - now - workers.unresponsive):
            self._report_lost(address, n_left, saved)
        for n, address in enumerate(sorted(now - self._known) if self._known else (), n_left + 1):
            self._events.add(
                "worker_joined", f"worker {address} joined: {counted(n, 'worker')} now",
                is_loss=False, worker=address, workers=n,
            )  # fmt: skip
        if now:
            self._is_waiting = False
        elif not self._known and not self._is_waiting:
            self._is_waiting = True
            self._events.add(
                "no_workers",
                f"{workers.scheduler} has no workers: waiting for one, for up to "
                f"{workers.seconds_left:.0f} seconds",
                seconds=workers.seconds_left,
            )
        self._known = now

    def _report_connection(self, learned: int | None, saved: int | None) -> None:
        workers = self._workers
        if workers.is_connected:
            self._events.add(
                "scheduler_back", f"connected to the scheduler {workers.scheduler} again",
                scheduler=workers.scheduler,
            )  # fmt: skip
            return
        seconds = workers.seconds_left
        rows = "" if saved is None else f"{learned:,} rows were learned, {saved:,} are saved: "
        self._events.add(
            "scheduler_lost",
            f"lost the connection to the scheduler {workers.scheduler}: trying to connect again "
            f"for up to {seconds:.0f} seconds, else this ends with a ClusterError (exit code 5). "
            f"{rows}{_SAFE}",
            scheduler=workers.scheduler,
            seconds=seconds,
            learned=learned,
            saved=saved,
        )

    def _report_lost(self, address: str, n_left: int, saved: int | None) -> None:
        workers = self._workers
        held = [state for state in self._states if state.address == address]
        shards = [state.shard for state in held]
        self._restoring.update(shards)
        what = self._idle
        if shards:
            first = min(self._row(state.saved_unit) for state in held)
            what = f"it held {listed('shard', shards)}: restoring from row {first:,}"
        if not workers.threads:
            self._is_waiting = True
            what += (
                f"; waiting for a worker for up to {workers.seconds_left:.0f} seconds, then this "
                f"ends with a ClusterError (exit code 5): {_SAFE}"
            )
        left = f"{counted(n_left, 'worker')} left" if n_left else "none is left"
        is_retired = workers.was_retired(address)
        who = f"worker {address} retired" if is_retired else f"lost worker {address}"
        self._events.add(
            "worker_retired" if is_retired else "worker_lost", f"{who} ({left}); {what}",
            is_loss=not is_retired, worker=address, workers=n_left, shards=shards, saved=saved,
        )  # fmt: skip

    def report_unresponsive(self, address: str, seconds: float) -> None:
        """Report that a worker was given up because it did not answer."""
        shards = [state.shard for state in self._states if state.address == address]
        n = len(self._workers.threads)
        self._restoring.update(shards)
        self._known.discard(address)
        self._events.add(
            "worker_lost",
            f"gave up worker {address}, which did not answer for {seconds:.0f} seconds "
            f"({counted(n, 'worker')} left); restoring {listed('shard', shards)} on another",
            worker=address, workers=n, shards=shards,
        )  # fmt: skip

    def restored(self, state: HeldShard) -> None:
        """Record that a shard is restored; report when all are."""
        if state.shard in self._restoring:
            self._restoring.discard(state.shard)
            if not self._restoring:
                n = len(self._workers.threads)
                self._events.add(
                    "restored", f"all shards are restored, on {counted(n, 'worker')}",
                    is_loss=False, workers=n,
                )  # fmt: skip

    def failed(self, state: HeldShard, answer: Answer, unit: int | None, tries: int) -> None:
        """Report that an order failed and is sent again."""
        if answer.error is None:
            return
        now = time.monotonic()
        if now - self._failures.get(answer.error, -_QUIET) < _QUIET:
            return
        self._failures[answer.error] = now
        position = self._row(state.saved_unit if unit is None else unit)
        what = "restoring it and " if answer.status in (DIRTY, LOST) else ""
        self._events.add(
            "shard_failed",
            f"shard {state.shard} failed at row {position:,} on worker {answer.worker} "
            f"({': '.join(answer.error)}): {what}trying again ({tries} failures in a row end this)",
            shard=state.shard, worker=answer.worker, row=position, error=": ".join(answer.error),
        )  # fmt: skip
