"""Python values become the features of a table of them, to the last bit, or are left to it."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian.data import Schema
from dmondrian.data.columns import check_types
from dmondrian.data.encode import encode_features
from dmondrian.data.schema import CYCLIC_PARTS, Column
from dmondrian.data.value_encoder import ValueEncoder
from dmondrian.errors import DataError, SchemaError

LEVELS = ["", "1", "1.5", "Łódź", "nan", "<null>", "true"]
TIME_PARTS = (
    "linear",
    "hour",
    "weekday",
    "month",
    *(p for two in CYCLIC_PARTS.values() for p in two),
)
WHOLE = st.integers(-(2**53), 2**53)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def columns(
    draw: st.DrawFn, kinds: tuple[str, ...] = ("number", "category", "time", "text")
) -> Column:
    """A column of any kind, as a plan may have it."""
    kind = draw(st.sampled_from(kinds))
    has_nulls = draw(st.booleans())
    if kind == "number":
        type_ = draw(st.sampled_from(["double", "int64", "bool"]))
        lower, upper = sorted(draw(st.tuples(FINITE, FINITE)))
        parts = ("value",) if lower < upper else ()
        return Column("", kind, type_, lower, upper, parts, has_nulls=has_nulls or not parts)
    if kind == "category":
        levels = tuple(sorted(draw(st.sets(st.sampled_from(LEVELS)))))
        n = len(levels) + draw(st.integers(0 if levels else 1, 3))
        type_ = draw(st.sampled_from(["string", "dictionary<values=string>", "int64", "bool"]))
        return Column("", kind, type_, levels=levels, n_distinct=n, has_nulls=has_nulls)
    if kind == "time":
        lower, upper = sorted(draw(st.tuples(st.integers(0, 10**16), st.integers(0, 10**16))))
        some = draw(st.sets(st.sampled_from(TIME_PARTS), min_size=1))
        parts = tuple(p for p in TIME_PARTS if p in some and (p != "linear" or lower < upper))
        type_ = draw(st.sampled_from(["timestamp[us]", "timestamp[us, tz=UTC]", "date32[day]"]))
        return Column("", kind, type_, lower, upper, parts, has_nulls=has_nulls or not parts)
    hashed = draw(st.tuples(st.integers(2, 9), st.integers(1, 3)))
    return Column("", kind, "string", has_nulls=has_nulls, hashed=hashed)


def schema_of(drawn: list[Column]) -> Schema:
    """Return a schema of columns, which get names."""
    named = [Column(**{**column.__dict__, "name": f"c{i}"}) for i, column in enumerate(drawn)]
    return Schema(tuple(named))


schemas = st.lists(columns(), min_size=1, max_size=5).map(schema_of)


def good_values(column: Column, n: int) -> st.SearchStrategy[list[Any]]:
    """Lists of n values that are taken, of one type and missing ones."""
    texts = st.one_of(st.sampled_from(LEVELS), st.text(max_size=5))
    times = st.datetimes().map(lambda t: t.isoformat() + ("Z" if "tz=" in column.type else ""))
    if column.kind == "number":
        numbers = st.floats(-(2.0**53), 2.0**53)
        kinds = [st.one_of(WHOLE, numbers, st.sampled_from([-0.0, 5e-324])), st.booleans()]
    elif column.kind == "category" and column.type in ("int64", "bool"):
        kinds = [texts, st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans()]
    else:
        kinds = [times if column.kind == "time" else texts]
    lists = [st.lists(st.one_of(st.none(), one), min_size=n, max_size=n) for one in kinds]
    return st.one_of(*lists)


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([2**53 + 1, 2**63, 2**64, -(2**63)]),
    st.floats(), st.sampled_from([*LEVELS, "\ud800", "2026-01-31", "a b"]),
    st.lists(st.integers(), max_size=2), st.just({"a": None}),
)  # fmt: skip


def array_of(column: Column, values: list[Any]) -> pa.Array:
    """Return values as Arrow has them, texts of times as times; DataError if it has them not."""
    types = {*map(type, values)}
    try:
        if column.kind == "time" and types <= {str, type(None)}:
            zone = "UTC" if "tz=" in column.type else None
            return pa.array(values, pa.string()).cast(pa.timestamp("us", zone))
        if column.kind == "number" and types <= {int, float, type(None)}:
            with suppress(pa.ArrowInvalid):
                return pa.array(values, pa.float64())
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise DataError("the values do not go together") from error


def by_table(schema: Schema, values: dict[str, list[Any]], n: int) -> np.ndarray:
    """Return the features by a table, with its checks."""
    arrays = {column.name: array_of(column, values[column.name]) for column in schema.columns}
    check_types(schema, {name: array.type for name, array in arrays.items()}, "the frame")
    return encode_features(schema, arrays, n, {}, "row {}".format)


def by_values(schema: Schema, values: dict[str, list[Any]], n: int) -> np.ndarray | None:
    """Return the features by values; None where they are left to a table."""
    encoder = ValueEncoder(schema)
    if not encoder.takes(values):
        return None
    rest = [column for column in schema.columns if column.name in encoder.rest]
    arrays = {column.name: array_of(column, values[column.name]) for column in rest}
    return encoder.encode(values, arrays, n)


@given(st.data(), schemas, st.integers(1, 4))
def test_good_values_become_the_features_of_their_table(data, schema: Schema, n: int) -> None:
    values = {one.name: data.draw(good_values(one, n)) for one in schema.columns}
    found = by_values(schema, values, n)
    assert found is not None
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    assert found.tobytes() == by_table(schema, values, n).tobytes()


@given(st.data(), schemas, st.integers(1, 3))
def test_any_values_are_those_of_their_table_or_left_to_it(data, schema: Schema, n: int) -> None:
    lists = st.lists(ANY, min_size=n, max_size=n)
    values = {one.name: data.draw(st.one_of(good_values(one, n), lists)) for one in schema.columns}
    try:
        wanted = by_table(schema, values, n)
    except (pa.ArrowException, DataError, SchemaError):
        with suppress(pa.ArrowException, DataError):  # the caller asks a table then
            assert by_values(schema, values, n) is None
        return
    found = by_values(schema, values, n)
    assert found is None or found.tobytes() == wanted.tobytes()


@given(st.data(), schemas)
def test_rows_are_encoded_together_as_alone(data, schema: Schema) -> None:
    rest = ValueEncoder(schema).rest  # of one type, as their arrays
    values = {
        one.name: data.draw(good_values(one, 6))
        if one.name in rest
        else [value for _ in range(3) for value in data.draw(good_values(one, 2))]
        for one in schema.columns
    }
    arrays = {c.name: array_of(c, values[c.name]) for c in schema.columns if c.name in rest}
    together = ValueEncoder(schema).encode(values, arrays, 6)
    assert together is not None
    for first in range(0, 6, 2):
        part = {name: some[first : first + 2] for name, some in values.items()}
        assert together[first : first + 2].tobytes() == by_table(schema, part, 2).tobytes()


@pytest.mark.parametrize(
    ("kind", "type_", "values"),
    [
        ("number", "double", [1, True]),
        ("number", "double", ["1"]),
        ("number", "double", [[1]]),
        ("category", "string", [1]),
        ("category", "string", [True]),
        ("category", "int64", [1, 1.5]),
        ("category", "int64", [1, "1"]),
        ("time", "timestamp[us]", [0]),
        ("text", "string", [1.0]),
    ],
)
def test_types_that_a_table_may_refuse_are_not_taken(kind, type_, values) -> None:
    hashed = (2, 1) if kind == "text" else ()
    column = Column("c", kind, type_, 0, 1, n_distinct=1, has_nulls=True, hashed=hashed)
    assert not ValueEncoder(Schema((column,))).takes({"c": values})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("number", math.inf),
        ("number", 2**53 + 2),
        ("number", 10**400),
        ("category", "\ud800"),
        ("category", 2**63),
    ],
)
def test_values_that_a_table_may_refuse_or_round_are_left_to_it(kind: str, value: Any) -> None:
    parts = ("value",) if kind == "number" else ()
    column = Column("c", kind, "int64", 0, 1, parts, n_distinct=1)
    encoder = ValueEncoder(Schema((column,)))
    assert encoder.takes({"c": [value]})
    assert encoder.encode({"c": [value]}, {}, 1) is None
