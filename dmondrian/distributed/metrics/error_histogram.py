"""Forecast errors: reliability, confusion matrix and scores of classes, errors of numbers.

Relies on forecasts that arrive in a fixed order. Promises sums of a size that does not grow with
the rows, that do not depend on how rows are split between calls (rows are added one by one), and
that survive JSON exactly; they cover the rows since the histogram was begun.

Shapes: n rows, K classes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dmondrian.distributed.metrics.reliability import N_BINS, Reliability
from dmondrian.distributed.metrics.residuals import Coverage, Residuals
from dmondrian.distributed.metrics.score_histogram import ScoreHistogram
from dmondrian.errors import CorruptError

MOST_CLASSES = 20
"""Most classes of a confusion matrix; a larger one could not be read."""

HALVES = 2
"""Bins of the error's size per factor of two."""

_LEAST, _MOST = -2200, 2100  # bins of float64's least and largest number


def running(total: float, parts: np.ndarray) -> np.ndarray:
    """Return the total, and the total after each of the parts, float64 [1 + n].

    They are added one by one, so that rounding does not depend on the split between calls.
    """
    return np.add.accumulate(np.concatenate([[total], parts]))


class Outcomes:
    """Sums over forecasts and labels: reliability and confusion, or sizes of errors.

    Parameters
    ----------
    task : {"classification", "regression"}

    Attributes
    ----------
    scores : ScoreHistogram
        Of classes. Runs of earlier versions have it from the row on at which they are resumed, as
        they have ``residuals`` and ``coverage``.
    residuals : Residuals
        Of numbers.
    coverage : Coverage
        Of quantiles, or of the intervals of forecasts with a standard deviation.
    """

    def __init__(self, task: str) -> None:
        self.rows = 0
        self.reliability = Reliability() if task == "classification" else None
        self.confusion: np.ndarray | None = None  # float64 [K, K], weight by label and prediction
        self.sizes: dict[int, list[float]] = {}  # by bin: weight of errors below and above 0
        self.exact = 0.0  # weight of rows with error 0
        self.bias = [0.0, 0.0]  # weight, and errors times it
        self.scores, self.residuals, self.coverage = ScoreHistogram(), Residuals(), Coverage()

    def add(self, mean: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: `mean` float64 [n, K], `y` float64 [n], `weight` float64 [n]."""
        self.rows += len(y)
        if self.reliability is None:
            self._add_errors(mean[:, 0] - y, weight)
            self.residuals.add(mean[:, 0], y, weight)
            return
        self.reliability.add(mean, y, weight)
        self.scores.add(mean, y, weight)
        k = mean.shape[1]
        if k <= MOST_CLASSES:
            if self.confusion is None:
                self.confusion = np.zeros((k, k))
            np.add.at(self.confusion, (y.astype(np.int64), mean.argmax(axis=1)), weight)

    def _add_errors(self, error: np.ndarray, weight: np.ndarray) -> None:
        self.bias[0] = float(running(self.bias[0], weight)[-1])
        self.bias[1] = float(running(self.bias[1], weight * error)[-1])
        is_wrong = error != 0.0
        self.exact = float(running(self.exact, weight[~is_wrong])[-1])
        bins = np.floor(HALVES * np.log2(np.abs(error[is_wrong]))).astype(np.int64)
        numbers, where = np.unique(bins, return_inverse=True)
        sums = np.array([self.sizes.get(number, [0.0, 0.0]) for number in numbers.tolist()])
        if len(numbers):
            np.add.at(sums, (where, (error[is_wrong] > 0.0).astype(np.int64)), weight[is_wrong])
        self.sizes.update(zip(numbers.tolist(), sums.tolist(), strict=True))

    def shares(self) -> list[tuple[float, float]]:
        """Return pairs (size, share of the weight whose error is smaller), by size."""
        whole, below, pairs = self.bias[0], self.exact, []
        for number in sorted(self.sizes):
            below += math.fsum(self.sizes[number])
            pairs.append((2.0 ** ((number + 1) / HALVES), below / whole))
        return pairs

    def rising_shares(self) -> list[tuple[float, float]]:
        """Return the pairs of `shares` without sizes that hardly any row is below, as drawn.

        These are sizes that fewer than one row in a thousand is below, except the last.
        """
        shares = self.shares()
        n_tiny = sum(share < 0.001 for _, share in shares)
        return shares[max(0, n_tiny - 1) :]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able copy; floats go through JSON exactly."""
        data: dict[str, Any] = {"rows": self.rows}
        if self.reliability is not None:
            data["reliability"] = self.reliability.sums.tolist()
            data["confusion"] = None if self.confusion is None else self.confusion.tolist()
            return {**data, "scores": self.scores.to_json()}
        sizes = [[number, *self.sizes[number]] for number in sorted(self.sizes)]
        data |= {"sizes": sizes, "exact": self.exact, "bias": self.bias}
        parts = {"residuals": self.residuals.to_json(), "coverage": self.coverage.to_json()}
        return {**data, **parts}

    @classmethod
    def from_json(cls, task: str, stored: Any) -> Outcomes:
        """Return the sums written by :meth:`to_json`, checked; empty sums for None (older runs).

        Raises
        ------
        CorruptError
            The stored sums are malformed.
        """
        self = cls(task)
        if stored is None:
            return self
        try:
            self.rows = int(stored["rows"])
            if self.reliability is not None:
                self.reliability.sums = _matrix(stored["reliability"], 3, N_BINS)
                if stored["confusion"] is not None:
                    k = len(stored["confusion"])
                    self.confusion = _matrix(stored["confusion"], k, k)
                    self.reliability.n_classes = k
            else:
                self.sizes = {int(number): [float(low), float(high)]
                              for number, low, high in stored["sizes"]}  # fmt: skip
                self.exact, self.bias = float(stored["exact"]), [float(v) for v in stored["bias"]]
                if len(self.bias) != 2 or any(not _LEAST <= n <= _MOST for n in self.sizes):
                    raise ValueError("sizes of errors")
            for name in ("scores", "residuals", "coverage"):
                if name in stored:  # earlier versions kept none
                    getattr(self, name).load_json(stored[name])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            text = repr(error)[:200]
            raise CorruptError(f"the stored outcomes cannot be read: {text}") from error
        return self


def _matrix(stored: Any, rows: int, columns: int) -> np.ndarray:
    values = np.array(stored, np.float64)
    if values.shape != (rows, columns) or rows > max(MOST_CLASSES, 3):
        raise ValueError(f"shape {values.shape}")
    return values
