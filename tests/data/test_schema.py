"""The schema as it is stored and shown."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from dmondrian.data import Schema, make_plan
from dmondrian.data.schema import Column, describe_encoding
from dmondrian.errors import SchemaError

from .conftest import Write


@pytest.fixture
def schema(write: Write) -> Schema:
    columns = {
        "age": [17, None, 90],
        "job": ["nurse", "pilot", None],
        "hired": [date(2020, 1, 1), date(2021, 2, 2), date(2022, 3, 3)],
        "fixed": [1, 1, 1],
        "odd": [5, None, 5],
        "weight": [1.0, 1.0, 2.0],
        "label": [True, False, True],
    }
    return make_plan(write(columns), target="label", weight="weight").schema


def test_schema_survives_json(schema: Schema) -> None:
    text = json.dumps(schema.to_json())
    back = Schema.from_json(json.loads(text))
    assert back == schema
    assert back.feature_names == schema.feature_names
    assert json.dumps(back.to_json()) == text


def test_number_of_features_is_the_number_of_names(schema: Schema) -> None:
    assert schema.n_features == len(schema.feature_names) == 10
    assert schema.n_classes == 2
    assert schema.without_target().columns == schema.columns
    assert schema.without_target().target is None


def test_description_shows_every_column_and_its_encoding(schema: Schema) -> None:
    text = schema.describe()
    for part in (
        "17 to 90, null indicator",
        "2 levels (nurse, pilot) and other, null indicator",
        "2020-01-01 00:00:00 to 2022-03-03 00:00:00: linear, weekday, month",
        "left out: constant (1)",
        "null indicator only",
        "target 'label': 2 classes (False, True)",
        "weight 'weight'",
        "4 columns, 10 features",
    ):
        assert part in text


def test_levels_with_a_comma_are_quoted() -> None:
    levels = ("DHL", "GLS", "Post, Austria", "UPS")
    column = Column("carrier", "category", "string", levels=levels, n_distinct=4)
    assert describe_encoding(column) == '4 levels (DHL, GLS, "Post, Austria", UPS) and other'


def test_long_texts_among_levels_are_cut() -> None:
    levels = tuple(letter * 100_000 for letter in "abc")
    column = Column("note", "category", "string", levels=levels, n_distinct=3)
    assert describe_encoding(column).startswith(f"3 levels ({'a' * 60}..., {'b' * 60}..., ")
    assert len(describe_encoding(column)) < 300


@pytest.mark.parametrize("damage", ["format", "columns", "classes", "task"])
def test_schema_that_is_not_whole_is_refused(schema: Schema, damage: str) -> None:
    stored = schema.to_json()
    del stored[damage]
    with pytest.raises(SchemaError):
        Schema.from_json(stored)


@pytest.mark.parametrize("wrong", [None, [], {"format": 99}, {"format": 1, "columns": [3]}])
def test_other_json_is_refused(wrong: Any) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(wrong)
