"""Reading blocks: changed, vanished and damaged files, threads, and rows that stay together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.data import BLOCK_ROWS, Plan, make_plan, make_scoring_plan, read_block
from dmondrian.data import read as read_module
from dmondrian.data.footers import open_parquet, read_footers
from dmondrian.data.single_flight_cache import SingleFlightCache
from dmondrian.data.source import list_files
from dmondrian.errors import DataError, PlanError, SchemaError
from tests.flipped import flip_value

from .conftest import Write


def numbers(rows: int) -> dict[str, pa.Array]:
    x = np.arange(rows)
    return {"x": pa.array(x), "z": pa.array(x[::-1].astype(float)), "y": pa.array(x * 2)}


def regression(path: Path, **options: object) -> Plan:
    """A plan that moves row groups, and the rows of each, and reads them block by block."""
    given: dict[str, Any] = {"task": "regression", "shuffle": True, "is_mixed": False, **options}
    return make_plan(path, target="y", **given)


def test_features_target_weight_and_kept_columns_move_together(write: Write) -> None:
    rows = BLOCK_ROWS + 100
    columns = {**numbers(rows), "w": pa.array(np.arange(rows)), "tags": pa.array([["a"]] * rows)}
    plan = regression(write(columns, row_group_size=rows - 50), weight="w", exclude=["tags"])
    for block in plan.blocks:
        part = read_block(plan, block, keep=["x", "tags"])
        assert part.y is not None
        assert part.weight is not None
        assert part.keep is not None
        assert len(part.X) == block.rows
        x = np.array(part.keep["x"])
        np.testing.assert_array_equal(part.y, 2 * x)
        np.testing.assert_array_equal(part.weight, x)
        np.testing.assert_array_equal(part.X[:, 0], (x / (rows - 1)).astype(np.float32))
        np.testing.assert_allclose(part.X[:, 1], 1 - part.X[:, 0], atol=1e-6)
        assert part.keep.column_names == ["x", "tags"]


def test_unknown_kept_column_is_named(write: Write) -> None:
    plan = regression(write(numbers(10)))
    with pytest.raises(SchemaError, match="'key'"):
        read_block(plan, plan.blocks[0], keep=["key"])


def spied(monkeypatch: pytest.MonkeyPatch) -> list[pq.FileMetaData | None]:
    """Note the footers that files are opened with; None: it is read."""
    footers: list[pq.FileMetaData | None] = []

    def opened(uri: str, dictionaries: Sequence[str] = (), footer: Any = None) -> pq.ParquetFile:
        footers.append(footer)
        return open_parquet(uri, dictionaries, footer)

    monkeypatch.setattr("dmondrian.data.read.open_parquet", opened)
    return footers


def test_the_footer_of_many_row_groups_is_read_once(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row group's block would read it whole again."""
    plan = regression(write(numbers(60), row_group_size=2))
    footers = spied(monkeypatch)
    parts = [read_block(plan, block) for block in plan.blocks]
    assert np.sort(np.concatenate([part.X[:, 0] for part in parts])).tolist() == pytest.approx(
        np.arange(60) / 59
    )
    assert len(footers) == 30
    assert footers.count(None) == 1


def shuffled(write: Write, files: int) -> Plan:
    """A plan that goes to and fro between files of 12 row groups."""
    for number in range(files):
        path = write(numbers(24), f"many/{number}.parquet", row_group_size=2)
    plan = regression(path.parent)
    assert sum(a.uri != b.uri for a, b in pairwise(plan.blocks)) > 6 * files
    return plan


