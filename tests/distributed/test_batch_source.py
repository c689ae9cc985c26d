"""A source of batches is learned as files with its rows are, to the byte, from any restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import CorruptError, DataError, DMondrianError, ParameterError
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.copying import copy_model
from dmondrian.checkpoint.migrating import migrate
from dmondrian.checkpoint.stream import BATCHES_NOTE
from dmondrian.data import Position, batch_files
from dmondrian.distributed import TrainedRun, follow, train
from dmondrian.distributed.cluster.events import Event
from dmondrian.distributed.training import batch_source
from tests.checkpoint.test_file_notes import damage
from tests.distributed.conftest import ROWS, digests, forest


@pytest.fixture
def rows(adult: Path) -> pa.Table:
    return pq.read_table(adult)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_files, "FILE_ROWS", 700)


@pytest.fixture(scope="module")
def by_files(adult: Path, client: Client, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run on two files with these rows: the first 1,500 determine the encoding."""
    folder, rows = tmp_path_factory.mktemp("files"), pq.read_table(adult)
    for number, part in enumerate((rows.slice(0, 1500), rows.slice(1500))):
        pq.write_table(part, folder / f"{number}.parquet")
        run = train(forest(), folder, run=folder / "run", target="income", client=client)
    return run


def options(client: Client, **others: Any) -> dict[str, Any]:
    return {"target": "income", "client": client, "checkpoint_every": "1000 rows", **others}


def test_a_pass_over_batches_is_one_over_files(
    rows: pa.Table, client: Client, undisturbed: TrainedRun, tmp_path: Path
) -> None:
    run = train(forest(), rows.to_batches(450), run=tmp_path / "run", **options(client))
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics
    assert len(list((tmp_path / "run/batches").iterdir())) < 4
    again = train(forest(), rows.to_batches(61), run=tmp_path / "run", **options(client))
    assert again.summary["rows"] == 0
    other = [rows.slice(1, 1), *rows.to_batches()]
    with pytest.raises(DataError, match="are others"):
        train(forest(), other, run=tmp_path / "run", **options(client))


