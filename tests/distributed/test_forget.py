"""A run without the rows of some keys has the bytes of one that never had them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import (
    AMFClassifier,
    CheckpointError,
    DataError,
    MondrianForestRegressor,
    ParameterError,
)
from dmondrian.distributed import TrainedRun, forget, train
from dmondrian.estimators import base
from tests.cli.command import call
from tests.distributed.conftest import SETTLED, digests

KEYS = [3, 17, 40]
ROWS = 900


def write(folder: Path, number: int, *, without: bool) -> None:
    """Rows of 60 people; one is in a category of their own, one has the largest number."""
    random = np.random.default_rng(number)
    who, x = random.integers(0, 60, ROWS), random.random(ROWS)
    kind = np.where(who == 3, "alone", np.array(["a", "b"])[who % 2])
    table = pa.table(
        {"who": who, "x": np.where(who == 17, 50.0 + x, x), "kind": kind, "y": x > 0.4 + who / 200}
    )
    folder.mkdir(exist_ok=True)
    with pq.ParquetWriter(folder / f"{number}.parquet", table.schema) as writer:
        for first in range(0, ROWS, 400):  # row groups are what a shuffle mixes
            group = table.slice(first, 400)
            if without:
                group = group.filter(pc.invert(pc.is_in(group["who"], pa.array(KEYS))))
            writer.write_table(group)


def trained(
    folder: Path, client: Client, *, without: bool, shuffle: bool, alpha: float | str = 0.25
) -> TrainedRun:
    """Train a run on two files, and go on with a third."""
    settings = {**SETTLED, "alpha": alpha, "feature_scales": "learned"}
    forest = AMFClassifier(n_estimators=3, random_state=7, warmup_rows=600, **settings)
    data = folder / "data"
    for numbers in (range(2), range(2, 3)):
        for number in numbers:
            write(data, number, without=without)
        run = train(
            forest, data, target="y", run=folder / "run", client=client, exclude=["who"],
            n_shards=2, shuffle=shuffle,
        )  # fmt: skip
    return run


def test_keys_in_no_row_are_counted_and_files_may_lose_all_rows(
    client: Client, tmp_path: Path
) -> None:
    """The second of two files has rows of one person alone, and comes first."""
    (tmp_path / "data").mkdir()
    run, forest = tmp_path / "run", AMFClassifier(n_estimators=1, random_state=0, **SETTLED)
    for number in (0, 1):
        write(tmp_path, number, without=False)
        rows = pq.read_table(tmp_path / f"{number}.parquet")
        rows = rows.set_column(0, "who", pa.array([7 * number + 1] * ROWS, pa.int8()))
        pq.write_table(rows, tmp_path / f"data/{number}.parquet")
        train(forest, tmp_path / "data", target="y", run=run, client=client, exclude=["who"])
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"\xef\xbb\xbf1\r\n99999\n")  # of an editor of Windows
    out = tmp_path / "out"
    words = ("--keys", keys, "--key", "who", "--scheduler", client.scheduler.address)
    out.mkdir()
    (out / "mine.parquet").write_bytes(b"")
    assert (
        "holds mine.parquet, which is not of a run" in call("forget", run, out, *words, code=4)[1]
    )
    assert [path.name for path in out.iterdir()] == ["mine.parquet"]
    (out / "mine.parquet").unlink()
    stdout, _ = call("forget", run, out, *words)
    assert "1 key of 2 is in no row" in stdout
    certificate = json.loads((out / "forgotten.json").read_text())
    assert certificate["keys"]["in_no_row"] == 1
    assert (certificate["rows_left_out"], certificate["rows"]) == (ROWS, ROWS)
    never = train(
        forest, tmp_path / "data/1.parquet", target="y", run=tmp_path / "never", client=client,
        exclude=["who"],
    )  # fmt: skip
    assert certificate["states"] == {str(n): d for n, d in digests(never).items()}


def test_the_seed_that_was_drawn_is_taken_again(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"target": "y", "client": client, "exclude": ["who"]}
    for name in ("with", "without"):
        write(tmp_path / name, 0, without=name == "without")
    drawn = AMFClassifier(n_estimators=1, random_state=None, **SETTLED)
    seed = base.draw_seed(7)
    with monkeypatch.context() as patch:
        patch.setattr(base, "draw_seed", lambda random_state: seed)
        run = train(drawn, tmp_path / "with", run=tmp_path / "run", **options)
    given = AMFClassifier(n_estimators=1, random_state=7, **SETTLED)
    never = train(given, tmp_path / "without", run=tmp_path / "never", **options)
    keys = tmp_path / "keys.txt"
    keys.write_text("".join(f"{key}\n" for key in KEYS))
    done = forget(run.run_url, tmp_path / "out", keys, "who", client=client)
    assert digests(done.run) == digests(never) != digests(run)


def test_parts_of_rows_are_in_the_certificate_and_no_more_than_the_rows_left(
    client: Client, tmp_path: Path
) -> None:
    """What the certificate lists makes the states; parts that were merged are other bytes."""
    random, n = np.random.default_rng(0), 12
    rows = pa.table({"who": range(n), "x": random.random(n), "y": 1e3 * random.random(n)})
    pq.write_table(rows, tmp_path / "rows.parquet")
    forest = MondrianForestRegressor(2, domain="cube", lifetime=1.0, random_state=7)
    options = {"target": "y", "client": client, "exclude": ["who"], "progressive": False}
    parts = {"row_parts": np.int64(10)}  # a number of NumPy is one
    run = train(forest, tmp_path / "rows.parquet", run=tmp_path / "run", **parts, **options)
    keys = tmp_path / "keys.txt"
    keys.write_text("0\n5\n7\n")
    done = forget(run.run_url, tmp_path / "out", keys, "who", client=client)
    found = json.loads((tmp_path / "out/forgotten.json").read_text())
    assert (found["row_parts"], found["row_parts_before"]) == (9, 10)
    for name, row_parts in (("again", found["row_parts"]), ("in_order", None)):
        again = train(
            forest, tmp_path / "out/rows", run=tmp_path / name, row_parts=row_parts, **options
        )
        assert (digests(again) == digests(done.run)) is (row_parts is not None)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.thorough(but="True")
def test_it_has_the_bytes_of_never_having_had_them(
    client: Client, tmp_path: Path, shuffle: bool
) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    run = trained(tmp_path / "with", client, without=False, shuffle=shuffle, alpha="auto")
    never = trained(tmp_path / "without", client, without=True, shuffle=shuffle, alpha="auto")
    assert digests(run) != digests(never)
    keys = tmp_path / "keys.txt"
    keys.write_text("".join(f"{key}\n" for key in KEYS))
    done = forget(run.run_url, tmp_path / "out", keys, "who", client=client)
    assert digests(done.run) == digests(never)
    assert done.run.metrics == never.metrics
    assert done.left_out == run.plan.n_rows - never.plan.n_rows > 0
    certificate = json.loads((tmp_path / "out/forgotten.json").read_text())
    assert certificate["states"] == {str(n): d for n, d in digests(never).items()}
    assert certificate["plan_before"] == run.plan.digest
    assert [file["rows"] for file in certificate["files"]] == [
        pq.read_metadata(tmp_path / f"without/data/{n}.parquet").num_rows for n in range(3)
    ]
    assert certificate["keys"]["in_no_row"] == 0
    assert certificate["files_at_first"] == 2
    assert certificate["options"]["target"] == "y"
    again = forget(run.run_url, tmp_path / "out", keys, "who", client=client)
    assert again.certificate == done.certificate
    assert again.run.summary["rows"] == 0
    keys.write_text("3\n")
    with pytest.raises(CheckpointError, match="finished forgetting of other keys"):
        forget(run.run_url, tmp_path / "out", keys, "who", client=client)
    (tmp_path / "out/forgotten.json").unlink()
    with pytest.raises(CheckpointError, match="rows of other keys were to be forgotten"):
        forget(run.run_url, tmp_path / "out", keys, "who", client=client)
    with pytest.raises(CheckpointError, match="has another run"):
        forget(run.run_url, never.run_url, keys, "who", client=client)


def test_what_cannot_be_forgotten_is_refused(client: Client, tmp_path: Path) -> None:
    run = trained(tmp_path, client, without=False, shuffle=False)
    keys = tmp_path / "keys.parquet"
    pq.write_table(pa.table({"who": KEYS, "name": ["x"] * 3}), keys)
    empty, words = tmp_path / "empty.txt", tmp_path / "words.txt"
    empty.write_text("\n")
    words.write_text("anna\n")
    out = tmp_path / "out"
    with pytest.raises(DataError, match="lists no key"):
        forget(run.run_url, out, empty, "who", client=client)
    with pytest.raises(ParameterError, match="no values of the column"):
        forget(run.run_url, out, words, "who", client=client)
    words.write_text("99999\n")
    with pytest.raises(DataError, match=r"no row .* has one of the 1 keys"):
        forget(run.run_url, out, words, "who", client=client)
    pq.write_table(pa.table({"who": list(range(60))}), tmp_path / "every.parquet")
    with pytest.raises(DataError, match="nothing would be left to learn"):
        forget(run.run_url, out, tmp_path / "every.parquet", "who", client=client)
    for within in (run.run_url, f"{run.run_url}/new"):
        with pytest.raises(ParameterError, match="or within it"):
            forget(run.run_url, within, keys, "who", client=client)
    assert not out.exists() or not list(out.iterdir())
    with pytest.raises(DataError, match="cannot read keys"):
        forget(run.run_url, out, keys, "whose", client=client)
    with pytest.raises(DataError, match="has no column 'name'"):
        forget(run.run_url, out, keys, "name", client=client)
    file = tmp_path / "data/1.parquet"
    file.rename(tmp_path / "elsewhere.parquet")
    _, stderr = call(
        "forget", run.run_url, out, "--keys", keys, "--key", "who", "--workers", 1, code=3
    )
    assert "1 are gone and 0 changed" in stderr
    assert str(file) in stderr
