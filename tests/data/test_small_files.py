"""Many small files: each is opened a bounded number of times, and they are converted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.data import Plan, footers, list_source, make, make_plan, read_chunk, scan
from dmondrian.data.fingerprint import END_BYTES
from dmondrian.data.footers import open_parquet, read_footers
from dmondrian.data.scan import NumberScan
from dmondrian.data.source import open_uri
from dmondrian.data.target import LabelScan, ValueScan
from dmondrian.errors import DataError

from .conftest import Write

FILES = 300


def many(write: Write, files: int = FILES, rows: int = 5) -> Path:
    """Small files with a number, a category and labels, of which some store x as float32."""
    draws = np.random.default_rng(0)
    for i in range(files):
        table = {
            "x": pa.array(draws.random(rows), pa.float32() if i % 70 == 3 else pa.float64()),
            "c": draws.choice(["u", "v", "w"], rows),
            "y": draws.choice(["no", "yes"], rows),
        }
        folder = write(table, f"many/{i:03d}.parquet").parent
    return folder


class Opened:
    """Files as they are opened, and what is read of them."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()

    def open(self, uri: str) -> pa.NativeFile:
        self.files[uri] += 1
        opened = self

        class File:
            """A file that counts reads."""

            def __init__(self) -> None:
                self._file, self.closed = pa.OSFile(uri), False

            def read(self, n: int = -1) -> bytes:
                opened.reads[uri] += 1
                return bytes(self._file.read(None if n < 0 else n))

            def seek(self, *place: int) -> int:
                return int(self._file.seek(*place))

            def tell(self) -> int:
                return int(self._file.tell())

            def close(self) -> None:
                self.closed = True
                self._file.close()

        return pa.PythonFile(File(), "r")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    found = Opened()
    monkeypatch.setattr(footers, "open_uri", found.open)
    return found


def test_a_small_file_is_opened_once_to_plan_and_once_to_learn(
    write: Write, opened: Opened
) -> None:
    plan = make_plan(many(write), target="y")
    assert set(opened.files.values()) == {1}
    for chunk in plan.chunks:
        read_chunk(plan, chunk)
    assert len(opened.files) == FILES
    assert set(opened.files.values()) == {2}
    assert set(opened.reads.values()) == {2}  # each time by one request


