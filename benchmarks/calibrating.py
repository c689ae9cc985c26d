"""What calibration along the way costs: processor seconds of `AMFClassifier` with and without it.

`calibrate="auto"`, the default, forecasts rows of a sample before they are learned: all of the
first 1,024, then 1,024 of each doubling. So the price is the larger the shorter a stream is, and
the less a row costs to learn. Forests learn a set's training rows by one call to `fit`; or rows of
``--single`` come one by one to `partial_fit`, behind those before them. Settings are not searched,
which costs the same either way. Both take turns, each after a run that is not timed; a ratio is of
the least times of ``--repeats`` turns.

    python -m benchmarks.calibrating --data <folder>
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.datasets import Dataset
from benchmarks.pages import Page, cell, publish
from benchmarks.records import RESULTS, Records, tabled
from dmondrian import AMFClassifier

SETS = ["bank", "satimage", "bananas"]
TREES = (10, 100)
SINGLE = (3_000, 9_000, 20_000)
PLAIN: dict[str, Any] = {
    "alpha": 0.1, "charge_opening": False, "feature_scales": None, "feature_units": None,
    "random_state": 0,
}  # fmt: skip
HEAD = ["calibrated", "uncalibrated", "ratio"]
FITS = ["set", "rows", "columns", "classes", "trees", *HEAD]
ROWS = ["set", "from row", "to row", *HEAD]

PAGE = Page(
    title="What calibration costs",
    question="How much longer does a forest learn that calibrates its probabilities?",
    identity=("part",),
    numbers={
        "bank": cell("fit", {"set": "bank", "trees": 10}, "ratio", ".2f"),
        "satimage": cell("fit", {"set": "satimage", "trees": 10}, "ratio", ".2f"),
        "bananas": cell("fit", {"set": "bananas", "trees": 10}, "ratio", ".2f"),
        "early": cell("single", {"from row": SINGLE[0]}, "ratio", ".2f"),
        "later": cell("single", {"from row": SINGLE[1]}, "ratio", ".2f"),
    },
    sentences=(
        "A `fit` of ten trees takes {bank} times as long on bank, {satimage} times on satimage and"
        " {bananas} times on bananas, of which most rows are forecast and few columns make"
        " learning cheap.",
        "Rows that come one by one take {early} times as long where a quarter of them is forecast,"
        " and {later} times later.",
    ),
)


def processor_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def least(calibrated: Callable[[], float], plain: Callable[[], float], repeats: int) -> list[float]:
    """Return the least seconds of both, which take turns, and their ratio."""
    calibrated(), plain()  # kernels, memory
    both = [(calibrated(), plain()) for _ in range(repeats)]
    first, second = (min(seconds) for seconds in zip(*both, strict=True))
    return [first, second, first / second]


def fit_seconds(dataset: Dataset, trees: int, calibrate: Any) -> float:
    forest = AMFClassifier(trees, calibrate=calibrate, **PLAIN)
    return processor_seconds(lambda: forest.fit(dataset.X_train, dataset.y_train))


def row_microseconds(dataset: Dataset, first: int, last: int, calibrate: Any) -> float:
    """Return the processor microseconds of each row that comes alone to ten trees."""
    X, y = dataset.X_train, dataset.y_train
    forest = AMFClassifier(TREES[0], calibrate=calibrate, **PLAIN)
    forest.partial_fit(X[:first], y[:first], classes=np.arange(dataset.n_classes))
    rows = [(X[r : r + 1], y[r : r + 1]) for r in range(first, last)]

    def learn() -> None:
        for row, label in rows:
            forest.partial_fit(row, label)

    return 1e6 * processor_seconds(learn) / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, SETS)
    parser.add_argument("--trees", type=int, nargs="+", default=TREES)
    parser.add_argument("--single", type=int, nargs="+", default=SINGLE, help="ends of parts")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    records = Records(RESULTS / "calibrating.json", PAGE.identity)
    fits: list[list[Any]] = []
    for name in args.sets:
        dataset = datasets.load(name, args.data, args.max_rows)
        about = [name, *dataset.X_train.shape, dataset.n_classes]
        for trees in args.trees:
            found = least(
                partial(fit_seconds, dataset, trees, "auto"),
                partial(fit_seconds, dataset, trees, False),
                args.repeats if trees < TREES[-1] else max(args.repeats // 3, 1),
            )
            fits.append([*about, trees, *found])
            print(*fits[-1], flush=True)
    note = "Processor seconds of a fit; the least."
    records.add(tabled("fit", "All rows in one call", FITS, fits, note, digits=3))
    dataset, single = datasets.load(args.sets[0], args.data, args.max_rows), []
    for first, last in pairwise(args.single):
        found = least(
            partial(row_microseconds, dataset, first, last, "auto"),
            partial(row_microseconds, dataset, first, last, False),
            args.repeats,
        )
        single.append([args.sets[0], first, last, *found])
        print(*single[-1], flush=True)
    note = "Processor microseconds of a row, ten trees; the least of the means."
    records.add(tabled("single", "Rows that come one by one", ROWS, single, note, digits=2))
    publish("calibrating", records)


if __name__ == "__main__":
    main()
