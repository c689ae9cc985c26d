"""Data that moved: a plan finds its files again, or explains why it cannot."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.data import (
    Plan,
    extend_plan,
    make_plan,
    place,
    place_beside,
    places_of,
    read_block,
)
from dmondrian.data.fingerprint import SAMPLES, fingerprint, footer_in, read_end
from dmondrian.errors import DataError, PlanError
from tests.store.servers import moto_server, set_credentials

from .conftest import Write

NAMES = ("old/data/k=1/part-0.parquet", "old/data/k=2/part-0.parquet", "old/more/part-0.parquet")


@pytest.fixture
def old(write: Write, tmp_path: Path) -> Path:
    """Two folders whose files have one name and one size, in a folder called old."""
    for number, name in enumerate(NAMES):
        x = np.arange(20.0) + 100 * number
        write({"x": x}, name, use_dictionary=False, compression="none", row_group_size=15)
    sizes = {(tmp_path / name).stat().st_size for name in NAMES}
    assert len(sizes) == 1
    return tmp_path / "old"


def of_earlier_version(plan: Plan) -> Plan:
    """Return a plan without fingerprints, which earlier versions did not note."""
    return replace(plan, blocks=tuple(replace(block, fingerprint="") for block in plan.blocks))


def stored(plan: Plan) -> Plan:
    return Plan.from_parquet(plan.to_parquet())


def rows(plan: Plan) -> list[Any]:
    return [read_block(plan, block).X.tobytes() for block in plan.blocks]


def touch(folder: Path) -> None:
    """Give all files a new time of change, as `cp -r` does."""
    for path in folder.rglob("*.parquet"):
        os.utime(path, ns=(1, path.stat().st_mtime_ns + 5_000_000_000))


@pytest.mark.parametrize("earlier", [False, True])
def test_moved_files_are_found_and_the_plan_stays_what_it_is(
    old: Path, write: Write, tmp_path: Path, earlier: bool
) -> None:
    plan = make_plan(old / "data")
    there = rows(plan)
    plan = stored(of_earlier_version(plan) if earlier else plan)
    shutil.move(old, tmp_path / "new")
    moved = extend_plan(plan, tmp_path / "new/data")
    assert moved.digest == plan.digest == stored(moved).digest
    assert {Path(block.uri) for block in moved.blocks} == {
        tmp_path / name.replace("old/", "new/") for name in NAMES[:2]
    }
    assert rows(moved) == there
    assert any("2 of the files moved" in note for note in moved.notes)
    assert rows(place(stored(moved), places_of(moved))) == there
    assert extend_plan(moved, tmp_path / "new/data").digest == plan.digest
    write({"x": [1.0, 2.0]}, "new/data/k=0/part-0.parquet")
    longer = extend_plan(plan, tmp_path / "new/data")
    assert longer.earlier == ((plan.n_rows, plan.digest),)
    assert longer.n_rows == plan.n_rows + 2
    again = extend_plan(stored(longer), tmp_path / "new/data")
    assert again.digest == longer.digest
    assert len(rows(again)) == len(there) + 1


def test_copies_without_their_times_are_known_by_their_fingerprints(
    old: Path, tmp_path: Path
) -> None:
    plan = stored(make_plan(old))
    there = rows(plan)
    shutil.copytree(old, tmp_path / "new")
    touch(tmp_path / "new")
    moved = extend_plan(plan, tmp_path / "new")
    assert rows(moved) == there
    assert all("/new/" in block.uri for block in moved.blocks)
    shutil.rmtree(old)
    with pytest.raises(PlanError, match="its bytes are not known to be the same") as caught:
        extend_plan(of_earlier_version(plan), tmp_path / "new")
    assert "cp -p" in str(caught.value)


@pytest.mark.parametrize("earlier", [False, True])
def test_another_file_of_that_name_size_and_row_groups_is_not_taken(
    old: Path, tmp_path: Path, earlier: bool
) -> None:
    plan = stored(make_plan(old / "data"))
    plan = of_earlier_version(plan) if earlier else plan
    for name in ("k=1", "k=2"):
        shutil.rmtree(old / "data" / name)
    shutil.move(old / "more", old / "data/k=1")
    shutil.copytree(old / "data/k=1", old / "data/k=2")
    touch(old)
    with pytest.raises(PlanError, match=r"k=1/part-0\.parquet changed"):
        extend_plan(plan, old / "data")
    shutil.move(old, tmp_path / "new")
    with pytest.raises(PlanError, match=r"old/data/k=1/part-0\.parquet is gone"):
        extend_plan(plan, tmp_path / "new/data")


def footer(path: Path) -> bytes:
    with pa.OSFile(str(path)) as file:
        return footer_in(read_end(file))


def permuted(n: int, seed: int, *, with_id: bool = False) -> pa.Table:
    """Return one table of floats with its rows in the order of a seed."""
    values = np.random.default_rng(0).normal(size=(n, 4))
    values = values[np.random.default_rng(seed).permutation(n)]
    columns = {f"x{i}": values[:, i] for i in range(4)}
    return pa.table({"id": np.arange(n, dtype=float), **columns} if with_id else columns)


@pytest.mark.parametrize(
    ("n", "group", "with_id"),
    [(50, 50, False), (5000, 5000, False), (50_000, 50_000, False), (50_000, 1250, False),
     (50_000, 6250, True)],
)  # fmt: skip
def test_the_rows_in_another_order_are_another_file(
    write: Write, tmp_path: Path, n: int, group: int, with_id: bool
) -> None:
    options: dict[str, Any] = {
        "compression": "none",
        "write_statistics": False,
        "use_dictionary": False,
    }
    options["row_group_size"] = group
    first = write(permuted(n, 1, with_id=with_id), "data/day=1/part-0.parquet", **options)
    plan = stored(make_plan(first.parents[1]))
    there, then = rows(plan), footer(first)
    shutil.move(first.parent, tmp_path / "away")
    second = write(permuted(n, 2, with_id=with_id), "data/day=2/part-0.parquet", **options)
    assert footer(second) == then
    with pytest.raises(PlanError, match=r"day=1/part-0\.parquet is gone"):
        extend_plan(plan, first.parents[1])
    home, now = str(tmp_path / "data/day=1"), str(tmp_path / "data/day=2")
    assert place_beside(plan, home, now).blocks == plan.blocks
    shutil.move(tmp_path / "away", tmp_path / "copy/day=1")
    touch(tmp_path / "copy")
    shutil.rmtree(tmp_path / "data")
    assert rows(extend_plan(plan, tmp_path / "copy")) == there


def test_small_files_of_like_values_are_kept_apart(write: Write, tmp_path: Path) -> None:
    """Many have the footer and the size of another one, and none its fingerprint."""
    rng = np.random.default_rng(0)
    prints: dict[str, tuple[bytes, str]] = {}
    for _ in range(60):
        table = {name: rng.integers(0, 3, 8) for name in "ab"}
        path = write(table, "a.parquet")
        with pa.OSFile(str(path)) as file:
            end = read_end(file)
            prints[str(table)] = footer_in(end), fingerprint(file, end)
    assert len({footer for footer, _ in prints.values()}) < len(prints) / 2
    assert len({own for _, own in prints.values()}) == len(prints)


def test_a_fingerprint_costs_few_requests_however_long_the_file(write: Write) -> None:
    path = write(permuted(100_000, 1), "a.parquet")
    size = path.stat().st_size
    assert size > 3_000_000
    with pa.OSFile(str(path)) as file:
        asked: list[int] = []
        counting = SimpleNamespace(
            size=file.size, read_at=lambda n, at: asked.append(n) or file.read_at(n, at)
        )
        fingerprint(counting, read_end(counting))
    assert len(asked) == 2 + SAMPLES
    assert sum(asked) < 200_000


def test_files_of_one_name_are_kept_apart_by_their_folders(old: Path, tmp_path: Path) -> None:
    plan = stored(make_plan([old / "more", old / "data/k=2", old / "data/k=1"]))
    there = rows(plan)
    shutil.move(old / "more", tmp_path / "x/deep/more")
    shutil.move(old / "data", tmp_path / "y/data")
    moved = extend_plan(plan, [tmp_path / "x", tmp_path / "y"])
    assert rows(moved) == there
    assert moved.digest == plan.digest


def test_a_file_that_the_source_leaves_out_is_reported_to_be_there(old: Path) -> None:
    plan = stored(make_plan(old / "data"))
    with pytest.raises(PlanError, match="not among the files that are named now, although it is"):
        extend_plan(plan, old / "data/k=1")
    shutil.rmtree(old / "data/k=2")
    with pytest.raises(PlanError, match=r"k=2/part-0\.parquet is gone, and no file of its name"):
        extend_plan(plan, old / "data")


def test_other_folder_keys_are_no_place_for_the_rows(old: Path, tmp_path: Path) -> None:
    plan = stored(make_plan(old / "data"))
    shutil.move(old / "data/k=1", old / "data/k=3")
    with pytest.raises(PlanError, match="lies in other folders"):
        extend_plan(plan, old / "data")


def test_a_run_that_was_copied_with_its_data_reads_the_copy(old: Path, tmp_path: Path) -> None:
    plan = stored(make_plan(old / "data"))
    there = rows(plan)
    home, now = str(old / "runs/first"), str(tmp_path / "new/runs/first")
    assert place_beside(plan, home, now).blocks == plan.blocks
    shutil.copytree(old, tmp_path / "new")
    beside = place_beside(plan, home, now)
    assert all("/new/data/" in block.uri for block in beside.blocks)
    assert rows(beside) == there
    assert beside.digest == plan.digest
    touch(tmp_path / "new")
    assert rows(place_beside(plan, home, now)) == there
    (tmp_path / "new/data/k=1/part-0.parquet").write_bytes(b"other")
    half = place_beside(plan, home, now)
    assert [("/new/" in block.uri) for block in half.blocks] == [False, False, True, True]
    assert rows(half) == there
    assert place_beside(plan, home, "s3://bucket/runs/first").blocks == plan.blocks


def test_data_that_went_to_a_bucket_and_on_to_another(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    plan = stored(make_plan(old / "data"))
    there = rows(plan)
    with moto_server() as endpoint:
        set_credentials(monkeypatch, endpoint)
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        for bucket in ("here", "there"):
            client.create_bucket(Bucket=bucket)
            for path in old.rglob("*.parquet"):
                client.upload_file(str(path), bucket, f"my lake/{path.relative_to(old)}")
        shutil.rmtree(old)
        uploaded = extend_plan(plan, "s3://here/my lake/data")
        assert rows(uploaded) == there
        assert uploaded.digest == plan.digest
        in_bucket = stored(make_plan("s3://here/my lake/data"))
        copied = place_beside(in_bucket, "s3://here/my lake/run", "s3://there/my lake/run")
        assert all(block.uri.startswith("s3://there/my%20lake/") for block in copied.blocks)
        assert rows(copied) == there
        assert extend_plan(in_bucket, "s3://there/my lake/data").digest == in_bucket.digest


def test_a_learned_file_that_may_be_a_new_one_is_refused_where_nothing_tells_them_apart(
    old: Path, tmp_path: Path
) -> None:
    plan = stored(make_plan(old))
    shutil.copytree(old, tmp_path / "new")
    touch(tmp_path / "new")
    shutil.rmtree(old)
    assert extend_plan(plan, tmp_path / "new", plan.n_rows).digest == plan.digest
    with pytest.raises(PlanError, match="could learn its rows twice"):
        extend_plan(of_earlier_version(plan), tmp_path / "new", plan.n_rows)
    for path in (tmp_path / "new").rglob("*.parquet"):
        path.rename(path.with_name("another.parquet"))
    assert extend_plan(plan, tmp_path / "new", plan.n_rows).digest == plan.digest


def test_what_was_learned_of_a_file_in_part_is_needed(old: Path) -> None:
    plan = stored(make_plan(old / "data"))
    (old / NAMES[0].removeprefix("old/")).unlink()
    with pytest.raises(PlanError, match=r"k=1/part-0\.parquet is gone"):
        extend_plan(plan, old / "data", 19)
    later = extend_plan(plan, old / "data", 20)
    assert later.digest == plan.digest
    (note,) = later.about_learned
    assert note.startswith("of the 2 files of the stream 1 is not among the data any more")


def test_a_store_need_not_have_files_that_were_learned(
    monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    import boto3

    with moto_server() as endpoint:
        set_credentials(monkeypatch, endpoint)
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="lake")
        for name in "abc":
            path = write({"x": np.arange(5.0) + ord(name)}, f"{name}.parquet")
            client.upload_file(str(path), "lake", f"{name}.parquet")
        plan = stored(make_plan("s3://lake"))
        client.delete_object(Bucket="lake", Key="a.parquet")
        client.put_object(Bucket="lake", Key="b.parquet", Body=b"no Parquet at all")
        with pytest.warns(UserWarning, match="NOT learned"):
            later = extend_plan(plan, "s3://lake", 10)
        assert later.digest == plan.digest
        gone, again = later.about_learned
        assert "s3://lake/a.parquet" in gone
        assert "s3://lake/b.parquet" in again
        client.upload_file(str(path), "lake", "b.parquet")
        with pytest.raises(PlanError, match=r"a\.parquet is gone"):
            extend_plan(plan, "s3://lake", 4)


def put(folder: Path, name: str, first: int, n: int = 20) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    pq.write_table(pa.table({"x": np.arange(float(n)) + first}), path)
    return path


def files_of(plan: Plan) -> list[str]:
    return [Path(block.uri).name for block in plan.blocks]


@pytest.mark.parametrize("n_new", [20, 30])
def test_a_learned_file_is_recognised_though_its_name_holds_other_rows_now(
    tmp_path: Path, n_new: int
) -> None:
    data = tmp_path / "logs"
    app = put(data, "app.parquet", 0)
    plan = make_plan(data)
    app.rename(data / "app.1.parquet")
    put(data, "app.parquet", 100, n_new)
    with pytest.raises(DataError, match=r"logs/app\.parquet is a new file .* a name of its own"):
        extend_plan(stored(plan), data, 20)
    app.rename(data / "today.parquet")
    later = extend_plan(stored(plan), data, 20)
    assert files_of(later) == ["app.1.parquet", "today.parquet"]
    assert later.n_rows == 20 + n_new
    assert later.about_learned == ()
    again = place(stored(later), places_of(later))
    assert files_of(again) == files_of(later)
    assert again.digest == later.digest
    assert rows(again) == rows(later)
    put(data, "app.parquet", 200)  # a third one, under the name that the plan has for the first
    with pytest.raises(DataError, match=r"app\.1\.parquet now: the run cannot keep both"):
        extend_plan(again, data, later.n_rows)


def test_a_rotation_of_several_learned_files_learns_none_again(tmp_path: Path) -> None:
    data = tmp_path / "logs"
    for number, name in enumerate("abc"):
        put(data, f"{name}.parquet", 100 * number)
    plan = make_plan(data)
    there = rows(plan)
    for then, now in (("c", "d"), ("b", "c"), ("a", "b")):
        (data / f"{then}.parquet").rename(data / f"{now}.parquet")
    later = extend_plan(stored(plan), data, 60)
    assert files_of(later) == ["b.parquet", "c.parquet", "d.parquet"]
    assert later.digest == plan.digest
    assert rows(later) == there
    assert rows(place(stored(later), places_of(later))) == there
    put(data, "a.parquet", 900)
    with pytest.raises(DataError, match=r"a\.parquet is a new file .* is \S*b\.parquet now"):
        extend_plan(stored(plan), data, 60)
    with pytest.raises(PlanError, match="has not learned all"):
        extend_plan(stored(plan), data, 40)


def test_a_learned_file_with_other_rows_is_warned_of(tmp_path: Path) -> None:
    data = tmp_path / "logs"
    paths = [put(data, f"{name}.parquet", 100 * number) for number, name in enumerate("abc")]
    plan = make_plan(data)
    touch(data)
    same = extend_plan(stored(plan), data, 60)
    assert same.about_learned == ()
    assert same.digest == plan.digest
    assert rows(same) == rows(place(stored(same), places_of(same)))
    put(data, "b.parquet", 500)
    with pytest.warns(UserWarning, match=r"3 files of the stream 1 holds other .*NOT learned"):
        later = extend_plan(stored(plan), data, 60)
    (note,) = later.about_learned
    assert str(paths[1]) in note
    assert later.digest == plan.digest


def test_a_copy_beside_its_original_is_learned_as_a_file_of_its_own(tmp_path: Path) -> None:
    path = put(tmp_path / "logs", "b.parquet", 0)
    plan = stored(make_plan(path.parent))
    shutil.copy2(path, path.with_name("b2.parquet"))
    later = extend_plan(plan, path.parent, 20)
    assert files_of(later) == ["b.parquet", "b2.parquet"]
    assert later.n_rows == 40
