"""Rows are joined with labels that come later: each once, whatever ends the process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dmondrian.data import LabelJoin, joined_files
from dmondrian.errors import CorruptError, DataError, FencedError, ParameterError
from tests.killed import KilledError, kill_at


class Place:
    """Folders of rows, labels and joined rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, pa.Table] = {}  # files of joined rows that were seen
        for name in ("rows", "labels"):
            (folder / name).mkdir(parents=True)

    def rows(self, name: str, keys: Iterable[Any], **columns: Any) -> None:
        keys = _typed(keys)
        table = pa.table({"id": keys, "x": np.arange(len(keys)) + 0.5, "from": [name] * len(keys)})
        for key, values in columns.items():
            table = table.append_column(key, pa.array(values))
        file = self.folder / "rows" / f"{name}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(table, file)

    def labels(self, name: str, labels: dict[Any, Any] | list[tuple[Any, Any]]) -> None:
        pairs = list(labels.items()) if isinstance(labels, dict) else labels
        values = pa.array([y for _, y in pairs], pa.string())
        table = pa.table({"y": values, "id": _typed(key for key, _ in pairs)})
        pq.write_table(table, self.folder / "labels" / f"{name}.parquet")

    def join(self, **options: Any) -> LabelJoin:
        places = [str(self.folder / name) for name in ("rows", "labels", "joined")]
        return LabelJoin(*places, **{"key": "id", "target": "y", **options})

    def names(self) -> list[str]:
        """Files of joined rows that are there."""
        return [file.name for file in (self.folder / "joined").glob("*.parquet")]

    def joined(self) -> list[tuple[Any, ...]]:
        """Key, file of the row and label of the joined rows, in their order."""
        for file in (self.folder / "joined").glob("*.parquet"):
            self.written.setdefault(file.name, pq.read_table(file))
        tables = [table for _, table in sorted(self.written.items())]
        return [
            pair for t in tables
            for pair in zip(*(t[name].to_pylist() for name in ("id", "from", "y")), strict=True)
        ]  # fmt: skip


def _typed(keys: Iterable[Any]) -> pa.Array:
    return pa.array(listed := list(keys), None if listed else pa.int64())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_rows_stand_in_the_order_of_their_labels_with_all_their_columns(place: Place) -> None:
    join = place.join()
    assert join.look() == []
    place.rows("a", [1, 2, 3, 4])
    place.rows("b", [5, 6])
    place.labels("1", {6: "f", 1: "a", 3: "c"})
    (joined,) = join.look()
    assert (joined.rows, joined.waiting, joined.repeated, joined.rows_later) == (3, 0, 0, 4.0)
    assert joined.labels.endswith("1.parquet")
    assert joined.seconds_later is not None
    table = pq.read_table(place.folder / "joined" / joined.out)
    assert table.drop(["from"]).to_pydict() == {
        "id": [6, 1, 3], "x": [1.5, 0.5, 2.5], "y": ["f", "a", "c"],
    }  # fmt: skip
    assert join.look() == []


def test_a_label_waits_for_its_row_and_comes_once(place: Place) -> None:
    join = place.join()
    place.rows("a", [1, 2])
    place.labels("1", [(2, "b"), (9, "i"), (2, "again"), (None, "no key"), (1, None)])
    (joined,) = join.look()
    assert (joined.rows, joined.waiting, joined.repeated) == (1, 1, 3)
    place.rows("b", [9])
    place.labels("2", {1: "a", 2: "once more"})
    first, second = join.look()
    assert (first.rows, first.waiting, second.rows, second.repeated) == (1, 0, 1, 1)
    assert place.joined() == [(2, "a", "b"), (9, "b", "i"), (1, "a", "a")]


FILES = st.lists(
    st.tuples(st.sampled_from(["rows", "labels"]), st.lists(st.integers(0, 12), max_size=4)),
    max_size=11,
)


