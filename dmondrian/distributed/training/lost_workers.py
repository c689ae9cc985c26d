"""Reports of lost workers: which, when, how many are left, and what is restored.

The fleet (`cluster/workers.py`) and the coordinator notice them.

Relies on the fleet's looks and on the coordinator's tracks. Promises one event for each loss, at
the look that finds it, and one when all is restored; that a scheduler which cannot be reached is
not told as the loss of each of its workers; and that a failure which many shards have in common is
told once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dmondrian.distributed.cluster.events import Events, counted, listed
from dmondrian.distributed.cluster.workers import Fleet
from dmondrian.distributed.training.shard_state import Track
from dmondrian.distributed.worker.messages import DIRTY, LOST, Answer

_QUIET = 60.0  # seconds for which a failure is not told again
_SAFE = "what is saved is safe, and the same command goes on from there"
_IDLE = "it held no shard"


class Losses:
    """Compares what there was with what there is, and tells the difference.

    Parameters
    ----------
    fleet : Fleet
    tracks : sequence of Track
        Of all shards; none where tasks are bound to no worker.
    row : callable
        Returns the position at which a unit begins.
    events : Events
    idle : str
        What becomes of a lost worker that held no shard.
    """

    def __init__(
        self,
        fleet: Fleet,
        tracks: Sequence[Track],
        row: Callable[[int], int],
        events: Events,
        idle: str = _IDLE,
    ) -> None:
        self._fleet, self._tracks, self._row, self._events = fleet, tracks, row, events
        self._idle = idle
        self._known: set[str] = set()  # workers at the last look
        self._is_connected = True
        self._is_waiting = False  # for a first or another worker
        self._restoring: set[int] = set()  # shards that were lost
        self._failures: dict[tuple[str, ...], float] = {}  # failure: when it was told

    def tell(self, learned: int | None = None, saved: int | None = None) -> bool:
        """Compare the workers with those at the last look; call this before shards are placed anew.

        Parameters
        ----------
        learned, saved : int or None
            Rows that all shards have learned, and that the newest checkpoint holds, in training.

        Returns
        -------
        bool
            Whether the scheduler is back, or another is in its place, which knows no plugin.
        """
        fleet = self._fleet
        is_back = fleet.is_connected and not self._is_connected
        if fleet.is_connected != self._is_connected:
            self._is_connected = fleet.is_connected
            self._tell_connection(learned, saved)
        if fleet.is_connected:
            self._tell_workers(saved)
        else:
            self._known = set()
            self._restoring.update(t.shard for t in self._tracks if t.is_held)
        return is_back

    def _tell_workers(self, saved: int | None) -> None:
        fleet = self._fleet
        now = set(fleet.threads)
        for address in sorted(self._known - now - fleet.shunned):
            self._tell_lost(address, saved)
        for address in sorted(now - self._known) if self._known else ():
            self._events.add(
                "worker_joined", f"worker {address} joined: {counted(len(now), 'worker')} now",
                is_loss=False, worker=address, workers=len(now),
            )  # fmt: skip
        if now:
            self._is_waiting = False
        elif not self._known and not self._is_waiting:
            self._is_waiting = True
            self._events.add(
                "no_workers",
                f"{fleet.scheduler} has no workers: waiting for one, for up to "
                f"{fleet.seconds_left:.0f} seconds",
                seconds=fleet.seconds_left,
            )
        self._known = now

    def _tell_connection(self, learned: int | None, saved: int | None) -> None:
        fleet = self._fleet
        if fleet.is_connected:
            self._events.add(
                "scheduler_back", f"connected to the scheduler {fleet.scheduler} again",
                scheduler=fleet.scheduler,
            )  # fmt: skip
            return
        seconds = fleet.seconds_left
        rows = "" if saved is None else f"{learned:,} rows were learned, {saved:,} are saved: "
        self._events.add(
            "scheduler_lost",
            f"lost the connection to the scheduler {fleet.scheduler}: trying to connect again for "
            f"up to {seconds:.0f} seconds, else this ends with a ClusterError (exit code 5). "
            f"{rows}{_SAFE}",
            scheduler=fleet.scheduler,
            seconds=seconds,
            learned=learned,
            saved=saved,
        )

    def _tell_lost(self, address: str, saved: int | None) -> None:
        fleet, n = self._fleet, len(self._fleet.threads)
        held = [track for track in self._tracks if track.address == address]
        shards = [track.shard for track in held]
        self._restoring.update(shards)
        what = self._idle
        if shards:
            first = min(self._row(track.base) for track in held)
            what = f"it held {listed('shard', shards)}: restoring from row {first:,}"
        if n == 0:
            self._is_waiting = True
            what += (
                f"; waiting for a worker for up to {fleet.seconds_left:.0f} seconds, then this "
                f"ends with a ClusterError (exit code 5): {_SAFE}"
            )
        left = f"{counted(n, 'worker')} left" if n else "none is left"
        is_retired = fleet.was_retired(address)
        who = f"worker {address} retired" if is_retired else f"lost worker {address}"
        self._events.add(
            "worker_retired" if is_retired else "worker_lost", f"{who} ({left}); {what}",
            is_loss=not is_retired, worker=address, workers=n, shards=shards, saved=saved,
        )  # fmt: skip

    def silent(self, address: str, seconds: float) -> None:
        """Tell that a worker was given up, because it did not answer; its shards go elsewhere."""
        shards = [track.shard for track in self._tracks if track.address == address]
        n = len(self._fleet.threads)
        self._restoring.update(shards)
        self._known.discard(address)
        self._events.add(
            "worker_lost",
            f"gave up worker {address}, which did not answer for {seconds:.0f} seconds "
            f"({counted(n, 'worker')} left); restoring {listed('shard', shards)} on another",
            worker=address, workers=n, shards=shards,
        )  # fmt: skip

    def restored(self, track: Track) -> None:
        """Note that a shard is in memory again; tell it when that is so of all."""
        if track.shard in self._restoring:
            self._restoring.discard(track.shard)
            if not self._restoring:
                n = len(self._fleet.threads)
                self._events.add(
                    "restored", f"all shards are restored, on {counted(n, 'worker')}",
                    is_loss=False, workers=n,
                )  # fmt: skip

    def failed(self, track: Track, answer: Answer, unit: int | None, tries: int) -> None:
        """Tell that an order failed and is sent again."""
        if answer.error is None:
            return
        now = time.monotonic()
        if now - self._failures.get(answer.error, -_QUIET) < _QUIET:
            return
        self._failures[answer.error] = now
        position = self._row(track.base if unit is None else unit)
        what = "restoring it and " if answer.status in (DIRTY, LOST) else ""
        self._events.add(
            "shard_failed",
            f"shard {track.shard} failed at row {position:,} on worker {answer.worker} "
            f"({': '.join(answer.error)}): {what}trying again ({tries} failures in a row end this)",
            shard=track.shard, worker=answer.worker, row=position, error=": ".join(answer.error),
        )  # fmt: skip
