"""Copies of the files of a stream without the rows of some keys.

Relies on a key column that each file has. Promises files whose names sort in the order of the
stream, with the row groups, columns and types of the originals; that no row with one of the keys is
in them, which is counted again once they are written, nor in dictionaries of columns; and that no
other row is missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dmondrian.data.arrow_arrays import dtype_of
from dmondrian.data.arrow_values import is_bytes, is_text
from dmondrian.data.footers import open_parquet, read_columns
from dmondrian.data.source import open_uri
from dmondrian.data.tables import without_views
from dmondrian.errors import CheckpointError, CorruptError, DataError, FencedError, ParameterError
from dmondrian.store import open_store

_OTHER = "rows of other keys were to be forgotten there; choose another folder"


@dataclass(frozen=True)
class Copied:
    """A file without the rows of some keys.

    Attributes
    ----------
    name : str
        In the folder of the copies.
    rows : int
    left_out : int
    sha256 : str
    """

    name: str
    rows: int
    left_out: int
    sha256: str


def read_keys(file: str | os.PathLike[str], key: str) -> pa.Array:
    """Return the keys that a file lists, each once.

    Parameters
    ----------
    file : str or path
        Parquet with the column ``key``, or text with a key in each line, whose spaces count where
        the column is of strings.
    key : str

    Raises
    ------
    DataError
        It cannot be read, or lists none.
    """
    name = os.fspath(file)
    try:
        if name.lower().endswith((".parquet", ".pq", ".parq")):
            table = pq.read_table(
                name,
                columns=[key],
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=True,
            )
            keys = table[key].combine_chunks()
        else:
            with open(name, encoding="utf-8-sig") as lines:
                keys = pa.array([line.rstrip("\n") for line in lines if line.strip()], pa.string())
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise DataError(f"cannot read keys from {name}: {error}") from error
    plain = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    unique_keys = plain.drop_null().unique()
    if not len(unique_keys):
        raise DataError(f"{name} lists no key: expected a column {key!r}, or a key in each line")
    return unique_keys


@dataclass(frozen=True)
class MatchedRows:
    """Where rows with some keys are.

    Attributes
    ----------
    in_no_row : int
        Keys that no row has.
    rows_left : tuple of int
        Rows of each file that have none of the keys.
    """

    in_no_row: int
    rows_left: tuple[int, ...]


def find_rows(uris: Sequence[str], key: str, keys: pa.Array) -> MatchedRows:
    """Return which rows of some files have one of some keys; only the key column is read.

    Raises
    ------
    DataError
        A file cannot be read or lacks the column.
    ParameterError
        The keys are no values of its type.
    """
    is_there, left = np.zeros(len(keys), np.bool_), []
    for uri in uris:
        with open_uri(uri) as source:
            parquet, n_out = _with_key(open_parquet(uri, source=source), key, uri), 0
            for column in _keys_of(parquet, key, uri):
                plain = _plain(column)
                keys_as_values = _as_values(keys, plain.type, uri)
                n_out += _count(column, keys, uri)
                values = plain.unique().drop_null()
                is_there |= pc.is_in(keys_as_values, value_set=values).to_numpy(
                    zero_copy_only=False
                )
        left.append(parquet.metadata.num_rows - n_out)
    return MatchedRows(int(len(keys) - is_there.sum()), tuple(left))


def copy_without(uris: Sequence[str], out: str, key: str, keys: pa.Array) -> list[Copied]:
    """Write files without the rows of some keys; a file that is there already is kept.

    Parameters
    ----------
    uris : sequence of str
    out : str
        Folder or URL.
    key : str
        Column that each file has once.
    keys : Array

    Raises
    ------
    DataError
        A file cannot be read, or its column does not have the type of the keys.
    CorruptError
        A copy holds one of the keys.
    CheckpointError
        The folder has copies of other files, or without other keys.
    """
    store, copied = open_store(out), []
    for number, uri in enumerate(uris, start=1):
        name = f"{number:08d}.parquet"
        data, n_rows, n_out = _without(uri, key, keys)
        try:
            store.put_same(name, data)
        except FencedError as error:
            raise CheckpointError(
                f"{store.url} has {name}, which is not this file without these keys: {_OTHER}"
            ) from error
        again = open_parquet(name, source=pa.BufferReader(store.get(name)))
        if sum(_count(part, keys, uri) for part in _keys_of(again, key, name)):
            raise CorruptError(f"{name} in {out} has rows that were to be left out")
        copied.append(Copied(name, n_rows, n_out, hashlib.sha256(data).hexdigest()))
    return copied


def _without(uri: str, key: str, keys: pa.Array) -> tuple[bytes, int, int]:
    """Return a file's bytes without the rows of some keys, its rows, and how many are left out."""
    with open_uri(uri) as source:
        parquet = _with_key(open_parquet(uri, source=source), key, uri)
        sink, n_rows, n_out = pa.BufferOutputStream(), 0, 0
        schema = parquet.schema_arrow
        with pq.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
            for group in range(parquet.metadata.num_row_groups):
                table = read_columns(parquet, uri, group, None)
                plain = without_views(table)
                kept = plain.filter(pc.invert(_is_in(table[key], keys, uri)))
                kept = kept if plain is table else kept.cast(table.schema)
                n_out += len(table) - len(kept)
                n_rows += len(kept)
                if len(kept):
                    writer.write_table(_of_its_own(kept, uri), row_group_size=len(kept))
    return sink.getvalue().to_pybytes(), n_rows, n_out


