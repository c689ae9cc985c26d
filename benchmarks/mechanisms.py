"""What each mechanism that only saves time or memory is worth: with it, and without.

`dmondrian._numba.mechanisms.MECHANISMS` names them; `DMONDRIAN_WITHOUT` leaves some out, and
`DMONDRIAN_NUMBA_STOCK=1` compiles with Numba's public interface alone ("passes" below). Forests
have the same bytes whichever are left out, which is checked here for every run.

    python -m benchmarks.mechanisms --data <folder>

Each run is a process of one thread that measures five figures on each workload, at two sizes, in
the processor's time:

* learn: all rows in one call, by a forest that has learned nothing;
* stream: the same rows in calls of 500;
* predict: all rows in one call, by the forest of the first figure;
* learn one, predict one: rows that come one by one, to the same forest;

and the bytes of a node after the first two. Runs take turns: each round has one run with all
mechanisms and one without each, in the opposite order of the round before. Ratios are of one round.
Compile seconds are processor time of a process that compiles what it needs of two forests, in an
empty cache.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import structure
from benchmarks.datasets import Dataset
from benchmarks.pages import Page, publish, stored
from benchmarks.records import MACHINE, RESULTS, Records, table
from benchmarks.throughput import WORKLOADS, workload
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian._numba.mechanisms import MECHANISMS

ROOT = Path(__file__).parents[1]
PASSES = "passes"  # of our own, in Numba's compiler
ELSEWHERE = {"deltas": "blobs", "sum_tree": "scaling"}  # mechanisms by the page that measures them
NAMES = (*(name for name in MECHANISMS if name not in ELSEWHERE), PASSES)
ABOUT = {**MECHANISMS, PASSES: "own passes in Numba's compiler (without them: the stock mode)"}
BATCH = 500  # rows of a call of a stream
ALONE = 4000  # rows that come one by one
FIGURES = ("learn", "stream", "predict", "learn_one", "predict_one")
SIZES = ("bytes", "bytes_stream")


def forest_of(dataset: Dataset, trees: int) -> tuple[Any, dict[str, Any]]:
    """Return a forest that has learned nothing, and what its first call is given."""
    kind = AMFClassifier if dataset.n_classes else AMFRegressor
    forest = kind(n_estimators=trees, random_state=0, feature_scales=None, n_jobs=1)
    return forest, {"classes": np.arange(dataset.n_classes)} if dataset.n_classes else {}


def seconds(work: Callable[[], Any]) -> float:
    """Return the processor's seconds that the work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def learned(dataset: Dataset, trees: int, n: int, batch: int) -> tuple[Any, float]:
    """Return a forest of the first ``n`` rows, and the seconds it took."""
    forest, given = forest_of(dataset, trees)

    def learn() -> None:
        for first in range(0, n, batch):
            rows = slice(first, min(first + batch, n))
            forest.partial_fit(dataset.X_train[rows], dataset.y_train[rows], **given)

    return forest, seconds(learn)


def digest(forest: Any) -> str:
    """Return a digest of all fields of all nodes."""
    found = hashlib.sha256()
    for fields in forest.forest_.state()[1]:
        for name in sorted(fields):
            found.update(np.ascontiguousarray(fields[name]).tobytes())
    return found.hexdigest()


def measure(dataset: Dataset, n: int, trees: int) -> dict[str, Any]:
    """Return all figures of one workload at one size; times in microseconds per row and tree."""
    X, y = dataset.X_train, dataset.y_train
    alone = range(n, min(n + ALONE, len(X)))
    stream, stream_seconds = learned(dataset, trees, n, BATCH)
    found: dict[str, Any] = {"stream": 1e6 * stream_seconds / n / trees}
    found["bytes_stream"] = stream.forest_.n_bytes / stream.forest_.n_nodes
    stream_digest = digest(stream)
    del stream
    forest, learn_seconds = learned(dataset, trees, n, n)
    found["learn"] = 1e6 * learn_seconds / n / trees
    found["bytes"] = forest.forest_.n_bytes / forest.forest_.n_nodes
    found["same"] = digest(forest) == stream_digest
    predict = forest.predict_proba if dataset.n_classes else forest.predict
    answers = predict(X[:n])  # flat copies are made by now
    found["predict"] = 1e6 * seconds(lambda: predict(X[:n])) / n / trees

    def each(work: Callable[[int], Any]) -> float:
        return 1e6 * seconds(lambda: [work(r) for r in alone]) / len(alone) / trees

    found["predict_one"] = each(lambda r: predict(X[r : r + 1]))
    found["learn_one"] = each(lambda r: forest.partial_fit(X[r : r + 1], y[r : r + 1]))
    found["digest"] = [digest(forest), hashlib.sha256(answers.tobytes()).hexdigest()]
    return found


