"""How the cost of learning a row grows with the rows learned before.

One stream is learned by `dmondrian` in blocks of at most 5,000 rows; at 10k, 30k, 100k, ... rows,
and at the stream's end, the processor's time of the last fifth of these rows is measured per row
and tree, with the mean depth of their leaves and the nodes. The cost follows the depth as long as
the trees lie in the cache, and the memory beyond.

The roofline is the memory: bytes moved over the time, compared with what a copy of a large array
moves in the same run, where each byte is counted as read and as written. Per row and tree it
counts

* the rows of all nodes on the way, from the root to the leaf, read and written. Whole rows are
  counted: all of a node's numbers, though of many classes' counts one is changed;
* the nodes that were added, row, box and bits, written once.

It does not count boxes that are looked at, or stretched, on the way: which these are depends on the
row. Nor the stream's own rows, and fresh memory that is cleared before it is written. What is
reported is therefore a bit less than what is moved, most of all where boxes are wide. Nodes near
the root stay in the cache: their bytes count as all others, so a small forest may move more than a
copy.

The time is all that `partial_fit` takes, its checks of each block too; up to 100,000 rows it is the
median of five forests that learn the same, as it is short. ``--at-hand`` MiB are taken and freed a
block before it, so that a virtual machine's host has given them (see `benchmarks.throughput`); the
block brings the trees back to the caches.

    python -m benchmarks.growth --data <folder> --max-rows 3000000 --fresh

Streams: ``classes`` is scikit-learn's `make_classification`, 20 columns of which 10 tell, two
classes; ``wide`` is the same with 100 columns and 5 classes, to at most ``--wide-rows`` as a node's
box is 400 bytes; ``labels`` is its `make_friedman1`, 10 columns. ``covtype`` and ``adult`` (one-hot
columns) need ``--data`` and come in their stored order, as far as they go. Columns are in [0, 1].
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_classification, make_friedman1

from benchmarks import datasets
from benchmarks.pages import Figure, Page, publish, range_of
from benchmarks.records import REPORTS, RESULTS, Records, machine, table
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.tree.nodes import FEATURE, LEFT, RIGHT, ROOT, THRESHOLD

MADE = ("classes", "labels", "wide")
REAL = ("covtype", "adult")
STREAMS = (*MADE, *REAL)
BLOCK = 5000  # rows learned at a time, at most
MEASURED = 5  # the last of so many parts of the rows is measured
FIRST = 10_000
SHORT, PASSES = 100_000, 5  # up to so many rows the median of so many forests is reported
BEYOND = 1.5  # the end of the stream is reported if it is so many times the stage before
COPIED = 2**28  # bytes, far beyond any cache


def stream(name: str, args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows, float32 [n, d], and labels; class indices or float64."""
    n = min(args.max_rows, args.wide_rows) if name == "wide" else args.max_rows
    if name in REAL:
        dataset = datasets.stored(name, args.data, n)
        return dataset.X_train, dataset.y_train
    if name == "labels":
        X, y = make_friedman1(n, 10, random_state=0)
    else:
        d, n_classes = (100, 5) if name == "wide" else (20, 2)
        X, y = make_classification(n, d, n_informative=10, n_classes=n_classes, random_state=0)
    return scaled(X), y


def scaled(X: np.ndarray) -> np.ndarray:
    """Return the columns in [0, 1], float32; none of them may be constant."""
    low, high = X.min(axis=0), X.max(axis=0)
    return ((X - low) / (high - low)).astype(np.float32)


def forest(of_classes: bool, trees: int) -> Any:
    """Return a forest that has learned nothing."""
    kind = AMFClassifier if of_classes else AMFRegressor
    given: dict[str, Any] = {"alpha": 0.5} if of_classes else {}
    return kind(
        n_estimators=trees,
        charge_opening=True,
        feature_scales=None,
        random_state=0,
        n_jobs=1,
        **given,
    )


