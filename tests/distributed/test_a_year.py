"""A year in short: a table and files that come, expire and are compacted; labels that come late.

Two runs are followed, of a table and of files whose labels come a month later in files of their
own. Each look is a call of its own, which knows of the ones before only what is stored; two are
commands that are killed while they learn. Workers are processes of their own, of which one is
stopped and started again twice, once while rows are learned. At the end each row was learned once:
the forests have the bytes of undisturbed passes over the rows in their order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from distributed import Client, LocalCluster

from dmondrian.checkpoint import Run, attempt_notes, lease, stream
from dmondrian.data import joined_files
from dmondrian.distributed import Event, TrainedRun, follow, grow, train
from dmondrian.errors import DataError
from dmondrian.store import open_store
from tests.cli.command import PROJECT, start
from tests.distributed.conftest import PATIENCE, digests, forest, wait_until, workers_of

deltalake = pytest.importorskip("deltalake")

MONTHS, HOURS, ROWS = 12, 2, 200
LONG, LONG_ROWS = 9 * HOURS, 20_000  # an hour with rows enough to be disturbed
ALERT = "log_loss_window > 0.65"
OPTIONS: dict[str, Any] = {"target": "y", "exclude": ["id", "month"], "classes": [0, 1]}
SETTINGS = {"random_state": 7, "alpha": 0.25, "charge_opening": True, "feature_scales": "none"}


def hour(number: int) -> pa.Table:
    """Rows of an hour. From month six on the rule is the opposite."""
    random, n = np.random.default_rng(number), LONG_ROWS if number == LONG else ROWS
    x, month = random.random((n, 2)), number // HOURS
    kind = pa.array(["a", "b", "c"]).take(pa.array(random.integers(0, 3, n)))
    y = (x[:, 0] > 0.5) != (month >= MONTHS // 2)
    ids = pa.array(100_000 * number + np.arange(n))
    return pa.table(
        {
            "id": ids, "month": pa.array(np.full(n, month)), "x": x[:, 0], "z": x[:, 1],
            "kind": kind, "y": pa.array(y.astype(np.int64)),
        }
    )  # fmt: skip


class Machines:
    """A scheduler, and workers that are processes of their own."""

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.address, self.client = cluster.scheduler_address, client
        self.workers = [self._start(), self._start()]
        client.wait_for_workers(2, timeout=PATIENCE)

    def _start(self) -> subprocess.Popen[bytes]:
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        return subprocess.Popen(
            [sys.executable, "-m", "dask", "worker", self.address, *options],
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stderr=subprocess.DEVNULL,
        )

    def stop_one(self) -> None:
        """Stop a worker as whoever upgrades its machine does."""
        worker = self.workers.pop(0)
        worker.terminate()
        worker.wait(PATIENCE)

    def start_one(self) -> None:
        self.workers.append(self._start())
        self.client.wait_for_workers(len(self.workers), timeout=PATIENCE)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait(PATIENCE)
        wait_until(lambda: not workers_of(self.client))


@pytest.fixture
def machines() -> Iterator[Machines]:
    with (
        LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        made = Machines(cluster, client)
        try:
            yield made
        finally:
            made.close()


class Followed:
    """A run that is followed, by calls in this process and by commands that are killed."""

    def __init__(self, folder: Path, machines: Machines, data: Path, **options: Any) -> None:
        self.folder, self.run, self.machines, self.data = folder, folder / "run", machines, data
        self.options = options
        self.events: list[Event] = []
        self.learned: list[int] = []
        self.is_upgraded = False

    def look(self, is_upgraded: bool = False) -> TrainedRun | None:
        """Learn what has come; a worker is stopped while rows are learned, and comes again."""
        wanted = [is_upgraded]

        def listen(event: Event) -> None:
            self.events.append(event)
            if event.kind == "window" and wanted.pop():
                self.machines.stop_one()
                self.machines.start_one()
                self.is_upgraded = True
            wanted[:] = wanted or [False]

        return follow(
            forest(n_estimators=2), self.data, run=self.run, once=True, keep=2, n_shards=2,
            alerts={"when": ALERT}, on_event=listen, client=self.machines.client,
            on_learned=lambda one: self.learned.append(one.rows), **self.options,
        )  # fmt: skip

    def is_killed(self, job: dict[str, Any]) -> int:
        """Have a command follow, and kill it while it learns; return the rows that it saved."""
        content = {
            "forest": {"algorithm": "amf-classifier", "n_estimators": 2, **SETTINGS},
            "run": {"path": str(self.run), "n_shards": 2, "checkpoint_every": "1000 rows"},
            "cluster": {"scheduler": self.machines.address},
            **job,
        }
        (self.folder / "job.toml").write_text(tomli_w.dumps(content))
        before = max(Run.open(self.run).manifests())
        process = start("follow", self.folder / "job.toml", "--interval", 0.2, "--keep", 2)
        try:
            end = time.monotonic() + PATIENCE
            while (now := max(Run.open(self.run).manifests())) == before:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end, "it learned nothing"
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE)
        now = max(Run.open(self.run).manifests())
        assert not Run.open(self.run).manifest(now).final, "it was killed too late"
        return now - before

    def spare_bytes(self) -> int:
        """Return the bytes of all objects of the run but of its checkpoints, each as the newest."""
        run = Run.open(self.run)
        sizes = run.store.sizes()
        found = [run.manifest(position) for position in run.manifests()]
        newest = sum(shard["bytes"] for shard in found[-1].shards.values())
        states = len(found) * (newest + sizes[found[-1].name])
        return sum(sizes.values()) - states


class Table(Followed):
    """A Delta table to which hours are appended."""

    def append(self, number: int) -> None:
        deltalake.write_deltalake(str(self.data), hour(number), mode="append")

    def expire(self, month: int) -> None:
        """Delete the rows of the months before one, and files that no version needs."""
        table = deltalake.DeltaTable(self.data)
        table.delete(f"month < {month}")
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def compact(self) -> None:
        table = deltalake.DeltaTable(self.data)
        table.optimize.compact()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def month(self, month: int) -> None:
        for number in range(month * HOURS, (month + 1) * HOURS):
            self.append(number)
            if number == LONG:
                job = {"data": {"path": str(self.data), **OPTIONS}}
                self.learned.append(self.is_killed(job))
            if number == LONG or number % 2:
                self.look(is_upgraded=number == LONG)
        if month in (3, 8):
            self.compact()
        if month in (4, 7, 10):
            self.expire(month - 1)


class Labelled(Followed):
    """Files of rows, of which an hour of each month comes, and files of their labels."""

    def __init__(self, folder: Path, machines: Machines) -> None:
        self.labels, self.joined = folder / "labels", folder / "joined"
        labels = {"data": self.labels, "key": "id", "out": self.joined}
        options = {"target": "y", "classes": [0, 1], "labels": labels}
        super().__init__(folder, machines, folder / "rows", **options)
        self.labels.mkdir(parents=True)
        self.data.mkdir()
        self.rows: list[pa.Table] = []  # in the order of their labels

    def month(self, month: int) -> TrainedRun | None:
        if month < MONTHS:
            came = hour(month * HOURS).drop_columns(["month"])
            order = np.random.default_rng(month).permutation(len(came))
            self.rows.append(came.take(pa.array(order)))
            pq.write_table(came.drop_columns(["y"]), self.data / f"{month:04d}.parquet")
        if month:  # labels of the month before, in another order
            labels = self.rows[month - 1].select(["id", "y"])
            pq.write_table(labels, self.labels / f"{month:04d}.parquet")
        for folder, name in ((self.data, month - 3), (self.labels, month - 4)):
            (folder / f"{name:04d}.parquet").unlink(missing_ok=True)
        if month and (month - 1) * HOURS == LONG:
            places = {"path": str(self.labels), "key": "id", "joined": str(self.joined)}
            data = {"path": str(self.data), "target": "y", "classes": [0, 1]}
            self.learned.append(self.is_killed({"data": data, "labels": places}))
        return self.look()


def undisturbed(folder: Path, parts: list[pa.Table], client: Client, **options: Any) -> TrainedRun:
    """Learn tables, in one pass behind the first one, which determines the encoding."""
    folder.mkdir()
    for number, part in enumerate((parts[0], pa.concat_tables(parts[1:]))):
        pq.write_table(part, folder / f"{number}.parquet")
        run = train(
            forest(n_estimators=2), folder, run=folder / "run", client=client, n_shards=2, **options
        )
    return run


pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put together and delete what is old as often as in years."""
    monkeypatch.setattr(stream, "MOST_LINKS", 4)
    monkeypatch.setattr(lease, "KEPT", 4)
    monkeypatch.setattr(attempt_notes, "KEPT", 4)
    monkeypatch.setattr(joined_files, "MOST_FILES", 3)