class Broken:
    """A source of two partitions that fails again and again, also before the first round ends."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.asked: list[Position] = []

    def __call__(self, position: Position) -> Iterator[Any]:
        self.asked.append(position)
        for number, at in enumerate(range(0, ROWS, 250)):
            partition, offset = "ab"[number % 2], number // 2 * 250
            known = max(0, position.offsets.get(partition, 0) - offset)
            if known >= 250:
                continue
            if number > 4 * len(self.asked):
                raise OSError("the line broke")
            yield partition, offset + known, self.rows.slice(at + known, 250 - known)


def test_a_source_that_fails_is_learned_once(
    rows: pa.Table,
    client: Client,
    by_files: TrainedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, run = Broken(rows), tmp_path / "run"
    monkeypatch.setattr(batch_source, "ROUND_ROWS", 1500)
    for _ in range(5):
        with pytest.raises(OSError, match="broke"):
            train(forest(), source, run=run, **options(client))
    found = train(forest(), source, run=run, **options(client))
    assert source.asked[0] == Position()
    assert all(one.rows < other.rows for one, other in pairwise(source.asked))
    assert found.plan.n_rows == ROWS
    assert digests(found) == digests(by_files)
    copy = copy_model(run, tmp_path / "copy")
    copied = train(forest(), source, run=copy.url, **options(client))
    assert copied.summary["rows"] == 0
    assert source.asked[-1] == Position(ROWS, {"a": 3000, "b": 3000})
    for file in Path(copy.url, "batches").iterdir():
        file.unlink()
    with pytest.raises(DataError, match="where to begin is not known"):
        train(forest(), source, run=copy.url, **options(client))


def test_a_batch_with_a_damaged_note_is_not_copied(
    rows: pa.Table, client: Client, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(forest(), lambda position: iter([rows.slice(position.rows)]), run=run, **options(client))
    damage(max((run / "batches").iterdir()), BATCHES_NOTE)
    with pytest.raises(CorruptError, match=r"without the position of its source.*sha256"):
        copy_model(run, tmp_path / "copy")


@pytest.mark.parametrize("write", [copy_model, migrate])
def test_a_copy_that_is_made_amid_a_round_goes_on(
    rows: pa.Table,
    client: Client,
    undisturbed: TrainedRun,
    tmp_path: Path,
    write: Callable[[str, Path], Any],
) -> None:
    run, copy, first = tmp_path / "run", tmp_path / "copy", []

    def copy_first(event: Event) -> None:
        if event.kind == "checkpoint" and not first:
            first.append(event.values["position"])
            write(f"{run}@{first[0]}", copy)

    def source(position: Position) -> Iterator[pa.RecordBatch]:
        yield from rows.slice(position.rows).to_batches()

    train(forest(), source, run=run, on_event=copy_first, **options(client))
    assert first[0] < ROWS
    names = sorted(path.name for path in (copy / "batches").iterdir())
    assert names[0] == f"{first[0] // 700 + 1:010d}.parquet"  # with the first row not learned
    found = train(forest(), source, run=copy, **options(client))
    assert found.summary["rows"] == ROWS - first[0]
    assert digests(found) == digests(undisturbed)


def test_the_first_round_ends_at_its_row_however_batches_are_cut(
    rows: pa.Table,
    client: Client,
    by_files: TrainedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_source, "ROUND_ROWS", 1500)
    items = [rows.slice(0, 40), None, *rows.slice(40).to_batches(441)]
    found = train(forest(), items, run=tmp_path / "run", **options(client))
    assert digests(found) == digests(by_files)


def test_a_batch_that_cannot_be_learned_is_given_anew(
    rows: pa.Table, client: Client, tmp_path: Path
) -> None:
    wrong = rows.set_column(
        rows.column_names.index("income"), "income", pa.array(["?"] * len(rows))
    )
    batches = tmp_path / "run/batches"
    place = rows.column_names.index("age")
    infinite = rows.set_column(place, "age", pa.array([float("inf")] * len(rows)))

    def source(values: pa.Table) -> Any:
        return lambda position: values.slice(position.rows).to_batches(500)

    train(forest(), source(rows.slice(0, 2000)), run=tmp_path / "run", **options(client))
    before = sorted(batches.iterdir())
    for other, words in (
        (wrong, "unknown label '.'.* by `classes`"),
        (rows.drop(["age"]), "lacks .*age"),
    ):
        with pytest.raises(DMondrianError, match=words):
            train(forest(), source(other), run=tmp_path / "run", **options(client))
    assert sorted(batches.iterdir()) == before
    with pytest.raises(DataError, match=r"is infinite .*delete \d{10}\.parquet in .* with higher"):
        train(forest(), source(infinite), run=tmp_path / "run", **options(client))
    names = sorted(file.name for file in batches.iterdir())
    Path(batches / names[-2]).rename(tmp_path / "kept")
    with pytest.raises(DataError, match=f"lacks {names[-2]}, of which not all rows are learned"):
        train(forest(), source(rows), run=tmp_path / "run", **options(client))


def test_a_file_that_a_checkpoint_depends_on_is_not_to_be_deleted(
    rows: pa.Table, client: Client, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(forest(), rows.slice(0, 2000).to_batches(500), run=run, **options(client))
    files = batch_source.batch_files([], str(run))
    (newest, *_) = sorted((run / "batches").glob("*.parquet"), reverse=True)
    kept = pytest.raises(DataError, match="train a new run, in another folder")
    with kept, batch_source.about_batches(files):
        raise DataError(f"a label is missing at {newest}, row 3")
    later = newest.with_name(f"{int(newest.stem) + 1:010d}.parquet")
    new = pytest.raises(DataError, match=f"delete {later.name} in .* and all files there with")
    with new, batch_source.about_batches(files):
        raise DataError(f"a label is missing at {later}, row 3")


def test_follow_learns_what_a_source_gives(
    rows: pa.Table, client: Client, by_files: TrainedRun, tmp_path: Path
) -> None:
    def items() -> Iterator[Any]:
        for at in range(0, ROWS, 1500):
            yield rows.slice(at, 100 if at == 0 else 1500)
            if at == 0:  # the clock does not end the first look
                yield rows.slice(100, 1400)
            yield None

    learned: list[int] = []
    with pytest.raises(ParameterError, match="labels are joined with rows that come in files"):
        follow(
            forest(), items(), run=tmp_path / "run", labels={"data": "l", "key": "k", "out": "o"},
            **options(client),
        )  # fmt: skip
    found = follow(
        forest(),
        items(),
        run=tmp_path / "run",
        interval=1e-9,
        on_learned=lambda event: learned.append(event.rows),
        **options(client),
    )
    assert found is not None
    assert learned == [1500] * 4
    assert digests(found) == digests(by_files)
    run = Run.open(tmp_path / "run")
    assert len(run.manifests()) == 3
    assert run.store.list("batches") == ["batches/0000000004.parquet"]


def test_rows_in_memory_are_pointed_to_batches(rows: pa.Table) -> None:
    for data in (rows, rows.to_batches()[0], rows.to_pandas(), pa.dataset.dataset(rows).scanner()):
        for call in (train, follow):
            with pytest.raises(ParameterError, match=r"Batches of rows .*`table\.to_batches\(\)`"):
                call(forest(), data, run="unused", target="income")


def test_a_source_without_rows_is_refused(client: Client, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gave no row"):
        train(forest(), iter(()), run=tmp_path / "run", **options(client))