def _of_its_own(table: pa.Table, uri: str) -> pa.Table:
    """Return a table whose dictionaries have the values of its rows alone, in their order."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            chunks = [_with_used_values(chunk) for chunk in table.column(number).chunks]
            table = table.set_column(number, field, pa.chunked_array(chunks, field.type))
        elif "dictionary<" in str(field.type):
            raise DataError(
                f"{field.name!r} of {uri} has dictionaries within lists or structs, in which "
                "values of rows that are left out may stay: write the data without them"
            )
    return table


def _with_used_values(array: pa.DictionaryArray) -> pa.DictionaryArray:
    kind, indices = array.type, array.indices
    used = np.unique(indices.drop_null().to_numpy(zero_copy_only=False))
    places = pc.index_in(indices, value_set=pa.array(used, kind.index_type), skip_nulls=True)
    return pa.DictionaryArray.from_arrays(
        places.cast(kind.index_type), array.dictionary.take(pa.array(used)), ordered=kind.ordered
    )


def _with_key(parquet: pq.ParquetFile, key: str, uri: str) -> pq.ParquetFile:
    if parquet.schema_arrow.names.count(key) != 1:
        raise DataError(f"{uri} has no column {key!r}, which tells whose its rows are")
    return parquet


def _keys_of(parquet: pq.ParquetFile, key: str, uri: str) -> Iterable[Any]:
    for group in range(parquet.metadata.num_row_groups):
        yield read_columns(parquet, uri, group, [key])[key]


def _count(column: pa.ChunkedArray, keys: pa.Array, uri: str) -> int:
    return int(pc.sum(_is_in(column, keys, uri)).as_py() or 0)


def _is_in(column: pa.ChunkedArray, keys: pa.Array, uri: str) -> pa.ChunkedArray:
    """Return whether each value is one of the keys; nulls are none."""
    plain = _plain(column)
    return pc.is_in(plain, value_set=_as_values(keys, plain.type, uri), skip_nulls=True)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as one of a type whose values Arrow compares."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type)
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    return without_views(pa.table([column], [""]))[0]


def _as_values(keys: pa.Array, kind: pa.DataType, uri: str) -> pa.Array:
    """Return keys as values of a type; null where that has no such value."""
    if pa.types.is_null(kind):  # a file without any
        return pa.nulls(len(keys))
    try:
        if pa.types.is_string(keys.type) and not is_text(kind) and not is_bytes(kind):
            keys = pc.utf8_trim_whitespace(keys)
        if not pa.types.is_integer(kind) or pa.types.is_uint64(kind):
            return keys.cast(kind)
        if (
            pa.types.is_floating(keys.type)
            and pc.any(pc.greater_equal(pc.abs(keys), 2.0**53)).as_py()
        ):
            raise ParameterError(
                f"the keys are floating-point numbers, some of 2^53 or more, and those of {uri} "
                "are whole numbers: as floats they stand for several; write them as whole numbers"
            )
        whole = keys.cast(pa.int64())
        bounds = np.iinfo(dtype_of(kind))
        fits = pc.and_(
            pc.greater_equal(whole, int(bounds.min)), pc.less_equal(whole, int(bounds.max))
        )
        return pc.if_else(fits, whole, pa.scalar(None, pa.int64())).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise ParameterError(f"the keys are no values of the column of {uri}: {error}") from error
