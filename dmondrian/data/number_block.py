"""Encoding of number columns given as one array, which is faster for thousands of columns.

Relies on the schema and on `encode`. Promises the features and counts of `encode_features`, to the
last bit.

Shapes: n rows, k columns of the block, d features.
"""

from __future__ import annotations

import math

import numpy as np

from dmondrian.data.arrow_values import NUMBER, FloatArray, IntArray
from dmondrian.data.encode import FARTHEST, IMPUTED, Counts, Matrix, bounds_of
from dmondrian.data.schema import Column, Schema


class NumberBlock:
    """The number columns of a schema, except those whose range exceeds float64.

    Attributes
    ----------
    columns : ndarray of int64, shape (k,)
        Their numbers in the schema.
    starts : ndarray of int64
        First feature of each column of the schema, and d at the end.
    """

    def __init__(self, schema: Schema) -> None:
        widths = [column.width for column in schema.columns]
        self.starts: IntArray = np.cumsum([0, *widths], dtype=np.int64)
        numbers = [i for i, column in enumerate(schema.columns) if _is_plain(column)]
        plain = [schema.columns[i] for i in numbers]
        bounds = np.array([bounds_of(column) for column in plain]).reshape(-1, 2)
        self.columns: IntArray = np.array(numbers, dtype=np.int64)
        self._names = [column.name for column in plain]
        self._has_nulls = np.array([column.has_nulls for column in plain], dtype=np.bool_)
        self._lower: FloatArray = bounds[:, 0]
        self._upper: FloatArray = bounds[:, 1]

    def encode(self, part: IntArray, values: FloatArray, X: Matrix, counts: Counts) -> None:
        """Write the features of some columns.

        Parameters
        ----------
        part : ndarray of int64
            Indices into `columns`.
        values : ndarray of float64, shape (n, len(part))
            Without infinities; NaN for null.
        X : ndarray of float32, shape (n, d)
            Output; the features of these columns are written.
        counts : dict
            Events are added as in `encode_features`.
        """
        lower, feature = self._lower[part], self.starts[self.columns[part]]
        with np.errstate(over="ignore"):  # values outside may overflow float64
            scaled = (values - lower) / (self._upper[part] - lower)
        null = np.isnan(values)
        is_outside = (scaled < 0.0) | (scaled > 1.0)
        np.clip(scaled, -FARTHEST, FARTHEST, out=scaled)
        if null.any():
            scaled[null] = IMPUTED
            marked = self._has_nulls[part]
            X[:, feature[marked] + 1] = null[:, marked]
            self._count("null", part[~marked], null[:, ~marked], counts)
        X[:, feature] = scaled
        self._count("outside", part, is_outside, counts)

    def _count(self, event: str, part: IntArray, happened: np.ndarray, counts: Counts) -> None:
        numbers = happened.sum(axis=0)
        for place in np.flatnonzero(numbers):
            key = f"{event}:{self._names[part[place]]}"
            counts[key] = counts.get(key, 0) + int(numbers[place])


def _is_plain(column: Column) -> bool:
    """Whether a column is a number that varies in a range that float64 holds."""
    if column.kind != NUMBER or not column.parts:
        return False
    lower, upper = bounds_of(column)
    return math.isfinite(upper - lower)
