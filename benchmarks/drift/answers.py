"""What forests that follow the stream cost when they are asked, beside boosting and a forest.

Ten members, with boosted sets and scaled trees, LightGBM and a random forest of a hundred trees,
each with its defaults, learn the same rows and predict others, one thread of each, in turns. Ours
once more in a process without the flat copies that answer many rows (``DMONDRIAN_WITHOUT=flat``).
Then a boosted set alone beside LightGBM of as many trees and leaves. LightGBM is left out where it
is not installed (``pip install lightgbm``).

    python -m benchmarks.drift.answers --data <folder>

Figures are the least processor seconds of the turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from benchmarks import datasets
from benchmarks.datasets import Dataset
from benchmarks.drift.learners import SCALED
from benchmarks.pages import Number, Page, publish, range_of
from benchmarks.records import RESULTS, Records, table
from dmondrian import AMFClassifier
from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.boosting.boosted_stream import settings_of
from dmondrian.tree.box_encoding import read_only

SETS = ["adult", "bank", "satimage", "covtype"]
MEMBERS, PEER_TREES = 10, 100
IDENTITY = ("set",)
MODELS = {
    "following": "ten members",
    "without_flat": "without flat copies",
    "forest": "random forest",
    "lightgbm": "LightGBM",
    "set": "boosted set",
    "lightgbm_alike": "LightGBM, as many",
}

Ask = Callable[[np.ndarray], Any]


def following(dataset: Dataset) -> Ask:
    """Return what asks ten members that have learned the training rows."""
    settings = {**SCALED, "delay": 1, "random_state": 0, "n_jobs": 1}
    model = AMFClassifier(MEMBERS, **settings).fit(dataset.X_train, dataset.y_train)
    return model.predict_proba


def boosted(dataset: Dataset) -> tuple[BoostedSet, int, int]:
    """Return a set fitted to the training rows, its rounds and leaves."""
    its = settings_of(dataset.n_classes)
    y, w = dataset.y_train.astype(np.float64), np.ones(len(dataset.y_train))
    made = BoostedSet.fit(dataset.X_train, read_only(y), read_only(w), dataset.n_classes, its)
    return made, made.n_rounds, its.n_leaves


def lightgbm_of(dataset: Dataset, n_rounds: int, **others: Any) -> Ask | None:
    """Return what asks LightGBM, or None where it is not installed."""
    if importlib.util.find_spec("lightgbm") is None:
        print("LightGBM: left out, it is not installed", file=sys.stderr)
        return None
    import lightgbm

    model = lightgbm.LGBMClassifier(n_estimators=n_rounds, n_jobs=1, verbose=-1, **others)
    model.fit(dataset.X_train, dataset.y_train)
    return lambda X: model.predict_proba(X, num_threads=1)


def in_turns(models: dict[str, Ask], X: np.ndarray, repeats: int) -> dict[str, float]:
    """Return the least microseconds of a row of each; the first turn makes what is kept."""
    found = dict.fromkeys(models, np.inf)
    for turn in range(repeats + 1):
        for name, ask in models.items():
            start = time.process_time()
            ask(X)
            took = 1e6 * (time.process_time() - start) / len(X)
            found[name] = min(found[name], took) if turn else np.inf
    return found


def without_flat(name: str, args: argparse.Namespace) -> float:
    """Return the microseconds of a row of ten members in a process without flat copies."""
    options = {"--data": args.data, "--max-rows": args.max_rows, "--repeats": args.repeats}
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    command = [sys.executable, "-m", "benchmarks.drift.answers", "--sets", name, *given, "--alone"]
    environment = {**os.environ, "DMONDRIAN_WITHOUT": "flat"}
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return float(json.loads(printed))


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the record of a set."""
    dataset = datasets.load(name, args.data, args.max_rows)
    X = dataset.X_test
    peer = RandomForestClassifier(PEER_TREES, random_state=0, n_jobs=1)
    peer.fit(dataset.X_train, dataset.y_train)
    boosting, n_rounds, n_leaves = boosted(dataset)
    models: dict[str, Ask | None] = {
        "following": following(dataset),
        "forest": peer.predict_proba,
        "lightgbm": lightgbm_of(dataset, PEER_TREES),
        "set": boosting.answer,
        "lightgbm_alike": lightgbm_of(dataset, n_rounds, num_leaves=n_leaves, learning_rate=0.2),
    }
    found = in_turns({n: ask for n, ask in models.items() if ask is not None}, X, args.repeats)
    found["without_flat"] = without_flat(name, args)
    sizes = {"rows": len(dataset.y_train), "asked": len(X), "d": X.shape[1]}
    trees = {"K": dataset.n_classes, "trees": len(boosting.trees.outputs), "leaves": n_leaves}
    return {"set": name, **sizes, **trees, "us": found}


def body(records: Records) -> str:
    """Return the table of all sets."""
    rows = [
        [
            *(r[key] for key in ("set", "rows", "asked", "d", "K")),
            *(f"{r['us'][name]:.1f}" if name in r["us"] else "-" for name in MODELS),
            f"{r['trees']} of {r['leaves']}",
        ]
        for r in records
    ]
    head = ["set", "rows learned", "asked", "d", "K", *MODELS.values(), "trees of the set"]
    note = (
        "Processor microseconds of a row, all asked at once; the least of the turns. The last"
        " LightGBM has as many trees and leaves as the boosted set, one of those that members mix."
    )
    return "\n\n".join([note, table(head, rows)])


def ratio(over: str, under: str) -> Callable[[Records], Number]:
    """Return what finds the range over sets of the time of one model over that of another."""

    def find(records: Records) -> Number:
        used = [r for r in records if {over, under} <= set(r["us"])]
        return range_of([r["us"][over] / r["us"][under] for r in used], ".2f", used)

    return find


PAGE = Page(
    title="Answers of forests that follow the stream",
    question="What do forests that follow the stream cost when they are asked?",
    identity=IDENTITY,
    body=body,
    numbers={
        "flat": ratio("without_flat", "following"),
        "lightgbm": ratio("following", "lightgbm"),
        "forest": ratio("following", "forest"),
        "set": ratio("set", "lightgbm_alike"),
    },
    sentences=(
        "Where many rows are asked at once, flat copies of trees answer them {flat} times as fast.",
        "Ten members with boosted sets and scaled trees take {lightgbm} times as long as LightGBM"
        " and {forest} times as long as a random forest of a hundred trees, with their defaults.",
        "A boosted set takes {set} times as long as LightGBM of as many trees and leaves.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, SETS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="print the time of ten members alone")
    args = parser.parse_args()
    if args.alone:
        dataset = datasets.load(args.sets[0], args.data, args.max_rows)
        times = in_turns({"following": following(dataset)}, dataset.X_test, args.repeats)
        print(json.dumps(times["following"]))
        return
    records = Records(RESULTS / "drift_answers.json", IDENTITY)
    for name in args.sets:
        found = measure(name, args)
        records.add(found)
        print(f"{name}: {json.dumps(found['us'])}", file=sys.stderr, flush=True)
    publish("drift.answers", records)


if __name__ == "__main__":
    main()
