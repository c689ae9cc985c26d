"""Files and tables that Spark wrote: read, and continued step by step."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.data import Plan, extend_plan, make_plan, make_scoring_plan, read_block
from dmondrian.errors import DataError
from tests.data.spark_tables import HERE, Step, unpack, unpack_iceberg

APPENDED = [
    range(12),
    range(12, 18),
    range(0),
    range(18, 24),
    range(0),
    range(0),
    range(24, 30),
    range(0),
    range(40, 44),
]
"""Ids of the rows that each step appends; the merge writes 30 and 31 beside learned ones."""


def ids(plan: Plan, start: int = 0) -> list[float]:
    found: list[float] = []
    for block in plan.blocks:
        kept = read_block(plan, block, keep=("id",)).keep
        assert kept is not None
        found += kept["id"].to_pylist()
    return found[start:]


def stored(plan: Plan) -> Plan:
    return Plan.from_parquet(plan.to_parquet())


def counts(plan: Plan) -> tuple[int, int, int, tuple[str, ...]]:
    (state,) = plan.tables
    return state.deleted, state.updated, state.unlearned, state.bounds


# -- plain Parquet --------------------------------------------------------------------------------


def expected(number: int) -> dict[str, Any]:
    """Return a row as the SQL of `spark/write_tables.py` makes it."""
    return {
        "id": number,
        "x": number * 7 % 100 / 100,
        "k": ["a", "b", "c d"][number % 3],
        "t": datetime(2024, 1, 1) + timedelta(hours=number),
        "y": number * 7 % 100 > 50,
        "price": Decimal(number % 7).quantize(Decimal("0.01")),
        "n": None if number % 5 == 0 else number * 1.5,
    }


def check_plain(folder: Path) -> None:
    names = tuple(expected(0))
    plan = stored(make_plan(folder, target="y", exclude=["id"]))
    found = []
    for block in plan.blocks:
        kept = read_block(plan, block, keep=names).keep
        assert kept is not None
        found += kept.to_pylist()
    for row in found:
        row["t"] = row["t"].replace(tzinfo=None)
    assert sorted(found, key=lambda row: row["id"]) == [expected(number) for number in range(60)]
    assert {one.name: one.kind for one in plan.schema.columns} == {
        "x": "number", "k": "category", "t": "time", "price": "number", "n": "number",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["partitioned", "zstd", "int96"])
def test_plain_files_are_read_as_spark_wrote_them(name: str, tmp_path: Path) -> None:
    check_plain(unpack(name, tmp_path))


def test_files_that_spark_writes_now_are_read(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    # In a process of its own: Spark answers Ctrl-C in its way from then on.
    command = [sys.executable, str(HERE / "write_tables.py"), str(tmp_path / "spark")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    for name in ("partitioned", "zstd", "int96"):
        check_plain(tmp_path / "spark" / name)


# -- Iceberg --------------------------------------------------------------------------------------


@pytest.fixture(params=["cow", "mor", "dv"])
def kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("pyiceberg")
    found: str = request.param
    return found


@pytest.fixture
def steps(kind: str, tmp_path: Path) -> list[Step]:
    return unpack_iceberg(kind, tmp_path)


def unless_left_out(make: Callable[[], Plan]) -> Plan | None:
    """Return a plan; None if it is refused since delete files leave rows out."""
    try:
        return make()
    except DataError as error:
        if "left out by delete files (merge-on-read)" not in str(error):
            raise
        return None


def test_the_tables_that_are_unpacked_are_those_that_spark_read(steps: list[Step]) -> None:
    from pyiceberg.table import StaticTable

    for step in steps:
        table = StaticTable.from_metadata(step.metadata).scan().to_arrow()
        assert sorted(table["id"].to_pylist()) == step.ids


def test_each_step_is_read_as_spark_does_or_refused(kind: str, steps: list[Step]) -> None:
    refused = []
    for number, step in enumerate(steps):
        plan = unless_left_out(lambda step=step: make_plan(step.metadata, target="y"))
        if plan is None:
            refused.append(number)
            continue
        assert sorted(ids(plan)) == step.ids
        names = [one.name for one in plan.schema.columns]
        assert names == ["id", "k", *(["z"] if number == 8 else [])]
    # Until rows are written anew: those of the merge are not at the end.
    assert refused == ([] if kind == "cow" else [3, 4, 7, 8])


def test_a_new_column_has_the_values_that_the_tables_own_reader_gives(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyiceberg")
    steps = unpack_iceberg("cow", tmp_path)
    from pyiceberg.table import StaticTable

    plan = make_plan(steps[-1].metadata, target="y")
    table = StaticTable.from_metadata(steps[-1].metadata).scan().to_arrow()
    pq.write_table(table, tmp_path / "plain.parquet")
    other = make_scoring_plan(tmp_path / "plain.parquet", plan.schema)

    def values(plan: Plan) -> dict[float, list[float]]:
        found = {}
        for block in plan.blocks:
            encoded = read_block(plan, block, keep=("id",))
            assert encoded.keep is not None
            rows = zip(encoded.keep["id"].to_pylist(), encoded.X.tolist(), strict=True)
            found.update(rows)
        return found

    assert values(plan) == values(other)
    assert pa.compute.sum(table["z"]).as_py() == 8.0


COUNTS = [
    (0, 0, 0, ()),
    (0, 0, 0, ()),
    (0, 0, 0, ()),
    (2, 0, 0, ()),
    (2, 1, 0, ()),
    (2, 1, 0, ()),
    (2, 1, 0, ()),
    (2, 3, 2, ()),
    (2, 3, 2, ()),
]
"""Rows deleted, updated and not learned up to each step, by delete files."""

# A copy does not say which of its rows are others: 16, and 6 of the merge, may be.
COPIES = {4: (2, 16, 0), 5: (2, 16, 0), 6: (2, 16, 0), 7: (2, 22, 2), 8: (2, 22, 2)}


def test_a_run_that_goes_on_learns_what_each_step_appends(kind: str, steps: list[Step]) -> None:
    plan = stored(make_plan(steps[0].metadata, target="y"))
    for number, step in enumerate(steps[1:], 1):
        later = stored(extend_plan(plan, step.metadata, plan.n_rows))
        assert later.blocks[: len(plan.blocks)] == plan.blocks
        assert ids(later, plan.n_rows) == list(APPENDED[number])
        found = COUNTS[number]
        if kind == "cow" and number in COPIES:
            found = (*COPIES[number], ("updated",))
        assert counts(later) == found
        assert [one.name for one in later.schema.columns] == ["id", "k"]
        plan = later


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=() if n in (0, 5) else pytest.mark.thorough) for n in range(8)]
)
def test_a_run_that_goes_on_after_several_steps_learns_no_row_twice(
    first: int, kind: str, steps: list[Step]
) -> None:
    plan = unless_left_out(lambda: stored(make_plan(steps[first].metadata, target="y")))
    if plan is None:
        assert kind != "cow"
        return
    for last in range(first + 1, len(steps)):
        now = steps[last].metadata
        later = unless_left_out(lambda now=now: extend_plan(plan, now, plan.n_rows))
        if later is None:  # the merge is of rows that were not learned
            assert kind != "cow"
            assert first < 6
            assert last >= 7
            continue
        appended = {row for number in range(first + 1, last + 1) for row in APPENDED[number]}
        if first < 6 and last >= 7:
            appended |= {30, 31}  # a merge with rows that were not learned either
        assert sorted(ids(later, plan.n_rows)) == sorted(appended)
