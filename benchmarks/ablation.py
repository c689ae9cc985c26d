"""Which defaults? AMF over a grid of settings, on real sets and on two known traps.

For every set and setting: the **progressive** loss (each row is predicted before it is learned)
over the training rows, then the **held-out** loss. Classification: mean log loss in nats.
Regression: mean squared error over the variance of the targets (1 - R2).

Rows are predicted in chunks that grow with the stream, at most 2 % of the rows seen, one row at a
time below 50: the price of a row is that of a forest that lags by at most 2 %.

The grid is every pseudo-count (or learning rate) with the opening charged and free; the defaults,
which for classification are chosen from the stream; and, at the middling setting, each other switch
turned. Settings are ranked by their excess over the best setting of each set, in per cent: the mean
over sets shows what is good, the worst shows what is safe.

    python -m benchmarks.ablation --data <folder> --max-rows 20000

A run that was stopped takes up where it stood; ``--fresh`` starts over.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets, metrics
from benchmarks.datasets import Dataset
from benchmarks.pages import Number, Page, publish, runs_of
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
# Where the other switches are turned.
MIDDLING = {"alpha": "0.2/K", "learning_rate": 8.0}
AUTO = {
    "alpha": "auto",
    "charge_opening": "auto",
    "split_pure": False,
    "predict_extension": "leaf",
}
SIDES = ("progressive", "held_out")


def settings(is_classification: bool) -> Iterator[dict[str, Any]]:
    """Yield the grid: first the factors that matter most, so that a stopped run is of use."""
    name = "alpha" if is_classification else "learning_rate"
    values = [label for label, _, _ in ALPHAS] if is_classification else RATES
    off = {"split_pure": False} if is_classification else {}
    for charge, value in product((False, True), values):
        yield {name: value, "charge_opening": charge, **off, "predict_extension": "leaf"}
    if is_classification:
        yield dict(AUTO)
    for charge in (False, True):
        base = {name: MIDDLING[name], "charge_opening": charge}
        yield {**base, **off, "predict_extension": "expected"}
        if is_classification:
            yield {**base, "split_pure": True, "predict_extension": "leaf"}


def estimator(chosen: dict[str, Any], n_classes: int, trees: int) -> AMFClassifier | AMFRegressor:
    """Return a new forest with the setting."""
    chosen = {"feature_scales": None, **chosen}
    if not n_classes:
        return AMFRegressor(n_estimators=trees, random_state=0, n_jobs=1, **chosen)
    alpha: Any = pseudo_count(chosen.pop("alpha"), n_classes)
    return AMFClassifier(
        n_estimators=trees, random_state=0, n_jobs=1, alpha=alpha, calibrate=False, **chosen
    )


def pseudo_count(label: str, n_classes: int) -> float | str:
    """Return the number that a label of the grid stands for, or "auto"."""
    if label == "auto":
        return label
    value, is_scaled = next((v, scaled) for name, v, scaled in ALPHAS if name == label)
    return value / n_classes if is_scaled else value


def chunks(n: int) -> Iterator[slice]:
    """Yield consecutive slices of n rows, each at most `LAG` of the rows before it (or one row)."""
    start = 0
    while start < n:
        stop = min(n, start + max(1, int(LAG * start)))
        yield slice(start, stop)
        start = stop


def measure(dataset: Dataset, chosen: dict[str, Any], trees: int) -> dict[str, Any]:
    """Return progressive and held-out loss of one setting, nodes per tree and what was chosen."""
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
    is_auto = "auto" in chosen.values()
    return {
        **({"chosen": [forest.alpha_, bool(forest.charge_opening_)]} if is_auto else {}),
        "progressive": float(losses.mean() / unit),
        "held_out": float(held_out / (1.0 if K else np.var(dataset.y_test))),
        "nodes_per_tree": forest.forest_.n_nodes / trees,
    }


def _losses(forest: Any, X: np.ndarray, y: np.ndarray, n_classes: int) -> np.ndarray:
    if n_classes:
        return metrics.row_losses(y, forest.predict_proba(X))
    return (forest.predict(X) - y) ** 2


def excess(records: list[dict[str, Any]], side: str) -> list[tuple[dict[str, Any], float, float]]:
    """Return settings with mean and worst excess over the best of each set, in per cent."""
    best = {}
    by_setting: dict[str, list[float]] = {}
    for record in records:
        best[record["set"]] = min(record[side], best.get(record["set"], np.inf))
    for record in records:
        over = 100.0 * (record[side] / best[record["set"]] - 1.0)
        by_setting.setdefault(json.dumps(record["setting"]), []).append(over)
    ranked = [
        (json.loads(setting), float(np.mean(over)), float(np.max(over)))
        for setting, over in by_setting.items()
    ]
    return sorted(ranked, key=lambda row: row[1])


def compared(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of the grid's settings that were run on every set."""
    grid = [setting for is_class in (True, False) for setting in settings(is_class)]
    names = {record["set"] for record in records}
    sets_of: dict[str, set[str]] = {}
    for record in records:
        sets_of.setdefault(json.dumps(record["setting"]), set()).add(record["set"])
    return [
        record
        for record in records
        if record["setting"] in grid and sets_of[json.dumps(record["setting"])] == names
    ]


