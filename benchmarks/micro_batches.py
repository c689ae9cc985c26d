"""Micro-batches: memory of `dmondrian.distributed.follow`, and seconds until rows are durable.

A process follows a folder to which a file of 100 rows (10 columns of numbers and a class) comes
each time that the one before was learned, by a rename. The forest has a bound of nodes, so memory
that grows is not the forest's. Another run has larger files and a larger forest. Scheduler, worker
and coordinator are threads of this one process, with the settings of a cluster that
`dmondrian follow` starts. Another process does the same without
`dmondrian.distributed.cluster.free_memory`, which is what that mechanism saves.

    python -m benchmarks.micro_batches
    python -m benchmarks.micro_batches large

Memory is what of the process lies in memory, after each look. Seconds are from the last change of
a file to the checkpoint that has its rows: the wait for the next look, at most ``--interval``, is
in them, and so is the delay of the file's name behind its last change.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.pages import Figure, Number, Page, column_of, publish, runs_of, single
from benchmarks.records import RESULTS, Records, tabled

COLUMNS = 10
PARTS = 10  # of the looks, in the table


class Run(NamedTuple):
    """What is followed, and with which forest."""

    title: str
    looks: int
    rows: int  # of a file
    trees: int
    nodes: int  # of a tree, at most


RUNS = {
    "follow": Run("A folder that is followed", 1000, 100, 4, 500),
    "large": Run("Larger files, a larger forest", 40, 10_000, 10, 50_000),
}
HEAD = ["looks", "MiB", "MiB, nothing freed", "seconds", "seconds, longest"]


def largest(column: str) -> Figure:
    """Return what finds the most MiB of a column of the larger run."""

    def find(records: Records) -> Number:
        record = records.only(part="large")
        return single(max(column_of(record, column)), ".0f", record)

    return find


def growth(column: str) -> Figure:
    """Return what finds the per cent by which memory grows from the second tenth of looks on."""

    def find(records: Records) -> Number:
        record = records.only(part="follow")
        second, last = (column_of(record, column)[place] for place in (1, -1))
        return single(100.0 * (last / second - 1.0), ".0f", record)

    return find


def of_all(column: str, form: str, place: int) -> Figure:
    """Return what finds the least (0) or the greatest (-1) number of a column."""

    def find(records: Records) -> Number:
        record = records.only(part="follow")
        value = sorted(column_of(record, column))[place]
        return Number(format(value, form), "", runs_of([record]))

    return find


PAGE = Page(
    title="Micro-batches",
    question="Does memory grow while a run follows small files, and how soon are their rows "
    "durable?",
    identity=("part",),
    numbers={
        "grown": growth("MiB"),
        "without": growth("MiB, nothing freed"),
        "large": largest("MiB"),
        "large_without": largest("MiB, nothing freed"),
        "least": of_all("seconds", ".1f", 0),
        "most": of_all("seconds", ".1f", -1),
        "longest": of_all("seconds, longest", ".1f", -1),
    },
    sentences=(
        "From the second tenth of the looks to the last, memory grows by {grown} per cent, and by"
        " {without} where nothing is freed after a look; a larger forest takes {large} MiB, and"
        " {large_without} without.",
        "Rows are durable {least} to {most} seconds after their file came (medians), and"
        " {longest} at the longest, where looks are a tenth of a second apart; `dmondrian follow`"
        " waits for seconds, by default.",
    ),
)


def put_file(folder: Path, number: int, n: int) -> None:
    """Bring a file of n rows, as a whole."""
    draws = np.random.default_rng(number)
    X = draws.normal(size=(n, COLUMNS))
    columns = {f"x{j}": X[:, j] for j in range(COLUMNS)}
    rows = pa.table({**columns, "label": X[:, 0] + X[:, 1] * X[:, 2] > 0.0})
    pq.write_table(rows, folder / "coming")
    (folder / "coming").rename(folder / f"{number:06d}.parquet")


def resident_bytes() -> int:
    """Return the bytes of this process that lie in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def follow_files(folder: Path, run: Run, interval: float) -> list[tuple[int, float]]:
    """Follow files; return memory and seconds of each look."""
    from dmondrian import AMFClassifier
    from dmondrian.distributed import Learned, follow
    from dmondrian.distributed.cluster.client import connected

    looks: list[tuple[int, float]] = []

    def learned(one: Learned) -> None:
        looks.append((resident_bytes(), one.lag or 0.0))
        if len(looks) == run.looks:
            os.kill(os.getpid(), signal.SIGINT)  # as a user ends it
            return
        (folder / "data" / f"{len(looks) - 2:06d}.parquet").unlink(missing_ok=True)  # expired
        put_file(folder / "data", len(looks), run.rows)

    (folder / "data").mkdir()
    put_file(folder / "data", 0, run.rows)
    forest = AMFClassifier(
        n_estimators=run.trees, random_state=0, alpha=0.5, charge_opening=False,
        feature_scales=None, max_nodes=run.nodes,
    )  # fmt: skip
    with connected(None, n_workers=1, threads=1, processes=False) as client:
        follow(
            forest, folder / "data", target="label", run=folder / "run", interval=interval,
            on_learned=learned, client=client,
        )  # fmt: skip
    return looks


def measured(part: str, looks: int, interval: float, *, frees: bool) -> list[list[float]]:
    """Return memory in bytes and seconds of each look, of a process of its own."""
    words = [sys.executable, "-m", "benchmarks.micro_batches", part, "--alone"]
    words += ["--looks", str(looks), "--interval", str(interval)]
    words += [] if frees else ["--keep-all"]
    found = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    numbers: list[list[float]] = json.loads(found.stdout)
    return numbers


def rows_of(
    kept: Sequence[Sequence[float]], others: Sequence[Sequence[float]]
) -> list[list[float]]:
    """Return a row for each tenth of the looks."""
    size, rows = max(1, len(kept) // PARTS), []
    for first in range(0, len(kept) - size + 1, size):
        part = slice(first, first + size)
        seconds = [lag for _, lag in kept[part]]
        memory = [looks[part][-1][0] / 2**20 for looks in (kept, others)]
        rows.append([first + size, *memory, float(np.median(seconds)), max(seconds)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(RUNS)}; all")
    parser.add_argument("--looks", type=int, help="by default those of the part")
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between two looks")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--keep-all", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        follow_alone(args.parts[0], args.looks, args.interval, keeps_all=args.keep_all)
        return
    records = Records(RESULTS / "micro_batches.json", PAGE.identity)
    note = "Memory after the last look of each tenth; seconds are medians."
    for part in args.parts or RUNS:
        looks = args.looks or RUNS[part].looks
        both = [measured(part, looks, args.interval, frees=frees) for frees in (True, False)]
        records.add(tabled(part, RUNS[part].title, HEAD, rows_of(*both), note, digits=2))
    publish("micro_batches", records)


def follow_alone(part: str, looks: int, interval: float, *, keeps_all: bool) -> None:
    """Follow files in this process, and print what each look took."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    if keeps_all:
        from dmondrian.distributed import following
        from dmondrian.distributed.worker import tasks

        for module in (following, tasks):
            vars(module)["free_memory"] = lambda: None
    with tempfile.TemporaryDirectory() as name:
        run = RUNS[part]._replace(looks=looks)
        print(json.dumps(follow_files(Path(name), run, interval)))


if __name__ == "__main__":
    main()
