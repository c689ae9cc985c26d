"""What `follow` holds does not grow by more than the names of its files, look by look."""

from __future__ import annotations

import gc
import os
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import AMFClassifier
from dmondrian.distributed import Learned, follow
from dmondrian.distributed.cluster.client import CONFIG, connected
from dmondrian.distributed.worker.tasks import HeldRun

WARM_UP, LOOKS = 12, 36
"""Looks until what is kept of a bounded number of looks is full, and all looks."""

BYTES_A_LOOK = 13_000
"""Most that Python holds more after a look; lists of all blocks took more."""


def put_file(folder: Path, number: int) -> None:
    """Bring a file of rows by a rename."""
    x = np.random.default_rng(number).normal(size=50)
    pq.write_table(pa.table({"x": x, "y": x > 0}), folder / "coming")
    (folder / "coming").rename(folder / f"{number:06d}.parquet")


def test_a_look_leaves_nothing_behind_but_the_names_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("log-length", "low-level-log-length", "system-monitor.log-length"):
        monkeypatch.setitem(CONFIG, f"distributed.admin.{name}", 5)  # soon full
    held: list[tuple[int, int]] = []
    data = tmp_path / "data"

    def learned(_: Learned) -> None:
        n_runs = sum(type(one) is HeldRun for one in gc.get_objects())
        if len(held) < WARM_UP or len(held) >= LOOKS - 5:
            gc.collect()  # else what a look leaves has to be freed by itself
        held.append((tracemalloc.get_traced_memory()[0], n_runs))
        if len(held) == LOOKS:
            os.kill(os.getpid(), signal.SIGINT)
            return
        (data / f"{len(held) - 2:06d}.parquet").unlink(missing_ok=True)
        put_file(data, len(held))

    data.mkdir()
    put_file(data, 0)
    forest = AMFClassifier(2, random_state=0, alpha=0.5, feature_scales=None, max_nodes=20)
    is_traced = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        with connected(None, n_workers=1, threads=1, processes=False) as client:
            follow(
                forest, data, target="y", run=tmp_path / "run", interval=0.01, client=client,
                on_learned=learned,
            )  # fmt: skip
    finally:
        if not is_traced:
            tracemalloc.stop()
    sizes, runs = zip(*held, strict=True)
    assert max(runs) <= 2  # a worker has the trees of one look, and perhaps of the one before
    grown = np.median(sizes[-5:]) - np.median(sizes[WARM_UP - 5 : WARM_UP])
    assert grown / (LOOKS - WARM_UP) < BYTES_A_LOOK
