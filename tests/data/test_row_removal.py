"""Copies of files without the rows of some keys hold nothing of these rows."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import DataError, ParameterError
from dmondrian.data.row_removal import copy_without, find_rows, read_keys
from tests.flipped import flip_value


def written(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_dictionaries_keep_no_values_of_rows_left_out(tmp_path: Path, is_ordered: bool) -> None:
    names = pa.DictionaryArray.from_arrays(
        pa.array([2, 0, None, 2, 1], pa.int8()), ["ann", "bob", "zoe"], ordered=is_ordered
    )
    file = written(tmp_path / "a.parquet", who=names, x=range(5))
    copy_without([file], str(tmp_path / "rows"), "who", pa.array(["ann"]))
    (copy,) = (tmp_path / "rows").glob("*.parquet")
    assert b"ann" not in copy.read_bytes()
    found = pq.read_table(copy)
    assert found["who"].to_pylist() == ["zoe", None, "zoe", "bob"]
    assert found.schema.field("who").type == names.type
    assert found["who"].chunk(0).dictionary.to_pylist() == ["bob", "zoe"]


def test_dictionaries_within_lists_are_refused(tmp_path: Path) -> None:
    words = pa.ListArray.from_arrays([0, 1, 2], pa.array(["ann", "bob"]).dictionary_encode())
    file = written(tmp_path / "a.parquet", who=[1, 2], words=words)
    with pytest.raises(DataError, match="dictionaries within lists"):
        copy_without([file], str(tmp_path / "rows"), "who", pa.array([1]))


def test_keys_are_values_of_the_column_or_in_no_row(tmp_path: Path) -> None:
    near = 2**53
    small = written(tmp_path / "a.parquet", who=pa.array([1, 2], pa.int8()))
    large = written(tmp_path / "b.parquet", who=pa.array([near, near + 1], pa.int64()))
    found = find_rows([small, large], "who", pa.array([2, near + 1, -(2**40)]))
    assert (found.in_no_row, found.rows_left) == (1, (1, 1))
    with pytest.raises(ParameterError, match="write them as whole numbers"):
        find_rows([large], "who", pa.array([float(near)]))


def test_spaces_of_keys_count_where_values_are_strings(tmp_path: Path) -> None:
    listed = tmp_path / "keys.txt"
    listed.write_bytes(b"\xef\xbb\xbfann \r\n 5\n\n")
    keys = read_keys(listed, "who")
    assert keys.to_pylist() == ["ann ", " 5"]
    words = written(tmp_path / "a.parquet", who=["ann", "ann "])
    assert find_rows([words], "who", keys).rows_left == (1,)
    numbers = written(tmp_path / "b.parquet", who=[5, 6])
    assert find_rows([numbers], "who", keys.slice(1)).rows_left == (1,)


@pytest.mark.parametrize(
    "who",
    [
        pa.array(["1", " 2", None], pa.string_view()),
        pa.array(["1", " 2", None], pa.large_string()),
        pa.array([b"1", b" 2", None]),
        pa.array([b"1", b" 2", None], pa.binary_view()),
        pa.array([Decimal("1.00"), Decimal("2.00"), None], pa.decimal32(5, 2)),
        pa.array([Decimal("1.00"), Decimal("2.00"), None], pa.decimal128(38, 2)),
    ],
    ids=lambda who: str(who.type),
)
def test_keys_of_types_that_arrow_does_not_compare(tmp_path: Path, who: pa.Array) -> None:
    file = written(tmp_path / "a.parquet", who=who, note=pa.array("xyz", pa.string_view()))
    empty = written(tmp_path / "b.parquet", who=pa.nulls(2))
    keys, out = pa.array(["1", " 2", "3"]), tmp_path / "rows"
    found = find_rows([file, empty], "who", keys)
    assert (found.in_no_row, found.rows_left) == (1, (1, 2))
    assert [one.left_out for one in copy_without([file, empty], str(out), "who", keys)] == [2, 0]
    copy = pq.read_table(out / "00000001.parquet")
    assert copy.schema.types == [who.type, pa.string_view()]
    assert copy.to_pylist() == [{"who": None, "note": "z"}]


def test_a_flipped_bit_is_refused_and_not_copied_under_a_new_checksum(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.parquet", str(tmp_path / "rows")
    table = pa.table({"who": range(100), "x": np.linspace(0.0, 1.0, 100)})
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    pq.write_table(table, path, write_page_checksum=True, **plain)
    whole = path.read_bytes()
    path.write_bytes(flip_value(whole, 1))
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, "):
        copy_without([str(path)], rows, "who", pa.array([1]))
    path.write_bytes(flip_value(whole, 0))
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, "):
        find_rows([str(path)], "who", pa.array([1]))
    with pytest.raises(DataError, match=r"cannot read keys from .*a\.parquet"):
        read_keys(path, "who")
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"a\.parquet"):
        find_rows([str(path)], "who", pa.array([1]))
    assert not [*tmp_path.glob("rows/*")]


def test_times_of_96_bits_keep_far_dates(tmp_path: Path) -> None:
    """The end of time that Spark and Hive write was another moment in the copy."""
    far = [datetime.datetime(9999, 12, 31), datetime.datetime(2026, 1, 1)]
    path = tmp_path / "a.parquet"
    table = pa.table({"who": [1, 2], "until": pa.array(far, pa.timestamp("us"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    copy_without([str(path)], str(tmp_path / "rows"), "who", pa.array([2]))
    assert pq.read_table(tmp_path / "rows")["until"].to_pylist() == far[:1]
