"""The coordinator: moves all shards of a run along the stream, through losses and checkpoints.

Relies on orders that can be repeated without harm (:mod:`dmondrian.distributed.worker.tasks`), on a
ledger that settles answers in stream order, and on a run folder whose commit is atomic. Promises
that a loss restores only the lost shards, from their newest saved blob; that a failing shard is
tried a bounded number of times; that no wait is unbounded; and that nothing it decides (placement,
window, moments of checkpoints, order of answers) changes a byte of any shard.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from distributed import Client

from dmondrian import errors
from dmondrian.checkpoint import Lease, Manifest, Run
from dmondrian.checkpoint.summary import Summary, total
from dmondrian.data import Plan
from dmondrian.distributed.cluster.code_version import code_digest
from dmondrian.distributed.cluster.events import Events
from dmondrian.distributed.cluster.interrupt import Interrupts
from dmondrian.distributed.cluster.progress import Progress, ProgressReporter, Speed
from dmondrian.distributed.cluster.results import Inbox
from dmondrian.distributed.cluster.workers import Fleet
from dmondrian.distributed.training.checkpoint_schedule import Every, Pace
from dmondrian.distributed.training.ledger import Ledger, Saved
from dmondrian.distributed.training.lost_workers import Losses
from dmondrian.distributed.training.shard_state import Limits, Track, answer_of, load_of
from dmondrian.distributed.worker.messages import (
    DIRTY,
    GONE,
    LOST,
    MOVED,
    OK,
    Answer,
    Restore,
    Step,
)
from dmondrian.distributed.worker.tasks import forget, hold, restore, step
from dmondrian.distributed.worker.work_units import Unit
from dmondrian.ensemble.settings.stored_parameters import learns_jointly
from dmondrian.errors import ClusterError

_TICK = 0.25  # seconds between two looks at the clock while nothing is answered
_HOLD_SECONDS = 5.0  # that workers may take to say where their shards come to rest
_FATAL = (errors.DataError, errors.CheckpointError, errors.ParameterError, ClusterError)


class Coordinator:
    """One attempt at a run.

    Parameters
    ----------
    client : Client
    run : Run
    ledger : Ledger
        With the totals of the checkpoint it starts from.
    every : Every
    plan : Plan
        The stream.
    manifest : Manifest or None
        The checkpoint it starts from.
    limits : Limits
    reporter : ProgressReporter
    lease : Lease
        Held while it drives; asked before each commit.
    events : Events
        Told of losses, and of what is done about them.
    equip : callable
        Gives all workers, also those to come, what orders need; called where the scheduler is new.
    """

    def __init__(
        self,
        client: Client,
        run: Run,
        ledger: Ledger,
        every: Every,
        plan: Plan,
        manifest: Manifest | None,
        limits: Limits,
        reporter: ProgressReporter,
        lease: Lease,
        events: Events,
        equip: Callable[[], None],
    ) -> None:
        self.attempt = uuid.uuid4().hex
        self.manifest = manifest
        self.recoveries = 0  # shards restored after a loss
        self.replayed = 0  # rows learned again after losses, summed over shards
        self.checkpoints = 0  # committed by this attempt
        self.pace = Pace(every)  # of checkpoints
        self.hosts: set[str] = set()  # workers that held a shard
        self._client, self._run, self._ledger = client, run, ledger
        self._plan, self._limits = plan, limits
        self._n_rows = plan.n_rows
        self._reporter, self._lease = reporter, lease
        self._units = ledger.units
        saved = manifest.shards if manifest is not None else {}
        self._tracks = [
            Track(shard, ledger.settled, *_blob(saved.get(shard)))
            for shard in range(len(run.run_json["shards"]))
        ]
        self._fleet = Fleet(client)
        self._losses = Losses(self._fleet, self._tracks, self._row, events)
        self._equip = equip
        self._inbox = Inbox(client)  # orders under way: track, unit or None for a restore
        self._heard: dict[str, float] = {}  # worker: monotonic seconds of its last answer
        self._marks = {u.index for u in self._units if every.is_due(u)}
        self._marks.add(len(self._units) - 1)
        self._high = ledger.settled  # unit that follows the furthest one ever sent
        self._stop: int | None = None  # unit after which to stop; -1 before the first
        self._generation = 0  # of steps: workers that hold begin none of an earlier one
        self._speed = Speed(self.settled)
        self._interrupts: Interrupts | None = None  # while it drives

    def drive(self, interrupts: Interrupts) -> bool:
        """Run to the end of the stream; False where it stopped at a checkpoint, as was asked.

        Raises
        ------
        ClusterError
            A shard failed too often, or there were no workers for too long.
        StoreError
            What it failed at was a store.
        DMondrianError
            Data or checkpoints cannot be used; the message says which.
        """
        self._interrupts = interrupts
        try:
            while self._ledger.settled < len(self._units):
                self._watch(interrupts)
                self._send()
                self._receive()
                if self._settle() or (self._stop is not None and not self._fleet.threads):
                    # Without a worker nothing more can be saved: the newest checkpoint stands.
                    return self._ledger.settled == len(self._units)
            return True
        finally:
            self._release()
            self._reporter.report(self.progress, now=True)

    @property
    def settled(self) -> int:
        """Position that all shards have reached."""
        return self._row(self._ledger.settled)

    @property
    def durable(self) -> int:
        """Position of the newest checkpoint."""
        return self.manifest.position if self.manifest is not None else 0

    def progress(self) -> Progress:
        """Where the run stands."""
        # Not the rows that all shards have learned: these move once in a unit, of up to 65,536.
        learned = sum(self._row(max(track.best + 1, track.done)) for track in self._tracks)
        rows = learned // len(self._tracks)
        speed = self._speed.after(rows)
        left = (self._n_rows - rows) / speed if speed > 0 else None
        totals = self._ledger.progressive.totals() if self._ledger.progressive else {}
        workers = len(self._fleet.threads)
        return Progress(
            rows,
            self._n_rows,
            speed,
            self.durable,
            left,
            workers,
            self.recoveries,
            totals,
            is_stopping=self._stop is not None,
            stopping_at=None if self._stop is None else self._row(self._stop + 1),
            stops_at_once=self._interrupts is not None and self._interrupts.is_requested,
        )

    def _row(self, unit: int) -> int:
        return self._units[unit].start if unit < len(self._units) else self._n_rows

    # -- watching ---------------------------------------------------------------------------

    def _watch(self, interrupts: Interrupts) -> None:
        """Look at clock, workers, lease and signals; place the shards that have no worker."""
        self._lease.check(now=False)
        is_asked = interrupts.is_requested or self._lease.is_asked_to_stop
        now = time.monotonic()
        if self._fleet.look():
            self._check_silence(now)
            self._drop_lost()
        for track in self._tracks:
            if track.address is None:
                self._place(track)
        if self._stop is None and is_asked:
            self._stop = self._choose_stop()
        elif self._stop is None and self.pace.is_due:
            self._marks.add(self._unsent())
            self.pace.ask()
        self._reporter.report(self.progress)

    def _unsent(self) -> int:
        """Return the first unit that no shard was sent yet: all can still save at its end."""
        return min(self._high, len(self._units) - 1)

    def _choose_stop(self) -> int:
        """Return the unit to stop after: the first at whose end all shards can be saved.

        No shard can go back. So workers begin no more steps, and the shard that comes furthest with
        the one that it runs decides; or a checkpoint before that, which is under way. A shard that
        lost its worker has come as far as it is saved, however little a worker holds of it.
        """
        stop = self._unsent()
        if not learns_jointly(self._run.run_json["parameters"]):  # else trees are ahead: see Step
            self._fleet.look(now=True)  # who is gone need not be waited for
            self._drop_lost()
            self._generation += 1
            asked = list(self._fleet.threads)
            rests = self._fleet.ask(
                hold, self._run.url, self.attempt, self._generation, seconds=_HOLD_SECONDS
            )
            for track in self._tracks:
                if track.is_held:  # what was begun is asked for again, and is not learned twice
                    self._recall(track)
                    track.sent = track.done
            if len(rests) == len(asked):
                held = [(rests.get(t.address or "") or {}).get(t.shard, 0) for t in self._tracks]
                saved = [self._row(track.base) for track in self._tracks]
                stop = self._unit_that_ends_behind(max(held + saved))
        under_way = [mark for mark in self._marks if self._ledger.settled <= mark <= stop]
        stop = min(under_way, default=stop)
        self._marks.add(stop)
        return stop

    def _check_silence(self, now: float) -> None:
        """Give up workers that were asked and have long said nothing."""
        asked = {track.address for track in self._tracks if track.pending}
        for address in self._fleet.threads.copy():
            if address not in asked:
                self._heard[address] = now
            elif now - self._heard.setdefault(address, now) > self._limits.silence:
                self._fleet.shunned.add(address)
                self._fleet.threads.pop(address, None)
                self._losses.silent(address, self._limits.silence)

    def _drop_lost(self) -> None:
        if self._losses.tell(self.settled, self.durable):
            self._equip()
        for track in self._tracks:
            if track.address is not None and track.address not in self._fleet.threads:
                self._lose(track)
                track.losses += not self._fleet.was_retired(track.address)
                if track.losses > self._limits.losses:
                    raise ClusterError(
                        f"shard {track.shard} lost its worker {track.losses} times without getting "
                        f"past position {self._row(track.best + 1)}, last {track.address}; if "
                        f"memory is short, give workers more or use more of them, then run the "
                        f"same command again"
                    )
                track.address = None

    def _lose(self, track: Track) -> None:
        """Whatever this worker held of the shard is gone or doubtful: restore it."""
        if track.is_held:
            self.recoveries += 1
            self.replayed += self._row(track.done) - self._row(track.base)
        self._recall(track)
        track.is_held = False
        track.done = track.sent = track.base

    def _recall(self, track: Track) -> None:
        """Take back what is under way; a step that runs all the same does no harm."""
        for key in track.pending:
            self._inbox.drop(key)
        track.pending.clear()
        track.early.clear()

    def _place(self, track: Track) -> None:
        track.address = self._fleet.place(load_of(self._tracks))
        if track.address is not None:
            self._heard[track.address] = time.monotonic()

    def _rebalance(self) -> None:
        """Right after a commit, let workers that joined take over shards."""
        self._fleet.look(now=True)  # one that has just joined waits for no second commit
        self._drop_lost()
        moved: dict[str, list[int]] = {}  # worker: shards that it need not hold any more
        for track in sorted(self._tracks, key=lambda t: -t.shard):
            if track.address is None or not track.is_held:
                continue
            target = self._fleet.better(track.address, load_of(self._tracks))
            if target is not None:
                recoveries, replayed = self.recoveries, self.replayed
                self._lose(track)
                self.recoveries, self.replayed = recoveries, replayed  # a move is no loss
                moved.setdefault(track.address, []).append(track.shard)
                track.address = target
                self._heard[target] = time.monotonic()
        for address, shards in moved.items():
            self._fleet.tell([address], forget, self._run.url, self.attempt, shards)

    def _unit_that_ends_behind(self, position: int) -> int:
        """Return the unit at whose end a position is reached; the last settled one at least."""
        settled = self._ledger.settled
        if position <= self._row(settled):
            return settled - 1
        return next(unit.index for unit in self._units if unit.stop >= position)

    # -- orders -----------------------------------------------------------------------------

    def _send(self) -> None:
        """Send restores, and steps in stream order, as far as window and depth allow."""
        ready = [t for t in self._tracks if t.address and t.retry_at <= time.monotonic()]
        for track in ready:
            if not track.is_held and not track.pending:
                self._restore(track)
        last = len(self._units) - 1 if self._stop is None else self._stop
        limit = min(self._ledger.settled + self._limits.window, last + 1)
        load = load_of(self._tracks)
        for unit in range(min((t.sent for t in ready), default=limit), limit):
            for track in ready:
                is_free = track.is_held and len(track.pending) < self._limits.depth
                if is_free and track.sent == unit and self._ledger.can_learn(unit):
                    self._step(track, self._units[unit], load)
        if self._stop is not None and self._ledger.settled == self._stop + 1:
            for track in ready:
                if track.is_held and not track.pending and track.base < track.done:
                    self._step(track, self._units[self._stop], load)

    def _restore(self, track: Track) -> None:
        assert track.address is not None
        position = self._row(track.base)
        order = Restore(
            self._run.url,
            self.attempt,
            track.shard,
            track.address,
            position,
            track.digest,
            code_digest(),
            self._ledger.ahead(track.base),
        )
        self._submit(track, None, restore, order, track.base)

    def _step(self, track: Track, unit: Unit, load: dict[str, int]) -> None:
        assert track.address is not None
        is_new = not self._ledger.has(track.shard, unit.index)
        settled = self._ledger.settled
        threads = self._fleet.threads.get(track.address, 1) // max(1, load[track.address])
        order = Step(
            self._run.url,
            self.attempt,
            track.shard,
            track.address,
            start=unit.start,
            stop=unit.stop,
            forecasts=is_new and self._ledger.needs_forecasts,
            samples=is_new and self._ledger.calibration is not None,
            speaks=is_new and track.shard == self._tracks[0].shard,
            save=(is_new or unit.index == self._stop) and unit.index in self._marks,
            n_threads=max(1, threads),
            settled=self._units[settled].start,
            mean=self._ledger.mean(unit.index),
            ahead=self._ledger.ahead(unit.index + 1),
            generation=self._generation,
        )
        self._submit(track, unit.index, step, order, unit.index)
        track.sent = max(track.sent, unit.index + 1)
        self._high = max(self._high, track.sent)

    def _submit(self, track: Track, unit: int | None, task: Any, order: Any, rank: int) -> None:
        future = self._client.submit(
            task,
            order,
            key=f"dmondrian-{task.__name__}-{track.shard}-{uuid.uuid4().hex}",
            # Pinned for good: an idle worker would steal it. Where its worker is gone it waits,
            # until the look at the workers takes it back.
            workers=[order.address],
            allow_other_workers=False,
            pure=False,
            retries=0,
            priority=-rank,
        )
        track.pending.add(self._inbox.watch(future, (track, unit)))

    # -- answers ----------------------------------------------------------------------------

    def _receive(self) -> None:
        """Wait a moment for an answer, then take all that are there."""
        timeout = _TICK
        while (arrival := self._inbox.take(timeout)) is not None:
            timeout = 0.0
            track, unit = arrival.about
            track.pending.discard(arrival.key)
            self._judge(track, unit, answer_of(arrival, track.shard))

    def _judge(self, track: Track, unit: int | None, answer: Answer) -> None:
        if answer.worker == track.address:
            self._heard[answer.worker] = time.monotonic()
        if answer.status == OK:
            if unit is None:
                track.is_held = True
                self._losses.restored(track)
                self.hosts.add(answer.worker)
                self._ledger.hear(track.shard, track.base, answer.ahead)
            else:
                self._advance(track, unit, answer)
        elif answer.status in (MOVED, GONE):
            self._fleet.look(now=True)
            self._drop_lost()
            if track.address is not None:
                self._fail(track, answer, unit)
        else:
            self._fail(track, answer, unit)

    def _advance(self, track: Track, unit: int, answer: Answer) -> None:
        """Take answers in order: a saved state must not hide that an earlier one is lost."""
        if unit < track.done:  # a step that was sent again, to save
            self._note_saved(track, unit, answer)
            return
        track.early[unit] = answer
        while (found := track.early.pop(track.done, None)) is not None:
            unit = track.done
            self._ledger.take(track.shard, unit, found)
            for block in found.blocks:
                self._ledger.hear(track.shard, unit + 1, block.ahead)
            track.done = unit + 1
            if unit > track.best:
                track.best, track.failures, track.losses = unit, 0, 0
            self._note_saved(track, unit, found)

    def _note_saved(self, track: Track, unit: int, answer: Answer) -> None:
        if answer.saved is not None:
            track.base, (track.digest, track.n_bytes) = unit + 1, answer.saved
            track.summary = answer.summary
            self.pace.take(answer.worker, answer.saving)

    def _fail(self, track: Track, answer: Answer, unit: int | None) -> None:
        """Send the order again, restoring the shard first where that is needed."""
        if answer.error is not None:
            kind = getattr(errors, answer.error[0], None)
            if isinstance(kind, type) and issubclass(kind, _FATAL):
                raise kind(answer.error[1])
        if track.fail(answer, self._limits):
            raise track.verdict(answer, self._row(track.base if unit is None else unit))
        self._losses.failed(track, answer, unit, self._limits.tries)
        if answer.status in (LOST, DIRTY):
            self._lose(track)
        else:
            self._recall(track)
            track.sent = track.done

    def _settle(self) -> bool:
        """Score and commit what is complete; True where the run stops, if that was asked for."""
        while self._ledger.settled < len(self._units) and self._ledger.is_ready():
            unit, saved = self._ledger.settle()
            if len(saved) == len(self._tracks):
                self._commit(unit.stop, saved, self._ledger.summary)
                if self._stop is not None:
                    return True
                if unit.index < len(self._units) - 1:
                    self._rebalance()
        return self._stop is not None and self._ledger.settled > self._stop and self._close()

    def _close(self) -> bool:
        """Commit where all shards have come to rest; False as long as one is not saved there.

        States of different positions are never committed as one: the newest checkpoint stands.
        """
        settled, bases = self._ledger.settled, {track.base for track in self._tracks}
        if min(bases) < settled:
            return False
        position = self._row(settled)
        if bases == {settled} and position > self.durable:
            saved = {t.shard: {"digest": t.digest, "bytes": t.n_bytes} for t in self._tracks}
            self._commit(position, saved, total([t.summary for t in self._tracks]))
        return True

    def _commit(self, position: int, saved: Saved, summary: Summary | None) -> None:
        self._lease.check()
        self.manifest = self._run.commit(
            position,
            saved,
            self._ledger.metrics(),
            self.manifest,
            self._ledger.settled == len(self._units),
            self._plan.digest_at(position),
            summary,
        )
        self.checkpoints += 1
        self.pace.commit()

    def _release(self) -> None:
        """Leave nothing behind on the cluster."""
        self._inbox.close()
        self._fleet.close()
        self._fleet.leave_word(forget, self._run.url, self.attempt, None)
        self._fleet.tell(list(self._fleet.threads), forget, self._run.url, self.attempt, None)


def _blob(saved: Mapping[str, Any] | None) -> tuple[str | None, int]:
    """Return digest and size of a shard's saved state; none where nothing is saved."""
    return (None, 0) if saved is None else (saved["digest"], int(saved["bytes"]))
