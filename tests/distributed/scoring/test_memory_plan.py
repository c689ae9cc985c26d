"""Plans of memory: what is promised stays below the limit, and a refusal names one that works."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from dmondrian.checkpoint import Blob
from dmondrian.data import Block
from dmondrian.distributed.scoring import memory_plan
from dmondrian.distributed.scoring.memory_plan import (
    BlobMemory,
    Needs,
    TreePlacement,
    parse_limit,
    place_trees,
    row_needs,
)
from dmondrian.errors import ClusterError, ParameterError

MB = 1 << 20
NEEDS = Needs(task=20 * MB, sums=2 * MB)


def model(*held: int) -> list[BlobMemory]:
    """Shards of so many megabytes, which need half as much more while they are loaded."""
    blobs = [Blob("memory://run", i, i, i + 1, f"{i:064x}", 1) for i in range(len(held))]
    return [BlobMemory(blob, n * MB, n * MB // 2) for blob, n in zip(blobs, held, strict=True)]


def limit_with(free: int) -> int:
    """Limit of a worker that leaves so many megabytes besides the process."""
    return int((memory_plan.PROCESS_BYTES + free * MB) / memory_plan.USABLE) + 1


def workers(n: int, threads: int = 1) -> dict[str, int]:
    return {f"tcp://{i}": threads for i in range(n)}


def planned_bytes(placement: TreePlacement, needs: Needs, threads: int) -> int:
    """What a worker needs at most, by the words of the docstrings."""
    sums = (
        0 if placement.window is None else 2 * placement.window * needs.sums + threads * needs.sums
    )
    if len(placement.passes) > 1:
        assert placement.wave is not None
        sums += placement.wave * needs.sums
    largest = max(group.n_bytes for group in chain(*placement.passes))
    return memory_plan.PROCESS_BYTES + threads * needs.task + largest + sums


def test_a_model_that_fits_is_held_whole_by_each_worker() -> None:
    placement = place_trees(model(10, 10, 10), NEEDS, workers(2), limit_with(20 + 30 + 5))
    assert [len(groups) for groups in placement.passes] == [1]
    assert len(placement.passes[0][0].blobs) == 3
    assert placement.passes[0][0].n_bytes == 35 * MB  # all, and half of one on its way
    assert placement.window is None
    assert placement.wave is None
    assert place_trees(model(10, 10, 10), NEEDS, workers(2), limit_with(20 + 30 + 4)).n_groups > 1


def test_without_a_limit_the_model_is_held_whole() -> None:
    placement = place_trees(model(10**6), NEEDS, workers(2), None)
    assert placement.n_groups == 1
    assert placement.capacity is None


@pytest.mark.parametrize("n_workers", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("free", [130, 160, 200, 300])
@pytest.mark.parametrize("held", [(10,) * 40, (40, 1, 1, 30, 2, 40, 12), (3,) * 200])
def test_all_trees_are_there_in_order_and_below_the_limit(
    held: tuple[int, ...], free: int, threads: int, n_workers: int
) -> None:
    trees, limit = model(*held), limit_with(free + (threads - 1) * 22)
    placement = place_trees(trees, NEEDS, workers(n_workers, threads), limit)
    groups = list(chain(*placement.passes))
    assert [blob for group in groups for blob in group.blobs] == [one.blob for one in trees]
    assert all(1 <= len(passed) <= n_workers for passed in placement.passes)
    assert planned_bytes(placement, NEEDS, threads) <= memory_plan.USABLE * limit
    if placement.n_groups > 1:
        assert placement.window is not None
        assert placement.wave is not None
        assert placement.window >= 1
        assert placement.wave >= 1
        assert placement.capacity == max(group.n_bytes for group in groups)


def test_groups_are_even_and_keep_all_workers_busy() -> None:
    placement = place_trees(model(*[10] * 12), NEEDS, workers(4), limit_with(130))
    assert [[len(group.blobs) for group in passed] for passed in placement.passes] == [[3, 3, 3, 3]]


def test_a_refusal_names_a_limit_that_would_do() -> None:
    for needs in (NEEDS, Needs(0, 0), Needs(77 * MB + 5, 3 * MB + 1)):
        with pytest.raises(ClusterError, match="n_shards") as caught:
            place_trees(model(10, 50, 10, 900), needs, workers(2, 3), limit_with(40))
        found = re.search(r"([0-9,]+) MiB would do", str(caught.value))
        assert found is not None
        enough = int(found[1].replace(",", "")) * MB
        place_trees(model(10, 50, 10, 900), needs, workers(2, 3), enough)
        with pytest.raises(ClusterError):
            place_trees(model(10, 50, 10, 900), needs, workers(2, 3), enough - 2 * MB)


def test_rows_are_counted_by_the_largest_part_and_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def block(rows: int, group: int) -> Block:
        return Block(0, 0, "a", 0, rows, 0, 0, group, 1, "")

    parts = [[block(10, 10), block(30, 90)], [block(20, 20)] * 3]
    needs = row_needs(parts, 4, 5, {"sums": 3, "result": 7})
    assert needs.sums == 60 * 8 * 3
    assert needs.task == 60 * (12 * 4 + 16 * 3) + 2 * 90 * 5 * 16 + 3 * 60 * 8 * 7
    for values, together in ((4 * 45, 45), (4 * 20, 30)):
        monkeypatch.setattr(memory_plan, "TOGETHER", values)
        monkeypatch.setattr(memory_plan, "JOINED_ROWS", 1)
        fewer = row_needs(parts, 4, 5, {"sums": 3, "result": 7})
        assert fewer.task == needs.task - (60 - together) * (12 * 4 + 16 * 3)


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("512MiB", 512 * MB), ("2 GB", 2 * 10**9), (1000, 1000), (None, None)]
)
def test_limits_are_read(text: str | int | None, n_bytes: int | None) -> None:
    assert parse_limit(text) == n_bytes


@pytest.mark.parametrize("text", ["much", "", "-1GB", 0, True, "1 GX"])
def test_other_limits_are_refused(text: str | int) -> None:
    with pytest.raises(ParameterError, match="memory_limit"):
        parse_limit(text)
