"""Runs on a Delta table: rows that are appended, compacted and deleted, learned once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dmondrian.checkpoint import Run
from dmondrian.distributed import Progress
from dmondrian.errors import CheckpointError
from tests.distributed.conftest import ADULT, COLUMNS, OFTEN, Fit, digests


class StopError(Exception):
    """Ends a run as a crash does."""


def stop(progress: Progress) -> None:
    if progress.durable >= 1000:
        raise StopError


@pytest.mark.usefixtures("talkative")
def test_a_run_learns_a_table_as_it_grows_to_the_bytes_of_its_rows_as_plain_files(
    fit: Fit, tmp_path: Path
) -> None:
    rows = pq.read_table(ADULT, columns=COLUMNS)
    table, plain = tmp_path / "table", tmp_path / "files"
    plain.mkdir()
    n = 0

    def append(n_rows: int) -> None:
        nonlocal n
        part = rows.slice(n, n_rows)
        write_deltalake(table, part, mode="append")
        pq.write_table(part, plain / f"{n:05d}.parquet")
        n += n_rows

    def vacuum() -> None:
        DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)

    append(1500)
    append(700)
    with pytest.raises(StopError):
        fit("run", data=table, progress=stop, window=1, **OFTEN)
    fit("plain", data=plain)
    DeltaTable(table).optimize.compact()  # what is not learned yet is read as it was
    assert fit("run", data=table).summary["resumed_at"] == 1000
    vacuum()
    append(800)
    append(300)
    DeltaTable(table).optimize.compact()
    run = fit("run", data=table)
    fit("plain", data=plain)
    assert run.summary["rows"] == 1100
    vacuum()
    DeltaTable(table).delete("age = 17.0")
    append(900)
    DeltaTable(table).optimize.compact()
    run, expected = fit("run", data=table), fit("plain", data=plain)
    assert run.summary["rows"] == 900
    assert run.plan.n_rows == n
    assert digests(run) == digests(expected)
    assert run.metrics == expected.metrics
    deleted = sum(age == 17 for age in rows.slice(0, n - 900)["age"].to_pylist())
    (note,) = Run.open(run.run_url).stream.notes()
    assert f"{deleted} were deleted since: what was learned of them stays learned" in note
    assert fit("run", data=table).summary["rows"] == 0
    options: dict[str, Any] = {"data": table, "exclude": ["age"]}
    with pytest.raises(CheckpointError, match=r"\[data\] exclude"):
        fit("run", **options)