def by_hand(files: list[tuple[str, list[int]]]) -> list[tuple[int, str, str]]:
    """Join after each file that comes, one pair after the other."""
    rows: dict[int, str] = {}
    open_labels: list[tuple[int, str]] = []
    joined: list[tuple[int, str, str]] = []
    for number, (kind, keys) in enumerate(files):
        if kind == "rows":
            rows.update(dict.fromkeys(keys, f"{number}"))
        else:
            open_labels += [(key, f"{number}-{key}") for key in dict.fromkeys(keys)]
        left = []
        for key, label in open_labels:
            if key not in rows:
                left.append((key, label))
            elif key not in [pair[0] for pair in joined]:
                joined.append((key, rows[key], label))
        open_labels = left
    return joined


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=FILES,
    restarts=st.sets(st.integers(0, 11)),
    drops=st.dictionaries(st.integers(0, 11), st.integers(0, 3)),
)
def test_it_is_the_join_by_hand_and_restarts_and_deletions_change_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[str, list[int]]],
    restarts: set[int],
    drops: dict[int, int],
) -> None:
    seen: set[int] = set()
    for kind, keys in files:
        if kind == "rows":  # a key is of one row
            keys[:] = [key for key in dict.fromkeys(keys) if key not in seen]
            seen.update(keys)
    place = Place(tmp_path_factory.mktemp("place"))
    join = place.join()
    for number, (kind, keys) in enumerate(files):
        if kind == "rows":
            place.rows(f"{number}", keys)
        else:
            place.labels(f"{number}", [(key, f"{number}-{key}") for key in keys])
        if number in restarts:
            join = place.join()
        join.look()
        place.joined()  # before they may be deleted
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(joined_files, "MOST_FILES", 2)
            if number in drops:  # killed before an object is deleted or written
                kill_at(patch, drops[number])
            with suppress(KilledError):
                join.drop(place.names())
            if number in drops:
                join = place.join()
    assert place.joined() == by_hand(files)
    assert len(place.names()) <= 4 + len(drops)


def test_of_many_files_few_stay_and_rows_and_labels_are_known(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_files, "MOST_FILES", 3)
    join, most, n_bytes = place.join(n_rows=10), 0, []
    place.rows("wait", [1, 2])
    for number in range(60):
        keys = [10 * number + 10, 10 * number + 11]
        place.rows(f"r{number:04d}", keys)
        place.labels(f"l{number:04d}", dict.fromkeys(keys, "c"))
        if number > 5:
            for kind in "rows/r", "labels/l":
                (place.folder / f"{kind}{number - 5:04d}.parquet").unlink()
        join.look()
        place.joined()
        join.drop(place.names())
        there = [file for file in (place.folder / "joined").rglob("*") if file.is_file()]
        most = max(most, len(there))
        n_bytes.append(sum(file.stat().st_size for file in there))
        if number % 7 == 3:
            join = place.join(n_rows=10)
            place.labels("again", dict.fromkeys(keys, "another"))
            before = len(place.joined())
            join.look()
            assert len(place.joined()) == before
            (place.folder / "labels/again.parquet").unlink()
    assert most <= 6
    assert max(n_bytes[30:]) <= 1.1 * max(n_bytes[:30])
    assert len(place.joined()) == 120
    assert {f"{number:08d}.parquet" for number in range(1, 61)} == join.known
    names = sorted(place.names())
    join.drop([])
    assert sorted(place.names()) == names


def test_keys_that_are_damaged_are_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_files, "MOST_FILES", 2)
    join = place.join()
    for number in range(4):
        place.rows(f"{number}", [number])
        place.labels(f"{number}", {number: "a"})
        join.look()
        join.drop(place.names())
    (keys,) = (place.folder / "joined/_keys").iterdir()
    pq.write_table(pq.read_table(keys).slice(1), keys)
    with pytest.raises(CorruptError, match=r"00000001-00000002.parquet has no keys of joined rows"):
        place.join().look()
    pq.write_table(pa.table({"id": [1]}), keys)
    with pytest.raises(CorruptError, match="put it back from a copy"):
        place.join().look()


def test_a_row_gets_one_label_across_processes_that_write_at_once(place: Place) -> None:
    place.rows("a", [1, 2])
    one, other = place.join(), place.join()
    assert one.look() == other.look() == []
    place.labels("1", {1: "a"})
    one.look()
    place.labels("0", {2: "b"})
    with pytest.raises(FencedError, match="of another process"):
        other.look()
    assert place.joined() == [(1, "a", "a")]


