"""Commands pointed at data that cannot be read as it is: refused by name, with what to do."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.cli.command import call, digests, events, finish
from tests.encrypted import write_encrypted

REFUSED = 3


def rows(first: int, n: int) -> pa.Table:
    random = np.random.default_rng(first)
    x = random.random(n)
    return pa.table({"id": np.arange(first, first + n), "x": x, "y": (x > 0.5).astype("int64")})


def write_job(folder: Path, path: str | list[str], name: str = "job.toml") -> Path:
    """Write a job of two small trees beside its data."""
    job = folder / name
    job.write_text(
        f"[data]\npath = {json.dumps(path)}\ntarget = 'y'\nexclude = ['id']\n"
        "[forest]\nalgorithm = 'amf-classifier'\nn_estimators = 2\nalpha = 0.5\n"
        "charge_opening = true\nfeature_scales = 'none'\nfeature_units = 'none'\n"
        "[run]\npath = 'run'\n"
    )
    return job


def train(job: Path, shared: str, code: int = 0) -> tuple[str, str]:
    return call("train", job, "--set", f"cluster.scheduler={shared}", code=code)


@pytest.fixture(scope="module")
def plain(shared: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job, its plain data and its run."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "data").mkdir()
    pq.write_table(rows(0, 200), folder / "data/a.parquet")
    train(write_job(folder, "data"), shared)
    return folder


def test_parts_of_a_table_are_refused_by_every_command_and_its_live_files_learned(
    plain: Path, shared: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    write_deltalake(str(table), rows(0, 200))
    DeltaTable(str(table)).delete("y = 1 and id < 150")
    scheduler = ("--scheduler", shared)
    for words in (
        ("train", write_job(tmp_path, "table/*.parquet")),
        ("schema", f"{table}/part*"),
        ("score", plain / "run", f"{table}/*", tmp_path / "scores", *scheduler),
        ("evaluate", plain / "run", table / "*.parquet", *scheduler),
    ):
        _, stderr = call(*words, code=REFUSED)
        assert f"{table} is a Delta table" in stderr
    assert not (tmp_path / "run/run.json").exists()
    stdout, _ = train(write_job(tmp_path, "table"), shared)
    n_live = DeltaTable(str(table)).to_pyarrow_table().num_rows
    assert n_live < 200
    assert f"{n_live} rows in" in stdout
    stdout, _ = call("evaluate", plain / "run", table, *scheduler, "--json")
    assert events(stdout)[-1]["metrics"]["rows"] == n_live
    call("score", plain / "run", table, tmp_path / "scores", "--keep", "id", *scheduler)
    scored = pq.read_table(tmp_path / "scores")["id"].to_pylist()
    assert sorted(scored) == sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())
    assert "x" in call("schema", table)[0]
    write_deltalake(str(table), rows(200, 50), mode="append")
    DeltaTable(str(table)).delete("y = 0 and id < 20")
    stdout, stderr = train(write_job(tmp_path, "table"), shared)
    assert "50 rows in" in stdout
    reported = re.search(r"note: of the rows that the stream has .*, (\d+) were deleted", stderr)
    assert reported is not None
    assert reported[0] in call("describe", tmp_path / "run")[1]


def test_lost_link_is_refused_by_every_command(plain: Path, shared: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.parquet").symlink_to(plain / "data/a.parquet")
    (data / "b.parquet").symlink_to(tmp_path / ".git/annex/objects/b.parquet")
    scheduler = ("--scheduler", shared)
    for words in (
        ("train", write_job(tmp_path, "data")),
        ("schema", data),
        ("score", plain / "run", data, tmp_path / "scores", *scheduler),
        ("evaluate", plain / "run", data / "*.parquet", *scheduler),
    ):
        _, stderr = call(*words, code=REFUSED)
        assert f"{data}/b.parquet is a link to {tmp_path}/.git/annex/objects/b.parquet" in stderr
        assert "git annex get" in stderr


def grow(run: Path, n_trees: int, shared: str, code: int = 0) -> tuple[str, str]:
    return call("grow", run, "--n-estimators", n_trees, "--scheduler", shared, code=code)


def as_earlier_version(run: Path) -> None:
    """Take from a run what earlier versions did not write: places, and fingerprints."""
    (run / "places.json").unlink()
    for path in (run / "plan.parquet", *run.glob("plans/*.parquet")):
        plan = pq.read_table(path)
        pq.write_table(plan.drop_columns(["fingerprint"]), path)


@pytest.mark.parametrize("is_earlier", [False, True])
@pytest.mark.thorough(but="False")
def test_run_that_was_copied_with_its_data_goes_on(
    plain: Path, shared: str, tmp_path: Path, is_earlier: bool
) -> None:
    shutil.copytree(plain, tmp_path / "old")
    old, new = tmp_path / "old", tmp_path / "new"
    train(old / "job.toml", shared)
    if is_earlier:
        as_earlier_version(old / "run")
    shutil.move(old, new)
    pq.write_table(rows(200, 100), new / "data/b.parquet")
    stdout, stderr = train(new / "job.toml", shared)
    assert "100 rows in" in stdout
    assert f"{plain}/data/a.parquet is {new}/data/a.parquet" in stderr
    (described,) = events(call("describe", new / "run", "--json")[0])
    assert described["data"]["files"] == [f"{new}/data/{name}.parquet" for name in "ab"]
    shutil.move(new, tmp_path / "third")
    grow(tmp_path / "third/run", 3, shared)
    shutil.move(tmp_path / "third", new)
    train(new / "job.toml", shared)
    assert "has 4 trees" in grow(new / "run", 4, shared)[0]
    still = tmp_path / "still"
    (still / "data").mkdir(parents=True)
    pq.write_table(rows(0, 200), still / "data/a.parquet")
    train(write_job(still, "data"), shared)
    pq.write_table(rows(200, 100), still / "data/b.parquet")
    train(still / "job.toml", shared)
    grow(still / "run", 3, shared)
    grow(still / "run", 4, shared)
    for run in ("run", "run/growth/*"):
        for moved, there in zip(sorted(new.glob(run)), sorted(still.glob(run)), strict=True):
            assert digests(moved) == digests(there)


def test_grown_copy_reads_the_data_beside_it(plain: Path, shared: str, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "copy")
    grow(tmp_path / "copy/run", 3, shared)
    (part,) = (tmp_path / "copy/run").glob("growth/*")
    places = json.loads((part / "places.json").read_text())
    assert next(iter(places["files"].values()))[0] == str(tmp_path / "copy/data/a.parquet")
    as_earlier_version(tmp_path / "copy/run")
    shutil.copytree(tmp_path / "copy", tmp_path / "lost")
    (tmp_path / "lost/data").rename(tmp_path / "lost/elsewhere")
    (plain / "data").rename(plain / "hidden")
    try:
        _, stderr = grow(tmp_path / "lost/run", 4, shared, code=REFUSED)
        assert f"1 of the 1 file is gone ({plain}/data/a.parquet)" in stderr
        assert "train the run again with a job that names where they are now" in stderr
        train(write_job(tmp_path / "lost", "elsewhere"), shared)
        grow(tmp_path / "lost/run", 4, shared)
    finally:
        (plain / "hidden").rename(plain / "data")


def test_data_that_cannot_be_known_again_are_refused_with_the_reason(
    plain: Path, shared: str, tmp_path: Path
) -> None:
    shutil.copytree(plain, tmp_path / "copy")
    as_earlier_version(tmp_path / "copy/run")
    data = tmp_path / "copy/data/a.parquet"
    data.write_bytes(data.read_bytes())  # with another time
    _, stderr = train(tmp_path / "copy/job.toml", shared, code=REFUSED)
    assert f"{data} has its name, size and row groups, but another time of change" in stderr
    assert "cp -p" in stderr
    shutil.copy2(plain / "data/a.parquet", data)
    train(tmp_path / "copy/job.toml", shared)


def test_encrypted_file_ends_a_command_with_a_message(
    plain: Path, shared: str, tmp_path: Path
) -> None:
    table = rows(0, 200).append_column("secret", pa.array(np.arange(200.0)))
    path = write_encrypted(tmp_path / "a.parquet", table, ["secret"], plain_footer=True)
    _, stderr = finish("schema", path, code=REFUSED)
    assert f"{path}: the column 'secret' is encrypted" in stderr
    job = write_job(tmp_path, path.name)
    assert "is encrypted" in train(job, shared, code=REFUSED)[1]
    excluded = ("--set", 'data.exclude=["id", "secret"]')
    call("train", job, "--set", f"cluster.scheduler={shared}", *excluded)
    assert digests(tmp_path / "run") == digests(plain / "run")
    call("evaluate", plain / "run", path, "--scheduler", shared)
    out = tmp_path / "scores"
    kept = ("--keep", "secret", "--scheduler", shared)
    assert "is encrypted" in call("score", plain / "run", path, out, *kept, code=REFUSED)[1]
    hidden = write_encrypted(tmp_path / "b.parquet", table, ["secret"], plain_footer=False)
    _, stderr = call("schema", hidden, code=REFUSED)
    assert "its footer is encrypted" in stderr
    assert "write it again" not in stderr
