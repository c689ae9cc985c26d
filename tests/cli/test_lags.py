"""`[lags]` in job files: mistakes by their line, and every command on a run that has lags."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import distributed
from dmondrian.checkpoint.search_record import FOLDER as FOLDER_OF_SEARCH
from dmondrian.checkpoint.search_record import read_rounds, results
from dmondrian.cli.found_settings import combinations, estimator_of
from dmondrian.cli.job import build_estimator, check_lags, read_job
from dmondrian.distributed.scoring.lagged_rows import FOLDER
from dmondrian.errors import JobError
from dmondrian.store import open_store
from tests.cli.command import PROJECT, TIMEOUT, call, digests, events, manifests

N = 900
JOB = """\
[data]
path = "data"
target = "sold"

[lags]
columns = ["price", "sold"]
lags = [1, 2]
key = "shop"

[forest]
algorithm = "amf-regressor"
n_estimators = 2
learning_rate = 1.0
feature_scales = "none"

[run]
path = "run"
"""


@pytest.fixture
def job(tmp_path: Path, shared: str) -> Path:
    put(tmp_path, 0, 600)
    file = tmp_path / "job.toml"
    file.write_text(f'{JOB}\n[cluster]\nscheduler = "{shared}"\n')
    return file


def put(folder: Path, start: int, stop: int, name: str = "data") -> Path:
    draw = np.random.default_rng(5)
    rows = pa.table(
        {
            "shop": draw.integers(0, 5, N),
            "price": draw.normal(size=N),
            "sold": np.round(draw.normal(size=N), 2),
        }
    )
    (folder / name).mkdir(exist_ok=True)
    path = folder / name / f"{start:04d}.parquet"
    pq.write_table(rows.slice(start, stop - start), path)
    return path


def test_a_run_with_lags_is_trained_scored_and_described(
    job: Path, tmp_path: Path, shared: str
) -> None:
    later = put(tmp_path, 600, N, "later")
    words = ["--set", f"score.path={later}", "--set", f"score.out={tmp_path / 'scores'}"]
    stdout, stderr = call("train", job, *words)
    assert "columns of lags are added: 'price', 'sold' by 'shop', 1, 2 back, with" in stderr
    assert "600 rows with lags written to" in stderr
    assert "bytes a row" in stderr
    assert "300 rows in" in stdout
    assert not (tmp_path / "scores" / FOLDER).exists()
    run = tmp_path / "run"
    described = call("describe", run)[0]
    assert described.count("baseline: last label of the same key") == 3  # RMSE, MAE and R2
    assert "last label of the same key: rmse" in stderr
    assert "lags          'price', 'sold' by 'shop', 1, 2 back" in described
    (facts,) = events(call("describe", run, "--json")[0])
    assert facts["lags"]["columns"] == ["price", "sold"]
    assert facts["lags"]["n_rows"] == 1_000_000
    schema = call("schema", run)[0]
    assert "price-lag_2(price)" in schema
    assert "sold-lag_1" not in schema
    stdout, stderr = call("evaluate", run, tmp_path / "data")
    assert "all 600 rows were learned by the model" in stderr
    stdout, _ = call("evaluate", run, later)
    assert "(all forecast by the model as it is, delay 1 row):" in stdout
    assert "\nThe model learned none of these files. Whether" in stdout
    assert "is not known. It reads labels of earlier rows in lag_1(sold), lag_2(sold).\n" in stdout
    call("report", run, "-o", tmp_path / "page.html", "--partial-dependence", 3)
    page = (tmp_path / "page.html").read_text()
    assert "lag_1(price)" in page
    assert page.count("last label of the same key") > 6  # tiles, charts and the table
    named = str(tmp_path / "data" / "0000.parquet")
    assert f"from {named}, in the order of the files" in page
    assert "/_lags/" not in page
    assert facts["data"]["files"] == [named]
    # The job that the page gives trains the same forest from these files.
    text = html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[1])
    again = tmp_path / "again.toml"
    again.write_text(text)
    call("train", again, "--set", f"cluster.scheduler={shared}")
    assert manifests(tmp_path / "run-again")[-1]["shards"] == manifests(run)[-1]["shards"]
    put(tmp_path, 600, N)
    assert "300 rows learned" in call("follow", job, "--once")[0]
    assert manifests(run)[-1]["position"] == N
    call("copy", run, tmp_path / "copy")
    call("migrate", run, tmp_path / "migrated")
    for model in (tmp_path / "copy", tmp_path / "migrated"):
        assert "300 rows" in call("score", model, later, f"{model}-scores")[0]
    for name in ("copy", "migrated"):
        both = (pq.read_table(tmp_path / f"{one}-scores") for one in ("copy", name))
        assert next(both).equals(next(both))


DROP = """
import ctypes, os, sys
if os.geteuid() == 0:  # one who may write wherever he likes
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def places() -> Iterator[Path]:
    """A folder of a short name: it is where processes have sockets, whose paths are short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.mark.thorough
def test_a_run_that_cannot_be_written_is_evaluated(job: Path, tmp_path: Path, places: Path) -> None:
    later, run = put(tmp_path, 600, N, "later"), tmp_path / "run"
    call("train", job)
    wanted = events(call("evaluate", run, later, "--json")[0])
    folders = [run, *(path for path in run.rglob("*") if path.is_dir())]
    before = sorted(run.rglob("*"))
    for folder in folders:
        folder.chmod(0o555)
    try:
        refused = subprocess.run(
            [sys.executable, "-c", DROP, "-c", f"open({str(run / '_lags' / 'x')!r}, 'w')"],
            capture_output=True, check=False,
        )  # fmt: skip
        if refused.returncode == 0:
            pytest.skip("this user cannot be kept from writing")
        done = subprocess.run(
            [sys.executable, "-c", DROP, "-m", "dmondrian.cli", "evaluate", run, later, "--json",
             "--workers", "1"],
            env={**os.environ, "TMPDIR": str(places)}, cwd=PROJECT, capture_output=True, text=True,
            timeout=TIMEOUT, check=False,
        )  # fmt: skip
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert events(done.stdout) == wanted
    assert f"cannot be written, so rows are written with lags to {places}" in done.stderr
    assert not list(places.glob("dmondrian-lags-*"))
    assert sorted(run.rglob("*")) == before


def test_data_that_lack_what_lags_need_are_refused_before_training(
    job: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pq.read_table(put(tmp_path, 600, N, "later")).drop_columns("sold"), other)
    words = ["--set", f"score.path={other}", "--set", f"score.out={tmp_path / 'scores'}"]
    _, stderr = call("train", job, *words, code=3)
    assert "sold" in stderr
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_search_writes_rows_where_its_run_reads_them(
    job: Path, shared: str, tmp_path: Path
) -> None:
    call("train", job, "--set", f"run.path={tmp_path / 'plain'}")
    table = "\n[search]\nrows = 400\nn_estimators = [1, 2]\ncandidates = 2\n"
    job.write_text(job.read_text() + table)
    _, stderr = call("search", job)
    assert stderr.count("rows with lags written to") == 1
    found = tmp_path / "run"
    best = manifests(found)[-1]
    assert best["position"] == 600
    assert "_lags" in {path.name for path in found.iterdir()}
    assert not (found / "search" / "_lags").exists()
    again = read_job(job)
    with Client(shared) as client:
        own = distributed.search(
            [estimator_of(again, one) for one in combinations(again)], tmp_path / "data",
            target="sold", rows=400, folder=tmp_path / "own", lags=again.lags, client=client,
        )  # fmt: skip
    by_command = read_rounds(open_store(found / FOLDER_OF_SEARCH))
    assert own.candidates == results(by_command, 2)
    assert own.rounds == by_command[0]["rounds"]
    folders = found / "_lags", tmp_path / "own" / "_lags"
    one, other = (pq.read_table(next(place.glob("*.parquet"))) for place in folders)
    assert one.equals(other)
    assert "lag_2(sold)" in one.column_names
    if len(best["shards"]) == 2:
        assert digests(found) == digests(tmp_path / "plain")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("lags.lags=0", r"job.toml.*lags.lags=0|\[lags\] lags: expected an integer of at least 1"),
        ("lags.lags=[]", r"expected an integer of at least 1 or a list of such integers, got"),
        ("lags.lags=true", r"expected an integer of at least 1"),
        ("lags.n_rows=0", r"expected at least 1, got 0"),
        ("lags.columns=[]", r"expected a string or a list of strings"),
        ("lags.differences=1", r"expected true or false"),
        ("lags.shift=1", r"no key 'shift'; did you mean 'lags'"),
        ("lags.colums=x", r"no key 'colums'; did you mean 'columns'"),
        ("lags.lags=[2, 2]", r"\[lags\] lags names a lag twice"),
        ("lags.key=sold", r"\[lags\] columns and key name a column twice"),
        ("data.shuffle=true", r"\[lags\] columns has the target 'sold', and shuffle mixes"),
        ("validation.path=x", r"\[validation\] does not go with \[lags\]: which rows come before"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, override: str, words: str) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    with pytest.raises(JobError, match=words):
        checked(file, override)


def checked(file: Path, *overrides: str) -> None:
    job = read_job(file, overrides)
    check_lags(job, build_estimator(job))


def test_labels_that_come_late_are_no_lags(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    late = 'drift = "follow"\ndelay = 3\nn_estimators'
    file.write_text(JOB.replace('learning_rate = 1.0\nfeature_scales = "none"\n', "").replace(
        "n_estimators", late))  # fmt: skip
    with pytest.raises(JobError, match=r"job.toml:7: \[lags\] lags has 1, and columns the target"):
        checked(file)
    checked(file, "lags.lags=[3, 4]")
    checked(file, "lags.columns=price")


def test_columns_are_needed_and_labels_do_not_go_along(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB.replace('columns = ["price", "sold"]\n', ""))
    with pytest.raises(JobError, match=r"job.toml:5: \[lags\] columns is missing; add it"):
        read_job(file)
    file.write_text(JOB + '\n[labels]\npath = "l"\nkey = "id"\njoined = "j"\n')
    made = read_job(file)
    with pytest.raises(JobError, match=r"job.toml:19: \[labels\] does not go with \[lags\]"):
        check_lags(made, build_estimator(made))


def test_a_job_file_that_is_made_names_lags(tmp_path: Path) -> None:
    put(tmp_path, 0, N)
    stdout, _ = call("init", tmp_path / "data", "--target", "sold")
    start = stdout.index("# [lags]")
    table = stdout[start : stdout.index("\n\n", start)]
    lines = [line.removeprefix("# ") for line in table.splitlines()]
    assert set(tomllib.loads("\n".join(lines))["lags"]) == {"columns", "lags", "key"}