def test_what_is_kept_of_files_is_bounded(
    write: Write, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = many(write, files=20)
    files, _ = list_source(folder)
    whole = make_plan(folder, target="y")
    opened.files.clear()
    monkeypatch.setattr(make, "CONTENT_BYTES", sum(file.size for file in files[:7]))
    assert make_plan(folder, target="y").to_parquet() == whole.to_parquet()
    assert [opened.files[file.uri] for file in files] == [1] * 7 + [2] * 13


def test_the_content_of_a_larger_file_is_not_kept(write: Write) -> None:
    draws = np.random.default_rng(0)
    small = write({"x": draws.random(100)}, "data/a.parquet")
    large = write({"x": draws.random(20_000)}, "data/b.parquet")
    assert small.stat().st_size < END_BYTES < large.stat().st_size
    files, _ = list_source(small.parent)
    first, second = read_footers(files, content_bytes=1 << 30)
    assert first.content == small.read_bytes()
    assert second.content is None
    assert [footer.content for footer in read_footers(files)] == [None, None]


def test_files_of_equal_columns_share_what_is_known_of_them(write: Write) -> None:
    files, _ = list_source(many(write))
    assert len({id(footer.types) for footer in read_footers(files)}) == 2


def counted_adds(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[list[int]]:
    """Note the rows of the row groups that are converted together."""
    found: list[list[int]] = []
    add = kind.add

    def adding(self: Any, column: Any, rows: Sequence[int], where: Any) -> None:
        found.append(list(rows))
        add(self, column, rows, where)

    monkeypatch.setattr(kind, "add", adding)
    return found


def test_small_row_groups_are_converted_together(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, labels = (counted_adds(monkeypatch, kind) for kind in (NumberScan, LabelScan))
    make_plan(many(write), target="y")
    assert sum(map(sum, numbers)) == sum(map(sum, labels)) == 5 * FILES
    assert max(map(len, numbers)) > 50
    assert len(numbers) <= 2 + 2 * 5  # two reads of files, and where the type changes
    numbers.clear()
    groups = write({"x": np.random.default_rng(0).random(3000), "y": [0, 1, 2] * 1000},
                   "one/a.parquet", row_group_size=5)  # fmt: skip
    make_plan(groups, target="y")
    assert len(numbers) == 3


def alone(monkeypatch: pytest.MonkeyPatch, make_one: Callable[[], Plan]) -> Plan:
    """Return the plan of row groups that are looked at one by one."""
    with monkeypatch.context() as patch:
        patch.setattr(scan, "JOINED_VALUES", 0)
        return make_one()


@pytest.mark.filterwarnings("ignore:the rows look sorted", "ignore:whole row groups")
@pytest.mark.parametrize("order", ["random", "sorted", "pure", "sorted within"])
@pytest.mark.parametrize("target", ["label", "value"])
def test_what_is_found_does_not_depend_on_how_row_groups_are_joined(
    write: Write, monkeypatch: pytest.MonkeyPatch, order: str, target: str
) -> None:
    draws = np.random.default_rng(1)
    values = draws.normal(size=3000)
    if order == "sorted":
        values.sort()
    elif order == "pure":
        values = np.repeat(draws.normal(size=200), 15)
    elif order == "sorted within":
        values = np.sort(values.reshape(200, 15), axis=1).ravel()
    labels = np.floor(2.0 * np.clip(values, -1.0, 0.9)).astype(int)
    for i in range(100):
        rows = slice(30 * i, 30 * i + 30)
        absent = draws.random(30) < 0.1
        table = {
            "x": pa.array(draws.normal(size=30), mask=draws.random(30) < 0.1),
            "c": pa.array(draws.choice(list("abcdef"), 30)).dictionary_encode(),
            "t": pa.array(draws.integers(0, 10**15, 30)).cast(pa.timestamp("us")),
            "label": pa.array(labels[rows], mask=absent),
            "value": pa.array(values[rows], mask=absent),
        }
        folder = write(table, f"many/{i:02d}.parquet", row_group_size=15).parent
    asked: dict[str, Any] = {"target": target, "null_target": "drop", "max_categories": 4}
    asked["task"] = "classification" if target == "label" else "regression"
    asked["exclude"] = [{"label": "value", "value": "label"}[target]]
    together = make_plan(folder, **asked)
    assert (
        together.to_parquet() == alone(monkeypatch, lambda: make_plan(folder, **asked)).to_parquet()
    )
    notes = " ".join(together.notes)
    misleads = order in ("sorted", "pure") or (order, target) == ("sorted within", "value")
    assert ("misleads a forest" in notes) == misleads


def test_rows_of_different_row_groups_are_not_compared() -> None:
    rows = [3, 0, 2, 4]
    labels = LabelScan("y")
    labels.add(pa.array([0, 0, 1, 1, None, None, 1, 1, 0]), rows, str)
    assert (labels.pairs, labels.changes, labels.nulls) == (4, 2, 2)
    assert labels.mixture == pytest.approx(3 - 5 / 3 + 0 + 3 - 5 / 3)
    assert labels.first_null == "4"
    values = ValueScan("y")
    values.add(pa.array([1.0, 2.0, 3.0, 0.0, np.inf, 5.0, np.nan, 4.0, 6.0]), rows, str)
    assert (values.rises, values.falls) == (3, 1)
    assert (values.lower, values.upper) == (0.0, 6.0)
    assert (values.first_infinity, values.first_null, values.ranges) == ("4", "6", [])


@pytest.mark.parametrize("column", ["x", "t", "y"])
def test_the_first_bad_value_among_many_files_is_named(write: Write, column: str) -> None:
    for i in range(40):
        x, t = np.arange(6.0) + i, np.arange(6) + i
        y = pa.array(np.arange(6) % 2)
        if i >= 17:
            x[4] = np.inf if column == "x" else 4.0
            t[4] = 2**63 - 1 if column == "t" else 4
            y = pa.array([0, 1, 0, 1, None if column == "y" else 1, 1])
        table = {"x": x, "t": pa.array(t).cast(pa.timestamp("us")), "y": y}
        folder = write(table, f"many/{i:02d}.parquet", row_group_size=3).parent
    with pytest.raises(DataError, match=r"17\.parquet, row 4"):
        make_plan(folder, target="y")


def test_the_file_whose_values_cannot_be_converted_is_named(write: Write) -> None:
    for i in range(40):
        texts = [b"a", b"b", b"\xff" if i == 23 else b"c", b"d"]
        folder = write({"c": texts, "y": [0, 1, 0, 1]}, f"many/{i:02d}.parquet", row_group_size=2)
    with pytest.raises(DataError, match=r"column 'c' of .*23\.parquet, row group 1"):
        make_plan(folder.parent, target="y", categorical=["c"])


def test_small_files_of_a_folder_without_a_key_are_read_with_others(write: Write) -> None:
    for level in ("a", "b", "__HIVE_DEFAULT_PARTITION__"):
        path = write({"x": np.arange(6.0), "y": [0, 1] * 3}, f"h/level={level}/a.parquet")
    plan = make_plan(path.parents[1], target="y")
    (chunk,) = plan.chunks
    X = read_chunk(plan, chunk).X
    names = list(plan.schema.feature_names)
    for level in ("<null>", "a", "b"):
        assert (X[:, names.index(f"level={level}")] > 0.0).sum() == 6


def test_a_file_read_in_memory_is_the_file_on_disk(write: Write) -> None:
    table = pa.table({"x": np.random.default_rng(0).random(50), "c": ["a", "b"] * 25})
    path = str(write(table, row_group_size=20))
    there, again = open_parquet(path, ["c"]), pq.ParquetFile(open_uri(path))
    assert there.metadata.equals(again.metadata)
    assert footers.read_columns(there, path, 1, ["x"]).equals(again.read_row_group(1, ["x"]))
