"""Which defaults? AMF over a grid of settings, on real sets and on two known traps.

For every set and setting: the **progressive** loss (each row is predicted before it is learned)
over the training rows, then the **held-out** loss. Classification: mean log loss in nats.
Regression: mean squared error over the variance of the targets (1 - R2).

Rows are predicted in chunks that grow with the stream, at most 2 % of the rows seen, one row at a
time below 50: the price of a row is that of a forest that lags by at most 2 %.

The summary ranks settings by their excess over the best setting of each set, in per cent: the mean
over sets says what is good, the worst says what is safe.

    python -m benchmarks.ablation --data <folder> --max-rows 20000

A run that was stopped takes up where it stood; ``--fresh`` starts over.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets, metrics
from benchmarks.datasets import Dataset
from benchmarks.records import RESULTS, Records, table
from dmondrian import AMFClassifier, AMFRegressor

# The largest part of the rows seen that a chunk may have.
LAG = 0.02
ALPHAS: tuple[tuple[str, float, bool], ...] = (
    # label, value, whether it is divided by the number of classes
    ("0.01", 0.01, False),
    ("0.05", 0.05, False),
    ("0.1", 0.1, False),
    ("0.2", 0.2, False),
    ("0.5", 0.5, False),
    ("0.1/K", 0.1, True),
    ("0.2/K", 0.2, True),
    ("0.5/K", 0.5, True),
    ("1/K", 1.0, True),
)
RATES: tuple[float | str, ...] = ("theory", 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SIDES = ("progressive", "held_out")


def settings(is_classification: bool) -> Iterator[dict[str, Any]]:
    """Yield the grid: first the factors that matter most, so that a stopped run is of use."""
    switches = (False, True)
    extensions = ("leaf", "expected")
    if is_classification:
        for pure, extension, charge, alpha in product(
            switches, extensions, switches, (label for label, _, _ in ALPHAS)
        ):
            yield {
                "alpha": alpha,
                "charge_opening": charge,
                "split_pure": pure,
                "predict_extension": extension,
            }
    else:
        for extension, charge, rate in product(extensions, switches, RATES):
            yield {
                "learning_rate": rate,
                "charge_opening": charge,
                "predict_extension": extension,
            }


def estimator(chosen: dict[str, Any], n_classes: int, trees: int) -> AMFClassifier | AMFRegressor:
    """Return a new forest with the setting."""
    chosen = dict(chosen)
    if not n_classes:
        return AMFRegressor(n_estimators=trees, random_state=0, n_jobs=1, **chosen)
    alpha = pseudo_count(chosen.pop("alpha"), n_classes)
    return AMFClassifier(n_estimators=trees, random_state=0, n_jobs=1, alpha=alpha, **chosen)


def pseudo_count(label: str, n_classes: int) -> float:
    """Return the number that a label of the grid stands for."""
    value, is_scaled = next((v, scaled) for name, v, scaled in ALPHAS if name == label)
    return value / n_classes if is_scaled else value


def chunks(n: int) -> Iterator[slice]:
    """Yield consecutive slices of n rows, each at most `LAG` of the rows before it (or one row)."""
    start = 0
    while start < n:
        stop = min(n, start + max(1, int(LAG * start)))
        yield slice(start, stop)
        start = stop


def measure(dataset: Dataset, chosen: dict[str, Any], trees: int) -> dict[str, float]:
    """Return progressive and held-out loss of one setting, and nodes per tree."""
    forest = estimator(chosen, dataset.n_classes, trees)
    X, y, K = dataset.X_train, dataset.y_train, dataset.n_classes
    losses = np.empty(len(y))
    classes = np.arange(K)
    # Before any row: uniform, or 0.
    losses[0] = np.log(K) if K else y[0] ** 2
    for rows in chunks(len(y)):
        if rows.start:
            losses[rows] = _losses(forest, X[rows], y[rows], K)
        if K:
            forest.partial_fit(X[rows], y[rows], classes=classes)
        else:
            forest.partial_fit(X[rows], y[rows])
    held_out = _losses(forest, dataset.X_test, dataset.y_test, K).mean()
    unit = 1.0 if K else np.var(y)
    return {
        "progressive": float(losses.mean() / unit),
        "held_out": float(held_out / (1.0 if K else np.var(dataset.y_test))),
        "nodes_per_tree": forest.forest_.n_nodes / trees,
    }


def _losses(forest: Any, X: np.ndarray, y: np.ndarray, n_classes: int) -> np.ndarray:
    if n_classes:
        return metrics.row_losses(y, forest.predict_proba(X))
    return (forest.predict(X) - y) ** 2


def excess(records: list[dict[str, Any]], side: str) -> list[tuple[dict[str, Any], float, float]]:
    """Return settings with mean and worst excess over the best of each set, in per cent.

    Only settings that were run on every set are compared.
    """
    names = {record["set"] for record in records}
    best = {s: min(r[side] for r in records if r["set"] == s) for s in names}
    by_setting: dict[str, list[float]] = {}
    for record in records:
        over = 100.0 * (record[side] / best[record["set"]] - 1.0)
        by_setting.setdefault(json.dumps(record["setting"]), []).append(over)
    ranked = [
        (json.loads(setting), float(np.mean(over)), float(np.max(over)))
        for setting, over in by_setting.items()
        if len(over) == len(names)
    ]
    return sorted(ranked, key=lambda row: row[1])


def report(records: list[dict[str, Any]], keep: int = 12) -> str:
    """Return Markdown: the ranking for each side, then each set's best and the overall winner."""
    parts = []
    for side in SIDES:
        ranked = excess(records, side)
        if not ranked:
            continue
        factors = list(ranked[0][0])
        rows = [[*chosen.values(), f"{mean:.1f}", f"{worst:.1f}"] for chosen, mean, worst in ranked]
        shown = rows if len(rows) <= keep else rows[:keep]
        title = side.replace("_", "-")
        parts.append(f"**{title} loss, excess over each set's best in %** ({len(rows)} settings)\n")
        parts.append(table([*factors, "mean", "worst"], shown))
    winner = excess(records, SIDES[0])[0][0]
    rows = []
    for name in dict.fromkeys(record["set"] for record in records):
        own = [record for record in records if record["set"] == name]
        row: list[Any] = [name, own[0]["n_train"]]
        for side in SIDES:
            best = min(own, key=lambda record: record[side])
            chosen = next(record for record in own if record["setting"] == winner)
            row += [chosen[side], best[side], " ".join(map(str, best["setting"].values()))]
        rows.append(row)
    head = ["set", "rows", "progressive, winner", "best", "by"]
    parts.append(f"**By set.** Winner (progressive): {json.dumps(winner)}\n")
    parts.append(table([*head, "held-out, winner", "best", "by"], rows))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser)
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--out", type=Path, default=RESULTS / "ablation.json")
    parser.add_argument("--only", default="{}", help="JSON: run the settings that agree with it")
    args = parser.parse_args()
    only = json.loads(args.only)
    records = Records(args.out, ("set", "trees", "max_rows", "setting"), args.fresh)
    for name in args.sets:
        dataset = datasets.load(name, args.data, args.max_rows)
        # Two labels may stand for one number: 0.2/K and 0.1 with two classes.
        known: dict[tuple, dict[str, float]] = {}
        for chosen in settings(dataset.is_classification):
            if any(chosen.get(key, value) != value for key, value in only.items()):
                continue
            record = {
                "set": name,
                "trees": args.trees,
                "max_rows": args.max_rows,
                "setting": chosen,
                "n_train": len(dataset.y_train),
                "n_classes": dataset.n_classes,
            }
            if record in records:
                continue
            alpha = pseudo_count(chosen["alpha"], dataset.n_classes) if "alpha" in chosen else 0
            same = (alpha, *(value for key, value in chosen.items() if key != "alpha"))
            if same not in known:
                known[same] = measure(dataset, chosen, args.trees)
            records.add({**record, **known[same]})
    text = ""
    for title, is_classification in (("Classification", True), ("Regression", False)):
        own = [
            r
            for r in records
            if (r["n_classes"] > 0) == is_classification and r["trees"] == args.trees
        ]
        if own:
            text += f"## {title}, {args.trees} trees\n\n{report(own)}\n"
    args.out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
