"""Rows with labels and weights, as trees take them.

Checks nothing: callers make sure of lengths, types and ranges.

Shapes: n rows, d features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class LabelledRows(NamedTuple):
    """Rows, labels and weights of the same length; weights may be left out where all are one."""

    X: np.ndarray  # float32 [n, d]
    y: np.ndarray  # float64 [n], classes or numbers; int64 for kernels that index by them
    w: np.ndarray  # float64 [n], > 0; of rows to learn also [0], for weights of one

    def taken(self, which: Any) -> LabelledRows:
        """Return some rows, copies or a view as NumPy gives them."""
        return LabelledRows(self.X[which], self.y[which], self.w[which])

    def and_then(self, later: LabelledRows) -> LabelledRows:
        """Return these rows and others behind them."""
        return LabelledRows(*(np.concatenate(pair) for pair in zip(self, later, strict=True)))
