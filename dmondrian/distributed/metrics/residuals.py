"""Errors of numeric forecasts: their histogram, a sample of rows, and how often intervals hold.

Relies on forecasts that arrive in a fixed order. Promises what does not grow with the rows and does
not depend on how rows are split between calls, to the last bit: sums are added row by row, and
which rows are in the sample depends on their numbers alone.

Shapes: n rows, L levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from dmondrian.distributed.metrics.octave_bins import PARTS, bins_of_sizes, lower_bound

SAMPLE_ROWS = 512
"""Rows of the sample of forecasts and labels."""

CENTRAL = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of labels that intervals of a normal distribution are counted for."""

QUANTILES, INTERVALS = "quantiles", "intervals"

_DEVIATIONS = np.array([NormalDist().inv_cdf((1.0 + share) / 2.0) for share in CENTRAL])
_BARS = 2 * PARTS  # most bars to each side of 0: bounds of more are no bounds of bins
_SHOWN = 0.99  # of the weight, at least, is between the outermost bars
_LEAST, _MOST = -1100 * PARTS, 1100 * PARTS  # bins of float64's least and largest number


class Residuals:
    """Errors, forecast less label, of rows in order.

    Attributes
    ----------
    rows : int
    exact : float
        Weight of rows with error 0.
    sizes : dict of int to [float, float]
        By bin of the size: weight of errors below 0 and above.
    sample : list of (int, float, float)
        Number of a row, its forecast and its label.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.exact = 0.0
        self.sizes: dict[int, list[float]] = {}
        self.sample: list[tuple[int, float, float]] = []

    def add(self, forecast: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Add rows, float64 [n] each."""
        self._add_sample(forecast, y, weight)
        self.rows += len(y)
        error = forecast - y
        is_wrong = (error != 0.0) & np.isfinite(error)
        exact = np.concatenate([[self.exact], weight[error == 0.0]])
        self.exact = float(np.add.accumulate(exact)[-1])
        numbers, where = np.unique(bins_of_sizes(np.abs(error[is_wrong])), return_inverse=True)
        sums = np.array([self.sizes.get(number, [0.0, 0.0]) for number in numbers.tolist()])
        if len(numbers):
            np.add.at(sums, (where, (error[is_wrong] > 0.0).astype(np.int64)), weight[is_wrong])
        self.sizes.update(zip(numbers.tolist(), sums.tolist(), strict=True))

    def _add_sample(self, forecast: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Keep the rows of positive weight whose numbers have the least keys."""
        usable = np.flatnonzero((weight > 0.0) & np.isfinite(forecast) & np.isfinite(y))
        numbers = self.rows + usable
        keys = _keys(numbers)
        if len(self.sample) == SAMPLE_ROWS:
            largest = _keys(np.array([row for row, *_ in self.sample])).max()
            usable, numbers = usable[keys < largest], numbers[keys < largest]
        if not len(usable):
            return
        new = zip(numbers.tolist(), forecast[usable].tolist(), y[usable].tolist(), strict=True)
        both = [*self.sample, *new]
        order = np.argsort(_keys(np.array([row for row, *_ in both])))[:SAMPLE_ROWS]
        self.sample = sorted(both[i] for i in order.tolist())

    def bars(self) -> list[tuple[float, float, float]]:
        """Return lower bound, upper bound and share of the weight of bars of one width.

        Bounds are bounds of bins, so shares are those of the rows: a bar above 0 has its lower
        bound, one below 0 its upper one, and errors of 0 are in the bar above it. The first and
        the last bar have all that lies beyond; together these are at most one row in a hundred.
        """
        whole = self.exact + math.fsum(math.fsum(pair) for pair in self.sizes.values())
        if not whole > 0.0:
            return []
        if not self.sizes:
            return [(0.0, 0.0, 1.0)]
        below, reach = self.exact, min(self.sizes)
        for number in sorted(self.sizes):
            if below >= _SHOWN * whole:
                break
            below += math.fsum(self.sizes[number])
            reach = number + 1
        width = 2.0 ** (math.ceil(math.log2(lower_bound(reach))) - (_BARS.bit_length() - 1))
        n = math.ceil(lower_bound(reach) / width)
        parts: list[list[float]] = [[] for _ in range(2 * n + 2)]
        parts[n + 1].append(self.exact)
        for number, (low, high) in self.sizes.items():
            at = min(math.floor(lower_bound(number) / width), n)
            parts[n - at].append(low)
            parts[n + 1 + at].append(high)
        bars = [
            ((i - n - 1) * width, (i - n) * width, math.fsum(part) / whole)
            for i, part in enumerate(parts)
        ]
        bars[0] = (-math.inf, *bars[0][1:])
        bars[-1] = (bars[-1][0], math.inf, bars[-1][2])
        return bars

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able copy; floats go through JSON exactly."""
        sizes = [[number, *self.sizes[number]] for number in sorted(self.sizes)]
        sample = [list(row) for row in self.sample]
        return {"rows": self.rows, "exact": self.exact, "sizes": sizes, "sample": sample}

    def load_json(self, stored: Any) -> None:
        """Take over what :meth:`to_json` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is malformed.
        """
        self.rows, self.exact = int(stored["rows"]), float(stored["exact"])
        self.sizes = {
            int(number): [float(low), float(high)] for number, low, high in stored["sizes"]
        }
        self.sample = [
            (int(row), float(forecast), float(y)) for row, forecast, y in stored["sample"]
        ]
        are_sound = all(_LEAST <= number <= _MOST for number in self.sizes)
        rows = [row for row, *_ in self.sample]
        are_sound = are_sound and len(rows) <= SAMPLE_ROWS and rows == sorted(set(rows))
        if not are_sound or any(not 0 <= row < self.rows for row in rows):
            raise ValueError("errors")


class Coverage:
    """Counts of labels below quantiles, or within central intervals of a normal distribution.

    Attributes
    ----------
    kind : {"quantiles", "intervals"} or None
        None before the first row.
    levels : list of float
    weight : float
        Of the rows counted.
    sums : list of float
        By level, weight of the rows whose label lies below the quantile, or within the interval.
    """

    def __init__(self) -> None:
        self.kind: str | None = None
        self.levels: list[float] = []
        self.rows = 0
        self.weight = 0.0
        self.sums: list[float] = []

    def add_quantiles(
        self, quantiles: np.ndarray, levels: Sequence[float], y: np.ndarray, weight: np.ndarray
    ) -> None:
        """Add rows: `quantiles` float64 [n, L], `y` and `weight` float64 [n]."""
        self._begin(QUANTILES, levels)
        self._add(y[:, None] <= quantiles, weight)

    def add_deviations(self, error: np.ndarray, std: np.ndarray, weight: np.ndarray) -> None:
        """Add rows, float64 [n] each; those without a standard deviation (nan) are not counted."""
        self._begin(INTERVALS, CENTRAL)
        known = np.isfinite(std) & np.isfinite(error)
        with np.errstate(over="ignore"):
            inside = np.abs(error[known])[:, None] <= std[known][:, None] * _DEVIATIONS
        self._add(inside, weight[known])

    def _begin(self, kind: str, levels: Sequence[float]) -> None:
        if self.kind != kind or self.levels != list(levels):
            self.kind, self.levels, self.rows = kind, list(levels), 0
            self.weight, self.sums = 0.0, [0.0] * len(levels)

    def _add(self, inside: np.ndarray, weight: np.ndarray) -> None:
        self.rows += int(np.count_nonzero(weight))
        start = np.array([self.weight, *self.sums])[None]
        parts = np.concatenate([weight[:, None], weight[:, None] * inside], axis=1)
        sums = np.add.accumulate(np.concatenate([start, parts]), axis=0)[-1]
        self.weight, self.sums = float(sums[0]), sums[1:].tolist()

    def shares(self) -> list[tuple[float, float]]:
        """Return pairs (level, share of the weight that lies below or within)."""
        if not self.weight > 0.0:
            return []
        pairs = zip(self.levels, self.sums, strict=True)
        return [(level, weight_below / self.weight) for level, weight_below in pairs]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able copy; floats go through JSON exactly."""
        names = "kind", "levels", "rows", "weight", "sums"
        return {name: getattr(self, name) for name in names}

    def load_json(self, stored: Any) -> None:
        """Take over what :meth:`to_json` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is malformed.
        """
        self.kind, self.rows = stored["kind"], int(stored["rows"])
        self.weight = float(stored["weight"])
        self.levels = [float(level) for level in stored["levels"]]
        self.sums = [float(weight_below) for weight_below in stored["sums"]]
        if self.kind not in (None, QUANTILES, INTERVALS) or len(self.levels) != len(self.sums):
            raise ValueError("coverage")


def _keys(numbers: np.ndarray) -> np.ndarray:
    """Return keys of row numbers, uint64 [n], each its own: SplitMix64.

    References
    ----------
    Steele, Lea, Flood (2014), "Fast splittable pseudorandom number generators", OOPSLA, Figure 14.
    """
    with np.errstate(over="ignore"):
        z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))
