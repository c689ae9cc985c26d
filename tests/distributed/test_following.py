"""Following of data in this process: what each look learns, and what is kept of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from distributed import Client

from dmondrian.checkpoint import Lease, Run
from dmondrian.data import stored_plan
from dmondrian.distributed import Learned, TrainedRun, follow, train
from dmondrian.errors import CheckpointError, DataError, FencedError, ParameterError
from tests.distributed.conftest import ADULT, COLUMNS, digests, forest

Follow = Callable[..., TrainedRun | None]


class StopError(Exception):
    """Ends a call."""


@pytest.fixture
def following(client: Client, tmp_path: Path) -> Follow:
    """Follow the folder `data` to the run `run`; keyword arguments override."""

    def call(**options: Any) -> TrainedRun | None:
        given = {"target": "income", "client": client, "run": tmp_path / "run", **options}
        return follow(forest(), given.pop("data", tmp_path / "data"), **given)

    return call


def put(folder: Path, number: int, rows: int = 300) -> Path:
    """Put the rows of a number there, as a file that comes as a whole."""
    folder.mkdir(exist_ok=True, parents=True)
    part = pq.read_table(ADULT, columns=COLUMNS).slice(number * rows, rows)
    pq.write_table(part, folder / ".part")
    return (folder / ".part").rename(folder / f"{number:04d}.parquet")


def test_a_run_goes_back_to_a_checkpoint_whose_plan_is_not_kept_any_more(
    following: Follow, tmp_path: Path
) -> None:
    for number in range(4):
        put(tmp_path / "data", number)
        found = following(once=True, keep=4)
    assert found is not None
    expected = digests(found)
    for position in (900, 1200):  # as who deletes what is damaged does
        (tmp_path / f"run/manifests/{position:012d}.json").unlink()
    plan = Run.open(tmp_path / "run").stream.digests()[1]
    (tmp_path / f"run/plans/{plan}.parquet").unlink()
    found = following(once=True)
    assert found is not None
    assert found.summary["resumed_at"] == 600
    assert digests(found) == expected


def test_each_look_learns_what_has_come_and_few_checkpoints_are_kept(
    following: Follow, client: Client, tmp_path: Path
) -> None:
    seen: list[Learned] = []

    def more(learned: Learned) -> None:
        seen.append(learned)
        if len(seen) == 6:
            raise StopError
        put(tmp_path / "data", len(seen))
        if len(seen) == 3:
            (tmp_path / "data/0000.parquet").unlink()

    put(tmp_path / "data", 0)
    with pytest.raises(StopError):
        following(interval=0.01, keep=2, on_learned=more)
    assert [learned.rows for learned in seen] == [300] * 6
    assert [learned.n_rows for learned in seen] == [300 * n for n in range(1, 7)]
    assert all(learned.lag is not None and learned.lag > 0 for learned in seen)
    assert len(Run.open(tmp_path / "run").manifests()) == 2
    assert len(list((tmp_path / "run/plans").glob("*.parquet"))) == 3  # of six that there were
    assert following(once=True).summary["rows"] == 0  # type: ignore[union-attr]
    put(tmp_path / "data", 0)
    options: dict[str, Any] = {"target": "income", "client": client, "run": tmp_path / "straight"}
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy2(tmp_path / "data/0000.parquet", first)
    train(forest(), first, **options)
    for i in range(1, 6):
        shutil.copy2(tmp_path / f"data/{i:04d}.parquet", first)
    straight = train(forest(), first, **options)
    assert digests(tmp_path / "run") == digests(straight)


def before_the_lease(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Have something done when the next plan is made and the lease is not yet taken."""
    take = Lease.take

    def later(*given: Any) -> Lease:
        monkeypatch.setattr(Lease, "take", take)
        action()
        return take(*given)

    monkeypatch.setattr(Lease, "take", later)


@pytest.mark.parametrize("others", [[[1, 2]], [[2], [1]], [[1], [2]]], ids=str)
@pytest.mark.thorough(but="[[1], [2]]")
def test_a_process_that_was_overtaken_between_plan_and_lease_loses_nothing(
    following: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[list[int]]
) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    put(data, 0)
    following(once=True)
    put(data, 2)

    def overtake() -> None:
        aside.mkdir()
        (data / "0002.parquet").rename(aside / "0002.parquet")
        for numbers in others:
            for number in numbers:
                if number == 2:
                    (aside / "0002.parquet").rename(data / "0002.parquet")
                else:
                    put(data, number)
            following(once=True)

    before_the_lease(monkeypatch, overtake)
    with pytest.raises(
        FencedError,
        match=r"has continued .* since .* the same command again.*let one process follow it",
    ):
        following(once=True)
    assert Run.open(tmp_path / "run").manifests() == [300, *(600 for _ in others[1:]), 900]
    assert following(once=True).summary["rows"] == 0  # type: ignore[union-attr]
    put(data, 3)
    assert following(once=True).summary["resumed_at"] == 900  # type: ignore[union-attr]
    for folder in (data, aside):
        shutil.rmtree(folder)
    for numbers in ([0], *others, [3]):
        for number in numbers:
            put(data, number)
        following(once=True, run=tmp_path / "alone")
    assert digests(tmp_path / "run") == digests(tmp_path / "alone")


def test_a_process_that_was_overtaken_by_one_of_the_same_plan_finds_its_work_done(
    following: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "data", 0)
    following(once=True)
    put(tmp_path / "data", 1)
    before_the_lease(monkeypatch, lambda: following(once=True))
    assert following(once=True).summary["rows"] == 0  # type: ignore[union-attr]
    assert Run.open(tmp_path / "run").manifests() == [300, 600]


