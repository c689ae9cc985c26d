"""Tables of rows that are read: small ones joined, so that they are converted together.

Promises that rows keep their order, that only columns of equal names and types are concatenated,
and that at most `JOINED_ROWS` rows are buffered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TypeAlias, TypeVar

import pyarrow as pa

from dmondrian.data.chunks import JOINED_ROWS

PartT = TypeVar("PartT", bound=Sized)
Column: TypeAlias = pa.ChunkedArray | pa.Array
Columns: TypeAlias = dict[str, Column]
Where: TypeAlias = Callable[[int], str]  # place of a row in a column -> "file, row number"


def joined(
    tables: Iterator[tuple[PartT, Columns]], max_rows: int = JOINED_ROWS
) -> Iterator[tuple[Columns, list[PartT]]]:
    """Yield concatenated columns, and their parts; column types may differ between files.

    Parameters
    ----------
    tables : iterator of (part, columns)
        The length of a part is the number of its rows.
    max_rows : int
        Most rows that are concatenated, unless one part has more.
    """
    waiting: list[Columns] = []
    parts: list[PartT] = []
    n_rows = 0
    types: dict[str, pa.DataType] = {}
    for part, columns in tables:
        types_of_part = {name: column.type for name, column in columns.items()}
        if parts and (n_rows + len(part) > max_rows or types_of_part != types):
            yield _concatenated(waiting), parts
            waiting, parts, n_rows = [], [], 0
        waiting.append(columns)
        parts.append(part)
        n_rows, types = n_rows + len(part), types_of_part
        if n_rows >= max_rows:  # do not wait for the next one to be read
            yield _concatenated(waiting), parts
            waiting, parts, n_rows = [], [], 0
    if parts:
        yield _concatenated(waiting), parts


def _concatenated(tables: Sequence[Columns]) -> Columns:
    """Return consecutive columns of equal types, concatenated."""
    if len(tables) == 1:
        return tables[0]
    return {name: _one_column([table[name] for table in tables]) for name in tables[0]}


def _one_column(columns: Sequence[Column]) -> pa.ChunkedArray:
    arrays: list[pa.Array] = []
    for column in columns:
        arrays += column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    whole = pa.chunked_array(arrays, type=columns[0].type)
    # Each file has a dictionary of its own.
    return whole.unify_dictionaries() if pa.types.is_dictionary(whole.type) else whole


def without_views(table: pa.Table) -> pa.Table:
    """Return a table whose texts and bytes are no views: no kernel takes rows of these."""
    for place, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            column = table.column(place).cast(pa.large_string())
        elif pa.types.is_binary_view(field.type):
            column = table.column(place).cast(pa.large_binary())
        else:
            continue
        table = table.set_column(place, field.with_type(column.type), column)
    return table
