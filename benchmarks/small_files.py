"""Many small files: what `dmondrian train` takes of them, beside reading each with pyarrow.

Writes files of 5 rows (10 columns of numbers and a class), reads each with
`pyarrow.parquet.read_table`, and trains 10 trees on the folder by the command line: a process of
its own, its local cluster, the plan, the choice of settings and the learning of all rows with a
forecast of each. Compiled kernels are there, as after the first run on a machine: rows of other
files are trained before.

    python -m benchmarks.small_files

Seconds are on the clock and of the processors, which other work on the machine lengthens less. The
ratio should fall with the number of files, as the start of the cluster is spread, and stay below 3.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.pages import Number, Page, publish, single
from benchmarks.records import RESULTS, Records, table

ROWS, COLUMNS = 5, 10
TARGETS = {"classifier": "label", "regressor": "x0"}  # by the end of an algorithm's name
HEAD = ["algorithm", "files", "read", "train", "ratio", "read, processors", "train, processors",
        "ratio, processors", "load"]  # fmt: skip


def write_files(folder: Path, n: int) -> None:
    """Write n files: a class that depends on three of ten columns."""
    folder.mkdir()
    draws = np.random.default_rng(0)
    for i in range(n):
        X = draws.normal(size=(ROWS, COLUMNS))
        label = np.where(X[:, 0] + X[:, 1] * X[:, 2] > 0.0, "yes", "no")
        columns = {f"x{j}": X[:, j] for j in range(COLUMNS)}
        pq.write_table(pa.table({**columns, "label": label}), folder / f"part-{i:06d}.parquet")


def timed(work: Callable[[], object], who: int) -> tuple[float, float]:
    """Return the seconds of some work on the clock, and of the processors."""
    before, start = resource.getrusage(who), time.perf_counter()
    work()
    seconds, after = time.perf_counter() - start, resource.getrusage(who)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def read_all(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        pq.read_table(path)


def train(folder: Path, algorithm: str, trees: int, run: Path) -> None:
    """Train by the command line, in a process of its own."""
    target = TARGETS[algorithm.rpartition("-")[2]]
    keys = {
        "data": {"path": str(folder), "target": target},
        "forest": {"algorithm": algorithm, "n_estimators": trees, "random_state": 0},
        "run": {"path": str(run)},
    }
    job = run.with_suffix(".toml")
    job.write_text(
        "\n".join(
            f"[{part}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in some.items())
            for part, some in keys.items()
        )
    )
    program = "import sys; from dmondrian.cli.app import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "train", str(job)], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout)


def measure(algorithm: str, files: Path, trees: int, runs: Path, repeats: int) -> dict[str, Any]:
    """Return a record: the least seconds of reading and of training, which take turns."""
    rounds = []
    for turn in range(repeats):
        read = partial(read_all, files)
        learn = partial(train, files, algorithm, trees, runs / f"{algorithm}-{files.name}-{turn}")
        one, other = timed(read, resource.RUSAGE_SELF), timed(learn, resource.RUSAGE_CHILDREN)
        rounds.append((*one, *other))
    least = [min(seconds) for seconds in zip(*rounds, strict=True)]
    record = {"algorithm": algorithm, "files": int(files.name), "repeats": repeats}
    record["load"] = os.getloadavg()[0]
    names = ("read", "read_processors", "train", "train_processors")
    return {**record, **dict(zip(names, least, strict=True))}


def report(records: Records) -> str:
    """Markdown: a row per algorithm and number of files."""
    rows = [
        [
            f"`{record['algorithm']}`",
            f"{record['files']:,}",
            *(f"{record[name]:.1f}" for name in ("read", "train")),
            f"{record['train'] / record['read']:.2f}",
            *(f"{record[name]:.1f}" for name in ("read_processors", "train_processors")),
            f"{record['train_processors'] / record['read_processors']:.2f}",
            f"{record['load']:.1f}",
        ]
        for record in records
    ]
    return "Least seconds; `ratio` is training by reading.\n\n" + table(HEAD, rows)


def ratio(records: Records) -> Number:
    """Return how many times the reading training takes the processors, of the most files."""
    record = max(records.where(algorithm="amf-classifier"), key=lambda one: one["files"])
    return single(record["train_processors"] / record["read_processors"], ".1f", record)


PAGE = Page(
    title="Small files",
    question="How much longer is training on thousands of files of five rows than reading them?",
    identity=("algorithm", "files", "cpu"),
    body=report,
    numbers={"ratio": ratio},
    sentences=(
        "Of the most files training takes the processors {ratio} times as long as reading each.",
        "The start of the cluster is in it, so that the ratio falls with the number of files.",
        "`load` is the mean number of processes that wanted a processor in the last minute: where"
        " it is above the cores, seconds on the clock are those of other work too.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, nargs="+", default=[2000, 5000, 20_000])
    parser.add_argument(
        "--kernel-files",
        type=int,
        default=5000,
        help="of regression, also by a kernel machine; 0: none",
    )
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "small_files.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity, fresh=True)
    planned = [("amf-classifier", n) for n in args.files]
    planned += [
        (name, args.kernel_files)
        for name in ("amf-regressor", "mondrian-kernel-regressor")
        if args.kernel_files
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "10", 10)
        for n in sorted({n for _, n in planned} - {10}):
            write_files(folder / str(n), n)
        for algorithm in dict.fromkeys(algorithm for algorithm, _ in planned):
            train(folder / "10", algorithm, args.trees, folder / f"{algorithm}-first")
        for algorithm, n in planned:
            files = folder / str(n)
            records.add(measure(algorithm, files, args.trees, folder, args.repeats))
            print(f"{algorithm}, {n} files: done", file=sys.stderr)
    publish("small_files", records)


if __name__ == "__main__":
    main()