def test_a_year(machines: Machines, client: Client, tmp_path: Path) -> None:
    table = Table(tmp_path / "of_table", machines, tmp_path / "of_table/table")
    table.folder.mkdir()
    table.options = OPTIONS
    labelled = Labelled(tmp_path / "of_files", machines)
    n_bytes, n_joined, n_files = [], [], {}
    for month in range(MONTHS + 1):
        if month == 5:
            machines.stop_one()
        if month < MONTHS:
            table.month(month)
        late = labelled.month(month)
        if month == 5:
            machines.start_one()
        n_files[month] = len([*table.data.glob("*.parquet")])
        if month:
            n_joined.append(open_store(labelled.joined).sizes())
            n_bytes.append(table.spare_bytes() + labelled.spare_bytes())
    found = table.look()
    assert found is not None
    assert late is not None
    assert table.is_upgraded

    whole = [hour(number) for number in range(MONTHS * HOURS)]
    rows = sum(map(len, whole))
    assert found.plan.n_rows == sum(table.learned) == rows
    assert late.plan.n_rows == sum(labelled.learned) == sum(map(len, labelled.rows))
    first, rest = pa.concat_tables(whole[:2]), whole[2:]
    for run, parts, options in (
        (found, [first, *rest], OPTIONS),
        (late, labelled.rows, {"target": "y", "classes": [0, 1], "exclude": ["id"]}),
    ):
        folder = tmp_path / f"undisturbed-{len(parts)}"
        expected = undisturbed(folder, parts, client, **options)
        assert digests(run) == digests(expected)
        assert run.metrics == expected.metrics
        assert run.metrics["drift"]["found"]

    for one in (table, labelled):
        alerts = [event for event in one.events if event.kind == "alert"]
        assert len(alerts) == 1
        assert alerts[0].values["row"] > MONTHS // 2 * HOURS * ROWS // 2
    (state,) = found.plan.tables
    assert state.deleted == 9 * HOURS * ROWS  # of what was learned, and stays learned
    assert n_files[10] <= 2 * HOURS + 2
    assert max(n_bytes) < 160_000  # what was killed may leave a plan and two states
    assert max(map(len, n_joined)) <= 6
    assert max(sum(sizes.values()) for sizes in n_joined[:9]) < 40_000  # then the long hour came
    with pytest.raises(DataError, match=r"files are gone .*joined/00000001\.parquet"):
        grow(labelled.run, 3, client=client)
