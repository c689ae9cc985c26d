"""Columns left out because they did not vary are warned of where other files have other values."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.data import extend_plan, make_plan, make_scoring_plan
from dmondrian.data.constants import MOST_NAMED

from .conftest import Write

N = 40
X = np.arange(N) / 7
NOON, ONE = datetime(2024, 1, 1, 12), datetime(2024, 1, 2)

# what a column was, and what it is later
VARIED: dict[str, tuple[Any, Any]] = {
    "number": ([7] * N, [7] * (N - 1) + [8]),
    "another number": ([7.5] * N, [8.5] * N),
    "truth": ([True] * N, [False] * N),
    "text": (["US"] * N, ["US"] * (N - 1) + ["FR"]),
    "another text": (["US"] * N, ["FR"] * N),
    "no text": (pa.nulls(N, pa.string()), [None] * (N - 1) + ["FR"]),
    "category": (pa.array(["US"] * N).dictionary_encode(), ["FR"] * N),
    "later a category": (["US"] * N, pa.array(["FR"] * N).dictionary_encode()),
    "no number": (pa.nulls(N, pa.float64()), [None] * (N - 1) + [1.0]),
    "no type": (pa.nulls(N), [None] * (N - 1) + [1]),
    "time": ([NOON] * N, [NOON] * (N - 1) + [ONE]),
    "quoted": (["it's (so)"] * N, ["it's"] * N),
}
SAME: dict[str, tuple[Any, Any]] = {
    "number": ([7] * N, [7] * N),
    "stored otherwise": ([7] * N, [7.0] * N),
    "zero": ([0.0] * N, [-0.0] * N),
    "null beside": ([7] * N, [7] * (N - 1) + [None]),
    "text": (["US"] * N, ["US"] * N),
    "long text": (["US" * 50] * N, ["US" * 50] * N),
    "text beyond ASCII": (["Übergrößenträger" * 2] * N, ["Übergrößenträger" * 2] * N),
    "all null": (pa.nulls(N, pa.string()), pa.nulls(N, pa.string())),
    "all NaN": ([float("nan")] * N, [float("nan")] * N),
    "time": ([NOON] * N, [NOON] * N),
}


def later(write: Write, was: Any, now: Any, **options: Any) -> tuple[Path, Path]:
    first = write({"x": X, "c": was}, "data/a.parquet")
    return first, write({"x": X, "c": now}, "data/b.parquet", row_group_size=9, **options)


@pytest.mark.parametrize("what", VARIED)
def test_a_constant_that_varies_later_is_warned_of(write: Write, what: str) -> None:
    first, second = later(write, *VARIED[what])
    plan = make_plan(first)
    assert dict(plan.schema.left_out).keys() == {"c"}
    reported = r"a column left out .* has other values now: 'c' \((always|all null).*b\.parquet\)"
    with pytest.warns(UserWarning, match=reported) as caught:
        scored = make_scoring_plan(second, plan.schema)
    assert scored.notes == (str(caught[0].message),)
    with pytest.warns(UserWarning, match=reported):
        longer = extend_plan(plan, first.parent)
    assert longer.notes[-1] == scored.notes[0]
    assert longer.schema == plan.schema


@pytest.mark.parametrize("what", SAME)
def test_one_that_stays_what_it_was_is_not(write: Write, what: str) -> None:
    first, second = later(write, *SAME[what])
    plan = make_plan(first)
    assert dict(plan.schema.left_out).keys() == {"c"}
    assert make_scoring_plan(second, plan.schema).notes == ()
    extend_plan(plan, first.parent)


def test_what_footers_lack_is_not_known(write: Write) -> None:
    first, second = later(write, *VARIED["number"], write_statistics=False)
    assert make_scoring_plan(second, make_plan(first).schema).notes == ()
    first, second = later(write, [7] * N, [8] * N)
    schema = make_plan(first, categorical=["c"]).schema  # '7', a text, is no bound of numbers
    assert make_scoring_plan(second, schema).notes == ()
    gone = write({"x": X}, "c.parquet")
    assert make_scoring_plan(gone, schema).notes == ()


@pytest.mark.parametrize(("was", "now"), [("2020", "2021"), ("fr", "us"), ("2020-01-01", None)])
def test_a_folder_key_that_was_constant(tmp_path: Path, was: str, now: str | None) -> None:
    first = tmp_path / f"key={was}"
    first.mkdir()
    pq.write_table(pa.table({"x": X}), first / "a.parquet")
    plan = make_plan(tmp_path)
    assert dict(plan.schema.left_out)["key"].startswith("constant")
    shutil.copy2(first / "a.parquet", first / "b.parquet")
    assert "varied" not in str(extend_plan(plan, tmp_path).notes[-1])
    if now is not None:
        (tmp_path / f"key={now}").mkdir()
        shutil.copy2(first / "a.parquet", tmp_path / f"key={now}" / "c.parquet")
        with pytest.warns(UserWarning, match=rf"'key' \(always '?{was}'?; .*key={now}"):
            extend_plan(plan, tmp_path)


def test_many_columns_have_one_warning(write: Write) -> None:
    names = [f"c{i}" for i in range(MOST_NAMED + 2)]
    first = write({"x": X, **dict.fromkeys(names, [1] * N)})
    schema = make_plan(first).schema
    second = write({"x": X, **dict.fromkeys(names, [2] * N)}, "b.parquet")
    with pytest.warns(UserWarning, match=r"'c7' \(always 1; .*\) and 2 more; .* at them") as caught:
        make_scoring_plan(second, schema)
    assert len(caught) == 1
