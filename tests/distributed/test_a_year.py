"""A year in short: a table and files that come, expire and are compacted; labels that come late.

Each look is a call of its own, which knows of the ones before only what is stored; one is a command
that is killed. At the end each row was learned once: the forests have the bytes of undisturbed
passes over the rows in their order.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.distributed import Event, TrainedRun, follow, train
from tests.cli.command import start
from tests.distributed.conftest import PATIENCE, digests, forest

deltalake = pytest.importorskip("deltalake")

IS_THOROUGH = os.environ.get("DMONDRIAN_THOROUGH") == "1"
MONTHS, HOURS, ROWS = 12, 4 if IS_THOROUGH else 2, 100 if IS_THOROUGH else 200
ALERT = "log_loss_window > 0.65"
OPTIONS: dict[str, Any] = {"target": "y", "exclude": ["id", "month"], "classes": [0, 1]}


def hour(number: int) -> pa.Table:
    """Rows of an hour. From month six on the rule is the opposite."""
    random = np.random.default_rng(number)
    x, month = random.random((ROWS, 2)), number // HOURS
    kind = pa.array(["a", "b", "c"]).take(pa.array(random.integers(0, 3, ROWS)))
    y = (x[:, 0] > 0.5) != (month >= MONTHS // 2)
    ids = pa.array(np.arange(number * ROWS, (number + 1) * ROWS))
    return pa.table(
        {
            "id": ids, "month": pa.array(np.full(ROWS, month)), "x": x[:, 0], "z": x[:, 1],
            "kind": kind, "y": pa.array(y.astype(np.int64)),
        }
    )  # fmt: skip


class Table:
    """A Delta table to which hours are appended, and the run that follows it."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.place, self.run, self.client = folder / "table", folder / "run", client
        self.events: list[Event] = []
        self.learned: list[int] = []

    def append(self, number: int) -> None:
        deltalake.write_deltalake(str(self.place), hour(number), mode="append")

    def look(self) -> TrainedRun:
        found = follow(
            forest(n_estimators=2),
            self.place,
            run=self.run,
            once=True,
            keep=2,
            alerts={"when": ALERT},
            on_event=self.events.append,
            on_learned=lambda one: self.learned.append(one.rows),
            client=self.client,
            n_shards=2,
            **OPTIONS,
        )
        assert found is not None
        return found

    def expire(self, month: int) -> None:
        """Delete the rows of the months before one, and files that no version needs."""
        table = deltalake.DeltaTable(self.place)
        table.delete(f"month < {month}")
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def compact(self) -> None:
        table = deltalake.DeltaTable(self.place)
        table.optimize.compact()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def is_killed(self, folder: Path) -> None:
        """Have a command follow the table, and kill it when it has learned what came."""
        settings = {
            "random_state": 7,
            "alpha": 0.25,
            "charge_opening": True,
            "feature_scales": "none",
        }
        job = {
            "data": {"path": str(self.place), **OPTIONS},
            "forest": {"algorithm": "amf-classifier", "n_estimators": 2, **settings},
            "run": {"path": str(self.run), "n_shards": 2},
            "cluster": {"workers": 1, "threads": 1},
        }  # fmt: skip
        (folder / "job.toml").write_text(tomli_w.dumps(job))
        before = max(Run.open(self.run).manifests())
        process = start("follow", folder / "job.toml", "--interval", 0.2, "--keep", 2)
        try:
            end = time.monotonic() + PATIENCE
            while max(Run.open(self.run).manifests()) == before:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end, "it learned nothing"
                time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE)

    def objects(self) -> list[str]:
        """Return what the run's folder holds, but for a link and traces of each look."""
        names = Run.open(self.run).store.list()
        return [n for n in names if not n.startswith(("lease/", "attempts/", "plans/0"))]


def undisturbed(folder: Path, parts: list[pa.Table], client: Client, **options: Any) -> TrainedRun:
    """Learn tables, in one pass behind the first one, which determines the encoding."""
    folder.mkdir()
    for number, part in enumerate((parts[0], pa.concat_tables(parts[1:]))):
        pq.write_table(part, folder / f"{number}.parquet")
        run = train(
            forest(n_estimators=2), folder, run=folder / "run", client=client, n_shards=2, **options
        )
    return run


def test_a_table_that_is_compacted_and_expires(client: Client, tmp_path: Path) -> None:
    year = Table(tmp_path, client)
    sizes, n_files = {}, {}
    for month in range(MONTHS):
        for number in range(month * HOURS, (month + 1) * HOURS):
            year.append(number)
            if number == 9 * HOURS:
                year.is_killed(tmp_path)
            elif number % 2:
                year.look()
        if month in (3, 8):
            year.compact()
        if month in (4, 7, 10):
            year.expire(month - 1)
        sizes[month], n_files[month] = len(year.objects()), len([*year.place.glob("*.parquet")])
    found = year.look()
    assert found.plan.n_rows == MONTHS * HOURS * ROWS
    assert sum(year.learned) == (MONTHS * HOURS - 1) * ROWS  # and the command learned an hour
    whole = [hour(number) for number in range(MONTHS * HOURS)]
    first, rest = pa.concat_tables(whole[:2]), whole[2:]
    expected = undisturbed(tmp_path / "files", [first, *rest], client, **OPTIONS)
    assert digests(found) == digests(expected)
    assert found.metrics == expected.metrics
    alerts = [event for event in year.events if event.kind == "alert"]
    assert len(alerts) == 1
    assert MONTHS * HOURS * ROWS // 2 < alerts[0].values["row"] <= found.plan.n_rows
    assert found.metrics["drift"] is not None
    assert max(sizes.values()) <= 16  # disk: what was killed may leave a plan and two states
    assert sizes[11] <= sizes[3] + 2  # alerts came, and what a kill may leave for the next look
    assert n_files[10] <= 2 * HOURS + 2
    (state,) = found.plan.tables
    assert state.deleted == 9 * HOURS * ROWS  # of what was learned, and stays learned


def test_files_that_expire_and_labels_that_come_late(client: Client, tmp_path: Path) -> None:
    rows, labels, joined = (tmp_path / name for name in ("rows", "labels", "joined"))
    rows.mkdir()
    labels.mkdir()
    whole, orders = [], [np.random.default_rng(month).permutation(ROWS) for month in range(MONTHS)]
    learned: list[int] = []
    options = {"target": "y", "classes": [0, 1]}
    for month in range(MONTHS + 1):
        if month < MONTHS:
            came = hour(month * HOURS).drop_columns(["month"])
            whole.append(came.take(pa.array(orders[month])))
            pq.write_table(came.drop_columns(["y"]), rows / f"{month:04d}.parquet")
        if month:  # labels of the month before, in another order
            pq.write_table(whole[month - 1].select(["id", "y"]), labels / f"{month:04d}.parquet")
        for folder, name in ((rows, month - 3), (labels, month - 4)):
            (folder / f"{name:04d}.parquet").unlink(missing_ok=True)
        found = follow(
            forest(n_estimators=2), rows, run=tmp_path / "run", once=True, keep=2, client=client,
            labels={"data": labels, "key": "id", "out": joined}, n_shards=2,
            on_learned=lambda one: learned.append(one.rows), **options,
        )  # fmt: skip
        assert (found is None) == (month == 0)
    assert learned == [ROWS] * MONTHS
    expected = undisturbed(tmp_path / "files", whole, client, exclude=["id"], **options)
    assert found is not None
    assert digests(found) == digests(expected)
    assert found.metrics == expected.metrics
