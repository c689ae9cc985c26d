"""Chunks: small row groups are read together, and a mixed stream draws from many at a time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.data import Encoded, Plan, chunks, extend_plan, make_plan, read_block, read_chunk
from dmondrian.data import read as read_module
from dmondrian.data.chunks import Band, join, lay_bands
from dmondrian.data.shuffle import share_rows, share_size
from dmondrian.errors import CorruptError, DataError

from .conftest import Write


def sorted_classes(write: Write, rows: int = 4000, group: int = 1000, **options: Any) -> Path:
    """Four classes, each in row groups of its own; x numbers the rows."""
    table = {"x": np.arange(float(rows)), "y": [f"class {4 * i // rows}" for i in range(rows)]}
    return write(table, row_group_size=group, **options)


def whole(plan: Plan) -> Encoded:
    """All rows of a plan, in the order of its stream."""
    parts = [read_chunk(plan, chunk) for chunk in plan.chunks]
    X, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("X", "y"))
    return Encoded(X, y, None, None, {}, plan.schema.feature_names)


def numbers_of(plan: Plan, rows: int) -> np.ndarray:
    """The numbers of all rows, in the order of the stream."""
    return np.rint(whole(plan).X[:, 0] * (rows - 1)).astype(int)


def test_small_row_groups_are_read_as_one_and_as_they_would_be_alone(write: Write) -> None:
    draws = np.random.default_rng(0)
    for i in range(300):
        table = {
            "x": pa.array(draws.random(5)),
            "c": pa.array(draws.choice(["u", "v", "w"], 5)),
            "y": pa.array(draws.choice(["no", "yes"], 5)),
        }
        if i % 70 == 3:  # files of one source may store a column in another type
            table["x"] = table["x"].cast(pa.float32())
        folder = write(table, f"many/{i:03d}.parquet").parent
    plan = make_plan(folder, target="y", max_categories=2)
    assert len(plan.blocks) == 300
    assert [chunk.rows for chunk in plan.chunks] == [1020, 480]
    alone = [read_block(plan, block) for block in plan.blocks]
    together = [read_chunk(plan, chunk) for chunk in plan.chunks]
    for name in ("X", "y"):
        one, other = (
            np.concatenate([getattr(part, name) for part in parts]) for parts in (alone, together)
        )
        assert one.tobytes() == other.tobytes()
    sums = [sum((Counter(part.counts) for part in parts), Counter()) for parts in (alone, together)]
    assert sums[0] == sums[1]
    assert any(name.startswith("other:c") for name in sums[0])


def test_a_bad_row_among_many_files_is_named(write: Write) -> None:
    for i in range(20):
        x = np.arange(5.0) + i
        folder = write({"x": x, "y": x % 2 == 0}, f"many/{i:02d}.parquet").parent
    plan = make_plan(folder, target="y")
    kept = Path(plan.blocks[7].uri).stat()
    file = pa.OSFile(plan.blocks[7].uri, "rb")
    table = pq.read_table(file)
    table = table.set_column(0, "x", pa.array([0.0, 1.0, 2.0, np.inf, 4.0]))
    write(table, "many/07.parquet")
    again = make_plan(folder, target="y", infinite="clip")
    plan = Plan(plan.schema, again.blocks)
    assert kept.st_mtime_ns != Path(plan.blocks[7].uri).stat().st_mtime_ns
    with pytest.raises(DataError, match=r"07\.parquet, row 3"):
        read_chunk(plan, plan.chunks[0])


def test_rows_without_a_target_leave_the_places_of_others_alone(write: Write) -> None:
    y = pa.array([None if i % 3 == 1 else i % 2 for i in range(60)])
    path = write({"x": np.arange(60.0), "y": y}, row_group_size=10)
    plan = make_plan(path, target="y", null_target="drop")
    (chunk,) = plan.chunks
    read = read_chunk(plan, chunk)
    for cut in range(61):
        parts = [read.between(0, cut), read.between(cut, 60)]
        assert len(parts[0].X) == sum(i % 3 != 1 for i in range(cut))
        assert np.concatenate([part.X for part in parts]).tobytes() == read.X.tobytes()
        dropped = sum(i % 3 == 1 for i in range(cut))
        assert [part.counts["null_target"] for part in parts] == [dropped, 20 - dropped]


def test_no_chunk_reaches_over_the_end_of_an_earlier_plan(write: Write) -> None:
    table = {"x": np.arange(10.0), "y": np.arange(10) % 2}
    folder = write(table, "many/a.parquet").parent
    plan = make_plan(folder, target="y")
    write(table, "many/b.parquet")
    assert [chunk.stop for chunk in extend_plan(plan, folder).chunks] == [10, 20]


def test_joining_looks_at_each_block_a_bounded_number_of_times() -> None:
    class Looked:
        looks = 0

        def __init__(self, position: int) -> None:
            self._position = position

        @property
        def position(self) -> int:
            Looked.looks += 1
            return self._position

        rows = 5

    per_block = []
    for n in (1000, 4000):
        Looked.looks = 0
        join([Looked(5 * i) for i in range(n)])
        per_block.append(Looked.looks / n)
    assert per_block[1] <= 1.1 * per_block[0]


def test_a_shuffle_mixes_row_groups_that_are_sorted(write: Write) -> None:
    plan = make_plan(sorted_classes(write), target="y", shuffle=True)
    y = whole(plan).y
    assert y is not None
    for start in range(0, 4000, 400):
        share = np.bincount(y[start : start + 400].astype(int), minlength=4) / 400
        assert share == pytest.approx(0.25, abs=0.12)
    assert "shuffle: the rows of all 4 row groups are mixed with each other" in plan.notes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 500 rows."""
    monkeypatch.setattr(chunks, "MIXED_ROWS", 500)


