"""How the cost of a row depends on the columns d, the trees T and the classes K.

One of the three is varied, the others stay at d = 20, T = 10 and K = 2. Two costs are reported per
row and tree, of one thread and in its processor's time, and what a node takes:

* learning: all rows, in one call, by a forest that has learned nothing; fresh memory is part of it;
* predicting: `predict_proba` of the same rows, in one call. The trees were frozen by such a call
  before, which is not timed: freezing is paid once per forest, not per row. A forest whose trees
  were too small to be frozen answers another way, and is marked;
* bytes per node as the forest learns, spare memory included, without the frozen copies.

Shapes take turns, so that a disturbance of the machine falls on all of them. The rows are
scikit-learn's `make_classification`, a cluster per class, 10 columns (5 of 5) that are informative,
each in [0, 1], every tenth label drawn anew so that trees of few columns grow too: other d and K
are other rows, with trees of another depth, which is reported beside.

    python -m benchmarks.shapes --fresh
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import make_classification

from benchmarks.growth import depth_of, forest, scaled
from benchmarks.pages import Figure, Page, publish, range_of
from benchmarks.records import REPORTS, RESULTS, Records, machine, table
from benchmarks.throughput import spread


class Shape(NamedTuple):
    """What the cost is measured of."""

    d: int = 20
    trees: int = 10
    classes: int = 2


VARIED: dict[str, tuple[int, ...]] = {
    "d": (5, 10, 20, 50, 100, 200),
    "trees": (1, 3, 10, 30, 100),
    "classes": (2, 5, 10, 26, 100),
}
LABELS = {"d": "columns, d", "trees": "trees, T", "classes": "classes, K"}
SWEEPS = {name: [Shape(**{name: value}) for value in VARIED[name]] for name in VARIED}
SHAPES = list(dict.fromkeys(shape for shapes in SWEEPS.values() for shape in shapes))
INFORMATIVE = 10  # columns: their corners are more than the classes
STEPS = ("learn", "predict")


def rows_of(shape: Shape, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n rows, float32 [n, d], and class indices."""
    X, y = make_classification(
        n,
        shape.d,
        n_informative=min(shape.d, INFORMATIVE),
        n_redundant=0,
        n_classes=shape.classes,
        n_clusters_per_class=1,
        flip_y=0.1,
        random_state=0,
    )
    return scaled(X), y


def once(shape: Shape, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Learn and predict the rows; return microseconds per row and tree, and the trees' size."""
    model, classes = forest(True, shape.trees), np.arange(shape.classes)
    share = 1e6 / len(X) / shape.trees
    learn = share * seconds(lambda: model.partial_fit(X, y, classes=classes))
    grown = model.forest_
    about = {
        "nodes": grown.n_nodes / shape.trees,
        "bytes_per_node": grown.n_bytes / grown.n_nodes,
        "depth": depth_of(model, X),
    }
    model.predict_proba(X)  # freezes
    about["is_frozen"] = grown.predictor.frozen_cache.kept is not None
    return {**about, "learn": learn, "predict": share * seconds(lambda: model.predict_proba(X))}


def seconds(work: Callable[[], Any]) -> float:
    """Return the processor's seconds that the work takes."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One record per shape, with least, median and greatest cost."""
    data = {(s.d, s.classes): rows_of(s, args.max_rows) for s in SHAPES}
    once(Shape(trees=1), *data[Shape().d, Shape().classes])  # compiles
    rounds: dict[Shape, list[dict[str, Any]]] = {shape: [] for shape in SHAPES}
    for number in range(args.repeats):
        for shape, found in rounds.items():
            found.append(once(shape, *data[shape.d, shape.classes]))
        print(f"round {number + 1} of {args.repeats}", file=sys.stderr)
    records = []
    for shape, found in rounds.items():
        record = {**shape._asdict(), "rows": args.max_rows, "repeats": args.repeats, **found[0]}
        for step in STEPS:
            costs = [one[step] for one in found]
            record[step] = [min(costs), statistics.median(costs), max(costs)]
        records.append(record)
    return records


def swept(records: Records, name: str, rows: int) -> list[dict[str, Any]]:
    """Return the records in which one of the three varies."""
    of = {Shape(r["d"], r["trees"], r["classes"]): r for r in records if r["rows"] == rows}
    return [of[shape] for shape in SWEEPS[name]]


def report(records: Records, rows: int) -> str:
    """Markdown: a row per value of each of the three."""
    lines = [
        [
            *(LABELS[name], r[name], spread(r["learn"], ".3f")),
            spread(r["predict"], ".3f") + ("" if r["is_frozen"] else ", not frozen"),
            *(f"{r['depth']:.0f}", f"{r['nodes']:,.0f}", f"{r['bytes_per_node']:.0f}"),
        ]
        for name in SWEEPS
        for r in swept(records, name, rows)
    ]
    head = ["varied", "value", "learn", "predict", "depth", "nodes of a tree", "bytes per node"]
    default, repeats = Shape(), swept(records, "d", rows)[0]["repeats"]
    return (
        f"{rows:,} rows; d = {default.d}, T = {default.trees}, K = {default.classes} where not "
        "varied. Microseconds of the processor per row and tree, one thread: median (least to "
        f"greatest) of {repeats}.\n\n" + table(head, lines)
    )


def draw(records: Records, rows: int, path: Path) -> None:
    """Draw both costs against each of the three."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(11, 4), sharey=True, layout="constrained")
    for name, axes in zip(SWEEPS, panels, strict=True):
        own = swept(records, name, rows)
        for step in STEPS:
            low, middle, high = np.array([r[step] for r in own]).T
            bars = [middle - low, high - middle]
            values = [r[name] for r in own]
            axes.errorbar(values, middle, bars, marker="o", capsize=3, label=step)
        axes.set(xscale="log", yscale="log", xlabel=LABELS[name])
        axes.set_xticks(VARIED[name], VARIED[name], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("us per row and tree")
    panels[0].legend()
    figure.savefig(path, dpi=110)


def body(records: Records) -> str:
    """Markdown: a table for each number of rows."""
    return "\n".join(report(records, rows) for rows in dict.fromkeys(r["rows"] for r in records))


def costs(varied: str) -> Figure:
    """Return what finds the range of the costs of learning over what is varied."""

    def find(records: Records) -> Any:
        found = swept(records, varied, max(r["rows"] for r in records.where()))
        return range_of([r["learn"][1] for r in found], ".1f", found)

    return find


PAGE = Page(
    title="Columns, trees, classes",
    question="How does the cost of a row depend on the number of columns, trees and classes?",
    identity=(*Shape._fields, "rows", "cpu"),
    body=body,
    numbers={name: costs(name) for name in VARIED},
    sentences=(
        "Learning takes {trees} us per row and tree whatever the number of trees, {d} us from the"
        " fewest columns to the most, as boxes grow with them, and {classes} us from the fewest"
        " classes to the most.",
    ),
    pictures=("shapes.png",),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fresh", action="store_true", help="forget results of earlier runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "shapes.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity, args.fresh)
    for record in measure(args):
        records.add(record)
    publish("shapes", records)
    draw(records.of_machine(machine()["cpu"]), args.max_rows, REPORTS / "shapes.png")


if __name__ == "__main__":
    main()
