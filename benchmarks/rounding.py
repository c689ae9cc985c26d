"""What does rounding columns cost, and save? Held-out log loss or R2, and bytes per node.

Ten trees of AMF, of Mondrian forests and of generalised ones (binary classes alone), each with
default settings but for one. *float32* is ``feature_units=None``, *rounded* the default,
``feature_units="auto"``: means over the seeds, and the largest difference that rounding makes to
one seed beside that which seeds make. Then how many of the columns of more than two values are
rounded, and the words and boxes of a node. AMF is told in ``rounding.md``, the others in
``rounding_*.md``.

    python -m benchmarks.rounding --data <folder> --max-rows 20000
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import dmondrian
from benchmarks import datasets
from benchmarks.datasets import Dataset
from benchmarks.metrics import classification, regression
from benchmarks.records import RESULTS, table
from dmondrian.warmup import LAST

UNITS = (None, "auto")
SETS = [name for name in datasets.NAMES if "synthetic_d100" not in name]
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


def row_of(family: str, setting: str, data: Dataset, seeds: int, trees: int) -> list[str]:
    """Return the row of one set and one setting."""
    start, settings = FAMILIES[family]
    kind = getattr(dmondrian, start + ("Classifier" if data.is_classification else "Regressor"))
    plain, rounded = (
        np.array(
            [measure(kind, data, settings[setting], units, seed, trees) for seed in range(seeds)]
        )
        for units in UNITS
    )
    means = [found[:, 0].mean() for found in (plain, rounded)]
    apart, spread = np.abs(rounded[:, 0] - plain[:, 0]).max(), np.ptp(plain[:, 0])
    shown = [f"{value:.4f}" for value in (*means, apart, spread)]
    sizes = [f"{found[0, 1]:.0f}" for found in (plain, rounded)]
    return [data.name, setting, *shown, f"{100.0 * rounded[0, 2]:.0f} %", *sizes]


def tell(family: str, sets: list[Dataset], seeds: int, trees: int) -> str:
    """Measure one family on all sets; return its tables."""
    found: dict[str, list[list[str]]] = {"log loss": [], "R2": []}
    head = ("with", "float32", "rounded", "most apart", "seeds apart", "columns", "bytes", "then")
    for data in sets:
        if family == "generalized" and data.n_classes > 2:
            continue
        side = found["log loss" if data.is_classification else "R2"]
        for setting in FAMILIES[family][1]:
            side.append(row_of(family, setting, data, seeds, trees))
            print(family, *side[-1], flush=True)
    return "\n".join(table((title, *head), rows) for title, rows in found.items() if rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    datasets.add_arguments(parser, SETS)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    sets = [datasets.load(name, args.data, args.max_rows) for name in args.sets]
    RESULTS.mkdir(parents=True, exist_ok=True)
    for family in args.families:
        text = tell(family, sets, args.seeds, args.trees)
        name = "rounding.md" if family == "amf" else f"rounding_{family}.md"
        (RESULTS / name).write_text(text)
        print(text)


if __name__ == "__main__":
    main()
