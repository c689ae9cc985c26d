"""Scan of the data for levels, labels, bounds and NaN that footers lack.

Relies on `arrow_values` for reading and on footers for the list of row groups. Promises: only
columns that need it are read; files are scanned in parallel but merged in their order, so the
result is the same whatever finishes first; memory is bounded by one row group per thread, or some
small ones with `JOINED_VALUES` values, and by `MAX_DISTINCT` distinct values per column. Small row
groups, of one file or of several, are converted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dmondrian.data.arrow_values import MICROS_PER_DAY, as_micros, as_numbers, as_texts, flatten
from dmondrian.data.chunks import JOINED_ROWS, Chunk, join
from dmondrian.data.columns import NULL, partition_array, partition_values
from dmondrian.data.footers import Footer, first_line, open_parquet, read_columns
from dmondrian.data.tables import Column, Columns, Where, joined
from dmondrian.data.text_words import word_features
from dmondrian.errors import DataError

JOINED_VALUES = 2**20
"""Most values of small row groups that are converted together."""

MAX_DISTINCT = 1_000_000  # a column with more distinct values is an identifier, not a category
N_THREADS = 4  # files scanned at a time

_UNUSABLE = (pa.ArrowException, OSError, ValueError, KeyError)


@dataclass
class NumberScan:
    """Range, nulls and infinities of a number column."""

    lower: float = np.inf
    upper: float = -np.inf
    nulls: int = 0
    infinities: int = 0
    first_infinity: str = ""

    def add(self, column: Column, rows: Sequence[int], where: Where) -> None:
        """Add the next rows."""
        values, null = as_numbers(column)
        if null is not None:
            self.nulls += int(null.sum())
        finite = np.isfinite(values)
        if not finite.all():
            if not self.infinities:
                self.first_infinity = where(int(np.argmin(finite)))
            self.infinities += int((~finite).sum())
        known = finite if null is None else finite & ~null
        if known.any():
            values = values if known.all() else values[known]
            self.lower = min(self.lower, float(values.min()))
            self.upper = max(self.upper, float(values.max()))

    def merge(self, later: NumberScan) -> None:
        """Merge the scan of later rows."""
        self.lower = min(self.lower, later.lower)
        self.upper = max(self.upper, later.upper)
        self.nulls += later.nulls
        self.infinities += later.infinities
        self.first_infinity = self.first_infinity or later.first_infinity


@dataclass
class TimeScan:
    """Range, nulls and infinities of a time column, in microseconds since 1970."""

    lower: int | None = None
    upper: int | None = None
    nulls: int = 0
    has_hours: bool = False  # some time is not midnight
    infinities: int = 0
    first_infinity: str = ""

    def add(self, column: Column, rows: Sequence[int], where: Where) -> None:
        """Add the next rows."""
        micros, null, infinite = as_micros(column)
        unknown = null
        if infinite is not None:
            if not self.infinities:
                self.first_infinity = where(int(np.argmax(infinite)))
            self.infinities += int(infinite.sum())
            unknown = infinite if null is None else infinite | null
        if null is not None:
            self.nulls += int(null.sum())
        if unknown is not None:
            micros = micros[~unknown]
        if len(micros):
            self._widen(int(micros.min()), int(micros.max()))
            self.has_hours = self.has_hours or bool((micros % MICROS_PER_DAY).any())

    def merge(self, later: TimeScan) -> None:
        """Merge the scan of later rows."""
        if later.lower is not None and later.upper is not None:
            self._widen(later.lower, later.upper)
        self.nulls += later.nulls
        self.has_hours = self.has_hours or later.has_hours
        self.infinities += later.infinities
        self.first_infinity = self.first_infinity or later.first_infinity

    def _widen(self, lower: int, upper: int) -> None:
        self.lower = lower if self.lower is None else min(self.lower, lower)
        self.upper = upper if self.upper is None else max(self.upper, upper)


@dataclass
class CategoryScan:
    """Counts of the texts of a category column."""

    counts: Counter[str] = field(default_factory=Counter)
    nulls: int = 0
    is_overfull: bool = False  # more than MAX_DISTINCT values: counting stopped
    n_known: int = 0  # rows
    n_wordy: int = 0  # those of them whose texts have three words or more

    def add(self, column: Column, rows: Sequence[int], where: Where) -> None:
        """Add the next rows."""
        texts, codes = as_texts(column)
        known = codes[codes >= 0]
        self.nulls += len(codes) - len(known)
        self.n_known += len(known)
        is_wordy = np.array([text.count(" ") > 1 for text in texts], np.bool_)
        self.n_wordy += int(np.count_nonzero(is_wordy[known]))
        if self.is_overfull:
            return
        for text, count in zip(texts, np.bincount(known, minlength=len(texts)), strict=True):
            if count:
                self.counts[text] += int(count)
        self._bound()

    def merge(self, later: CategoryScan) -> None:
        """Merge the scan of later rows."""
        self.nulls += later.nulls
        self.n_known += later.n_known
        self.n_wordy += later.n_wordy
        self.is_overfull = self.is_overfull or later.is_overfull
        self.counts.update(later.counts)
        self._bound()

    @property
    def looks_like_text(self) -> bool:
        """Whether most rows have three words or more."""
        return 2 * self.n_wordy > self.n_known

    def _bound(self) -> None:
        if self.is_overfull or len(self.counts) > MAX_DISTINCT:
            self.is_overfull = True
            self.counts = Counter()


@dataclass
class TextScan:
    """Nulls of a text column, and whether any text has a word."""

    nulls: int = 0
    has_words: bool = False

    def add(self, column: Column, rows: Sequence[int], where: Where) -> None:
        """Add the next rows."""
        texts, codes = as_texts(column)
        self.nulls += int((codes < 0).sum())
        self.has_words = self.has_words or bool(len(word_features(texts, 2, 1)[1]))

    def merge(self, later: TextScan) -> None:
        """Merge the scan of later rows."""
        self.nulls += later.nulls
        self.has_words = self.has_words or later.has_words


class Scan(Protocol):
    """Statistics of one column; `merge` adds the scan of later rows."""

    def add(self, column: Column, rows: Sequence[int], where: Where) -> None:
        """Add the next rows.

        Parameters
        ----------
        column : ChunkedArray or Array
            Of consecutive row groups.
        rows : sequence of int
            Rows of each row group.
        where : callable
            Returns the name of a row by its place in the column.
        """

    def merge(self, later: Any) -> None:
        """Merge the scan of later rows."""


@dataclass(frozen=True)
class _Part:
    """A row group that is scanned."""

    footer: Footer
    group: int
    first_row: int  # number in the file of its first row

    def __len__(self) -> int:
        return self.footer.group_rows[self.group]

    @property
    def uri(self) -> str:
        return self.footer.file.uri


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
        Data with at most this many rows are sampled whole; otherwise evenly spaced row groups of
        about this many rows in all.

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
    every = {**makers, **sampled}
    types = dict(partitions)
    max_rows = min(JOINED_ROWS, JOINED_VALUES // len(every))

    def tables(number: int) -> Iterator[tuple[_Part, Columns]]:
        """Yield the row groups of a file, each with the columns to scan."""
        groups = range(len(footers[number].group_rows))
        wanted = [every if (starts[number] + i) % step == 0 else makers for i in groups]
        return _tables(footers[number], types, every, wanted)

    def scan_files(files: Chunk) -> dict[str, Scan]:
        scans = {name: make() for name, make in every.items()}
        parts = chain.from_iterable(map(tables, range(files.first, files.last)))
        for columns, some in joined(parts, max_rows):
            _add(columns, some, scans, every)
        return scans

    with ThreadPoolExecutor(max_workers=N_THREADS) as pool:
        merged: dict[str, Scan] = {}
        for scans in pool.map(scan_files, _joined_files(footers)):
            for name, part in scans.items():
                if name in merged:
                    merged[name].merge(part)
                else:
                    merged[name] = part
    return merged


@dataclass(frozen=True)
class _Rows:
    """Rows of a file, and the number of its first one in the source."""

    position: int
    rows: int


def _joined_files(footers: Sequence[Footer]) -> tuple[Chunk, ...]:
    """Return groups of files that one thread scans: small ones together."""
    rows = [footer.rows for footer in footers]
    starts = [0, *accumulate(rows)]
    return join([_Rows(start, n) for start, n in zip(starts[:-1], rows, strict=True)])


def _tables(
    footer: Footer,
    partitions: dict[str, pa.DataType],
    makers: Mapping[str, Callable[[], Scan]],
    wanted: Sequence[Collection[str]],
) -> Iterator[tuple[_Part, Columns]]:
    """Yield the row groups of a file that have rows, each with its `wanted` columns."""
    uri, content = footer.file.uri, footer.content
    constants = {
        value[0]: value
        for value in partition_values(footer.file, partitions)
        if value[0] in makers and value[0] not in footer.types
    } | {name: (name, NULL, None) for name in footer.absent if name in makers}
    in_file = [name for name in makers if name not in constants]
    texts = [
        name for name in in_file if makers[name] is CategoryScan
    ]  # dictionary pages are counted without decoding them
    first_row = 0
    source = None if content is None else pa.BufferReader(content)
    with open_parquet(uri, texts, source=source) as parquet:
        for number, rows in enumerate(footer.group_rows):
            names = [name for name in in_file if name in wanted[number]]
            columns: Columns = {}
            if names and rows:
                try:
                    table = read_columns(parquet, uri, number, names)
                    columns = {name: table.column(name) for name in names}
                except _UNUSABLE as error:
                    raise _unusable(f"{uri}, row group {number}", error) from error
            for name, value in constants.items():
                columns[name] = partition_array(value, rows)
            if rows:
                yield _Part(footer, number, first_row), columns
            first_row += rows


def _add(
    columns: Columns,
    parts: Sequence[_Part],
    scans: Mapping[str, Scan],
    makers: Mapping[str, Callable[[], Scan]],
) -> None:
    """Add the columns of some row groups to the scans."""

    def where(row: int) -> str:
        for part in parts:
            if row < len(part):
                break
            row -= len(part)
        return f"{part.uri}, row {part.first_row + row}"

    rows = [len(part) for part in parts]
    for name, column in columns.items():
        try:
            scans[name].add(column, rows, where)
        except _UNUSABLE as error:
            part = _unusable_part(column, parts, makers[name])
            place = f"the column {name!r} of {part.uri}, row group {part.group}"
            raise _unusable(place, error) from error


def _unusable_part(column: Column, parts: Sequence[_Part], make: Callable[[], Scan]) -> _Part:
    """Return the row group whose values cannot be converted: the error does not name it."""
    start = 0
    for part in parts[:-1]:
        values = flatten(column.slice(start, len(part)))
        try:
            if pa.types.is_dictionary(values.type):  # the dictionary is shared by all parts
                values = values.dictionary_decode()
            make().add(values, [len(part)], str)
        except _UNUSABLE:
            return part
        start += len(part)
    return parts[-1]


def _unusable(where: str, error: Exception) -> Exception:
    """Return the error that names where values could not be read or converted."""
    if isinstance(error, DataError):
        return error
    return DataError(f"cannot read {where}: {first_line(error)}")
