"""The frozen stream: numbering, cutting, shuffling, digest, and its form on disk."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dmondrian.data import BLOCK_ROWS, Plan, make_plan, read_block, read_chunk
from dmondrian.data.plan import Group, arrange
from dmondrian.data.shuffle import permutation
from dmondrian.errors import CorruptError, ParameterError
from tests.flipped import carries_checksums

from .conftest import Write


def example(rows: int, seed: int = 0) -> dict[str, pa.Array]:
    draws = np.random.default_rng(seed)
    return {
        "x": pa.array(np.arange(rows, dtype=np.float64)),
        "colour": pa.array(draws.choice(["red", "green", "blue"], rows)),
        "y": pa.array(draws.choice(["no", "yes"], rows)),
    }


@pytest.fixture
def folder(write: Write) -> Path:
    write(example(100), "two/a.parquet", row_group_size=30)
    return write(example(50, 1), "two/b.parquet", row_group_size=50).parent


def test_blocks_number_the_rows_in_file_order(folder: Path) -> None:
    plan = make_plan(folder, target="y")
    assert [block.rows for block in plan.blocks] == [30, 30, 30, 10, 50]
    assert [block.position for block in plan.blocks] == [0, 30, 60, 90, 100]
    assert [block.index for block in plan.blocks] == [0, 1, 2, 3, 4]
    assert [Path(block.uri).name for block in plan.blocks] == ["a.parquet"] * 4 + ["b.parquet"]
    assert plan.n_rows == 150


def test_long_row_group_is_cut(write: Write) -> None:
    rows = 2 * BLOCK_ROWS + 5
    plan = make_plan(write(example(rows), row_group_size=rows), target="y")
    assert [(block.offset, block.rows) for block in plan.blocks] == [
        (0, BLOCK_ROWS),
        (BLOCK_ROWS, BLOCK_ROWS),
        (2 * BLOCK_ROWS, 5),
    ]
    x = np.concatenate([read_block(plan, block).X[:, 0] for block in plan.blocks])
    np.testing.assert_array_equal(x, (np.arange(rows) / (rows - 1)).astype(np.float32))


@pytest.mark.parametrize("rows", [100, BLOCK_ROWS + 7])
def test_shuffle_reads_every_row_once_in_an_order_fixed_by_the_seed(
    write: Write, rows: int
) -> None:
    path = write(example(rows), row_group_size=max(rows // 3, rows - 100))
    streams = []
    for seed in (1, 1, 2):
        plan = make_plan(path, target="y", shuffle=True, seed=seed)
        parts = [read_chunk(plan, chunk).X[:, 0] for chunk in plan.chunks]
        streams.append(np.concatenate(parts))
    expected = (np.arange(rows) / (rows - 1)).astype(np.float32)
    np.testing.assert_array_equal(streams[0], streams[1])
    assert not np.array_equal(streams[0], streams[2])
    np.testing.assert_array_equal(np.sort(streams[0]), expected)
    assert np.mean(np.diff(streams[0]) > 0) == pytest.approx(0.5, abs=0.1)


def test_shuffle_moves_row_groups_and_the_rows_of_one_stay_together(folder: Path) -> None:
    orders = {
        tuple(b.group for b in make_plan(folder, target="y", shuffle=True, seed=seed).blocks)
        for seed in range(20)
    }
    assert len(orders) > 10
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)


def test_a_plan_that_an_earlier_version_shuffled_keeps_its_order(resources: Path) -> None:
    plan = Plan.from_parquet((resources / "shuffled_plan.parquet").read_bytes())
    digest = "e58eb77d472a6dbe58acfc638bdb79010af3924b69201d610295718bec7d6cb9"
    assert plan.digest == digest
    assert [(block.group, block.position) for block in plan.blocks] == [(1, 0), (0, 40), (2, 70)]
    groups = [
        Group(block.uri, block.size, block.stamp, block.row_group, block.rows)
        for block in sorted(plan.blocks, key=lambda block: block.group)
    ]
    again = Plan(plan.schema, arrange(groups, True, plan.seed), True, plan.seed)
    assert again.digest == digest
    assert Plan.from_parquet(again.to_parquet()).chunks == plan.chunks


def test_permutation_is_the_same_on_every_machine_and_version() -> None:
    assert permutation(0, 0, 8).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert permutation(7, 2**64 - 1, 8).tolist() == [1, 4, 0, 2, 3, 5, 7, 6]


def test_equal_sources_give_equal_plans_and_bytes(folder: Path) -> None:
    first, second = (make_plan(folder, target="y", shuffle=True, seed=3) for _ in range(2))
    assert first == second
    assert first.digest == second.digest
    assert first.to_parquet() == second.to_parquet()
    for chunk in first.chunks:
        a, b = read_chunk(first, chunk), read_chunk(second, chunk)
        assert a.X.tobytes() == b.X.tobytes()
        assert a.y is not None
        assert b.y is not None
        assert a.y.tobytes() == b.y.tobytes()


def test_digest_changes_with_everything_that_changes_the_stream(folder: Path, write: Write) -> None:
    base = make_plan(folder, target="y").digest
    others = [
        make_plan(folder, target="y", shuffle=True).digest,
        make_plan(folder, target="y", shuffle=True, seed=1).digest,
        make_plan(folder, target="y", exclude=["x"]).digest,
        make_plan(folder / "a.parquet", target="y").digest,
    ]
    os.utime(folder / "b.parquet", ns=(1, 1_700_000_000_123_456_789))
    others.append(make_plan(folder, target="y").digest)
    write(example(50, 2), "two/b.parquet", row_group_size=50)
    others.append(make_plan(folder, target="y").digest)
    assert len({base, *others}) == 7


def test_stored_plan_comes_back_whole(folder: Path) -> None:
    plan = make_plan(folder, target="y", shuffle=True, seed=2**64 - 1)
    back = Plan.from_parquet(plan.to_parquet())
    assert back == plan
    assert back.digest == plan.digest
    assert back.notes == plan.notes
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_pages_of_a_stored_plan_have_checksums(folder: Path) -> None:
    assert carries_checksums(make_plan(folder, target="y").to_parquet())


def test_truncated_plan_is_refused(folder: Path) -> None:
    data = make_plan(folder, target="y").to_parquet()
    for length in (0, 4, len(data) // 2, len(data) - 1):
        with pytest.raises(CorruptError):
            Plan.from_parquet(data[:length])


def test_plan_with_any_flipped_bit_is_refused_or_equal(folder: Path) -> None:
    plan = make_plan(folder, target="y")
    data = plan.to_parquet()
    refused = 0
    for place in range(0, len(data), 17):
        altered = bytearray(data)
        altered[place] ^= 4
        try:
            back = Plan.from_parquet(bytes(altered))
        except CorruptError:
            refused += 1
        else:
            assert back.digest == plan.digest
            assert back.blocks == plan.blocks
    assert refused > 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 1.5},
        {"seed": True},
        {"task": "ranking"},
        {"infinite": "drop"},
        {"null_target": "keep"},
        {"max_categories": 0},
        {"max_categories": "many"},
        {"exclude": [3]},
        {"exclude": ["y"]},
        {"weight": "y"},
    ],
)
def test_wrong_options_are_refused(folder: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        make_plan(folder, target="y", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "of", [{"target": None}, {"target": "y", "task": "regression"}], ids=["density", "numbers"]
)
def test_classes_are_refused_where_there_are_none(folder: Path, of: dict[str, Any]) -> None:
    with pytest.raises(
        ParameterError, match="classes are for classification alone: leave them out"
    ):
        make_plan(folder, classes=[0, 1], **of)
