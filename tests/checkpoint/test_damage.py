"""Damaged and crafted run folders: found, named, passed over, and repaired by the same state."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmondrian.checkpoint import Run
from dmondrian.errors import (
    CorruptError,
    StoreError,
)
from tests.checkpoint.run_folders import ASKED, PLAN, SHARD, blob_of, commit, file_of


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


DAMAGES = [flip, truncate, empty, lengthen, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_blob_falls_back_to_the_parent_and_is_repaired(run: Run, damage: Any) -> None:
    before = file_of(run, 30).read_bytes()
    name = blob_of(run, 30).name
    damage(blob_of(run, 30))
    with pytest.warns(UserWarning, match=f"position 30 is passed over: .*{name}"):
        latest = run.latest()
    assert latest is not None
    assert latest.position == 20
    assert run.latest(verify=False).position == 30  # type: ignore[union-attr]  # there is one: 30
    with pytest.raises(CorruptError, match=name):
        Run.open(f"{run.url}@30").latest()
    if damage is Path.unlink:
        commit(run, 30, 20)
    else:
        with pytest.warns(UserWarning, match="damaged and is written again"):
            commit(run, 30, 20)
    assert run.latest().position == 30  # type: ignore[union-attr]  # there is one: 30
    assert file_of(run, 30).read_bytes() == before


@pytest.mark.parametrize("damage", [flip, truncate, empty, lengthen])
def test_a_damaged_manifest_is_passed_over_and_replaced(run: Run, damage: Any) -> None:
    before = file_of(run, 30).read_bytes()
    damage(file_of(run, 30))
    with pytest.warns(UserWarning, match=r"manifests/000000000030\.json"):
        latest = run.latest()
    assert latest is not None
    assert latest.position == 20
    with pytest.warns(UserWarning, match="damaged and is written again"):
        commit(run, 30, 20)
    assert file_of(run, 30).read_bytes() == before


def test_every_single_bit_of_a_manifest_counts(run: Run) -> None:
    path = file_of(run, 20)
    data = path.read_bytes()
    whole = run.manifest(20)
    rng = np.random.default_rng(0)
    for at in rng.choice(len(data) * 8, 300, replace=False):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << (at % 8)
        path.write_bytes(changed)
        try:
            assert run.manifest(20) == whole  # a blank turned into another blank
        except CorruptError as error:
            assert "000000000020.json" in str(error)  # noqa: PT017 - a changed blank raises nothing


def test_fallback_goes_to_the_parent_and_not_beside_it(tmp_path: Path) -> None:
    run = Run.create(tmp_path, ASKED)
    commit(run, 10)
    commit(run, 15, 10)
    commit(run, 20, 10)
    truncate(blob_of(run, 20))
    with pytest.warns(UserWarning, match="position 20"):
        latest = run.latest()
    assert latest is not None
    assert latest.position == 10


def test_nothing_whole_is_none(run: Run) -> None:
    for position in run.manifests():
        flip(blob_of(run, position))
    with pytest.warns(UserWarning, match="passed over"):
        assert run.latest() is None


def test_a_failing_store_is_not_taken_for_damage(run: Run) -> None:
    path = blob_of(run, 30)
    path.unlink()
    path.symlink_to(path)  # an error of the system that is neither "missing" nor "other bytes"
    with pytest.raises(StoreError, match="symbolic links"):
        run.latest()


COMMITTER = """
import os, sys
from dmondrian.checkpoint import Run
run = Run.create(sys.argv[1], {"plan": None})
position, parent = 1, None
while True:
    data = [os.urandom(200_000) for _ in range(3)]
    shards = {n: {"digest": run.put_blob(d), "bytes": len(d)} for n, d in enumerate(data)}
    parent = run.commit(position, shards, {}, parent)
    position += 1
"""


@pytest.mark.parametrize("wait", [0.03, 0.1, 0.2])
def test_a_killed_run_has_whole_checkpoints_only(tmp_path: Path, wait: float) -> None:
    url = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", COMMITTER, str(url)])
    while not (url / "manifests").is_dir():
        time.sleep(0.01)
    time.sleep(wait)
    process.kill()
    process.wait()
    run = Run.create(url, {"plan": None})
    positions = run.manifests()
    assert positions == list(range(1, len(positions) + 1))
    for position in positions:
        assert run.manifest(position, verify=True).parent == (position - 1 or None)


def test_a_manifest_from_elsewhere_is_refused(run: Run, tmp_path: Path) -> None:
    other = Run.create(tmp_path / "other", {**ASKED, "plan": "q" * 64})
    commit(other, 40)
    file_of(run, 40).write_bytes(file_of(other, 40).read_bytes())
    file_of(run, 50).write_bytes(file_of(run, 30).read_bytes())
    for position in (40, 50):
        with pytest.raises(CorruptError, match="copied from elsewhere"):
            run.manifest(position)


def test_a_crafted_manifest_cannot_name_a_path(run: Run) -> None:
    from dmondrian.checkpoint.document import seal

    good = {"format": 1, "position": 40, "plan": ASKED["plan"], "parent": None, "metrics": {}}
    good |= {"final": False, "shards": {"0": SHARD}}
    file_of(run, 40).write_bytes(seal(good))
    assert run.manifest(40).shards == {0: SHARD}
    for change in (
        {"shards": {"0": {"digest": "../../etc/passwd", "bytes": 1}}},
        {"shards": {"0": {"digest": "0" * 64 + "\n", "bytes": 1}}},
        {"shards": {"0": {"digest": "0" * 64, "bytes": -1}}},
        {"shards": {"0": {"digest": "0" * 64, "bytes": True}}},
        {"shards": {"../0": SHARD}},
        {"shards": {"0": {**SHARD, "base": {"digest": "../../etc/passwd", "bytes": 1}}}},
        {"shards": {"0": {**SHARD, "base": {**SHARD, "base": SHARD}}}},
        {"shards": {"0": {**SHARD, "base": None}}},
        {"shards": [SHARD]},
        {"shards": None},
        {"position": "40"},
        {"position": None},
        {"parent": 40},
        {"parent": 1.5},
        {"final": 1},
        {"metrics": []},
        {"plan": 3},
        {"format": 3},
    ):
        file_of(run, 40).write_bytes(seal({**good, **change}))
        with pytest.raises(CorruptError, match="40"):
            run.manifest(40)


@pytest.mark.parametrize("damage", [flip, truncate, empty])
def test_damaged_run_json(run: Run, damage: Any) -> None:
    damage(Path(run.url) / "run.json")
    for open_again in (lambda: Run.open(run.url), lambda: Run.create(run.url, ASKED, PLAN)):
        with pytest.raises(CorruptError, match=r"run\.json"):
            open_again()


def test_a_torn_plan_is_written_again_and_a_whole_one_stands(run: Run) -> None:
    path = Path(run.url) / "plan.parquet"
    truncate(path)
    with pytest.warns(UserWarning, match=r"plan\.parquet"):
        Run.create(run.url, ASKED, PLAN)
    assert path.read_bytes() == PLAN
    Run.create(run.url, ASKED, b"PAR1 written by another pyarrow PAR1")
    assert path.read_bytes() == PLAN
