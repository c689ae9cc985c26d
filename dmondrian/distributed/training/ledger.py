"""The ledger: the shards' answers for each unit, settled in stream order.

Relies on answers that are a pure function of shard and unit, so that the first one counts and
repeated ones are ignored. Promises that forecasts are summed over trees in a fixed order and scored
in stream order, whatever finishes first and however trees are cut into shards, so that metrics
depend on the stream and the trees alone: where rows are forecast in slices, because units end where
slices do (:mod:`dmondrian.distributed.worker.work_units`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dmondrian.checkpoint.kept_shares import KeptShares, SharesWriter
from dmondrian.checkpoint.manifest import shard_entry
from dmondrian.checkpoint.summary import Summary, total
from dmondrian.distributed.metrics.drift_test import drift_advice, drift_in_words
from dmondrian.distributed.metrics.progressive import WORSE, Progressive
from dmondrian.distributed.metrics.sortedness import Sortedness
from dmondrian.distributed.training.minibatch_barrier import MinibatchBarrier
from dmondrian.distributed.worker.add_forecasts import (
    RunningChunkSums,
    sums_of,
    without_forecasts,
)
from dmondrian.distributed.worker.messages import Answer, ChunkAnswer, ChunkSums
from dmondrian.distributed.worker.work_units import Unit
from dmondrian.drift.age_weights import cut_at_marks
from dmondrian.drift.guard import Guard, share_width, sum_shares
from dmondrian.drift.label_blocks import LabelBlock
from dmondrian.drift.waiting_rows import late_in_words
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.exact_sums import label_moments
from dmondrian.joint_fit.minibatch import batch_at
from dmondrian.prequential.forecast_lag import BATCHES, SLICES, slices
from dmondrian.prequential.forecasts import mean_over_trees
from dmondrian.prequential.stream_sample import Sampled, sum_samples
from dmondrian.uncertainty.temperature_scaling import (
    FittedCalibration,
    calibrated,
    calibrated_std,
    calibrates_std,
)

_log = logging.getLogger("dmondrian")

LATE_ROWS = "late_rows"
"""Name of the count of rows that came after the block of their time."""

ShardEntries = dict[int, dict[str, Any]]
"""What a manifest has of each shard's state, by shard."""

_LEAST_ROWS = 100  # before a warning about late rows


@dataclass
class _Forecasts:
    """Forecasts of a unit."""

    shards: set[int] = field(default_factory=set)  # whose forecasts are in the sums
    sums: list[RunningChunkSums] = field(default_factory=list)  # of each chunk


