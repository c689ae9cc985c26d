"""Times that Python's datetime does not hold, and infinite ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.data import Schema, make_plan, make_scoring_plan, read_block
from dmondrian.data.arrow_values import MOST_MICROS, as_micros, as_texts, finite_ticks
from dmondrian.data.schema import Column, describe_encoding
from dmondrian.errors import DataError

from .conftest import Write

DAY = 86_400_000_000
START = 19_723 * DAY  # 2024-01-01
TIMES = ("us", "zoned", "s", "ms", "ns", "day")
UNITS = ("s", "ms", "us", "ns")


@pytest.fixture
def duckdb(resources: Path) -> Path:
    return resources / "duckdb" / "infinity.parquet"


def encoded(path: Path, **options: object) -> np.ndarray:
    plan = make_plan(path, **options)
    return np.concatenate([read_block(plan, block).X for block in plan.blocks])


@pytest.mark.parametrize("name", TIMES)
def test_infinite_times_of_DuckDB_are_refused_by_place(duckdb: Path, name: str) -> None:
    others = [other for other in TIMES if other != name]
    reported = (
        rf"'{name}' holds 2 infinite values, the first at .*infinity\.parquet, row 3: .*times"
    )
    with pytest.raises(DataError, match=reported):
        make_plan(duckdb, target="y", exclude=others)


@pytest.mark.parametrize("name", TIMES)
def test_infinite_times_of_DuckDB_are_clipped(duckdb: Path, name: str) -> None:
    others = [other for other in TIMES if other != name]
    plan = make_plan(duckdb, target="y", exclude=others, infinite="clip")
    column = next(column for column in plan.schema.columns if column.name == name)
    half = 0 if name == "day" else DAY * 6.5 / 24
    assert (column.lower, column.upper) == (START + half, START + 39 * DAY + half)
    rows = read_block(plan, plan.blocks[0])
    expected = np.arange(40) / 39
    expected[[3, 17]] = 0, 1
    linear = plan.schema.feature_names.index(name)
    np.testing.assert_allclose(rows.X[:, linear], expected, atol=1e-6)
    assert rows.counts[f"clipped:{name}"] == 2


def test_excluded_times_are_not_looked_at(duckdb: Path) -> None:
    assert make_plan(duckdb, target="y", exclude=TIMES).schema.feature_names == ["x"]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("year", ["10000-01-01T04:59:59", "0000-05-05", "-4712-01-01"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "D"])
def test_years_that_Python_does_not_hold(
    write: Write, unit: str, year: str, statistics: bool
) -> None:
    times = np.array([year, "2024-01-01T06", "2024-03-01"], f"datetime64[{unit}]")
    path = write({"t": pa.array(times)}, write_statistics=statistics)
    column = make_plan(path).schema.columns[0]
    micros = times.astype("datetime64[us]").astype(np.int64)
    assert (column.lower, column.upper) == (micros.min(), micros.max())
    shown = times.min() if year < "2" and not year.startswith("10") else times.max()
    day = str(shown.astype("datetime64[D]"))
    assert day.lstrip("-") in describe_encoding(column)
    linear = (micros - micros.min()) / (micros.max() - micros.min())
    np.testing.assert_allclose(encoded(path)[:, 0], linear, atol=1e-6)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", UNITS)
def test_both_ends_of_every_type_are_infinite(
    write: Write, unit: str, zone: str | None, statistics: bool
) -> None:
    ends = [2**63 - 1, -(2**63) + 1, -(2**63)]
    ticks = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit] * 86_400
    values = pa.array([*ends, ticks, 3 * ticks, None]).cast(pa.timestamp(unit, zone))
    if unit == "s":  # Parquet has none: in it they are milliseconds, as which these overflow
        micros, null, infinite = as_micros(values)
        assert micros.tolist() == [MOST_MICROS, -MOST_MICROS, -MOST_MICROS, DAY, 3 * DAY, 0]
        assert infinite is not None
        assert null is not None
        assert infinite.tolist() == [True] * 3 + [False] * 3
        return
    path = write({"t": values}, write_statistics=statistics)
    with pytest.raises(DataError, match=r"'t' holds 3 infinite values.*row 0"):
        make_plan(path)
    plan = make_plan(path, infinite="clip")
    column = plan.schema.columns[0]
    assert (column.lower, column.upper) == (DAY, 3 * DAY)
    linear = read_block(plan, plan.blocks[0]).X[:, plan.schema.feature_names.index("t")]
    assert linear.tolist() == [1, 0, 0, 0, 1, 0.5]


def test_days_beyond_what_microseconds_hold(write: Write) -> None:
    days = pa.array([2**31 - 1, -(2**31), 10_000, 20_000], pa.int32()).cast(pa.date32())
    with pytest.raises(DataError, match="'t' holds 2 infinite values"):
        make_plan(write({"t": days}))
    assert encoded(write({"t": days}), infinite="clip")[:, 0].tolist() == [1, 0, 0, 1]


def test_only_infinite_times_are_left_out(write: Write) -> None:
    path = write({"t": pa.array([2**63 - 1] * 3, pa.timestamp("us")), "x": [1, 2, 3]})
    plan = make_plan(path, infinite="clip")
    assert plan.schema.left_out == (("t", "without a finite value"),)


def test_infinite_times_at_scoring(write: Write) -> None:
    later = write({"t": pa.array([DAY, 2**63 - 1], pa.timestamp("us"))}, "later.parquet")
    known = write({"t": pa.array([DAY, 2 * DAY], pa.timestamp("us"))})
    for infinite in ("error", "clip"):
        plan = make_scoring_plan(later, make_plan(known, infinite=infinite).schema)
        if infinite == "error":
            with pytest.raises(DataError, match=r"'t' is infinite at .*later\.parquet, row 1"):
                read_block(plan, plan.blocks[0])
        else:
            assert read_block(plan, plan.blocks[0]).X[:, 0].tolist() == [0, 1]


def test_a_schema_that_took_infinity_for_a_bound_reads_it(write: Write) -> None:
    """As versions did that knew no infinite times, from files without statistics."""
    column = Column("t", "time", "timestamp[us]", DAY, 2**63 - 1, ("linear",))
    path = write({"t": pa.array([DAY, 2**63 - 1], pa.timestamp("us"))})
    plan = make_scoring_plan(path, Schema((column,)))
    assert read_block(plan, plan.blocks[0]).X[:, 0].tolist() == [0, 1]


def test_far_durations_and_categories_of_far_times(write: Write) -> None:
    ends = [2**63 - 1, -(2**63) + 1, 0]
    durations = {"c": pa.array(ends, pa.duration("s"))}
    column = make_plan(write(durations)).schema.columns[0]
    assert (column.lower, column.upper) == (float(ends[1]), float(ends[0]))
    column = make_plan(write(durations), categorical=["c"]).schema.columns[0]
    assert column.levels == (f"{ends[1]} s", "0:00:00", f"{ends[0]} s")
    far = pa.array([2**63 - 1, 0], pa.timestamp("us"))
    assert as_texts(far)[0][1] == "1970-01-01 00:00:00.000000"
    assert len(make_plan(write({"c": far}), categorical=["c"]).schema.columns[0].levels) == 2


@pytest.mark.parametrize("unit", UNITS)
def test_finite_times_convert_as_Arrow_does(unit: str) -> None:
    most = finite_ticks(unit)
    draws = np.random.default_rng(0).integers(-most, most, 1000)
    values = np.concatenate([draws, draws // 10**9, [most, -most, 0, 1, -1, 999, -999, -1000]])
    array = pa.array(values).cast(pa.timestamp(unit))
    micros, null, infinite = as_micros(array)
    expected = array.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    np.testing.assert_array_equal(micros, expected.to_numpy())
    assert null is None
    assert infinite is None


def test_bounds_of_a_file_are_read_in_its_unit(write: Write) -> None:
    """Not in that of its Arrow schema, which may differ."""
    table = pa.table({"t": pa.array([-1_000, 1_999_999_000], pa.timestamp("ns"))})
    for options in ({}, {"coerce_timestamps": "us", "allow_truncated_timestamps": True},
                    {"version": "1.0"}, {"store_schema": False}):  # fmt: skip
        path = write(table, **options)
        whole = pq.read_table(path).column("t")
        micros, _, _ = as_micros(whole)
        column = make_plan(path).schema.columns[0]
        assert (column.lower, column.upper) == (micros.min(), micros.max())
