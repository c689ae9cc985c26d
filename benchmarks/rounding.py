"""What does rounding columns cost, and save? Held-out log loss or R2, and bytes per node.

AMF with default settings and ten trees, scales learned or none. *float32* is
``feature_units=None``, *rounded* the default, ``feature_units="auto"``: means over the seeds, and
the largest difference that rounding makes to one seed beside that which seeds make. Then how many
of the columns of more than two values are rounded, and the words and boxes of a node.

    python -m benchmarks.rounding --data <folder> --max-rows 20000
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks import datasets
from benchmarks.datasets import Dataset
from benchmarks.metrics import classification, regression
from benchmarks.records import RESULTS, table
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.warmup import LAST

UNITS = (None, "auto")
SETS = [name for name in datasets.NAMES if "synthetic_d100" not in name]


def measure(
    data: Dataset, scales: str | None, units: str | None, seed: int, trees: int
) -> tuple[float, float, float]:
    """Return the held-out loss or R2, bytes per node, and which part of the columns is rounded.

    Columns of two values are left out: boxes write them as bits.
    """
    kind = AMFClassifier if data.is_classification else AMFRegressor
    rows = min(LAST, 2 * len(data.y_train) // 3)
    given = {"feature_scales": scales, "warmup_rows": rows, "random_state": seed}
    forest = kind(trees, feature_units=units, **given).fit(data.X_train, data.y_train)
    if data.is_classification:
        score = classification(data.y_test, forest.predict_proba(data.X_test))["log_loss"]
    else:
        score = regression(data.y_test, forest.predict(data.X_test))["r2"]
    tree = forest.forest_.trees[0]
    held = sum(array[:1].nbytes for array in (tree.i, tree.box, tree.bits))
    wide = np.array([len(np.unique(column)) > 2 for column in data.X_train.T])
    return score, float(held), float(np.mean(forest.feature_units_[wide] > 0.0))


def row_of(data: Dataset, scales: str | None, seeds: int, trees: int) -> list[str]:
    """Return the row of one set."""
    plain, rounded = (
        np.array([measure(data, scales, units, seed, trees) for seed in range(seeds)])
        for units in UNITS
    )
    means = [kind[:, 0].mean() for kind in (plain, rounded)]
    apart, spread = np.abs(rounded[:, 0] - plain[:, 0]).max(), np.ptp(plain[:, 0])
    shown = [f"{value:.4f}" for value in (*means, apart, spread)]
    sizes = [f"{kind[0, 1]:.0f}" for kind in (plain, rounded)]
    return [data.name, scales or "none", *shown, f"{100.0 * rounded[0, 2]:.0f} %", *sizes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    datasets.add_arguments(parser, SETS)
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, list[list[str]]] = {"log_loss": [], "r2": []}
    head = ("scales", "float32", "rounded", "most apart", "seeds apart", "columns", "bytes", "then")
    for name in args.sets:
        data = datasets.load(name, args.data, args.max_rows)
        side = "log_loss" if data.is_classification else "r2"
        for scales in (None, "learned"):
            found[side].append(row_of(data, scales, args.seeds, args.trees))
            print(found[side][-1], flush=True)
    titles = {"log_loss": "log loss", "r2": "R2"}
    text = "\n".join(table((titles[side], *head), rows) for side, rows in found.items() if rows)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "rounding.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
