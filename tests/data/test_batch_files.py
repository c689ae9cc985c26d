"""Batches of a Python iterable are written to files: each row once, in order, from any restart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import DataError, ParameterError
from dmondrian.data import BatchFiles, Position, batch_files, gives_batches
from dmondrian.errors import FencedError

N = 300


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_files, "FILE_ROWS", 50)


def table(n: int = N) -> pa.Table:
    random = np.random.default_rng(3)
    x = random.random(n)
    words = pa.array([*"abc", "long one"]).take(pa.array(random.integers(0, 4, n)))
    return pa.table(
        {
            "x": pa.array(x, mask=x < 0.2),
            "is": pa.array(random.random(n) < 0.5),
            "word": words.dictionary_encode(),
            "list": pa.array([[i] * (i % 3) for i in range(n)]),
            "text": words,
        }
    )


def cut(rows: pa.Table, *ends: int) -> list[pa.Table]:
    stops = [0, *ends, len(rows)]
    return [rows.slice(a, b - a) for a, b in pairwise(stops)]


def written(folder: Path) -> pa.Table:
    tables = [pq.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    return pa.concat_tables([one.replace_schema_metadata() for one in tables])


def is_equal(one: pa.Table, other: pa.Table) -> bool:
    return one.to_pylist() == other.to_pylist()


@pytest.mark.parametrize("ends", [(), (1, 2, 99), (49, 50, 51, 150)])
def test_rows_are_written_once_however_cut(tmp_path: Path, ends: tuple[int, ...]) -> None:
    files = BatchFiles(cut(table(), *ends), str(tmp_path))
    assert files.take(10**6) == N
    assert files.is_over
    assert is_equal(written(tmp_path), table())
    assert BatchFiles(cut(table(), 7), str(tmp_path)).position == Position(N)


@pytest.mark.parametrize("ends", [(), (1, 2, 99), (49, 50, 51, 150, 299)])
def test_rows_that_come_again_are_compared(tmp_path: Path, ends: tuple[int, ...]) -> None:
    BatchFiles(cut(table(), 60, 130)[:2], str(tmp_path)).take(10**6)
    assert BatchFiles(cut(table(), *ends), str(tmp_path)).take(10**6) == N - 130
    assert is_equal(written(tmp_path), table())


@pytest.mark.parametrize("column", ["x", "is", "word", "list", "text"])
def test_other_rows_are_refused(tmp_path: Path, column: str) -> None:
    BatchFiles(cut(table(), 60, 130), str(tmp_path)).take(10**6)
    rows = table()
    place = rows.column_names.index(column)
    values = rows[column].to_pylist()
    values[40], values[41] = values[41], None
    kind = rows[column].type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    changed = pa.array(values, plain)
    changed = changed.dictionary_encode() if plain != kind else changed
    files = BatchFiles([rows.set_column(place, column, changed)], str(tmp_path))
    with pytest.raises(DataError, match="are others than those"):
        files.take(10**6)
    with pytest.raises(DataError, match=r"ended after 120 rows.*has 300"):
        BatchFiles([rows.slice(0, 120)], str(tmp_path)).take(10**6)
    assert is_equal(written(tmp_path), table())


def partitions(position: Position) -> Iterator[Any]:
    """Rows of a table in two partitions in turn, ten at a time, with a gap in one of them."""
    rows = table()
    for at in range(0, N, 10):
        partition, offset = at // 10 % 2, at // 20 * 10
        offset += 1000 * (partition and at >= 100)
        if offset >= position.offsets.get(partition, 0):
            yield partition, offset, rows.slice(at, 10)


def test_a_source_begins_where_it_is_asked_to(tmp_path: Path) -> None:
    asked: list[Position] = []

    def source(position: Position) -> Iterator[Any]:
        asked.append(position)
        for number, item in enumerate(partitions(position)):
            if number == 9 and len(asked) == 1:
                raise OSError("the line broke")
            if number == 7 and len(asked) == 2:
                yield None
            yield item

    files = BatchFiles(source, str(tmp_path))
    with pytest.raises(OSError, match="broke"):
        files.take(10**6)
    files = BatchFiles(source, str(tmp_path))  # whoever died
    assert files.take(10**6) == 70
    assert not files.is_over
    files.take(20)  # the same iterator goes on behind the None
    again = BatchFiles(lambda position: partitions(position), str(tmp_path))
    there = again.position
    assert asked[:2] == [Position(), Position(50, {0: 30, 1: 20})]
    again.take(10**6)
    assert again.position.offsets == {0: 150, 1: 1150}
    assert there.rows == 140
    assert is_equal(written(tmp_path), table())


def test_a_count_is_met_within_a_batch(tmp_path: Path) -> None:
    def source(position: Position) -> Iterator[Any]:
        at = position.offsets.get(7, 0)
        yield np.int64(7), np.int64(at), table().slice(at, 120)

    files = BatchFiles(source, str(tmp_path))
    assert files.take(70) == 70
    assert files.is_round
    again = BatchFiles(source, str(tmp_path))
    assert (again.position, again.is_round) == (Position(70, {7: 70}), True)
    skips = BatchFiles(lambda position: [(7, 300, table())], str(tmp_path))
    with pytest.raises(DataError, match="also within a batch"):
        skips.take(10)
    again.take(10**6)
    assert is_equal(written(tmp_path), table().slice(0, 190))
    by_clock = BatchFiles(source, str(tmp_path))
    assert by_clock.take(10**6, seconds=0.0) == 110
    assert not by_clock.is_round


def test_none_ends_no_iterable_that_is_read_to_its_end(tmp_path: Path) -> None:
    files = BatchFiles([None, *cut(table(), 60), None, table()], str(tmp_path))
    assert files.take(10**6, to_end=True) == 2 * N
    assert files.is_over


def test_a_callable_is_given_a_position_and_returns_an_iterable(tmp_path: Path) -> None:
    for source in (lambda: [table()], lambda position: None):
        with pytest.raises(ParameterError, match=r"is given a Position \(rows, offsets\)"):
            BatchFiles(source, str(tmp_path)).take(10)


def test_offsets_must_rise(tmp_path: Path) -> None:
    rows = table().slice(0, 10)
    for items, words in (
        ([(0, 5, rows), (0, 14, rows)], "the rows before 15"),
        ([(0, 5, rows), rows], "expected one kind"),
        ([rows, (0, 5, rows)], "one kind"),
        ([(0.5, 5, rows)], "no partition"),
        ([(0, -1, rows)], "no offset"),
        ([rows, "rows"], "'str'"),
    ):
        folder = tmp_path / words
        with pytest.raises(DataError, match=words):
            BatchFiles(items, str(folder)).take(10**6)
    files = [BatchFiles(lambda _: [rows], str(tmp_path / "two")) for _ in range(2)]
    files[0].take(10)
    with pytest.raises(FencedError, match="another process"):
        files[1].take(10)


def test_files_that_were_learned_go_but_the_newest(tmp_path: Path) -> None:
    files = BatchFiles(cut(table(), *range(50, N, 50)), str(tmp_path))
    files.take(10**6)
    files.drop(120)
    assert [file.name for file in sorted(tmp_path.glob("*"))] == [
        f"{number:010d}.parquet" for number in (3, 4, 5, 6)
    ]
    files.drop(N)
    files.drop(N)
    (left,) = tmp_path.glob("*")
    assert left.name == "0000000006.parquet"
    more = [*cut(table(), 77), table()]
    assert BatchFiles(more, str(tmp_path)).take(10**6) == N  # compared with what is gone


class Tables:
    """An iterable that is neither a sequence nor an iterator."""

    def __iter__(self) -> Iterator[pa.Table]:
        return iter([table()])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (lambda position: [], True),
        (table().to_batches(), True),
        (iter(()), True),
        (deque(table().to_batches()), True),
        ([None, table()], True),
        (Tables(), True),
        (table().to_reader(), True),
        ([(0, 0, table())], True),
        (table(), False),
        ("rows", False),
        (["a.parquet"], False),
        (Path("rows"), False),
        ([], False),
        (dict, False),
        (table().to_pandas(), False),
    ],
)
def test_sources_of_batches_are_no_paths(data: Any, expected: bool) -> None:
    assert gives_batches(data) is expected
