"""Test-then-train metrics, summed block by block, and metrics of held-out rows.

Relies on summed predictions of all trees (float64 [n, K]) and on blocks that arrive in stream
order. Promises that the accumulators go through JSON without loss (a resumed run goes on with the
same numbers) and that the learning curve stays bounded: its points are thinned by their number
alone, so that equal positions have equal curves.

Shapes: n rows, K outputs (classes, or 1 for regression).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dmondrian.distributed.outcomes import Outcomes
from dmondrian.errors import CorruptError

CURVE_POINTS = 256
"""Most points a learning curve keeps; then every second one is dropped."""

_OCTAVE = 8  # slices of a doubling of the stream: no row is forecast with less than 8/9 of its past
_SLICE_LEAST, _SLICE_MOST = 32, 4096  # rows; small calls cost more than they tell


def slices(position: int, n: int) -> Iterator[tuple[int, int]]:
    """Cut a block's rows where test turns to train; a function of the position alone.

    Parameters
    ----------
    position : int
        Position of the block's first row in the stream.
    n : int
        Rows of the block.

    Yields
    ------
    (int, int)
        First row and row behind the last, within the block.
    """
    start = 0
    while start < n:
        octave = 1 << max(0, (position + start).bit_length() - 1)
        size = min(max(octave // _OCTAVE, _SLICE_LEAST), _SLICE_MOST)
        stop = min(n, start + size)
        yield start, stop
        start = stop


class Progressive:
    """Cumulative metrics of rows forecast before they are learned.

    Parameters
    ----------
    task : {"classification", "regression"}
    """

    def __init__(self, task: str) -> None:
        self.task = task
        self.rows = 0  # rows seen
        self.weight = 0.0  # their weight
        self.sums = [0.0, 0.0]  # log loss and hits, or squared and absolute errors
        self.moments = [0.0, 0.0]  # mean of y and sum of squared deviations (regression)
        self.stride = 1  # a curve point is kept each `stride` slices
        self.slice = 0  # slices seen
        self.curve: list[list[float]] = []  # rows and the two metrics
        self.outcomes = Outcomes(task)

    def add(self, mean: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Add one slice: `mean` float64 [n, K], `y` float64 [n], `weight` float64 [n] or None."""
        w = np.ones(len(y)) if weight is None else weight
        if self.task == "classification":
            loss, hit = _class_terms(mean, y)
            terms = loss, hit.astype(np.float64)
        else:
            error = mean[:, 0] - y
            terms = error * error, np.abs(error)
            self._add_moments(y, w)
        self.outcomes.add(mean, y, w)
        self.rows += len(y)
        self.weight += float(w.sum())
        for k in range(2):
            self.sums[k] += float((w * terms[k]).sum())
        self.slice += 1
        if self.slice % self.stride == 0:
            self.curve.append([self.rows, *self.totals().values()][:3])
            if len(self.curve) > CURVE_POINTS:
                self.stride *= 2
                self.curve = self.curve[1::2]

    def _add_moments(self, y: np.ndarray, w: np.ndarray) -> None:
        """Join the slice's mean and squared deviations to those of the rows before it."""
        total = float(w.sum())
        if total == 0.0:
            return
        mean = float((w * y).sum()) / total
        spread = float((w * (y - mean) ** 2).sum())
        step = mean - self.moments[0]
        joined = self.weight + total
        self.moments[0] += step * total / joined
        self.moments[1] += spread + step * step * self.weight * total / joined

    def totals(self) -> dict[str, float]:
        """Metrics of all rows so far; empty before the first weighted row."""
        if self.weight == 0.0:
            return {}
        first, second = (s / self.weight for s in self.sums)
        if self.task == "classification":
            return {"log_loss": first, "accuracy": second}
        explained = 1.0 - self.sums[0] / self.moments[1] if self.moments[1] > 0 else 0.0
        return {"rmse": first**0.5, "mae": second, "r2": explained}

    def report(self) -> dict[str, Any]:
        """Totals, rows and the learning curve, as a person reads them."""
        names = ["rows", *self.totals()][:3]
        curve = [dict(zip(names, point, strict=True)) for point in self.curve]
        return {"rows": self.rows, **self.totals(), "curve": curve}

    def to_json(self) -> dict[str, Any]:
        """All accumulators; floats go through JSON exactly."""
        return {"task": self.task, "rows": self.rows, "weight": self.weight, "sums": self.sums,
                "moments": self.moments, "stride": self.stride, "slice": self.slice,
                "curve": self.curve, "outcomes": self.outcomes.to_json()}  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Progressive:
        """Return the accumulators that `to_json` wrote.

        Raises
        ------
        CorruptError
            They are not such.
        """
        try:
            self = cls(data["task"])
            self.rows, self.weight = int(data["rows"]), _number(data["weight"])
            self.sums = [_number(value) for value in data["sums"]]
            self.moments = [_number(value) for value in data["moments"]]
            self.stride, self.slice = int(data["stride"]), int(data["slice"])
            self.curve = [[_number(value) for value in point] for point in data["curve"]]
            for point in self.curve:
                point[0] = int(point[0])
            self.outcomes = Outcomes.from_json(self.task, data.get("outcomes"))
        except (KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
            told = repr(error)[:200]
            raise CorruptError(f"the stored metrics cannot be read: {told}") from error
        is_sound = self.task in ("classification", "regression") and self.stride >= 1
        lengths = {len(point) for point in self.curve} | {len(self.sums) + 1, len(self.moments) + 1}
        if not is_sound or lengths != {3} or len(self.curve) > CURVE_POINTS:
            raise CorruptError("the stored metrics are of another shape than metrics have")
        return self


def _number(value: Any) -> float:
    """Return a stored number; what was not finite is null in a manifest."""
    if value is None:
        return math.nan
    if type(value) not in (int, float):
        raise TypeError(f"{str(value)[:80]!r} is no number")
    return float(value)


def read_counts(metrics: dict[str, Any]) -> dict[str, int]:
    """Return a manifest's counts of values clipped, unseen or dropped.

    Raises
    ------
    CorruptError
        They are not such.
    """
    counts = metrics.get("counts", {})
    is_sound = isinstance(counts, dict) and all(type(n) is int for n in counts.values())
    if not is_sound:
        raise CorruptError(f"the stored counts cannot be read: {str(counts)[:80]!r}")
    return dict(counts)


def _class_terms(mean: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log loss in nats and hits of each row; probabilities are floored as scikit-learn does."""
    label = y.astype(np.int64)
    share = mean[np.arange(len(y)), label]
    floor = np.finfo(np.float64).eps
    return -np.log(np.clip(share, floor, 1.0)), mean.argmax(axis=1) == label


_Z_90 = 1.6448536269514722  # between minus and plus so many deviations lie 90 % of a Gaussian


def _gaussian_terms(error: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log loss in nats, and hits of the central 90 %; without spread all is won or lost."""
    nats = np.where(error == 0.0, -np.inf, np.inf)
    with np.errstate(over="ignore"):
        scores = np.divide(error, std, out=np.zeros(len(std)), where=std > 0.0)
        np.log(std, out=nats, where=std > 0.0)
        nats += 0.5 * (math.log(2.0 * math.pi) + scores * scores)
    return nats, np.abs(error) <= _Z_90 * std


class HeldOut:
    """Metrics of rows that were not learned, added block by block.

    Parameters
    ----------
    task : {"classification", "regression"}
    levels : sequence of float
        Of quantiles; forecasts then have these behind the one that stands for all.
    tells_std : bool
        Whether forecasts have a standard deviation of the label behind the mean.
    """

    def __init__(self, task: str, levels: Sequence[float] = (), tells_std: bool = False) -> None:
        self._total = Progressive(task)
        self._gaussian = [0.0, 0.0] if tells_std else None  # nats, and labels within the interval
        self._levels = np.array(levels, np.float64)
        self._pinball = np.zeros(len(levels))
        self._kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    @property
    def weight(self) -> float:
        """Weight of the rows added."""
        return self._total.weight

    def add(self, mean: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Add rows: `mean` float64 [n, K], `y` float64 [n], `weight` float64 [n] or None."""
        self._total.add(mean, y, weight)
        w = np.ones(len(y)) if weight is None else weight
        if len(self._levels):
            errors = y[:, None] - mean[:, 1:]
            self._pinball += w @ np.maximum(self._levels * errors, (self._levels - 1.0) * errors)
        if self._gaussian is not None:
            heard = w > 0.0  # no weight makes an infinite loss a number
            terms = _gaussian_terms(y[heard] - mean[heard, 0], mean[heard, 1])
            for k in range(2):
                self._gaussian[k] += float(w[heard] @ terms[k])
        if self._total.task == "classification" and mean.shape[1] == 2:
            self._kept.append((mean[:, 1], y, w))

    def report(self) -> dict[str, Any]:
        """Return the rows and metrics; the area under the curve where both classes occur."""
        metrics: dict[str, Any] = {"rows": self._total.rows, **self._total.totals()}
        if len(self._levels) and self.weight > 0.0:
            metrics["pinball"] = float(self._pinball.mean() / self.weight)
        if self._gaussian is not None and self.weight > 0.0:
            metrics["nll"], metrics["coverage_90"] = (x / self.weight for x in self._gaussian)
        reliability = self._total.outcomes.reliability
        if reliability is not None and self.weight > 0.0:
            metrics.update(reliability.report())
        if self._kept:
            share, y, weight = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
            if len(np.unique(y)) == 2:
                from sklearn.metrics import roc_auc_score

                metrics["auc"] = float(roc_auc_score(y, share, sample_weight=weight))
        return metrics


class Likelihood:
    """Mean log density of rows that were not learned, added block by block."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._rows, self._total = 0, 0.0

    def add(self, mean: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Add rows: `mean` float64 [n, 1], their log densities; there are no labels."""
        w = np.ones(len(mean)) if weight is None else weight
        self._rows += len(mean)
        self.weight += float(w.sum())
        self._total += float(w @ mean[:, 0])

    def report(self) -> dict[str, Any]:
        """Return the rows and the metric, in nats."""
        return {"rows": self._rows, "log_likelihood": self._total / self.weight}
