"""Rows with lags are those of one pass by pandas, wherever processes end and files are divided."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian import DataError, ParameterError, PlanError, SchemaError
from dmondrian.checkpoint.stream import LAGS
from dmondrian.data import Schema, lagged_files, make_plan
from dmondrian.data.lag_settings import checked_lags, lags_of, without_lags
from dmondrian.data.lagged_files import LaggedFiles
from dmondrian.store import Store, open_store
from tests.flipped import flip_value

N = 300
WANTED = {"columns": ["price", "sold", "word"], "lags": [1, 3], "key": "shop", "n_rows": 40}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lagged_files, "FILE_ROWS", 25)


def series(n: int = N) -> pa.Table:
    draw = np.random.default_rng(2)
    return pa.table(
        {
            "shop": pa.array(draw.integers(0, 6, n), mask=draw.random(n) < 0.1),
            "price": pa.array(np.round(draw.normal(size=n), 3), mask=draw.random(n) < 0.1),
            "sold": draw.integers(0, 9, n),
            "word": pa.array(draw.choice(["a", "b"], n)).dictionary_encode(),
            "when": pa.array(np.arange(n), pa.timestamp("ms")),
        }
    )


def put(
    rows: pa.Table, folder: Path, ends: list[int], group: int = 10, first: int | None = None
) -> list[Path]:
    """Write rows as files that end at these rows, in the order of their names."""
    folder.mkdir(exist_ok=True)
    there = len(list(folder.glob("*.parquet"))) if first is None else first
    found = []
    for number, (start, stop) in enumerate(pairwise([0, *sorted({*ends, len(rows)})])):
        path = folder / f"{there + number:03d}.parquet"
        pq.write_table(rows.slice(start, stop - start), path, row_group_size=group)
        found.append(path)
    return found


def files(folder: Path, target: str | None = "sold", **other: Any) -> LaggedFiles:
    time = other.pop("time", None)
    return LaggedFiles(
        folder, checked_lags(WANTED | other, target), target=target, time_column=time
    )


def stored(folder: Path) -> pa.Table:
    parts = [pq.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    return pa.concat_tables([part.replace_schema_metadata() for part in parts])


def by_pandas(rows: pa.Table) -> pd.DataFrame:
    """Return rows with lags as pandas has them, null where a row is too old."""
    frame = rows.to_pandas(integer_object_nulls=True)
    groups = frame.assign(row=range(len(frame))).groupby("shop")
    added = frame.copy()
    for name in ("price", "sold", "word"):
        for lag in (1, 3):
            is_near = pd.Series(range(len(frame))) - groups["row"].shift(lag) <= 40
            lagged = groups[name].shift(lag).where(is_near)
            added[f"lag_{lag}({name})"] = lagged
            if name == "price":
                added[f"{name}-lag_{lag}({name})"] = frame[name].astype(float) - lagged
    return added


def check(found: pa.Table, rows: pa.Table) -> None:
    wanted = by_pandas(rows)
    assert found.column_names == list(wanted)
    for name in wanted:
        a = pd.Series(found[name].to_pylist(), dtype=object)
        b = wanted[name].astype(object)
        pd.testing.assert_series_equal(
            a.where(a.notna(), None), b.where(b.notna(), None), check_names=False
        )


class KilledError(BaseException):
    """Ends a process, as far as the store can tell."""


@settings(deadline=None, max_examples=20)
@given(
    ends=st.lists(st.integers(1, N - 1), max_size=5),
    stops=st.lists(st.integers(1, N - 1), max_size=3),
    kills=st.lists(st.integers(1, 12), max_size=4),
    group=st.sampled_from([7, 10, 64]),
    are_deleted=st.booleans(),
)
@pytest.mark.thorough
def test_any_division_and_any_end_of_a_process_gives_the_same_rows(
    ends: list[int], stops: list[int], kills: list[int], group: int, are_deleted: bool
) -> None:
    rows = series()
    with tempfile.TemporaryDirectory() as place:
        data, out = Path(place) / "data", Path(place) / "out"
        left = iter(kills)
        for start, stop in pairwise([0, *sorted(set(stops)), N]):
            part = rows.slice(start, stop - start)
            fresh = put(part, data, [e - start for e in ends if start < e < stop], group, start)
            for n in (*left, None) if stop == N else (next(left, None), None):
                with killed_at(n):
                    files(out).take(data)
            files(out).drop(stop)
            if are_deleted:  # what is written is not read again
                for path in fresh:
                    path.unlink()
                put(rows.slice(0, 0), data, [], first=999)  # a folder without any file is refused
        check(stored(out), rows)
        sizes = [
            s
            for a, b in pairwise([0, *sorted({*ends, *stops} - {0}), N])
            for s in cut(b - a, group)
        ]
        groups = [pq.read_metadata(file) for file in sorted(out.glob("*.parquet"))]
        assert [m.row_group(i).num_rows for m in groups for i in range(m.num_row_groups)] == sizes


def cut(n: int, group: int) -> list[int]:
    return [min(group, n - at) for at in range(0, n, group)]


@contextmanager
def killed_at(n: int | None) -> Iterator[None]:
    """End the process at the n-th object that is written."""
    left, put = n, Store._put

    def dying(store: Store, *arguments: Any) -> None:
        nonlocal left
        if left is not None:
            left -= 1
            if left <= 0:
                raise KilledError
        put(store, *arguments)

    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        patch.setattr(Store, "_put", dying)
        yield


def test_a_file_that_is_mended_is_read_again(tmp_path: Path) -> None:
    rows, out = series(), tmp_path / "out"
    put(rows.slice(0, 100), tmp_path / "data", [50])
    files(out).take(tmp_path / "data")
    wrong = put(rows.slice(200, 50), tmp_path / "data", [])[0]
    files(out).take(tmp_path / "data")
    pq.write_table(rows.slice(100, 200), wrong)
    (out / "000000000000130.parquet").unlink()
    with pytest.raises(PlanError, match=r"002\.parquet changed"):
        files(out).take(tmp_path / "data")
    for name in out.glob("0000000000001*.parquet"):
        name.unlink()
    assert files(out).take(tmp_path / "data") == 200
    check(stored(out), rows)


def test_rows_are_needed_as_far_as_lags_reach(tmp_path: Path) -> None:
    rows, out = series(), tmp_path / "out"
    put(rows.slice(0, 200), tmp_path / "data", [])
    files(out).take(tmp_path / "data")
    for state in (out / "_state").iterdir():
        state.unlink()
    (out / "000000000000000.parquet").unlink()  # too old
    put(rows.slice(200), tmp_path / "data", [])
    files(out).take(tmp_path / "data")
    check(pa.concat_tables([by(rows).slice(0, 30), stored(out)]), rows)
    for state in (out / "_state").iterdir():
        state.unlink()
    (out / "000000000000260.parquet").unlink()
    with pytest.raises(DataError, match=r"lacks 000000000000260\.parquet"):
        follow(out, tmp_path / "data" / "000.parquet", tmp_path / "scored")


def test_a_damaged_state_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A flipped bit of it was another lag, and a cut state a traceback."""
    rows = series()
    put(rows.slice(0, 200), tmp_path / "data", [])
    files(tmp_path / "first").take(tmp_path / "data")
    put(rows.slice(200), tmp_path / "data", [])
    n_columns = len(pq.read_schema(next((tmp_path / "first" / "_state").iterdir())))
    damages = [lambda data, k=k: flip_value(data, k) for k in range(n_columns)]
    for number, damage in enumerate([*damages, lambda data: data[:-9], lambda _: b""]):
        out = Path(shutil.copytree(tmp_path / "first", tmp_path / str(number)))
        for state in (out / "_state").iterdir():
            state.write_bytes(damage(state.read_bytes()))
        caplog.clear()
        files(out).take(tmp_path / "data")
        assert "is damaged, so earlier rows are read" in caplog.text
        check(stored(out), rows)


