"""Progressive (prequential, test-then-train) metrics of a stream, and metrics of held-out rows.

Relies on mean predictions over trees (float64 [n, K]) that arrive in stream order. Promises that
the split of rows between calls changes no bit of the accumulators, that these survive JSON exactly
(a resumed run continues with the same numbers) and that the learning curve stays bounded: its
points are at fixed positions of the stream and are thinned by their number alone, so that equal
positions have equal curves.

Shapes: n rows, K outputs (classes, or 1 for regression).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dmondrian.distributed.metrics.age_curve import AgeCurve
from dmondrian.distributed.metrics.baselines import number_of
from dmondrian.distributed.metrics.error_histogram import Outcomes, running
from dmondrian.distributed.metrics.score_histogram import curve_of
from dmondrian.distributed.metrics.stream_metrics import StreamMetrics
from dmondrian.ensemble.settings.label_period import period_of
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.prequential.forecast_lag import (
    EACH,
    KINDS,
    LAG,
    LIFETIMES,
    SLICES,
    delay_in_words,
    in_words,
    marks,
)

CURVE_POINTS = 256
"""Most points of a learning curve; beyond, every second one is dropped."""

_CURVE_LEAST = 32  # fewest rows between two points of a curve
_STRETCH = 4096  # rows whose label moments are computed about one pivot
_DELAYS = {EACH: 1, LIFETIMES: 1, SLICES: LAG}  # where it does not depend on the forest
_WORSE_ROWS = 1000  # fewest rows for a warning about a negative R2

WORSE = (
    "progressive R2 is below 0: forecasts of the rows, each made before it was learned, were worse "
    "than their mean label. The columns may say nothing of the target, the target may drift, or "
    "few large labels may decide the squared error; see mae, and the learning curve for when it "
    "happened"
)
"""Warning about a negative progressive R2."""


class Progressive:
    """Cumulative metrics of rows forecast before they are learned.

    Parameters
    ----------
    task : {"classification", "regression"}
    kind : str
        How rows are forecast, see :mod:`dmondrian.prequential.forecasts`.
    start : int
        Position of the first row counted; above 0 after a merge of runs.
    delay : int or str, optional
        How far ahead rows are forecast, see :func:`dmondrian.prequential.forecast_lag.delay_of`.
    in_stream : bool, default=True
        Whether rows come in the order of a stream: there are metrics of the last ones, and
        baselines.
    lag_of_key : int or None
        How many rows of the same key back the labels are that :meth:`add` gets; None for none.

    Attributes
    ----------
    exact_from : int
        Rows before it were forecast in slices, by an earlier version.
    stream : StreamMetrics or None
        Metrics of the last rows, and baselines.
    ages : AgeCurve
        Shares of trees by their age, of a forest that follows the stream.
    """

    def __init__(
        self,
        task: str,
        kind: str = EACH,
        start: int = 0,
        delay: int | str | None = None,
        *,
        in_stream: bool = True,
        lag_of_key: int | None = None,
    ) -> None:
        self.task = task
        self.kind = kind
        self.start = start
        self.delay: int | str | None = _DELAYS.get(kind) if delay is None else delay
        self.stream: StreamMetrics | None = None
        if in_stream:
            self.stream = StreamMetrics(task, self.delay, start, lag_of_key=lag_of_key)
        self.exact_from = 0
        self.rows = 0  # rows seen
        self.weight = 0.0  # their weight
        self.sums = [0.0, 0.0]  # log loss and hits, or squared and absolute errors
        # Regression: mean of y and sum of squared deviations, of rows up to a multiple of
        # _STRETCH; of the rows since then the sums of y less that mean, and of its square.
        self.moments = [0.0, 0.0]
        self.since = [0.0, 0.0]
        self.stride = 1  # a curve point is kept each `stride` marks
        self.slice = 0  # marks passed
        self.curve: list[list[float]] = []  # rows and the two metrics
        self.outcomes = Outcomes(task)
        self.ages = AgeCurve()

    def continue_as(self, kind: str, delay: int | str | None = None) -> None:
        """Set how rows are forecast from now on; the rows before may have been in slices."""
        if self.kind == SLICES and kind in (EACH, LIFETIMES):
            self.exact_from = self.rows
        self.kind, before = kind, self.delay
        self.delay = _DELAYS.get(kind) if delay is None else delay
        if self.delay != before and self.stream is not None:
            lag = self.stream.baselines.lag_of_key
            self.stream = StreamMetrics(self.task, self.delay, self.start, self.rows, lag)

    @property
    def in_words(self) -> str:
        """Description of how rows were forecast."""
        return in_words(self.kind, self.exact_from, self.delay or 1)

    @property
    def delay_in_words(self) -> str:
        """Description of how far ahead rows were forecast, for people."""
        return delay_in_words(self.delay)

    @property
    def has_drifted(self) -> bool:
        """Whether the loss of some rows was clearly above that of those before."""
        return self.stream is not None and self.stream.test.n_found > 0

    @property
    def is_worse_than_mean(self) -> bool:
        """Whether the R2 of a regression is negative over at least 1,000 rows."""
        return self.rows >= _WORSE_ROWS and self.totals().get("r2", 0.0) < 0.0

    def add(
        self,
        mean: np.ndarray,
        y: np.ndarray,
        weight: np.ndarray | None,
        after_learning: Sequence[int] | None = None,
        earlier: np.ndarray | None = None,
    ) -> None:
        """Add forecasts and labels of rows to all sums.

        Parameters
        ----------
        mean : float64 [n, K]
        y : float64 [n]
        weight : float64 [n] or None
        after_learning : sequence of int, optional
            Places, 0 to n - 1, of rows that are forecast after the row before them was learned,
            unlike those that follow. By default they follow from the delay, which is in rows.
        earlier : float64 [n], optional
            Labels of earlier rows of the same key, nan for none; used where `lag_of_key` is given.
        """
        w = np.ones(len(y)) if weight is None else weight
        if self.task == "classification":
            loss, hit = _class_terms(mean, y)
            terms = loss, hit.astype(np.float64)
        else:
            error = mean[:, 0] - y
            terms = error * error, np.abs(error)
        self.outcomes.add(mean, y, w)
        weights = running(self.weight, w)
        sums = [running(self.sums[k], w * terms[k]) for k in range(2)]
        if self.task == "regression":
            self._add_moments(y, w, weights)
        kept: dict[int, set[int] | None] = {}
        for mark in marks(self.rows, self.rows + len(y), _CURVE_LEAST):
            at = mark - self.rows
            self.slice += 1
            if self.slice % self.stride == 0 and weights[at] > 0.0:
                self.curve.append(self._point(mark, *(float(s[at] / weights[at]) for s in sums)))
                kept[at] = None
                if len(self.curve) > CURVE_POINTS:
                    self.stride *= 2
                    self.curve = self.curve[1::2]
                    kept[at] = {int(point[0]) for point in self.curve}
        self.rows += len(y)
        self.weight = float(weights[-1])
        self.sums = [float(s[-1]) for s in sums]
        if self.stream is not None:
            self.stream.add(terms, y, w, mean.shape[1], kept, after_learning, earlier)

    def _point(self, rows: int, first: float, second: float) -> list[float]:
        """Return a point of the curve from the means of both sums."""
        return [rows, first if self.task == "classification" else first**0.5, second]

    def _add_moments(self, y: np.ndarray, w: np.ndarray, weights: np.ndarray) -> None:
        """Add labels to the moments; ``weights`` [1 + n] are cumulative, before and after each."""
        if self.weight == 0.0 and weights[-1] > 0.0:
            self.moments[0] = float(y[np.argmax(w > 0.0)])
        start = 0
        while start < len(y):
            stop = min(start + _STRETCH - (self.rows + start) % _STRETCH, len(y))
            deviation = y[start:stop] - self.moments[0]
            weighted = w[start:stop] * deviation
            self.since = [
                float(running(self.since[0], weighted)[-1]),
                float(running(self.since[1], weighted * deviation)[-1]),
            ]
            if (self.rows + stop) % _STRETCH == 0 and weights[stop] > 0.0:
                self.moments = list(self._moments(float(weights[stop])))
                self.since = [0.0, 0.0]
            start = stop

    def _moments(self, weight: float) -> tuple[float, float]:
        """Return mean and sum of squared deviations of the labels, of total weight ``weight``."""
        step = self.since[0] / weight
        return self.moments[0] + step, self.moments[1] + self.since[1] - step * self.since[0]

    def totals(self) -> dict[str, float]:
        """Return the metrics of all rows so far; empty before the first weighted row."""
        if self.weight == 0.0:
            return {}
        first, second = (s / self.weight for s in self.sums)
        if self.task == "classification":
            return {"log_loss": first, "accuracy": second}
        spread = self._moments(self.weight)[1]
        explained = 1.0 - self.sums[0] / spread if spread > 0 else 0.0
        return {"rmse": first**0.5, "mae": second, "r2": explained}

    def recent(self) -> dict[str, Any]:
        """Return what a record of progress has beside the totals."""
        if self.stream is None or self.weight == 0.0:
            return {}
        report = self.stream.report(self._moments(self.weight)[1], with_curve=False)
        plain = {name: dict(report.get(name, {})) for name in ("window", "faded")}
        baselines = {name: metrics.pop("baselines", {}) for name, metrics in plain.items()}
        so_far = report.get("baselines", {})
        return {
            **plain,
            "baselines": {
                f"{baseline}_{metric}": value
                for baseline, metrics in so_far.items() for metric, value in metrics.items()
            },
            "window_baselines": {
                f"{baseline}_{metric}": value
                for baseline, metrics in baselines["window"].items()
                for metric, value in metrics.items()
            },
            "delay": self.delay,
            "has_drifted": self.has_drifted,
        }  # fmt: skip

    def report(self) -> dict[str, Any]:
        """Return rows, totals, how rows were forecast, the last rows, baselines and curves."""
        totals = self.totals()
        names, points = ["rows", *totals][:3], list(self.curve)
        if totals and (not points or points[-1][0] < self.rows):
            points.append([self.rows, *totals.values()][:3])
        curve = [dict(zip(names, point, strict=True)) for point in points]
        report: dict[str, Any] = {"rows": self.rows, **totals}
        report |= {"forecast": self.in_words, "delay": self.delay}
        if self.stream is not None and totals:
            report |= self.stream.report(self._moments(self.weight)[1])
        if self.ages.points:
            report["ages"] = [{"rows": point[0], "shares": point[1:]} for point in self.ages.points]
        return {**report, "curve": curve}

    def to_json(self) -> dict[str, Any]:
        """Return all accumulators; floats survive JSON exactly."""
        return {"task": self.task, "rows": self.rows, "weight": self.weight, "sums": self.sums,
                "moments": self.moments, "stride": self.stride, "slice": self.slice,
                "curve": self.curve, "outcomes": self.outcomes.to_json(), "since": self.since,
                "kind": self.kind, "exact_from": self.exact_from, "start": self.start,
                "delay": self.delay, "ages": self.ages.to_json(),
                "stream": None if self.stream is None else self.stream.to_json()}  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Progressive:
        """Return the accumulators written by `to_json`.

        Raises
        ------
        CorruptError
            The stored metrics are malformed.
        """
        try:
            # Versions that stored no kind forecast rows in slices.
            task = data["task"]
            start, delay = int(data.get("start", 0)), data.get("delay")
            self = cls(task, data.get("kind", SLICES), start, delay)
            self.exact_from = int(data.get("exact_from", 0))
            self.since = [number_of(value) for value in data.get("since", self.since)]
            self.rows, self.weight = int(data["rows"]), number_of(data["weight"])
            self.sums = [number_of(value) for value in data["sums"]]
            self.moments = [number_of(value) for value in data["moments"]]
            self.stride, self.slice = int(data["stride"]), int(data["slice"])
            self.curve = [[number_of(value) for value in point] for point in data["curve"]]
            for point in self.curve:
                point[0] = int(point[0])
            self.outcomes = Outcomes.from_json(self.task, data.get("outcomes"))
            if data.get("ages") is not None:
                self.ages.load_json(data["ages"])
            # Versions that stored none measured no stream: it begins here.
            stored, lag = data.get("stream"), None
            if stored is not None:
                lag = dict(stored["baselines"]).get("lag_of_key")
            self.stream = StreamMetrics(self.task, self.delay, self.start, self.rows, lag)
            if stored is not None:
                self.stream.load_json(stored, self.rows)
        except (KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
            text = repr(error)[:200]
            raise CorruptError(f"the stored metrics cannot be read: {text}") from error
        is_sound = self.task in ("classification", "regression") and self.stride >= 1
        is_sound = is_sound and self.kind in KINDS and 0 <= self.exact_from <= self.rows
        is_sound = is_sound and self.start >= 0
        is_sound = is_sound and (self.delay is None or _is_delay(self.delay))
        sums = self.sums, self.moments, self.since
        lengths = {len(point) for point in self.curve} | {len(pair) + 1 for pair in sums}
        if not is_sound or lengths != {3} or len(self.curve) > CURVE_POINTS:
            raise CorruptError("the stored metrics are of another shape than metrics have")
        return self


def _is_delay(value: Any) -> bool:
    if isinstance(value, str):
        try:
            return period_of(value).in_words == value
        except ParameterError:
            return False
    return type(value) is int and value >= 1


def read_counts(metrics: dict[str, Any]) -> dict[str, int]:
    """Return a manifest's counts of clipped, unseen and dropped values.

    Raises
    ------
    CorruptError
        The stored counts are malformed.
    """
    counts = metrics.get("counts", {})
    is_sound = isinstance(counts, dict) and all(type(n) is int for n in counts.values())
    if not is_sound:
        raise CorruptError(f"the stored counts cannot be read: {str(counts)[:80]!r}")
    return dict(counts)


def _class_terms(mean: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log loss in nats and hits of each row; clips probabilities as scikit-learn does."""
    label = y.astype(np.int64)
    share = mean[np.arange(len(y)), label]
    floor = np.finfo(np.float64).eps
    return -np.log(np.clip(share, floor, 1.0)), mean.argmax(axis=1) == label


