"""Tables whose columns change, are empty, or are written by several at a time: read as they are.

The oracle is what the table's own reader returns, written as plain Parquet and read as such.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from dmondrian.data import Plan, extend_plan, make_plan, make_scoring_plan, read_block
from dmondrian.data.make import NoRowsError
from dmondrian.errors import SchemaError
from tests.data.test_iceberg_table import compact, ids, new_table, rows, stored

pytest.importorskip("pyiceberg")
from pyiceberg import catalog as catalogs
from pyiceberg.exceptions import CommitFailedException

ICEBERG = "iceberg://years/ns.evolved"


class Table(Protocol):
    """A table, as its writers have it."""

    source: str

    def append(self, values: pa.Table) -> None: ...

    def read(self) -> pa.Table: ...


class Delta:
    """A Delta table."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.source = str(folder / "t")

    def append(self, values: pa.Table) -> None:
        write_deltalake(self.source, values, mode="append", schema_mode="merge")

    def read(self) -> pa.Table:
        return pa.table(DeltaTable(self.source).to_pyarrow_table())


class Iceberg:
    """An Iceberg table, whose columns are those of what is appended."""

    source = ICEBERG

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        new_table(folder, patch)
        self.catalog = catalogs.load_catalog("years")

    def append(self, values: pa.Table) -> None:
        table = self.catalog.create_table_if_not_exists("ns.evolved", values.schema)
        with table.update_schema() as update:
            update.union_by_name(values.schema)
        table.append(values)

    def read(self) -> pa.Table:
        return self.catalog.load_table("ns.evolved").scan().to_arrow()


@pytest.fixture(params=[Delta, Iceberg])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    made: Table = request.param(tmp_path, monkeypatch)
    return made


def values(plan: Plan) -> dict[float, list[float]]:
    """Return the encoded row of each id."""
    found = {}
    for block in plan.blocks:
        encoded = read_block(plan, block, keep=("id",))
        assert encoded.keep is not None
        keys = encoded.keep["id"].to_pylist()
        found.update(zip(keys, map(list, encoded.X.tolist()), strict=True))
    return found


def plain(table: Table, folder: Path) -> Path:
    """Return the rows of a table as plain Parquet, by its own reader."""
    path = folder / f"{uuid.uuid4()}.parquet"
    pq.write_table(table.read().sort_by("id"), path)
    return path


NONE = rows(0, 1).slice(0, 0)
NEW = {
    "number": lambda n: pa.array(np.arange(n) * 0.5),
    "whole": lambda n: pa.array(np.arange(n) * 3),
    "city": lambda n: pa.array([["a", "b"][i % 2] for i in range(n)]),
    "when": lambda n: pa.array(np.arange(n) * 86_400_000_000, pa.timestamp("us", "UTC")),
    "is_new": lambda n: pa.array([i % 2 == 0 for i in range(n)]),
}


def with_new(first: int, last: int) -> pa.Table:
    """Return rows with all new columns."""
    made = rows(first, last)
    for name, make in NEW.items():
        made = made.append_column(name, make(last - first))
    return made


def test_columns_that_were_added_are_null_in_older_files(table: Table, tmp_path: Path) -> None:
    table.append(rows(0, 6))
    old = stored(make_plan(table.source, exclude=["id"]))
    table.append(with_new(6, 14))
    plan = stored(make_plan(table.source, exclude=["id"]))
    assert [column.name for column in plan.schema.columns] == ["k", *NEW]
    assert not any("left out" in note for note in plan.notes)
    other = make_plan(plain(table, tmp_path), exclude=["id"])
    assert plan.schema.feature_names == other.schema.feature_names
    assert values(plan) == values(other)
    later = extend_plan(old, table.source, 6)  # which learned when there was no such column
    assert [column.name for column in later.schema.columns] == ["k"]
    assert sorted(ids(later, 6)) == list(range(6, 14))
    table.append(with_new(14, 20))
    last = stored(extend_plan(plan, table.source, 5))  # a file that is half learned stays the same
    assert last.blocks[: len(plan.blocks)] == plan.blocks
    scored = make_scoring_plan(plain(table, tmp_path), plan.schema)
    assert values(last) == values(scored) == values(make_scoring_plan(table.source, plan.schema))


def test_files_of_a_writer_that_has_not_the_new_column_are_null_there(
    table: Table, tmp_path: Path
) -> None:
    table.append(with_new(0, 8))
    plan = stored(make_plan(table.source, exclude=["id"]))
    table.append(rows(8, 12))
    later = stored(extend_plan(plan, table.source, 8))
    assert sorted(ids(later, 8)) == [8, 9, 10, 11]
    assert values(later) == values(make_scoring_plan(plain(table, tmp_path), plan.schema))


def test_a_target_that_was_added_is_missing_in_older_files(table: Table) -> None:
    table.append(rows(0, 6))
    table.append(with_new(6, 14))
    plan = make_plan(table.source, target="number", task="regression", null_target="drop")
    encoded = [read_block(plan, block) for block in plan.blocks]
    targets = [target for one in encoded if one.y is not None for target in one.y.tolist()]
    assert targets == [i * 0.5 for i in range(8)]
    assert sum(one.counts["null_target"] for one in encoded) == 6


