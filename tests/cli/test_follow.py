"""`dmondrian follow` as a process: files come in all ways, and the process ends in all ways."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dmondrian.checkpoint import Run, encode_forest
from dmondrian.checkpoint.deltas import read_state

from .command import TIMEOUT, call, start

REFUSED = 3
JOB = """
[data]
path = {path}
target = "y"

[forest]
algorithm = "amf-classifier"
n_estimators = 4
alpha = 0.25
charge_opening = true
feature_scales = "none"
feature_units = "none"

[run]
path = "{run}"
n_shards = 2
checkpoint_every = "1500 rows"

[follow]
score = "incoming"
scores = "scores/{run}"
keep = ["row"]
delta = true
{export}
[cluster]
{cluster}
"""
OWN = "workers = 1\nthreads = 1"


def rows(seed: int, n: int) -> pa.Table:
    """Return rows whose features span the same range, whatever the seed."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 3))
    X[0], X[1] = 0.0, 1.0
    y = (X[:, 0] + 0.3 * rng.normal(size=n) > 0.5).astype(int)
    y[:2] = 0, 1
    return pa.table({**{f"x{j}": X[:, j] for j in range(3)}, "y": y})


def content(seed: int, n: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows(seed, n), sink)
    return bytes(sink.getvalue())


def write_job(
    folder: Path, path: Any = "data", run: str = "run", shared: str = "", export: str = ""
) -> Path:
    job = folder / f"{run}{'-shared' * bool(shared)}.toml"
    cluster = f'scheduler = "{shared}"' if shared else OWN
    (folder / "incoming").mkdir(exist_ok=True)
    job.write_text(JOB.format(path=json.dumps(path), run=run, cluster=cluster, export=export))
    return job


def put(folder: Path, name: str, seed: int, n: int) -> str:
    """Put a file there as a whole; return its path."""
    (folder / f".{name}").write_bytes(content(seed, n))
    return str((folder / f".{name}").rename(folder / name))


def learned(run: Path) -> int:
    """Return the rows of the newest checkpoint."""
    return max((int(path.stem) for path in run.glob("manifests/*.json")), default=0)


