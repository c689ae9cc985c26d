"""What each type of column becomes, value by value."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dmondrian.data import Encoded, Plan, learn, make_plan, make_scoring_plan, read_block
from dmondrian.errors import DataError

from .conftest import Write


def read_all(plan: Plan) -> Encoded:
    parts = [read_block(plan, block) for block in plan.blocks]
    y = None if parts[0].y is None else np.concatenate([p.y for p in parts if p.y is not None])
    counts: dict[str, int] = {}
    for part in parts:
        for key, number in part.counts.items():
            counts[key] = counts.get(key, 0) + number
    return Encoded(
        np.concatenate([part.X for part in parts]), y, None, None, counts, parts[0].names
    )


def encode(write: Write, column: Any, **options: Any) -> tuple[list[str], npt.NDArray[np.float32]]:
    plan = make_plan(write({"c": column}), **options)
    encoded = read_all(plan)
    assert encoded.X.dtype == np.float32
    assert encoded.X.flags.c_contiguous
    return plan.schema.feature_names, encoded.X


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 5, 10], pa.int8()),
        pa.array([0, 5, 10], pa.uint64()),
        pa.array([-5, 0, 5], pa.int32()),
        pa.array([0.0, 0.5, 1.0], pa.float16()),
        pa.array([0.0, 0.5, 1.0], pa.float32()),
        pa.array([-1e300, 0.0, 1e300], pa.float64()),
        pa.array([-1.7e308, 0.0, 1.7e308], pa.float64()),
        pa.array([Decimal("-0.10"), Decimal("0.00"), Decimal("0.10")], pa.decimal128(12, 2)),
        pa.array([Decimal(10**40), Decimal(2 * 10**40), Decimal(3 * 10**40)], pa.decimal256(60, 0)),
        pa.array([timedelta(0), timedelta(hours=1), timedelta(hours=2)], pa.duration("ms")),
        pa.array([time(0), time(6), time(12)], pa.time32("s")),
        pa.array([time(0), time(6), time(12)], pa.time64("ns")),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("statistics", [True, False])
def test_numbers_are_scaled_by_their_range(
    write: Write, column: pa.Array, statistics: bool
) -> None:
    path = write({"c": column}, write_statistics=statistics)
    X = read_all(make_plan(path)).X
    np.testing.assert_allclose(X[:, 0], [0, 0.5, 1], atol=1e-7)
    assert X.shape == (3, 1)


def test_booleans_are_zero_and_one(write: Write) -> None:
    names, X = encode(write, pa.array([True, False, True]))
    assert names == ["c"]
    assert X[:, 0].tolist() == [1, 0, 1]


def test_null_and_nan_are_in_the_middle_and_marked(write: Write) -> None:
    names, X = encode(write, pa.array([10.0, None, math.nan, 20.0]))
    assert names == ["c", "c=<null>"]
    assert X.tolist() == [[0, 0], [0.5, 1], [0.5, 1], [1, 0]]


def test_a_null_within_the_range_is_in_the_middle_wherever_0_is(write: Write) -> None:
    names, X = encode(write, pa.array([-1.0, None, 3.0, 0.0]))
    assert names == ["c", "c=<null>"]
    assert X[:, 0].tolist() == [0, 0.5, 1, 0.25]


def test_nan_alone_is_found_although_footers_lack_it(write: Write) -> None:
    names, X = encode(write, pa.array([10.0, math.nan, 20.0]))
    assert names == ["c", "c=<null>"]
    assert X.tolist() == [[0, 0], [0.5, 1], [1, 0]]


def test_nan_that_the_sample_missed_is_imputed_and_counted(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "SAMPLE_ROWS", 4)
    path = write({"c": [1.0, 2.0, math.nan, 3.0, 1.0, 2.0, 3.0, 1.0]}, row_group_size=2)
    plan = make_plan(path)  # looks at the row groups 0 and 2
    assert plan.schema.feature_names == ["c"]
    encoded = read_all(plan)
    assert encoded.X[2, 0] == 0.5
    assert encoded.counts["null:c"] == 1


def test_constant_with_nulls_keeps_only_the_indicator(write: Write) -> None:
    names, X = encode(write, pa.array([7, None, 7]))
    assert names == ["c=<null>"]
    assert X.tolist() == [[0], [1], [0]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
        pa.dictionary(pa.uint32(), pa.string()),  # polars' categories
    ],
    ids=str,
)
def test_texts_are_one_hot_with_other_and_null(write: Write, kind: pa.DataType) -> None:
    names, X = encode(write, pa.array(["b", None, "a", "", "a"]).cast(kind))
    assert names == ["c=", "c=a", "c=b", "c=<other>", "c=<null>"]
    assert X.argmax(axis=1).tolist() == [2, 4, 1, 0, 1]
    assert X.sum(axis=1).tolist() == [0.25] * 5  # four levels met, <null> among them


def test_every_source_column_has_total_range_one(write: Write) -> None:
    path = write({"n": [3, 9, 4, 5], "c": ["u", "v", "w", None], "d": ["a", "b", "a", "b"]})
    X = read_all(make_plan(path)).X
    ranges = X.max(axis=0) - X.min(axis=0)
    assert ranges[:1].sum() == ranges[1:6].sum() == ranges[6:].sum() == 1


def test_level_cap_keeps_the_most_frequent_and_breaks_ties_by_value(write: Write) -> None:
    values = ["d", "b", "c", "b", "a", "d", "e"]
    plan = make_plan(write({"c": values}), max_categories=3)
    assert plan.schema.feature_names == ["c=a", "c=b", "c=d", "c=<other>"]
    assert any("5 levels" in note and "71.4%" in note for note in plan.notes)
    encoded = read_all(plan)
    assert encoded.X.argmax(axis=1).tolist() == [2, 1, 3, 1, 0, 2, 3]
    assert encoded.counts["other:c"] == 2


@pytest.mark.parametrize(
    ("column", "levels"),
    [
        (pa.array([3, 1, 3]), ["1", "3"]),
        (pa.array([3.0, 1.0, 1.5]), ["1", "1.5", "3"]),
        (pa.array([True, False, True]), ["false", "true"]),
        (pa.array([date(2024, 1, 2), date(2024, 1, 1)]), ["2024-01-01", "2024-01-02"]),
        (pa.array([b"x", b"y"]), ["x", "y"]),
        (pa.array([3, 1, 3]).dictionary_encode(), ["1", "3"]),
        (pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(9, 2)), ["1.5", "2"]),
        (pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal32(5, 2)), ["1.5", "2"]),
        (pa.array([Decimal(10**37), Decimal(1)], pa.decimal128(38, 0)), ["1", "1" + 37 * "0"]),
        (
            pa.array([Decimal(f"{10**33}.50"), Decimal(1)], pa.decimal128(38, 2)),
            ["1", f"{10**33}.5"],
        ),
    ],
)
def test_any_column_can_be_made_categorical(
    write: Write, column: pa.Array, levels: list[str]
) -> None:
    names, X = encode(write, column, categorical=["c"])
    assert names == [f"c={level}" for level in levels] + ["c=<other>"]
    np.testing.assert_array_equal(X.max(axis=1), np.float32(1 / len(levels)))
    np.testing.assert_array_equal((X > 0).sum(axis=1), 1)


def test_category_stored_as_other_numbers_has_the_same_levels(write: Write) -> None:
    schema = make_plan(write({"c": pa.array([1, 2, 3])}), categorical=["c"]).schema
    for column in (pa.array([3.0, 2.0, None]), pa.array(["3", "2", None])):
        plan = make_scoring_plan(write({"c": column}, "other.parquet"), schema)
        levels = (read_all(plan).X * 3).tolist()
        assert levels == [[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
        assert read_all(plan).counts["null:c"] == 1


@pytest.mark.parametrize("levels", [("0.5", "1.25", "2"), ("0.50", "1.25", "2")])
def test_decimals_of_any_scale_have_the_levels_of_floats(
    write: Write, levels: tuple[str, ...]
) -> None:
    # earlier versions kept the zeros of the type: "0.50"
    values = ["0.50", "1.25", "2.00"]
    two = pa.array(map(Decimal, values), pa.decimal128(9, 2))
    schema = make_plan(write({"c": two}), categorical=["c"]).schema
    schema = replace(schema, columns=(replace(schema.columns[0], levels=levels),))
    three = two.cast(pa.decimal128(12, 3))
    for column in (two, three, two.cast(pa.float64()), pa.array(["0.5", "1.25", "2"])):
        X = read_all(make_scoring_plan(write({"c": column}, "other.parquet"), schema)).X
        np.testing.assert_array_equal(X.argmax(axis=1), [0, 1, 2])


def test_special_level_names_in_the_data_stay_apart(write: Write) -> None:
    names, X = encode(write, pa.array(["<null>", None, "<other>", "a"]))
    assert len(set(names)) == len(names) == 5
    assert sorted(X.argmax(axis=1).tolist()) == [0, 1, 2, 4]


def reference_parts(moment: datetime) -> list[float]:
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second + moment.microsecond / 1e6
    return [seconds / 86400, moment.weekday() / 6, (moment.month - 1) / 11]


MOMENTS = [
    datetime(1899, 12, 31, 23, 59, 59),
    datetime(1969, 7, 20, 20, 17, 40),
    datetime(1970, 1, 1),
    datetime(2024, 2, 29, 12, 30, 15, 250000),
    datetime(2100, 6, 6, 6, 6, 6),
]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("statistics", [True, False])
def test_time_parts_agree_with_the_calendar(write: Write, unit: str, statistics: bool) -> None:
    path = write({"c": pa.array(MOMENTS, pa.timestamp(unit))}, write_statistics=statistics)
    plan = make_plan(path)
    assert plan.schema.feature_names == ["c", "c.hour", "c.weekday", "c.month"]
    X = read_all(plan).X
    np.testing.assert_allclose(X[:, 1:], [reference_parts(m) for m in MOMENTS], atol=1e-6)
    span = MOMENTS[-1] - MOMENTS[0]
    np.testing.assert_allclose(X[:, 0], [(m - MOMENTS[0]) / span for m in MOMENTS], atol=1e-6)


def test_zoned_times_are_read_in_utc(write: Write) -> None:
    zone = timezone(timedelta(hours=-5))
    moments = [datetime(2024, 1, 1, 22, tzinfo=zone), datetime(2024, 3, 1, 1, tzinfo=zone)]
    names, X = encode(write, pa.array(moments, pa.timestamp("us", "-05:00")))
    assert names == ["c", "c.hour", "c.weekday", "c.month"]
    expected = [reference_parts(m.astimezone(UTC)) for m in moments]
    np.testing.assert_allclose(X[:, 1:], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("moments", "parts"),
    [
        ([datetime(2024, 1, 1, 1), datetime(2024, 1, 1, 2)], ["c", "c.hour"]),
        ([datetime(2024, 1, 1, 1), datetime(2024, 1, 3, 2)], ["c", "c.hour", "c.weekday"]),
        ([datetime(2024, 1, 1), datetime(2024, 1, 3)], ["c", "c.weekday"]),
        ([date(2024, 1, 1), date(2024, 3, 1)], ["c", "c.weekday", "c.month"]),
        ([date(2023, 3, 1), date(2024, 3, 1)], ["c", "c.weekday", "c.month"]),
    ],
)
def test_parts_that_do_not_vary_are_left_out(
    write: Write, moments: list[Any], parts: list[str]
) -> None:
    assert encode(write, pa.array(moments))[0] == parts


def test_moments_that_are_one_as_numbers_have_no_range(write: Write) -> None:
    late = 253_402_300_799_999_968  # of the year 9999: doubles are 32 microseconds apart
    column = pa.array([late, late + 1], pa.timestamp("us"))
    names, X = encode(write, column)
    assert names == ["c.hour"]
    assert np.isfinite(X).all()


def test_null_times_are_in_the_middle_and_marked(write: Write) -> None:
    names, X = encode(write, pa.array([date(2024, 1, 1), None, date(2024, 3, 1)]))
    assert names[-1] == "c=<null>"
    assert X[1].tolist() == [0.5] * 3 + [1]
    assert X[[0, 2], -1].tolist() == [0, 0]


def test_infinite_feature_is_refused_with_its_place(write: Write) -> None:
    path = write({"c": [1.0, 2.0, math.inf, 3.0, -math.inf]}, row_group_size=2)
    with pytest.raises(DataError, match=r"'c' holds 2 infinite.*a\.parquet, row 2"):
        make_plan(path)


def test_infinite_feature_is_clipped_on_request(write: Write) -> None:
    path = write({"c": [1.0, 2.0, math.inf, 3.0, -math.inf, None]})
    plan = make_plan(path, infinite="clip")
    encoded = read_all(plan)
    assert encoded.X[:, 0].tolist() == [0, 0.5, 1, 1, 0, 0.5]
    assert encoded.counts["clipped:c"] == 2


@pytest.mark.parametrize("infinite", [math.inf, -math.inf])
def test_infinities_of_one_sign_are_found_at_scoring(write: Write, infinite: float) -> None:
    path = write({"c": [1.0, infinite, 2.0]}, "new.parquet")
    for manner in ("error", "clip"):
        schema = make_plan(write({"c": [1.0, 3.0]}), infinite=manner).schema
        plan = make_scoring_plan(path, schema)
        if manner == "error":
            with pytest.raises(DataError, match=r"'c' is infinite at .*new\.parquet, row 1"):
                read_all(plan)
        else:
            encoded = read_all(plan)
            assert encoded.X[:, 0].tolist() == [0, float(infinite > 0), 0.5]
            assert encoded.counts["clipped:c"] == 1


def test_infinite_feature_at_scoring_names_the_row_of_the_file(write: Write) -> None:
    schema = make_plan(write({"c": [1.0, 2.0]})).schema
    path = write({"c": [1.0, 2.0, 1.5, math.inf]}, "new.parquet", row_group_size=2)
    plan = make_scoring_plan(path, schema)
    with pytest.raises(DataError, match=r"'c' is infinite at .*new\.parquet, row 3"):
        read_all(plan)


def test_tiles_of_a_column_are_encoded_as_the_whole(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, n = np.random.default_rng(0), 50
    seconds = rng.integers(0, 10**9, n)
    trained = {
        "number": rng.random(n),
        "whole": pa.array([None if k % 7 == 3 else k for k in range(n)], pa.int16()),
        "time": pa.array(seconds.tolist(), pa.timestamp("s")),
        "level": rng.choice(["a", "b", "c"], n).tolist(),
        "coded": pa.array(rng.integers(0, 2, n).tolist(), pa.int8()).dictionary_encode(),
    }
    schema = make_plan(write(trained), infinite="clip").schema
    asked = {
        **trained,
        "number": [math.inf, -3.0, math.nan, *(2.0 * rng.random(n - 3)).tolist()],
        "time": pa.array([None, *(2 * seconds[1:]).tolist()], pa.timestamp("s")),
        "level": rng.choice(["a", "b", "new"], n).tolist(),
    }
    plan = make_scoring_plan(write(asked, "new.parquet"), schema)
    whole = read_all(plan)
    assert {key.split(":")[0] for key in whole.counts if whole.counts[key]} >= {
        "clipped", "outside", "null", "unseen",
    }  # fmt: skip
    for rows in (1, 7, n, n + 1):
        monkeypatch.setattr("dmondrian.data.encode.TILE_ROWS", rows)
        tiled = read_all(plan)
        assert tiled.X.tobytes() == whole.X.tobytes()
        assert tiled.counts == whole.counts


def test_infinite_feature_of_a_later_tile_is_named_by_its_row(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmondrian.data.encode.TILE_ROWS", 3)
    schema = make_plan(write({"c": [1.0, 2.0]})).schema
    path = write({"c": [1.5] * 7 + [-math.inf, math.inf]}, "new.parquet")
    with pytest.raises(DataError, match=r"'c' is infinite at .*new\.parquet, row 7"):
        read_all(make_scoring_plan(path, schema))


def test_values_outside_the_training_range_stay_outside_and_are_counted(write: Write) -> None:
    schema = make_plan(write({"c": [10.0, 20.0]})).schema
    path = write({"c": [0.0, 15.0, 40.0, 1e300]}, "new.parquet")
    encoded = read_all(make_scoring_plan(path, schema))
    assert encoded.X[:, 0].tolist() == [-1, 0.5, 3, 1e6]
    assert encoded.counts["outside:c"] == 3


def test_outsiders_are_counted_before_they_are_rounded(write: Write) -> None:
    schema = make_plan(write({"c": [0.0, 1.0]})).schema
    path = write({"c": [0.5, math.nextafter(1.0, 2.0), -5e-324]}, "new.parquet")
    encoded = read_all(make_scoring_plan(path, schema))
    assert encoded.X[:, 0].tolist() == [0.5, 1, 0]
    assert encoded.counts["outside:c"] == 2


def test_outsiders_too_far_for_floats_are_held(write: Write) -> None:
    schema = make_plan(write({"c": [1.7e308, 1.6e308], "d": [0.0, 5e-324]})).schema
    path = write({"c": [-1.7e308, 1.7e308], "d": [1.0, -1.0]}, "new.parquet")
    X = read_all(make_scoring_plan(path, schema)).X
    assert X.tolist() == [[-1e6, 1e6], [1, -1e6]]


def test_unseen_level_is_other_and_counted(write: Write) -> None:
    schema = make_plan(write({"c": ["a", "b"]})).schema
    plan = make_scoring_plan(write({"c": ["z", "a", None]}, "new.parquet"), schema)
    encoded = read_all(plan)
    assert encoded.X.tolist() == [[0, 0, 0.5], [0.5, 0, 0], [0, 0, 0]]
    assert encoded.counts["unseen:c"] == 1
    assert encoded.counts["null:c"] == 1


def test_dictionaries_that_differ_by_row_group_and_file_give_one_vocabulary(write: Write) -> None:
    for i, values in enumerate((["b", "a", "a", "c"], ["c", "d", "b", "b"])):
        column = pa.array(values).dictionary_encode()
        path = write({"c": column}, f"many/{i}.parquet", row_group_size=2)
    plan = make_plan(path.parent)
    assert plan.schema.feature_names == ["c=a", "c=b", "c=c", "c=d", "c=<other>"]
    assert read_all(plan).X.argmax(axis=1).tolist() == [1, 0, 0, 2, 2, 3, 1, 1]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.none() | st.floats(width=64, allow_infinity=False), min_size=2, max_size=20),
    size=st.integers(1, 20),
)
def test_numbers_keep_their_order_within_the_unit_range(
    tmp_path: Path, values: list[float | None], size: int
) -> None:
    path = tmp_path / "h.parquet"
    table = pa.table({"c": pa.array(values, pa.float64()), "one": range(len(values))})
    pq.write_table(table, path, row_group_size=size)
    plan = make_plan(path)
    encoded = read_all(plan)
    whole = tmp_path / "w.parquet"
    pq.write_table(table, whole)
    assert encoded.X.tobytes() == read_all(make_plan(whole)).X.tobytes()
    assert encoded.X.min() >= 0
    assert encoded.X.max() <= 1
    if "c" in plan.schema.feature_names:
        order = encoded.X[:, plan.schema.feature_names.index("c")]
        known = [i for i, v in enumerate(values) if v is not None and v == v]
        ranked = sorted(known, key=lambda i: float(values[i] or 0.0))
        assert np.all(np.diff(order[ranked]) >= 0)
