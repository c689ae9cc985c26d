"""Times on circles: hour of the day, day of the week, day of the year by sine and cosine."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian.data import Schema, as_asked, asks_the_same, make_plan, make_scoring_plan, read_block
from dmondrian.data.arrow_values import MICROS_PER_DAY, MOST_MICROS
from dmondrian.data.cyclic_parts import cyclic_part, on_circle
from dmondrian.data.encode import encode_features
from dmondrian.data.schema import CYCLIC_PARTS, Column
from dmondrian.errors import ParameterError, SchemaError
from tests.reference import circles

from .conftest import Write

PARTS = tuple(part for pair in CYCLIC_PARTS.values() for part in pair)
NAMES = [f"c.{part}" for part in PARTS]
MOMENTS = [
    datetime(1899, 12, 31, 23, 59, 59),
    datetime(1970, 1, 1),
    datetime(2023, 12, 31, 18, 0, 0, 1),
    datetime(2024, 2, 29, 12, 30, 15, 250000),
    datetime(2024, 12, 31, 6),
    datetime(2100, 6, 6, 17, 59, 59, 999999),
]


def encoded(moments: list[Any], kind: Any = None) -> np.ndarray:
    """Return the cyclic parts of times, float32 [n, 6], and whether they are null."""
    column = Column("c", "time", "timestamp[us]", 0, 1, PARTS, has_nulls=True)
    data = pa.array(moments, kind)
    return encode_features(Schema((column,)), {"c": data}, len(moments), {}, str)


@given(st.lists(st.datetimes(), min_size=1, max_size=8))
def test_parts_are_those_of_the_reference(moments: list[datetime]) -> None:
    wanted = np.array([circles.cyclic_parts(moment) for moment in moments])
    np.testing.assert_array_equal(encoded(moments, pa.timestamp("us"))[:, :6], wanted)


@given(st.integers(1, 2**50).flatmap(lambda t: st.tuples(st.integers(0, t - 1), st.just(t))))
def test_a_point_of_any_circle_is_that_of_the_reference(place: tuple[int, int]) -> None:
    at, turn = np.array([place[0]]), place[1]
    found = [np.float32(on_circle(at, turn, is_cosine)[0]) for is_cosine in (False, True)]
    assert found == circles.on_circle(*place)


def test_points_are_equal_to_the_last_digits_where_a_part_is_nearly_nothing() -> None:
    for shift in (-(10**6), -1, 0, 1, 10**6):
        place = MICROS_PER_DAY * 3 // 4 + shift  # near 18:00, where 1 + sin is 0
        found = on_circle(np.array([place]), MICROS_PER_DAY, False)[0]
        assert np.float32(found) == circles.on_circle(place, MICROS_PER_DAY)[0]
        assert (found == 0.0) == (shift == 0)


def test_an_hour_before_midnight_is_near_an_hour_after_it() -> None:
    X = encoded([datetime(2024, 5, 6, 23), datetime(2024, 5, 7, 1), datetime(2024, 5, 7, 12)])
    near, far = (np.linalg.norm(X[0, :2] - X[row, :2]) for row in (1, 2))
    assert near < 0.13 < 0.48 < far
    week = encoded([datetime(2024, 5, day) for day in range(5, 12)])[:, 2:4]  # from a Sunday on
    apart = np.linalg.norm(week - np.roll(week, 1, axis=0), axis=1)
    np.testing.assert_allclose(apart, 0.5 * np.sin(np.pi / 7), rtol=1e-6)
    X = encoded([date(2024, 12, 31), date(2025, 1, 1), date(2024, 7, 1)])
    assert np.linalg.norm(X[0, 4:6] - X[1, 4:6]) < 0.005
    assert np.linalg.norm(X[0, 4:6] - X[2, 4:6]) > 0.49


def test_a_plan_has_cyclic_times_beside_others(write: Write, tmp_path: Path) -> None:
    columns = {"c": pa.array([*MOMENTS, None]), "t": pa.array([*MOMENTS, MOMENTS[0]])}
    source = write({**columns, "y": list("ababaab")})
    plain = make_plan(source, target="y")
    plan = make_plan(source, target="y", cyclic=["c"])
    others = ["t", "t.hour", "t.weekday", "t.month"]
    assert plan.schema.feature_names == ["c", *NAMES, "c=<null>", *others]
    assert "hour_sin, hour_cos, weekday_sin, " in plan.schema.describe()
    assert plan.digest != plain.digest
    assert make_plan(source, target="y", cyclic=[]).digest == plain.digest
    assert make_plan(source, target="y", cyclic=[]).asked == plain.asked
    X = read_block(plan, plan.blocks[0]).X
    np.testing.assert_array_equal(X[:6, 1:7], [circles.cyclic_parts(m) for m in MOMENTS])
    assert X[6, :8].tolist() == [0.5] + [0.25] * 6 + [1.0]  # the middle of each circle
    np.testing.assert_array_equal(X[:, 8:], read_block(plain, plain.blocks[0]).X[:, 5:])
    stored = json.loads(json.dumps(plan.schema.to_json()))
    assert Schema.from_json(stored) == plan.schema
    later = tmp_path / "later.parquet"
    zone = timezone(timedelta(hours=-5))
    new = [datetime(2031, 3, 3, 22, 30, tzinfo=zone)]
    table = pa.table({"t": MOMENTS[:1], "c": pa.array(new, pa.timestamp("ns", "-05:00"))})
    pq.write_table(table, later)
    scoring = make_scoring_plan(later, plan.schema)
    X = read_block(scoring, scoring.blocks[0]).X
    np.testing.assert_array_equal(X[0, 1:7], circles.cyclic_parts(new[0]))
    assert circles.cyclic_parts(new[0]) == circles.cyclic_parts(new[0].astimezone(UTC))


@pytest.mark.parametrize(
    ("moments", "parts"),
    [
        ([datetime(2024, 1, 1, 1), datetime(2024, 1, 1, 2)], NAMES[:2]),
        ([datetime(2024, 1, 1), datetime(2024, 1, 3)], NAMES[2:4]),
        ([date(2024, 1, 1), date(2024, 3, 1)], NAMES[2:]),
    ],
)
def test_parts_that_do_not_vary_are_left_out(
    write: Write, moments: list[Any], parts: list[str]
) -> None:
    schema = make_plan(write({"c": pa.array(moments)}), cyclic="c").schema
    assert schema.feature_names == ["c", *parts]
    (column,) = schema.columns
    (plain,) = make_plan(write({"c": pa.array(moments)})).schema.columns
    assert (column.is_cyclic, plain.is_cyclic) == (True, False)
    assert column.as_cyclic(False) == plain
    assert plain.as_cyclic() == plain.as_cyclic().as_cyclic() == column


def test_a_run_is_known_by_what_its_job_asks_where_the_data_are_gone(write: Write) -> None:
    source = write({"c": MOMENTS, "n": range(6)})
    plans = {circles: make_plan(source, cyclic=circles) for circles in ((), ("c",))}
    for there, plan in plans.items():
        for here in plans:
            asked = as_asked(replace(plan, asked=None), {"cyclic": here})
            assert asked.schema == plans[here].schema
            assert (asked.digest == plan.digest) == (here == there)
            assert asks_the_same(plan, {"cyclic": here}) == (here == there)


def test_the_ends_of_time_are_points_too() -> None:
    ends = np.array([-MOST_MICROS, MOST_MICROS])
    for part in PARTS:
        found = cyclic_part(part, ends)
        assert ((found >= 0.0) & (found <= 0.5)).all()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"cyclic": ["n"]}, SchemaError, "'n' is named in `cyclic`, which is for times"),
        ({"cyclic": ["d"]}, SchemaError, r"no column is called 'd' \(given as cyclic\)"),
        ({"cyclic": ["c"], "categorical": ["c"]}, ParameterError, "'c' is given as `cyclic`, and"),
        ({"cyclic": ["c"], "exclude": ["c"]}, ParameterError, "'c' is given as `cyclic`, and"),
    ],
)
def test_what_is_no_time_is_refused(
    write: Write, given: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make_plan(write({"c": MOMENTS, "n": range(6)}), **given)
