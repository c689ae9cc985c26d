"""Copies of the files of a stream without the rows of some keys.

Relies on a key column that each file has. Promises files whose names sort in the order of the
stream, with the row groups, columns and types of the originals; that no row with one of the keys is
in them, which is counted again once they are written; and that no other row is missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dmondrian.data.source import open_uri
from dmondrian.errors import CorruptError, DataError, ParameterError
from dmondrian.store import open_store


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
        Parquet with the column ``key``, or text with a key in each line.
    key : str

    Raises
    ------
    DataError
        It cannot be read, or lists none.
    """
    name = os.fspath(file)
    try:
        if name.lower().endswith((".parquet", ".pq", ".parq")):
            keys = pq.read_table(name, columns=[key])[key].combine_chunks()
        else:
            with open(name, encoding="utf-8") as lines:
                keys = pa.array([line.strip() for line in lines if line.strip()], pa.string())
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise DataError(f"cannot read keys from {name}: {error}") from error
    plain = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    found = plain.drop_null().unique()
    if not len(found):
        raise DataError(f"{name} lists no key: expected a column {key!r}, or a key in each line")
    return found


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
    """
    store, copied = open_store(out), []
    for number, uri in enumerate(uris, start=1):
        name = f"{number:08d}.parquet"
        data, n_rows, n_out = _without(uri, key, keys)
        store.put_same(name, data)
        again = _keys_of(pq.ParquetFile(pa.BufferReader(store.get(name))), key, name)
        if sum(_count(part, keys, uri) for part in again):
            raise CorruptError(f"{name} in {out} has rows that were to be left out")
        copied.append(Copied(name, n_rows, n_out, hashlib.sha256(data).hexdigest()))
    return copied


def _without(uri: str, key: str, keys: pa.Array) -> tuple[bytes, int, int]:
    """Return a file's bytes without the rows of some keys, its rows, and how many are left out."""
    with open_uri(uri) as source:
        parquet = pq.ParquetFile(source)
        if parquet.schema_arrow.names.count(key) != 1:
            raise DataError(f"{uri} has no column {key!r}, which tells whose its rows are")
        sink, n_rows, n_out = pa.BufferOutputStream(), 0, 0
        schema = parquet.schema_arrow
        with pq.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
            for group in range(parquet.metadata.num_row_groups):
                table = parquet.read_row_group(group)
                kept = table.filter(pc.invert(_is_in(table[key], keys, uri)))
                n_out += len(table) - len(kept)
                n_rows += len(kept)
                if len(kept):
                    writer.write_table(kept, row_group_size=len(kept))
    return sink.getvalue().to_pybytes(), n_rows, n_out


def _keys_of(parquet: pq.ParquetFile, key: str, name: str) -> Iterable[Any]:
    for group in range(parquet.metadata.num_row_groups):
        yield parquet.read_row_group(group, columns=[key])[key]


def _count(column: pa.ChunkedArray, keys: pa.Array, uri: str) -> int:
    return int(pc.sum(_is_in(column, keys, uri)).as_py() or 0)


def _is_in(column: pa.ChunkedArray, keys: pa.Array, uri: str) -> pa.ChunkedArray:
    """Return whether each value is one of the keys; nulls are none."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    plain = column.cast(kind)
    try:
        return pc.is_in(plain, value_set=keys.cast(kind), skip_nulls=True)
    except (pa.ArrowException, ValueError) as error:
        raise ParameterError(f"the keys are no values of the column of {uri}: {error}") from error
