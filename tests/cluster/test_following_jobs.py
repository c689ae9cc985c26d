"""Jobs that follow the stream: at any number of workers, with some killed, the known digests."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.distributed import train
from tests.cluster.forests import FORESTS, digest_of, n_learned, rows_of, times_of
from tests.cluster.test_processors import KNOWN
from tests.distributed.conftest import (
    Once,
    patience,  # noqa: F401 - a fixture
    talkative,  # noqa: F401 - a fixture
    worker_processes,
    worker_threads,
)

NAMES = [name for name in FORESTS if "following" in name]

KILLED = {  # workers of each job that loses one
    "amf-classifier, following": 2,
    "amf-classifier, following in blocks": 3,
    "amf-classifier, following, boosted": 3,
    "amf-classifier, following by time": 3,
    "amf-classifier, following by time, boosted": 2,
    "amf-classifier, following, scaled": 3,
    "amf-regressor, following": 3,
    "amf-regressor, following in blocks": 2,
    "amf-regressor, following in blocks, boosted": 2,
}
# One job of each kind; the thorough run has all.
FEW = {("amf-classifier, following in blocks", 2), ("amf-regressor, following by time", 5)}
CASES = [
    pytest.param(name, n, marks=() if (name, n) in FEW else pytest.mark.thorough)
    for name in NAMES
    for n in (1, 2, 5)
]


def write(folder: Path, name: str) -> Path:
    """Write the rows that a forest of this name learns."""
    n = n_learned(name)
    X, y, w = (part[:n] for part in rows_of(name))
    columns: dict[str, Any] = {f"x{j:02d}": X[:, j] for j in range(X.shape[1])}
    if (times := times_of(name)) is not None:
        columns["t"] = times[:n]
    table = pa.table({**columns, "y": y, "w": w})
    pq.write_table(table, folder / "rows.parquet", row_group_size=90)
    return folder / "rows.parquet"


def job(file: Path, name: str, **options: Any) -> str:
    """Train a run on a cluster; return the digest of its forest, and of what it predicts."""
    if times_of(name) is not None:
        options |= {"time": "t", "exclude": ["t"]}
    run = train(
        FORESTS[name], file, target="y", weight="w", run=file.parent / "run",
        checkpoint_every="70 rows", **options,
    )  # fmt: skip
    return digest_of(run.to_local(), rows_of(name)[0])


@pytest.mark.parametrize(("name", "n_workers"), CASES)
def test_digests_do_not_depend_on_workers(tmp_path: Path, name: str, n_workers: int) -> None:
    with worker_threads(n_workers) as (_, client):
        found = job(write(tmp_path, name), name, client=client)
    assert found == json.loads(KNOWN.read_text())[name]


@pytest.mark.slow
@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("name", "n_workers"), KILLED.items())
@pytest.mark.thorough
def test_digests_do_not_depend_on_workers_that_were_killed(
    tmp_path: Path, name: str, n_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmondrian.distributed.worker.work_units.UNIT_ROWS", 40)
    with worker_processes(n_workers) as client:
        pid = min(client.run(os.getpid).values())
        kill = Once(partial(os.kill, pid, signal.SIGKILL))
        found = job(write(tmp_path, name), name, client=client, progress=kill)
    assert kill.is_done
    assert found == json.loads(KNOWN.read_text())[name]
