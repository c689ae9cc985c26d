"""Where nothing can be written is reported before the work, and asking leaves nothing behind.

Nobody can write in /proc or make files in /sys, whoever asks. What stands before the output in each
command is missing here: whoever began with the work would say so.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import AMFClassifier
from dmondrian.checkpoint.new_folder import refuse_folder_of_data
from dmondrian.distributed import train
from tests.cli.command import ADULT, call, train_words
from tests.distributed.conftest import worker_threads

pytestmark = pytest.mark.skipif(
    not Path("/proc/self").exists() or not Path("/sys/kernel").exists(), reason="not Linux"
)

TRAINED = ADULT / "part-0000-train.parquet"


def reported(*words: object, code: int) -> str:
    stderr = call(*words, code=code)[1]
    return stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of few rows."""
    folder = tmp_path_factory.mktemp("runs")
    rows = pa.table({"x": np.linspace(0, 1, 50), "y": ["a", "b"] * 25})
    pq.write_table(rows, folder / "rows.parquet")
    with worker_threads(1) as (_, client):
        forest = AMFClassifier(1, random_state=0)
        train(forest, folder / "rows.parquet", target="y", run=folder / "run", client=client)
    return folder / "run"


@pytest.mark.parametrize("out", ["/proc/scores", "/sys"], ids=["a new folder", "a folder"])
def test_scores(model: Path, out: str) -> None:
    line = reported("score", model, model / "no data", out, code=4)
    assert out in line
    assert "no data" not in line


@pytest.mark.parametrize("where", ["{}", "{}/*.parquet", "{}/*", "{}/../*/*.parquet"])
def test_scores_that_would_be_read_as_data(model: Path, tmp_path: Path, where: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = model.parent / "rows.parquet"
    place = where.format(data)
    assert "would be read as data" in reported("score", model, place, data, code=2)
    assert list(data.iterdir()) == []
    words = train_words(tmp_path / "a/run", f"data.path={place}", f"score.out={data}")
    line = reported(*words, f"--set=score.path={rows}", code=2)
    assert "scores would be read as data" in line
    assert list(data.iterdir()) == []


def test_scores_below_their_data_are_not_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pq.read_table(model.parent / "rows.parquet"), tmp_path / "data/rows.parquet")
    for _ in range(2):
        call("score", model, tmp_path / "data", tmp_path / "data/scores")


@pytest.mark.parametrize("out", ["/proc/run", "/sys"], ids=["a new folder", "a folder"])
def test_runs(tmp_path: Path, out: str) -> None:
    line = reported(*train_words(out, f"data.path={tmp_path}/none"), code=4)
    assert out in line
    assert "none" not in line


@pytest.mark.parametrize(
    ("run", "path"),
    [
        ("", ""),
        ("", "/*.parquet"),
        ("", "/**/*.p*"),
        ("", "/*/*.parquet"),
        ("/k=1", "/*/*.parquet"),
    ],
)
def test_a_run_whose_files_would_be_read_as_data(tmp_path: Path, run: str, path: str) -> None:
    data = tmp_path / "data"
    (data / "k=1").mkdir(parents=True)
    pq.write_table(pq.read_table(TRAINED).slice(0, 300), data / "k=1/a.parquet")
    for pattern in (f"{data}{path}", f'["{data}{path}"]'):
        words = train_words(f"{data}{run}", f"data.path={pattern}")
        assert "a run's files would be read as data" in reported(*words, code=2)
    assert [file.name for file in data.iterdir()] == ["k=1"]


def test_a_run_in_the_folder_of_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    pq.write_table(pq.read_table(TRAINED).slice(0, 300), data / "a.parquet")
    words = train_words(data, f"data.path={TRAINED}")
    assert f"{data} holds a.parquet, which is not of a run" in reported(*words, code=4)
    assert [file.name for file in data.iterdir()] == ["a.parquet"]
    for run, path in ((data / "run", data), (tmp_path, data), (data, data / "a.parquet")):
        for _ in range(2):  # below the data, above them, or beside a file that is named: not read
            call(*train_words(run, f"data.path={path}", "cluster.workers=1"))
    assert "would be read as data" in reported(*train_words(data, f"data.path={data}"), code=2)


