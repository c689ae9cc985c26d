"""Scoring jobs of several people, killed and repeated; and the memory of workers, measured."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.comm import CommClosedError

from dmondrian.distributed import TrainedRun, score
from dmondrian.distributed.cluster.client import connected
from dmondrian.distributed.scoring import memory_plan
from dmondrian.distributed.scoring.model_info import open_model
from tests.distributed.conftest import PATIENCE, ROWS, wait_until
from tests.distributed.scoring.large_model import write_model, write_rows

JOB = Path(__file__).with_name("score_job.py")
ROOT = Path(__file__).parents[3]
START = 2 * PATIENCE  # seconds, for two processes to import, compile and score

Start = Callable[[int], subprocess.Popen[bytes]]


def _settings() -> tuple[str | None, bool, float, float]:
    enabled = dask.config.get("distributed.worker.profile.enabled")
    asked = ("distributed.admin.tick.interval", "distributed.worker.memory.monitor-interval")
    ticks, looks = (dask.utils.parse_timedelta(dask.config.get(name)) for name in asked)
    return os.environ.get("MALLOC_TRIM_THRESHOLD_"), enabled, ticks, looks


@pytest.mark.parametrize("given", [None, "65536"])
def test_local_workers_keep_pages_unless_reported_otherwise(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    if given is not None:
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", given)
    with connected(None, 1, 1) as client:
        assert [*client.run(_settings).values()] == [(given or str(16 << 20), False, 1.0, 0.5)]


async def _reported_without_scheduler(dask_worker: Worker) -> list[str]:
    """Return what a worker logs where its heartbeat finds the scheduler gone, then a warning."""
    reported: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("distributed.worker")
    handler.emit = lambda record: reported.append(record.getMessage())  # type: ignore[method-assign]
    scheduler, dask_worker.scheduler = dask_worker.scheduler, _Gone()  # type: ignore[assignment]
    logger.addHandler(handler)
    try:
        await dask_worker.heartbeat()
        logger.warning("something else")
    finally:
        logger.removeHandler(handler)
        dask_worker.scheduler = scheduler
    return reported


class _Gone:
    async def heartbeat_worker(self, **reported: object) -> None:
        raise CommClosedError("nobody there")


def _bounds(dask_worker: Worker) -> set[int | None]:
    log = dask_worker.state.log, dask_worker.state.stimulus_log, dask_worker.transfer_incoming_log
    return {kept.maxlen for kept in log} | {dask_worker.monitor.maxlen}


async def _bounds_of(dask_scheduler: Scheduler) -> tuple[int | None, ...]:
    logs = dask_scheduler.transition_log, dask_scheduler.computations, dask_scheduler.erred_tasks
    return tuple(log.maxlen for log in logs)


def test_what_processes_keep_for_a_dashboard_is_bounded() -> None:
    """Or a run that is followed for months would grow up to Dask's bounds, of many MiB."""
    with connected(None, 1, 1) as client:
        assert [*client.run(_bounds).values()] == [{100, 120}]
        assert client.run_on_scheduler(_bounds_of) == (100, 1, 10)
        for number in range(300):
            client.log_event("of a test", number)
        assert len(client.get_events("of a test")) == 100


def test_a_local_worker_prints_nothing_of_a_scheduler_that_ended_first() -> None:
    with connected(None, 1, 1) as client:
        assert [*client.run(_reported_without_scheduler).values()] == [["something else"]]


@pytest.fixture
def start(adult: Path, tmp_path: Path, undisturbed: TrainedRun) -> Iterator[Start]:
    """Start a job, given its limit, as the leader of a group."""
    started: list[subprocess.Popen[bytes]] = []

    def call(limit: int) -> subprocess.Popen[bytes]:
        arguments = [undisturbed.run_url, adult, tmp_path / "out", limit, tmp_path / "go"]
        process = subprocess.Popen(
            [sys.executable, str(JOB), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield call
    (tmp_path / "go").touch()
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def parts_of(out: Path) -> list[Path]:
    return sorted(out.glob("part-*.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sharded",
    [pytest.param(False, id="whole", marks=pytest.mark.thorough), pytest.param(True, id="sharded")],
)
@pytest.mark.thorough
def test_two_jobs_at_once_one_killed_and_repeated(
    adult: Path, client: Client, tmp_path: Path, undisturbed: TrainedRun, start: Start,
    sharded: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = tmp_path / "out"
    trees = open_model(undisturbed.run_url).trees
    limit = 2 * max(one.held + one.loading for one in trees) if sharded else 0
    rival, victim = start(limit), start(limit)

    def is_on_its_way(process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, process.communicate()[1]
        return (tmp_path / f"go-{process.pid}").exists()

    wait_until(lambda: is_on_its_way(rival) and is_on_its_way(victim), START)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait(timeout=PATIENCE)
    assert not (out / "_manifest.json").exists()
    again = start(limit)
    wait_until(lambda: is_on_its_way(again), START)
    (tmp_path / "go").touch()
    for process in (rival, again):
        _, reported = process.communicate(timeout=START)
        assert process.returncode == 0, reported
    monkeypatch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 500)
    score(undisturbed.run_url, adult, tmp_path / "whole", client=client)
    assert [file.name for file in parts_of(out)] == [
        file.name for file in parts_of(tmp_path / "whole")
    ]
    assert [file.read_bytes() for file in parts_of(out)] == [
        file.read_bytes() for file in parts_of(tmp_path / "whole")
    ]
    name = "_manifest.json"
    assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert pa.concat_tables(map(pq.read_table, parts_of(out))).num_rows == ROWS


LIMIT = 640 << 20


def peak_bytes() -> int:
    """Most memory that this process has had at once."""
    found = re.search(r"VmHWM:\s+([0-9]+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.thorough
def test_workers_stay_below_a_limit_that_the_model_exceeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmondrian.distributed.scoring.score.FILE_ROWS", 500)
    data = write_rows(tmp_path / "data.parquet", n_rows=2000, n_features=60, group=500)
    write_model(tmp_path / "run", data, n_shards=22, trees=10)
    peaks, reported = {}, {}
    for limit, n_workers in ((LIMIT, 2), (8 * LIMIT, 1)):
        with (
            LocalCluster(
                n_workers=n_workers,
                threads_per_worker=1,
                memory_limit=limit,
                dashboard_address="127.0.0.1:0",
                silence_logs=50,
            ) as cluster,
            Client(cluster, set_as_default=False) as own,
        ):
            own.wait_for_workers(n_workers, timeout=PATIENCE)
            before = own.run(os.getpid)
            reported[limit] = score(tmp_path / "run", data, tmp_path / str(limit), client=own)
            peaks[limit] = max(own.run(peak_bytes).values())
            assert own.run(os.getpid) == before  # no worker was killed for its memory
    assert reported[LIMIT]["trees_sharded"] > 1
    assert reported[8 * LIMIT]["trees_sharded"] == 1
    assert peaks[LIMIT] < memory_plan.USABLE * LIMIT < LIMIT < peaks[8 * LIMIT]
    manifests = [(tmp_path / str(n) / "_manifest.json").read_bytes() for n in peaks]
    assert manifests[0] == manifests[1]
