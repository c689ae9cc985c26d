"""Rows of requests: JSON, or an Arrow IPC stream, as tables that a model's columns are read from.

Relies on the standard library's JSON and on PyArrow. Promises that a body is taken whole or refused
whole, with what is wrong and where; that names are never matched by position; and that a body of a
few bytes does not stand for more rows or bytes than are allowed.

JSON has no times: a column of times takes texts as ISO 8601 has them. Durations and times of day
are numbers, of seconds.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian._text.wording import counted
from dmondrian.data import Schema
from dmondrian.data.columns import has_times
from dmondrian.data.value_encoder import ValueEncoder
from dmondrian.errors import DataError, SchemaError

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"

MOST_ROWS = 100_000
"""Rows of a request."""

LONGEST_KEY = 200
"""Characters of a key."""


class BodyError(DataError):
    """A body that is not of the type that it claims."""


@dataclass(frozen=True)
class PredictRequest:
    """Content of a request: rows, and what is asked of them.

    Attributes
    ----------
    form : {"rows", "columns", "arrow"}
        As the answer will be.
    n : int
        Number of rows.
    columns : mapping of name to values, or Table
        Of JSON only the columns that the model needs.
    keys : list of str or None
        By which labels will come.
    details : bool
        Whether to say how sure the forest is.
    """

    form: str
    n: int
    columns: Mapping[str, Sequence[Any]] | pa.Table
    keys: list[str] | None = None
    details: bool = True


def read_json(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises
    ------
    BodyError
        It is no JSON, or an object has a name twice.
    """
    try:
        return json.loads(body, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError:
        raise BodyError("the body is no JSON that can be read: it is nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:
        if isinstance(error, BodyError):
            raise
        raise BodyError(f"the body is no JSON: {str(error)[:200]}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    pairs_by_name = dict(pairs)
    if len(pairs_by_name) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise BodyError(f"an object has {twice[:8]} more than once: expected each name once")
    return pairs_by_name


def _refuse_constant(name: str) -> Any:
    raise BodyError(f"{name} is no JSON: write null for a value that is missing")


def request_of_json(value: Any, names: Sequence[str] | None, n_columns: int) -> PredictRequest:
    """Return what a JSON body asks for.

    Parameters
    ----------
    value : Any
        ``{"rows": [{...}, ...]}``, a list alone, or ``{"columns": {...}}``; with "keys" and
        "details" beside them.
    names : sequence of str or None
        Columns that the model needs; None where it knows none, and rows are lists of numbers.
    n_columns : int
        How many it needs.

    Raises
    ------
    BodyError
        It is none of these.
    SchemaError
        A row lacks a column.
    """
    if isinstance(value, list):
        value = {"rows": value}
    if not isinstance(value, dict):
        raise BodyError(f"the body is {_kind(value)}; expected an object with rows or columns")
    unknown = sorted(set(value) - {"rows", "columns", "keys", "details"})
    if unknown or ("rows" in value) == ("columns" in value):
        raise BodyError(
            f"the body has {sorted(value)[:8]}; expected either rows or columns, and no others but "
            "details, and keys where the server learns"
        )
    details = value.get("details", True)
    if not isinstance(details, bool):
        raise BodyError(f"details is {_kind(details)}; expected true or false")
    if "rows" in value:
        columns, n = _of_rows(value["rows"], names, n_columns)
    else:
        columns, n = _of_columns(value["columns"], names, n_columns)
    _check_rows(n)
    form = "rows" if "rows" in value else "columns"
    return PredictRequest(form, n, columns, keys_of(value.get("keys"), n), details)


def keys_of(keys: Any, n: int | None) -> list[str] | None:
    """Return the keys of n rows, or of as many as there are; None where there are none.

    Raises
    ------
    BodyError
        They are no distinct short texts, one a row.
    """
    if keys is None:
        return None
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BodyError("keys should be a list of texts")
    if n is not None and len(keys) != n:
        raise BodyError(f"{counted(len(keys), 'key')} came for {counted(n, 'row')}")
    if any(not 0 < len(key) <= LONGEST_KEY or _is_broken(key) for key in keys):
        raise BodyError(f"a key should be a text of 1 to {LONGEST_KEY} characters")
    if len(set(keys)) < len(keys):
        raise BodyError("a key came twice in one request: expected another for each row")
    return keys


def _is_broken(text: str) -> bool:
    """Whether a text has half a pair of UTF-16, which no file can hold."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _of_rows(
    rows: Any, names: Sequence[str] | None, n_columns: int
) -> tuple[dict[str, list[Any]], int]:
    if not isinstance(rows, list):
        raise BodyError(f"rows is {_kind(rows)}; expected a list")
    if names is None:
        for number, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != n_columns:
                raise SchemaError(
                    f"row {number} is {_kind(row)}; expected a list of "
                    f"{counted(n_columns, 'number')}: the model was fitted on arrays, and knows no "
                    "names"
                )
        return {f"x{k}": [row[k] for row in rows] for k in range(n_columns)}, len(rows)
    try:
        return {name: [row[name] for row in rows] for name in names}, len(rows)
    except (KeyError, TypeError, IndexError):
        pass  # found below
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise BodyError(f"row {number} is {_kind(row)}; expected an object of columns by name")
        missing = [name for name in names if name not in row]
        if missing:
            raise SchemaError(
                f"row {number} lacks the columns {missing[:8]}: expected the {len(names)} of the "
                "model by name, null where a value is missing"
            )
    raise AssertionError("a row could not be read")  # pragma: no cover


def _of_columns(
    columns: Any, names: Sequence[str] | None, n_columns: int
) -> tuple[dict[str, list[Any]], int]:
    if not isinstance(columns, dict):
        raise BodyError(f"columns is {_kind(columns)}; expected an object of lists")
    for name, values in columns.items():
        if not isinstance(values, list):
            raise BodyError(f"the column {name!r} is {_kind(values)}; expected a list")
    if names is None:
        raise SchemaError(
            f"the model was fitted on arrays, and knows no names: send rows, each a list of "
            f"{counted(n_columns, 'number')}"
        )
    missing = [name for name in names if name not in columns]
    if missing:
        raise SchemaError(
            f"the columns {missing[:8]} are missing: expected the {len(names)} of the model by name"
        )
    lengths = {len(columns[name]) for name in names}
    if len(lengths) > 1:
        raise BodyError(f"the columns have from {min(lengths)} to {max(lengths)} values")
    return {name: columns[name] for name in names}, lengths.pop() if lengths else 0


def _check_rows(n: int) -> None:
    if n > MOST_ROWS:
        raise BodyError(f"{n:,} rows in one request; expected at most {MOST_ROWS:,}")


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    kinds |= {int: "a number", float: "a number", type(None): "null"}
    text = kinds[type(value)]
    return f"{text} of {len(value)}" if isinstance(value, list) else text


def request_of_arrow(body: bytes) -> PredictRequest:
    """Return what an Arrow IPC stream asks for: forecasts of its rows.

    Raises
    ------
    BodyError
        It is no such stream, is compressed, or has too many rows.
    """
    try:
        _refuse_compressed(body)
        reader = pa.ipc.open_stream(pa.py_buffer(body))
        batches, n = [], 0
        for batch in reader:
            n += batch.num_rows
            _check_rows(n)
            batch.validate(full=True)
            batches.append(batch)
        return PredictRequest("arrow", n, pa.Table.from_batches(batches, reader.schema))
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise BodyError(f"the body is no Arrow IPC stream: {str(error)[:200]}") from None


def _refuse_compressed(body: bytes) -> None:
    """Refuse streams whose buffers are compressed: a few bytes may stand for any number."""
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type in ("record batch", "dictionary") and _has_codec(
            message.metadata.to_pybytes(), message.type
        ):
            raise BodyError("the Arrow stream is compressed: write it without compression")


def _has_codec(data: bytes, kind: str) -> bool:
    """Whether the metadata of a message, as FlatBuffers, name a codec for its buffers.

    By the definitions of the Arrow format the header is field 2 of a message; a dictionary's batch
    is field 1 of it; a batch's compression is field 3.
    """
    try:
        batch = _follow(data, _follow(data, 0), 2)
        if kind == "dictionary":
            batch = _follow(data, batch, 1)
        return _field(data, batch, 3) != 0
    except struct.error:
        raise BodyError("the body is no Arrow IPC stream: a message is damaged") from None


def _field(data: bytes, table: int, number: int) -> int:
    """Return the place of a field of a table; 0 where it is left out."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise struct.error
    size = struct.unpack_from("<H", data, vtable)[0]
    at = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + at)[0] if at + 2 <= size else 0
    return table + offset if offset else 0


def _follow(data: bytes, table: int, number: int | None = None) -> int:
    """Return the place of the table that a field, or the root, refers to."""
    place = table if number is None else _field(data, table, number)
    if number is not None and not place:
        raise struct.error
    return place + int(struct.unpack_from("<I", data, place)[0])


class ColumnReader:
    """Reader of JSON values as columns of a model.

    Parameters
    ----------
    schema : Schema or None
        Of the model; None where all columns are numbers as they are.
    """

    def __init__(self, schema: Schema | None) -> None:
        self._encoder = None if schema is None else ValueEncoder(schema)
        self._makes: dict[str, Callable[[Sequence[Any]], pa.Array]] = {}
        self._texts: set[str] = set()
        for column in () if schema is None else schema.columns:
            if has_times(column):
                kind = pa.timestamp("us", "UTC" if "tz=" in column.type else None)
                self._makes[column.name] = _times(column.name, kind)
            elif column.kind in ("category", "text"):
                self._texts.add(column.name)

    def is_plain(self, request: PredictRequest) -> bool:
        """Whether rows may be read together with those of other such requests.

        Their values become the same features whichever stand beside them.
        """
        if isinstance(request.columns, pa.Table):
            return False
        if self._encoder is not None:
            return self._encoder.takes(request.columns)
        return all(set(map(type, values)) <= _NUMBERS for values in request.columns.values())

    def features(self, requests: Sequence[PredictRequest]) -> np.ndarray | None:
        """Return the rows of plain requests as the model's schema encodes them, float32 [n, d].

        They are those of `table`. None where only a table can say what they are, or what is wrong,
        and of a model without a schema.
        """
        if self._encoder is None:
            return None
        columns = self._joined(requests)
        try:
            arrays = {name: self._array(name, columns[name]) for name in self._encoder.rest}
            return self._encoder.encode(columns, arrays, sum(request.n for request in requests))
        except (DataError, pa.ArrowException):
            return None

    @staticmethod
    def _joined(requests: Sequence[PredictRequest]) -> Mapping[str, Sequence[Any]]:
        """Return the values of requests' columns, one after the other."""
        if len(requests) == 1:
            return requests[0].columns
        return {
            name: [value for request in requests for value in request.columns[name]]
            for name in requests[0].columns
        }

    def table(self, requests: Sequence[PredictRequest]) -> pa.Table:
        """Return the rows of requests, one after the other.

        Parameters
        ----------
        requests : sequence of PredictRequest
            One, or several that are plain.

        Raises
        ------
        DataError
            Values of a column do not go together.
        """
        if isinstance(requests[0].columns, pa.Table):
            return requests[0].columns
        columns = self._joined(requests)
        arrays = [self._array(name, values) for name, values in columns.items()]
        return pa.Table.from_arrays(arrays, list(columns))

    def matrix(self, requests: Sequence[PredictRequest]) -> np.ndarray | None:
        """Return the rows of requests whose columns are all numbers, float32 [n, d].

        They are those of `table` as the estimator takes them: it makes float64 of such columns, and
        float32 of these. None for integers that are beyond them, which a table refuses in words.
        """
        columns = list(self._joined(requests).values())
        try:
            with np.errstate(over="ignore"):  # infinities are refused
                return np.ascontiguousarray(np.array(columns, np.float64).T, np.float32)
        except (OverflowError, TypeError, ValueError):
            return None

    def _array(self, name: str, values: Sequence[Any]) -> pa.Array:
        try:
            if name in self._makes:
                return self._makes[name](values)
            if name not in self._texts and set(map(type, values)) <= _NUMBERS:
                try:
                    return pa.array(values, pa.float64())
                except pa.ArrowInvalid:
                    pass  # integers beyond those of a float64
            return pa.array(values)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"the column {name!r} has values that do not go together: {str(error)[:200]}"
            ) from None


_NUMBERS = {int, float, type(None)}


def _times(name: str, kind: pa.DataType) -> Callable[[Sequence[Any]], pa.Array]:
    def make(values: Sequence[Any]) -> pa.Array:
        if not {*map(type, values)} <= {str, type(None)}:
            return pa.array(values)  # refused by the model, with what it expects
        try:
            return pa.array(values, pa.string()).cast(kind)
        except pa.ArrowException as error:
            raise DataError(
                f"the column {name!r} has a text that is no time: {str(error)[:200]}; expected "
                "ISO 8601, such as 2026-01-31T12:00:00" + ("Z" if kind.tz else "")
            ) from None

    return make
