"""Columns cut into bins at quantiles of the rows: what histograms are over.

A bin ends at a value between two rows: rows at or below it lie in this bin or one before. A column
of no more values than bins has one for each.

Relies on NumPy's sort alone. Promises a pure function of the rows, whatever their order.

Shapes: n rows, d columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST_BINS = 256  # of a column: a byte
_MOST_IN_ALL = 2**18  # bins of all columns, so that histograms stay within some MiB


class ColumnBins(NamedTuple):
    """Rows as numbers of bins."""

    of_rows: np.ndarray  # uint8 [d, n]
    starts: np.ndarray  # int64 [d + 1], where each column's bins begin among all
    ends: np.ndarray  # float32 [bins], largest value of each bin; inf of a column's last


def n_bins_of(d: int) -> int:
    """Return how many bins a column has at most, beside ``d`` - 1 others: a power of two."""
    n = MOST_BINS
    while n > 2 and n * d > _MOST_IN_ALL:
        n //= 2
    return n


def column_bins(X: np.ndarray) -> ColumnBins:
    """Return the bins of rows float32 [n, d], n > 0, d > 0."""
    n, d = X.shape
    most = n_bins_of(d)
    of_rows, starts, ends = np.empty((d, n), np.uint8), np.zeros(d + 1, np.int64), []
    for j in range(d):
        column = np.ascontiguousarray(X[:, j])
        cuts = _cuts(np.sort(column), most)
        of_rows[j] = np.searchsorted(cuts, column, side="left")
        ends += [cuts, np.array([np.inf], np.float32)]
        starts[j + 1] = starts[j] + len(cuts) + 1
    return ColumnBins(of_rows, starts, np.concatenate(ends))


def _cuts(ordered: np.ndarray, most: int) -> np.ndarray:
    """Return where a column is cut, float32 [m], m < ``most``: between values that differ."""
    n = len(ordered)
    changes = np.flatnonzero(ordered[1:] > ordered[:-1])  # the last row of a value
    if len(changes) >= most:  # those that quantiles fall on
        last = np.arange(1, most, dtype=np.int64) * n // most - 1
        at = np.minimum(np.searchsorted(changes, last, side="left"), len(changes) - 1)
        changes = changes[np.unique(at)]
    low, high = ordered[changes], ordered[changes + 1]
    middle = ((low.astype(np.float64) + high) * 0.5).astype(np.float32)
    return np.where(middle < high, middle, low)
