"""The one pass over data: what footers cannot tell about levels, labels, bounds and NaN.

Relies on `values` for reading and on footers for the list of row groups. Promises: only columns
that need it are read; files are scanned side by side but merged in their order, so the result is
the same whatever finished first; memory is bounded by one row group per thread and by
`MAX_DISTINCT` distinct values per column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dmondrian.data.columns import partition_array, partition_values
from dmondrian.data.footers import Footer, first_line, open_parquet, read_columns
from dmondrian.data.values import MICROS_PER_DAY, as_micros, as_numbers, as_texts
from dmondrian.errors import DataError

MAX_DISTINCT = 1_000_000  # a column with more distinct values is an identifier, not a category
N_THREADS = 4  # files scanned at a time


@dataclass
class NumberScan:
    """Range, nulls and infinities of a number column."""

    lower: float = np.inf
    upper: float = -np.inf
    nulls: int = 0
    infinities: int = 0
    first_infinity: str = ""

    def add(self, column: pa.ChunkedArray | pa.Array, uri: str, first_row: int) -> None:
        """Take in the next rows, of which the first has this number in its file."""
        values, null = as_numbers(column)
        if null is not None:
            self.nulls += int(null.sum())
        finite = np.isfinite(values)
        if not finite.all():
            if not self.infinities:
                self.first_infinity = f"{uri}, row {first_row + int(np.argmin(finite))}"
            self.infinities += int((~finite).sum())
        known = finite if null is None else finite & ~null
        if known.any():
            values = values if known.all() else values[known]
            self.lower = min(self.lower, float(values.min()))
            self.upper = max(self.upper, float(values.max()))

    def merge(self, other: NumberScan) -> None:
        """Take in the scan of later rows."""
        self.lower = min(self.lower, other.lower)
        self.upper = max(self.upper, other.upper)
        self.nulls += other.nulls
        self.infinities += other.infinities
        self.first_infinity = self.first_infinity or other.first_infinity


@dataclass
class TimeScan:
    """Range, nulls and infinities of a time column, in microseconds since 1970."""

    lower: int | None = None
    upper: int | None = None
    nulls: int = 0
    has_hours: bool = False  # some time is not midnight
    infinities: int = 0
    first_infinity: str = ""

    def add(self, column: pa.ChunkedArray | pa.Array, uri: str, first_row: int) -> None:
        """Take in the next rows, of which the first has this number in its file."""
        micros, null, infinite = as_micros(column)
        unknown = null
        if infinite is not None:
            if not self.infinities:
                self.first_infinity = f"{uri}, row {first_row + int(np.argmax(infinite))}"
            self.infinities += int(infinite.sum())
            unknown = infinite if null is None else infinite | null
        if null is not None:
            self.nulls += int(null.sum())
        if unknown is not None:
            micros = micros[~unknown]
        if len(micros):
            self._widen(int(micros.min()), int(micros.max()))
            self.has_hours = self.has_hours or bool((micros % MICROS_PER_DAY).any())

    def merge(self, other: TimeScan) -> None:
        """Take in the scan of later rows."""
        if other.lower is not None and other.upper is not None:
            self._widen(other.lower, other.upper)
        self.nulls += other.nulls
        self.has_hours = self.has_hours or other.has_hours
        self.infinities += other.infinities
        self.first_infinity = self.first_infinity or other.first_infinity

    def _widen(self, lower: int, upper: int) -> None:
        self.lower = lower if self.lower is None else min(self.lower, lower)
        self.upper = upper if self.upper is None else max(self.upper, upper)


@dataclass
class CategoryScan:
    """Counts of the texts of a category column."""

    counts: Counter[str] = field(default_factory=Counter)
    nulls: int = 0
    is_overfull: bool = False  # more than MAX_DISTINCT values: counting stopped

    def add(self, column: pa.ChunkedArray | pa.Array, uri: str, first_row: int) -> None:
        """Take in the next rows, of which the first has this number in its file."""
        texts, codes = as_texts(column)
        known = codes[codes >= 0]
        self.nulls += len(codes) - len(known)
        if self.is_overfull:
            return
        for text, count in zip(texts, np.bincount(known, minlength=len(texts)), strict=True):
            if count:
                self.counts[text] += int(count)
        self._bound()

    def merge(self, other: CategoryScan) -> None:
        """Take in the scan of later rows."""
        self.nulls += other.nulls
        self.is_overfull = self.is_overfull or other.is_overfull
        self.counts.update(other.counts)
        self._bound()

    def _bound(self) -> None:
        if self.is_overfull or len(self.counts) > MAX_DISTINCT:
            self.is_overfull = True
            self.counts = Counter()


class Scan(Protocol):
    """What a pass keeps of one column; `merge` takes the scan of later rows."""

    def add(self, column: pa.ChunkedArray | pa.Array, uri: str, first_row: int) -> None:
        """Take in the next rows, of which the first has this number in its file."""

    def merge(self, other: Any) -> None:
        """Take in the scan of later rows."""


def scan(
    footers: Sequence[Footer],
    partitions: Mapping[str, pa.DataType],
    makers: Mapping[str, Callable[[], Scan]],
    sampled: Mapping[str, Callable[[], Scan]],
    sample_rows: int,
) -> dict[str, Scan]:
    """Scan columns in all row groups (`makers`) and in a sample of them (`sampled`).

    Parameters
    ----------
    makers, sampled : mapping of column name to a function that makes its empty scan
    sample_rows : int
        All row groups are sampled when the data has no more rows than this; otherwise groups
        evenly spaced, about this many rows together.

    Raises
    ------
    DataError
        A row group cannot be read or a value cannot be converted.
    """
    if not makers and not sampled:
        return {}
    total = sum(footer.rows for footer in footers)
    step = max(1, -(-total // sample_rows))
    starts = np.cumsum([0, *(len(footer.group_rows) for footer in footers)])

    def scan_file(number: int) -> dict[str, Scan]:
        footer = footers[number]
        parts: dict[str, Scan] = {name: make() for name, make in {**makers, **sampled}.items()}
        groups = [
            (i, set(parts) if (starts[number] + i) % step == 0 else set(makers))
            for i in range(len(footer.group_rows))
        ]
        _scan_file(footer, dict(partitions), parts, groups)
        return parts

    with ThreadPoolExecutor(max_workers=N_THREADS) as pool:
        merged: dict[str, Scan] = {}
        for parts in pool.map(scan_file, range(len(footers))):
            for name, part in parts.items():
                if name in merged:
                    merged[name].merge(part)
                else:
                    merged[name] = part
    return merged


def _scan_file(
    footer: Footer,
    partitions: dict[str, pa.DataType],
    scans: Mapping[str, Scan],
    groups: Sequence[tuple[int, set[str]]],
) -> None:
    uri = footer.file.uri
    constants = {
        value[0]: value
        for value in partition_values(footer.file, partitions)
        if value[0] in scans and value[0] not in footer.types
    }
    in_file = [name for name in scans if name not in constants]
    texts = [
        name for name in in_file if isinstance(scans[name], CategoryScan)
    ]  # dictionary pages are counted without being spelled out
    first_row = 0
    with open_parquet(uri, texts) as parquet:
        for number, wanted in groups:
            rows = footer.group_rows[number]
            names = [name for name in in_file if name in wanted]
            column = ""
            try:
                if names and rows:
                    table = read_columns(parquet, uri, number, names)
                    for column in names:
                        scans[column].add(table.column(column), uri, first_row)
                for column, value in constants.items():
                    scans[column].add(partition_array(value, rows), uri, first_row)
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                if isinstance(error, DataError):
                    raise
                where = f"the column {column!r} of " if column else ""
                raise DataError(
                    f"cannot read {where}{uri}, row group {number}: {first_line(error)}"
                ) from error
            first_row += rows
