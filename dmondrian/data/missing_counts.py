"""Counts of missing values in each column, of the rows that a run has read.

Relies on encoded rows and on the counts of a run's events, which it adds to. Promises exact shares
of the rows that were counted, and none of columns that were not.

Shapes: n rows, d features.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dmondrian.data.schema import Schema

ROWS_READ = "rows_read"
"""Rows whose missing values are counted: those with a target, since a version that counts."""

_MISSING = "missing:"
_MOST_COUNTED = 1000  # columns with nulls; of more none are counted, as each is in all manifests


def count_missing(schema: Schema, X: np.ndarray) -> dict[str, int]:
    """Return how many of the rows X, float32 [n, d], are null in each column that may be.

    Empty where no column has nulls, or very many have.
    """
    counts = {}
    feature = 0
    for column in schema.columns:
        feature += column.width
        if column.has_nulls:  # its last feature is the indicator
            counts[f"{_MISSING}{column.name}"] = int(np.count_nonzero(X[:, feature - 1]))
    return {ROWS_READ: len(X), **counts} if 0 < len(counts) <= _MOST_COUNTED else {}


def missing_shares(schema: Schema, counts: Mapping[str, int]) -> dict[str, float]:
    """Return the share of missing values by column, of those where it is known.

    A column that had none in the training data has none, unless some came later.
    """
    shares: dict[str, float] = {}
    rows = counts.get(ROWS_READ, 0)
    for column in schema.columns:
        if not column.has_nulls:
            if not counts.get(f"null:{column.name}"):
                shares[column.name] = 0.0
        elif rows:
            shares[column.name] = counts.get(f"{_MISSING}{column.name}", 0) / rows
    return shares


def events_of(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of events alone, without those of missing values."""
    return {
        name: count
        for name, count in counts.items()
        if name != ROWS_READ and not name.startswith(_MISSING)
    }
