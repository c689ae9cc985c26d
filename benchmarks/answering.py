"""How fast a trained forest answers, and how much memory it takes.

The same rows are learned and then predicted by `dmondrian` and by scikit-learn's random forest of
as many trees, in one process, taking turns. Three figures of each:

* a batch: rows x trees per second, all rows predicted, by one thread and by two;
* one row at a time: microseconds of `predict_proba` (`predict` for labels) of a forest at rest, and
  of `partial_fit`, which the random forest has not, in the first and the second half of a stream of
  8,000 rows; and of `predict_proba` where one row is learned
  between two that are asked about. Both take rows that are new, and in the second case a row is
  asked about before it is learned;
* bytes per node of the trees as they learn, with the frozen copies that predict, and as saved.

    python -m benchmarks.answering --data <folder>

The forests are given without feature scales, whose price does not grow with the rows. A workload is
kept in the results file until it is measured again.

Why the figures are what they are: a row mostly goes on to the heavier child of a node, so the flat
copies that predict lay nodes out along the heavier children and compare them by fours, and a tree
is read into the cache from end to end before many rows go through it. Where each row is learned
after it was predicted no copy is made. To learn a row is mostly to wait for memory, node after node
down a tree; nodes stay in the order in which they came. A box has two bounds of 16 bits for each
rounded column, and two bits for a column of two values; `feature_units=None` keeps bounds of 32
bits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from benchmarks.datasets import Dataset
from benchmarks.pages import Figure, Page, middle, publish, range_of, single
from benchmarks.records import RESULTS, Records, table
from benchmarks.throughput import WORKLOADS, spread, workload
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.checkpoint import encode_forest

SINGLE = 400  # calls of one row each
LESSONS = 8000  # rows learned one by one


def forests(dataset: Dataset, trees: int) -> dict[str, Any]:
    """Return forests that have learned the rows, by name."""
    classes = dataset.n_classes > 0
    kind, batch = (
        (AMFClassifier, RandomForestClassifier)
        if classes
        else (AMFRegressor, RandomForestRegressor)
    )
    own = kind(n_estimators=trees, random_state=0, feature_scales=None, n_jobs=1)
    given = {"classes": np.arange(dataset.n_classes)} if classes else {}
    own.partial_fit(dataset.X_train, dataset.y_train, **given)
    peer = batch(n_estimators=trees, random_state=0, n_jobs=1)
    return {"dmondrian": own, "random forest": peer.fit(dataset.X_train, dataset.y_train)}


def seconds(work: Callable[[], Any]) -> float:
    """Return the seconds that the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def batches(models: dict[str, Any], X: np.ndarray, threads: int, repeats: int) -> dict[str, list]:
    """Return the seconds of predicting all rows, by model and repeat."""
    found: dict[str, list] = {name: [] for name in models}
    for repeat in range(repeats + 1):  # the first compiles and freezes
        for name, model in models.items():
            model.set_params(n_jobs=threads)
            took = seconds(partial(asker(model), X))
            if repeat:
                found[name].append(took)
    return found