def test_a_table_is_followed(following: Follow, client: Client, tmp_path: Path) -> None:
    rows = pq.read_table(ADULT, columns=COLUMNS)
    table = tmp_path / "table"
    seen: list[int] = []

    def more(learned: Learned) -> None:
        seen.append(learned.rows)
        if len(seen) == 4:
            raise StopError
        write_deltalake(table, rows.slice(400 * len(seen), 400), mode="append")
        DeltaTable(table).optimize.compact()

    write_deltalake(table, rows.slice(0, 400))
    with pytest.raises(StopError):
        following(data=table, interval=0.01, on_learned=more)
    assert seen == [400] * 4
    assert following(data=table, once=True).summary["rows"] == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["table", "file"])
def test_what_has_no_row_yet_is_waited_for(
    following: Follow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    data = tmp_path / "data"
    rows = pq.read_table(ADULT, columns=COLUMNS).slice(0, 300)
    if kind == "table":
        DeltaTable.create(data, schema=rows.schema)
    else:
        put(data, 0, rows=0)
    with pytest.raises(DataError, match=rf"no rows in {data}: [^()]*(\(/.*0000\.parquet\))?; expe"):
        following(once=True)
    waited: list[float] = []

    def wait(_: object, seconds: float) -> None:
        waited.append(seconds)
        if len(waited) < 3:
            return
        if kind == "table":
            write_deltalake(data, rows, mode="append")
        else:
            put(data, 1)

    def stop(learned: Learned) -> None:
        assert learned.rows == 300
        raise StopError

    monkeypatch.setattr("dmondrian.distributed.following._wait", wait)
    with caplog.at_level("INFO", "dmondrian"), pytest.raises(StopError):
        following(interval=0.1, on_learned=stop)
    assert len(waited) == 3
    assert len([text for text in caplog.messages if text.startswith("no rows in")]) == 1


def test_a_file_that_cannot_be_learned_ends_it_and_it_goes_on_without(
    following: Follow, tmp_path: Path
) -> None:
    put(tmp_path / "data", 0)
    assert following(once=True).summary["rows"] == 300  # type: ignore[union-attr]
    bad = tmp_path / "data/0001.parquet"
    pq.write_table(pq.read_table(ADULT, columns=COLUMNS[:-1]).slice(0, 10), bad)
    with pytest.raises(DataError, match=r"0001\.parquet lacks"):
        following(once=True)
    bad.unlink()
    put(tmp_path / "data", 2)
    assert following(once=True).summary["rows"] == 300  # type: ignore[union-attr]


def test_what_came_to_be_scored_is_scored_although_a_file_cannot_be_learned(
    following: Follow, tmp_path: Path
) -> None:
    put(tmp_path / "data", 0)
    following(once=True)
    pq.write_table(pq.read_table(ADULT, columns=COLUMNS[:-1]), tmp_path / "data/0001.parquet")
    put(tmp_path / "incoming", 2)
    score = {"data": tmp_path / "incoming", "out": tmp_path / "scores"}
    with pytest.raises(DataError, match=r"data/0001\.parquet lacks"):
        following(once=True, score=score)
    assert len(list(tmp_path.glob("scores/*/_manifest.json"))) == 1


def test_a_run_whose_folder_goes_is_not_begun_anew(following: Follow, tmp_path: Path) -> None:
    put(tmp_path / "data", 0)

    def move(_: Learned) -> None:
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        put(tmp_path / "data", 1)

    with pytest.raises(CheckpointError, match="holds no run any more"):
        following(interval=0.1, on_learned=move)
    assert not (tmp_path / "run").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "run")
    found = following(once=True)
    assert found is not None
    assert (found.summary["rows"], found.plan.n_rows) == (300, 600)


def test_a_look_that_finds_nothing_reads_no_plan(
    following: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []
    looks: list[int] = []

    def read(stream: Any) -> Any:
        reads.append(stream)
        return stored_plan(stream)

    def wait(*_: Any) -> None:
        looks.append(len(reads))
        if len(looks) == 3:
            raise StopError

    put(tmp_path / "data", 0)
    (tmp_path / "incoming").mkdir()
    monkeypatch.setattr("dmondrian.distributed.following.stored_plan", read)
    monkeypatch.setattr("dmondrian.distributed.following._wait", wait)
    with pytest.raises(StopError):
        following(score={"data": tmp_path / "incoming", "out": tmp_path / "scores"})
    assert looks[0] == looks[2]


def test_what_cannot_be_followed_is_refused(following: Follow, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no Parquet file has come to"):
        following(once=True)
    assert not (tmp_path / "run/run.json").exists()
    for options in ({"interval": 0}, {"interval": True}, {"keep": 0}, {"window": 0}):
        with pytest.raises(ParameterError, match=next(iter(options))):
            following(**options)


def test_data_that_move_are_followed_below_another_root(following: Follow, tmp_path: Path) -> None:
    for number in range(2):
        put(tmp_path / "old/sales", number)
    assert following(data="sales", root=tmp_path / "old", once=True).summary["rows"] == 600  # type: ignore[union-attr]
    (tmp_path / "old").rename(tmp_path / "new")
    put(tmp_path / "new/sales", 2)
    found = following(data="sales", root=tmp_path / "new", once=True)
    assert found is not None
    assert found.summary["rows"] == 300
    assert found.plan.n_rows == 900
