"""Files that come: whole ones are named, others wait."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dmondrian.data import Arrivals, arrivals, extend_plan, make_plan
from dmondrian.errors import DataError


def content(first: int, rows: int = 50) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [float(first + i) for i in range(rows)]}), sink)
    return bytes(sink.getvalue())


def put(folder: Path, name: str, data: bytes) -> Path:
    """Put a file there as a whole."""
    folder.mkdir(exist_ok=True)
    (folder / f".{name}").write_bytes(data)
    return (folder / f".{name}").rename(folder / name)


def test_a_file_without_its_end_waits_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, folder = content(0), tmp_path / "data"
    whole = put(folder, "a.parquet", data)
    later = folder / "b.parquet"
    looked = Arrivals(folder)
    with caplog.at_level("INFO", "dmondrian"):
        for n in (0, 3, len(data) // 2, len(data) - 1):
            later.write_bytes(data[:n])
            assert list(looked.look().files) == [str(whole)]
    (reported,) = caplog.messages
    assert reported.startswith(f"{later} is not whole yet and waits: ")
    later.write_bytes(data)
    assert list(looked.look().files) == [str(whole), str(later)]


def test_a_file_that_stays_without_its_end_is_reported_again_with_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content(0)[:50])
    os.utime(path, ns=(time.time_ns() - 660 * 10**9,) * 2)
    looked = Arrivals(tmp_path)
    with caplog.at_level("INFO", "dmondrian"):
        looked.look()
        looked.look()
        assert len(caplog.messages) == 1
        monkeypatch.setattr(arrivals, "AGAIN", 0.0)
        looked.look()
    assert len(caplog.messages) == 2
    assert caplog.messages[1].startswith(f"{path} is not whole after 11 minutes: ")
    assert caplog.records[1].levelname == "WARNING"


def test_a_link_without_its_target_is_named_and_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    whole = put(data, "a.parquet", content(0))
    link = data / "b.parquet"
    link.symlink_to(tmp_path / "later.parquet")
    looked = Arrivals(data)
    with caplog.at_level("INFO", "dmondrian"):
        found = [looked.look() for _ in range(2)]
    assert [list(one.files) for one in found] == [[str(whole)]] * 2
    (text,) = caplog.messages
    assert text.startswith(f"{link} is not whole yet and waits: ")
    assert "later.parquet, which is not there" in text
    plan = make_plan(data, among=found[0].files)
    assert plan.n_rows == 50
    assert not any("link" in note for note in plan.notes)
    with pytest.raises(DataError, match="which is not there"):
        make_plan(data)
    put(tmp_path, "later.parquet", content(50))
    assert extend_plan(plan, data, 50, looked.look().files).n_rows == 100


def test_a_folder_of_such_links_alone_is_empty(tmp_path: Path) -> None:
    (tmp_path / "b.parquet").symlink_to(tmp_path / "later.parquet.part")
    assert Arrivals(tmp_path).look().is_empty


def test_a_file_that_changes_while_it_is_looked_at_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "a.parquet", content(0))
    read = arrivals.read_footers

    def reading(*given: object) -> object:
        found = read(*given)  # type: ignore[arg-type]
        path.write_bytes(content(1, 70))
        return found

    looked = Arrivals(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(arrivals, "read_footers", reading)
        assert looked.look().is_empty
    assert list(looked.look().files) == [str(path)]


def test_a_file_is_opened_once_and_one_that_was_learned_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [put(tmp_path, f"{name}.parquet", content(i)) for i, name in enumerate("abc")]
    opened: list[str] = []
    read = arrivals.read_footers

    def reading(files: list[arrivals.SourceFile], *given: object) -> object:
        opened.extend(file.uri for file in files)
        return read(files, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(arrivals, "read_footers", reading)
    looked = Arrivals(tmp_path, [str(paths[0])])
    first = looked.look()
    assert sorted(first.files) == sorted(map(str, paths))
    assert not looked.look().has_come_since(first)
    assert sorted(opened) == [str(path) for path in paths[1:]]
    os.utime(paths[1], ns=(1, 1))
    assert looked.look().has_come_since(first)
    assert opened.count(str(paths[1])) == 2
    paths[2].unlink()
    assert list(looked.look().files) == [str(path) for path in paths[:2]]


def test_there_may_be_nothing_yet(tmp_path: Path) -> None:
    looked = Arrivals([tmp_path / "data", f"{tmp_path}/more/*.parquet"])
    first = looked.look()
    assert first.is_empty
    put(tmp_path / "more", "a.parquet", content(0))
    second = looked.look()
    assert len(second.files) == 1
    assert second.has_come_since(first)


def test_a_version_of_a_table_is_news(tmp_path: Path) -> None:
    rows = pa.table({"x": [1.0, 2.0]})
    write_deltalake(tmp_path / "t", rows)
    looked = Arrivals(tmp_path / "t")
    first = looked.look()
    assert first.tables == {str(tmp_path / "t"): 0}
    assert not looked.look().has_come_since(first)
    write_deltalake(tmp_path / "t", rows, mode="append")
    assert looked.look().has_come_since(first)


def test_the_newest_commit_of_a_table_counts_as_its_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.time()
    rows = pa.table({"x": [1.0, 2.0]})
    put(tmp_path / "files", "a.parquet", content(0))
    os.utime(tmp_path / "files/a.parquet", (before - 500.0,) * 2)
    table = tmp_path / "t"
    write_deltalake(table, rows)
    log = table / "_delta_log/00000000000000000000.json"
    log.write_text(re.sub(r'("timestamp"):\d+', r"\1:1700000000123", log.read_text()))
    looked = Arrivals([tmp_path / "files", table])
    assert Arrivals(table).look().newest == 1_700_000_000.123
    newest = looked.look().newest
    assert newest is not None
    assert abs(newest - (before - 500.0)) < 1.0
    write_deltalake(table, rows, mode="append")
    newest = looked.look().newest
    assert newest is not None
    assert before - 1.0 < newest < time.time() + 1.0
    DeltaTable(table).create_checkpoint()
    for one in table.glob("_delta_log/*.json"):  # as the log expires
        one.unlink()
    newest = Arrivals(table).look().newest
    assert newest is not None
    assert before - 1.0 < newest < time.time() + 1.0
    pytest.importorskip("pyiceberg")
    from tests.data.test_iceberg_table import NAME, new_table

    made = new_table(tmp_path, monkeypatch)
    snapshot = made.current_snapshot()
    assert Arrivals(NAME).look().newest == snapshot.timestamp_ms / 1000.0


def test_plans_are_made_and_extended_by_the_files_that_are_whole(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", content(0))
    (tmp_path / "b.parquet").write_bytes(content(50)[:100])
    looked = Arrivals(tmp_path)
    with pytest.raises(DataError):
        make_plan(tmp_path)
    plan = make_plan(tmp_path, among=looked.look().files)
    assert plan.n_rows == 50
    put(tmp_path, "c.parquet", content(10))
    longer = extend_plan(plan, tmp_path, 50, looked.look().files)
    assert longer.n_rows == 100
    (tmp_path / "b.parquet").write_bytes(content(20))
    last = extend_plan(longer, tmp_path, 100, looked.look().files)
    assert [Path(block.uri).name[0] for block in last.blocks] == ["a", "c", "b"]
