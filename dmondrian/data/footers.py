"""Parquet footers: columns, row groups, bounds and null counts, without reading data.

Relies on `pyarrow.parquet`. Promises: footers are returned in the order of the files whatever
finishes first; a missing or unreliable bound is None, never a guess; a file that cannot be read is
a `DataError` with its name and the reason; a file of at most `dmondrian.data.fingerprint.END_BYTES`
is read whole by one request whenever it is opened.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.data.arrow_values import (
    CATEGORY,
    NUMBER,
    TIME,
    kind_of,
    statistic_decimal,
    statistic_micros,
    statistic_number,
)
from dmondrian.data.fingerprint import END_BYTES, fingerprint, footer_in, read_end
from dmondrian.data.frame_index import index_names
from dmondrian.data.source import SourceFile, open_uri
from dmondrian.data.unreadable import encrypted_columns, first_line, unreadable
from dmondrian.errors import DataError

__all__ = ["Bounds", "Footer", "first_line", "open_parquet", "read_columns", "read_footers"]

CUT_BYTES = 32  # bounds of texts of this length may be truncated
MAX_CONNECTIONS = 16  # footers read at a time; they are small and mostly waiting

LAST_FIELD = 2**31 - 1 - 200
"""Field ids of Parquet columns beyond it are of columns that Iceberg adds, such as row ids."""

FEW_VALUES = 65_536
"""Values of a row group up to which one thread decodes: several would take longer."""


@dataclass(frozen=True)
class Bounds:
    """Range and nulls of a column in a row group; None if the footer lacks them."""

    lower: float | None
    upper: float | None
    nulls: int | None
    all_null: bool = False  # every row is null, so there is no range
    texts: tuple[str, str] | None = None  # least and greatest text of a column of texts


@dataclass(frozen=True)
class Footer:
    """The footer of one Parquet file: its types, row groups and statistics."""

    file: SourceFile
    types: Mapping[str, pa.DataType]  # of top-level columns; repeated names are dropped
    repeated: tuple[str, ...]  # those names
    group_rows: tuple[int, ...]  # rows of each row group
    bounds: dict[str, list[Bounds]] = field(default_factory=dict)  # column -> one per row group
    index: tuple[str, ...] = ()  # columns that are a data frame's index
    encrypted: tuple[str, ...] = ()  # columns that cannot be read
    content: bytes | None = None  # the whole file, if requested
    absent: tuple[str, ...] = ()  # columns of its table that the file lacks, of the type null
    elsewhere: tuple[str, ...] = ()  # others that it lacks, which have values in its table

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return sum(self.group_rows)


def read_footers(
    files: Sequence[SourceFile],
    with_bounds: bool | Collection[str] = True,
    content_bytes: int = 0,
) -> list[Footer]:
    """Return the footers of files, with bounds of all, no or some columns.

    Parameters
    ----------
    files : sequence of SourceFile
    with_bounds : bool or collection of str
    content_bytes : int
        Contents of the first small files, which are read with the footer, are kept up to this
        total size.

    Raises
    ------
    DataError
        A file is truncated, is not Parquet, is encrypted, or cannot be read.
    """
    with ThreadPoolExecutor(max_workers=min(MAX_CONNECTIONS, len(files)) or 1) as pool:
        kept = _first_small(files, content_bytes)
        return _with_shared_types(
            pool.map(lambda file: _read_footer(file, with_bounds, file.uri in kept), files)
        )


def open_parquet(
    uri: str,
    dictionaries: Sequence[str] = (),
    footer: pq.FileMetaData | None = None,
    source: pa.NativeFile | None = None,
) -> pq.ParquetFile:
    """Open a Parquet file; int96 times are read as microseconds, which hold every date.

    A given ``footer`` is not read again, and a given ``source``, the open file, not opened again.
    Page checksums are verified when pages are read (`read_columns`): a flipped bit is an error.

    Raises
    ------
    DataError
        The file is truncated, is not Parquet, is encrypted, or cannot be read.
    """
    try:
        source = _opened(uri) if source is None else source
        return pq.ParquetFile(
            source,
            metadata=footer,
            read_dictionary=list(dictionaries),
            coerce_int96_timestamp_unit="us",
            pre_buffer=not isinstance(source, pa.BufferReader),
            page_checksum_verification=True,
        )
    except (pa.ArrowException, OSError) as error:
        raise unreadable(uri, error) from error


def read_columns(
    parquet: pq.ParquetFile, uri: str, group: int, names: Sequence[str] | None
) -> pa.Table:
    """Read columns of a row group, all of them if None.

    Raises
    ------
    DataError
        Pages cannot be decoded or have wrong checksums, or the file cannot be read.
    """
    n_columns = parquet.metadata.num_columns if names is None else len(names)
    several = parquet.metadata.row_group(group).num_rows * n_columns > FEW_VALUES
    columns = None if names is None else list(names)
    try:
        return parquet.read_row_group(group, columns=columns, use_threads=several)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(uri, error, f"row group {group}") from error


def _with_shared_types(footers: Iterable[Footer]) -> list[Footer]:
    """Return footers that share one mapping object for equal types."""
    known: dict[tuple[tuple[str, pa.DataType], ...], Mapping[str, pa.DataType]] = {}
    return [
        replace(footer, types=known.setdefault(tuple(footer.types.items()), footer.types))
        for footer in footers
    ]


def _first_small(files: Sequence[SourceFile], n_bytes: int) -> set[str]:
    """Return the uris of the first files that are read whole, up to `n_bytes` in all."""
    uris = set()
    for file in files:
        if file.size <= END_BYTES:
            n_bytes -= file.size
            if n_bytes < 0:
                break
            uris.add(file.uri)
    return uris


def _opened(uri: str) -> pa.NativeFile:
    """Open a file; read small ones whole, with one request."""
    file = open_uri(uri)
    if file.size() > END_BYTES:
        return file
    with file:
        return pa.BufferReader(file.read_buffer())


def _read_footer(
    file: SourceFile, with_bounds: bool | Collection[str], is_content_kept: bool
) -> Footer:
    if file.size == 0:
        raise DataError(f"{file.uri} is empty (0 bytes): expected a Parquet file")
    try:
        with open_uri(file.uri) as source:
            end = read_end(source)
            is_whole = len(end) == source.size()
            file, tail = file.opened(source, fingerprint(source, end)), footer_in(end)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file.uri, error) from error
    with open_parquet(file.uri, source=pa.BufferReader(tail)) as parquet:
        metadata, whole = parquet.metadata, parquet.schema_arrow
        counts = Counter(whole.names)
        repeated = tuple(name for name, count in counts.items() if count > 1)
        types = {
            name: type_
            for name, type_ in zip(whole.names, whole.types, strict=True)
            if counts[name] == 1
        }
        types, absent = _columns_of_table(file, whole, types)
        elsewhere = _with_values_elsewhere(file, whole)
        group_rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        encrypted = encrypted_columns(parquet, tail, file.uri)
        asked = set(types if with_bounds is True else with_bounds or ()).difference(encrypted)
        bounds = _bounds(metadata, {name: type_ for name, type_ in types.items() if name in asked})
        index = index_names(list(types), whole.metadata)
    content = end if is_content_kept and is_whole else None
    return Footer(
        file, types, repeated, group_rows, bounds, index, encrypted, content, absent, elsewhere
    )


def plain_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns of a file but those that Iceberg adds."""
    return [field.name for field in schema if (_field_id(field) or 0) <= LAST_FIELD]


