"""What a second level is worth: members that have the forecasts of others as columns.

The first level is `AMFClassifier` of ten members that follow the stream and mix boosted sets. It
forecasts rows in parts of ``--part`` rows before it learns them; the second level is the same
estimator, whose rows have these forecasts as columns more (of two classes that of the second).
Held-out rows are forecast by both levels as they are in the end, and by the mean of both; and by
one level of twice as many members, which costs as much.

    python -m benchmarks.levels --data <folder>
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.pages import Figure, Number, Page, publish, runs_of
from benchmarks.records import RESULTS, Records, table
from dmondrian import AMFClassifier

SETS = [
    "phishing", "bananas", "spambase", "satimage", "usps", "bank", "adult", "electricity",
    "synthetic_d100_k5", "synthetic_k26",
]  # fmt: skip
MEMBERS = 10
BOOSTED: dict[str, Any] = {
    "drift": "follow", "experts": ["mondrian", "boosted"], "random_state": 0,
}  # fmt: skip
HELD_OUT = ("one", "two", "mean of both", "twice the members")
PROGRESSIVE = ("progressive, one", "progressive, two")


def body(records: Records) -> str:
    """Return a row per set."""
    head = ["set", "rows", "classes", *HELD_OUT, *PROGRESSIVE, "times the seconds"]
    return table(head, [[record[name] for name in head] for record in records])


def ahead(first: str, second: str) -> Figure:
    """Return on how many sets the first loss is lower."""

    def find(records: Records) -> Number:
        found = list(records)
        if not found:
            raise LookupError("no set was measured")
        won = sum(record[first] < record[second] for record in found)
        return Number(f"{won} of {len(found)}", "", runs_of(found))

    return find


PAGE = Page(
    title="A second level",
    question="Do forecasts of members help as columns of a second level of members?",
    identity=("set",),
    body=body,
    numbers={
        "two": ahead("two", "one"),
        "mean": ahead("mean of both", "one"),
        "more": ahead("mean of both", "twice the members"),
        "before": ahead("progressive, two", "progressive, one"),
    },
    sentences=(
        "A second level has a lower held-out log loss than the first on {two} sets; of rows that"
        " are forecast and then learned on {before}. The mean of both is ahead of the first on"
        " {mean}, and of one level of twice as many members, which takes as long, on {more}.",
    ),
)


def log_loss(forecasts: np.ndarray, labels: np.ndarray) -> float:
    of_labels = forecasts[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(of_labels, np.finfo(np.float64).tiny)).mean())


def learn_in_parts(
    X: np.ndarray, y: np.ndarray, n_classes: int, part: int, members: int = MEMBERS
) -> tuple[AMFClassifier, np.ndarray]:
    """Return the estimator of all rows, and what it forecast of each part before it."""
    forest, classes = AMFClassifier(members, **BOOSTED), np.arange(n_classes)
    forecasts = np.full((len(y), n_classes), 1.0 / n_classes)
    for start in range(0, len(y), part):
        stop = start + part
        if start:
            forecasts[start:stop] = forest.predict_proba(X[start:stop])
        forest.partial_fit(X[start:stop], y[start:stop], classes=classes)
    return forest, forecasts


def beside(X: np.ndarray, forecasts: np.ndarray) -> np.ndarray:
    """Return rows with forecasts as columns more."""
    columns = forecasts[:, 1:] if forecasts.shape[1] == 2 else forecasts
    return np.hstack([X, columns.astype(np.float32)])


def measure(dataset: datasets.Dataset, part: int) -> dict[str, float]:
    """Return the losses of both levels, and how many times as long both take as one."""
    y, labels, n_classes = dataset.y_train, dataset.y_test, dataset.n_classes
    start = time.process_time()
    forest, before = learn_in_parts(dataset.X_train, y, n_classes, part)
    one = forest.predict_proba(dataset.X_test)
    between = time.process_time()
    forest, later = learn_in_parts(beside(dataset.X_train, before), y, n_classes, part)
    two = forest.predict_proba(beside(dataset.X_test, one))
    end = time.process_time()
    forest, _ = learn_in_parts(dataset.X_train, y, n_classes, part, 2 * MEMBERS)
    return {
        "one": log_loss(one, labels),
        "two": log_loss(two, labels),
        "mean of both": log_loss((one + two) / 2, labels),
        "twice the members": log_loss(forest.predict_proba(dataset.X_test), labels),
        "progressive, one": log_loss(before, y),
        "progressive, two": log_loss(later, y),
        "times the seconds": (end - start) / (between - start),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, SETS)
    parser.set_defaults(max_rows=10_000)
    parser.add_argument("--part", type=int, default=64, help="rows forecast at a time")
    args = parser.parse_args()
    records = Records(RESULTS / "levels.json", PAGE.identity, fresh=True)
    for name in args.sets:
        dataset = datasets.load(name, args.data, args.max_rows)
        learn_in_parts(dataset.X_train[:200], dataset.y_train[:200], dataset.n_classes, args.part)
        about = {"set": name, "rows": len(dataset.y_train), "classes": dataset.n_classes}
        records.add({**about, **measure(dataset, args.part)})
        print(*records.only(set=name).values(), flush=True)
    publish("levels", records)


if __name__ == "__main__":
    main()
