"""Arrow arrays of NumPy arrays and of texts, and back, without importing pandas.

`pa.array` and `to_numpy` look whether what they are given is of pandas, and import it for that
where it is installed, as PyArrow 22 does to find NumPy's type: time and memory of each command and
of each worker process, most of which need no pandas.

Promises the arrays that these two make of the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa


def dtype_of(kind: pa.DataType) -> np.dtype:
    """Return NumPy's type of numbers or booleans of an Arrow type."""
    if pa.types.is_boolean(kind):
        return np.dtype(np.bool_)
    signed = "f" if pa.types.is_floating(kind) else "i"
    letter = "u" if pa.types.is_unsigned_integer(kind) else signed
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def array_of(values: np.ndarray) -> pa.Array:
    """Return a column of numbers or booleans.

    Parameters
    ----------
    values : array of shape (n,)
        In the machine's byte order. A contiguous array of numbers is not copied: it may not be
        changed afterwards.
    """
    if values.dtype == np.bool_:
        packed = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(packed)])
    kind = pa.from_numpy_dtype(values.dtype)
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, buffer])


def numpy_of(column: pa.Array, null: int | None = None) -> np.ndarray:
    """Return the values of a column of numbers, or of booleans without nulls.

    Parameters
    ----------
    column : pa.Array
    null : int, optional
        In place of nulls; needed where there are any.

    Returns
    -------
    array of shape (n,)
        May share the column's memory, and then cannot be written to.
    """
    if null is not None and column.null_count:
        column = column.fill_null(array_of(np.array([null], dtype_of(column.type)))[0])
    if pa.types.is_boolean(column.type):
        return np.from_dlpack(column.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(column)


def texts_of(values: Iterable[str], kind: pa.DataType | None = None) -> pa.Array:
    """Return a column of texts, none of them null.

    Parameters
    ----------
    values : iterable of str
    kind : pa.DataType, optional
        `pa.string()` or, by default, `pa.large_string()`.

    Raises
    ------
    OverflowError
        The texts have 2 GiB or more, and `kind` is `pa.string()`.
    """
    kind = kind or pa.large_string()
    encoded = [value.encode() for value in values]
    ends = list(accumulate(map(len, encoded), initial=0))
    offsets = np.array(ends, np.int32 if kind == pa.string() else np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(encoded), buffers)


def column_of(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return a column of texts, numbers or booleans, all of one kind and none of them null.

    Parameters
    ----------
    values : sequence of str, int, float or bool
    kind : pa.DataType, optional
        By default `pa.string()` of texts, otherwise that which NumPy finds.
    """
    if kind is None and values and isinstance(values[0], str):
        kind = pa.string()
    if kind is not None and (kind == pa.string() or kind == pa.large_string()):
        return texts_of(values, kind)
    return array_of(np.array(values, None if kind is None else dtype_of(kind)))
