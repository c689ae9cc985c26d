"""First rows that two streams share: those, and no more, that reading both gives alike."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.data import Plan, common_rows, extend_plan, make_plan, read_chunk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 40 rows in row groups of 10."""
    for k in range(3):
        write(tmp_path / "rows" / f"{k}.parquet", k)
    return tmp_path / "rows"


def write(path: Path, seed: int) -> None:
    path.parent.mkdir(exist_ok=True)
    x = np.random.default_rng(seed).random(40)
    pq.write_table(pa.table({"x": x, "z": x[::-1], "y": x + 1.0}), path, row_group_size=10)


def plan(data: Any, **options: Any) -> Plan:
    return make_plan(data, target="y", task="regression", **options)


def labels(one: Plan) -> np.ndarray:
    return np.concatenate([read_chunk(one, chunk).y for chunk in one.chunks])


def alike(one: Plan, other: Plan) -> int:
    """First rows of both streams that are the same when they are read."""
    pairs = zip(labels(one), labels(other), strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(one.n_rows, other.n_rows))


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 3}], ids=["plain", "mixed"])
def test_streams_of_the_same_files(folder, tmp_path, options) -> None:
    one = plan(folder, **options)
    assert common_rows(one, one) == one.n_rows == 120
    narrow = plan(folder, exclude=["z"], **options)
    assert common_rows(one, narrow) == alike(one, narrow) == 120
    shutil.copytree(folder, tmp_path / "copy")
    for file in (tmp_path / "copy").iterdir():
        os.utime(file, (1.0, 1.0))
    copied = plan(tmp_path / "copy", **options)
    assert common_rows(one, copied) == alike(one, copied) == 120
    assert common_rows(Plan.from_parquet(one.to_parquet()), copied) == 120


def test_streams_that_part(folder, tmp_path) -> None:
    one, first = plan(folder), plan(folder / "0.parquet")
    assert common_rows(one, first) == common_rows(first, one) == alike(one, first) == 40
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    write(other / "1.parquet", 9)
    parted = plan(other)
    assert common_rows(one, parted) == alike(one, parted) == 40
    turned = plan([folder / "1.parquet", folder / "0.parquet"])
    assert common_rows(one, turned) == alike(one, turned) == 0


def test_mixed_streams_share_whole_bands(folder) -> None:
    mixed = plan(folder, shuffle=True, seed=3)
    assert common_rows(mixed, plan(folder)) == 0
    assert common_rows(mixed, plan(folder, shuffle=True, seed=4)) == 0
    assert common_rows(mixed, plan(folder / "0.parquet", shuffle=True, seed=3)) == 0
    write(folder / "3.parquet", 7)
    longer = extend_plan(mixed, folder)
    assert longer.n_rows == 160
    assert common_rows(mixed, longer) == common_rows(longer, mixed) == alike(mixed, longer) == 120


def test_without_fingerprints_name_and_time_decide(folder, tmp_path) -> None:
    def bare(one: Plan) -> Plan:
        return replace(one, blocks=tuple(replace(block, fingerprint="") for block in one.blocks))

    one = plan(folder)
    assert common_rows(bare(one), bare(one)) == common_rows(one, bare(one)) == 120
    shutil.copytree(folder, tmp_path / "copy")
    assert common_rows(bare(one), bare(plan(tmp_path / "copy"))) == 0
