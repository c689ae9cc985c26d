"""Jobs that are handed over: they end although who handed them over, or a worker, is gone."""

from __future__ import annotations

import io
import os
import signal
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian.checkpoint import Run, document, jobs
from dmondrian.checkpoint.held_out import read_record
from dmondrian.checkpoint.lease import ask_to_stop, holder_of
from dmondrian.cli.output import Output
from dmondrian.cli.watch import follow
from dmondrian.distributed import submit
from dmondrian.errors import DataError, ParameterError, SchemaError, StoreError

from .conftest import (
    ADULT,
    COLUMNS,
    PATIENCE,
    digests,
    forest,
    wait_until,
    worker_threads,
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows enough to be disturbed while they are learned."""
    file = tmp_path_factory.mktemp("rows") / "adult.parquet"
    table = pq.read_table(ADULT, columns=COLUMNS).slice(0, 15_000)
    pq.write_table(table, file, row_group_size=500)
    return file


def is_final(run: Path) -> bool:
    newest = Run.open(run).latest(verify=False)
    return newest is not None and newest.final


def coordinator_of(run: Path) -> int:
    """Process of the coordinator, once it has a checkpoint."""
    opened = Run.open(run)
    wait_until(lambda: holder_of(opened.store) is not None and opened.manifests())
    holder = holder_of(opened.store)
    assert holder is not None
    return holder.pid


def submitted(cluster: Client, rows: Path, run: Path, **options: Any) -> None:
    """Hand a job over by a client that leaves at once."""
    assert cluster.scheduler is not None
    with Client(cluster.scheduler.address, set_as_default=False) as client:
        given = {"target": "income", "checkpoint_every": "1000 rows", **options}
        assert submit(forest(), rows, run=run, client=client, **given) == str(run)


@pytest.fixture(scope="module")
def expected(rows: Path, two_processes: Client, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from dmondrian.distributed import train

    run = tmp_path_factory.mktemp("expected") / "run"
    train(forest(), rows, target="income", run=run, client=two_processes)
    return digests(run)


def test_two_jobs_and_their_scores_end_beside_each_other(
    pair: Client, rows: Path, tmp_path: Path, expected: Any
) -> None:
    held = tmp_path / "held.parquet"
    pq.write_table(pq.read_table(ADULT, columns=COLUMNS).slice(15_000, 300), held)
    for name, validation in (("a", None), ("b", held)):
        wanted = {"data": str(rows), "out": str(tmp_path / f"scores-{name}")}
        given = {"score": wanted, "validation": validation, "checkpoint_every": "5000 rows"}
        submitted(pair, rows, tmp_path / name, **given)
    for name in "ab":
        wait_until(lambda name=name: (tmp_path / f"scores-{name}" / "_manifest.json").exists())
        assert digests(tmp_path / name) == expected
    evaluated = read_record(Run.open(tmp_path / "b").store)
    assert evaluated is not None
    assert [one.position for one in evaluated.evaluated] == Run.open(tmp_path / "b").manifests()
    assert pair.scheduler is not None  # it is open
    ask = pair.scheduler.who_has
    wait_until(lambda: not pair.sync(ask, callback_timeout=PATIENCE))


def test_paths_are_those_of_who_hands_a_job_over(
    pair: Client, rows: Path, tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are in another folder."""
    monkeypatch.chdir(rows.parent)
    held = tmp_path / "held.parquet"
    pq.write_table(pq.read_table(ADULT, columns=COLUMNS).slice(15_000, 300), held)
    wanted = {"data": [rows.name], "out": os.path.relpath(tmp_path / "scores")}
    given = {"score": wanted, "validation": os.path.relpath(held)}
    submitted(pair, Path(rows.name), tmp_path / "run", **given, checkpoint_every="5000 rows")
    wait_until(lambda: (tmp_path / "scores" / "_manifest.json").exists())
    assert digests(tmp_path / "run") == expected


def test_the_coordinator_starts_again_elsewhere_when_its_worker_dies(
    pair: Client, rows: Path, tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmondrian.cli.watch.BEAT_SECONDS", 0.05)  # it sees the first process
    submitted(pair, rows, tmp_path / "run")
    text = io.StringIO()
    arguments = Namespace(model=str(tmp_path / "run"))
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, arguments, Output(False, text, text))
        wait_until(lambda: "process" in text.getvalue())
        pid = coordinator_of(tmp_path / "run")
        os.kill(pid, signal.SIGKILL)
        assert following.result(3 * PATIENCE) == 0
    assert is_final(tmp_path / "run")
    assert digests(tmp_path / "run") == expected
    holder = holder_of(Run.open(tmp_path / "run").store)
    assert holder is not None
    assert holder.number >= 2
    assert f"goes on where process {pid} on" in text.getvalue()
    assert "resuming from row" in text.getvalue()
    assert "finished; its last checkpoint is at position 15,000" in text.getvalue()


def test_a_job_that_is_asked_to_stop_stops_at_a_checkpoint(
    pair: Client, rows: Path, tmp_path: Path
) -> None:
    submitted(pair, rows, tmp_path / "run")
    coordinator_of(tmp_path / "run")
    store = Run.open(tmp_path / "run").store
    ask_to_stop(store, holder_of(store))  # type: ignore[arg-type]  # one holds it
    wait_until(lambda: holder_of(store).is_over)  # type: ignore[union-attr]  # as before
    holder = holder_of(store)
    assert holder is not None
    assert holder.beat is not None
    assert holder.beat["outcome"] == "stopped"
    assert not is_final(tmp_path / "run")
    assert len(pair.run(os.getpid)) == 2  # no worker was interrupted


def test_a_job_that_waits_for_a_worker_can_be_stopped_before_it_begins(
    rows: Path, tmp_path: Path
) -> None:
    with worker_threads(0) as (workers, client):
        given = {"target": "income", "run": tmp_path / "run"}
        submit(forest(), rows, client=client, **given)
        store = Run.open(tmp_path / "run").store
        job = jobs.newest(store)
        assert job is not None
        assert not job.is_done
        jobs.ask_to_stop(store, job.id)
        workers.scale(1)
        wait_until(lambda: jobs.newest(store).is_done)  # type: ignore[union-attr]  # there is one
    assert holder_of(store) is None
    assert not Run.open(tmp_path / "run").manifests()


def test_any_failure_of_a_job_is_reported(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    out.mkdir()
    (out / "_score.json").write_bytes(document.seal({"model": "another"}))
    with worker_threads(1) as (_, client):
        wanted = {"data": str(rows), "out": str(out)}
        submit(forest(), rows, target="income", run=tmp_path / "run", client=client, score=wanted)
        store = Run.open(tmp_path / "run").store
        wait_until(lambda: jobs.newest(store).is_done)  # type: ignore[union-attr]  # there is one
    job = jobs.newest(store)
    assert job is not None
    assert job.error is not None
    assert "holds other scores" in job.error


def test_mistakes_are_reported_before_it_is_handed_over(
    pair: Client, rows: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="nothing there"):
        submit(forest(), tmp_path / "nothing there", target="income", run=tmp_path, client=pair)
    array = dask.array.zeros((4, 2))
    with pytest.raises(ParameterError, match="write the collection first"):
        submit(forest(), array, target="y", run=tmp_path, client=pair)
    asked = {"data": str(rows), "out": str(tmp_path / "scores"), "details": "no"}
    with pytest.raises(ParameterError, match="details must be True or False, got 'no'"):
        submit(forest(), rows, target="income", run=tmp_path, client=pair, score=asked)
    asked = {"data": str(rows), "out": str(tmp_path / "scores"), "kept": ["age"]}
    with pytest.raises(ParameterError, match="score has 'data', 'out', 'kept'; expected 'data'"):
        submit(forest(), rows, target="income", run=tmp_path, client=pair, score=asked)
    with pytest.raises(ParameterError, match="score has 'data'; expected 'data' and 'out'"):
        submit(forest(), rows, target="income", run=tmp_path, client=pair, score={"data": "rows"})
    few = tmp_path / "few.parquet"
    pq.write_table(pq.read_table(rows).drop_columns(["age"]), few)
    asked = {"data": str(few), "out": str(tmp_path / "scores")}
    with pytest.raises(SchemaError, match="lacks the column 'age': expected"):
        submit(forest(), rows, target="income", run=tmp_path / "run", client=pair, score=asked)
    assert not (tmp_path / "run").exists()
    run = tmp_path / "run"
    if Path("/proc/self").exists():  # where nobody can write
        asked = {"data": str(rows), "out": "/proc/scores"}
        with pytest.raises(StoreError, match="/proc/scores"):
            submit(forest(), rows, target="income", run=run, client=pair, score=asked)


def test_a_failure_is_reported_in_the_run_folder(pair: Client, rows: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(rows.read_bytes())
    data = bytearray(rows.read_bytes())
    group = pq.ParquetFile(rows).metadata.row_group(20).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    data[start : start + group.total_compressed_size] = b"\xff" * group.total_compressed_size
    copy.write_bytes(data)
    submitted(pair, copy, tmp_path / "run")
    store = Run.open(tmp_path / "run").store
    wait_until(lambda: (h := holder_of(store)) is not None and h.is_over)
    holder = holder_of(store)
    assert holder is not None
    assert holder.beat is not None
    assert holder.beat["outcome"] == "failed"
    assert "copy.parquet" in holder.beat["error"]
