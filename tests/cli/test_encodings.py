"""Names that a terminal or pipe cannot write are escaped, by every command and on both streams."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.cli import main
from dmondrian.cli.output import Output
from tests.cli.command import TIMEOUT, arguments, call, events

COLUMN, LABELS, ESCAPED = "größe→", ["日本", "ω"], r"\u65e5\u672c"
JOB = """\
[data]
path = "rows.parquet"
target = "Ziel"
[forest]
algorithm = "amf-classifier"
n_estimators = 2
feature_scales = "none"
[run]
path = "lauf→"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("名前")
    draw = np.random.default_rng(0)
    table = pa.table({COLUMN: draw.random(300), "Ziel": LABELS * 150})
    pq.write_table(table, folder / "rows.parquet")
    (folder / "job.toml").write_text(JOB, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, shared: str) -> Path:
    written("ascii", "train", folder / "job.toml", f"--set=cluster.scheduler={shared}")
    return folder / "lauf→"


def written(encoding: str, *words: object, code: int = 0) -> tuple[str, str]:
    """Run a command with streams of an encoding, as Python opens them: stdout is strict."""
    own = [io.TextIOWrapper(io.BytesIO(), encoding, errors="strict") for _ in range(2)]
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = own
    try:
        found = main([str(word) for word in words])
    finally:
        sys.stdout, sys.stderr = before
    for stream in own:
        stream.flush()
    stdout, stderr = (stream.buffer.getvalue().decode(encoding) for stream in own)
    assert found == code, stderr
    return stdout, stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_command_escapes_what_cannot_be_written(
    run: Path, shared: str, tmp_path: Path, encoding: str
) -> None:
    data, cluster = run.parent / "rows.parquet", ("--scheduler", shared)
    commands = [
        ("schema", data, "--target", "Ziel"),
        ("schema", run),
        ("describe", run, "--importances"),
        ("evaluate", run, data, *cluster),
        ("score", run, data, tmp_path / "→", *cluster),
        ("report", run, "-o", tmp_path / "→.html"),
        ("compare", run, run),
        ("export", run, "-o", tmp_path / "→.onnx"),
        ("prune", run, "--dry-run"),
        ("cancel", run),
        ("init", data, "--target", "Ziel", "-o", tmp_path / "→.toml"),
    ]
    for words in commands:
        stdout, _ = written(encoding, *words)
        assert r"\u" in stdout, words
    stdout, _ = written(encoding, "describe", run)
    assert ESCAPED in stdout
    _, stderr = written(encoding, "describe", run.parent / "nö→", code=4)
    assert "no folder" in stderr
    assert r"\u2192" in stderr
    assert ("nö" in stderr) == (encoding == "latin-1")


def test_json_and_files_hold_the_names_themselves(run: Path, tmp_path: Path) -> None:
    stdout, _ = written("ascii", "describe", run, "--json")
    (reported,) = events(stdout)
    assert sorted(reported["classes"]) == sorted(LABELS)
    page = tmp_path / "page.html"
    written("ascii", "report", run, "-o", page)
    assert "日本" in page.read_text(encoding="utf-8")


def test_a_process_of_its_own(run: Path) -> None:
    """With streams that Python opened, and warnings and logs on the way."""
    done = subprocess.run(
        arguments("describe", run), env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True, timeout=TIMEOUT, check=True,
    )  # fmt: skip
    assert ESCAPED in done.stdout.decode("latin-1")
    assert done.stderr == b""


NO_TEXT = os.fsdecode(b"b\xff")  # a name that is no UTF-8, as Python keeps it


def test_paths_that_are_no_text(run: Path, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / NO_TEXT
    shutil.copytree(run, copy)
    assert r"b\udcff" in written("utf-8", "describe", copy)[0]
    assert events(written("utf-8", "describe", copy, "--json")[0])[0]["model"] == str(copy)
    page = tmp_path / f"{NO_TEXT}.html"
    written("utf-8", "report", copy, "-o", page)
    assert r"b\udcff" in page.read_text(encoding="utf-8")
    job = tmp_path / f"{NO_TEXT}.toml"
    job.write_text(JOB.replace("target", "taget"), encoding="utf-8")
    assert "has no key 'taget'" in written("utf-8", "train", job, code=2)[1]


def test_data_in_paths_that_are_no_text_are_refused(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "rows"
    place.mkdir()
    shutil.copy(folder / "rows.parquet", place / f"{NO_TEXT}.parquet")
    for data in (place / f"{NO_TEXT}.parquet", place, place / "*.parquet"):
        _, stderr = written("utf-8", "schema", data, code=3)
        assert "no UTF-8" in stderr
        assert "rename" in stderr
    _, stderr = call("train", folder / "job.toml", f"--set=data.path={place}", code=3)
    assert "no UTF-8" in stderr


def test_names_do_not_steer_a_terminal() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    output = Output(False, stdout, stderr)
    output.text("a column \x1b[2J\x07\r\nand\ttab \x9b1m é")
    output.note("\x1b]0;title\x07")
    assert stdout.getvalue() == "a column \\x1b[2J\\x07\\x0d\nand\ttab \\x9b1m é\n"
    assert stderr.getvalue() == "\\x1b]0;title\\x07\n"
    json_out = io.StringIO()
    Output(True, json_out, stderr).event("x", {"name": "\x1b"})
    assert json.loads(json_out.getvalue())["name"] == "\x1b"