@pytest.mark.parametrize("name", [b"\xff.txt", b"new\nline"])
def test_names_that_no_store_lists_are_no_reason_to_refuse(tmp_path: Path, name: bytes) -> None:
    (tmp_path / os.fsdecode(name)).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    refuse_folder_of_data(tmp_path)
    forest = AMFClassifier(1, random_state=0).fit([[0.0], [1.0]], [0, 1])
    forest.save(tmp_path / "model")


def test_a_run_in_the_folder_of_a_saved_estimator(tmp_path: Path) -> None:
    AMFClassifier(1, random_state=0).fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "saved")
    words = train_words(tmp_path / "saved", f"data.path={TRAINED}")
    for given in (words, ["follow", *words[1:], "--once"]):
        line = reported(*given, code=4)
        assert f"{tmp_path}/saved holds a saved estimator, and no run that could go on" in line


ROWS = {
    "another target": ({"x": [0.0, 1.0], "z": [0, 1]}, 3),
    "a null label": ({"x": [0.0, 1.0], "y": [0, None]}, 3),
    "an infinite value": ({"x": [0.0, float("inf")], "y": [0, 1]}, 3),
}


@pytest.mark.parametrize("command", ["train", "search"])
@pytest.mark.parametrize(("rows", "code"), ROWS.values(), ids=ROWS)
def test_runs_of_rows_that_cannot_be_learned(
    tmp_path: Path, command: str, rows: dict[str, list[float]], code: int
) -> None:
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    words = train_words(tmp_path / "new/run", f"data.path={tmp_path}/rows.parquet")[1:]
    more = ["data.target=y", "cluster.workers=1", "search.alpha=[0.1, 0.2]"]
    reported(command, *words, *(f"--set={one}" for one in more), code=code)
    assert [file.name for file in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("forest.n_estimators=100000000000000000000", "n_estimators is 100000000000000000000;"),
        ("run.first_tree=999997", "n_estimators is 4 from first_tree 999997 on;"),
    ],
)
def test_runs_of_more_trees_than_have_numbers(tmp_path: Path, key: str, reason: str) -> None:
    words = train_words(tmp_path / "run", f"data.path={TRAINED}")
    stderr = call(*words, f"--set={key}", code=2)[1]
    assert f"{reason} the trees of a run have numbers below 1000000" in stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("out", ["/proc/scores", "/sys"], ids=["a new folder", "a folder"])
def test_scores_of_a_job_before_it_trains(tmp_path: Path, out: str) -> None:
    words = train_words(tmp_path / "run", f"data.path={TRAINED}")
    line = reported(*words, f"--set=score.path={TRAINED}", f"--set=score.out={out}", code=4)
    assert out in line
    assert not (tmp_path / "run").exists()


def test_scores_of_a_job_whose_folder_holds_other_parquet(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "out/mine.parquet")
    words = train_words(tmp_path / "run", f"data.path={TRAINED}")
    line = reported(
        *words, f"--set=score.path={TRAINED}", f"--set=score.out={tmp_path}/out", code=4
    )
    assert "mine.parquet" in line
    assert not (tmp_path / "run").exists()


FILES = {"report": "page.html", "export": "forest.onnx"}


@pytest.mark.parametrize(("command", "file"), FILES.items())
def test_files(tmp_path: Path, command: str, file: str) -> None:
    if command == "export":
        pytest.importorskip("onnx")
    line = reported(command, tmp_path / "no run", "--out", f"/proc/{file}", code=2)
    assert f"/proc/{file} cannot be written" in line
    line = reported(command, tmp_path / "no run", "--out", tmp_path / "none" / file, code=2)
    assert "there is no folder" in line
    (tmp_path / file).write_text("mine")
    line = reported(command, tmp_path / "no run", "--out", tmp_path / file, code=2)
    assert "is there and is not" in line
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_the_folder_of_a_cluster() -> None:
    stderr = call("cluster", "--folder", "/proc/certificates", code=2)[1]
    assert "--folder /proc/certificates: cannot be made" in stderr
    assert "compiling" not in stderr


def test_nothing_is_left_where_the_work_cannot_begin(model: Path, tmp_path: Path) -> None:
    reported("score", model, tmp_path / "no data", tmp_path / "new/scores", code=3)
    for command, file in FILES.items():
        reported(command, tmp_path / "no run", "--out", tmp_path / file, code=4)
    assert list(tmp_path.iterdir()) == []
