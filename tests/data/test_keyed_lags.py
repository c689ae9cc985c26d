"""Lags and differences of a keyed series are those of pandas, however rows come and restart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian import AMFRegressor, DataError, ParameterError, SchemaError
from dmondrian.data import BatchFiles, KeyedLags, LaggedBatches, batch_files, gives_batches
from dmondrian.distributed import train
from tests.distributed.conftest import worker_threads

N = 200


def series(n: int = N) -> pa.Table:
    draw = np.random.default_rng(1)
    price = np.round(draw.normal(size=n), 3)
    return pa.table(
        {
            "shop": pa.array(draw.integers(0, 6, n), mask=draw.random(n) < 0.1),
            "price": pa.array(price, mask=draw.random(n) < 0.1),
            "sold": draw.integers(0, 9, n),
            "word": pa.array(draw.choice(["a", "b"], n)).dictionary_encode(),
        }
    )


def cut(rows: pa.Table, ends: list[int]) -> list[pa.Table]:
    stops = [0, *sorted(ends), len(rows)]
    return [rows.slice(a, b - a) for a, b in pairwise(stops)]


def by_pandas(rows: pa.Table, column: str, lag: int, key: str | None, n_rows: int) -> pd.Series:
    """Return a lag as pandas has it; null where its row is more than n_rows rows back."""
    frame = rows.to_pandas().assign(row=range(len(rows)))
    groups = frame.assign(one=0).groupby(key or "one")
    is_near = frame["row"] - groups["row"].shift(lag) <= n_rows
    return groups[column].shift(lag).where(is_near)


def as_pandas(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(integer_object_nulls=True)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, N), max_size=6),
    st.sampled_from(["shop", None]),
    st.sampled_from([3, 17, 10**6]),
)
def test_lags_are_those_of_pandas(ends: list[int], key: str | None, n_rows: int) -> None:
    rows = series()
    lags = KeyedLags(["price", "sold", "word"], [1, 3], key=key, n_rows=n_rows)
    parts = []
    for at, part in enumerate(cut(rows, ends)):
        if at == 2:  # as another process goes on
            lags = KeyedLags.restored(lags.state())
        parts.append(lags.add(part.to_batches()[0] if len(part) and at % 2 else part))
    found = pa.concat_tables(parts)
    assert found.select(rows.column_names).equals(rows)
    assert len(lags.state()) <= n_rows
    for name in ("price", "sold", "word"):
        for lag in (1, 3):
            wanted = by_pandas(rows, name, lag, key, n_rows)
            lagged = pd.Series(found[f"lag_{lag}({name})"].to_pylist(), dtype=object)
            pd.testing.assert_series_equal(
                lagged.where(lagged.notna(), None),
                wanted.astype(object).where(wanted.notna(), None),
                check_names=False,
            )
            if name != "word":
                own = rows[name].to_pandas().astype(float)
                difference = found[f"{name}-lag_{lag}({name})"].to_pandas().astype(float)
                wanted = own - wanted.astype(float)
                pd.testing.assert_series_equal(difference, wanted, check_names=False, rtol=0)
    assert "word-lag_1(word)" not in found.column_names


@pytest.mark.parametrize("n", [1, 49, 50, 51, 130])
def test_a_restart_anywhere_writes_the_same_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(batch_files, "FILE_ROWS", 50)

    def source(*ends: int) -> LaggedBatches:
        return LaggedBatches(cut(series(), list(ends)), "price", [1, 2], key="shop")

    for ends in ((7, 60), (n,), (3, 4, 180)):  # the rows come in other batches each time
        files = BatchFiles(source(*ends), str(tmp_path))
        files.take(n)
        files.drop(files.position.rows)  # learned rows are gone: lags are made without them
    files.take(10**6)
    whole = KeyedLags("price", [1, 2], key="shop").add(series())
    assert files.position.rows == N
    kept = [pq.read_table(file) for file in sorted(tmp_path.glob("*.parquet"))]
    behind = pa.concat_tables([one.replace_schema_metadata() for one in kept])
    assert behind.to_pylist() == whole.to_pylist()[N - len(behind) :]
    assert len(behind) >= N - 3 * n


def test_a_run_learns_lags(tmp_path: Path) -> None:
    rows = series().drop_columns("word")
    batches = LaggedBatches([rows.slice(0, 90), rows.slice(90)], "price", key="shop")
    assert gives_batches(batches)
    with worker_threads(1) as (_, client):
        run = train(
            AMFRegressor(1, random_state=0),
            batches,
            target="sold",
            run=tmp_path / "run",
            client=client,
        )
    names = [column.name for column in run.plan.schema.columns]
    assert names == ["shop", "price", "lag_1(price)", "price-lag_1(price)"]
    assert run.plan.n_rows == N


def test_batches_keep_their_offsets() -> None:
    rows = series()
    found = list(LaggedBatches([(0, 5, rows), None], "price"))
    assert found[0][:2] == (0, 5)
    assert found[0][2]["lag_1(price)"].to_pylist()[1:] == rows["price"].to_pylist()[:-1]
    assert found[1] is None


def test_some_columns_have_differences_and_one_of_nulls_has_no_type_yet() -> None:
    for columns in (["price", "sold"], ["sold", "price"]):
        lags = KeyedLags(columns, differences=["sold"])
        parts = [lags.add(pa.table({"price": p, "sold": s})) for p, s in
                 (([None], [1]), ([1.5], [3]), ([None], [None]), ([2.5], [4]))]  # fmt: skip
        assert [one for part in parts for one in part["lag_1(price)"].to_pylist()] == [
            None, None, 1.5, None,
        ]  # fmt: skip
        found = [one for part in parts for one in part["sold-lag_1(sold)"].to_pylist()]
        assert found == [None, 2.0, None, None]
        assert "price-lag_1(price)" not in lags.names
        assert set(parts[-1].column_names) == {"price", "sold", *lags.names}


def test_durations_are_in_seconds_and_keys_may_be_texts() -> None:
    rows = pa.table(
        {"k": pa.array(["a", "b", "a"]), "t": pa.array([1000, 0, 2500], pa.duration("ms"))}
    )
    found = KeyedLags("t", key="k").add(rows)
    assert found["t-lag_1(t)"].to_pylist() == [None, None, 1.5]
    assert found["lag_1(t)"].type == pa.duration("ms")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"columns": []}, "columns and key must be names"),
        ({"columns": ["price", 3]}, "columns and key must be names"),
        ({"columns": "shop", "key": "shop"}, "name a column twice"),
        ({"columns": "price", "lags": 0}, "integers of at least 1, got"),
        ({"columns": "price", "lags": [1, 1]}, "names a lag twice"),
        ({"columns": "price", "n_rows": True}, "integers of at least 1, got"),
        ({"columns": "price", "differences": ["sold"]}, "names 'sold', which is none of the"),
    ],
)
def test_settings_out_of_range_are_refused(given: dict[str, Any], words: str) -> None:
    for make in (KeyedLags, lambda **given: LaggedBatches([], **given)):
        with pytest.raises(ParameterError, match=words):
            make(**given)


def test_a_source_that_is_called_is_refused() -> None:
    with pytest.raises(ParameterError, match="a function of a position begins behind the rows"):
        LaggedBatches(lambda position: [], "price")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (pa.table({"x": [1]}), "rows have no column 'price', of which lags are made"),
        (pa.table([[1], [2]], ["price", "price"]), "rows have 2 columns 'price'"),
        (pa.table({"price": [1.0], "lag_1(price)": [2]}), r"a column 'lag_1\(price\)' already"),
        (
            pa.table({"price": ["a"]}),
            "column price, .* is string, and was double in the rows before",
        ),
    ],
)
def test_rows_of_other_columns_are_refused(rows: pa.Table, words: str) -> None:
    lags = KeyedLags("price")
    lags.add(pa.table({"price": [1.5]}))
    with pytest.raises(SchemaError, match=words):
        lags.add(rows)


def test_a_key_of_fractions_is_refused() -> None:
    with pytest.raises(SchemaError, match="the key 'sold' is double: expected whole numbers"):
        KeyedLags("price", key="sold").add(pa.table({"price": [1], "sold": [0.5]}))


def test_a_table_that_is_no_state_is_refused() -> None:
    with pytest.raises(DataError, match="no state of lags"):
        KeyedLags.restored(series())


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        (pa.array([3, 5]), pa.array([7.0, np.nan]), [None, 7]),
        (pa.array([3, 5]), pa.array([7, 9], pa.int32()), [None, 7]),
        (pa.array([0.5, 5.0]), pa.array([7, 9]), [None, 7.0]),
        (pa.array(["a", "b"]), pa.array(["c", "d"], pa.large_string()), [None, "c"]),
        (pa.array(["a", "b"]), pa.array(["c", "d"]).dictionary_encode(), [None, "c"]),
    ],
)
def test_values_take_the_type_of_those_before_them(
    first: pa.Array, later: pa.Array, expected: list[Any]
) -> None:
    lags = KeyedLags("x", 1, key="k", differences=False)
    lags.add(pa.table({"k": [1, 2], "x": first}))
    found = lags.add(pa.table({"k": pa.array([3, 3], pa.int32()), "x": later}))["lag_1(x)"]
    assert found.type == first.type
    assert found.to_pylist() == expected
    missing = lags.add(pa.table({"k": [3], "x": first[:1]}))["lag_1(x)"].to_pylist()
    assert missing == [None if later[1].as_py() != later[1].as_py() else later[1].as_py()]


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (pa.array([7.5]), "was int64 .*would be truncated|Float value 7.5"),
        (pa.array(["7"]), "another kind of values"),
        (pa.array([2**63], pa.uint64()), "not in range"),
    ],
)
def test_values_that_the_type_before_has_not_are_refused(later: pa.Array, why: str) -> None:
    lags = KeyedLags("x", 1)
    lags.add(pa.table({"x": [3, 5]}))
    with pytest.raises(SchemaError, match=why):
        lags.add(pa.table({"x": later}))