def stages(most: int) -> list[int]:
    """Return the numbers of rows at which the cost is reported: 10k, 30k, ..., and the end."""
    found = [FIRST]
    while found[-1] < most:
        found.append(found[-1] * 3 if len(found) % 2 else found[-1] // 3 * 10)
    found = [n for n in found if n <= most]
    return found if found and most <= BEYOND * found[-1] else [*found, most]


def course(
    X: np.ndarray, y: np.ndarray, of_classes: bool, args: argparse.Namespace, most: int
) -> Iterator[tuple[int, Any, int, float]]:
    """Yield, of a new forest after each stage up to ``most`` rows, and what its last part took.

    The rows, the forest, the nodes that came in, and the seconds.
    """
    classes = {"classes": np.unique(y)} if of_classes else {}
    model, done = forest(of_classes, args.trees), 0
    for n in (n for n in stages(len(X)) if n <= most):
        start = n - n // MEASURED
        late = max(done, start - BLOCK)
        learn(model, X[done:late], y[done:late], classes)
        np.ones(args.at_hand << 17)  # of 8 bytes; and given back
        learn(model, X[late:start], y[late:start], classes)  # what that took from the caches
        before = model.forest_.n_nodes
        seconds = learn(model, X[start:n], y[start:n], classes)
        yield n, model, model.forest_.n_nodes - before, seconds
        done = n


def measure(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One record per number of rows."""
    X, y = stream(name, args)
    of_classes = name != "labels"
    taken: dict[int, list[float]] = {n: [] for n in stages(len(X))}
    for _ in range(PASSES - 1):  # the first compiles
        for n, _, _, seconds in course(X, y, of_classes, args, SHORT):
            taken[n].append(seconds)
    records = []
    for n, model, added, seconds in course(X, y, of_classes, args, len(X)):
        taken[n].append(seconds)
        reported, grown = n // MEASURED, model.forest_
        tree = grown.trees[0]
        records.append(
            {
                "stream": name,
                "rows": n,
                "trees": args.trees,
                "measured": reported,
                "nodes": grown.n_nodes / args.trees,
                "added": added / reported / args.trees,
                "microseconds": 1e6 * float(np.median(taken[n])) / reported / args.trees,
                "depth": depth_of(model, X[n - reported : n : max(1, reported // BLOCK)]),
                "bytes_per_node": grown.n_bytes / grown.n_nodes,
                "row_bytes": int(tree.i[0].nbytes),
                "box_bytes": int(tree.box[0].nbytes + tree.bits[0].nbytes),
                "copied_per_second": copied_per_second(),
            }
        )
        print(f"{name}: {n} rows", file=sys.stderr)
    return records


def learn(model: Any, X: np.ndarray, y: np.ndarray, classes: dict[str, Any]) -> float:
    """Learn the rows in blocks; return the processor's seconds."""
    begin = time.process_time()
    for start in range(0, len(X), BLOCK):
        block = slice(start, start + BLOCK)
        model.partial_fit(X[block], y[block], **classes)
    return time.process_time() - begin


def copied_per_second() -> float:
    """Return the bytes that a copy of a large array reads and writes in a second, the best of 5."""
    source = np.ones(COPIED // 8)  # not zeros, which are one page of memory until written to
    target, seconds = np.empty_like(source), []
    for _ in range(5):
        begin = time.process_time()
        np.copyto(target, source)
        seconds.append(time.process_time() - begin)
    return 2 * COPIED / min(seconds)


def moved(record: dict[str, Any]) -> float:
    """Return the bytes that learning a row moves in a tree, as the module's docstring counts."""
    on_the_way = 2 * (record["depth"] + 1) * record["row_bytes"]
    return on_the_way + record["added"] * (record["row_bytes"] + record["box_bytes"])


def moved_per_second(record: dict[str, Any]) -> float:
    """Return the bytes that learning moves in a second."""
    return 1e6 * moved(record) / record["microseconds"]


def share_of_copy(record: dict[str, Any]) -> float:
    """Return these bytes over what a copy moves."""
    return moved_per_second(record) / record["copied_per_second"]


def depth_of(model: Any, X: np.ndarray) -> float:
    """Return the mean depth of the leaves of rows, over trees."""
    depths = []
    for tree in model.forest_.trees:
        v = np.full(len(X), int(tree.head_i[ROOT]))
        depth = np.zeros(len(X))
        rows = np.arange(len(X))
        while len(rows):
            here = v[rows]
            rows, here = rows[tree.i[here, LEFT] >= 0], here[tree.i[here, LEFT] >= 0]
            goes_left = X[rows, tree.i[here, FEATURE]] <= tree.f[here, THRESHOLD]
            v[rows] = np.where(goes_left, tree.i[here, LEFT], tree.i[here, RIGHT])
            depth[rows] += 1
        depths.append(depth.mean())
    return float(np.mean(depths))


def report(records: Records) -> str:
    """Markdown: a row per stream and number of rows."""
    ordered = sorted(records, key=lambda r: (STREAMS.index(r["stream"]), r["rows"]))
    first = {r["stream"]: r["microseconds"] for r in reversed(ordered)}
    rows = [
        [
            *(r["stream"], f"{r['rows']:,}", f"{r['microseconds']:.2f}"),
            f"{r['microseconds'] / first[r['stream']]:.2f}",
            *(f"{r['depth']:.0f}", f"{1000 * r['microseconds'] / r['depth']:.0f}"),
            *(f"{r['nodes']:,.0f}", f"{r['bytes_per_node']:.0f}", f"{moved(r):,.0f}"),
            *(f"{moved_per_second(r) / 1e9:.1f}", f"{r['copied_per_second'] / 1e9:.1f}"),
            f"{share_of_copy(r):.2f}",
        ]
        for r in ordered
    ]
    head = ["stream", "rows", "us per row and tree", "over the first", "depth", "ns per level"]
    head += ["nodes of a tree", "bytes per node", "bytes moved per row and tree", "GB/s"]
    return table([*head, "a copy's", "of a copy's"], rows)


def draw(records: Records, path: Path) -> None:
    """Draw the cost of a row, and the fraction of a copy's speed, against the rows before it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (cost, share) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name in STREAMS:
        own = sorted((r for r in records if r["stream"] == name), key=lambda r: r["rows"])
        if own:
            n = [r["rows"] for r in own]
            cost.plot(n, [r["microseconds"] for r in own], marker="o", label=name)
            share.plot(n, [share_of_copy(r) for r in own], marker="o", label=name)
    cost.set(ylabel="us per row and tree")
    share.set(ylabel="fraction of a copy's bytes per second")
    for axes in (cost, share):
        axes.set(xscale="log", ylim=(0, None), xlabel="rows learned")
        axes.grid(alpha=0.3)
    cost.legend()
    figure.savefig(path, dpi=110)


def growth_of(stream: str, first: int, last: int) -> Figure:
    """Return what finds how many times a row costs more after many rows than after few."""

    def find(records: Records) -> Any:
        few, many = (records.only(stream=stream, rows=rows) for rows in (first, last))
        return range_of([many["microseconds"] / few["microseconds"]], ".1f", [few, many])

    return find


def shares(records: Records) -> Any:
    """Return the range of the bytes that learning moves over those that a copy moves."""
    return range_of([100.0 * share_of_copy(r) for r in records], ".0f", list(records))


PAGE = Page(
    title="Growth",
    question="How does the time per row and tree grow with the rows learned, and how near is it to"
    " the speed of the memory?",
    identity=("stream", "rows", "trees", "cpu"),
    body=report,
    numbers={
        "classes": growth_of("classes", 10_000, 3_000_000),
        "labels": growth_of("labels", 10_000, 3_000_000),
        "shares": shares,
    },
    sentences=(
        "From the first stage to the last, a row of classes costs {classes} times as much and a"
        " row of labels {labels} times, while trees grow deeper and leave the caches.",
        "Learning moves {shares} per cent of the bytes that a copy moves in the same time: a row"
        " waits for the memory rather than filling it.",
    ),
    pictures=("growth.png",),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        default=os.environ.get(datasets.ENVIRONMENT_VARIABLE),
        help=f"folder of the real sets (or ${datasets.ENVIRONMENT_VARIABLE})",
    )
    parser.add_argument("--streams", nargs="+", choices=STREAMS, help="all that there are")
    parser.add_argument("--max-rows", type=int, default=3_000_000)
    parser.add_argument("--wide-rows", type=int, default=100_000, help="at most, of wide")
    parser.add_argument("--trees", type=int, default=4)
    parser.add_argument("--at-hand", type=int, default=1024, help="MiB of memory, see above")
    parser.add_argument("--fresh", action="store_true", help="forget results of earlier runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity, args.fresh)
    for name in args.streams or (STREAMS if args.data else MADE):
        for record in measure(name, args):
            records.add(record)
    publish("growth", records)
    draw(records.of_machine(machine()["cpu"]), REPORTS / "growth.png")


if __name__ == "__main__":
    main()
