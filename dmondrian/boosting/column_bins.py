"""Columns cut into bins at quantiles of the rows: what histograms are over.

A bin ends at a value between two rows: rows at or below it lie in this bin or one before. A column
of no more values than bins has one for each. Where most rows lie in one bin of a column, as where
most values are 0, the others alone are listed: what is in that bin is what is left.

Relies on NumPy's sort alone. Promises a pure function of the rows, whatever their order.

Shapes: n rows, d columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST_BINS = 256  # of a column: a byte
_LEAST_BINS = 8
_MOST_IN_ALL = 2**18  # bins of all columns, 16 bytes each in a leaf's histogram; more beyond 32,768


class ColumnBins(NamedTuple):
    """Rows as numbers of bins."""

    of_rows: np.ndarray  # uint8 [d, n]
    starts: np.ndarray  # int64 [d + 1], where each column's bins begin among all
    ends: np.ndarray  # float32 [bins], largest value of each bin; inf of a column's last
    usual: np.ndarray  # int64 [d], bin among all that most rows lie in; -1 for none
    entries: np.ndarray  # int32, row after row, bins among all that are not usual
    rows_at: np.ndarray  # int64 [n + 1], where each row's entries begin


def n_bins_of(d: int) -> int:
    """Return how many bins a column has at most, beside ``d`` - 1 others: a power of two."""
    n = MOST_BINS
    while n > _LEAST_BINS and n * d > _MOST_IN_ALL:
        n //= 2
    return n


def column_bins(X: np.ndarray) -> ColumnBins:
    """Return the bins of rows float32 [n, d], n > 0, d > 0."""
    n, d = X.shape
    most = n_bins_of(d)
    of_rows, starts, ends = np.empty((d, n), np.uint8), np.zeros(d + 1, np.int64), []
    usual = np.full(d, -1)
    for j in range(d):
        column = np.ascontiguousarray(X[:, j])
        cuts = _cuts(np.sort(column), most)
        of_rows[j] = np.searchsorted(cuts, column, side="left")
        ends += [cuts, np.array([np.inf], np.float32)]
        starts[j + 1] = starts[j] + len(cuts) + 1
        counts = np.bincount(of_rows[j])
        if 2 * counts.max() > n:
            usual[j] = starts[j] + counts.argmax()
    among_all = of_rows.T + starts[:-1].astype(np.int32)
    is_entry = among_all != usual
    rows_at = np.concatenate([[0], np.cumsum(np.count_nonzero(is_entry, axis=1))])
    return ColumnBins(of_rows, starts, np.concatenate(ends), usual, among_all[is_entry], rows_at)


def _cuts(ordered: np.ndarray, most: int) -> np.ndarray:
    """Return where a column is cut, float32 [m], m < ``most``: between values that differ.

    Values of many rows have bins of their own; the others share the rest at their quantiles.
    """
    n = len(ordered)
    changes = np.flatnonzero(ordered[1:] > ordered[:-1])  # the last row of a value
    if len(changes) >= most:
        counts = np.diff(changes, prepend=-1, append=n - 1)
        is_large = counts * most >= 4 * n  # at most a quarter of the bins
        share = np.where(is_large, 0, counts)
        before = np.cumsum(share) - share
        part = before * (most - 2 * int(is_large.sum())) // max(int(share.sum()), 1)
        is_cut = (part[1:] > part[:-1]) | is_large[1:] | is_large[:-1]
        changes = changes[is_cut]
    low, high = ordered[changes], ordered[changes + 1]
    middle = ((low.astype(np.float64) + high) * 0.5).astype(np.float32)
    return np.where(middle < high, middle, low)