def asker(model: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return what a forest is asked by."""
    return model.predict_proba if hasattr(model, "predict_proba") else model.predict


def singles(work: Callable[[int], Any], first: int, last: int) -> float:
    """Return the median of the seconds of calls with one row, the first of which is not timed."""
    work(first)
    return statistics.median(seconds(lambda r=r: work(r)) for r in range(first + 1, last))


def between_lessons(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    """Return the median of the seconds to ask about a row, each of which is learned then."""
    ask, took = asker(model), []
    for r in range(len(X)):
        row = X[r : r + 1]
        took.append(seconds(lambda row=row: ask(row)))
        model.partial_fit(row, y[r : r + 1])
    return statistics.median(took)


def measure(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All figures of one workload; a record per model."""
    n_new = LESSONS + SINGLE
    dataset = workload(name, args.data, args.max_rows + n_new)
    X, y = dataset.X_train[:-n_new], dataset.y_train[:-n_new]
    new, labels = dataset.X_train[-n_new:], dataset.y_train[-n_new:]
    dataset, n = replace(dataset, X_train=X, y_train=y), len(X)
    models = forests(dataset, args.trees)
    own = models["dmondrian"]
    held = [own.forest_.n_bytes]
    times = {threads: batches(models, X, threads, args.repeats) for threads in (1, 2)}
    about = {"workload": name, "rows": n, "d": X.shape[1], "K": dataset.n_classes}
    records = []
    for label, model in models.items():
        model.set_params(n_jobs=1)
        record = {**about, "model": label, "trees": args.trees}
        for threads, found in times.items():
            rates = sorted(n * args.trees / took for took in found[label])
            ratios = sorted(
                peer / mine for mine, peer in zip(found[label], found["random forest"], strict=True)
            )
            record[f"rate_{threads}"] = [rates[0], statistics.median(rates), rates[-1]]
            record[f"ratio_{threads}"] = [ratios[0], statistics.median(ratios), ratios[-1]]
        ask = asker(model)
        record["ask_one"] = singles(lambda r, ask=ask: ask(X[r : r + 1]), 0, SINGLE)
        records.append(record)
    mine = records[0]
    held += [own.forest_.n_bytes, len(encode_forest(*own.forest_.stored()))]
    mine["bytes_per_node"] = [n_bytes / own.forest_.n_nodes for n_bytes in held]
    mine["learn_one"] = [
        singles(lambda r: own.partial_fit(new[r : r + 1], labels[r : r + 1]), first, last)
        for first, last in ((0, LESSONS // 2), (LESSONS // 2, LESSONS))
    ]
    mine["ask_between"] = between_lessons(own, new[LESSONS:], labels[LESSONS:])
    return records


def report(records: Records) -> str:
    """Markdown: a row per workload and model."""
    rows = [
        [
            *(r["workload"], r["rows"], r["d"], r["model"]),
            *(spread([v / 1e6 for v in r[f"rate_{threads}"]], ".1f") for threads in (1, 2)),
            *(spread(r[f"ratio_{threads}"], ".2f") for threads in (1, 2)),
            f"{1e6 * r['ask_one']:,.1f}",
            f"{1e6 * r['ask_between']:,.1f}" if "ask_between" in r else "-",
            " / ".join(f"{1e6 * took:,.1f}" for took in r.get("learn_one", [])) or "-",
            " / ".join(f"{v:.0f}" for v in r.get("bytes_per_node", [])) or "-",
        ]
        for r in sorted(records, key=lambda r: (WORKLOADS.index(r["workload"]), r["model"]))
    ]
    head = ["workload", "n", "d", "model", "batch, 1 thread", "2 threads", "ratio, 1 thread"]
    head += ["2 threads", "ask one row", "between lessons", "learn one row", "bytes per node"]
    return (
        "Batch: millions of rows x trees per second, median (least to greatest); ratio: over the "
        "random forest's rate in the same turn. One row: microseconds of a call, median; between "
        "lessons: to ask where a row is learned before each; learned: first / later half of them. "
        "Bytes per node: in memory as it learns / with frozen copies / as saved.\n\n"
        + table(head, rows)
    )


def across(key: str, form: str, scale: float = 1.0, place: int | None = None) -> Figure:
    """Return what finds the median over workloads of a figure of dmondrian's."""

    def find(records: Records) -> Any:
        found = records.where(model="dmondrian")
        values = [r[key] if place is None else r[key][place] for r in found]
        return middle([scale * value for value in values], form, found)

    return find


def bytes_of(workload: str, place: int) -> Figure:
    """Return what finds the bytes of a node: as trees learn, with flat copies, or as saved."""

    def find(records: Records) -> Any:
        record = records.only(model="dmondrian", workload=workload)
        return single(record["bytes_per_node"][place], ".0f", record)

    return find


def all_bytes(records: Records) -> Any:
    """Return the range of the bytes of a node as trees learn."""
    found = records.where(model="dmondrian")
    return range_of([r["bytes_per_node"][0] for r in found], ".0f", found)


PAGE = Page(
    title="Answers of trained forests, and memory",
    question="How fast does a trained forest predict, in batches and one row at a time, beside a"
    " random forest, and how many bytes does a node take?",
    identity=("workload", "model", "trees", "cpu"),
    body=report,
    numbers={
        "one_thread": across("ratio_1", ".1f", place=1),
        "two_threads": across("ratio_2", ".1f", place=1),
        "ask_one": across("ask_one", ".1f", 1e6),
        "ask_between": across("ask_between", ".0f", 1e6),
        "learn_one": across("learn_one", ".0f", 1e6, place=1),
        "bytes": all_bytes,
        "bytes_adult": bytes_of("adult", 0),
        "bytes_d20": bytes_of("synthetic_d20", 0),
        "saved_d20": bytes_of("synthetic_d20", 2),
    },
    sentences=(
        "A forest at rest predicts batches {one_thread} times as fast as a random forest with one"
        " thread and {two_threads} times with two (median over workloads, least to greatest).",
        "One row takes {ask_one} us to predict at rest, {ask_between} us where each row is learned"
        " after it was predicted, and {learn_one} us to learn.",
        "A node takes {bytes_d20} bytes with twenty numeric columns and {bytes_adult} with the"
        " one-hot columns of adult, whose bounds are bits.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder with one sub-folder of Parquet per real set")
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--max-rows", type=int, default=20_000, help="rows of each workload")
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "answering.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity)
    for name in args.workloads:
        for record in measure(name, args):
            records.add(record)
        print(f"{name}: done", file=sys.stderr)
    publish("answering", records)


if __name__ == "__main__":
    main()
