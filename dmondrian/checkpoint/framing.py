"""Framing: the sizes that an Arrow record batch message declares, read without trusting them.

pyarrow allocates as many bytes as the eight-byte prefix of a compressed buffer asks for, and shows
neither buffers nor prefixes beforehand. This module reads them from the message's flatbuffer
(which Arrow has verified when it read the message) and compares them with what must be there.
The memory that Arrow expands a compressed buffer to is then ours to write to (``values_of``).

References
----------
Apache Arrow, format/Message.fbs (tables Message and RecordBatch) and "IPC: Compression".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian.errors import CorruptError

# Slots of the tables' fields, in the order of Message.fbs.
MESSAGE_VERSION, MESSAGE_HEADER = 0, 2
BATCH_LENGTH, BATCH_NODES, BATCH_BUFFERS, BATCH_COMPRESSION = 0, 1, 2, 3
V5 = 4  # the version before let a note beside the batch compress its buffers
NOT_COMPRESSED = -1  # prefix of a buffer that did not get smaller
OFFSET_BYTES = 4  # where each list of a column of lists begins

ANY = -1  # as many items as the batch declares

Column = tuple[int, int | None, int]


def read_batch_frame(metadata: Any, body: Any, n_rows: int, columns: Sequence[Column]) -> list[int]:
    """Check every size of a record batch message before anything is allocated for it.

    Parameters
    ----------
    metadata, body : buffer
        The message's flatbuffer and its body.
    n_rows : int
        Rows that the batch must have.
    columns : sequence of (n_bytes, width, items)
        Bytes of the items of every column; its list width, 0 for a plain column and None for lists
        of any length; and how many items these lists have. Where that is ``ANY``, bytes are what
        its items, of 4 bytes, take at most.

    Returns
    -------
    list of int
        The items of each column that may have any number of them.

    Raises
    ------
    CorruptError
        A declared size is not the expected one.
    """
    try:
        return _check(memoryview(metadata), memoryview(body), n_rows, columns)
    except struct.error as error:
        raise CorruptError("A record batch's frame points outside of itself.") from error


def _check(
    metadata: memoryview, body: memoryview, n_rows: int, columns: Sequence[Column]
) -> list[int]:
    message = _read("<I", metadata, 0)
    at = _slot(metadata, message, MESSAGE_VERSION)
    if at == 0 or _read("<h", metadata, at) != V5:
        raise CorruptError("A record batch is of an old version of the Arrow format.")
    batch = _follow(metadata, _slot(metadata, message, MESSAGE_HEADER))
    at = _slot(metadata, batch, BATCH_LENGTH)
    length = _read("<q", metadata, at) if at else 0
    if length != n_rows:
        raise CorruptError(f"A tree has {length} nodes, its header declares {n_rows}.")
    is_compressed = _slot(metadata, batch, BATCH_COMPRESSION) != 0
    nodes = list(_pairs(metadata, _slot(metadata, batch, BATCH_NODES)))
    columns, free = _with_items(nodes, columns)
    _check_nodes(nodes, n_rows, columns)
    buffers = list(_pairs(metadata, _slot(metadata, batch, BATCH_BUFFERS)))
    expected: list[int] = []
    for n_bytes, width, _ in columns:
        # Validity of the column (and of the list's items): absent, there are no nulls.
        if width is None:
            expected += [0, OFFSET_BYTES * (n_rows + 1), 0, n_bytes]
        else:
            expected += [0, 0, n_bytes] if width else [0, n_bytes]
    if len(buffers) != len(expected):
        raise CorruptError(f"A tree has {len(buffers)} buffers, expected {len(expected)}.")
    for (offset, size), plain in zip(buffers, expected, strict=True):
        _check_buffer(body, offset, size, plain, is_compressed)
    return free


def _with_items(
    nodes: list[tuple[int, int]], columns: Sequence[Column]
) -> tuple[list[Column], list[int]]:
    """Return columns with as many items as the batch declares, and these numbers."""
    known: list[Column] = []
    free: list[int] = []
    at = 0
    for n_bytes, width, items in columns:
        at += 1 if width == 0 else 2
        if items != ANY:
            known.append((n_bytes, width, items))
            continue
        if at > len(nodes) or not 0 <= OFFSET_BYTES * nodes[at - 1][0] <= n_bytes:
            raise CorruptError(f"A column has other than up to {n_bytes // OFFSET_BYTES} items.")
        free.append(nodes[at - 1][0])
        known.append((OFFSET_BYTES * free[-1], width, free[-1]))
    return known, free


def _check_nodes(nodes: list[tuple[int, int]], n_rows: int, columns: Sequence[Column]) -> None:
    expected: list[tuple[int, int]] = []
    for _, width, items in columns:
        expected.append((n_rows, 0))
        if width != 0:
            expected.append((items if width is None else n_rows * width, 0))
    if nodes != expected:
        raise CorruptError("A column has nulls or another length than its tree has nodes.")


def _check_buffer(
    body: memoryview, offset: int, size: int, plain: int, is_compressed: bool
) -> None:
    if offset < 0 or size < 0 or offset + size > len(body):
        raise CorruptError(f"A buffer at {offset} of {size} bytes lies outside of its message.")
    declared = size
    if is_compressed and size:
        declared = _read("<q", body, offset)
        if declared == NOT_COMPRESSED:
            declared = size - 8
    if declared != plain:
        raise CorruptError(f"A buffer declares {declared} bytes, expected {plain}.")


def _slot(data: memoryview, table: int, number: int) -> int:
    """Position of a table's field, 0 when the table does not have it."""
    vtable = table - _read("<i", data, table)
    if 4 + 2 * number >= _read("<H", data, vtable):
        return 0
    offset = _read("<H", data, vtable + 4 + 2 * number)
    return table + offset if offset else 0


def _follow(data: memoryview, at: int) -> int:
    if not at:
        raise CorruptError("A record batch's frame lacks a part.")
    return at + _read("<I", data, at)


def _pairs(data: memoryview, at: int) -> Iterator[tuple[int, int]]:
    """Yield the elements of a vector of structs of two int64."""
    if not at:
        return
    start = _follow(data, at)
    n = _read("<I", data, start)
    if start + 4 + 16 * n > len(data):
        raise CorruptError(f"A record batch's frame declares {n} entries that are not there.")
    for i in range(n):
        here = start + 4 + 16 * i
        yield _read("<q", data, here), _read("<q", data, here + 8)


def _read(kind: str, data: memoryview, at: int) -> int:
    if at < 0:
        raise CorruptError("A record batch's frame points before its beginning.")
    return int(struct.unpack_from(kind, data, at)[0])


def values_of(array: pa.Array, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a view that may be written to where Arrow made the memory, as it does to expand."""
    buffer = array.buffers()[-1]
    if buffer is None or not buffer.is_mutable:
        # As `to_numpy`, which imports pandas where it is installed.
        return np.from_dlpack(array)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