def test_the_footers_of_many_files_are_read_once_where_the_plan_is_shuffled(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = shuffled(write, files=9)
    footers = spied(monkeypatch)
    for block in plan.blocks:
        read_block(plan, block)
    assert len(footers) == len(plan.blocks) == 9 * 12
    assert footers.count(None) == 9


def test_the_footer_of_a_file_that_is_read_once_is_not_kept(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows a folder for a year reads more of them than memory holds."""
    for number in range(3):
        path = write(numbers(24), f"once/{number}.parquet")
    footers, plan = spied(monkeypatch), regression(path.parent, shuffle=False)
    for block in [*plan.blocks, *plan.blocks]:
        read_block(plan, block)
    assert footers == 6 * [None]


def test_footers_are_kept_up_to_a_bound(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = shuffled(write, files=4)
    size = read_module.HELD * pq.read_metadata(plan.blocks[0].uri).serialized_size
    reads = []
    for most in (1, 2 * size, 4 * size):
        kept = SingleFlightCache(most, lambda footer: read_module.HELD * footer.serialized_size)
        monkeypatch.setattr(read_module, "_footers", kept)
        with monkeypatch.context() as patch:
            footers = spied(patch)
            for block in plan.blocks:
                read_block(plan, block)
        reads.append(footers.count(None))
    turns = 1 + sum(a.uri != b.uri for a, b in pairwise(plan.blocks))
    assert reads[0] == turns > reads[1] > reads[2] == 4


def test_threads_read_what_one_reads(write: Write) -> None:
    rows = 3 * BLOCK_ROWS
    plan = regression(write(numbers(rows), row_group_size=rows))
    alone = [read_block(plan, block).X.tobytes() for block in plan.blocks]
    with ThreadPoolExecutor(max_workers=4) as pool:
        together = list(
            pool.map(lambda block: read_block(plan, block).X.tobytes(), [*plan.blocks] * 3)
        )
    assert together == alone * 3


def test_changed_file_is_named(write: Write) -> None:
    path = write(numbers(10))
    plan = regression(path)
    write(numbers(11))
    with pytest.raises(PlanError, match=r"a\.parquet changed since the plan was made: expected"):
        read_block(plan, plan.blocks[0])


def test_touched_file_of_the_same_size_counts_as_changed(write: Write) -> None:
    path = write(numbers(10))
    plan = regression(path)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    with pytest.raises(PlanError, match="changed"):
        read_block(plan, plan.blocks[0])


def test_vanished_file_is_named(write: Write) -> None:
    path = write(numbers(10))
    plan = regression(path)
    path.unlink()
    with pytest.raises(PlanError, match=r"a\.parquet .* no longer there"):
        read_block(plan, plan.blocks[0])


@pytest.mark.parametrize("length", [0, 3, 11, 1000])
def test_truncated_file_is_named(write: Write, length: int) -> None:
    write(numbers(1000), "two/a.parquet")
    path = write(numbers(1000), "two/b.parquet")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"b\.parquet"):
        regression(path.parent)


def test_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("x,y\n1,2\n" * 100)
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet"):
        regression(path)


def damage(path: Path) -> None:
    """Overwrite the pages, leave the footer, the size and the time of the last change."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    data[4 : len(data) - footer] = b"\xff" * (len(data) - footer - 4)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_damaged_pages_are_named_when_read(write: Write) -> None:
    path = write(numbers(1000))
    plan = regression(path)
    damage(path)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, cannot be decoded"):
        read_block(plan, plan.blocks[0])


def with_flipped(write: Write, column: int, **options: Any) -> tuple[Path, Plan]:
    """Write a file, plan with it, then flip a bit of a value; the stamp stays."""
    table = {"x": np.arange(1000.0), "c": ["u", "v"] * 500, "y": np.arange(1000)}
    path = write(table, compression="none", **options)
    plan, before = regression(path), path.stat()
    path.write_bytes(flip_value(path.read_bytes(), column))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path, plan


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_flipped_bit_is_reported_where_pages_have_checksums(
    write: Write, column: int, use_dictionary: bool
) -> None:
    path, plan = with_flipped(
        write, column, use_dictionary=use_dictionary, write_page_checksum=True
    )
    reported = r"a\.parquet, row group 0, cannot be decoded \(.*CRC checksum.*write it again"
    with pytest.raises(DataError, match=reported):
        read_block(plan, plan.blocks[0])
    if column == 1:  # its levels are learned from its pages
        with pytest.raises(DataError, match=reported):
            regression(path)


def test_a_flipped_bit_is_another_value_where_they_have_none(write: Write) -> None:
    _, plan = with_flipped(write, 0, use_dictionary=False)
    values = np.arange(1000)
    assert read_block(plan, plan.blocks[0], keep=["x"]).keep["x"].to_pylist() != values.tolist()


def test_plan_of_integers_needs_no_page(write: Write) -> None:
    path = write(
        {
            "x": np.arange(1000),
            "d": pa.array(np.arange(1000, dtype=np.int32)).cast(pa.date32()),
            "y": np.arange(1000)[::-1] % 7,
        }
    )
    expected = make_plan(path, target="y", task="regression")
    damage(path)
    assert make_plan(path, target="y", task="regression").digest == expected.digest
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, cannot be decoded"):
        make_plan(path, target="y")


def test_scoring_plan_needs_no_page(write: Write) -> None:
    path = write({"x": np.arange(9.0), "c": list("abcabcabc")})
    schema = make_plan(path).schema
    expected = make_scoring_plan(path, schema)
    damage(path)
    assert make_scoring_plan(path, schema).digest == expected.digest


def test_bounds_missing_in_one_file_only_are_read(write: Write) -> None:
    write({"x": [1, 2], "z": ["u", "v"]}, "two/a.parquet")
    path = write({"x": [0, 11], "z": ["v", "u"]}, "two/b.parquet", write_statistics=False)
    column = make_plan(path.parent).schema.columns[0]
    assert (column.lower, column.upper) == (0, 11)


@pytest.mark.parametrize("as_integers", [False, True])
@pytest.mark.parametrize("digits", [7, 18, 38, 60])  # stored in 4, 8 and more bytes
def test_bounds_of_decimals_are_those_of_the_values(
    write: Write, digits: int, as_integers: bool
) -> None:
    values = [Decimal(f"{sign}{'7' * (digits - 2)}.25") for sign in ("-", "")]
    kind = pa.decimal128(digits, 2) if digits < 39 else pa.decimal256(digits, 2)
    path = write({"x": pa.array(values, kind)}, store_decimal_as_integer=as_integers)
    (footer,) = read_footers(list_files(path)[0])
    (bounds,) = footer.bounds["x"]
    assert (bounds.lower, bounds.upper, bounds.nulls) == (*map(float, values), 0)


@pytest.mark.parametrize("order", [["a.b", "a"], ["a", "a.b"]])
def test_a_name_with_a_dot_is_no_field_of_a_struct(write: Write, order: list[str]) -> None:
    columns = {
        "a.b": pa.array([1.0, 2.0, 3.0]),
        "a": pa.array([{"b": 100.0, "c": 1}, {"b": 200.0, "c": 2}, {"b": 300.0, "c": 3}]),
    }
    plan = make_plan(write({name: columns[name] for name in order}), exclude=["a"])
    (column,) = plan.schema.columns
    assert (column.name, column.lower, column.upper) == ("a.b", 1.0, 3.0)
    (X,) = (read_block(plan, block).X for block in plan.blocks)
    assert X[:, 0].tolist() == [0.0, 0.5, 1.0]


def test_text_that_is_not_text_is_refused(write: Write) -> None:
    path = write({"c": pa.array([b"\xff\xfe", b"a"]), "x": [1, 2]})
    with pytest.raises(DataError, match=r"'c' of .*a\.parquet"):
        make_plan(path, categorical=["c"])