def wait(process: subprocess.Popen[str], is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command on the folder `data`; what is left of it is killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def follow(keep: int = 2) -> subprocess.Popen[str]:
        job = write_job(tmp_path)
        started.append(start("follow", job, "--interval", "0.1", "--keep", keep))
        return started[-1]

    yield follow
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def states(run: Path) -> dict[int, bytes]:
    """Return the trees of the newest manifest's shards, however they are stored."""
    opened = Run.open(run)
    manifest = opened.latest()
    assert manifest is not None
    assert manifest.final
    found = {
        number: read_state(opened.get_blob, shard["digest"], name=f"shard {number}")
        for number, shard in manifest.shards.items()
    }
    return {number: encode_forest(state.header, state.trees) for number, state in found.items()}


def test_rows_are_learned_once_whatever_becomes_of_files_and_process(
    following: Callable[..., subprocess.Popen[str]], data: Path, tmp_path: Path, shared: str
) -> None:
    run = tmp_path / "run"
    process = following()
    order = [put(data, "a.parquet", 0, 1000)]
    wait(process, lambda: learned(run) == 1000)
    half = content(1, 700)
    (data / "b.parquet").write_bytes(half[: len(half) // 2])
    order.append(put(data, "c.parquet", 2, 400))
    wait(process, lambda: learned(run) == 1400)
    with (data / "b.parquet").open("ab") as file:
        file.write(half[len(half) // 2 :])
    order.append(str(data / "b.parquet"))
    wait(process, lambda: learned(run) == 2100)
    order.append(put(data, "d.parquet", 3, 30_000))
    wait(process, lambda: learned(run) > 2100)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert 2100 < learned(run) < 32_100
    order.append(put(data, "e.parquet", 4, 300))
    process = following()
    wait(process, lambda: learned(run) == 32_400)
    assert len(list((run / "manifests").iterdir())) < 50
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    assert "stopped; all rows that were learned are saved" in stderr
    assert "32,400 in all, saved in" in stdout
    # The newest two, and one that does without what these differ from.
    assert len(list((run / "manifests").iterdir())) in (2, 3)
    call("train", write_job(tmp_path, order, "straight", shared))
    assert states(run) == states(tmp_path / "straight")
    manifests = [Run.open(one).latest() for one in (run, tmp_path / "straight")]
    there, expected = (one.metrics["progressive"] for one in manifests if one is not None)
    assert there["rows"] == expected["rows"] == 32_400


@pytest.mark.thorough
def test_ctrl_c_while_rows_are_learned_saves_them_and_ends(
    following: Callable[..., subprocess.Popen[str]], data: Path, tmp_path: Path, shared: str
) -> None:
    run = tmp_path / "run"
    process = following()
    order = [put(data, "a.parquet", 0, 40_000)]
    wait(process, lambda: learned(run) > 0)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    position = learned(run)
    assert f"stopped at row {position:,} of 40,000, which is saved" in stderr
    assert 0 < position < 40_000
    stdout, _ = call("follow", write_job(tmp_path, shared=shared), "--once", "--json")
    events = [json.loads(line) for line in stdout.splitlines()]
    (event,) = [event for event in events if event["event"] == "learned"]
    assert (event["rows"], event["n_rows"]) == (40_000 - position, 40_000)
    call("train", write_job(tmp_path, order, "straight", shared))
    assert states(run) == states(tmp_path / "straight")


def put_unlabelled(folder: Path, number: int, n: int) -> str:
    """Put rows without labels there, as a whole, with their numbers; return the path."""
    features = rows(100 + number, n).drop_columns(["y"])
    names = pa.array([f"{number}-{i}" for i in range(n)])
    pq.write_table(features.append_column("row", names), folder / f".{number}")
    return str((folder / f".{number}").rename(folder / f"in{number}.parquet"))


def scored(folder: Path) -> dict[str, tuple[Path, int]]:
    """Return the folder and the checkpoint of each file that is scored."""
    found = {}
    for manifest in folder.glob("*/_manifest.json"):
        record = json.loads((manifest.parent / "_scored.json").read_bytes())
        assert record["file"] not in found
        found[record["file"]] = manifest.parent, record["position"]
    return found


@pytest.mark.thorough
def test_files_without_labels_are_scored_once_whatever_becomes_of_the_process(
    following: Callable[..., subprocess.Popen[str]], data: Path, tmp_path: Path, shared: str
) -> None:
    run, scores, incoming = tmp_path / "run", tmp_path / "scores/run", tmp_path / "incoming"
    process = following(keep=50)
    put(data, "a.parquet", 0, 1000)
    names = [put_unlabelled(incoming, 0, 500)]
    wait(process, lambda: len(scored(scores)) == 1)
    whole = Path(put_unlabelled(incoming, 1, 400)).rename(tmp_path / "whole").read_bytes()
    (incoming / "in1.parquet").write_bytes(whole[:-100])
    names += [put_unlabelled(incoming, number, 300) for number in range(2, 22)]
    wait(process, lambda: len(scored(scores)) >= 4)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = scored(scores)
    assert 4 <= len(before) <= 21
    put(data, "b.parquet", 1, 700)
    with (incoming / "in1.parquet").open("ab") as file:
        file.write(whole[-100:])
    names.append(str(incoming / "in1.parquet"))
    names.append(put_unlabelled(incoming, 22, 140_000))
    process = following(keep=50)
    wait(process, lambda: len(scored(scores)) == len(names))
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    assert "140,000 rows of" in stdout
    found = scored(scores)
    assert sorted(found) == sorted(names)
    assert {name: found[name] for name in before} == before
    assert found[names[0]][1] == 1000
    assert found[names[-1]][1] == found[names[-2]][1] == 1700
    parts = [pq.read_table(file) for file in sorted(scores.glob("*/part-*.parquet"))]
    everything = pa.concat_tables(parts)["row"].to_pylist()
    # A kill while a file is written leaves `name#1`, which no listing shows.
    assert not [one for one in scores.glob("*/*probe*") if "#" not in one.name]
    assert len(everything) == len(set(everything)) == 500 + 400 + 20 * 300 + 140_000
    table = DeltaTable(str(scores)).to_pyarrow_table()
    assert table.sort_by("row").equals(pa.concat_tables(parts).sort_by("row").cast(table.schema))
    for name in (names[0], names[1], names[-2]):  # what the model of that row predicts by itself
        out = tmp_path / "again" / Path(name).stem
        folder, position = found[name]
        words = ("--keep", "row", "--scheduler", shared)
        call("score", f"{run}@{position}", name, out, *words)
        assert sorted(part.name for part in out.glob("part-*")) == ["part-000000.parquet"]
        assert (out / "part-000000.parquet").read_bytes() == (
            folder / "part-000000.parquet"
        ).read_bytes()


LABELS = """
[labels]
path = "labels"
key = "id"
joined = "joined"
"""


def put_pair(folder: Path, number: int, n: int) -> pa.Table:
    """Put rows without labels into `data`; return their keys and labels."""
    whole = rows(number, n).append_column("id", pa.array(range(1000 * number, 1000 * number + n)))
    pq.write_table(whole.drop_columns(["y"]), folder / "data" / f"{number}.parquet")
    return whole.select(["id", "y"])


def test_rows_are_scored_when_they_come_and_learned_when_their_labels_do(
    tmp_path: Path, data: Path, shared: str
) -> None:
    (tmp_path / "labels").mkdir()
    job = write_job(tmp_path, shared=shared)
    text = job.read_text().replace('"incoming"', '"data"').replace('["row"]', '["id"]')
    job.write_text(text + LABELS)
    first = put_pair(tmp_path, 0, 500)
    _, stderr = call("follow", job, "--once")
    assert "no label of a row has come yet" in stderr
    mixed = first.take(np.random.default_rng(0).permutation(500))
    pq.write_table(mixed.slice(0, 400), tmp_path / "labels" / "0.parquet")
    stdout, _ = call("follow", job, "--once")
    assert "400 labels of" in stdout
    assert "after their rows (medians)" in stdout
    assert "400 rows learned, 400 in all" in stdout
    assert "500 rows of" in stdout  # scored
    second = put_pair(tmp_path, 1, 300)
    later = pa.concat_tables([mixed.slice(350), second.slice(0, 200)])
    pq.write_table(later, tmp_path / "labels" / "1.parquet")
    stdout, _ = call("follow", job, "--once", "--json")
    events = [json.loads(line) for line in stdout.splitlines()]
    (joined,) = [event for event in events if event["event"] == "joined"]
    assert (joined["rows"], joined["waiting"], joined["repeated"]) == (300, 0, 50)
    assert joined["seconds_later"] >= 0.0
    (event,) = [event for event in events if event["event"] == "learned"]
    assert (event["rows"], event["n_rows"]) == (300, 700)
    stdout, _ = call("describe", tmp_path / "run", "--json")
    delay = {"rows": joined["rows_later"], "seconds": joined["seconds_later"]}
    assert json.loads(stdout)["data"]["label_delay"] == delay
    stdout, _ = call("describe", tmp_path / "run")
    assert f"labels came   {delay['rows']:,.0f} rows and 0:0" in stdout
    assert "after their rows, the median of the last file" in stdout
    positions = [position for _, position in scored(tmp_path / "scores/run").values()]
    assert positions == [400, 400]  # before the labels that came in the same look were learned
    straight = write_job(tmp_path, "joined", "straight", shared)
    call("train", straight, "--set", 'data.exclude=["id"]')
    assert states(tmp_path / "run") == states(tmp_path / "straight")
    _, stderr = call("train", job, code=2)
    assert "[labels] is for `dmondrian follow`" in stderr
    for name in ("include", "categorical"):
        _, stderr = call("follow", job, "--once", "--set", f'data.{name}=["id"]', code=2)
        assert f"{name} has 'id', the key of the labels" in stderr
    (tmp_path / "joined/00000001.parquet").unlink()
    _, stderr = call("follow", job, "--once", code=REFUSED)
    assert "lacks 1 of the files that this run has learned" in stderr


def test_rows_that_were_joined_in_the_folder_of_a_run_that_was_not_begun(
    tmp_path: Path, data: Path, shared: str
) -> None:
    (tmp_path / "labels").mkdir()
    job = write_job(tmp_path, shared=shared)
    text = job.read_text().replace('"incoming"', '"data"').replace('["row"]', '["id"]')
    job.write_text(text + LABELS.replace('"joined"', '"run/rows"'))
    pq.write_table(put_pair(tmp_path, 0, 400), tmp_path / "labels" / "0.parquet")
    assert "400 rows learned" in call("follow", job, "--once")[0]
    known = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"rows", "run.json"} < known
    for name in known - {"rows"}:  # as a process leaves it that is killed before it plans
        path = tmp_path / "run" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "400 rows learned" in call("follow", job, "--once")[0]


def test_rows_that_wait_for_their_labels_are_not_called_learned(
    tmp_path: Path, data: Path, shared: str
) -> None:
    job = write_job(tmp_path, shared=shared)
    text = job.read_text()
    chosen = text[text.index("alpha =") : text.index("[run]")]
    job.write_text(text.replace(chosen, 'drift = "follow"\ndelay = 400\n\n'))
    put(data, "a.parquet", 0, 500)
    stdout, _ = call("follow", job, "--once")
    assert "500 rows came, 500 in all, saved in" in stdout
    assert "400 rows learned by trees, 100 wait for their labels" in stdout


def test_the_newest_model_is_exported(data: Path, tmp_path: Path, shared: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    job = write_job(tmp_path, shared=shared, export=f'export = "{file.name}"')
    put(data, "a.parquet", 0, 500)
    call("follow", job, "--once")
    features = {name: [[0.9]] for name in ("x0", "x1", "x2")}
    answers = []
    for _ in range(2):
        session = onnxruntime.InferenceSession(file)
        kinds = {one.name: one.type for one in session.get_inputs()}
        assert set(kinds) == set(features)
        arrays = {
            name: np.array(value, np.float32 if kinds[name] == "tensor(float)" else np.float64)
            for name, value in features.items()
        }
        answers.append(float(session.run(["probabilities"], arrays)[0][0, 1]))
        put(data, "b.parquet", 1, 500)
        call("follow", job, "--once")
    assert answers[0] != answers[1]
    assert not list(tmp_path.glob(".model.onnx*"))
    newest = file.read_bytes()
    file.unlink()  # as if the process had been killed before it wrote
    call("follow", job, "--once")
    assert file.read_bytes() == newest


def test_one_look_and_its_exit_codes(data: Path, tmp_path: Path, shared: str) -> None:
    job = write_job(tmp_path, shared=shared)
    _, stderr = call("follow", job, "--once", code=REFUSED)
    assert "no Parquet file has come to" in stderr
    put(data, "a.parquet", 0, 500)
    stdout, _ = call("follow", job, "--once")
    assert "500 rows learned, 500 in all" in stdout
    stdout, stderr = call("follow", job, "--once")
    assert stdout == ""
    assert "there was nothing to do" in stderr
    _, stderr = call("follow", job, "--once", "--set", "forest.alpha=0.5", code=4)
    assert "[forest] alpha: 0.25 there, 0.5 here" in stderr
    _, stderr = call("follow", job, "--interval", "0", code=2)
    assert "interval is 0.0; expected seconds" in stderr
