"""What does rounding columns cost? Held-out log loss or R2, and bytes per node, by number of steps.

AMF with default settings and ten trees, scales learned or none. *float32* is
``feature_units=None``; *default* is ``feature_units="auto"``, whose units are a 2^14th of the
range of the first rows at most; other numbers of steps are tried beside it, fewer of which would
do for boxes of 8 bits. Means over the seeds, and the largest difference that the default makes to
any seed.

    python -m benchmarks.rounding --data <folder> --max-rows 20000
"""

from __future__ import annotations

import argparse
from unittest import mock

import numpy as np

from benchmarks import datasets
from benchmarks.datasets import Dataset
from benchmarks.metrics import classification, regression
from benchmarks.records import RESULTS, table
from dmondrian import AMFClassifier, AMFRegressor, units
from dmondrian.warmup import LAST

STEPS = (14, 11, 8, 6)  # log2; the first is the default's
SETS = [name for name in datasets.NAMES if "synthetic_d100" not in name]


def measure(
    data: Dataset, scales: str | None, steps: int | None, seed: int, trees: int
) -> tuple[float, float, float]:
    """Return the held-out loss or R2, bytes per node, and which part of the columns is rounded.

    Columns of two values are left out: boxes write them as bits.
    """
    kind = AMFClassifier if data.is_classification else AMFRegressor
    rows = min(LAST, 2 * len(data.y_train) // 3)
    given = {"feature_scales": scales, "warmup_rows": rows, "random_state": seed}
    with mock.patch.object(units, "_STEPS", steps or 14):
        forest = kind(trees, feature_units="auto" if steps else None, **given)
        forest.fit(data.X_train, data.y_train)
    if data.is_classification:
        score = classification(data.y_test, forest.predict_proba(data.X_test))["log_loss"]
    else:
        score = regression(data.y_test, forest.predict(data.X_test))["r2"]
    tree = forest.forest_.trees[0]
    held = sum(array[:1].nbytes for array in (tree.i, tree.box, tree.bits))
    wide = np.array([len(np.unique(column)) > 2 for column in data.X_train.T])
    return score, float(held), float(np.mean(forest.feature_units_[wide] > 0.0))


def row_of(data: Dataset, scales: str | None, seeds: int, trees: int) -> list[float | str | None]:
    """Return the row of one set."""
    told = {
        steps: np.array([measure(data, scales, steps, seed, trees) for seed in range(seeds)])
        for steps in (None, *STEPS)
    }
    plain, default = told[None], told[STEPS[0]]
    means = [float(told[steps][:, 0].mean()) for steps in (None, *STEPS)]
    apart = np.abs(default[:, 0] - plain[:, 0]).max()
    sizes = [f"{kind[0, 1]:.0f}" for kind in (plain, default)]
    spread = plain[:, 0].max() - plain[:, 0].min()
    rounded = f"{100.0 * default[0, 2]:.0f} %"
    shown = [f"{value:.4f}" for value in (*means, apart, spread)]
    return [data.name, "learned" if scales else "none", *shown, rounded, *sizes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    datasets.add_arguments(parser, SETS)
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, list[list[float | str | None]]] = {"log_loss": [], "r2": []}
    head = ("scales", "float32", "default", *(f"2^{steps} steps" for steps in STEPS[1:]))
    beside = ("default, most apart", "seeds apart", "rounded", "bytes per node", "default")
    for name in args.sets:
        data = datasets.load(name, args.data, args.max_rows)
        side = "log_loss" if data.is_classification else "r2"
        for scales in (None, "learned"):
            found[side].append(row_of(data, scales, args.seeds, args.trees))
            print(found[side][-1], flush=True)
    titles = {"log_loss": "log loss", "r2": "R2"}
    text = "\n".join(
        table((titles[side], *head, *beside), rows) for side, rows in found.items() if rows
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "rounding.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