def report(records: list[dict[str, Any]]) -> str:
    """Return Markdown: the ranking for each side, the switches, the default on each set."""
    records = compared(records)
    is_classification = records[0]["n_classes"] > 0
    parts = []
    for side in SIDES:
        ranked = excess(records, side)
        rows = [[*chosen.values(), f"{mean:.1f}", f"{worst:.1f}"] for chosen, mean, worst in ranked]
        title = side.replace("_", "-")
        parts.append(f"**{title} loss, excess over each set's best in %** ({len(rows)} settings)\n")
        parts.append(table([*ranked[0][0], "mean", "worst"], rows))
    default = AUTO
    if not is_classification:
        default = {**MIDDLING, "charge_opening": False, "predict_extension": "leaf"}
        default.pop("alpha")
    parts.append(switches(records))
    if any(record["setting"] == default for record in records):
        parts.append(by_set(records, default))
    return "\n".join(parts)


def switches(records: list[dict[str, Any]]) -> str:
    """Return Markdown: what each other switch changes, at the middling setting."""
    cells = {(r["set"], json.dumps(r["setting"])): r for r in records}
    names = list(dict.fromkeys(r["set"] for r in records))
    rows = []
    for setting in settings(records[0]["n_classes"] > 0):
        base = {**setting, "predict_extension": "leaf"}
        if "split_pure" in base:
            base["split_pure"] = False
        if base == setting or (names[0], json.dumps(setting)) not in cells:
            continue
        pairs = [(cells[s, json.dumps(setting)], cells[s, json.dumps(base)]) for s in names]
        row: list[Any] = [json.dumps(setting)]
        for side in SIDES:
            change = [100.0 * (own[side] / plain[side] - 1.0) for own, plain in pairs]
            row += [f"{np.mean(change):.1f}", f"{min(change):.1f}", f"{max(change):.1f}"]
        nodes = [own["nodes_per_tree"] / plain["nodes_per_tree"] for own, plain in pairs]
        rows.append([*row, f"{np.median(nodes):.1f}", f"{max(nodes):.1f}"])
    head = ["setting", "progressive, change in %", "least", "greatest"]
    head += ["held-out, change in %", "least", "greatest", "nodes, times", "most"]
    about = "**Other switches**, against the same setting with `split_pure` False and `leaf`: mean"
    return f"{about} loss, median nodes\n\n" + table(head, rows)