def by(rows: pa.Table) -> pa.Table:
    asked = checked_lags(WANTED, "sold")
    return lags_of(asked, "sold").add(rows)


def follow(out: Path, data: Any, place: Path) -> list[str]:
    return files(out).follow_on(data, open_store(place))


def test_rows_that_follow_on_have_the_lags_of_those_before(tmp_path: Path) -> None:
    rows, out = series(), tmp_path / "out"
    put(rows.slice(0, 200), tmp_path / "data", [110])
    files(out).take(tmp_path / "data")
    later = put(rows.slice(200), tmp_path / "later", [60])
    copy = tmp_path / "copy.parquet"
    copy.write_bytes((tmp_path / "data" / "001.parquet").read_bytes())
    found = follow(out, [later[0], copy, later[1]], tmp_path / "scored")
    assert [Path(uri).parent.name for uri in found] == ["scored"] * 2 + ["out"] * 3 + ["scored"] * 2
    own = [uri for uri in found if Path(uri).parent.name == "out"]
    new = [uri for uri in found if uri not in own]
    check(pa.concat_tables([by(rows).slice(0, 200), read(new)]), rows)
    assert read(own).equals(stored(out).slice(110))
    stamps = [Path(uri).stat().st_mtime_ns for uri in new]
    follow(out, [later[0], copy, later[1]], tmp_path / "scored")
    assert [Path(uri).stat().st_mtime_ns for uri in new] == stamps
    Path(own[1]).unlink()
    with pytest.raises(
        DataError, match=r"copy\.parquet is among the data of the run, and .* lacks"
    ):
        follow(out, copy, tmp_path / "scored")


