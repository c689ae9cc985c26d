"""Micro-batches: memory of `dmondrian.distributed.follow`, and seconds until rows are durable.

A process follows a folder to which a file of 100 rows (10 columns of numbers and a class) comes
each time that the one before was learned, by a rename. The forest has a bound of nodes, so memory
that grows is not the forest's. Scheduler, worker and coordinator are threads of this one process,
with the settings of a cluster that `dmondrian follow` starts.

    python -m benchmarks.micro_batches

Memory is what of the process lies in memory, after each look. Seconds are from the last change of
a file to the checkpoint that has its rows: the wait for the next look, at most ``--interval``, is
in them, and so is the delay of the file's name behind its last change.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.records import table

ROWS, COLUMNS = 100, 10
PARTS = 10  # of the looks, in the table


def put_file(folder: Path, number: int) -> None:
    """Bring a file of rows, as a whole."""
    draws = np.random.default_rng(number)
    X = draws.normal(size=(ROWS, COLUMNS))
    columns = {f"x{j}": X[:, j] for j in range(COLUMNS)}
    rows = pa.table({**columns, "label": X[:, 0] + X[:, 1] * X[:, 2] > 0.0})
    pq.write_table(rows, folder / "coming")
    (folder / "coming").rename(folder / f"{number:06d}.parquet")


def resident_bytes() -> int:
    """Return the bytes of this process that lie in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def follow_files(folder: Path, n: int, trees: int, interval: float) -> list[tuple[int, float]]:
    """Follow n files; return memory and seconds of each look."""
    from dmondrian import AMFClassifier
    from dmondrian.distributed import Learned, follow
    from dmondrian.distributed.cluster.client import connected

    looks: list[tuple[int, float]] = []

    def learned(one: Learned) -> None:
        looks.append((resident_bytes(), one.lag or 0.0))
        if len(looks) == n:
            os.kill(os.getpid(), signal.SIGINT)  # as a user ends it
            return
        (folder / "data" / f"{len(looks) - 2:06d}.parquet").unlink(missing_ok=True)  # expired
        put_file(folder / "data", len(looks))

    (folder / "data").mkdir()
    put_file(folder / "data", 0)
    forest = AMFClassifier(
        n_estimators=trees, random_state=0, alpha=0.5, charge_opening=False, feature_scales=None,
        max_nodes=500,
    )  # fmt: skip
    with connected(None, n_workers=1, threads=1, processes=False) as client:
        follow(
            forest, folder / "data", target="label", run=folder / "run", interval=interval,
            on_learned=learned, client=client,
        )  # fmt: skip
    return looks


def report(looks: Sequence[tuple[int, float]]) -> str:
    """Markdown: a row per tenth of the looks."""
    size, rows = max(1, len(looks) // PARTS), []
    for first in range(0, len(looks) - size + 1, size):
        part = looks[first : first + size]
        seconds = [lag for _, lag in part]
        rows.append(
            [
                f"{first + size:,}",
                f"{part[-1][0] / 2**20:.0f}",
                f"{np.median(seconds):.2f}",
                f"{max(seconds):.2f}",
            ]
        )
    return table(["looks", "MiB at the last", "seconds, median", "seconds, longest"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--trees", type=int, default=4)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between two looks")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    with tempfile.TemporaryDirectory() as name:
        looks = follow_files(Path(name), args.batches, args.trees, args.interval)
    print(report(looks))


if __name__ == "__main__":
    main()
