"""Histogram of forecast probabilities by class, from which ROC and precision-recall curves follow.

A class against the rest is decided by a bound on its probability. Rows are counted by bins of that
probability, those of the class and the others: curves are exact at the bounds of bins, and straight
(ROC) or steps (precision and recall) between them. Pairs of rows within one bin are counted as
ties; the area under the ROC curve is known up to half their share, which is given with it.

Relies on :mod:`dmondrian.distributed.metrics.octave_bins`. Promises sums of a size that does not
grow with the rows, added row by row, so that the split of rows between calls changes no bit.

Shapes: n rows, K classes, C curves (1 for two classes, else K), B bins.

References
----------
Fawcett (2006), "An introduction to ROC analysis", Pattern Recognition Letters 27: Algorithm 2 and
section 8. Davis, Goadrich (2006), "The relationship between precision-recall and ROC curves", ICML:
precision is not interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dmondrian.distributed.metrics.octave_bins import edges_of_shares

MOST_CLASSES = 20
"""Most classes that curves are kept of."""

MOST_DRAWN = 4
"""Most classes whose curves are drawn into one chart."""

_OCTAVES = 16  # the lowest bin ends at 2^-17
_PARTS = {True: 32, False: 8}  # per factor of two: of two classes, of more


class Curve(NamedTuple):
    """A class against the rest, by falling bounds on its probability."""

    auc: float  # area under the ROC curve
    auc_error: float  # the area of the rows themselves differs by at most this
    average_precision: float  # sum of precision times steps of recall
    share: float  # of the weight that is of the class
    false_positives: np.ndarray  # float64 [p], share of the others that is taken, from 0 to 1
    true_positives: np.ndarray  # float64 [p], share of the class that is taken: recall
    precision: np.ndarray  # float64 [p]; nan where nothing is taken

    @property
    def recall_and_precision(self) -> tuple[np.ndarray, np.ndarray]:
        """Recall and precision, float64 each, where both are defined."""
        known = np.isfinite(self.precision)
        return self.true_positives[known], self.precision[known]


def classes_drawn(curves: Mapping[int, Curve], n_classes: int) -> list[int]:
    """Return the classes whose curves are drawn, by number: the second of two, or the commonest."""
    if n_classes == 2 and curves:
        return [1]
    return sorted(sorted(curves, key=lambda k: -curves[k].share)[:MOST_DRAWN])


class ScoreHistogram:
    """Weight of rows by class and bin of the class's probability.

    Attributes
    ----------
    rows : int
        Rows counted.
    sums : float64 [2, C, B] or None
        Of rows of the class, and of the others; None before the first row, and where there are
        more classes than ``MOST_CLASSES``.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.sums: np.ndarray | None = None

    def add(self, proba: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: `proba` float64 [n, K], `y` class indices [n], `weight` float64 [n]."""
        k = proba.shape[1]
        if not 2 <= k <= MOST_CLASSES:
            return
        self.rows += len(y)
        edges = _edges(k)
        columns = proba[:, 1:] if k == 2 else proba
        first = k - columns.shape[1]  # class of the first column
        if self.sums is None:
            self.sums = np.zeros((2, columns.shape[1], len(edges) + 1))
        bins = np.searchsorted(edges, columns, side="right")
        is_other = y.astype(np.int64)[:, None] != np.arange(first, k)
        which = np.broadcast_to(np.arange(columns.shape[1]), bins.shape)
        weights = np.broadcast_to(weight[:, None], bins.shape)
        np.add.at(self.sums, (is_other.astype(np.int64), which, bins), weights)

    def curves(self) -> dict[int, Curve]:
        """Return the curve of each class that occurs beside others, by its number."""
        if self.sums is None:
            return {}
        by_class = np.moveaxis(self.sums, 1, 0)
        if len(by_class) == 1:  # of two classes: what one has, the other has not
            by_class = np.stack([by_class[0, ::-1, ::-1], by_class[0]])
        some = (sums_of_class.sum(axis=1) > 0.0 for sums_of_class in by_class)
        return {k: curve_of(by_class[k]) for k, is_some in enumerate(some) if is_some.all()}

    def to_json(self) -> dict[str, Any]:
        """Return the sums that are not 0; floats go through JSON exactly."""
        if self.sums is None:
            return {"rows": self.rows, "shape": None, "sums": []}
        some = np.argwhere(self.sums.any(axis=0)).tolist()
        sums = [[c, b, *self.sums[:, c, b].tolist()] for c, b in some]
        return {"rows": self.rows, "shape": list(self.sums.shape[1:]), "sums": sums}

    def load_json(self, stored: Any) -> None:
        """Take over what :meth:`to_json` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is malformed.
        """
        self.rows = int(stored["rows"])
        if stored["shape"] is None:
            return
        n_curves, n_bins = stored["shape"]
        n_classes = max(n_curves, 2)
        if not 1 <= n_curves <= MOST_CLASSES or n_curves == 2:
            raise ValueError(f"{n_curves} curves")
        if n_bins != len(_edges(n_classes)) + 1:
            raise ValueError(f"{n_bins} bins")
        self.sums = np.zeros((2, n_curves, n_bins))
        for c, b, of_class, of_others in stored["sums"]:
            if not (0 <= c < n_curves and 0 <= b < n_bins):
                raise ValueError("bins of scores")
            self.sums[:, c, b] = float(of_class), float(of_others)


def _edges(n_classes: int) -> np.ndarray:
    return edges_of_shares(_PARTS[n_classes == 2], _OCTAVES)


def curve_of(sums: np.ndarray) -> Curve:
    """Return the curve of sums of weights by bin: of the class and of others, float64 [2, B]."""
    falling = sums[:, ::-1]
    of_class, of_others = falling[:, falling.any(axis=0)]
    taken, false = (np.concatenate([[0.0], np.cumsum(part)]) for part in (of_class, of_others))
    whole, n_false = taken[-1], false[-1]
    recall, fall_out = taken / whole, false / n_false
    precision = np.divide(
        taken, taken + false, out=np.full(len(taken), np.nan), where=taken + false > 0.0
    )
    pairs = whole * n_false
    return Curve(
        float(np.sum(np.diff(fall_out) * (recall[1:] + recall[:-1])) / 2.0),
        float(np.sum(of_class * of_others) / pairs / 2.0),
        float(np.sum(np.diff(recall) * precision[1:])),
        float(whole / (whole + n_false)),
        fall_out,
        recall,
        precision,
    )