def test_files_of_the_same_bytes_are_all_scored(tmp_path: Path) -> None:
    rows, out = series(60), tmp_path / "out"
    (first,) = put(rows, tmp_path / "data", [])
    twin = first.with_name("001.parquet")
    twin.write_bytes(first.read_bytes())
    files(out).take(tmp_path / "data")
    assert read(follow(out, tmp_path / "data", tmp_path / "scored")).equals(stored(out))
    assert read(follow(out, twin, tmp_path / "scored")).equals(stored(out).slice(60))
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(first.read_bytes())
    found = follow(out, [first, copy], tmp_path / "scored")
    assert len(set(found)) == len(found)
    both = read(found)
    assert both.slice(0, 60).equals(stored(out).slice(0, 60))
    assert both.slice(60).equals(both.slice(0, 60))


def read(uris: list[str]) -> pa.Table:
    return pa.concat_tables([pq.read_table(uri).replace_schema_metadata() for uri in uris])


def test_each_file_names_the_rows_that_it_is_made_of(tmp_path: Path) -> None:
    rows, out = series(), tmp_path / "out"
    put(rows.slice(0, 200), tmp_path / "data", [110])
    files(out).take(tmp_path / "data")
    files(out).take(put(rows.slice(200, 40), tmp_path / "data", [])[0].parent)
    later = put(rows.slice(240), tmp_path / "later", [30])
    copies = [tmp_path / "copy.parquet", tmp_path / "twin.parquet"]
    for copy in copies:
        copy.write_bytes((tmp_path / "data" / "001.parquet").read_bytes())
    lagged = files(out)
    found = lagged.follow_on([copies[0], *later, copies[1]], open_store(tmp_path / "scored"))
    own = [str(path) for path in sorted(out.glob("*.parquet"))]
    for uris, asked, wanted in (
        (found, lagged, [copies[0], *later, copies[1]]),
        (own, files(out), sorted((tmp_path / "data").glob("*"))),  # as another process finds it
    ):
        seen: dict[str, int] = {}
        for uri in uris:
            origin = asked.origin(uri)
            assert origin is not None
            assert origin.first == seen.get(origin.uri, 0)
            there = pq.read_table(uri).select(rows.column_names).to_pylist()
            its = pq.read_table(origin.uri).slice(origin.first, len(there)).to_pylist()
            assert there == its
            seen[origin.uri] = origin.first + len(there)
        assert seen == {str(path): pq.read_metadata(path).num_rows for path in wanted}
    assert lagged.origin(str(later[0])) is None
    assert lagged.origin(f"{out}/000000000000007.parquet") is None


def test_errors_name_the_files_of_the_data(tmp_path: Path) -> None:
    rows, out = series(60), tmp_path / "out"
    (path,) = put(rows, tmp_path / "data", [])
    files(out).take(path)
    place = f"{out}/000000000000030.parquet"
    for error, words in (
        (DataError(f"no label at {place}, row 4: why"), f"no label at {path}, row 34: why"),
        (SchemaError(f"{place}: 'x' is text"), f"{path}: 'x' is text"),
        (
            DataError(f"{place} cannot be decoded"),
            f"{place} cannot be decoded. {place} is made of {path}, from its row 30 on, with lags",
        ),
        (DataError(f"at {out}/notes, row 4"), f"at {out}/notes, row 4"),
        (PlanError(f"{out}/{7:015d}.parquet is gone"), f"{out}/{7:015d}.parquet is gone"),
    ):
        with pytest.raises(type(error)) as found, files(out).errors_of_data():
            raise error
        assert str(found.value) == words
        assert type(found.value) is type(error)


