"""The coordinator: trains all shards of a run on the stream, restores lost ones, and checkpoints.

Relies on orders that can be repeated without harm (:mod:`dmondrian.distributed.worker.tasks`), on a
ledger that settles answers in stream order, and on a run folder whose commit is atomic. Promises
that after the loss of a worker only its shards are restored, from their newest saved blobs, and
that workers whose replies were to be joined with its own answer again; that a failing shard is
retried a bounded number of times; that no wait is unbounded; and that none of its decisions
(placement, window, times of checkpoints, order of answers, which replies are joined) changes a byte
of any shard.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distributed import Client

from dmondrian import errors
from dmondrian.checkpoint import Lease, Manifest, Run
from dmondrian.checkpoint.deltas import MOST
from dmondrian.checkpoint.manifest import base_of, blobs_of
from dmondrian.checkpoint.pruning import prune_while_training
from dmondrian.checkpoint.row_ranges import RowRanges
from dmondrian.checkpoint.summary import Summary, total
from dmondrian.data import Plan
from dmondrian.distributed.cluster.code_version import code_digest
from dmondrian.distributed.cluster.events import Events
from dmondrian.distributed.cluster.interrupt import Interrupts
from dmondrian.distributed.cluster.open_files import check_open_files
from dmondrian.distributed.cluster.outage import outlast
from dmondrian.distributed.cluster.progress import Progress, ProgressReporter, Speed
from dmondrian.distributed.cluster.results import ResultQueue
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.training.checkpoint_schedule import (
    CheckpointInterval,
    CheckpointSchedule,
)
from dmondrian.distributed.training.ledger import Ledger, ShardEntries
from dmondrian.distributed.training.order_sizes import OrderSizes
from dmondrian.distributed.training.shard_places import ShardPlaces
from dmondrian.distributed.training.shard_state import (
    AwaitedReply,
    Limits,
    SentBundle,
    ShardState,
)
from dmondrian.distributed.training.sum_tree import Outgoing, are_joined, in_groups, submit
from dmondrian.distributed.training.validation import Validation
from dmondrian.distributed.worker.lost_workers import LostWorkers
from dmondrian.distributed.worker.messages import (
    DAMAGED,
    DIRTY,
    GAP,
    GONE,
    LOST,
    MOVED,
    OK,
    Answer,
    Bundle,
    Order,
    Reply,
    Restore,
    Step,
)
from dmondrian.distributed.worker.tasks import forget, halt, restore, step
from dmondrian.distributed.worker.work_units import Unit
from dmondrian.ensemble.settings.stored_parameters import learns_jointly
from dmondrian.errors import ClusterError, CorruptError, StoreError

_log = logging.getLogger("dmondrian")

OBSERVED = 1024
"""Rows after which a run in work is looked at, at the end of the next unit: those of a window."""

RESTORING = 1.0
"""Most seconds between two restored shards for which the steps of others wait."""

_TICK = 0.25  # longest wait for an answer, in seconds
_HALT_SECONDS = 5.0  # for workers to return the final positions of their shards
_FATAL = (errors.DataError, errors.CheckpointError, errors.ParameterError, ClusterError)


class DamagedCheckpointError(CorruptError):
    """A worker found a blob of the newest checkpoint damaged; the one before may be whole."""


class Coordinator:
    """One attempt at a run.

    Parameters
    ----------
    client : Client
    run : Run
    ledger : Ledger
        With the metrics of the checkpoint it starts from.
    interval : CheckpointInterval
    plan : Plan
        The stream.
    manifest : Manifest or None
        The checkpoint it starts from.
    limits : Limits
    reporter : ProgressReporter
    lease : Lease
        Held while it drives; checked before each commit.
    events : Events
        Receives lost workers, failures and recoveries.
    register_plugin : callable
        Registers `ShardHolder` with the workers; called again after the scheduler was replaced.
    keep : int or None
        Newest checkpoints that are kept, beside the best one; None for all.
    validation : Validation or None
        Evaluates each checkpoint on held-out data.
    observe : callable or None
        Called with a position and the progress there, each time `OBSERVED` rows were settled.
    ends_whole : bool
        Whether the states at the end of the stream are whole, and no differences.
    """

    def __init__(
        self,
        client: Client,
        run: Run,
        ledger: Ledger,
        interval: CheckpointInterval,
        plan: Plan,
        manifest: Manifest | None,
        limits: Limits,
        reporter: ProgressReporter,
        lease: Lease,
        events: Events,
        register_plugin: Callable[[], None],
        keep: int | None = None,
        validation: Validation | None = None,
        observe: Callable[[int, Progress], None] | None = None,
        ends_whole: bool = True,
    ) -> None:
        self.attempt = uuid.uuid4().hex
        self.manifest = manifest
        self.recoveries = 0  # shards restored after a loss
        self.replayed = 0  # rows learned again after losses, summed over shards
        self.checkpoints = 0  # committed by this attempt
        self.schedule = CheckpointSchedule(interval)  # of checkpoints
        self.hosts: set[str] = set()  # workers that held a shard
        self._client, self._run, self._ledger = client, run, ledger
        self._plan, self._limits = plan, limits
        self._ranges = RowRanges.of(run.run_json, plan.n_rows)
        self._n_rows = self._ranges.n_rows
        self._reporter, self._lease = reporter, lease
        self._units = ledger.units
        saved = manifest.shards if manifest is not None else {}
        self._n_each = len(run.run_json["shards"])  # shards of each range of rows
        self._states = [
            ShardState(shard, ledger.settled, *_blob(saved.get(shard)))
            for shard in range(self._n_each * self._ranges.n_parts)
        ]
        self._is_joint = learns_jointly(run.run_json["parameters"])
        self._places = ShardPlaces(self._states)
        self._to_check: set[str] = set()  # workers that may be due orders; see `_send`
        self._n_threads = 0  # of all workers
        self._n_restoring = len(self._states)  # shards that no worker holds yet
        self._last_restored = -float("inf")  # monotonic seconds
        self._sent: dict[str, dict[str, SentBundle]] = {}  # pending orders, by worker and key
        self._workers = Workers(client)
        self._lost_workers = LostWorkers(self._workers, self._states, self._row, events)
        self._register_plugin, self._keep, self._ends_whole = register_plugin, keep, ends_whole
        self._events, self._validation = events, validation
        self._observe = observe
        self._results = ResultQueue(client)  # contexts: `AwaitedReply`
        self._outgoing: list[Outgoing] = []  # bundles submitted, which `_send_bundles` sends
        self._last_answer: dict[str, float] = {}  # by worker: monotonic seconds
        self._checkpoint_units = {u.index for u in self._units if interval.is_due(u)}
        self._checkpoint_units.add(len(self._units) - 1)
        # By unit of a checkpoint: whether all shards save whole states there.
        self._saves_whole: dict[int, bool] = {}
        self._floor = self._row(ledger.settled)  # position that no shard goes back behind
        self._next_unsent = ledger.settled  # unit after the furthest one ever sent
        self._stop: int | None = None  # unit after which to stop; -1 before the first
        self._generation = 0  # of steps: after `halt` workers begin none of an earlier one
        most_rows = max((unit.rows for unit in self._units), default=0)
        self._sizes = OrderSizes(8 * ledger.forecast_width * most_rows)
        self._speed = Speed(self.settled)
        self._interrupts: Interrupts | None = None  # set while it drives

    def drive(self, interrupts: Interrupts) -> bool:
        """Run to the end of the stream; return False if it stopped at a checkpoint on request.

        Raises
        ------
        ClusterError
            A shard failed too often, or there were no workers for too long.
        StoreError
            A store failed too often.
        DamagedCheckpointError
            A blob of the newest checkpoint, `manifest`, is damaged.
        DMondrianError
            Data or checkpoints cannot be used; the message has the reason.
        """
        self._interrupts = interrupts
        self._workers.follow()
        try:
            self._workers.refresh(now=True)
            self._drop_lost()  # records which workers there are: none is lost yet
            check_open_files(self._client, len(self._workers.threads))
            if self._validation is not None and self.durable:  # a stop may have come before it
                self._validation.begin(self.durable, self._client)
            while self._ledger.settled < len(self._units):
                self._watch(interrupts)
                self._send()
                self._receive()
                if self._settle() or (self._stop is not None and not self._workers.threads):
                    # Without workers nothing more can be saved: the newest checkpoint is the last.
                    return self._ledger.settled == len(self._units)
            return self._finish_validation(interrupts)
        finally:
            if self._validation is not None:
                self._validation.stop()
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
        """Return the progress of the run."""
        # Not the rows that all shards have learned: these advance in units of up to 65,536.
        learned = sum(self._row(max(state.best + 1, state.done)) for state in self._states)
        rows = learned // len(self._states)
        speed = self._speed.after(rows)
        left = (self._n_rows - rows) / speed if speed > 0 else None
        progressive = self._ledger.progressive
        totals = progressive.totals() if progressive else {}
        recent = progressive.recent() if progressive else {}
        workers = len(self._workers.threads)
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
            waiting=self._ledger.n_waiting,
            memory=sum(self._workers.used.values()),
            held_out={} if self._validation is None else self._validation.progress(),
            **recent,
        )

    def _row(self, unit: int) -> int:
        return self._units[unit].start if unit < len(self._units) else self._n_rows

    # -- watching ---------------------------------------------------------------------------

    def _watch(self, interrupts: Interrupts) -> None:
        """Check lease, signals, workers and clock; place the shards that have no worker."""
        self._lease.check(now=False)
        is_asked = interrupts.is_requested or self._lease.is_asked_to_stop
        now = time.monotonic()
        if self._workers.refresh():
            self._check_silence(now)
            self._drop_lost()
        self._place()
        if self._validation is not None:
            self._validation.look(self._events)
        if self._stop is None and is_asked:
            self._stop = self._choose_stop()
            self._check_all_later()
        elif self._stop is None and self.schedule.is_due and not self._is_evaluating:
            self._checkpoint_units.add(self._unsent())
            self.schedule.note_request()
        self._reporter.report(self.progress)

    @property
    def _is_evaluating(self) -> bool:
        """Whether a checkpoint is being evaluated that the next one waits for."""
        return self._stop is None and self._validation is not None and self._validation.is_busy

    def _finish_validation(self, interrupts: Interrupts) -> bool:
        """Wait for the evaluation of the last checkpoint; return False on a request to stop."""
        while self._is_evaluating:
            self._lease.check(now=False)
            if interrupts.is_requested or self._lease.is_asked_to_stop:
                return False
            assert self._validation is not None  # it is evaluating
            self._reporter.report(self.progress)
            self._validation.look(self._events, _TICK)
        return True

    def _unsent(self) -> int:
        """Return the first unit not sent to any shard yet: all can still save at its end."""
        return min(self._next_unsent, len(self._units) - 1)

    def _choose_stop(self) -> int:
        """Return the unit to stop after: the first at whose end all shards can be saved.

        Shards cannot go back. So workers begin no more steps, and the largest final position of a
        shard decides, or a pending checkpoint before it. A shard that lost its worker counts with
        its saved position.
        """
        stop = self._unsent()
        if not self._is_joint:  # joint fits have added the next rows already
            self._workers.refresh(now=True)  # lost workers are not waited for
            self._drop_lost()
            self._generation += 1
            n_asked = len(self._workers.threads)
            final_rows = self._workers.query(
                halt, self._run.url, self.attempt, self._generation, seconds=_HALT_SECONDS
            )
            for state in self._states:
                if state.is_held:  # running steps are sent again, and not learned twice
                    self._recall(state)
                    state.sent = state.done
            if len(final_rows) == n_asked:
                final = [
                    self._final_position(state, final_rows.get(state.address or ""))
                    for state in self._states
                ]
                saved = [self._row(state.saved_unit) for state in self._states]
                stop = self._unit_that_ends_behind(max(final + saved))
        units = self._checkpoint_units
        pending = [unit for unit in units if self._ledger.settled <= unit <= stop]
        stop = min(pending, default=stop)
        self._checkpoint_units.add(stop)
        return stop

    def _final_position(self, state: ShardState, rows: Mapping[int, int] | None) -> int:
        """Return the position at which a shard halts; 0 if its worker does not hold it.

        ``rows`` are those at which the shards of this worker halt, by shard.
        """
        row = (rows or {}).get(state.shard)
        part = state.shard // self._n_each
        return 0 if row is None else self._ranges.position_at(part, row)

    def _check_silence(self, now: float) -> None:
        """Give up workers that have not answered pending orders for too long."""
        for address in self._workers.threads.copy():
            if address not in self._sent:
                self._last_answer[address] = now
                continue
            if now - self._last_answer.get(address, now) > self._limits.silence / 2.0:
                self._break_up(address, apart=True)  # it may be another worker that is silent
            if now - self._last_answer.setdefault(address, now) > self._limits.silence:
                self._workers.unresponsive.add(address)
                self._workers.threads.pop(address, None)
                self._lost_workers.report_unresponsive(address, self._limits.silence)

    def _drop_lost(self) -> None:
        """Report workers that came and went; have the shards of those that went restored."""
        if self._lost_workers.report(self.settled, self.durable):
            self._register_plugin()
        gone = [a for a in self._places.by_worker if a not in self._workers.threads]
        for address in gone:
            is_retired = self._workers.was_retired(address)
            self._break_up(address, apart=False)
            for state in list(self._places.by_worker[address].values()):
                self._lose(state)
                state.lost_workers += not is_retired
                if state.lost_workers > self._limits.lost_workers:
                    raise ClusterError(
                        f"shard {state.shard} lost its worker {state.lost_workers} times without "
                        f"getting past position {self._row(state.best + 1)}, last {address}; "
                        f"if memory is short, give workers more or use more of them, then run the "
                        f"same command again"
                    )
                self._places.move(state, None)

    def _lose(self, state: ShardState) -> None:
        """Have a shard restored: what its worker held is lost or suspect."""
        if state.is_held:
            self._n_restoring += 1
            self.recoveries += 1
            self.replayed += self._row(state.done) - self._row(state.saved_unit)
        self._recall(state)
        state.is_held = False
        state.done = state.sent = state.saved_unit

    def _recall(self, state: ShardState) -> None:
        """Cancel pending orders; a step that runs all the same does no harm."""
        for sent in state.pending.values():
            sent.wanted.discard(state.shard)
            if not sent.wanted:
                self._note_answered(sent)
                if sent.reply is not None and not sent.reply.is_wanted:
                    self._results.drop(sent.reply.key)
        state.pending.clear()
        state.early.clear()
        state.recalls += 1
        self._check_later(state)

    def _break_up(self, address: str, apart: bool) -> None:
        """Send again all orders whose replies were to be joined with those of this worker.

        What was learned meanwhile is answered at once. With ``apart`` each worker answers alone.
        """
        for sent in list(self._sent.get(address, {}).values()):
            if sent.reply is not None and sent.reply.is_joint:
                self._send_again(sent.reply, apart)

    def _send_again(self, reply: AwaitedReply, apart: bool) -> None:
        for sent in reply.bundles:
            for state, unit in sent.shard_units:
                if apart and unit is not None:
                    state.apart = max(state.apart, unit + 1)
                if state.shard in sent.wanted:
                    self._recall(state)
                    state.sent = state.done

    def _place(self) -> None:
        """Give workers to the shards that have none."""
        unplaced = sorted(self._places.unplaced)
        places = self._workers.places(self._places.load(), len(unplaced)) if unplaced else []
        for shard, address in zip(unplaced, places, strict=False):  # none without workers
            self._place_on(self._places.unplaced[shard], address)

    def _place_on(self, state: ShardState, address: str) -> None:
        """Give a shard to a worker, which is to restore it."""
        self._places.move(state, address)
        self._last_answer[address] = time.monotonic()
        self._check_later(state)

    def _check_later(self, state: ShardState) -> None:
        """Have the next `_send` look whether there are orders for a shard."""
        if state.address is not None:
            self._to_check.add(state.address)

    def _check_all_later(self) -> None:
        """Have the next `_send` look for orders of all shards, as the window moved."""
        self._to_check.update(self._places.by_worker)

    def _rebalance(self) -> None:
        """Move shards to less loaded workers, right after a commit."""
        self._workers.refresh(now=True)  # include workers that have just joined
        self._drop_lost()
        held = [
            state.shard for state in self._states if state.address is not None and state.is_held
        ]
        places = {state.shard: state.address for state in self._states if state.address is not None}
        moved: dict[str, list[int]] = {}  # by worker: shards moved away from it
        for shard, target in self._workers.moves(places, reversed(held)):
            state = self._states[shard]
            recoveries, replayed = self.recoveries, self.replayed
            self._lose(state)
            self.recoveries, self.replayed = recoveries, replayed  # a move is no loss
            moved.setdefault(places[shard], []).append(shard)
            self._place_on(state, target)
        for address, shards in moved.items():
            self._workers.run_on([address], forget, self._run.url, self.attempt, shards)

    def _unit_that_ends_behind(self, position: int) -> int:
        """Return the unit that ends at or after a position, at least the last settled one."""
        settled = self._ledger.settled
        if position <= self._row(settled):
            return settled - 1
        return next(unit.index for unit in self._units if unit.stop >= position)

    # -- orders -----------------------------------------------------------------------------

    def _send(self) -> None:
        """Send restores, and steps in stream order, within window and depth."""
        now, addresses = time.monotonic(), sorted(self._to_check)
        if not addresses:
            return
        self._to_check.clear()
        self._n_threads = sum(self._workers.threads.values())
        for address in addresses:
            held = self._places.by_worker.get(address, {}).values()
            ready = [state for state in held if state.retry_at <= now]
            if len(ready) < len(held):
                self._to_check.add(address)  # again, when it is time
            self._restore([state for state in ready if not state.is_held and not state.pending])
            if self._is_restoring(now):
                self._to_check.add(address)
            else:
                self._step([state for state in ready if state.is_held])
        self._send_bundles()

    def _is_restoring(self, now: float) -> bool:
        """Return whether steps wait until other shards are restored, so that replies are joined.

        They wait while one shard after the other is restored within `RESTORING` seconds.
        """
        if self._n_restoring == 0 or not are_joined(len(self._workers.threads)):
            return False
        return now - self._last_restored < RESTORING and self._ledger.needs_forecasts

    def _restore(self, states: list[ShardState]) -> None:
        """Have shards of one worker restored: empty ones together, others one by one."""
        groups = [[state] for state in states if state.digest is not None]
        if empty := [state for state in states if state.digest is None]:
            groups.insert(0, empty)
        for group in groups:
            orders = [self._order_to_restore(state) for state in group]
            rank = min(state.saved_unit for state in group)
            self._submit(restore, orders, [(state, None) for state in group], rank)

    def _order_to_restore(self, state: ShardState) -> Restore:
        assert state.address is not None
        return Restore(
            self._run.url,
            self.attempt,
            state.shard,
            state.address,
            self._row_of(state, self._row(state.saved_unit)),
            state.digest,
            code_digest(),
            self._ledger.next_stop(state.saved_unit),
            self._ranges.row_at(0, self._floor),
        )

    def _row_of(self, state: ShardState, position: int) -> int:
        """Return the row of the stream up to which a shard has learned at a position of the run."""
        return self._ranges.row_at(state.shard // self._n_each, position)

    def _step(self, states: list[ShardState]) -> None:
        """Have restored shards of one worker learn the next units."""
        if not states or states[0].address is None:
            return
        last = len(self._units) - 1 if self._stop is None else self._stop
        window = self._window(states[0].address)
        limit = min(self._ledger.settled + window, last + 1)
        while free := [state for state in states if len(state.pending) < self._limits.depth]:
            free = [
                state for state in free if state.sent < limit and self._ledger.can_learn(state.sent)
            ]
            if not free:
                break
            first = min(state.sent for state in free)
            is_saving = first in self._checkpoint_units  # these alone: saving takes its time
            unfit = self._checkpoint_units if not is_saving else range(first + 1, limit)
            free = [state for state in free if state.sent not in unfit]
            free.sort(key=lambda state: (state.sent, state.shard))
            if not self._step_together(free, is_saving, limit, window // self._limits.depth):
                break
        if self._stop is not None and self._ledger.settled == self._stop + 1:
            late = [
                state for state in states if not state.pending and state.saved_unit < state.done
            ]
            for state in late:
                self._submit_steps([(state, self._stop)])

    def _window(self, address: str) -> int:
        """Return how many units the shards of a worker may be ahead of the last settled one."""
        held, workers = self._places.by_worker[address], self._workers.threads
        threads = max(1, workers.get(address, 1))
        n_shards = max(len(held), self._typical_shards(threads))
        return self._sizes.window(address, n_shards, threads, len(workers), self._limits)

    def _typical_shards(self, threads: int) -> int:
        """Return the shards that a worker with this number of threads has on average, rounded up.

        Where replies are joined, all workers are to be sent the same units, though their numbers of
        shards differ by one; else 1.
        """
        if not are_joined(len(self._workers.threads)):
            return 1
        return -(-len(self._states) * threads // max(1, self._n_threads))

    def _step_together(
        self, states: list[ShardState], is_saving: bool, limit: int, most_units: int
    ) -> bool:
        """Send the next steps of shards of one worker; return whether it took some.

        They are sent in as few bundles as are answered soon, each of at most `most_units` units:
        half of the window, so that one bundle is queued at the worker while another runs.
        """
        address = states[0].address
        assert address is not None
        threads = max(1, self._workers.threads.get(address, 1))
        n_steps = self._sizes.steps(address, is_saving, threads, len(self._workers.threads))
        n_shards = max(len(states), self._typical_shards(threads))  # that all get the same units
        n_units = max(1, min(n_steps // n_shards, most_units))
        # Those that are behind catch up: none waits for an answer to what others learn later.
        stop = min(limit, states[0].sent + n_units)
        states = [state for state in states if state.sent < stop]
        is_sent = False
        for first in range(0, len(states), n_steps):
            steps: list[tuple[ShardState, int]] = []
            for state in states[first : first + n_steps]:
                units = self._before_checkpoint(range(state.sent, stop))
                steps += [(state, unit) for unit in units]
            if self._takes_more(address, len(steps), n_steps, threads):
                self._submit_steps(sorted(steps, key=lambda pair: (pair[1], pair[0].shard)))
                is_sent = True
        return is_sent

    def _takes_more(self, address: str, n_new: int, n_steps: int, threads: int) -> bool:
        """Return whether a worker should get another order of steps now.

        While it has others to do, a small one waits for what will be sent with it.
        """
        sent = self._sent.get(address, {}).values()
        pending = [len(bundle.shard_units) for bundle in sent if bundle.trains and not bundle.saves]
        most = self._limits.depth * max(n_steps, threads)
        is_full = n_new >= n_steps and sum(pending) + n_new <= most
        return len(pending) < self._limits.depth or is_full

    def _before_checkpoint(self, units: range) -> range:
        """Return the first of units that can be learned, up to a checkpoint; at least one."""
        stop = units.start + 1
        while units.start not in self._checkpoint_units and stop < units.stop:
            if stop in self._checkpoint_units or not self._ledger.can_learn(stop):
                break
            stop += 1
        return range(units.start, stop)

    def _submit_steps(self, steps: list[tuple[ShardState, int]]) -> None:
        address = steps[0][0].address
        assert address is not None
        load = len(self._places.by_worker[address])
        n_threads = max(1, self._workers.threads.get(address, 1) // load)
        orders = [self._order_to_step(state, self._units[i], n_threads) for state, i in steps]
        self._submit(step, orders, [*steps], steps[0][1])
        for state, unit in steps:
            state.sent = max(state.sent, unit + 1)
            self._next_unsent = max(self._next_unsent, state.sent)

    def _order_to_step(self, state: ShardState, unit: Unit, n_threads: int) -> Step:
        assert state.address is not None
        is_new = not self._ledger.has(state.shard, unit.index)
        forecasts = is_new and not self._ledger.has_forecasts(state.shard, unit.index)
        settled = self._ledger.settled
        return Step(
            self._run.url,
            self.attempt,
            state.shard,
            state.address,
            start=self._row_of(state, unit.start),
            stop=self._row_of(state, unit.stop),
            forecasts=forecasts,
            samples=is_new and self._ledger.needs_samples(forecasts),
            with_labels=is_new and state.shard % self._n_each == 0,
            save=(is_new or unit.index == self._stop) and unit.index in self._checkpoint_units,
            whole=unit.index in self._checkpoint_units and self._is_whole(unit.index),
            last=self._ends_whole and unit.index == len(self._units) - 1,
            n_threads=n_threads,
            settled=self._row_of(state, self._units[settled].start),
            mean=self._ledger.mean(unit.index),
            next_stop=self._ledger.next_stop(unit.index + 1),
            generation=self._generation,
            recalls=state.recalls,
        )

    def _is_whole(self, unit: int) -> bool:
        """Return whether the states after a unit are to be whole, which is decided once.

        All shards save whole ones at a time now and then: the checkpoint before is then one that a
        damaged blob does not spoil along with those after it.
        """
        if unit not in self._saves_whole:
            n_since = 0 if self.manifest is None else self.manifest.n_since_whole
            for earlier_unit in sorted(self._checkpoint_units):  # those that are not committed yet
                if self._ledger.settled <= earlier_unit < unit:
                    n_since = 0 if self._saves_whole.get(earlier_unit) else n_since + 1
            self._saves_whole[unit] = n_since >= MOST
        return self._saves_whole[unit]

    def _submit(
        self,
        task: Any,
        orders: Sequence[Order],
        shard_units: list[tuple[ShardState, int | None]],
        rank: int,
    ) -> None:
        """Have orders sent to shards of one worker, at the end of `_send`.

        Parameters
        ----------
        task : callable
            `step` or `restore`.
        orders : sequence of Order
        shard_units : list of (ShardState, int or None)
            Of each order: its shard, and the unit of a step.
        rank : int
            Lower ones are carried out first.
        """
        bundle = Bundle(self._run.url, self.attempt, orders[0].address, tuple(orders))
        key = f"dmondrian-{task.__name__}-{uuid.uuid4().hex}"
        shards = {state.shard for state, _ in shard_units}
        saves = any(isinstance(order, Step) and order.save for order in orders)
        sent = SentBundle(key, bundle.address, shard_units, shards, saves)
        self._sent.setdefault(bundle.address, {})[sent.key] = sent
        for state, _ in shard_units:
            state.pending[sent.key] = sent
        self._outgoing.append(Outgoing(sent, task, bundle, rank))

    def _send_bundles(self) -> None:
        """Send the bundles submitted since the last call; join the replies of many workers."""
        for group in in_groups(self._outgoing):
            future = submit(self._client, group)
            reply = AwaitedReply(str(future.key), [outgoing.sent for outgoing in group])
            for sent in reply.bundles:
                sent.reply = reply
            self._results.watch(future, reply)
        self._outgoing.clear()

    # -- answers ----------------------------------------------------------------------------

    def _receive(self) -> None:
        """Wait briefly for an answer, then process all that have arrived."""
        timeout = _TICK
        while (finished := self._results.take(timeout)) is not None:
            timeout = 0.0
            awaited: AwaitedReply = finished.context
            if finished.error is not None and awaited.is_joint:
                # No fault of a shard: a worker was lost, or the task that joins replies failed.
                self._workers.refresh(now=True)
                self._drop_lost()
                self._send_again(awaited, apart=True)
                continue
            reply = awaited.of(finished)
            answers, unforecast = reply.answers, self._take_forecasts(awaited, reply)
            if awaited.bundles[0].trains:
                self._sizes.note(answers)
            if any(answer.status in (MOVED, GONE) for answer in answers):
                self._workers.refresh(now=True)
                self._drop_lost()
            place = 0
            for sent in awaited.bundles:
                self._take_bundle(sent, answers[place : place + len(sent.shard_units)], unforecast)
                place += len(sent.shard_units)
            if self._is_joint:
                self._check_all_later()  # all wait for the sums of the last one

    def _take_bundle(
        self, sent: SentBundle, answers: list[Answer], unforecast: set[tuple[int, int | None]]
    ) -> None:
        """Process the answers to a bundle."""
        for (state, unit), answer in zip(sent.shard_units, answers, strict=True):
            if state.shard not in sent.wanted:  # an order before it failed
                continue
            if (state.shard, unit) in unforecast:  # as if it was not answered
                self._recall(state)
                state.sent = state.done
            else:
                self._take_answer(state, unit, answer)
        self._note_answered(sent)
        for state, _ in sent.shard_units:
            state.pending.pop(sent.key, None)
        self._to_check.add(sent.address)

    def _take_forecasts(self, awaited: AwaitedReply, reply: Reply) -> set[tuple[int, int | None]]:
        """Record forecasts that were added on a worker; return shards and units without some.

        They count whatever becomes of the shards: they depend on shards and rows alone. Those of
        shards some of which have been asked apart, after a loss, cannot be used.
        """
        missing: set[tuple[int, int | None]] = set()
        shard_units = awaited.shard_units
        for added in reply.added:
            shards = {shard_units[place][0].shard for place in added.places}
            unit = shard_units[added.places[0]][1]
            assert unit is not None  # these are steps
            missing |= {(n, unit) for n in self._ledger.take_forecasts(unit, shards, added.sums)}
        return missing

    def _note_answered(self, sent: SentBundle) -> None:
        """Note that orders are answered, or that no answer to them counts."""
        pending = self._sent.get(sent.address, {})
        pending.pop(sent.key, None)
        if not pending:
            self._sent.pop(sent.address, None)

    def _take_answer(self, state: ShardState, unit: int | None, answer: Answer) -> None:
        """Process an answer: to a step of a unit, or, without one, to an order to restore."""
        if answer.worker == state.address:
            self._last_answer[answer.worker] = time.monotonic()
        if answer.status == OK:
            if unit is None:
                state.is_held, self._last_restored = True, time.monotonic()
                self._n_restoring -= 1
                self._lost_workers.restored(state)
                self.hosts.add(answer.worker)
                self._ledger.take_sums(state.shard, state.saved_unit, answer.next_sums)
            else:
                self._advance(state, unit, answer)
        elif unit is not None and answer.status in (GAP, DIRTY) and state.awaits_before(unit):
            state.early[unit] = answer  # the reply that has the cause waits for other workers
        else:
            self._fail(state, answer, unit)

    def _advance(self, state: ShardState, unit: int, answer: Answer) -> None:
        """Process answers to steps in order of the units, so that none is passed over.

        A state that is saved behind a lost answer would hide that loss.
        """
        if unit < state.done:  # a step that was repeated to save
            self._note_saved(state, unit, answer)
            return
        state.early[unit] = answer
        while (answer_in_turn := state.early.pop(state.done, None)) is not None:
            unit = state.done
            if answer_in_turn.status != OK:
                self._fail(state, answer_in_turn, unit)
                return
            self._ledger.take(state.shard, unit, answer_in_turn)
            for chunk in answer_in_turn.chunks:
                self._ledger.take_sums(state.shard, unit + 1, chunk.next_sums)
            state.done = unit + 1
            if unit > state.best:
                state.best, state.failures, state.lost_workers = unit, 0, 0
            self._note_saved(state, unit, answer_in_turn)

    def _note_saved(self, state: ShardState, unit: int, answer: Answer) -> None:
        if answer.saved is not None:
            state.saved_unit, (state.digest, state.n_bytes) = unit + 1, answer.saved
            state.base_blob = answer.base
            state.summary = answer.summary
            self.schedule.add_saving(answer.worker, answer.saving)

    def _fail(self, state: ShardState, answer: Answer, unit: int | None) -> None:
        """Have the order sent again, after restoring the shard if needed; raise fatal errors."""
        if answer.error is not None and answer.status == DAMAGED:
            saved = self.manifest.shards if self.manifest is not None else {}
            is_committed = _blob(saved.get(state.shard))[0] == state.digest
            raise (DamagedCheckpointError if is_committed else CorruptError)(answer.error[1])
        if answer.error is not None:
            kind = getattr(errors, answer.error[0], None)
            if isinstance(kind, type) and issubclass(kind, _FATAL):
                raise kind(answer.error[1])
        if state.fail(answer, self._limits):
            raise state.final_error(answer, self._row(state.saved_unit if unit is None else unit))
        self._lost_workers.failed(state, answer, unit, self._limits.tries)
        if answer.status in (LOST, DIRTY):
            self._lose(state)
        else:
            self._recall(state)
            state.sent = state.done

    def _settle(self) -> bool:
        """Score and commit complete units; return whether the run stops here."""
        while self._ledger.settled < len(self._units) and self._ledger.is_ready():
            if self._is_evaluating and self._ledger.settled in self._checkpoint_units:
                break  # a checkpoint would be committed before the last one is evaluated
            unit, saved = self._ledger.settle()
            self._check_all_later()
            is_passed = unit.stop // OBSERVED > unit.start // OBSERVED
            if self._observe is not None and (is_passed or unit.stop == self._n_rows):
                self._observe(unit.stop, self.progress())
            if len(saved) == len(self._states):
                self._commit(unit.stop, saved, self._ledger.summary)
                if self._stop is not None:
                    return True
                if unit.index < len(self._units) - 1:
                    self._rebalance()
        return self._stop is not None and self._ledger.settled > self._stop and self._commit_stop()

    def _commit_stop(self) -> bool:
        """Commit the final states of a stopping run; return False until all shards are saved.

        States at different positions are never committed together: then the newest checkpoint is
        the last one.
        """
        settled, saved_units = self._ledger.settled, {state.saved_unit for state in self._states}
        if min(saved_units) < settled:
            return False
        position = self._row(settled)
        if saved_units == {settled} and position > self.durable:
            saved = {state.shard: state.entry for state in self._states}
            self._commit(position, saved, total([state.summary for state in self._states]))
        return True

    def _commit(self, position: int, saved: ShardEntries, summary: Summary | None) -> None:
        before = self.manifest

        def commit() -> Manifest:
            self._lease.check()
            if self._ledger.writer is not None:
                self._ledger.writer.write()
            return self._run.commit(
                position,
                saved,
                self._ledger.metrics(),
                before,
                self._ledger.settled == len(self._units),
                self._plan.digest_at(position),
                summary,
            )

        self.manifest = outlast(commit)
        self.checkpoints += 1
        self.schedule.commit()
        text = f"saved at row {position:,}"
        is_final = self.manifest.final
        if self._ranges.n_parts == 1:  # else it is one of the run when all ranges are merged
            self._events.notify("checkpoint", text, position=position, is_final=is_final)
        if self._validation is not None:
            self._validation.begin(position, self._client)
        if self._keep is not None:
            states = [state for state in self._states if state.digest is not None]
            needed = [digest for state in states for digest, _ in blobs_of(state.entry)]
            try:
                stay = set() if self._validation is None else self._validation.needed()
                prune_while_training(self._run, position, self._keep, needed, stay)
            except StoreError as error:  # the next commit tries again
                _log.warning("old checkpoints of %s were not deleted: %s", self._run.url, error)

    def _release(self) -> None:
        """Release all tasks, and the shards that workers hold."""
        self._results.close()
        self._workers.close()
        self._workers.run_on_unresponsive(forget, self._run.url, self.attempt, None)
        self._workers.run_on(list(self._workers.threads), forget, self._run.url, self.attempt, None)


def _blob(saved: Mapping[str, Any] | None) -> tuple[str | None, int, tuple[str, int] | None]:
    """Return digest, size and base of a shard's saved state; (None, 0, None) without one."""
    if saved is None:
        return None, 0, None
    return saved["digest"], int(saved["bytes"]), base_of(saved)
