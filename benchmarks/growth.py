"""How the cost of learning a row grows with the rows learned before.

One stream is learned by `dmondrian` in blocks; at 10k, 30k, 100k, ... rows the processor's time of
the last block is told per row and tree, with the mean depth of a row's leaf and the nodes. The cost
follows the depth as long as the trees lie in the cache, and the memory beyond.

The roofline is the memory: each node on a row's path is read and written, boxes apart, so these
bytes over the time are compared with what a copy of a large array moves in the same run.

    python -m benchmarks.growth --max-rows 3000000

Streams: ``classes`` is scikit-learn's `make_classification`, 20 columns of which 10 tell, each in
[0, 1]; ``labels`` is its `make_friedman1`, 10 columns.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_classification, make_friedman1

from benchmarks.records import RESULTS, Records, table
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.core.nodes import FEATURE, LEFT, RIGHT, ROOT, THRESHOLD

STREAMS = ("classes", "labels")
BLOCK = 5000  # rows whose time is told
FIRST = 10_000
COPIED = 2**28  # bytes, far beyond any cache


def stream(name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n rows, float32 [n, d], and labels."""
    if name == "classes":
        X, y = make_classification(n, 20, n_informative=10, random_state=0)
    else:
        X, y = make_friedman1(n, 10, random_state=0)
    low, high = X.min(axis=0), X.max(axis=0)
    return ((X - low) / (high - low)).astype(np.float32), y


def forest(name: str, trees: int) -> Any:
    """Return a forest that has learned nothing."""
    kind = AMFClassifier if name == "classes" else AMFRegressor
    given: dict[str, Any] = {"alpha": 0.5} if name == "classes" else {}
    return kind(
        n_estimators=trees,
        charge_opening=True,
        feature_scales=None,
        random_state=0,
        n_jobs=1,
        **given,
    )


def stages(most: int) -> list[int]:
    """Return the numbers of rows at which the cost is told: 10k, 30k, 100k, ..."""
    found = [FIRST]
    while found[-1] < most:
        found.append(found[-1] * 3 if len(found) % 2 else found[-1] // 3 * 10)
    return [n for n in found if n <= most]


def measure(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One record per number of rows."""
    X, y = stream(name, args.max_rows)
    classes = {"classes": np.unique(y)} if name == "classes" else {}
    forest(name, 1).partial_fit(X[:BLOCK], y[:BLOCK], **classes)  # compiles
    model, done, records = forest(name, args.trees), 0, []
    for n in stages(args.max_rows):
        for start in range(done, n - BLOCK, BLOCK):
            model.partial_fit(X[start : start + BLOCK], y[start : start + BLOCK], **classes)
        begin = time.process_time()
        model.partial_fit(X[n - BLOCK : n], y[n - BLOCK : n], **classes)
        seconds = time.process_time() - begin
        done = n
        grown = model.forest_
        nodes = grown.n_nodes / args.trees
        records.append(
            {
                "stream": name,
                "rows": n,
                "trees": args.trees,
                "nodes": nodes,
                "microseconds": 1e6 * seconds / BLOCK / args.trees,
                "depth": depth_of(model, X[n - BLOCK : n]),
                "bytes_per_node": grown.n_bytes / grown.n_nodes,
                "row_bytes": int(grown.trees[0].i[0].nbytes),
                "copied_per_second": copied_per_second(),
            }
        )
        print(f"{name}: {n} rows", file=sys.stderr)
    return records


def copied_per_second() -> float:
    """Return the bytes that a copy of a large array reads and writes in a second, the best of 5."""
    source = np.zeros(COPIED // 8)
    target, seconds = np.empty_like(source), []
    for _ in range(5):
        begin = time.process_time()
        np.copyto(target, source)
        seconds.append(time.process_time() - begin)
    return 2 * COPIED / min(seconds)


def moved_per_second(record: dict[str, Any]) -> float:
    """Return the bytes of nodes' rows that learning reads and writes in a second."""
    return 2e6 * record["depth"] * record["row_bytes"] / record["microseconds"]


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
            *(f"{r['nodes']:,.0f}", f"{r['bytes_per_node']:.0f}"),
            f"{moved_per_second(r) / 1e9:.1f}",
            f"{moved_per_second(r) / r['copied_per_second']:.2f}",
        ]
        for r in ordered
    ]
    head = ["stream", "rows", "us per row and tree", "over the first", "depth", "ns per level"]
    return table([*head, "nodes of a tree", "bytes per node", "GB/s", "of a copy's"], rows)


def draw(records: Records, path: Path) -> None:
    """Draw the cost of a row against the rows before it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name in STREAMS:
        own = sorted((r["rows"], r["microseconds"]) for r in records if r["stream"] == name)
        if own:
            axes.plot(*zip(*own, strict=True), marker="o", label=name)
    axes.set(xscale="log", ylim=(0, None), xlabel="rows learned", ylabel="us per row and tree")
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", nargs="+", default=STREAMS, choices=STREAMS)
    parser.add_argument("--max-rows", type=int, default=3_000_000)
    parser.add_argument("--trees", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    args = parser.parse_args()
    records = Records(args.out, ("stream", "rows", "trees"))
    for name in args.streams:
        for record in measure(name, args):
            records.add(record)
    text = report(records)
    args.out.with_suffix(".md").write_text(text)
    draw(records, args.out.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
