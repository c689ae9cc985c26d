"""Scores of files that come, in this process: each state that a killed process can leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.manifest import manifest_name
from dmondrian.distributed import Scored, score, train
from dmondrian.distributed.scoring.score_arrivals import RECORD, ScoreArrivals, folder_of
from dmondrian.errors import ParameterError
from tests.distributed.conftest import ADULT, COLUMNS, forest

FEATURES = [name for name in COLUMNS if name != "income"]


def rows(number: int, columns: list[str] = FEATURES) -> Any:
    return pq.read_table(ADULT, columns=columns).slice(number * 300, 300)


@pytest.fixture
def run(client: Client, tmp_path: Path) -> str:
    """A run with checkpoints at rows 300 and 600, and a folder for files to score."""
    (tmp_path / "data").mkdir()
    (tmp_path / "in").mkdir()
    options: dict[str, Any] = {"target": "income", "client": client, "run": tmp_path / "run"}
    for number in (0, 1):
        pq.write_table(rows(number, COLUMNS), tmp_path / f"data/{number}.parquet")
        train(forest(), tmp_path / "data", **options)
    assert Run.open(tmp_path / "run").manifests() == [300, 600]
    return str(tmp_path / "run")


Look = Callable[[], list[Scored]]


@pytest.fixture
def look(client: Client, run: str, tmp_path: Path) -> Look:
    """Looks as a new process does; returns what was scored."""

    def once() -> list[Scored]:
        seen: list[Scored] = []
        options = {"data": tmp_path / "in", "out": tmp_path / "out"}
        found = ScoreArrivals(run, options, seen.append).look(lambda: client, lambda: False)
        assert found == len(seen)
        return seen

    return once


def put(folder: Path, number: int) -> str:
    pq.write_table(rows(number), folder / f"in/{number}.parquet")
    return str(folder / f"in/{number}.parquet")


def bytes_of(folder: str | Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(folder).glob("*.parquet")}


def test_a_file_is_scored_once_by_the_newest_checkpoint(
    look: Look, run: str, client: Client, tmp_path: Path
) -> None:
    files = [put(tmp_path, number) for number in (2, 3)]
    seen = look()
    assert [(one.file, one.rows, one.position) for one in seen] == [(f, 300, 600) for f in files]
    assert [Path(one.out).name for one in seen] == [folder_of(file) for file in files]
    score(f"{run}@600", files[0], tmp_path / "alone", client=client)
    assert bytes_of(seen[0].out) == bytes_of(tmp_path / "alone")
    assert look() == []
    third = put(tmp_path, 4)
    assert [one.file for one in look()] == [third]


LEFT = {  # what a killed process left, and the checkpoint that finishes it
    "a record": 300,
    "a part": 300,
    "a part without record": 600,
    "a part of a deleted checkpoint": 600,
    "a part of other rows": 600,
}


@pytest.mark.parametrize("left", LEFT)
def test_what_a_killed_process_left_is_finished_or_begun_anew(
    look: Look, run: str, client: Client, tmp_path: Path, left: str
) -> None:
    older, newer = (tmp_path / "run" / manifest_name(n) for n in (300, 600))
    file = put(tmp_path, 2)
    newer.rename(tmp_path / "newer")
    (one,) = look()
    (tmp_path / "newer").rename(newer)
    (Path(one.out) / "_manifest.json").unlink()
    if left == "a record":
        for name in ("_score.json", "_score.plan", "part-000000.parquet"):
            (Path(one.out) / name).unlink()
    elif left == "a part without record":
        (Path(one.out) / RECORD).unlink()
    elif left == "a part of a deleted checkpoint":
        older.unlink()
    elif left == "a part of other rows":
        pq.write_table(rows(3), file)
    (again,) = look()
    assert (again.file, again.position, again.out) == (file, LEFT[left], one.out)
    record = json.loads((Path(one.out) / RECORD).read_bytes())
    assert (record["file"], record["position"]) == (file, LEFT[left])
    if left != "a part of a deleted checkpoint":
        score(f"{run}@{LEFT[left]}", file, tmp_path / "alone", client=client)
        assert bytes_of(one.out) == bytes_of(tmp_path / "alone")
    assert look() == []


def test_a_file_that_cannot_be_scored_keeps_no_other_back(
    client: Client, run: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Scored] = []
    options = {"data": tmp_path / "in", "out": tmp_path / "out"}
    scoring = ScoreArrivals(run, options, seen.append)
    bad = put(tmp_path, 0)
    pq.write_table(rows(0, FEATURES[1:]), bad)
    good = put(tmp_path, 1)
    for _ in range(2):
        scoring.look(lambda: client, lambda: False)
    assert [one.file for one in seen] == [good]
    (text,) = [text for text in caplog.messages if "is not scored" in text]
    assert text.startswith(f"{bad} is not scored: ")
    assert FEATURES[0] in text
    put(tmp_path, 0)  # repaired
    assert scoring.look(lambda: client, lambda: False) == 1


def test_a_scored_file_that_is_written_again_is_reported(
    look: Look, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = put(tmp_path, 2)
    assert len(look()) == 1
    assert look() == []
    assert not caplog.messages
    pq.write_table(rows(3).slice(0, 100), file)
    assert look() == []
    (text,) = [text for text in caplog.messages if "was written again" in text]
    assert text.startswith(f"{file} was written again after it was scored")


def test_nothing_begins_after_it_was_asked_to_end(client: Client, run: str, tmp_path: Path) -> None:
    put(tmp_path, 2)
    scoring = ScoreArrivals(run, {"data": tmp_path / "in", "out": tmp_path / "out"}, None)
    assert scoring.look(lambda: client, lambda: True) == 0
    assert not list((tmp_path / "out").glob("*/*"))


def test_names_of_folders_are_legible_and_differ() -> None:
    names = [
        folder_of(uri)
        for uri in ("/a/day=1/x.parquet", "/a/day=2/x.parquet", "s3://b/x.parquet", "/a/\u65e5.pq")
    ]
    assert [name.rpartition("-")[0] for name in names] == ["x", "x", "x", "file"]
    assert len(set(names)) == 4


def test_a_place_that_cannot_be_listed_is_named_once_and_scored_later(
    run: str, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"data": tmp_path / "in", "out": tmp_path / "out"}
    scoring = ScoreArrivals(run, options, None)
    put(tmp_path, 2)
    (tmp_path / "in/loop").symlink_to(tmp_path / "in")
    for _ in range(2):
        assert scoring.look(lambda: client, lambda: False) == 0
    assert caplog.text.count("nothing is scored:") == 1
    (tmp_path / "in/loop").unlink()
    assert scoring.look(lambda: client, lambda: False) == 1


def test_what_cannot_be_scored_so_is_refused(run: str, client: Client, tmp_path: Path) -> None:
    def refused(options: dict[str, Any], match: str) -> None:
        with pytest.raises(ParameterError, match=match):
            ScoreArrivals(run, {"data": tmp_path / "in", "out": tmp_path / "out", **options}, None)

    refused({"keys": 1}, "expected 'data' and 'out'")
    refused({"details": "no"}, "details must be True or False")
    refused({"memory_limit": 0}, "memory_limit is 0")
    refused({"out": tmp_path / "data"}, r"holds 0\.parquet; expected an empty or new folder")
    file = put(tmp_path, 2)
    score(run, file, tmp_path / "scores", client=client)
    refused({"out": tmp_path / "scores"}, r"holds _score\.json; expected an empty or new folder")
    for where in ("", "/*/*.parquet", "/../*/*/*"):
        place = f"{tmp_path}/out{where}"
        refused({"data": place}, "scores would be read as data")
        options = {"data": tmp_path / "in", "out": tmp_path / "out"}
        with pytest.raises(ParameterError, match="scores would be read as data"):
            ScoreArrivals(run, options, None, learned=[place])
    write_deltalake(tmp_path / "table", rows(0))
    options = {"data": tmp_path / "table", "out": tmp_path / "out"}
    with pytest.raises(ParameterError, match="is a table; expected a folder"):
        ScoreArrivals(run, options, None).look(lambda: client, lambda: False)


@pytest.fixture
def delta_look(client: Client, run: str, tmp_path: Path) -> Callable[[], int]:
    """Looks as a new process does that keeps a Delta table; returns the number of files scored."""

    def once() -> int:
        options = {"data": tmp_path / "in", "out": tmp_path / "out", "delta": True}
        return ScoreArrivals(run, options, None).look(lambda: client, lambda: False)

    return once


def table_at(folder: Path) -> DeltaTable:
    return DeltaTable(str(folder / "out"))


def scored_rows(folder: Path) -> Any:
    """Return the rows of all score files, read one by one."""
    files = sorted((folder / "out").glob("*-*/part-*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


def is_same_rows(table: Any, files: Any) -> bool:
    """Whether two tables have the same rows, each as often."""
    order = [(name, "ascending") for name in files.column_names]
    return bool(table.cast(files.schema).sort_by(order).equals(files.sort_by(order)))


def test_a_delta_table_has_each_file_once(delta_look: Callable[[], int], tmp_path: Path) -> None:
    found = []
    for numbers in ([2, 3], [4], []):
        for number in numbers:
            put(tmp_path, number)
        found.append((delta_look(), table_at(tmp_path).version()))
    assert found == [(2, 0), (1, 1), (0, 1)]  # one commit for the files of a look
    assert is_same_rows(table_at(tmp_path).to_pyarrow_table(), scored_rows(tmp_path))
    assert scored_rows(tmp_path).num_rows == 900


def test_what_a_killed_process_scored_is_appended_by_the_next(
    delta_look: Callable[[], int], look: Look, tmp_path: Path
) -> None:
    put(tmp_path, 2)
    delta_look()
    put(tmp_path, 3)
    look()  # all but the log, as one that is killed between the two
    assert table_at(tmp_path).to_pyarrow_table().num_rows == 300
    assert delta_look() == 0
    assert is_same_rows(table_at(tmp_path).to_pyarrow_table(), scored_rows(tmp_path))


def test_a_table_that_was_compacted_gets_no_file_again(
    delta_look: Callable[[], int], tmp_path: Path
) -> None:
    for number in (2, 3):
        put(tmp_path, number)
        delta_look()
    table_at(tmp_path).optimize.compact()
    assert len(table_at(tmp_path).file_uris()) == 1
    put(tmp_path, 4)
    assert delta_look() == 1
    assert is_same_rows(table_at(tmp_path).to_pyarrow_table(), scored_rows(tmp_path))


def test_scores_with_other_columns_stay_outside_of_the_table(
    delta_look: Callable[[], int],
    run: str,
    client: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(tmp_path, 2)
    delta_look()
    put(tmp_path, 3)
    options = {"data": tmp_path / "in", "out": tmp_path / "out", "delta": True, "keep": ["sex"]}
    ScoreArrivals(run, options, None).look(lambda: client, lambda: False)
    assert "are not appended to the Delta table: their columns are" in caplog.text
    assert table_at(tmp_path).to_pyarrow_table().num_rows == 300


@pytest.mark.parametrize(
    ("kind", "is_first"),
    [(pa.timestamp("us", "Europe/Berlin"), True), (pa.timestamp("ns"), False), (pa.uint64(), True)],
)
def test_scores_of_a_type_that_delta_has_not_stay_outside_of_the_table(
    run: str,
    client: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: Any,
    is_first: bool,
) -> None:
    options = {"data": tmp_path / "in", "out": tmp_path / "out", "delta": True, "keep": ["kept"]}

    def come(number: int, column: Any) -> None:
        table = rows(number).append_column("kept", column)
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")

    def look() -> int:
        return ScoreArrivals(run, options, None).look(lambda: client, lambda: False)

    known = pa.array(range(300))
    if not is_first:
        come(2, known)
        assert look() == 1
    for number in (3, 4):
        come(number, pa.array([1] * 300, kind))
    assert look() == 2
    assert caplog.text.count(f"has no type for the column 'kept' ({kind})") == 1
    assert "and 1 more are not appended to the Delta table" in caplog.text
    assert (tmp_path / "out" / "_delta_log").exists() is not is_first
    come(5, known)
    assert look() == 1  # by a new process, which begins with what the table lacks
    assert look() == 0
    read = table_at(tmp_path).to_pyarrow_table()
    assert read.num_rows == (300 if is_first else 600)
    assert set(read["kept"].to_pylist()) == set(range(300))
    assert len(list((tmp_path / "out").glob("*-*/_manifest.json"))) == (3 if is_first else 4)


def test_another_table_is_refused(delta_look: Callable[[], int], tmp_path: Path) -> None:
    write_deltalake(tmp_path / "out", pa.table({"a": [1], "b": [2]}), partition_by=["a"])
    with pytest.raises(ParameterError, match="is a Delta table that other scores or another"):
        delta_look()