@pytest.mark.parametrize("kept", [0, read_module.KEPT_BYTES])
@pytest.mark.usefixtures("small")
def test_chunks_smaller_than_row_groups_draw_from_several(
    write: Write, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(read_module, "KEPT_BYTES", kept)
    plan = make_plan(sorted_classes(write), target="y", shuffle=True, seed=5)
    assert plan.bands == (Band(4000, 8),)
    for chunk in plan.chunks:
        assert chunk.rows == 500
        y = read_chunk(plan, chunk).y
        assert y is not None
        assert np.bincount(y.astype(int)).tolist() == [125] * 4
    order = numbers_of(plan, 4000)
    assert sorted(order) == list(range(4000))
    assert np.mean(np.diff(order) > 0) == pytest.approx(0.5, abs=0.05)
    assert "a row group is read up to 8 times" in plan.notes[0]


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore:the rows look sorted")
def test_the_blocks_before_a_position_are_those_that_rows_were_drawn_from(write: Write) -> None:
    path = sorted_classes(write)
    mixed, plain = (make_plan(path, target="y", shuffle=shuffle) for shuffle in (True, False))
    for position, of_mixed, of_plain in ((0, 0, 0), (1, 4, 1), (1000, 4, 1), (1001, 4, 2)):
        assert len(mixed.blocks_before(position)) == of_mixed
        assert len(plain.blocks_before(position)) == of_plain


@pytest.mark.usefixtures("small")
def test_more_row_groups_than_are_mixed_are_drawn_from_in_turn(write: Write) -> None:
    plan = make_plan(sorted_classes(write, 20_000, 500), target="y", shuffle=True)
    drawn = [chunk.last - chunk.first for chunk in plan.chunks]
    assert max(drawn) <= 3 * chunks.MIXED_GROUPS // 2
    assert min(drawn) >= 8
    assert all(chunk.shares <= chunks.MOST_SHARES for chunk in plan.chunks)
    assert sorted(numbers_of(plan, 20_000)) == list(range(20_000))
    assert "row groups, chosen at random" in plan.notes[0]


@pytest.mark.usefixtures("small")
def test_files_that_come_later_are_mixed_among_themselves(write: Write) -> None:
    folder = sorted_classes(write, name="many/a.parquet").parent
    first = make_plan(folder, target="y", shuffle=True, seed=5)
    write({"x": np.arange(1500.0), "y": ["class 1"] * 1500}, "many/0.parquet", row_group_size=300)
    more = extend_plan(first, folder)
    assert more.n_rows == 5500
    assert more.chunks[: len(first.chunks)] == first.chunks
    one, other = whole(first), whole(more)
    assert other.X[:4000].tobytes() == one.X.tobytes()
    assert len(np.unique(other.X[4000:])) == 1500
    assert Plan.from_parquet(more.to_parquet()) == more


def test_each_share_has_one_of_as_many_rows_and_all_have_each_row_once() -> None:
    for rows, shares in ((1000, 7), (16, 8), (5, 8), (9, 1)):
        found = [share_rows(3, 4, rows, share, shares) for share in range(shares)]
        assert sorted(np.concatenate(found)) == list(range(rows))
        for share, own in enumerate(found):
            assert len(own) == share_size(rows, share, shares)
            whole_strata = own[: rows // shares] // shares
            assert whole_strata.tolist() == list(range(rows // shares))
    assert share_rows(0, 0, 12, 1, 4).tolist() == [0, 7, 10]


def test_bands_are_as_large_as_memory_allows() -> None:
    million = 2**20
    assert lay_bands([1000], 10) == (Band(1000, 1),)
    assert lay_bands([million] * 4, 10) == (Band(4 * million, 4),)
    many = lay_bands([million] * 40, 10)
    assert [band.shares for band in many] == [8] * 5
    assert [band.stop for band in many] == [8 * million * i for i in range(1, 6)]
    short_end = lay_bands([million] * 9, 10)
    assert short_end == (Band(9 * million, 8),)
    tiny = lay_bands([5] * 400_000, 10)
    assert all(band.shares == 1 for band in tiny)
    assert len(tiny) == -(-400_000 // chunks.MOST_GROUPS)
    wide = lay_bands([100_000] * 4, 10_000)
    assert [band.shares for band in wide] == [8] * 4


@pytest.mark.parametrize(
    "bands",
    [
        (Band(3999, 8),),
        (Band(2000, 8),),
        (Band(4000, 0),),
        (Band(4000, 5000),),
        (Band(4000, 1), Band(4000, 1)),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_stored_plan_with_impossible_bands_is_refused(
    write: Write, bands: tuple[Band, ...]
) -> None:
    plan = make_plan(sorted_classes(write), target="y", shuffle=True)
    wrong = Plan(plan.schema, plan.blocks, True, plan.seed, bands=bands)
    with pytest.raises(CorruptError, match="band"):
        Plan.from_parquet(wrong.to_parquet())