def work(args: argparse.Namespace) -> None:
    """Print the figures of this process as JSON."""
    found = {}
    for name in args.workloads:
        dataset = workload(name, args.data, max(args.sizes) + ALONE)
        most = len(dataset.X_train) - ALONE  # that can be learned before those that come alone
        measure(dataset, min(2 * BATCH, most), 2)  # loads the kernels
        for n in args.sizes:
            found[f"{name} {n}"] = measure(dataset, min(n, most), args.trees)
    print(json.dumps(found))


def compile_all() -> None:
    """Learn and predict a few rows with two forests, which compiles what they need."""
    draw = np.random.default_rng(0)
    X = draw.random((300, 8), np.float32)
    for dataset in (
        Dataset("c", X, (X[:, 0] > 0.5).astype(np.int64), X, X[:, 0], 2, "none"),
        Dataset("r", X, X[:, 0].astype(float), X, X[:, 0], 0, "none"),
    ):
        measure(dataset, 290, 1)


def environment(name: str | None) -> dict[str, str]:
    """Return the environment of a process without one mechanism."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("DMONDRIAN_")}
    own |= {k: v for k, v in os.environ.items() if k == "DMONDRIAN_CACHE_DIR"}
    own |= {"DMONDRIAN_NUMBA_STOCK": str(int(name == PASSES)), "PYTHONWARNINGS": "ignore"}
    return own if name in (None, PASSES) else {**own, "DMONDRIAN_WITHOUT": str(name)}


def run(name: str | None, words: list[str], folder: str | None = None) -> dict[str, Any]:
    """Return what a process without one mechanism prints."""
    own = environment(name) | ({"DMONDRIAN_CACHE_DIR": folder} if folder else {})
    command = [sys.executable, "-m", "benchmarks.mechanisms", *words]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"without {name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compile_seconds(name: str | None) -> float:
    """Return the processor's seconds of a process that has to compile its kernels."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(name, ["--compile"], folder)
    return float(found["seconds"])


def turns(args: argparse.Namespace) -> dict[str | None, list[dict[str, Any]]]:
    """Return the figures of each round, by what was left out; None has all mechanisms."""
    words = ["--worker", "--workloads", *args.workloads, "--sizes", *map(str, args.sizes)]
    words += ["--trees", str(args.trees), *(["--data", args.data] if args.data else [])]
    order: list[str | None] = [None, *args.without]
    found: dict[str | None, list[dict[str, Any]]] = {name: [] for name in order}
    for turn in range(args.rounds):
        for name in order if turn % 2 == 0 else reversed(order):
            found[name].append(run(name, words))
            print(f"round {turn}, without {name or 'nothing'}: done", file=sys.stderr)
    return found


