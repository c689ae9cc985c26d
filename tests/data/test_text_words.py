"""Columns of text: each word is a feature by its hash, the same in every process and version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian.data import Schema, make_plan, make_scoring_plan, read_block
from dmondrian.data.encode import encode_features
from dmondrian.data.schema import Column
from dmondrian.data.text_words import word_features
from dmondrian.errors import ParameterError, SchemaError
from tests.reference.hashed_words import features_of, murmur3

from .conftest import Write

TEXTS = ["Good film, good actors!", None, "a I", "", "film FILM", "schönes Wetter", "12 of 345"]


def test_the_reference_is_the_published_hash() -> None:
    assert murmur3(b"") == 0
    assert murmur3(b"test") == 0xBA6BD213
    assert murmur3(b"Hello, world!") == 0xC0363E43
    assert murmur3(b"The quick brown fox jumps over the lazy dog") == 0x2E4FF723


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=30), st.sampled_from(TEXTS)), max_size=12),
    st.integers(2, 40),
    st.integers(1, 3),
)
def test_a_row_has_the_features_of_its_words(
    texts: list[str | None], n_features: int, longest: int
) -> None:
    column = Column("c", "text", "string", has_nulls=True, hashed=(n_features, longest))
    expected = np.zeros((len(texts), n_features + 1), np.float32)
    for row, text in enumerate(texts):
        if text is None:
            expected[row, -1] = 1.0
        else:
            expected[row, list(features_of(text, n_features, longest))] = 1.0 / n_features
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        array = pa.array(texts, pa.string()).cast(kind)
        found = encode_features(Schema((column,)), {"c": array}, len(texts), {}, str)
        np.testing.assert_array_equal(found, expected)


def test_a_plan_has_texts_beside_other_columns(write: Write, tmp_path: Path) -> None:
    source = write({"c": TEXTS, "n": range(7), "t": ["ab", "cd"] * 3 + [""], "y": list("ababaab")})
    plan = make_plan(source, target="y", text=["c", "t"], text_features=4, text_words=2)
    names = [*(f"c~{i}" for i in range(4)), "c=<null>", "n", *(f"t~{i}" for i in range(4))]
    assert plan.schema.feature_names == names
    assert "4 hashes of words and of runs of up to 2, null indicator" in plan.schema.describe()
    X = read_block(plan, plan.blocks[0]).X
    assert X[1].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, np.float32(1 / 6), *X[1, 6:]]
    assert set(np.flatnonzero(X[0, :4])) == features_of(str(TEXTS[0]), 4, 2)
    stored = json.loads(json.dumps(plan.schema.to_json()))
    assert Schema.from_json(stored) == plan.schema
    # Schemas without texts are stored as earlier versions stored them.
    assert ["hashed" in column for column in stored["columns"]] == [True, False, True]
    later = tmp_path / "later.parquet"
    pq.write_table(pa.table({"n": [1], "t": ["new words"], "c": ["Film"]}), later)
    scoring = make_scoring_plan(later, plan.schema)
    X = read_block(scoring, scoring.blocks[0]).X
    assert set(np.flatnonzero(X[0, 6:])) == features_of("new words", 4, 2)


def test_bytes_that_hold_text_can_be_named(write: Write) -> None:
    plan = make_plan(write({"c": pa.array([b"some words", b"others"])}), text="c")
    assert plan.schema.n_features == 256
    found = np.flatnonzero(read_block(plan, plan.blocks[0]).X[0])
    assert set(found) == features_of("some words", 256, 1)


def test_a_text_without_words_is_left_out(write: Write) -> None:
    plan = make_plan(write({"c": ["a", "", None], "n": [1, 2, 3]}), text=["c"])
    assert plan.schema.left_out == (("c", "no text has a word"),)
    assert [len(part) for part in word_features(["", "x"], 8, 1)] == [3, 0]
    assert [len(part) for part in word_features([], 8, 1)] == [1, 0]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"text": ["n"]}, SchemaError, "'n' is int64 in .*: expected strings"),
        ({"text": ["d"]}, SchemaError, r"no column is called 'd' \(given as text\)"),
        ({"text": ["c"], "categorical": ["c"]}, ParameterError, "'c' is given as `text`, and"),
        ({"text": ["c"], "target": "c"}, ParameterError, "'c' is given as `text`, and"),
        ({"text": ["c"], "exclude": ["c"]}, ParameterError, "'c' is given as `text`, and"),
        ({"text": ["c"], "text_features": 1}, ParameterError, r"text_features .* \[2, 4096\]"),
        ({"text": ["c"], "text_words": True}, ParameterError, r"text_words .* \[1, 3\], got True"),
    ],
)
def test_what_is_no_text_is_refused(
    write: Write, given: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make_plan(write({"c": ["some words", "others"], "n": [1, 2]}), **given)


def test_a_file_without_strings_there_is_refused(write: Write, tmp_path: Path) -> None:
    schema = make_plan(write({"c": ["some words", "others"]}), text=["c"]).schema
    pq.write_table(pa.table({"c": [1.5]}), tmp_path / "other.parquet")
    with pytest.raises(SchemaError, match=r"'c': expected text \(string\), got double"):
        make_scoring_plan(tmp_path / "other.parquet", schema)


@pytest.mark.parametrize("hashed", [(), (0, 1), (4,), (4, 1, 1), (4.0, 1)])
def test_a_stored_text_has_two_counts(hashed: tuple[Any, ...]) -> None:
    schema = Schema((Column("c", "text", "string", hashed=(4, 1)),)).to_json()
    schema["columns"][0]["hashed"] = list(hashed)
    with pytest.raises(SchemaError, match="features of the words of 'c'"):
        Schema.from_json(schema)
