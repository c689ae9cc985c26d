"""`evaluate` names of which rows the model knows the labels already."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian.distributed import TrainedRun
from tests.cli.command import call, events

FLATTERS = "learned by the model, which makes it look better than it is"


@pytest.fixture
def cluster(client: Client) -> tuple[str, str]:
    assert client.scheduler is not None
    return "--scheduler", client.scheduler.address


def rows_file(run: TrainedRun) -> Path:
    (uri,) = {block.uri for block in run.plan.blocks}
    return Path(uri)


def remarks(run: str, data: object, cluster: tuple[str, str]) -> list[str]:
    _, stderr = call("evaluate", run, data, *cluster)
    return [line for line in stderr.splitlines() if FLATTERS in line]


def test_rows_that_were_learned_are_counted(of_numbers, cluster, tmp_path) -> None:
    run, file = of_numbers.run_url, rows_file(of_numbers)
    (reported,) = remarks(run, file, cluster)
    assert reported.startswith("note: all 2,000 rows were learned")
    link = tmp_path / "link.parquet"
    link.symlink_to(file)
    assert len(remarks(run, link, cluster)) == 1
    folder = tmp_path / "both"
    folder.mkdir()
    shutil.copy(file, folder / "copy.parquet")
    table = pq.read_table(file)
    pq.write_table(table.slice(0, 500), folder / "others.parquet")  # that nobody can know
    (reported,) = remarks(run, folder, cluster)
    assert reported.startswith("note: 2,000 of the 2,500 rows were learned")


def test_other_rows_are_not(of_numbers, cluster, tmp_path) -> None:
    file = rows_file(of_numbers)
    table = pq.read_table(file)
    x = pa.array(np.random.default_rng(1).random(2000))
    other = table.set_column(0, table.column_names[0], x)
    (tmp_path / "new").mkdir()
    pq.write_table(other, tmp_path / "new" / file.name)
    os.utime(tmp_path / "new" / file.name, (0, 0))
    assert remarks(of_numbers.run_url, tmp_path / "new" / file.name, cluster) == []


def test_rows_behind_a_checkpoint_are_not(classified, cluster) -> None:
    """Row groups of 500 rows: at a checkpoint only those before it were learned."""
    file = rows_file(classified)
    for position in (1000, 2000):
        (reported,) = remarks(f"{classified.run_url}@{position}", file, cluster)
        assert reported.startswith(f"note: {position:,} of the 3,000 rows were learned")


def test_without_a_plan_it_measures_all_the_same(of_numbers, cluster, tmp_path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(of_numbers.run_url, copy)
    (copy / "plan.parquet").write_bytes(b"PAR1")
    assert remarks(str(copy), rows_file(of_numbers), cluster) == []
    words = ("evaluate", copy, rows_file(of_numbers), *cluster, "--json")
    assert events(call(*words)[0])[0]["metrics"]["rows"] == 2000


def test_rows_without_labels_are_refused_with_advice_that_helps(
    of_numbers, cluster, tmp_path
) -> None:
    table = pq.read_table(rows_file(of_numbers))
    y = [None, *table["y"].to_pylist()[1:]]
    pq.write_table(table.set_column(3, "y", pa.array(y)), tmp_path / "rows.parquet")
    _, stderr = call("evaluate", of_numbers.run_url, tmp_path / "rows.parquet", *cluster, code=3)
    assert "is missing in 1 row, first at" in stderr
    assert "take such rows out of the data" in stderr