_Z_90 = 1.6448536269514722  # 0.95 quantile of the standard normal distribution


def _gaussian_terms(error: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log loss in nats, and hits of the central 90 % interval; -inf or inf for std 0."""
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
        Quantile levels; forecasts have their quantiles after the point forecast.
    has_std : bool
        Whether forecasts have a standard deviation of the label after the mean.
    """

    def __init__(self, task: str, levels: Sequence[float] = (), has_std: bool = False) -> None:
        self._total = Progressive(task, in_stream=False)
        self._gaussian = [0.0, 0.0] if has_std else None  # nats, and labels within the interval
        self._levels = np.array(levels, np.float64)
        self._pinball = np.zeros(len(levels))
        self._kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    @property
    def weight(self) -> float:
        """Total weight of the rows."""
        return self._total.weight

    def add(self, mean: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Add rows: `mean` float64 [n, K], `y` float64 [n], `weight` float64 [n] or None."""
        self._total.add(mean, y, weight)
        w = np.ones(len(y)) if weight is None else weight
        if len(self._levels):
            errors = y[:, None] - mean[:, 1:]
            self._pinball += w @ np.maximum(self._levels * errors, (self._levels - 1.0) * errors)
        if self._gaussian is not None:
            weighted = w > 0.0  # weight 0 times an infinite loss would be nan
            terms = _gaussian_terms(y[weighted] - mean[weighted, 0], mean[weighted, 1])
            for k in range(2):
                self._gaussian[k] += float(w[weighted] @ terms[k])
        if self._total.task == "classification" and mean.shape[1] == 2:
            self._kept.append((mean[:, 1], y, w))

    def report(self) -> dict[str, Any]:
        """Return rows and metrics; "auc" if both of two classes occur."""
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
            place = np.unique(share, return_inverse=True)[1].reshape(-1)
            sums = np.stack([np.bincount(place, weight * (y == k)) for k in (1.0, 0.0)])
            if (sums.sum(axis=1) > 0.0).all():
                metrics["auc"] = curve_of(sums).auc
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
        """Return rows and mean log density, in nats."""
        return {"rows": self._rows, "log_likelihood": self._total / self.weight}
