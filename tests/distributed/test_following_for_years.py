"""A run that is followed for long: what its folder holds is bounded, whatever ends the process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian.checkpoint import Run, attempt_notes, kept_shares, lease, stream
from dmondrian.data import joined_files
from dmondrian.data.extend import GONE
from dmondrian.distributed import TrainedRun, follow, grow, score, train
from dmondrian.errors import DataError
from dmondrian.store import open_store
from tests.distributed.conftest import ADULT, CHOSEN, COLUMNS, digests, forest
from tests.killed import KilledError, kill_at

pytestmark = pytest.mark.slow

ROWS = 40
LOOKS = pytest.mark.parametrize("looks", [24, pytest.param(60, marks=pytest.mark.thorough)])
KILLED = pytest.mark.parametrize("looks", [20, pytest.param(40, marks=pytest.mark.thorough)])
"""How often a run is looked at. What is put together after four files or links is, some times."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put together and delete what is old soon, and take over from the dead soon."""
    monkeypatch.setattr(stream, "MOST_LINKS", 4)
    monkeypatch.setattr(lease, "KEPT", 4)
    monkeypatch.setattr(attempt_notes, "KEPT", 4)
    monkeypatch.setattr(kept_shares, "MOST_PIECES", 4)
    monkeypatch.setattr(joined_files, "MOST_FILES", 3)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.1)