def test_nothing_follows_on_without_rows(tmp_path: Path) -> None:
    put(series(), tmp_path / "data", [])
    with pytest.raises(DataError, match="has no rows, and lags of new rows begin"):
        follow(tmp_path / "out", tmp_path / "data", tmp_path / "scored")


def test_it_ends_when_asked_to_and_goes_on(tmp_path: Path) -> None:
    put(series(), tmp_path / "data", [])
    asked = iter([False, True])
    with pytest.raises(KeyboardInterrupt, match="stopped with 60 of 300 rows written with lags"):
        files(tmp_path / "out").take(tmp_path / "data", None, lambda: next(asked))
    assert files(tmp_path / "out").take(tmp_path / "data") == N - 60
    check(stored(tmp_path / "out"), series())


def test_a_file_that_is_not_taken_as_a_whole_is_not_scored(tmp_path: Path) -> None:
    (path,) = put(series(), tmp_path / "data", [])
    with killed_at(4):
        files(tmp_path / "out").take(path)
    with pytest.raises(DataError, match="has not got all of its rows yet: let it go on first"):
        follow(tmp_path / "out", path, tmp_path / "scored")


def test_rows_that_are_appended_to_a_table_are_taken_once(tmp_path: Path) -> None:
    table, rows = str(tmp_path / "table"), series().drop_columns("word")
    plain = {"columns": ["price", "sold"]}
    for start in (0, 100, 200):
        write_deltalake(table, rows.slice(start, 100), mode="append")
        if start == 200:
            write_deltalake(table, rows.slice(0, 0), mode="append")
        with killed_at(3 if start == 100 else None):
            files(tmp_path / "out", **plain).take(table)
        if start == 200:
            DeltaTable(table).optimize.compact()
            assert files(tmp_path / "out", **plain).take(table) == 0
    asked = checked_lags(WANTED | plain, "sold")
    assert stored(tmp_path / "out").to_pylist() == lags_of(asked, "sold").add(rows).to_pylist()


def test_a_run_within_its_data_does_not_read_itself(tmp_path: Path) -> None:
    rows = series()
    put(rows, tmp_path / "data", [])
    for n in (4, None):
        with killed_at(n):
            files(tmp_path / "data" / "run" / LAGS).take(tmp_path / "data")
    check(stored(tmp_path / "data" / "run" / LAGS), rows)


def test_folders_are_columns_and_keys(tmp_path: Path) -> None:
    for number, name in enumerate(["1", "zwei", "1"]):
        place = tmp_path / "data" / f"day={number}" / f"city={name}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"x": [10 * number, 10 * number + 1]}), place / "a.parquet")
        asked = checked_lags({"columns": "x", "key": "city"})
        LaggedFiles(tmp_path / "out", asked).take(tmp_path / "data")
        if number == 0:  # the first folders alone would be numbers
            for file in sorted((tmp_path / "out").glob("*.parquet")):
                file.unlink()
    found = stored(tmp_path / "out")
    assert found.schema.field("city").type == pa.string()
    assert found["day"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert found["lag_1(x)"].to_pylist() == [None, 0, None, 10, 1, 20]


def test_a_column_of_nulls_has_no_type_yet(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, values in enumerate([[None, None], [1.5, None], [None]]):
        pq.write_table(pa.table({"x": values}), folder / f"{number}.parquet")
    LaggedFiles(tmp_path / "out", checked_lags({"columns": "x"})).take(folder)
    parts = [pq.read_table(file) for file in sorted((tmp_path / "out").glob("*.parquet"))]
    lagged = [value for part in parts for value in part["lag_1(x)"].to_pylist()]
    assert lagged == [None, None, None, 1.5, None]


def test_the_index_of_a_frame_stays_one(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2, 3]}, index=[7, 8, 9])
    frame.to_parquet(tmp_path / "a.parquet")
    LaggedFiles(tmp_path / "out", checked_lags({"columns": "x"})).take(tmp_path / "a.parquet")
    names = [column.name for column in make_plan(tmp_path / "out").schema.columns]
    assert names == ["x", "lag_1(x)", "x-lag_1(x)"]


