"""Files that cannot be read: what they are is named, and no more than is known."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from dmondrian.data import extend_plan, make_plan, make_scoring_plan, read_block
from dmondrian.data.footers import open_parquet, read_columns
from dmondrian.errors import DataError
from tests.encrypted import write_encrypted

N = 40
AGAIN = "write it again"


def table() -> pa.Table:
    x = np.arange(float(N))
    return pa.table(
        {
            "x": x,
            "secret": x % 7.0,
            "inside": [{"a": i, "b": "text"} for i in range(N)],
            "word": ["red", "green"] * (N // 2),
            "y": x > 20,
        }
    )


def run(code: str, *words: object) -> dict[str, object]:
    """Run Python in a process of its own, which may die; returns what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


PLANS = """
import json, sys
from dmondrian.data import make_plan, read_block
from dmondrian.errors import DataError
found = {}
for name, exclude in json.loads(sys.argv[2]).items():
    try:
        plan = make_plan(sys.argv[1], target="y", exclude=exclude)
        found[name] = [plan.schema.feature_names, len(read_block(plan, plan.blocks[0]).X)]
    except DataError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


reads_others = pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < 26,
    reason="earlier pyarrow reads no column of a file with encrypted ones: the file is refused",
)


@reads_others
@pytest.mark.parametrize(
    ("hidden", "others"),
    [
        (["secret"], ["word=<other>", "word=green", "word=red", "x"]),
        (["word"], ["secret", "x"]),
        (["secret", "word"], ["x"]),
    ],
)
def test_encrypted_columns_are_refused_by_name_and_others_are_read(
    tmp_path: Path, hidden: list[str], others: list[str]
) -> None:
    path = write_encrypted(tmp_path / "a.parquet", table(), hidden, plain_footer=True)
    reported = run(PLANS, path, json.dumps({"all": [], "some": [*hidden, "inside"]}))
    assert str(reported["all"]).startswith(f"{path}: the column")
    assert all(repr(name) in str(reported["all"]) for name in hidden)
    for word in ("encrypted", "`exclude`"):
        assert word in str(reported["all"])
    assert AGAIN not in str(reported["all"])
    names, rows = reported["some"]  # type: ignore[misc]  # JSON
    assert (sorted(names), rows) == (others, N)


def test_an_encrypted_target_is_refused(tmp_path: Path) -> None:
    path = write_encrypted(tmp_path / "a.parquet", table(), ["y"], plain_footer=True)
    reported = run(PLANS, path, json.dumps({"all": []}))
    assert "the column 'y' is encrypted" in str(reported["all"])


@reads_others
def test_a_field_of_a_column_may_be_encrypted(tmp_path: Path) -> None:
    path = write_encrypted(tmp_path / "a.parquet", table(), ["inside.b"], plain_footer=True)
    reported = run(PLANS, path, json.dumps({"all": [], "some": ["inside"]}))
    assert reported["all"] == reported["some"]
    assert reported["some"][1] == N  # type: ignore[index]  # JSON


@reads_others
def test_every_way_to_read_data_knows_encrypted_columns(tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(table(), plain)
    whole = make_plan(plain, target="y", exclude=["inside"])
    some = make_plan(plain, target="y", exclude=["inside", "secret"])
    path = write_encrypted(tmp_path / "a.parquet", table(), ["secret"], plain_footer=True)
    reported = r"a\.parquet: the column 'secret' is encrypted"
    with pytest.raises(DataError, match=reported):
        make_scoring_plan(path, whole.schema)
    with pytest.raises(DataError, match=reported):
        make_scoring_plan(path, some.schema, ["secret"])
    with pytest.raises(DataError, match=reported):
        extend_plan(whole, [plain, path])
    with pytest.raises(DataError, match=reported):
        make_plan([plain, path], target="y")
    assert extend_plan(some, [plain, path]).n_rows == 2 * N
    plan = make_scoring_plan(path, some.schema, ["x"])
    assert np.array_equal(read_block(plan, plan.blocks[0]).X, read_block(some, some.blocks[0]).X)
    with open_parquet(str(path)) as parquet, pytest.raises(DataError, match="is encrypted") as info:
        read_columns(parquet, str(path), 0, ["secret"])
    assert AGAIN not in str(info.value)


def text(path: Path) -> None:
    path.write_text("x,y\n1,2\nä,3\n" * 300, encoding="utf-8")


def cut(path: Path) -> None:
    pq.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-100])


def spoilt(path: Path) -> None:
    pq.write_table(table(), path)
    data = bytearray(path.read_bytes())
    data[-200:-8] = b"\xff" * 192
    path.write_bytes(bytes(data))


def hidden_footer(path: Path) -> None:
    write_encrypted(path, table(), ["secret"], plain_footer=False)


def cut_and_hidden(path: Path) -> None:
    hidden_footer(path)
    path.write_bytes(path.read_bytes()[:-100])


def orc(path: Path) -> None:
    pa.orc.write_table(table().drop_columns(["inside"]), path)


def archive(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), x=np.arange(3))
    path.with_suffix(".npz").rename(path)


BROKEN: dict[str, tuple[Callable[[Path], object], str, bool]] = {
    "csv": (text, "it is text, such as CSV or JSON", False),
    "json": (lambda path: path.write_text('{"x": 1}'), "it is text", False),
    "feather": (lambda path: pa.feather.write_feather(table(), path), "an Arrow IPC", False),
    "orc": (orc, "an ORC file", False),
    "npz": (archive, "a ZIP archive", False),
    "gzip": (lambda path: path.write_bytes(gzip.compress(b"x" * 99)), "gzip archive: un", False),
    "bzip2": (lambda path: path.write_bytes(bz2.compress(b"x" * 99)), "a bzip2 archive", False),
    "html": (lambda path: path.write_text("\n<html>not found</html>"), "a page of HTML", False),
    "lfs": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\nsize 12345\n"),
        "`git lfs pull`", False,
    ),
    "annex": (
        lambda path: path.write_text("/annex/objects/SHA256E-s9--0a.parquet\n"),
        "`git annex get`", False,
    ),
    "bytes": (lambda path: path.write_bytes(bytes(range(128, 256)) * 9), "another format", False),
    "few bytes": (lambda path: path.write_bytes(b"PA"), "it is text", False),
    "magic alone": (lambda path: path.write_bytes(b"PAR1"), "footer is damaged", True),
    "empty": (lambda path: path.write_bytes(b""), "is empty (0 bytes)", False),
    "cut": (cut, "begins as Parquet and is cut off", True),
    "damaged footer": (spoilt, "its footer is damaged", True),
    "hidden footer": (hidden_footer, "its footer is encrypted", False),
    "cut and hidden": (cut_and_hidden, "begins as Parquet and is cut off", True),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_file_is_is_named(tmp_path: Path, name: str) -> None:
    make, reported, is_damage = BROKEN[name]
    path = tmp_path / "a.parquet"
    make(path)
    with pytest.raises(DataError, match=re.escape(reported)) as caught:
        make_plan(path)
    assert str(path) in str(caught.value)
    assert ("write it again" in str(caught.value)) is is_damage


def test_folders_with_the_name_of_a_file_are_folders(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").mkdir()
    with pytest.raises(DataError, match=r"the folder .*a\.parquet holds no Parquet file"):
        make_plan(tmp_path / "a.parquet")
    pq.write_table(table().select(["x"]), tmp_path / "a.parquet/part-0.parquet")
    assert make_plan(tmp_path / "a.parquet").n_rows == N


FORBIDDEN = """
import json, os, sys
from dmondrian.data import make_plan, read_block
from dmondrian.errors import DataError, PlanError
found = {}
plan = make_plan(sys.argv[1])
os.chmod(sys.argv[2], 0)
if os.geteuid() == 0:
    os.setuid(65534)  # nobody
