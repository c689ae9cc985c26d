"""Conversion of Arrow columns to numbers, times or texts; the one module that knows Arrow types.

Relies on pyarrow's casts. Promises: every type maps to exactly one kind or to a reason for leaving
the column out; NaN counts as null; the text of a value does not depend on how a file stores it
(``1``, ``1.0``, a decimal ``1.00`` and a dictionary of any have the text ``"1"``); times are never
Python's, which hold the years 1 to 9999 only.

Shapes: n rows.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dmondrian.data.arrow_arrays import numpy_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

NUMBER, TIME, CATEGORY, TEXT = "number", "time", "category", "text"
MICROS_PER_DAY = 86_400_000_000
MOST_MICROS = 2**63 - 1  # of a time; 2**63 would be its negative, which NumPy reads as no time
# Microseconds in each unit of a time; nanoseconds are cut to whole microseconds.
_MICROS = {"day": MICROS_PER_DAY, "s": 1_000_000, "ms": 1_000, "us": 1}


def kind_of(kind: pa.DataType) -> tuple[str | None, str]:
    """Return the kind of column of an Arrow type, or None and the reason."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind_of(kind.storage_type)
    if is_text(kind) or pa.types.is_dictionary(kind):
        return CATEGORY, ""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return TIME, ""
    if (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time(kind)
    ):
        return NUMBER, ""
    if pa.types.is_null(kind):
        return None, "all null"
    if pa.types.is_nested(kind):
        return None, f"nested ({kind})"
    if is_bytes(kind):
        return None, "binary; list it in `categorical` if it holds text"
    return None, f"of the type {kind}, which has no encoding"


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are strings."""
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether values are byte strings, as which some writers store text."""
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def flatten(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array, without extension types, decimals with 128 bits or more."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # combine_chunks gives chunks back beyond 2 GB of text
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_decimal32(array.type) or pa.types.is_decimal64(array.type):
        return array.cast(pa.decimal128(array.type.precision, array.type.scale))  # coded by Arrow
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def as_numbers(column: pa.ChunkedArray | pa.Array) -> tuple[FloatArray, BoolArray | None]:
    """Return float64 values [n], 0 for null, and where they are null or NaN (None: nowhere)."""
    array = flatten(column)
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array)), np.ones(len(array), dtype=np.bool_)
    if pa.types.is_dictionary(kind):
        array = flatten(array.dictionary_decode())
        kind = array.type
    per_second = 1.0
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        per_second = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
        array = array.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    null: BoolArray | None = None
    if array.null_count:
        null = numpy_of(array.is_null())
    raw = numpy_of(array, 0)
    values: FloatArray = raw.astype(np.float64, copy=False)
    if raw.dtype.kind == "f":
        nan = np.isnan(values)
        if nan.any():
            null = nan if null is None else null | nan
            values = np.where(nan, 0.0, values)
    return (values / per_second if per_second != 1.0 else values), null


def as_micros(
    column: pa.ChunkedArray | pa.Array,
) -> tuple[IntArray, BoolArray | None, BoolArray | None]:
    """Return times in microseconds since 1970 (UTC).

    Returns
    -------
    micros : ndarray of int64, shape (n,)
        0 where the time is null; beyond the years that microseconds hold (292,000 before and
        after 1970) their greatest value.
    null : ndarray of bool, shape (n,), or None
        Where it is null; None: nowhere.
    infinite : ndarray of bool, shape (n,), or None
        Where it is beyond these years, or one of the two ends of its type, as which DuckDB and
        PostgreSQL write ``infinity`` and ``-infinity``; None: nowhere.
    """
    array = flatten(column)
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array), dtype=np.int64), np.ones(len(array), dtype=np.bool_), None
    unit = "day" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    raw = array.cast(pa.int32()).cast(pa.int64()) if unit == "day" else array.cast(pa.int64())
    null: BoolArray | None = None
    if raw.null_count:
        null = numpy_of(raw.is_null())
    values: IntArray = numpy_of(raw, 0)
    most = finite_ticks(unit)
    infinite: BoolArray | None = None
    if values.min(initial=0) < -most or values.max(initial=0) > most:
        infinite = (values < -most) | (values > most)
    if unit == "ns":
        micros = values // 1000 + ((values < 0) & (values % 1000 != 0))  # towards 1970
    else:
        micros = values * _MICROS[unit] if unit != "us" else values
        if infinite is not None:
            micros = np.where(infinite, np.where(values > 0, MOST_MICROS, -MOST_MICROS), micros)
    return micros, null, infinite