def test_rows_out_of_the_order_of_time_are_warned_of(tmp_path: Path) -> None:
    rows = series(60)
    put(rows.take([*range(30), 5, *range(30, 60)]), tmp_path / "data", [])
    with pytest.warns(UserWarning, match="1 row is earlier by 'when' than the row before"):
        files(tmp_path / "out", time="when").take(tmp_path / "data")
    files(tmp_path / "sorted", time="when").take(put(rows, tmp_path / "other", [20]))
    put(rows.slice(5, 3), tmp_path / "data", [], first=7)  # comes later
    with pytest.warns(UserWarning, match="1 row is earlier by 'when' than the row before"):
        files(tmp_path / "out", time="when").take(tmp_path / "data")


def test_other_settings_are_refused(tmp_path: Path) -> None:
    put(series(), tmp_path / "data", [])
    files(tmp_path / "out").take(tmp_path / "data")
    for other in ({"lags": 1}, {"n_rows": 41}, {"key": None}, {"target": "price"}):
        with pytest.raises(ParameterError, match=r"has rows with other lags \('price', 'sold', "):
            files(tmp_path / "out", **other).take(tmp_path / "data")
    (tmp_path / "out" / "mine.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"mine\.parquet was not written by this"):
        files(tmp_path / "out").take(tmp_path / "data")


def test_names_and_types_of_columns_are_checked(tmp_path: Path) -> None:
    put(series(), tmp_path / "data", [])
    with pytest.raises(SchemaError, match=r"no column is called 'prise' .*Did you mean 'price'"):
        files(tmp_path / "out", columns=["prise"]).take(tmp_path / "data")
    assert not list((tmp_path / "out").glob("*.parquet"))
    other = series().set_column(1, "price", pa.array(["a"] * N))
    pq.write_table(other, tmp_path / "data" / "9.parquet")
    with pytest.raises(SchemaError, match=r"9\.parquet: the column price, .*another kind"):
        files(tmp_path / "out").take(tmp_path / "data")
    without = put(series().drop_columns("sold"), tmp_path / "new", [])
    with pytest.raises(SchemaError, match="Lags of the target 'sold' are made of known labels"):
        follow(tmp_path / "out", without, tmp_path / "scored")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "lags has nothing; expected a mapping with 'columns'"),
        ({"columns": "a", "rows": 3}, "lags has 'columns', 'rows'; expected"),
        ("price", "lags has 'price'; expected a mapping"),
        ({"columns": "a", "differences": ["a"]}, "differences is .*; expected True or False"),
        ({"columns": "a", "lags": 0}, "integers of at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        checked_lags(given)


@pytest.mark.parametrize(
    ("lags", "delay", "words"),
    [
        ([3, 2], 3, "lags has 2, and columns the target 'y', whose labels come 3 rows together"),
        ([1], "7 days", "the target 'y', and labels come by the time delay='7 days'"),
        ([1], np.timedelta64(7, "D"), "labels come by the time"),
    ],
)
def test_labels_that_are_not_known_yet_are_no_lags(lags: list[int], delay: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        checked_lags({"columns": ["y"], "lags": lags}, "y", delay)
    assert checked_lags({"columns": ["x"], "lags": lags}, "y", delay)["lags"] == lags
    assert checked_lags({"columns": ["y"], "lags": [3, 4]}, "y", 3)["lags"] == [3, 4]


def test_the_label_is_in_no_difference() -> None:
    asked = checked_lags({"columns": ["x", "y"]}, "y")
    assert lags_of(asked, "y").names == ("lag_1(x)", "lag_1(y)", "x-lag_1(x)")
    added = lags_of(asked, "y").add(pa.table({"x": [1, 2], "y": [3, 4]}))
    assert added.column_names == ["x", "y", "lag_1(x)", "x-lag_1(x)", "lag_1(y)"]
    assert without_lags(Schema(()), asked) == Schema(())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Let no warning pass but those that a test asks for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield
