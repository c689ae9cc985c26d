"""Attempts: an attempt trains a run from its newest checkpoint to the end of its stream.

Relies on the run folder, its lease and the coordinator. Promises that a finished run is left alone,
that two processes never work on one run, and that each attempt is recorded with its hosts, times
and losses, however it ends.
"""

from __future__ import annotations

import logging
import socket
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from distributed import Client

from dmondrian._text.wording import NOTED
from dmondrian.checkpoint import Lease, Manifest, Run
from dmondrian.checkpoint.kept_shares import (
    MOST_NUMBERS,
    KeptShares,
    SharesWriter,
    covered,
    pieces_of,
)
from dmondrian.checkpoint.parts import parts_of, runs_before
from dmondrian.checkpoint.pruning import LEAST
from dmondrian.checkpoint.row_ranges import ROW_PARTS, RowRanges, shard_trees
from dmondrian.data import Plan, places_of
from dmondrian.data.lag_settings import lag_of_key
from dmondrian.distributed.cluster.alerts import Alerts, values_of
from dmondrian.distributed.cluster.client import register_plugin, warm
from dmondrian.distributed.cluster.events import Event, EventListener, Events, counted
from dmondrian.distributed.cluster.interrupt import Interrupts
from dmondrian.distributed.cluster.progress import (
    Listener,
    Progress,
    ProgressReporter,
    Timeline,
    listener,
)
from dmondrian.distributed.cluster.prometheus_metrics import PrometheusMetrics
from dmondrian.distributed.metrics.progressive import Progressive, read_counts
from dmondrian.distributed.metrics.sortedness import Sortedness
from dmondrian.distributed.training.checkpoint_schedule import CheckpointInterval, parse_every
from dmondrian.distributed.training.coordinator import Coordinator, DamagedCheckpointError
from dmondrian.distributed.training.ledger import Ledger
from dmondrian.distributed.training.merged_ranges import (
    drop_run_below,
    has_run_below,
    merge_ranges,
    row_parts_advice,
    run_below,
)
from dmondrian.distributed.training.shard_state import Limits
from dmondrian.distributed.training.validation import Validation
from dmondrian.distributed.worker.tasks import ShardHolder
from dmondrian.distributed.worker.work_units import Unit, chunks_of, cut, cut_jointly, cut_ranges
from dmondrian.drift.guard import Guard, share_width
from dmondrian.drift.waiting_rows import nothing_learned
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import (
    ClusterError,
    CorruptError,
    DataError,
    FencedError,
    ParameterError,
)
from dmondrian.prequential import forecast_lag
from dmondrian.uncertainty.temperature_scaling import new_calibration

_log = logging.getLogger("dmondrian")

USUAL_SHARDS = 12
"""Shards up to which a unit has `UNIT_NUMBERS` forecasts a shard; with more it has fewer."""


@dataclass(frozen=True)
class AttemptOptions:
    """Options of an attempt; none of them changes a forest."""

    interval: CheckpointInterval
    limits: Limits = field(default_factory=Limits)
    listener: Listener | None = None
    job: str | None = None  # see `Lease.take`
    keep: int | None = None  # newest checkpoints that are kept; None for all
    # Whether the states at the end are whole: equal forests then have equal bytes, whatever
    # checkpoints were made on the way.
    ends_whole: bool = True
    validation: Validation | None = None  # evaluates checkpoints on held-out data
    alerts: Alerts | None = None
    on_event: EventListener | None = None
    metrics: PrometheusMetrics | None = None
    advises_row_parts: bool = False  # where parts of rows would pay; a new call may ask for them

    def events(self) -> Events:
        """Return new events, which are counted, sent to where alerts are, and call the listener."""
        listeners: list[EventListener] = [] if self.metrics is None else [self.metrics.count]
        listeners += [] if self.alerts is None else [self.alerts.send]
        listeners += [] if self.on_event is None else [self.on_event]

        def listen(event: Event) -> None:
            for call in listeners:
                call(event)

        return Events(listen if listeners else None)


def attempt_options(
    checkpoint_every: str | int | None,
    window: int | None,
    progress: Listener | bool | None,
    keep: int | None = None,
) -> AttemptOptions:
    """Return checked options.

    Raises
    ------
    ParameterError
    """
    interval = parse_every(checkpoint_every)
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < LEAST):
        raise ParameterError(f"keep is {keep!r}; expected an integer of at least {LEAST}, or None")
    if window is None:
        return AttemptOptions(interval, Limits(), listener(progress), keep=keep)
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ParameterError(f"window is {window!r}; expected an integer of at least 1")
    limits = replace(Limits(), window=window, largest_window=window)
    return AttemptOptions(interval, limits, listener(progress), keep=keep)


def finish(run: Run, plan: Plan, options: AttemptOptions, connect: Callable[[], Client]) -> Attempt:
    """Train a run to the end of its stream, from its newest usable checkpoint.

    Parameters
    ----------
    run : Run
    plan : Plan
        The run's stream.
    options : AttemptOptions
    connect : callable
        Returns the client; called only if there are rows to learn.

    Raises
    ------
    FencedError
        Another process works on the run, or has continued it since the plan was made.
    DMondrianError
        See :func:`dmondrian.distributed.train`.
    """
    digests = run.stream.digests()
    attempt = Attempt(run, plan, options)
    seen, manifest = run.manifests(), attempt.newest()
    places, notes = places_of(plan), plan.about_learned
    is_current = digests[-1] == plan.digest
    is_done = is_current and attempt.is_end(manifest) and run.stream.has_noted(places, notes)
    is_done = is_done and not has_run_below(run)
    if not is_done:
        with Lease.take(run.store, options.job) as lease:
            lease.check()
            # The first to write, as it refuses a plan made before another process went on.
            earlier = [digest for _, digest in plan.earlier]
            try:
                run.stream.lead_to(plan.digest, plan.to_parquet(), earlier)
            except FencedError as error:
                lease.end("refused", str(error))
                raise
            run.stream.note_places(places, notes)  # workers read it whenever they restore a shard
            if run.stream.digests() != digests:
                attempt = Attempt(run, plan, options)
            if run.manifests() != seen:
                manifest = attempt.newest()  # the previous holder of the lease got further
            if manifest is not None and has_run_below(run):  # of a process that was killed
                drop_run_below(run)
            if attempt.is_end(manifest):
                lease.end("finished")
            else:
                calibrate = run.run_json["estimator"].get("calibrate") or False
                forecasts = bool(run.run_json.get("progressive"))
                warm(attempt.parameters, calibrate, forecasts)
                manifest = _learn(attempt, manifest, connect(), lease)
                saved = [
                    p for run_or_part in (run, *parts_of(run)) for p in run_or_part.manifests()
                ]
                run.stream.drop([plan.digest_at(position) for position in saved])
    attempt.ledger = attempt.ledger or attempt.open(manifest)
    if options.metrics is not None and not attempt.summary["rows"]:  # nothing was learned now
        options.metrics.follow(attempt.idle_progress(manifest))
    progressive = attempt.ledger.progressive
    # After a merge of runs nothing is known of the rows before its start.
    if progressive is not None and progressive.weight == 0.0 and progressive.start == 0:
        raise DataError(
            f"no row of the data has a positive weight ({plan.schema.weight_in_words}): there is "
            "nothing to learn"
        )
    rows = attempt.rows_so_far
    if rows and not rows["learned"] and rows["waiting"]:
        _log.warning(nothing_learned(rows["waiting"], attempt.parameters.following))
    return attempt


def _learn(
    attempt: Attempt, manifest: Manifest | None, client: Client, lease: Lease
) -> Manifest | None:
    """Learn what is left of the stream, its first rows side by side where that is asked for."""
    is_new = manifest is None and ROW_PARTS not in attempt.run.run_json
    if is_new and attempt.options.advises_row_parts:
        n_threads = sum(client.nthreads().values())
        if (advice := row_parts_advice(attempt.run, attempt.n_rows, n_threads)) is not None:
            _log.info(advice, extra=NOTED)
    if ROW_PARTS not in attempt.run.run_json:
        return attempt.drive(client, manifest, lease)
    before: dict[str, Any] = {}
    for tries_left in (1, 0):
        if manifest is None:
            manifest, before = _learn_ranges(attempt, client, lease)
            attempt.ledger = attempt.open(manifest)
        try:
            if not attempt.is_end(manifest):
                manifest = attempt.drive(client, manifest, lease)
                now = attempt.summary
                before = add_summaries(before, now) if before else now
            break
        except DamagedCheckpointError:  # the merged trees: they are made again, once
            if not tries_left:
                raise
            manifest = None
    attempt.summary = before
    return manifest


def _learn_ranges(
    attempt: Attempt, client: Client, lease: Lease
) -> tuple[Manifest, dict[str, Any]]:
    """Learn ranges of rows side by side, and merge their trees.

    Returns
    -------
    manifest : Manifest
        The first checkpoint of the run, behind the ranges.
    summary : dict
    """
    run, plan = attempt.run, attempt.plan
    below = run_below(run, plan)
    options = replace(attempt.options, validation=None, keep=LEAST, ends_whole=True)
    range_attempt = Attempt(below, plan, options, run)
    learned = below.latest(verify=False)
    range_attempt.open(learned)
    with range_attempt.noted(lease):
        for tries_left in (1, 0):
            if not range_attempt.is_end(learned):
                before = range_attempt.summary
                learned = range_attempt.learn(client, learned, lease)
                range_attempt.summary = add_summaries(before, range_attempt.summary)
            assert learned is not None  # at the end
            try:
                manifest = range_attempt.merge(learned, plan, client, lease)
                break
            except CorruptError as damage:  # those learned last are learned again
                if not tries_left:
                    raise
                learned = below.before(learned, damage)
        merged = {"merged_parts": range_attempt.ranges.n_parts, "workers": len(range_attempt.hosts)}
        range_attempt.summary |= merged
        drop_run_below(run)
    text, position = f"saved at row {manifest.position:,}", manifest.position
    attempt.options.events().notify("checkpoint", text, position=position, is_final=manifest.final)
    return manifest, range_attempt.summary


