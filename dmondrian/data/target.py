"""Scan of the target: its labels, its range, and whether it looks sorted.

Relies on `arrow_values`. Promises: labels are strings, booleans or integers, whatever the file
stores them as; nulls, NaN and infinities are counted and the first is located.

A target looks sorted when neighbouring rows agree far more often than rows in random order would:
for classes, fewer than `FEW_CHANGES` of the changes of label expected from the class frequencies;
for numbers, when more than `ONE_WAY` of all moves between neighbours go the same way. Series in
time order change slowly but well above these limits.

Row groups look pure when rows of one row group agree far more often than rows of any: for classes,
fewer than half of the differences expected from the class frequencies; for numbers, where most row
groups have one value each, and these are not the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dmondrian.data.arrow_arrays import numpy_of
from dmondrian.data.arrow_values import (
    FloatArray,
    IntArray,
    as_numbers,
    as_texts,
    flatten,
    is_bytes,
    is_text,
)
from dmondrian.data.schema import Label
from dmondrian.data.tables import Column, Where
from dmondrian.errors import DataError

FEW_CHANGES = 0.1
ONE_WAY = 0.95
MIN_MOVES = 50  # with fewer expected changes there is no verdict
MIN_GROUP = 10  # smaller row groups may have one number by chance
MAX_CLASSES = 65_536


@dataclass
class LabelScan:
    """Labels of a classification target."""

    name: str
    counts: Counter[Label] = field(default_factory=Counter)
    nulls: int = 0
    first_null: str = ""
    pairs: int = 0  # neighbouring rows compared
    changes: int = 0  # of which with different labels
    mixture: float = 0.0  # sum over row groups of rows * Gini impurity

    def add(self, column: Column, rows: Sequence[int], where: Where) -> None:
        """Add the next rows, see `dmondrian.data.scan.Scan`."""
        labels, codes = as_labels(column, self.name)
        missing = codes < 0
        if missing.any():
            self.first_null = self.first_null or where(int(missing.argmax()))
            self.nulls += int(missing.sum())
        counts = np.bincount(codes[~missing], minlength=len(labels))
        for label, count in zip(labels, counts, strict=True):
            if count:
                self.counts[label] += int(count)
        if len(self.counts) > MAX_CLASSES:
            raise DataError(
                f"the target {self.name!r} has more than {MAX_CLASSES} different labels: if it is "
                'a number to predict, use a regressor, such as algorithm = "amf-regressor" in a '
                'job file (task="regression" of a plan or of `dmondrian schema`)'
            )
        for part in np.split(codes, np.cumsum(rows[:-1])):
            self._compare(part[part >= 0])

    def _compare(self, codes: IntArray) -> None:
        """Compare the rows of one row group, in order, with each other."""
        if not len(codes):
            return
        counts = np.bincount(codes).astype(np.float64)
        self.pairs += len(codes) - 1
        self.changes += int((codes[1:] != codes[:-1]).sum())
        self.mixture += len(codes) - float((counts**2).sum()) / len(codes)

    def merge(self, later: LabelScan) -> None:
        """Merge the scan of later rows."""
        self.counts.update(later.counts)
        self.nulls += later.nulls
        self.first_null = self.first_null or later.first_null
        self.pairs += later.pairs
        self.changes += later.changes
        self.mixture += later.mixture

    @property
    def impurity(self) -> float:
        """Probability that two random rows have different labels (Gini impurity)."""
        total = sum(self.counts.values())
        return 1.0 - sum((count / total) ** 2 for count in self.counts.values())

    def looks_sorted(self) -> bool:
        """Whether neighbours agree far more often than in random order."""
        expected = self.pairs * self.impurity
        return expected >= MIN_MOVES and self.changes < FEW_CHANGES * expected

    def groups_look_pure(self) -> bool:
        """Whether rows of a row group agree far more often than rows of all."""
        expected = self.pairs * self.impurity  # of the mixture, in random order
        return expected >= MIN_MOVES and self.mixture < 0.5 * expected


@dataclass
class ValueScan:
    """Values of a regression target."""

    name: str
    lower: float = np.inf
    upper: float = -np.inf
    nulls: int = 0
    first_null: str = ""
    infinities: int = 0
    first_infinity: str = ""
    rises: int = 0
    falls: int = 0
    ranges: list[tuple[float, float]] = field(default_factory=list)  # of large row groups

    def add(self, column: Column, rows: Sequence[int], where: Where) -> None:
        """Add the next rows, see `dmondrian.data.scan.Scan`."""
        values, null = as_numbers(column)
        if null is not None:
            self.first_null = self.first_null or where(int(null.argmax()))
            self.nulls += int(null.sum())
            if null.all():
                return
        infinite = np.isinf(values)
        if infinite.any():
            self.first_infinity = self.first_infinity or where(int(infinite.argmax()))
            self.infinities += int(infinite.sum())
        known = ~infinite if null is None else ~(infinite | null)
        ends = np.cumsum(rows[:-1])
        for part, is_known in zip(np.split(values, ends), np.split(known, ends), strict=True):
            self._compare(part[is_known])

    def _compare(self, values: FloatArray) -> None:
        """Add the finite values of one row group, in order."""
        if not len(values):
            return
        lower, upper = float(values.min()), float(values.max())
        self.lower, self.upper = min(self.lower, lower), max(self.upper, upper)
        self.rises += int((values[1:] > values[:-1]).sum())
        self.falls += int((values[1:] < values[:-1]).sum())
        if len(values) >= MIN_GROUP:
            self.ranges.append((lower, upper))

    def merge(self, later: ValueScan) -> None:
        """Merge the scan of later rows."""
        self.lower = min(self.lower, later.lower)
        self.upper = max(self.upper, later.upper)
        self.nulls += later.nulls
        self.first_null = self.first_null or later.first_null
        self.infinities += later.infinities
        self.first_infinity = self.first_infinity or later.first_infinity
        self.rises += later.rises
        self.falls += later.falls
        self.ranges += later.ranges

    def looks_sorted(self) -> bool:
        """Whether nearly all moves between neighbours go one way."""
        moves = self.rises + self.falls
        return moves >= MIN_MOVES and max(self.rises, self.falls) > ONE_WAY * moves


def as_labels(column: pa.ChunkedArray | pa.Array, name: str) -> tuple[list[Label], IntArray]:
    """Return distinct labels, in order of appearance, and indices [n] into them, -1 for null.

    Raises
    ------
    DataError
        The type holds no labels, or a float is not an integer.
    """
    array = flatten(column)
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if is_text(kind) or is_bytes(kind) or pa.types.is_null(kind):
        texts, codes = as_texts(array)
        return list(texts), codes
    if not (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    ):
        raise DataError(
            f"the target {name!r} is of the type {kind}: expected strings, integers or booleans "
            "as class labels"
        )
    if not pa.types.is_dictionary(array.type):
        array = flatten(pc.dictionary_encode(array))
    codes = numpy_of(array.indices.cast(pa.int64()), -1)
    values = [_label(value, name) for value in array.dictionary.to_pylist()]
    if None in values:
        real = np.array([value is not None for value in values], dtype=np.bool_)
        codes = np.where((codes >= 0) & real[codes], codes, -1)
    return [0 if value is None else value for value in values], codes


def _label(value: object, name: str) -> Label | None:
    if value is None or value != value:
        return None
    if isinstance(value, bool):
        return value
    try:
        whole = int(value)  # type: ignore[call-overload]  # int, float or Decimal by now
    except OverflowError:  # an infinity
        whole = None
    if whole != value:
        raise DataError(
            f"the target {name!r} has the value {value}, which is no class label: expected "
            "strings, integers or booleans. For a number to predict use a regressor, such as "
            'algorithm = "amf-regressor" in a job file (task="regression" of a plan or of '
            "`dmondrian schema`)"
        )
    return int(whole)


def bounds_look_sorted(bounds: list[tuple[float, float]]) -> bool:
    """Whether the ranges of consecutive row groups follow one another without overlap."""
    if len(bounds) < 4:
        return False
    up = sum(a[1] <= b[0] for a, b in pairwise(bounds))
    down = sum(a[0] >= b[1] for a, b in pairwise(bounds))
    constant = sum(low == high for low, high in bounds)
    return constant < len(bounds) / 2 and max(up, down) > ONE_WAY * (len(bounds) - 1)


def ranges_look_pure(ranges: list[tuple[float, float]]) -> bool:
    """Whether most row groups have one value of the target each, and not all the same.

    Parameters
    ----------
    ranges : list of (lower, upper)
        Of row groups of at least `MIN_GROUP` rows.
    """
    values = Counter(lower for lower, upper in ranges if lower == upper)
    constant = sum(values.values())
    # Where nearly all targets are 0, as counts of rare events are, so are those of many row groups.
    return constant > len(ranges) / 2 and max(values.values()) < 0.9 * constant