def finite_ticks(unit: str) -> int:
    """Return the most units ("day", "s", "ms", "us", "ns") from 1970 to a time that is finite."""
    if unit == "ns":
        return MOST_MICROS - 1
    return (MOST_MICROS - 1) // _MICROS[unit]


def as_texts(column: pa.ChunkedArray | pa.Array) -> tuple[list[str], IntArray]:
    """Return texts (possibly repeated) and each row's index into them, -1 for null."""
    array = flatten(column)
    if pa.types.is_null(array.type):
        return [], np.full(len(array), -1, dtype=np.int64)
    if not pa.types.is_dictionary(array.type):
        array = flatten(pc.dictionary_encode(array))
    codes = numpy_of(array.indices.cast(pa.int64()), -1)
    texts = _texts(flatten(array.dictionary))
    if None in texts:  # the dictionary itself may have a null or NaN
        real = np.array([text is not None for text in texts], dtype=np.bool_)
        codes = np.where((codes >= 0) & real[codes], codes, -1)
    return [text if text is not None else "" for text in texts], codes


def _texts(values: pa.Array) -> list[str | None]:
    kind = values.type
    if is_text(kind):
        return values.to_pylist()
    if is_bytes(kind):
        return values.cast(pa.binary()).cast(pa.string()).to_pylist()
    if pa.types.is_date(kind):
        return values.cast(pa.string()).to_pylist()
    if pa.types.is_timestamp(kind):
        return values.cast(pa.timestamp("us"), safe=False).cast(pa.string()).to_pylist()
    if pa.types.is_duration(kind):
        return [_duration_text(value) for value in values]
    return [text_of(value) for value in values.to_pylist()]


def _duration_text(value: pa.Scalar) -> str | None:
    try:
        return text_of(value.as_py())
    except OverflowError:  # beyond what Python holds
        return f"{value.value} {value.type.unit}"


def text_of(value: object) -> str | None:
    """Return the text of a value: integers without fraction, booleans as ``true``/``false``."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return _decimal_text(value)
    if isinstance(value, float):
        if value != value:
            return None
        return str(int(value)) if value == value // 1 else str(value)
    return str(value)


def _decimal_text(value: Decimal) -> str:
    """Return the text of the float with these digits, if there is one, else all of the digits.

    Zeros behind them are those of the type of a file, and no part of the value.
    """
    if value == value.to_integral_value():
        return str(int(value))
    text = str(float(value))
    return text if Decimal(text) == value else f"{value:f}".rstrip("0")


def plain_level(level: str) -> str:
    """Return the text of a decimal of which earlier versions kept the zeros of its type."""
    return _decimal_text(Decimal(level))


def statistic_number(value: object) -> float | None:
    """Return a footer's bound of a number column; None if unusable."""
    if isinstance(value, (bool, int, float)):
        number = float(value)
        return None if number != number else number
    return None


def statistic_decimal(value: int | bytes, scale: int) -> float:
    """Return a footer's bound of a decimal column.

    Parameters
    ----------
    value : int or bytes
        As it is stored: a whole number, or its bytes, the highest first, in two's complement.
    scale : int
        Digits behind the point.
    """
    if isinstance(value, bytes):
        value = int.from_bytes(value, "big", signed=True)
    return value / 10**scale  # correctly rounded, as whole numbers are divided


def statistic_micros(value: object, unit: str | None) -> int | None:
    """Return a footer's bound of a time column in microseconds since 1970; None if unusable.

    Parameters
    ----------
    value : object
        As it is stored: an integer, of a date in days.
    unit : str or None
        "day", "ms", "us" or "ns"; None if the footer does not have it.
    """
    if type(value) is not int or unit is None or abs(value) > finite_ticks(unit):
        return None
    if unit == "ns":
        return value // 1000 + (value < 0 and value % 1000 != 0)  # towards 1970, as `as_micros`
    return value * _MICROS[unit]
