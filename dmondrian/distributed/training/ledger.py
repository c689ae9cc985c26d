"""The ledger: what every shard answered for every unit, settled in stream order.

Relies on answers that are a pure function of shard and unit, so that the first one counts and a
repeated one is ignored. Promises that forecasts are summed over trees in a fixed way and scored in
the order of the stream, whatever finished first and however trees are cut into shards, so that
metrics depend on the stream and the trees alone: where rows are forecast in slices, because units
end where slices do (:mod:`dmondrian.distributed.worker.work_units`).
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from dmondrian.checkpoint.summary import Summary, total
from dmondrian.distributed.metrics.progressive import WORSE, Progressive
from dmondrian.distributed.metrics.sortedness import Sortedness
from dmondrian.distributed.training.minibatch_barrier import Rounds
from dmondrian.distributed.worker.messages import Answer, BlockAnswer
from dmondrian.distributed.worker.work_units import Unit
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.prequential.forecast_lag import BATCHES
from dmondrian.prequential.forecasts import mean_over_trees
from dmondrian.prequential.stream_sample import Sampled, add
from dmondrian.uncertainty.temperature_scaling import Fitted, calibrated, tells_labels

_log = logging.getLogger("dmondrian")

Saved = dict[int, dict[str, Any]]  # shard: {"digest", "bytes"}


class Ledger:
    """Answers that are not settled yet, and the totals of those that are.

    Parameters
    ----------
    units : list of Unit
    n_shards, n_trees : int
        Shards, and trees of all of them.
    progressive : Progressive or None
        Totals so far; None where rows are not forecast before they are learned.
    calibration : Calibration, VarianceFactor or None
        That of the forecasts so far; None where none is fitted. Rows are scored as it stands
        when they are forecast.
    counts : dict
        Values clipped, unseen or dropped so far.
    settled : int
        Units that were settled before.
    parameters : ForestParameters
        Of the forest. Cells that are fitted jointly are learned in rounds.
    sortedness : Sortedness or None
        Is told the targets.
    """

    def __init__(
        self,
        units: list[Unit],
        n_shards: int,
        n_trees: int,
        progressive: Progressive | None,
        calibration: Fitted | None,
        counts: dict[str, int],
        settled: int,
        parameters: ForestParameters,
        sortedness: Sortedness | None = None,
    ) -> None:
        self.units = units
        self.settled = settled
        self.progressive = progressive
        self.calibration = calibration
        self.counts = dict(counts)
        self.summary: Summary | None = None  # of the trees that the last unit settled saved
        self._n_shards = n_shards
        self._n_trees = n_trees
        self._parameters = parameters
        self._sortedness = sortedness
        self._rounds = Rounds(n_shards, n_trees) if parameters.learns_jointly else None
        self._answers: dict[int, dict[int, Answer]] = {}
        self._is_warned = False  # of forecasts worse than the mean label

    def has(self, shard: int, unit: int) -> bool:
        """Say whether this shard's answer for this unit is here, or settled."""
        return unit < self.settled or shard in self._answers.get(unit, {})

    @property
    def needs_forecasts(self) -> bool:
        """Whether shards are to forecast rows just before they learn them."""
        return self.progressive is not None and self._rounds is None

    def can_learn(self, unit: int) -> bool:
        """Say whether all is known that shards need to learn a unit."""
        return self._rounds is None or self._rounds.mean(unit) is not None

    def mean(self, unit: int) -> np.ndarray | None:
        """Return what all trees say of a unit, where cells are fitted jointly; float64 [n, k]."""
        return None if self._rounds is None else self._rounds.mean(unit)

    def ahead(self, unit: int) -> int:
        """Return where a unit ends that shards are to take in before they learn it; 0 for none."""
        return 0 if self._rounds is None or unit >= len(self.units) else self.units[unit].stop

    def hear(self, shard: int, unit: int, sums: np.ndarray | None) -> None:
        """Note what a shard says of a unit that it has taken in."""
        if self._rounds is not None:
            self._rounds.take(shard, unit, sums)

    def take(self, shard: int, unit: int, answer: Answer) -> None:
        """Note an answer, unless it is a repeated one."""
        if not self.has(shard, unit):
            self._answers.setdefault(unit, {})[shard] = answer

    def is_ready(self) -> bool:
        """Say whether all shards answered for the oldest unit that is not settled."""
        return len(self._answers.get(self.settled, {})) == self._n_shards

    def settle(self) -> tuple[Unit, Saved]:
        """Score the oldest unit; return it with what the shards saved at its end."""
        unit = self.units[self.settled]
        answers = self._answers.pop(self.settled)
        self.settled += 1
        mean = self.mean(unit.index)
        by_shard = [answers[shard].blocks for shard in sorted(answers)]
        for blocks in zip(*by_shard, strict=True):
            self._score(blocks, mean)
            if self._sortedness is not None and blocks[0].y is not None:
                self._sortedness.add(blocks[0].y)
        saved = {
            shard: {"digest": answer.saved[0], "bytes": answer.saved[1]}
            for shard, answer in sorted(answers.items())
            if answer.saved is not None
        }
        self.summary = total([answer.summary for answer in answers.values()])
        if self._rounds is not None and len(saved) == self._n_shards:
            self._rounds.forget_before(self.settled)
        return unit, saved

    def _score(self, blocks: tuple[BlockAnswer, ...], mean: np.ndarray | None) -> None:
        """Add the counts of consecutive rows and, summed over trees, their forecasts.

        ``mean`` is what all trees say, if that is known.
        """
        speaker = blocks[0]
        for name, count in speaker.counts.items():
            if count:
                self.counts[name] = self.counts.get(name, 0) + int(count)
        if speaker.y is None:
            return
        sampled = [block.sampled for block in blocks if block.sampled is not None]
        drawn = add(sampled) if sampled else None
        totals = [block.total for block in blocks if block.total is not None]
        if mean is None and totals:
            mean = mean_over_trees(totals, self._n_trees)
        if self.progressive is None or mean is None:
            self._calibrate(drawn, speaker.y)
            return
        mean = self._calibrated(self._parameters.forecasts(mean), speaker.y, drawn)
        mean = self._begun(mean, speaker.y, speaker.weight)
        self.progressive.add(mean, speaker.y, speaker.weight)
        if self.progressive.is_worse_than_mean and not self._is_warned:
            self._is_warned = True
            _log.warning(WORSE)

    def _begun(self, mean: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        """Return forecasts of numbers without that of the stream's first row of any weight.

        It cannot be forecast, and counts as a row without error: 0, which forests say before they
        know a label, may be farther off than all errors to come. So do the rows that share a
        mini-batch with it.
        """
        totals = self.progressive
        assert totals is not None  # who calls knows
        if totals.task != "regression" or totals.start > 0 or totals.weight > 0.0:
            return mean
        known = np.flatnonzero(np.ones(len(y)) if weight is None else weight)
        stop = int(known[0]) + 1 if len(known) and totals.kind != BATCHES else len(y)
        return np.concatenate([y[:stop, None], mean[stop:]])

    def _calibrated(self, mean: np.ndarray, y: np.ndarray, drawn: Sampled | None) -> np.ndarray:
        """Return a block's forecasts, each calibrated by what the rows before it tell."""
        if self.calibration is None or drawn is None or tells_labels(self.calibration):
            told = calibrated(mean, self.calibration)  # a factor of variances leaves means alone
            self._calibrate(drawn, y)
            return told
        told, start = np.empty_like(mean), 0
        for i, row in enumerate(drawn.rows.tolist()):
            told[start : row + 1] = self.calibration.apply(mean[start : row + 1])
            self._calibrate(Sampled(*(column[i : i + 1] for column in drawn)), y)
            start = row + 1
        told[start:] = self.calibration.apply(mean[start:])
        return told

    def _calibrate(self, drawn: Sampled | None, y: np.ndarray) -> None:
        """Take sampled forecasts of a block's rows into the calibration."""
        if self.calibration is not None and drawn is not None:
            self.calibration = self.calibration.after(drawn, y, self._n_trees)

    def metrics(self) -> dict[str, Any]:
        """Return what a manifest says of the stream up to here."""
        told: dict[str, Any] = {"counts": dict(sorted(self.counts.items()))}
        if self.progressive is not None:
            told["totals"] = self.progressive.totals()
            told["progressive"] = self.progressive.to_json()
        if self.calibration is not None:
            told["calibration"] = self.calibration.to_json()
        return told
