"""`dmondrian init`: a job file that trains as it is, and shows what it found in the data."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.cli.job import build_estimator, read_job
from dmondrian.cli.job_keys import ALGORITHMS
from dmondrian.estimators import ALGORITHMS as ESTIMATORS
from tests.cli.command import ADULT, call, events, manifests

N = 400


def written(folder: Path, **columns: Any) -> Path:
    file = folder / "rows.parquet"
    pq.write_table(pa.table(columns), file)
    return file


def made(data: object, *words: object, folder: Path) -> dict[str, Any]:
    """Make a job file and read it as the command that trains does."""
    file = folder / "job.toml"
    call("init", data, "-o", file, *words)
    assert build_estimator(read_job(file)) is not None
    return tomllib.loads(file.read_text(encoding="utf-8"))


def test_the_file_trains_as_it_is(shared: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Of adult, to standard output, as with `> job.toml`; and in another folder with --out."""
    rows = pq.read_table(ADULT / "part-0001-test.parquet").slice(0, 1500)
    pq.write_table(rows, tmp_path / "adult.parquet")
    monkeypatch.chdir(tmp_path)
    stdout, _ = call("init", "adult.parquet", "--target", "income")
    job = tmp_path / "job.toml"
    job.write_text(stdout)
    reported = tomllib.loads(stdout)
    assert reported["data"] == {"path": "adult.parquet", "target": "income"}
    assert reported["forest"]["algorithm"] == "amf-classifier"
    assert "1,500 rows in 1 file" in stdout
    assert "# 2 classes: <=50K, >50K" in stdout
    call("train", job, "--set", f"cluster.scheduler={shared}", "--set", "forest.n_estimators=2")
    assert manifests(tmp_path / "runs" / "adult")[-1]["position"] == 1500
    (tmp_path / "jobs").mkdir()
    call("init", "adult.parquet", "--target", "income", "-o", "jobs/again.toml")
    again = read_job("jobs/again.toml")
    assert again.data["path"] == "adult.parquet"
    assert again.run["path"] == "jobs/runs/adult"
    other, _ = call("init", "adult.parquet", "--target", "income")
    assert tomllib.loads(other)["run"]["path"] == "runs/adult-2"  # the other one is there