for name, read in {"plan": lambda: make_plan(sys.argv[1]),
                   "read": lambda: read_block(plan, plan.blocks[0])}.items():
    try:
        read()
        found[name] = "nothing"
    except DataError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.mark.parametrize("what", ["file", "folder"])
def test_files_that_this_user_may_not_read_are_named(what: str) -> None:
    # Folders of pytest are this user's alone.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        path = folder / "data/a.parquet"
        pq.write_table(table().select(["x"]), path)
        for one in (folder, folder / "data", path):
            os.chmod(one, 0o755)
        reported = run(FORBIDDEN, path, path if what == "file" else folder / "data")
        os.chmod(folder / "data", 0o755)
    assert "ermission denied" in str(reported["plan"])
    assert "ermission denied" in str(reported["read"])
    assert str(path) in str(reported["plan"])
    for message in reported.values():
        assert AGAIN not in str(message)


def test_codecs_that_this_pyarrow_lacks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1.5] * N}), path, compression="gzip", use_dictionary=False,
                   write_statistics=False)  # fmt: skip
    data = path.read_bytes()
    codec = data.rfind(b"\x15\x04\x16")  # codec: 2, and then the number of values
    assert codec > 0
    path.write_bytes(data[: codec + 1] + b"\x06" + data[codec + 2 :])  # LZO, which Arrow has not
    with pytest.raises(DataError, match="cannot read") as caught:
        make_plan(path)
    assert "LZO" in str(caught.value)
    assert AGAIN not in str(caught.value)