def _field_id(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if text is None else int(text)


def _columns_of_table(
    file: SourceFile, schema: pa.Schema, types: dict[str, pa.DataType]
) -> tuple[dict[str, pa.DataType], tuple[str, ...]]:
    """Return the types of a file's columns as its table has them, and columns that it lacks."""
    if any(field.metadata for field in schema):
        plain = set(plain_columns(schema))
        types = {name: type_ for name, type_ in types.items() if name in plain}
    if not file.columns:
        return types, ()
    ids = {_field_id(field) for field in schema} - {None}
    if file.columns[0][1] is None:
        known = {*dict(file.columns), *dict(file.partition)}
        types = {name: type_ for name, type_ in types.items() if name in known}
        there = set(schema.names)
        absent = tuple(name for name, _ in file.columns if name not in there)
    else:  # without ids it is not known which columns are there by other names
        absent = tuple(name for name, number in file.columns if ids and number not in ids)
    return {**types, **dict.fromkeys(absent, pa.null())}, absent


def _with_values_elsewhere(file: SourceFile, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that a file lacks and that are not null in its table."""
    ids = {_field_id(field) for field in schema} - {None}
    names = set(schema.names)
    return tuple(
        name for name, number in file.elsewhere if (number not in ids if ids else name not in names)
    )


def _bounds(metadata: pq.FileMetaData, types: Mapping[str, pa.DataType]) -> dict[str, list[Bounds]]:
    if not types:
        return {}
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    times = Counter(paths)
    # A column called a.b and the field b of a struct a have the same, ambiguous path.
    leaves = {path: i for i, path in enumerate(paths) if times[path] == 1}
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return {
        name: [_chunk_bounds(group.column(leaves[name]), group.num_rows, type_) for group in groups]
        for name, type_ in types.items()
        if name in leaves
    }


def _chunk_bounds(chunk: pq.ColumnChunkMetaData, rows: int, type_: pa.DataType) -> Bounds:
    statistics = chunk.statistics
    if statistics is None:
        return Bounds(None, None, None)
    nulls = statistics.null_count if statistics.has_null_count else None
    if nulls == rows:
        return Bounds(None, None, nulls, all_null=True)
    if not statistics.has_min_max:
        return Bounds(None, None, nulls)
    kind = _kind_of_bounds(type_)
    if kind == NUMBER:
        lower, upper = _number_bounds(statistics)
        return Bounds(lower, upper, nulls)
    if kind == TIME:
        unit = _time_unit(statistics)
        lower = statistic_micros(statistics.min_raw, unit)
        return Bounds(lower, statistic_micros(statistics.max_raw, unit), nulls)
    return Bounds(None, None, nulls, texts=_text_bounds(statistics) if kind == CATEGORY else None)


def _number_bounds(statistics: pq.Statistics) -> tuple[float | None, float | None]:
    """Return the least and largest number; None if unusable."""
    stored = statistics.logical_type
    if stored.type != "DECIMAL":
        return statistic_number(statistics.min), statistic_number(statistics.max)
    # As stored: PyArrow 22 refuses to read those of integers, as Spark writes them.
    scale = json.loads(stored.to_json())["scale"]
    least, most = statistics.min_raw, statistics.max_raw
    return statistic_decimal(least, scale), statistic_decimal(most, scale)


@lru_cache
def _kind_of_bounds(type_: pa.DataType) -> str | None:
    """Return the kind of a column if its bounds in footers can be used."""
    is_span = pa.types.is_duration(type_) or pa.types.is_time(type_)
    return None if is_span else kind_of(type_)[0]


def _text_bounds(statistics: pq.Statistics) -> tuple[str, str] | None:
    """Return the smallest and largest text; None if writers may have truncated them."""
    ends = statistics.min_raw, statistics.max_raw
    if not all(type(end) is bytes and len(end) < CUT_BYTES for end in ends):
        return None
    least, most = (end.decode("utf-8", "replace") for end in ends)
    return least, most


def _time_unit(statistics: pq.Statistics) -> str | None:
    """Return the unit of the stored bounds of a time column, or None if unknown."""
    if statistics.physical_type == "INT32":
        return "day"
    if statistics.physical_type != "INT64":
        return None
    stored = json.loads(statistics.logical_type.to_json()).get("timeUnit")
    return {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}.get(stored)
