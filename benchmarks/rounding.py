"""What does rounding columns cost, and save? Held-out log loss or R2, and bytes per node.

Ten trees of AMF, of Mondrian forests and of generalised ones (binary classes alone), each with
default settings but for one. *float32* is ``feature_units=None``, *rounded* the default,
``feature_units="auto"``: means over the seeds, and the largest difference that rounding makes to
one seed beside that which seeds make. Then how many of the columns of more than two values are
rounded, and the words and boxes of a node.

    python -m benchmarks.rounding --data <folder> --max-rows 20000
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import dmondrian
from benchmarks import datasets
from benchmarks.datasets import Dataset
from benchmarks.metrics import classification, regression
from benchmarks.pages import Figure, Number, Page, publish, range_of, runs_of
from benchmarks.records import RESULTS, Records, table
from dmondrian.tuning.auto_settings import LAST

UNITS = (None, "auto")
SETS = [name for name in datasets.EARLIER if "synthetic_d100" not in name]
# Of each family the start of its classes' names, and what is set and how that is called.
FAMILIES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "amf": (
        "AMF",
        {"no scales": {"feature_scales": None}, "learned scales": {"feature_scales": "learned"}},
    ),
    "mondrian": (
        "MondrianForest",
        {"lifetime grows": {}, "hierarchy": {"aggregation": "hierarchy", "lifetime": None}},
    ),
    "generalized": ("GeneralizedMondrianForest", {"validation": {"lifetime": "validation"}}),
}


def measure(
    kind: type, data: Dataset, settings: dict[str, Any], units: str | None, seed: int, trees: int
) -> tuple[float, float, float]:
    """Return the held-out loss or R2, bytes per node, and which part of the columns is rounded.

    Columns of two values are left out: boxes write them as bits.
    """
    rows = min(LAST, 2 * len(data.y_train) // 3)
    given = {**settings, "warmup_rows": rows, "random_state": seed}
    forest = kind(trees, feature_units=units, **given).fit(data.X_train, data.y_train)
    if data.is_classification:
        score = classification(data.y_test, forest.predict_proba(data.X_test))["log_loss"]
    else:
        score = regression(data.y_test, forest.predict(data.X_test))["r2"]
    tree = forest.forest_.trees[0]
    held = sum(array[:1].nbytes for array in (tree.i, tree.box, tree.bits))
    wide = np.array([len(np.unique(column)) > 2 for column in data.X_train.T])
    return score, float(held), float(np.mean(forest.feature_units_[wide] > 0.0))


def record_of(family: str, setting: str, data: Dataset, seeds: int, trees: int) -> dict[str, Any]:
    """Return what was found on one set with one setting."""
    start, settings = FAMILIES[family]
    kind = getattr(dmondrian, start + ("Classifier" if data.is_classification else "Regressor"))
    plain, rounded = (
        np.array(
            [measure(kind, data, settings[setting], units, seed, trees) for seed in range(seeds)]
        )
        for units in UNITS
    )
    return {
        "family": family,
        "set": data.name,
        "setting": setting,
        "trees": trees,
        "seeds": seeds,
        "metric": "log loss" if data.is_classification else "R2",
        "plain": float(plain[:, 0].mean()),
        "rounded": float(rounded[:, 0].mean()),
        "most_apart": float(np.abs(rounded[:, 0] - plain[:, 0]).max()),
        "seeds_apart": float(np.ptp(plain[:, 0])),
        "columns": float(rounded[0, 2]),
        "bytes": [int(found[0, 1]) for found in (plain, rounded)],
    }


def body(records: Records) -> str:
    """Return Markdown: a table for each family and metric."""
    head = ["with", "float32", "rounded", "most apart", "seeds apart", "columns", "bytes", "then"]
    keys = ("family", "metric", "max_rows", "trees", "seeds")
    texts = []
    for group in dict.fromkeys(tuple(r[key] for key in keys) for r in records):
        family, metric, max_rows, trees, seeds = group
        rows = [
            [r["set"], r["setting"], r["plain"], r["rounded"], r["most_apart"], r["seeds_apart"],
             f"{100.0 * r['columns']:.0f} %", *r["bytes"]]
            for r in records.where(**dict(zip(keys, group, strict=True)))
        ]  # fmt: skip
        about = f"At most {max_rows} rows of a set, {trees} trees, {seeds} seeds."
        tabled = table([metric, *head], rows, digits=4)
        texts.append(f"## {FAMILIES[family][0]}: {metric}\n\n{about}\n\n{tabled}")
    return "\n".join(texts)


def below_seeds(family: str) -> Figure:
    """Return how often rounding changes a metric by less than another seed does."""

    def find(records: Records) -> Number:
        found = records.where(family=family)
        less = sum(r["most_apart"] <= r["seeds_apart"] for r in found)
        return Number(f"{less} of {len(found)}", "", runs_of(found))

    return find


def fewer_bytes(records: Records) -> Number:
    """Return the range of a rounded node's bytes over those of one that is not, in per cent."""
    found = records.where(family="amf")
    return range_of([100.0 * r["bytes"][1] / r["bytes"][0] for r in found], ".0f", found)


PAGE = Page(
    title="Rounding",
    question="What does rounding columns to units cost in loss, and save in bytes?",
    identity=("family", "set", "setting", "max_rows", "trees", "seeds"),
    body=body,
    numbers={
        "amf": below_seeds("amf"),
        "mondrian": below_seeds("mondrian"),
        "generalized": below_seeds("generalized"),
        "bytes": fewer_bytes,
    },
    sentences=(
        "Rounding changes losses both ways, by less than another seed does in {amf} cases of AMF,"
        " in {mondrian} of Mondrian forests and in {generalized} of generalised ones, whose chosen"
        " lifetime may become another among near ties.",
        "A node's words and box take {bytes} per cent of the bytes of `float32`.",
        "All columns are rounded but a few that have few values far out.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    datasets.add_arguments(parser, SETS)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    sets = [datasets.load(name, args.data, args.max_rows) for name in args.sets]
    records = Records(RESULTS / "rounding.json", PAGE.identity)
    for family in args.families:
        for data in sets:
            if family == "generalized" and data.n_classes > 2:
                continue
            for setting in FAMILIES[family][1]:
                found = record_of(family, setting, data, args.seeds, args.trees)
                records.add({**found, "max_rows": args.max_rows})
                print(f"{family}, {data.name}, {setting}: done", file=sys.stderr)
    publish("rounding", records)


if __name__ == "__main__":
    main()