class Followed:
    """A folder to which files come, and a run that follows it."""

    def __init__(self, folder: Path, client: Client, **given: Any) -> None:
        self.data, self.run = folder / "data", folder / "run"
        self.data.mkdir(parents=True)
        self.rows = pq.read_table(ADULT, columns=COLUMNS)
        self.given: dict[str, Any] = {"target": "income", "client": client, "n_shards": 1}
        self.forest = {"n_estimators": 2, **given}
        self.gone: list[int] = []

    def put(self, number: int) -> None:
        part = self.data / ".part"
        pq.write_table(self.rows.slice(number * ROWS, ROWS), part)
        part.rename(self.data / f"{number:04d}.parquet")

    def look(self) -> TrainedRun:
        made = forest(**self.forest)
        found = follow(made, self.data, run=self.run, once=True, keep=2, **self.given)
        assert found is not None
        return found

    def straight(self, folder: Path) -> TrainedRun:
        """Learn the same rows: those that the run began with, then all others at once."""
        folder.mkdir()
        for name in sorted(self.data.glob("*.parquet")):
            shutil.copy2(name, folder)
            if name.stem == "0000":
                train(forest(**self.forest), folder, run=folder / "run", **self.given)
        return train(forest(**self.forest), folder, run=folder / "run", **self.given)

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the kind and size of each object; of what must grow the kind is by itself."""
        for name, size in open_store(self.run).sizes().items():
            kind = name.partition("/")[0]
            yield ("plan" if name.endswith(".parquet") else kind), size


LAGS = {"columns": ["age"], "lags": [1, 3], "n_rows": 50}


@pytest.mark.thorough
def test_rows_with_lags_that_are_learned_go(client: Client, tmp_path: Path) -> None:
    looks = 12
    run = Followed(tmp_path, client)
    run.given["lags"] = LAGS
    objects = []
    for number in range(looks):
        run.put(number)
        if number % 4 == 3:
            with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
                kill_at(patch, 5 * number % 31)
                run.look()
        assert run.look().plan.n_rows == (number + 1) * ROWS
        objects.append(len(open_store(run.run).list("_lags")))
        if number > 2:
            (run.data / f"{number - 2:04d}.parquet").unlink()
            run.gone.append(number - 2)
    assert max(objects) <= 8
    found = run.look()
    with pytest.raises(DataError, match=r"files are gone .*_lags/000000000000000\.parquet"):
        grow(run.run, 3, client=client)
    with pytest.raises(DataError, match=r"lacks files with its rows and their lags"):
        score(run.run, run.data / "0000.parquet", tmp_path / "scores", client=client)
    for number in run.gone:
        run.put(number)
    expected = run.straight(tmp_path / "straight")
    assert digests(found) == digests(expected)
    assert found.metrics == expected.metrics


MUST_GROW = {"blobs", "manifests", "plan", "shares"}
"""The forest; the learning curve, which has a bound of its own; files; what members forecast."""


@LOOKS
@pytest.mark.thorough
def test_the_folder_of_a_run_does_not_grow_with_looks(
    client: Client, tmp_path: Path, looks: int
) -> None:
    run = Followed(tmp_path, client, drift="follow", **CHOSEN)
    objects, n_bytes, plans = [], [], []
    for number in range(looks):
        run.put(number)
        assert run.look().summary["rows"] == ROWS
        sizes = list(run.sizes())
        objects.append(len(sizes))
        n_bytes.append(sum(size for kind, size in sizes if kind not in MUST_GROW))
        plans.append(max(size for kind, size in sizes if kind == "plan"))
    half = looks // 2
    assert max(objects[half:]) <= max(objects[:half]) + 1
    assert max(n_bytes[half:]) <= 1.1 * max(n_bytes[:half])
    assert (plans[-1] - plans[half]) / (looks - 1 - half) < 300  # bytes of a look
    found, expected = run.look(), run.straight(tmp_path / "straight")
    assert digests(found) == digests(expected)
    assert found.metrics == expected.metrics
    assert len(found.metrics["curve"]) > looks // 2
    work = Run.open(run.run).work()
    assert work is not None
    assert work.attempts == looks


@KILLED
def test_a_process_that_is_killed_at_any_object_of_a_look_loses_and_leaves_nothing(
    client: Client, tmp_path: Path, looks: int
) -> None:
    run = Followed(tmp_path, client, drift="follow", **CHOSEN)
    run.put(0)
    run.look()
    objects, n_killed = [], 0
    for number in range(1, looks):
        run.put(number)
        is_killed = True
        try:
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, (7 * number) % 41)
                run.look()
            is_killed = False
        except KilledError:
            n_killed += 1
        if is_killed and number % 3:
            run.look()
        objects.append(len(list(run.sizes())))
    found = run.look()
    assert found.plan.n_rows == looks * ROWS
    half = looks // 2
    assert n_killed > half
    assert max(objects[half:]) <= max(objects[:half]) + 4
    expected = run.straight(tmp_path / "straight")
    assert digests(found) == digests(expected)
    assert found.metrics == expected.metrics


@KILLED
@pytest.mark.thorough
def test_with_late_labels_a_process_that_is_killed_at_any_object_learns_each_row_once(
    client: Client, tmp_path: Path, looks: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dmondrian")
    rows, labels, joined = (tmp_path / name for name in ("rows", "labels", "joined"))
    for folder in (rows, labels):
        folder.mkdir()
    table = pq.read_table(ADULT, columns=COLUMNS)
    table = table.append_column("id", pa.array(range(len(table))))
    given = {"target": "income", "client": client, "n_shards": 1}

    def look() -> TrainedRun | None:
        return follow(
            forest(n_estimators=2), rows, run=tmp_path / "run", once=True, keep=2,
            labels={"data": labels, "key": "id", "out": joined}, **given,
        )  # fmt: skip

    whole, n_killed, n_joined = [], 0, []
    for number in range(looks):
        part = table.slice(number * ROWS, ROWS)
        pq.write_table(part.drop_columns(["income"]), rows / f"{number:04d}.parquet")
        if number:  # labels of the rows before, in another order
            whole.append(table.slice((number - 1) * ROWS, ROWS)[::-1])
            late = labels / f"{number:04d}.parquet"
            pq.write_table(whole[-1].select(["id", "income"]), late)
        is_killed = True
        try:
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, 10**6 if number < 2 else (7 * number + 3) % 37)
                look()
            is_killed = False
        except KilledError:
            n_killed += 1
        if is_killed and number % 3:
            look()
        n_joined.append(len([file for file in joined.rglob("*") if file.is_file()]))
    found = look()
    assert found is not None
    assert n_killed > looks // 2
    assert max(n_joined) <= 10
    assert found.plan.n_rows == (looks - 1) * ROWS
    straight = tmp_path / "straight"
    straight.mkdir()
    for number, part in enumerate((whole[0], pa.concat_tables(whole[1:]))):
        pq.write_table(part, straight / f"{number}.parquet")
        made = forest(n_estimators=2)
        expected = train(made, straight, run=straight / "run", exclude=["id"], **given)
    assert digests(found) == digests(expected)
    assert found.metrics == expected.metrics
    # Joined files are deleted once they are learned, which is no news.
    assert not any(GONE in text for text in caplog.messages)
    assert Run.open(tmp_path / "run").stream.notes() == []
