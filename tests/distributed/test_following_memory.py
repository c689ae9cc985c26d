"""A worker holds the trees of one look of `follow`, and not those of all that it had."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian import AMFClassifier
from dmondrian.distributed import Learned, follow
from dmondrian.distributed.cluster.client import connected
from dmondrian.distributed.worker.tasks import HeldRun

LOOKS = 8  # trees of as many a worker would hold, were they left behind


def put_file(folder: Path, number: int) -> None:
    """Bring a file of rows by a rename."""
    x = np.random.default_rng(number).normal(size=50)
    pq.write_table(pa.table({"x": x, "y": x > 0}), folder / "coming")
    (folder / "coming").rename(folder / f"{number:06d}.parquet")


def n_held_runs() -> int:
    return sum(type(one) is HeldRun for one in gc.get_objects())


def test_a_look_leaves_no_trees_behind(tmp_path: Path) -> None:
    gc.collect()
    others = n_held_runs()  # of other tests
    held: list[int] = []
    data = tmp_path / "data"

    def learned(_: Learned) -> None:
        held.append(n_held_runs() - others)
        if len(held) == LOOKS:
            os.kill(os.getpid(), signal.SIGINT)
            return
        put_file(data, len(held))

    data.mkdir()
    put_file(data, 0)
    forest = AMFClassifier(2, random_state=0, alpha=0.5, feature_scales=None, max_nodes=20)
    with connected(None, n_workers=1, threads=1, processes=False) as client:
        follow(
            forest, data, target="y", run=tmp_path / "run", interval=0.01, client=client,
            on_learned=learned,
        )  # fmt: skip
    assert len(held) == LOOKS
    assert max(held) <= 3  # of one look, and of those before that a busy worker has to forget yet