def test_files_that_change_between_two_processes_are_named(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.rows("a", [1, 2, 3])
    place.labels("latest", {1: "a"})
    place.join().look()
    place.labels("latest", {2: "b", 3: "c"})
    with caplog.at_level(logging.WARNING, "dmondrian"):
        assert place.join().look() == []
    assert "latest.parquet was written again" in caplog.text


def test_rows_that_were_too_old_are_not_joined_after_a_restart(place: Place) -> None:
    join = place.join(n_rows=2)
    place.rows("a", [1, 2])
    place.labels("a", {1: "a", 2: "b"})
    join.look()
    place.labels("again", {1: "A", 2: "B"})
    assert join.look() == []
    for number in range(4):
        keys = [10 * number + 10, 10 * number + 11]
        place.rows(f"b{number}", keys)
        place.labels(f"b{number}", dict.fromkeys(keys, "c"))
        join.look()
    before = place.joined()
    assert place.join(n_rows=2).look() == []
    assert place.joined() == before


def test_a_first_look_that_fails_is_begun_anew(place: Place) -> None:
    place.rows("a", [1, 2])
    place.labels("1", {1: "a", 9: "i"})
    place.join().look()
    place.rows("b", [0.5])
    join = place.join()
    with pytest.raises(DataError, match="whole numbers"):
        join.look()
    place.rows("b", [3])
    place.labels("2", {1: "A"})
    assert join.look() == []
    assert place.joined() == [(1, "a", "a")]


def test_rows_and_labels_do_not_overlap(place: Place) -> None:
    place.rows("a", [1])
    (place.folder / "rows" / "labels").mkdir()
    pq.write_table(pa.table({"id": [1], "y": [0]}), place.folder / "rows" / "labels" / "1.parquet")
    join = LabelJoin(
        str(place.folder / "rows"), str(place.folder / "rows" / "labels"),
        place.folder / "joined", key="id", target="y",
    )  # fmt: skip
    with pytest.raises(ParameterError, match="among the rows and among the labels"):
        join.look()


@pytest.mark.parametrize(
    ("rows", "labels"),
    [("rows", "joined/labels/.."), ("", "labels"), ("rows", "*/*.parquet"), ("*/00*", "labels")],
)
def test_joined_rows_are_not_written_where_rows_or_labels_are_read(
    place: Place, rows: str, labels: str
) -> None:
    out = place.folder / "joined"
    with pytest.raises(ParameterError, match=r"joined rows would be read as (rows|labels)"):
        LabelJoin(f"{place.folder}/{rows}", f"{place.folder}/{labels}", out, key="id", target="y")
    assert not out.exists()


def test_what_pandas_makes_of_keys_and_labels_is_joined(place: Place) -> None:
    place.rows("a", [1, 2, 3])
    keys = pa.array([1.0, None, 2.0, 2.0])  # whole numbers, one of them missing
    labels = pa.array([0.5, 1.5, np.nan, 2.5])
    pq.write_table(pa.table({"id": keys, "y": labels}), place.folder / "labels" / "1.parquet")
    nothing = pa.table({"id": pa.array([], pa.float64()), "y": pa.array([], pa.null())})
    pq.write_table(nothing, place.folder / "labels" / "0.parquet")
    (joined,) = place.join().look()
    table = pq.read_table(place.folder / "joined" / joined.out)
    assert (table["id"].to_pylist(), table["y"].to_pylist()) == ([1, 2], [0.5, 2.5])
    assert (joined.waiting, joined.repeated) == (0, 2)


def test_views_of_texts_are_joined(place: Place) -> None:
    texts = pa.array(["a", "b"], pa.string_view())
    pq.write_table(pa.table({"id": texts, "x": texts}), place.folder / "rows" / "a.parquet")
    pq.write_table(pa.table({"id": texts, "y": texts}), place.folder / "labels" / "1.parquet")
    (joined,) = place.join().look()
    table = pq.read_table(place.folder / "joined" / joined.out)
    assert table.to_pydict() == {"id": ["a", "b"], "x": ["a", "b"], "y": ["a", "b"]}


def test_old_and_deleted_files_are_given_up_with_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    join = place.join(n_rows=3)
    place.rows("a", [1, 2])
    place.rows("b", [3, 4])
    assert join.look() == []
    place.rows("c", [5])
    with caplog.at_level(logging.WARNING, "dmondrian"):
        join.look()  # the newest three are of b and c
    assert "a.parquet, of which 2 rows wait for labels, is older than all" in caplog.text
    os.remove(place.folder / "rows" / "b.parquet")
    place.labels("1", {1: "a", 3: "b", 5: "c"})
    with caplog.at_level(logging.WARNING, "dmondrian"):
        (joined,) = join.look()
    assert "b.parquet, of which 2 rows wait for labels, is not there any more" in caplog.text
    assert (joined.rows, joined.waiting) == (1, 2)
    place.labels("2", {5: "again"})
    with caplog.at_level(logging.WARNING, "dmondrian"):
        assert join.look() == []
    assert "2.parquet has no label of a row that waits for one" in caplog.text


@pytest.mark.parametrize(
    ("keys", "others"),
    [
        (["a", "b"], pa.array(["b", "c"]).dictionary_encode()),
        (pa.array([1, 2], pa.int8()), pa.array([2, 3], pa.uint64())),
        (pa.array([1, 2], pa.timestamp("us")), pa.array([2, 3], pa.timestamp("us"))),
        (
            pa.array([Decimal(1), Decimal(2)], pa.decimal32(5, 0)),
            pa.array([Decimal(2), Decimal(3)], pa.decimal32(5, 0)),
        ),
    ],
    ids=["texts", "whole numbers", "times", "decimals"],
)
def test_keys_are_compared_whatever_their_width(place: Place, keys: Any, others: Any) -> None:
    pq.write_table(pa.table({"id": keys}), place.folder / "rows" / "a.parquet")
    pq.write_table(pa.table({"id": others, "y": [0.5, 1.5]}), place.folder / "labels" / "1.parquet")
    (joined,) = place.join().look()
    table = pq.read_table(place.folder / "joined" / joined.out)
    assert table["id"].to_pylist() == pa.array(keys).to_pylist()[1:]
    assert table["y"].to_pylist() == [0.5]


def test_what_cannot_be_joined_is_refused_and_named(place: Place) -> None:
    place.rows("a", [1, 2])
    place.labels("1", {"1": "a"})
    with pytest.raises(DataError, match=r"1\.parquet: the key 'id' has type large_string, and in"):
        place.join().look()
    os.remove(place.folder / "labels" / "1.parquet")
    pq.write_table(pa.table({"id": [1], "z": [0]}), place.folder / "labels" / "1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet has no column 'y'; it has 'id', 'z'"):
        place.join().look()
    os.remove(place.folder / "labels" / "1.parquet")
    place.rows("b", [0.5])
    with pytest.raises(DataError, match=r"b\.parquet: the key 'id' is not of whole numb"):
        place.join().look()
    os.remove(place.folder / "rows" / "b.parquet")
    place.rows("day=3/b", [3])
    with pytest.raises(DataError, match=r"the folder day=3 is a column"):
        place.join().look()
    os.remove(place.folder / "rows" / "day=3" / "b.parquet")
    place.rows("b", [3], y=[0])
    place.labels("2", {3: "c"})
    with pytest.raises(DataError, match="has a column 'y', as the labels have"):
        place.join().look()
    os.remove(place.folder / "rows" / "b.parquet")
    join = place.join()
    assert join.look() == []
    place.rows("a", [7, 8])
    place.labels("3", {1: "a"})
    with pytest.raises(DataError, match=r"a\.parquet was written again since it came"):
        join.look()
    for options in ({"key": "y"}, {"target": None}, {"n_rows": 0}, {"n_rows": 1.5}):
        with pytest.raises(ParameterError):
            place.join(**options)
    (place.folder / "joined" / "mine.parquet").write_bytes(b"")
    with pytest.raises(ParameterError, match=r"holds mine\.parquet; expected an empty or new"):
        place.join()