def add_summaries(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of two attempts: what adds up added, the rest as of the second."""
    names = "rows", "seconds", "checkpoints", "recoveries", "rows_replayed"
    sums = {name: first[name] + second[name] for name in names}
    merged = {name: first[name] for name in ("merged_parts",) if name in first}
    return {**merged, **second, **sums, "workers": max(first["workers"], second["workers"])}


class Attempt:
    """One attempt to train a run to the end of its stream; see `finish`.

    Parameters
    ----------
    run : Run
    plan : Plan
    options : AttemptOptions
    main_run : Run or None
        Of a run of ranges of rows: the run whose folder it is in, which events, alerts and the
        record of attempts are of. By default `run`.
    """

    def __init__(
        self, run: Run, plan: Plan, options: AttemptOptions, main_run: Run | None = None
    ) -> None:
        digests = set(run.stream.digests()) if plan.earlier else set()
        self.run, self.options = run, options
        self.main_run = run if main_run is None else main_run
        self.ranges = RowRanges.of(run.run_json, plan.n_rows)
        self.n_rows = self.ranges.n_rows  # that the run learns
        self.plan = replace(plan, earlier=_earlier_in_chain(plan, digests)).with_digest_of(plan)
        self.parameters = ForestParameters.from_json(run.run_json["parameters"])
        self.units = self._cut()
        self.ledger: Ledger | None = None
        self.hosts: set[str] = set()  # workers that have worked on it
        self._is_stopped = False  # where that was asked for, with all that was learned saved
        self._summarise(0, 0.0, None)

    def idle_progress(self, manifest: Manifest | None) -> Progress:
        """Return the progress of a run that nobody works on."""
        assert self.ledger is not None
        rows = 0 if manifest is None else manifest.position
        progressive = self.ledger.progressive
        totals = progressive.totals() if progressive else {}
        recent = progressive.recent() if progressive else {}
        return Progress(
            rows, self.n_rows, 0.0, rows, None, 0, 0, totals,
            waiting=self.ledger.n_waiting, **recent,
        )  # fmt: skip

    @property
    def metrics(self) -> dict[str, Any]:
        """Progressive metrics; empty if no rows were forecast."""
        progressive = self.ledger.progressive if self.ledger is not None else None
        return progressive.report() if progressive is not None and progressive.weight else {}

    @property
    def rows_so_far(self) -> dict[str, int]:
        """Rows of positive weight, "learned" by trees and "waiting" for their labels.

        Empty for forests that learn each row as it comes.
        """
        guard = self.ledger.guard if self.ledger is not None else None
        return {} if guard is None else guard.rows_so_far

    def is_end(self, manifest: Manifest | None) -> bool:
        """Return whether a checkpoint is at the end of the stream."""
        return manifest is not None and manifest.final and manifest.position == self.n_rows

    def newest(self) -> Manifest | None:
        """Return the newest checkpoint that can be used, as far as is known.

        Blobs are checked by the workers that restore shards from them. Those of a run that is at
        its end no worker restores: they are checked here.
        """
        manifest = self.run.latest(verify=False)
        return self.run.latest() if self.is_end(manifest) else manifest

    def open(self, manifest: Manifest | None) -> Ledger:
        """Return the ledger of a checkpoint, with its metrics; cut the stream into units there."""
        metrics = manifest.metrics if manifest is not None else {}
        position = manifest.position if manifest is not None else 0
        progressive = None
        if self.run.run_json.get("progressive"):
            saved = metrics.get("progressive")
            task = self.plan.schema.task
            kind = forecast_lag.kind_of(self.parameters)
            delay = forecast_lag.delay_of(self.parameters)
            run_json = self.run.run_json
            lag = lag_of_key(run_json.get("lags"), run_json.get("target"))
            fresh = Progressive(task, kind, position, delay, lag_of_key=lag)
            progressive = Progressive.from_json(saved) if saved else fresh
            progressive.continue_as(kind, delay)
        calibration = new_calibration(
            self.run.run_json["estimator"].get("calibrate"),
            self.parameters.gives_label_variance,
            self.parameters.follows_stream,
        )
        if calibration is not None and metrics.get("calibration") is not None:
            calibration = type(calibration).from_json(metrics["calibration"])
        self.units = self._cut(position)
        settled = sum(unit.stop <= position for unit in self.units)
        self._summarise(position, 0.0, None)
        guard, before = self._guard(metrics.get("guard")), runs_before(self.run)
        return Ledger(
            self.units,
            len(shard_trees(self.run.run_json)),
            int(self.run.run_json["n_estimators"]),
            progressive,
            calibration,
            read_counts(metrics),
            settled,
            self.parameters,
            self._sortedness(),
            guard,
            self._writer(guard),
            KeptShares(before) if before else None,
            self.ranges.n_parts,
        )

    def _guard(self, stored: Any) -> Guard | None:
        """Return the guard of a forest that follows the stream, as a checkpoint has it.

        If this run adds trees to others, it is the guard of their members too.
        """
        if not self.parameters.follows_stream:
            return None
        runs = (*runs_before(self.run), self.run)
        ranges = [range(*ends) for run in runs for ends in run.run_json["shards"]]
        guard = Guard(self.parameters, chain.from_iterable(ranges))
        if stored is not None:
            guard.load_json(stored)
        return guard

    def _writer(self, guard: Guard | None) -> SharesWriter | None:
        """Return the writer of the members' forecasts, which members that are added later need.

        None where a row has too many numbers, or forecasts of earlier rows are not there: an
        earlier version began the run, or they were deleted.
        """
        if guard is None or share_width(self.parameters) > MOST_NUMBERS:
            return None
        if guard.position and (n := covered(there := pieces_of(self.run))) < guard.position:
            if there:
                _log.warning(
                    f"files in shares/ of {self.run.url} are gone, behind row {n:,} of positive "
                    "weight: no trees can be added to this run, unless they are put back now"
                )
            return None
        return SharesWriter(self.run, guard.position)

    def _sortedness(self) -> Sortedness | None:
        """Return the detector of a sorted target; None if there is no target, or it is known."""
        schema = self.plan.schema
        if self.ranges.n_parts > 1:  # the order of the rows changes no tree
            return None
        is_known = any("misleads a forest" in note for note in self.plan.notes)
        if schema.target is None or is_known:
            return None
        return Sortedness(schema.target, len(schema.classes or ()), self.plan.shuffle)

    def _cut(self, position: int = 0) -> list[Unit]:
        """Cut the stream into units, one of which ends at `position`, that of a checkpoint."""
        chunks = chunks_of(self.plan, self.parameters.learns_jointly)
        if self.parameters.learns_jointly:
            return cut_jointly(chunks, self.parameters.joint.batch_size, (position,))
        interval, n_outputs, is_sliced = self.options.interval.rows, 1, False
        if self.ranges.n_parts > 1:
            return cut_ranges(self.ranges, interval, (position,))
        if self.run.run_json.get("progressive"):
            n_outputs = self.parameters.n_outputs
            is_sliced = forecast_lag.kind_of(self.parameters) in forecast_lag.SLICED_KINDS
        if self.parameters.follows_stream:
            n_outputs = share_width(self.parameters)
        # Workers keep the forecasts of all shards until a unit is settled.
        n_numbers = n_outputs * -(-len(self.run.run_json["shards"]) // USUAL_SHARDS)
        return cut(chunks, None, interval, (position,), n_numbers, is_sliced)

    def drive(self, client: Client, manifest: Manifest | None, lease: Lease) -> Manifest | None:
        """Run the coordinator to the end; record the attempt in the run folder."""
        with self.noted(lease):
            return self.learn(client, manifest, lease)

    @contextmanager
    def noted(self, lease: Lease) -> Iterator[None]:
        """Record the block as an attempt when it ends: how long it took, and how it ended."""
        began, started = time.time(), time.monotonic()
        outcome, failure = "failed", None
        try:
            yield
            outcome = "finished"
        except KeyboardInterrupt:
            outcome = "stopped" if self._is_stopped else "interrupted"
            raise
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            seconds, rows = time.monotonic() - started, self.summary["rows"]
            self.summary |= {"seconds": seconds, "rows_per_second": rows / max(seconds, 1e-9)}
            lease.end(outcome, failure)
            self._note(began, outcome, failure)

    def learn(self, client: Client, manifest: Manifest | None, lease: Lease) -> Manifest | None:
        """Run the coordinator to the end of the rows; return the last checkpoint.

        Raises
        ------
        KeyboardInterrupt
            A stop was asked for.
        DMondrianError
            See :func:`dmondrian.distributed.train`.
        """
        _register_shard_holder(client)
        timeline, events = Timeline(), self.options.events()
        alerts, url = self.options.alerts, self.main_run.url

        def listen(progress: Progress) -> None:
            timeline.add(progress)
            # Ctrl-C in another process that follows the run stops nothing.
            record = asdict(replace(progress, stops_at_once=False))
            lease.set_progress(record, timeline.all_points(), events.newest())
            if self.options.listener is not None:
                self.options.listener(progress)
            if self.options.metrics is not None:
                self.options.metrics.follow(progress)
            if alerts is not None:
                alerts.look(values_of(progress), progress.rows, url, events)

        def observe(row: int, progress: Progress) -> None:
            if progress.window:
                text = f"the last {counted(int(progress.window['rows']), 'row')} at row {row:,}"
                events.notify("window", text, row=row, metrics=dict(progress.window))
            if alerts is not None:
                alerts.look(values_of(progress), row, url, events)

        is_observed = alerts is not None or self.options.on_event is not None

        def begin() -> Coordinator:
            self.ledger = self.open(manifest)
            if manifest is not None and manifest.position > 0:
                what, n_rows = _resuming(manifest.position, self.n_rows), self.n_rows
                events.add("resuming", what, is_loss=False, row=manifest.position, n_rows=n_rows)
            return Coordinator(
                client, self.run, self.ledger, self.options.interval, self.plan, manifest,
                self.options.limits, ProgressReporter(listen), lease, events,
                lambda: _register_shard_holder(client), self.options.keep, self.options.validation,
                observe if is_observed else None, self.options.ends_whole,
            )  # fmt: skip

        coordinator = begin()
        started, is_finished = time.monotonic(), None
        try:
            with Interrupts() as interrupts:
                while is_finished is None:
                    try:
                        is_finished = coordinator.drive(interrupts)
                    except DamagedCheckpointError as damage:
                        assert coordinator.manifest is not None  # a blob of it is damaged
                        manifest = self.run.before(coordinator.manifest, damage)
                        if manifest is None and ROW_PARTS in self.run.run_json:
                            raise  # the first rows are learned side by side: see `_learn`
                        coordinator = begin()
        finally:
            resumed = 0 if manifest is None else manifest.position
            self._summarise(resumed, time.monotonic() - started, coordinator)
            self.hosts |= coordinator.hosts
            if alerts is not None:
                alerts.close(events)
        if not is_finished:
            self._is_stopped = True
            raise KeyboardInterrupt(_stopped_at(coordinator.durable, self.n_rows))
        return coordinator.manifest

    def merge(self, learned: Manifest, plan: Plan, client: Client, lease: Lease) -> Manifest:
        """Merge the trees of ranges of rows, which are learned to their ends; see `merge_ranges`.

        Raises
        ------
        CorruptError
            A state of a range is missing or damaged.
        KeyboardInterrupt
            A stop was asked for.
        """
        try:
            return merge_ranges(self.main_run, self.run, learned, plan, client, lease, self.hosts)
        except KeyboardInterrupt:
            self._is_stopped = True
            raise

    def _summarise(self, resumed: int, seconds: float, done: Coordinator | None) -> None:
        rows = self.n_rows - resumed
        if done is not None:
            rows = done.settled - resumed
        self.summary = {
            "n_rows": self.n_rows,
            "resumed_at": resumed,
            "rows": rows if done is not None else 0,
            "seconds": seconds,
            "rows_per_second": rows / seconds if seconds > 0 else 0.0,
            "checkpoints": done.checkpoints if done is not None else 0,
            "saving_seconds": done.schedule.saving if done is not None else 0.0,
            "recoveries": done.recoveries if done is not None else 0,
            "rows_replayed": done.replayed if done is not None else 0,
            "workers": len(done.hosts) if done is not None else 0,
            "shards": len(shard_trees(self.run.run_json)),
        }

    def _note(self, began: float, outcome: str, failure: str | None) -> None:
        info = {
            "began": began,
            "ended": time.time(),
            "outcome": outcome,
            "error": failure,
            "coordinator": socket.gethostname(),
            "workers": sorted(self.hosts),
            "summary": self.summary,
        }
        try:
            self.main_run.attempt(info)
        except Exception as error:  # noqa: BLE001 - a failure to record must not hide the outcome
            warnings.warn(f"the attempt could not be recorded: {error}", stacklevel=2)


def _earlier_in_chain(plan: Plan, digests: Collection[str | None]) -> tuple[tuple[int, str], ...]:
    """Return the earlier plans of a plan by those that a run's chain still has.

    Parameters
    ----------
    plan : Plan
    digests : collection of str
        Of the chain, which lacks plans that no checkpoint is of.

    Returns
    -------
    tuple of (int, str)
        For each: its number of rows, and the digest of the first plan of the chain with these rows.
    """
    earlier = plan.earlier
    # A part of a run may be newer than the run's first plans.
    begin = next(
        (k for k, (_, digest_then) in enumerate(earlier) if digest_then in digests), len(earlier)
    )
    earlier_in_chain, digest = [], plan.digest
    for n_rows, digest_then in reversed(earlier[begin:]):
        digest = digest_then if digest_then in digests else digest
        earlier_in_chain.append((n_rows, digest))
    return tuple(reversed(earlier_in_chain))


def _resuming(position: int, n_rows: int) -> str:
    share = 100 * position // max(1, n_rows)
    return f"resuming from row {position:,} of {n_rows:,} ({share}%)"


def _stopped_at(position: int, n_rows: int) -> str:
    if position == 0:
        return "stopped before a row was learned; run the same command again to begin"
    return (
        f"stopped at row {position:,} of {n_rows:,}, which is saved; run the same command again to "
        "go on from there"
    )


def _register_shard_holder(client: Client) -> None:
    """Register the plugin that holds shards, on all workers and those that join later."""
    try:
        register_plugin(client, ShardHolder())
    except Exception as error:
        raise ClusterError(
            f"the workers cannot use dmondrian ({type(error).__name__}: {error}); install the same "
            f"version on all hosts"
        ) from error
