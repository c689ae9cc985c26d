"""Reliability of class probabilities: accuracy by bins of confidence.

Relies on forecasts that arrive in a fixed order. Promises sums over equal bins of the predicted
class's probability, added row by row, so that no row is kept and the split of rows between calls
changes nothing.

Shapes: n rows, K classes.

References
----------
Guo, Pleiss, Sun, Weinberger (2017), "On Calibration of Modern Neural Networks", ICML, Equations 2
and 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

N_BINS = 10
"""Bins of equal width; the predicted class of K has a probability of 1/K or more."""

LEAST_SHARE = 0.001
"""Share of the weight that a bin needs to be a point of a curve."""


class Reliability:
    """Sums of confidence and accuracy by bins of confidence."""

    def __init__(self) -> None:
        self.sums = np.zeros((3, N_BINS))  # weight, confidence and hits, summed over rows
        self.n_classes = 0  # if it is known

    def add(self, proba: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: `proba` float64 [n, K], `y` class indices [n], `weight` float64 [n]."""
        self.n_classes = proba.shape[1]
        confidence, hit = proba.max(axis=1), proba.argmax(axis=1) == y
        bins = np.clip(np.ceil(confidence * N_BINS) - 1, 0, N_BINS - 1).astype(np.int64)
        for total, values in zip(self.sums, (1.0, confidence, hit), strict=True):
            # In order, so that the split of rows between calls changes nothing.
            np.add.at(total, bins, weight * values)

    def points(self) -> list[tuple[float, float]]:
        """Return mean confidence and accuracy of each bin that has rows enough to be drawn."""
        bins = self.report()["reliability"]
        return [(b["confidence"], b["accuracy"]) for b in bins if b["share"] >= LEAST_SHARE]

    def report(self) -> dict[str, Any]:
        """Return the expected calibration error "ece", and "reliability": a dict per bin with rows.

        A bin has "above" and "up_to" (bounds of the confidence), "share" (of the weight), and the
        mean "confidence" and "accuracy". A calibrated forest has these two equal. The first bin is
        the one above 1/K, the least confidence of K classes, and has the rows of 1/K itself.
        """
        weight, confidence, hits = self._possible()
        whole = weight.sum()
        bins = [
            {
                "above": b / N_BINS,
                "up_to": (b + 1) / N_BINS,
                "share": float(weight[b] / whole),
                "confidence": float(confidence[b] / weight[b]),
                "accuracy": float(hits[b] / weight[b]),
            }
            for b in np.flatnonzero(weight).tolist()
        ]
        error = sum(b["share"] * abs(b["confidence"] - b["accuracy"]) for b in bins)
        return {"ece": float(error), "reliability": bins}

    def _possible(self) -> np.ndarray:
        """Return the sums, with those below 1/K in the bin that begins at 1/K, or has it."""
        if not self.n_classes:
            return self.sums
        # Of two classes, forecasts of 1/2 each are counted in the bin that ends there.
        first, sums = min(N_BINS // self.n_classes, N_BINS - 1), self.sums.copy()
        sums[:, first] = sums[:, : first + 1].sum(axis=1)
        sums[:, :first] = 0.0
        return sums