def by_set(records: list[dict[str, Any]], default: dict[str, Any]) -> str:
    """Return Markdown: the default beside the best fixed setting of each set."""
    rows, over = [], {side: [] for side in SIDES}
    for name in dict.fromkeys(record["set"] for record in records):
        own = [record for record in records if record["set"] == name]
        chosen = next(record for record in own if record["setting"] == default)
        row: list[Any] = [name, own[0]["n_train"], own[0]["n_classes"] or "-"]
        if "chosen" in chosen:
            alpha, charge = chosen["chosen"]
            row.append(f"{alpha * own[0]['n_classes']:.2f}/K {'charged' if charge else 'free'}")
        for side in SIDES:
            best = min((r for r in own if "chosen" not in r), key=lambda record: record[side])
            percent = 100.0 * (chosen[side] / best[side] - 1.0)
            over[side].append(percent)
            fixed = " ".join(map(str, best["setting"].values()))
            row += [chosen[side], best[side], f"{percent:+.1f}", fixed]
        rows.append(row)
    head = ["set", "rows", "K", *(["chosen"] if default == AUTO else [])]
    for side in ("progressive", "held-out"):
        head += [f"{side}, default", "best fixed", "%", "by"]
    reported = "; ".join(
        f"{side.replace('_', '-')} {np.mean(values):.1f} % over the best fixed setting on average,"
        f" {max(values):.1f} % at worst"
        for side, values in over.items()
    )
    return f"**The default by set** ({json.dumps(default)}): {reported}.\n\n" + table(head, rows)


def body(records: Records) -> str:
    """Return Markdown: a section for each kind of label, number of trees and of rows."""
    sizes = dict.fromkeys((r["trees"], r["max_rows"]) for r in records)
    texts = []
    for trees, max_rows in sizes:
        for title, is_class in (("Classification", True), ("Regression", False)):
            own = [
                r
                for r in records
                if (r["n_classes"] > 0) == is_class
                and (r["trees"], r["max_rows"]) == (trees, max_rows)
            ]
            if own:
                most = "all" if max_rows is None else f"at most {max_rows}"
                texts.append(f"## {title}, {trees} trees, {most} rows of a set\n\n{report(own)}")
    return "\n".join(texts)


def cost_of(is_class: bool, **wanted: Any) -> Callable[[Records], Number]:
    """Return what finds the least mean excess of progressive loss of settings with these values."""

    def find(records: Records) -> Number:
        own = compared([r for r in records if (r["n_classes"] > 0) == is_class])
        for setting, mean, worst in excess(own, "progressive"):
            if all(setting.get(key) == value for key, value in wanted.items()):
                return Number(f"{mean:.1f} %", f"at most {worst:.1f} %", runs_of(own))
        raise LookupError(f"no setting with {wanted}")

    return find


PAGE = Page(
    title="Defaults",
    question="Which pseudo-count, learning rate and other switches of AMF should be the defaults?",
    identity=("set", "trees", "max_rows", "setting"),
    body=body,
    numbers={
        "auto": cost_of(True, alpha="auto"),
        "fixed": cost_of(True, alpha="0.2/K", charge_opening=False, split_pure=False),
        "paper": cost_of(True, alpha="0.5", charge_opening=True),
        "rate": cost_of(False, learning_rate=8.0, charge_opening=False),
        "charged": cost_of(False, learning_rate=8.0, charge_opening=True),
        "theory": cost_of(False, learning_rate="theory"),
    },
    sentences=(
        "No fixed pair of pseudo-count and opening price is good on all sets: chosen from the"
        " stream, they cost {auto} of progressive loss over the best setting of each set, which"
        " hindsight chooses; a good fixed pair costs {fixed}, that of M21 {paper}.",
        "In regression the default rate with a free opening costs {rate}, with a charged one"
        " {charged}, and the rate of the theorem {theory}.",
        "The candidates were found on these same sets, so other data may cost a little more; the"
        " last candidate, the pseudo-count of M21 for two classes, came after these figures.",
    ),
)


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
    records = Records(args.out, PAGE.identity, args.fresh)
    for name in args.sets:
        dataset = datasets.load(name, args.data, args.max_rows)
        # Two labels may stand for one number: 0.2/K and 0.1 with two classes.
        known: dict[tuple, dict[str, Any]] = {}
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
    publish("ablation", records)


if __name__ == "__main__":
    main()