def records_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a record per mechanism, workload and size.

    Raises
    ------
    RuntimeError
        If a forest or a prediction has other bytes without a mechanism.
    """
    compiling: dict[str | None, float | None] = dict.fromkeys((None, *args.without))
    if not args.not_compiling:
        compiling = {name: compile_seconds(name) for name in compiling}
    found, records = turns(args), []
    for name in args.without:
        for place, first in found[None][0].items():
            pairs = list(zip(found[None], found[name], strict=True))
            for ours, its in pairs:
                same = ours[place]["same"] and its[place]["same"]
                if not same or {*its[place]["digest"]} != {*first["digest"]}:
                    raise RuntimeError(f"without {name} {place} has other bytes")
            own, n = place.rsplit(" ", 1)
            record: dict[str, Any] = {"mechanism": name, "workload": own, "rows": int(n)}
            record |= {"trees": args.trees, "rounds": args.rounds}
            record["compile"] = [compiling[None], compiling[name]]
            for key in FIGURES:
                ratios = sorted(its[place][key] / ours[place][key] for ours, its in pairs)
                record[key] = [ratios[0], statistics.median(ratios), ratios[-1]]
                record[f"{key}_us"] = statistics.median(ours[place][key] for ours, _ in pairs)
            for key in SIZES:
                record[key] = [ours[place][key], its[place][key]]
            records.append(record)
    return records


def counted_lines() -> dict[str, str]:
    """Return lines of code and of tests by mechanism, at the latest commit counted."""
    try:
        latest = structure.newest(stored("structure"))
    except LookupError:
        return {}
    return {name: " + ".join(map(str, lines)) for name, lines in latest["mechanisms"].items()}


def ends(values: list[float]) -> str:
    """Return least and greatest ratio."""
    return f"{min(values):.2f} to {max(values):.2f}"


def report(records: Records) -> str:
    """Markdown: a row per mechanism, then a row per mechanism, workload and size."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_name.setdefault(record["mechanism"], []).append(record)
    counted = counted_lines()
    short = []
    for name in [name for name in NAMES if name in by_name]:
        own = by_name[name]
        with_it, without = own[0]["compile"]
        short.append(
            [
                *(f"`{name}`", ABOUT[name], counted.get(name, "few")),
                *(ends([r[key][1] for r in own]) for key in FIGURES),
                *(ends([r[key][1] / r[key][0] for r in own]) for key in SIZES),
                "-" if with_it is None else f"{with_it:.0f} / {without:.0f}",
            ]
        )
    head = [
        "mechanism",
        "what it is",
        "lines, tests",
        *FIGURES,
        *SIZES,
        "compile, s, with / without",
    ]
    long = [
        [
            *(f"`{r['mechanism']}`", r["workload"], f"{r['rows']:,}"),
            *(f"{r[f'{key}_us']:.2f} x {r[key][1]:.2f}" for key in FIGURES),
            *(f"{r[key][0]:.0f} / {r[key][1]:.0f}" for key in SIZES),
        ]
        for name in NAMES
        for r in by_name.get(name, [])
    ]
    return (
        "Time (or bytes) without the mechanism over that with it, so that more than one is what it"
        " saves: the medians of rounds, least to greatest over workloads and sizes; where one is"
        " between these, no gain is shown. Lines are those"
        " of the files that are about it, at the commit of the page on the"
        " [structure](structure.md) of the package.\n\n"
        + table(head, short)
        + "\nMeasured on pages of their own, with them and without:\n\n"
        + table(
            ["mechanism", "what it is", "page"],
            [[f"`{n}`", ABOUT[n], f"[{page}]({page}.md)"] for n, page in ELSEWHERE.items()],
        )
        + "\n## By workload and size\n\n"
        "Microseconds of the processor per row and tree with all mechanisms, times the ratio"
        " without; bytes per node with / without.\n\n"
        + table(["mechanism", "workload", "rows", *FIGURES, *SIZES], long)
    )


PAGE = Page(
    title="What each mechanism is worth",
    question="How much time and memory does each mechanism save that changes no byte of a forest?",
    identity=("mechanism", "workload", "rows", MACHINE),
    body=report,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder with one sub-folder of Parquet per real set")
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=WORKLOADS,
        default=["covtype", "synthetic_d20", "friedman1"],
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[5000, 100_000], help="rows")
    parser.add_argument("--without", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--trees", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--not-compiling", action="store_true", help="leave compile seconds out")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "mechanisms.json")
    args = parser.parse_args()
    if args.compile:
        print(json.dumps({"seconds": seconds(compile_all)}))
    elif args.worker:
        work(args)
    else:
        records = Records(args.out, PAGE.identity)
        for record in records_of(args):
            records.add(record)
        publish("mechanisms", records)


if __name__ == "__main__":
    main()