class Ledger:
    """Pending answers of the shards, and the metrics of settled units.

    Parameters
    ----------
    units : list of Unit
    n_shards, n_trees : int
        Shards of the run, and trees of all shards.
    progressive : Progressive or None
        Metrics so far; None if rows are not forecast before they are learned.
    calibration : Calibration, VarianceFactor or None
        Calibration fitted so far; None if none is fitted. Rows are scored with the calibration
        at the time of their forecast.
    counts : dict
        Clipped, unseen and dropped values so far.
    settled : int
        Number of units settled before.
    parameters : ForestParameters
        Parameters of the forest. With a joint fit, shards learn each mini-batch together.
    sortedness : Sortedness or None
        Receives the targets.
    guard : Guard or None
        Of a forest that follows the stream, as it was after the units settled before.
    writer : SharesWriter or None
        Stores what the members of this run forecast, for members that are added later.
    shares_of_others : KeptShares or None
        What the members of other runs forecast, which are one forest with those of this run.
    n_parts : int
        Ranges of rows, each learned by equally many of the shards. With more than one no row is
        forecast.
    """

    def __init__(
        self,
        units: list[Unit],
        n_shards: int,
        n_trees: int,
        progressive: Progressive | None,
        calibration: FittedCalibration | None,
        counts: dict[str, int],
        settled: int,
        parameters: ForestParameters,
        sortedness: Sortedness | None = None,
        guard: Guard | None = None,
        writer: SharesWriter | None = None,
        shares_of_others: KeptShares | None = None,
        n_parts: int = 1,
    ) -> None:
        self.units = units
        self.settled = settled
        self.progressive = progressive
        self.calibration = calibration
        self.guard = guard
        self.writer = writer
        self._others = shares_of_others
        self.counts = dict(counts)
        self.summary: Summary | None = None  # of the trees saved with the last settled unit
        self._n_shards, self._n_parts = n_shards, n_parts
        self._n_trees = n_trees
        self._parameters = parameters
        self._sortedness = sortedness
        self._barrier = MinibatchBarrier(n_shards, n_trees) if parameters.learns_jointly else None
        self._answers: dict[int, dict[int, Answer]] = {}
        self._forecasts: dict[int, _Forecasts] = {}
        self._is_warned = False  # about forecasts worse than the mean label
        self._is_warned_of_late = guard is not None and guard.blocks.clock.n_late > 0
        self._is_warned_of_drift = progressive is not None and progressive.has_drifted

    def has(self, shard: int, unit: int) -> bool:
        """Return whether this shard's answer for this unit is pending or settled."""
        return unit < self.settled or shard in self._answers.get(unit, {})

    @property
    def needs_forecasts(self) -> bool:
        """Whether shards must forecast rows before learning them."""
        is_scored = self.progressive is not None and self._barrier is None
        return is_scored or self.guard is not None

    @property
    def forecast_width(self) -> int:
        """Numbers that a shard forecasts of a row; 0 if it forecasts none."""
        if not self.needs_forecasts:
            return 0
        return share_width(self._parameters) if self.guard else self._parameters.n_outputs

    @property
    def n_waiting(self) -> int:
        """How many of the rows settled wait for their labels, and are not learned by trees yet."""
        return 0 if self.guard is None else self.guard.rows_so_far["waiting"]

    def can_learn(self, unit: int) -> bool:
        """Return whether shards can learn a unit: joint fits need the mean prediction first."""
        return self._barrier is None or self._barrier.mean(unit) is not None

    def mean(self, unit: int) -> np.ndarray | None:
        """Return the mean prediction of all trees for a unit, float64 [n, k]; None if not joint."""
        return None if self._barrier is None else self._barrier.mean(unit)

    def next_stop(self, unit: int) -> int:
        """Return the end of the mini-batch of a unit for joint fits; 0 for none."""
        return 0 if self._barrier is None or unit >= len(self.units) else self.units[unit].stop

    def take_sums(self, shard: int, unit: int, sums: np.ndarray | None) -> None:
        """Record a shard's summed predictions for a unit."""
        if self._barrier is not None:
            self._barrier.take(shard, unit, sums)

    def take(self, shard: int, unit: int, answer: Answer) -> None:
        """Record an answer; repeated ones are ignored."""
        if not self.has(shard, unit):
            if any(chunk.has_forecasts for chunk in answer.chunks):
                sums = [sums_of(shard, chunk) for chunk in answer.chunks]
                self.take_forecasts(unit, {shard}, sums)
                answer = without_forecasts(answer)
            self._answers.setdefault(unit, {})[shard] = answer

    def take_forecasts(self, unit: int, shards: set[int], sums: list[ChunkSums]) -> set[int]:
        """Record forecasts of a unit, summed over shards; return the shards that still lack some.

        A sum over shards of which some have forecasts already is not used.

        Parameters
        ----------
        unit : int
        shards : set of int
        sums : list of ChunkSums
            Of each chunk of the unit.
        """
        if unit < self.settled:
            return set()
        forecasts = self._forecasts.setdefault(unit, _Forecasts())
        if forecasts.shards.isdisjoint(shards):
            forecasts.shards |= shards
            forecasts.sums = forecasts.sums or [RunningChunkSums() for _ in sums]
            for running, chunk_sums in zip(forecasts.sums, sums, strict=True):
                running.add(chunk_sums)
        return shards - forecasts.shards

    def has_forecasts(self, shard: int, unit: int) -> bool:
        """Return whether a shard's forecasts of a unit are there, or are not needed."""
        if not self.needs_forecasts or unit < self.settled:
            return True
        return unit in self._forecasts and shard in self._forecasts[unit].shards

    def needs_samples(self, forecasts: bool) -> bool:
        """Return whether an order is to return forecasts of a sample of rows, for the calibration.

        Where all rows are forecast, only the orders that return these do: both are summed together.

        Parameters
        ----------
        forecasts : bool
            Whether the order is to return forecasts of all rows.
        """
        return self.calibration is not None and (forecasts or not self.needs_forecasts)

    def is_ready(self) -> bool:
        """Return whether all shards have answered for the oldest unsettled unit."""
        return len(self._answers.get(self.settled, {})) == self._n_shards

    def settle(self) -> tuple[Unit, ShardEntries]:
        """Score the oldest unsettled unit; return it and the states saved at its end."""
        unit = self.units[self.settled]
        answers = self._answers.pop(self.settled)
        self.settled += 1
        mean = self.mean(unit.index)
        by_shard = [answers[shard].chunks for shard in sorted(answers)]
        forecasts = self._forecasts.pop(unit.index, _Forecasts())
        # `take` has recorded the forecasts of an answer, or `take_forecasts` a sum with them.
        assert len(forecasts.shards) in (0, self._n_shards)
        n_each = self._n_shards // self._n_parts
        for first in range(0, self._n_shards, n_each):  # shards of the same rows
            for i, chunks in enumerate(zip(*by_shard[first : first + n_each], strict=True)):
                self._score(chunks, mean, forecasts.sums[i] if forecasts.sums else None)
                if self._sortedness is not None and chunks[0].y is not None:
                    self._sortedness.add(chunks[0].y)
        saved = {
            shard: shard_entry(answer.saved, answer.base)
            for shard, answer in sorted(answers.items())
            if answer.saved is not None
        }
        self.summary = total([answer.summary for answer in answers.values()])
        if self._barrier is not None and len(saved) == self._n_shards:
            self._barrier.forget_before(self.settled)
        return unit, saved

    def _score(
        self,
        chunks: tuple[ChunkAnswer, ...],
        mean: np.ndarray | None,
        sums: RunningChunkSums | None,
    ) -> None:
        """Add the counts of consecutive rows, and score their forecasts, summed over trees.

        ``mean`` is the mean prediction of all trees, if known; ``sums`` are over all shards.
        """
        first = chunks[0]
        for name, count in first.counts.items():
            if count:
                self.counts[name] = self.counts.get(name, 0) + int(count)
        if first.y is None:
            return
        sampled = [chunk.sampled for chunk in chunks if chunk.sampled is not None]
        # Where rows are not forecast but for these.
        drawn = sum_samples(sampled) if sampled else None
        if sums is not None and sums.sampled is not None:
            drawn = sums.sampled
        if mean is None and sums is not None and sums.total is not None:
            mean = mean_over_trees(sums.total, self._n_trees)
        after_learning = None if self.progressive is None else self._rows_after_learning(first)
        n_before, n_early, std = 0, 0, None
        if self.guard is not None:
            assert sums is not None  # it needs forecasts
            n_before, n_early = self.guard.position, self._n_early(self.guard, first)
            mean, std = self._mix_by_guard(self.guard, first, sums)
        if self.progressive is None or mean is None:
            self._calibrate(drawn, first.y)
            return
        self._cover(mean, std, first, n_early)
        mean = self._calibrated(self._parameters.forecasts(mean), first.y, drawn)
        if n_early > 0:
            mean = self._with_first_label(mean, first.y, first.weight, n_before, n_early)
        mean = self._without_first(mean, first.y, first.weight)
        self.progressive.add(mean, first.y, first.weight, after_learning, first.earlier)
        self._warn_of_drift()
        if self.progressive.is_worse_than_mean and not self._is_warned:
            self._is_warned = True
            _log.warning(WORSE)

    def _cover(
        self, mean: np.ndarray, std: np.ndarray | None, chunk: ChunkAnswer, n_early: int
    ) -> None:
        """Count how many labels lie below quantiles, or within intervals, as they are forecast."""
        assert self.progressive is not None  # both are checked by the caller
        assert chunk.y is not None
        w = np.ones(len(chunk.y)) if chunk.weight is None else chunk.weight
        coverage = self.progressive.outcomes.coverage
        if self._parameters.levels:
            coverage.add_quantiles(mean, self._parameters.levels, chunk.y, w)
        elif std is not None:  # no label was learned before the first rows
            known = np.where(np.cumsum(w > 0.0) > n_early, std, np.nan)
            coverage.add_deviations(mean[:, 0] - chunk.y, known, w)

    def _rows_after_learning(self, chunk: ChunkAnswer) -> list[int] | None:
        """Return which rows of a chunk are forecast after the one before them was learned.

        None where the delay tells it.
        """
        assert self.progressive is not None  # both are checked by the caller
        assert chunk.y is not None
        if self.progressive.kind == SLICES:
            return [start for start, _ in slices(chunk.start, len(chunk.y), chunk.dropped)]
        if self.progressive.kind == BATCHES:
            begins = batch_at(chunk.start, self._parameters.joint.batch_size)[0] == chunk.start
            return [0] if begins and len(chunk.y) else []
        if self.guard is not None and self.guard.blocks.is_timed:
            rows = np.arange(len(chunk.y)) if chunk.weight is None else np.flatnonzero(chunk.weight)
            return [
                int(rows[part.start])
                for part, is_after_end, _ in self._label_blocks(self.guard, chunk)
                if is_after_end or self.guard.position + part.start == 0
            ]
        return None

    def _label_blocks(self, guard: Guard, chunk: ChunkAnswer) -> list[LabelBlock]:
        """Return the blocks of labels of a chunk's rows of positive weight, not mixed yet."""
        y, times = chunk.y, chunk.times
        assert y is not None  # checked by the caller
        kept = np.ones(len(y), np.bool_) if chunk.weight is None else chunk.weight > 0.0
        times_kept = None if times is None else times[kept]
        return list(guard.blocks.cut(guard.position, int(np.count_nonzero(kept)), times_kept))

    def _n_early(self, guard: Guard, chunk: ChunkAnswer) -> int:
        """Return how many rows of positive weight are forecast before any is learned."""
        if not guard.blocks.is_timed:
            return guard.blocks.delay - guard.position
        if guard.rows_so_far["learned"]:
            return 0
        return sum(part.stop - part.start for part, *_ in self._label_blocks(guard, chunk)[:1])

    def _warn_of_drift(self) -> None:
        """Warn, once, if the last rows show that the stream drifts."""
        stream = self.progressive.stream if self.progressive is not None else None
        if stream is None or stream.newest_rise is None or self._is_warned_of_drift:
            return
        self._is_warned_of_drift = True
        what = drift_in_words(stream.test, stream.task)
        advice = drift_advice(self._parameters.algorithm, self._parameters.follows_stream)
        _log.warning("%s%s", what, advice)

    def _mix_by_guard(
        self, guard: Guard, chunk: ChunkAnswer, sums: RunningChunkSums
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the forecasts of consecutive rows by a guard, which learns their labels.

        Of numbers also standard deviations of the label, float64 [n]. Rows of weight 0 have none,
        and count nothing: all classes are as likely there, numbers 0.
        """
        y, w, shares = chunk.y, chunk.weight, sums.shares
        assert y is not None  # checked by the caller
        assert shares is not None  # all shards have forecast
        kept = np.ones(len(y), np.bool_) if w is None else w > 0.0
        weights = np.empty(0) if w is None else w[kept]
        times = None if chunk.times is None else chunk.times[kept]
        start, parts, n_rows = guard.position, [], int(np.count_nonzero(kept))
        exponents = {
            start + part.stop: np.concatenate(
                [at_marks[start + part.stop] for _, at_marks in sorted(sums.exponents.items())]
            )
            for part, is_mark in cut_at_marks(start, n_rows)
            if is_mark
        }
        if self.writer is not None:
            self.writer.add(shares, exponents)
        if self._others is not None and n_rows:
            shares = sum_shares([*self._others.of(start, n_rows), shares])
            exponents = {
                at: np.concatenate([self._others.exponents_at(at), exponents_here])
                for at, exponents_here in exponents.items()
            }
        for part, is_mark in cut_at_marks(start, n_rows):
            of_part = {key: whole[part] for key, whole in shares.items()}
            part_times = None if times is None else times[part]
            parts.append(guard.mix_and_step(of_part, y[kept][part], weights[part], part_times))
            if is_mark and self.progressive is not None:
                age_shares = guard.age_shares(exponents[start + part.stop])
                self.progressive.ages.add(start + part.stop, age_shares.tolist())
        self._note_late(guard)
        k, n_classes = self._parameters.n_outputs, self._parameters.n_classes
        mean = np.full((len(y), k), 1.0 / n_classes if n_classes else 0.0)
        std = None if n_classes else np.full(len(y), np.nan)
        if parts:
            mixed = np.concatenate(parts)
            mean[kept] = mixed[:, :k]  # of numbers the mean
            if std is not None:
                std[kept] = np.sqrt(mixed[:, 1])
        return mean, std

    def _note_late(self, guard: Guard) -> None:
        """Count rows that came after the block of their time; warn, once, if they are many."""
        n_late = guard.blocks.clock.n_late
        if n_late:
            self.counts[LATE_ROWS] = n_late
        if self._is_warned_of_late or guard.position < _LEAST_ROWS:
            return
        if (text := late_in_words(n_late, guard.position)) is not None:
            self._is_warned_of_late = True
            _log.warning(text)

    def _without_first(
        self, mean: np.ndarray, y: np.ndarray, weight: np.ndarray | None
    ) -> np.ndarray:
        """Return regression forecasts with the first weighted row of the stream set to its label.

        An empty forest predicts 0, whose error may exceed all later ones, so the first row counts
        as a row without error; so do the other rows of its mini-batch.
        """
        totals = self.progressive
        assert totals is not None  # checked by the caller
        if totals.task != "regression" or totals.start > 0:
            return mean
        if totals.weight > 0.0:
            return mean
        known = np.flatnonzero(np.ones(len(y)) if weight is None else weight)
        stop = int(known[0]) + 1 if len(known) and totals.kind != BATCHES else len(y)
        return np.concatenate([y[:stop, None], mean[stop:]])

    def _with_first_label(
        self,
        mean: np.ndarray,
        y: np.ndarray,
        weight: np.ndarray | None,
        n_before: int,
        n_early: int,
    ) -> np.ndarray:
        """Return forecasts of numbers with those of the first ``n_early`` rows set to one label.

        That is the first label of the stream: no label was learned before these rows. Rows are
        counted that have a weight, of which ``n_before`` came in earlier chunks.
        """
        totals = self.progressive
        kept = np.ones(len(y), np.bool_) if weight is None else weight > 0.0
        is_first = totals is not None and totals.task == "regression" and totals.start == 0
        if totals is None or totals.stream is None or not is_first or not (n_before or kept.any()):
            return mean
        label = totals.stream.baselines.mean[0] if n_before else y[np.argmax(kept)]
        return np.where((np.cumsum(kept) <= n_early)[:, None], label, mean)

    def _calibrated(self, mean: np.ndarray, y: np.ndarray, drawn: Sampled | None) -> np.ndarray:
        """Return a chunk's forecasts, each calibrated by the rows before it."""
        if self.calibration is None or drawn is None:
            return calibrated(mean, self.calibration)
        result, start = np.empty_like(mean), 0
        for i, row in enumerate(drawn.rows.tolist()):
            result[start : row + 1] = self.calibration.apply(mean[start : row + 1])
            sampled = Sampled(*(column[i : i + 1] for column in drawn))
            self._cover_one(sampled, y)
            self._calibrate(sampled, y)
            start = row + 1
        result[start:] = self.calibration.apply(mean[start:])
        return result

    def _cover_one(self, sampled: Sampled, y: np.ndarray) -> None:
        """Count whether a label lies within the intervals of its sampled forecast, of a number."""
        if self.progressive is None or not calibrates_std(self.calibration):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            mean, variance = label_moments(sampled.sums, self._n_trees, sampled.units)
            std = calibrated_std(variance, self.calibration)
            error = mean - y[sampled.rows]
        self.progressive.outcomes.coverage.add_deviations(error, std, sampled.hits)

    def _calibrate(self, drawn: Sampled | None, y: np.ndarray) -> None:
        """Update the calibration with sampled forecasts of a chunk's rows."""
        if self.calibration is not None and drawn is not None:
            self.calibration = self.calibration.after(drawn, y, self._n_trees)

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of all settled units, as stored in a manifest."""
        metrics: dict[str, Any] = {"counts": dict(sorted(self.counts.items()))}
        if self.progressive is not None:
            metrics["totals"] = self.progressive.totals()
            metrics["progressive"] = self.progressive.to_json()
        if self.calibration is not None:
            metrics["calibration"] = self.calibration.to_json()
        if self.guard is not None:
            metrics["guard"] = self.guard.to_json()
        return metrics
