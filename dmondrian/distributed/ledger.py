"""The ledger: what every shard answered for every unit, settled in stream order.

Relies on answers that are a pure function of shard and unit, so that the first one counts and a
repeated one is ignored. Promises that forecasts are added in the order of the shards and scored in
the order of the stream, whatever finished first, so that metrics depend on the plan alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian.calibration import Fitted, calibrated
from dmondrian.checkpoint.summary import Summary, total
from dmondrian.cost import Cost, forecasts
from dmondrian.distributed.metrics import Progressive, slices
from dmondrian.distributed.orders import Answer, BlockAnswer
from dmondrian.distributed.rounds import Rounds
from dmondrian.distributed.sortedness import Sortedness
from dmondrian.distributed.units import Unit
from dmondrian.joint import Joint
from dmondrian.sampled import Sampled, add

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
    cost : Cost or Joint or None
        Of a forest whose sums are no forecasts of the label yet. Cells that are fitted jointly are
        learned in rounds.
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
        cost: Cost | Joint | None = None,
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
        self._cost = cost
        self._sortedness = sortedness
        self._rounds = Rounds(n_shards, n_trees) if isinstance(cost, Joint) else None
        self._answers: dict[int, dict[int, Answer]] = {}

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
        """Add the counts of consecutive rows and, summed in shard order, their forecasts.

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
        if mean is None and speaker.total is not None:
            total = speaker.total.copy()
            for block in blocks[1:]:
                total += block.total
            mean = total / self._n_trees
        if self.progressive is None or mean is None:
            self._calibrate(drawn, speaker.y, 0, len(speaker.y))
            return
        mean = forecasts(self._cost, mean)
        weight = speaker.weight
        for start, stop in slices(speaker.start, len(speaker.y)):
            w = None if weight is None else weight[start:stop]
            self.progressive.add(
                calibrated(mean[start:stop], self.calibration), speaker.y[start:stop], w
            )
            self._calibrate(drawn, speaker.y, start, stop)

    def _calibrate(self, drawn: Sampled | None, y: np.ndarray, start: int, stop: int) -> None:
        """Take the sampled forecasts of some of a block's rows into the calibration."""
        if self.calibration is not None and drawn is not None:
            part = drawn.between(start, stop)
            self.calibration = self.calibration.after(part, y, self._n_trees)

    def metrics(self) -> dict[str, Any]:
        """Return what a manifest says of the stream up to here."""
        told: dict[str, Any] = {"counts": dict(sorted(self.counts.items()))}
        if self.progressive is not None:
            told["totals"] = self.progressive.totals()
            told["progressive"] = self.progressive.to_json()
        if self.calibration is not None:
            told["calibration"] = self.calibration.to_json()
        return told