def test_every_line_that_is_commented_out_is_valid(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    data = written(tmp_path, x=draw.random(N), y=draw.choice(["a", "b"], N))
    text, _ = call("init", data, "--target", "y")
    is_key = re.compile(r'# (\w+ = (["\[]|true|[0-9])|\[(score|lags)\])')
    lines = [line[2:] if is_key.match(line) else line for line in text.splitlines()]
    (tmp_path / "job.toml").write_text("\n".join(lines).replace('"COLUMN"', '"x"'))
    job = read_job(tmp_path / "job.toml")
    assert job.score is not None
    assert job.lags == {"columns": ["x"], "lags": [1], "key": "x"}
    assert {"exclude", "categorical", "text", "weight", "shuffle", "null_target", "infinite"} < set(
        job.data
    )
    assert job.run["checkpoint_every"] == "auto"


DRAW = np.random.default_rng(1)
TARGETS = {
    "texts": (DRAW.choice(["a", "b"], N), "amf-classifier"),
    "booleans": (DRAW.random(N) < 0.5, "amf-classifier"),
    "few numbers": (DRAW.integers(0, 5, N), "amf-classifier"),
    "many numbers": (DRAW.integers(0, 10_000, N), "amf-regressor"),
    "fractions": (DRAW.random(N), "amf-regressor"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_the_algorithm_is_that_of_the_target(kind: str, tmp_path: Path) -> None:
    target, wanted = TARGETS[kind]
    data = written(tmp_path, x=DRAW.random(N), y=target)
    assert made(data, "--target", "y", folder=tmp_path)["forest"]["algorithm"] == wanted


def test_how_sure_numbers_are_is_offered_where_it_can_be_learned(tmp_path: Path) -> None:
    data = written(tmp_path, x=DRAW.random(N), y=DRAW.random(N))
    line = "# calibrate = true"
    text, _ = call("init", data, "--target", "y")
    assert line in text
    (tmp_path / "job.toml").write_text(text.replace(line, line[2:]))
    assert read_job(tmp_path / "job.toml").forest["calibrate"] is True
    assert (
        line
        not in call("init", data, "--target", "y", "--algorithm", "mondrian-forest-regressor")[0]
    )


def test_another_algorithm_may_be_asked_for(tmp_path: Path) -> None:
    data = written(tmp_path, x=DRAW.random(N), y=DRAW.integers(0, 5, N))
    reported = made(
        data, "--target", "y", "--algorithm", "online-forest-regressor", folder=tmp_path
    )
    assert reported["forest"]["algorithm"] == "online-forest-regressor"


def test_without_a_target_the_density_is_learned(tmp_path: Path) -> None:
    data = written(tmp_path, x=DRAW.random(N), z=DRAW.random(N))
    stdout, stderr = call("init", data)
    assert tomllib.loads(stdout)["forest"]["algorithm"] == "mondrian-density"
    assert "target" not in tomllib.loads(stdout)["data"]
    assert "no --target was given" in stderr
    assert made(data, folder=tmp_path)["data"] == {"path": "rows.parquet"}


def test_data_that_need_it_are_read_with_what_they_need(shared: str, tmp_path: Path) -> None:
    """Targets that are missing, infinite numbers, and rows sorted by their target."""
    x = DRAW.random(N)
    x[3] = np.inf
    y = [None, *np.sort(DRAW.random(N - 1)).tolist()]
    data = written(tmp_path, x=x, y=y)
    reported = made(data, "--target", "y", folder=tmp_path)
    expected = {"null_target": "drop", "infinite": "clip", "shuffle": True}
    assert reported["data"] == {"path": "rows.parquet", "target": "y", **expected}
    text = (tmp_path / "job.toml").read_text()
    assert "# Note: 1 row with a target 'y' that is null or NaN: dropped" in text
    call("train", tmp_path / "job.toml", "--set", f"cluster.scheduler={shared}")
    assert manifests(tmp_path / "runs" / "rows")[-1]["final"]


def test_names_are_text_of_toml(tmp_path: Path) -> None:
    name = 'a "b" \\ \n[run]\x7f\x1b # ü日'
    data = written(tmp_path, x=DRAW.random(N), **{name: DRAW.choice(["k\ny = 1", "l"], N)})
    reported = made(data, "--target", name, folder=tmp_path)
    assert reported["data"] == {"path": "rows.parquet", "target": name}


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    data = written(tmp_path, x=DRAW.random(N), y=DRAW.random(N))
    file = tmp_path / "job.toml"
    file.write_text("mine")
    _, stderr = call("init", data, "--target", "y", "-o", file, code=2)
    assert "is there already and is not overwritten" in stderr
    assert file.read_text() == "mine"
    _, stderr = call("init", data, "-o", tmp_path / "none" / "job.toml", code=2)
    assert "cannot be written (No such file or directory)" in stderr


def test_mistakes_are_reported(tmp_path: Path) -> None:
    data = written(tmp_path, x=DRAW.random(N), y=DRAW.random(N))
    _, stderr = call("init", data, "--target", "yy", code=3)
    assert "yy" in stderr
    _, stderr = call("init", data, "--algorithm", "amf-regressor", code=2)
    assert "expected --target with it" in stderr
    words = ("--algorithm", "mondrian-density", "--target", "y")
    _, stderr = call("init", data, *words, code=2)
    assert "has no target; leave one of them out" in stderr
    _, stderr = call("init", tmp_path / "none.parquet", code=3)
    assert "does not exist" in stderr
    empty = written(tmp_path, x=[1.0, 2.0], y=["a", "a"])
    _, stderr = call("init", empty, "--target", "y", code=3)
    assert "at least two classes" in stderr


def test_the_algorithms_of_the_help_are_those_that_can_be_trained() -> None:
    assert set(ALGORITHMS) == set(ESTIMATORS) - {"mondrian-features"}  # a transformer alone


def test_as_json(tmp_path: Path) -> None:
    data = written(tmp_path, x=DRAW.random(N), y=DRAW.random(N))
    (reported,) = events(call("init", data, "--target", "y", "--json")[0])
    assert (reported["event"], reported["algorithm"]) == ("job", "amf-regressor")
    assert tomllib.loads(reported["text"])["data"]["target"] == "y"
