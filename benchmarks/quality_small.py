"""How good are the forests on small tables? Cuts of the sets, several seeds, beside batch peers.

Each cut is so many rows to learn, and others held out, drawn by a seed that is the models' seed
too; see `benchmarks.datasets.drawn`. Models have their defaults, a hundred trees or rounds, and one
thread. One process of each model takes all cuts.

    python -m benchmarks.quality_small --data <folder> --peers <cache folder>

Sizes are measured one after the other, the smallest first; a run that was stopped takes up where it
stood. A cut is left out where the set has too few rows, or where a class is not among the rows to
learn: which probability it gets would then decide the loss.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets, quality
from benchmarks.pages import Figure, Number, Page, publish, runs_of
from benchmarks.peers.runner import Worker, interpreter, save_input, started
from benchmarks.quality import MODELS, counted, wins
from benchmarks.records import RESULTS, Records, table
from dmondrian.drift.scaled_trees import FIRST_SCALED

PEERS = (
    *("random forest 100", "extra trees 100", "LightGBM 100"),
    *("hist boosting 100", "CatBoost 100"),
)
OURS, SCALED = quality.OURS, quality.OURS[2]
LABELS = (*OURS, *PEERS)
SIZES = (300, 1000, 3000)
SEEDS = 5
# Rows held out: as many as there are, between these.
LEAST_TEST, MOST_TEST = 200, 2000
METRICS = {
    "log_loss": "Log loss (nats)",
    "brier": "Brier score, summed over classes; of two classes half of that",
    "accuracy": "Accuracy",
    "r2": "R2",
    "fit_seconds": "Seconds to learn, one thread of a busy machine",
}
DECIDING = ("log_loss", "r2")
WARM_ROWS = 600  # reach every compiled path


def labels_of(size: int) -> list[str]:
    """Return the models that are measured on so many rows: of few no scaled tree is grown."""
    return [label for label in LABELS if label != SCALED or size > FIRST_SCALED]


def body(records: Records) -> str:
    """Return on how many sets ours are ahead, and a table of each size and metric."""
    sizes = sorted({record["n_train"] for record in records})
    parts = [standing(records, sizes)] if sizes else []
    for size in sizes:
        for metric, title in METRICS.items():
            rows = []
            for name in datasets.NAMES:
                cells = {r["model"]: r for r in records if (r["set"], r["n_train"]) == (name, size)}
                if any(metric in cell for cell in cells.values()):
                    first = next(iter(cells.values()))
                    about = [name, first["n_test"], first["n_features"], first["n_classes"] or "-"]
                    labels = labels_of(size)
                    spreads = [spread(cells.get(label, {}).get(metric)) for label in labels]
                    rows.append([*about, *spreads])
            if rows:
                head = ["set", "held out", "d", "K", *labels_of(size)]
                parts.append(f"## {size} rows: {title}\n\n{table(head, rows)}")
    return "\n".join([*parts, left_out(records)])


def standing(records: Records, sizes: Sequence[int]) -> str:
    """Return a table of the sets on which ours are ahead of each peer, by size."""
    rows = []
    for size in sizes:
        for model in OURS:
            for metric in DECIDING:
                own = means(records, size, model, metric)
                counts = [
                    counted(*wins(own, means(records, size, peer, metric), metric))
                    for peer in PEERS
                ]
                rows += [[size, model, metric, *counts]] if any(counts) else []
    head = ["rows", "model", "metric", *PEERS]
    return f"## Sets on which ours are ahead, by the means over seeds\n\n{table(head, rows)}"


def left_out(records: Records) -> str:
    """Name the sets that are not measured with all models, by size."""
    lines = []
    for size in SIZES:
        found = {(r["set"], r["model"]) for r in records if r["n_train"] == size}
        labels = labels_of(size)
        names = [n for n in datasets.NAMES if not all((n, label) in found for label in labels)]
        lines += [f"- {size} rows: {', '.join(names)}"] if names else []
    why = (
        "With all models. Sets have too few rows, or a class is not among the rows to learn, or"
        " they were not run: boosting of many classes and columns takes longest."
    )
    return f"## Not measured\n\n{why}\n\n" + ("\n".join(lines) or "Nothing.") + "\n"


def spread(seeds: list[float] | None) -> list[float] | None:
    """Return mean and standard deviation over the seeds."""
    if seeds is None:
        return None
    return [statistics.mean(seeds), statistics.stdev(seeds) if len(seeds) > 1 else 0.0]


def means(records: Records, size: int, model: str, metric: str) -> dict[str, float]:
    """Return the mean of a metric over the seeds, by set."""
    return {
        r["set"]: statistics.mean(r[metric])
        for r in records
        if (r["n_train"], r["model"]) == (size, model) and metric in r
    }


def ahead(size: int, model: str, other: str, metric: str = "log_loss") -> Figure:
    """Return on how many sets a model is ahead of another, by the means over seeds."""

    def find(records: Records) -> Number:
        own, its = (means(records, size, label, metric) for label in (model, other))
        found = counted(*wins(own, its, metric))
        if found is None:
            raise LookupError(f"no set of {size} rows with both {model} and {other}")
        both = [
            record
            for label in (model, other)
            for record in records.where(model=label, n_train=size)
            if record["set"] in own.keys() & its.keys()
        ]
        return Number(found, "", runs_of(both))

    return find


SHORT = {"forest": PEERS[0], "lightgbm": PEERS[2], "catboost": PEERS[4]}
NUMBERS = {
    f"{word}_{ours}_{peer}": ahead(size, model, label)
    for word, size in zip(("least", "middle", "most"), SIZES, strict=True)
    for ours, model in zip(("own", "boosted", "scaled"), OURS, strict=True)
    for peer, label in SHORT.items()
    if model in labels_of(size)
}
PAGE = Page(
    title="Quality on small tables",
    question="How good are AMF's forecasts of small cuts of the sets, beside batch peers?",
    identity=("set", "model", "n_train"),
    body=body,
    numbers=NUMBERS,
    sentences=(
        "Sets on which a hundred AMF trees have a lower held-out log loss than a random forest,"
        " LightGBM and CatBoost of as many trees or rounds, by means over seeds: at the smallest"
        " size {least_own_forest}, {least_own_lightgbm} and {least_own_catboost}; at the next"
        " {middle_own_forest}, {middle_own_lightgbm} and {middle_own_catboost}; at the last"
        " {most_own_forest}, {most_own_lightgbm} and {most_own_catboost}.",
        "Ten members that follow the stream and mix boosted sets, frozen after one pass: at the"
        " smallest size {least_boosted_forest}, {least_boosted_lightgbm} and"
        " {least_boosted_catboost}; at the next {middle_boosted_forest},"
        " {middle_boosted_lightgbm} and {middle_boosted_catboost}; at the last"
        " {most_boosted_forest}, {most_boosted_lightgbm} and {most_boosted_catboost}, and with"
        " scaled trees as well {most_scaled_forest}, {most_scaled_lightgbm} and"
        " {most_scaled_catboost}.",
        "Cells are mean and standard deviation over seeds, which draw rows and models; rows held"
        " out are others of the set. Strings are one-hot encoded for all. What ours do was chosen"
        " on larger cuts of these sets; the page on quality names them.",
    ),
)


def cuts(
    names: Sequence[str], sizes: Sequence[int], seeds: int, data: str | None, folder: Path
) -> dict[tuple[str, int], list[Path]]:
    """Write the npz of each seed for each set and size that can be measured."""
    found: dict[tuple[str, int], list[Path]] = {}
    for name in names:
        dataset = datasets.load(name, data)
        n = len(dataset.y_train) + len(dataset.y_test)
        for size in (size for size in sizes if size + LEAST_TEST <= n):
            drawn = [datasets.drawn(dataset, size, MOST_TEST, seed) for seed in range(seeds)]
            if any(len(np.unique(cut.y_train)) < cut.n_classes for cut in drawn):
                print(f"{name}, {size} rows: left out, a class is not drawn", file=sys.stderr)
                continue
            found[name, size] = [folder / f"{name}_{size}_{seed}.npz" for seed in range(seeds)]
            for cut, path in zip(drawn, found[name, size], strict=True):
                save_input(cut, path)
    return found


def measured(worker: Worker, paths: Sequence[Path]) -> dict[str, Any]:
    """Return each metric as a list over the seeds."""
    scores = [worker.score(path, seed) for seed, path in enumerate(paths)]
    return {key: [each[key] for each in scores] for key in METRICS if key in scores[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=os.environ.get(datasets.ENVIRONMENT_VARIABLE))
    parser.add_argument("--sets", nargs="+", default=datasets.NAMES, choices=datasets.NAMES)
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument("--models", nargs="+", default=LABELS, choices=LABELS, metavar="MODEL")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="rows to learn")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--fresh", action="store_true", help="measure again what is asked for")
    parser.add_argument("--out", type=Path, default=RESULTS / "quality_small.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity)
    with tempfile.TemporaryDirectory() as folder:
        for size in sorted(args.sizes):
            found = cuts(args.sets, [size], args.seeds, args.data, Path(folder))
            for label, peer, trees, parameters in MODELS:
                if label in args.models and label in labels_of(size):
                    measure(label, peer, trees, parameters, found, records, args)
    publish("quality_small", records)


def measure(
    label: str,
    peer: str,
    trees: int,
    parameters: dict[str, Any],
    found: dict[tuple[str, int], list[Path]],
    records: Records,
    args: argparse.Namespace,
) -> None:
    """Run a model on cuts, in one process, and add its records."""
    if interpreter(peer, args.peers) is None:
        print(f"{label}: left out, no environment for it under --peers", file=sys.stderr)
        return
    wanted = {
        (name, size): paths
        for (name, size), paths in found.items()
        if args.fresh or {"set": name, "model": label, "n_train": size} not in records
    }
    if not wanted:
        return
    options: dict[str, Any] = {"parameters": json.dumps(parameters)} if parameters else {}
    rows = next(iter(wanted.values()))[0]
    with started(
        peer, rows, peers=args.peers, trees=trees, warm_rows=WARM_ROWS, **options
    ) as worker:
        for (name, size), paths in wanted.items():
            shape = np.load(paths[0])
            record = {
                "set": name,
                "model": label,
                "n_train": size,
                "n_test": len(shape["y_test"]),
                "n_features": shape["X_test"].shape[1],
                "n_classes": int(shape["n_classes"]),
            }
            its = measured(worker, paths)
            records.add({**record, **its})
            print(f"{name}, {size}, {label}: {json.dumps(its)}", file=sys.stderr)


if __name__ == "__main__":
    main()