@pytest.mark.parametrize(
    ("old", "new"), [(pa.int32(), pa.int64()), (pa.float32(), pa.float64())], ids=str
)
def test_types_that_were_promoted(
    old: pa.DataType, new: pa.DataType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Iceberg(tmp_path, monkeypatch)
    numbers = [1, 2, 7, 5, 4, 3]
    table.append(rows(0, 6).append_column("n", pa.array(numbers, old)))
    plan = stored(make_plan(table.source, exclude=["id"]))
    table.append(rows(6, 12).append_column("n", pa.array([6, *numbers[1:]], new)))
    later = extend_plan(plan, table.source, 6)
    assert ids(later, 6) == list(range(6, 12))
    fresh = make_plan(table.source, exclude=["id"])
    other = make_plan(plain(table, tmp_path), exclude=["id"])
    assert values(fresh) == values(other)
    assert values(later) == values(make_scoring_plan(plain(table, tmp_path), plan.schema))


def test_a_column_of_a_snapshot_is_one_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Iceberg(tmp_path, monkeypatch)
    table.append(rows(0, 6))
    first = table.catalog.load_table("ns.evolved").current_snapshot()
    table.append(with_new(6, 14))
    plan = make_plan(f"{ICEBERG}@v{first.snapshot_id}")
    assert ids(plan) == list(range(6))
    assert not plan.schema.left_out


def test_files_without_field_ids_are_not_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Iceberg(tmp_path, monkeypatch)
    table.append(with_new(0, 8))
    made = table.catalog.load_table("ns.evolved")
    with made.transaction() as change:
        mapping = made.schema().name_mapping.model_dump_json()
        change.set_properties({"schema.name-mapping.default": mapping})
    pq.write_table(rows(8, 12), tmp_path / "imported.parquet")
    made = table.catalog.load_table("ns.evolved")
    made.add_files([(tmp_path / "imported.parquet").as_uri()])
    with pytest.raises(SchemaError, match="has no column 'number'"):
        make_plan(table.source)


def test_columns_with_names_of_other_characters_are_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Iceberg(tmp_path, monkeypatch)
    table.append(rows(0, 6))
    table.append(rows(6, 12).append_column("a b", pa.array(np.arange(6.0))))
    plan = make_plan(table.source, exclude=["id"])
    (name,) = (one.name for one in plan.schema.columns if one.name.startswith("a"))
    other = make_plan(plain(table, tmp_path), exclude=["id"])
    assert values(plan) == values(other)
    assert name in pq.read_schema(plan.blocks[-1].uri).names


def test_columns_that_iceberg_adds_are_no_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row ids are in files that were compacted (format 3), and not in others."""
    table = Iceberg(tmp_path, monkeypatch)
    table.append(rows(0, 6))
    made = table.catalog.load_table("ns.evolved")
    compact(made)
    (file,) = (task.file for task in made.scan().plan_files())
    place = file.file_path.removeprefix("file://")
    own = pq.read_table(place)
    numbered = pa.field("_row_id", pa.int64(), metadata={b"PARQUET:field_id": b"2147483540"})
    pq.write_table(own.append_column(numbered, pa.array(range(6))), place)
    plan = stored(make_plan(table.source, exclude=["id"]))
    assert [one.name for one in plan.schema.columns] == ["k"]
    table.append(rows(6, 9))
    assert ids(extend_plan(plan, table.source, 6), 6) == [6, 7, 8]


def test_an_empty_iceberg_table_waits_for_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Iceberg(tmp_path, monkeypatch)
    table.catalog.create_table("ns.evolved", rows(0, 1).schema)
    for _ in range(2):
        with pytest.raises(NoRowsError, match=r"no rows in iceberg://years/ns\.evolved"):
            make_plan(table.source)
        table.append(NONE)  # a snapshot without rows
    table.append(rows(0, 6))
    plan = stored(make_plan(table.source))
    assert ids(plan) == list(range(6))
    table.append(NONE)
    later = stored(extend_plan(plan, table.source, 6))
    assert later.digest == plan.digest
    table.append(rows(6, 8))
    assert ids(extend_plan(later, table.source, 6), 6) == [6, 7]


def written_at_once(
    append: Callable[[pa.Table], None], errors: type[Exception]
) -> Iterator[list[threading.Thread]]:
    """Yield writers of three threads as long as any is at work; each tries until it has written."""

    def write(start: int) -> None:
        for first in range(start, start + 40, 10):
            while True:
                try:
                    append(rows(first, first + 10))
                    break
                except errors:
                    pass

    writers = [threading.Thread(target=write, args=(4 + 40 * number,)) for number in range(3)]
    for one in writers:
        one.start()
    while any(one.is_alive() for one in writers):
        yield writers
    for one in writers:
        one.join()


def test_rows_of_writers_at_once_are_learned_once_each(table: Table) -> None:
    table.append(rows(0, 4))
    plan = make_plan(table.source)
    errors = CommitFailedError if isinstance(table, Delta) else CommitFailedException

    def append(made: pa.Table) -> None:
        if isinstance(table, Iceberg):
            table.catalog.load_table("ns.evolved").append(made)
        else:
            table.append(made)

    looks = 0
    for _ in written_at_once(append, errors):
        plan = stored(extend_plan(plan, table.source, plan.n_rows))
        looks += 1
        if looks % 3 == 0 and isinstance(table, Delta):
            with suppress(CommitFailedError):  # others wrote meanwhile
                DeltaTable(table.source).optimize.compact()
    plan = extend_plan(plan, table.source, plan.n_rows)
    assert sorted(ids(plan)) == list(range(124))
    assert looks > 0
