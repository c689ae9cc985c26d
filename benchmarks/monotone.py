"""What it costs that forecasts rise with some columns, as users of a model may have to show.

`AMFClassifier` and `AMFRegressor` of ten members that follow the stream and mix boosted sets and
scaled trees, LightGBM and scikit-learn's histogram boosting, each with its defaults, learn the same
rows without constraints, then with those of ``COLUMNS``, which were chosen by what the columns
mean. Held-out rows are forecast once; then some of them with other values of a constrained column,
from its least to its greatest in the training rows: forecasts that fall on the way are broken.
LightGBM is left out where it is not installed (``pip install lightgbm``).

    python -m benchmarks.monotone --data <folder>
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from benchmarks import datasets
from benchmarks.datasets import Dataset
from benchmarks.pages import Number, Page, publish, range_of, runs_of
from benchmarks.records import RESULTS, Records, table
from dmondrian import AMFClassifier, AMFRegressor

COLUMNS: dict[str, tuple[str | int, ...]] = {
    "adult": ("capital-gain", "hours-per-week"),
    "bank": ("duration",),
    "churn": ("Day Mins", "CustServ Calls"),
    "electricity": ("nswprice",),
    "california_housing": ("medianIncome",),
    "nyc_green_taxi": ("trip_distance", "fare_amount"),
    "friedman1": (3, 4),
}
MEMBERS, ASKED, STEPS = 10, 200, 40
LEAST = 1e-9  # of a fall that counts
FOLLOW: dict[str, Any] = {
    "drift": "follow", "delay": 64, "experts": ["mondrian", "boosted", "scaled"], "random_state": 0,
}  # fmt: skip
OURS, LIGHTGBM, HISTOGRAM = "dmondrian", "LightGBM", "hist boosting"
MODELS = (OURS, LIGHTGBM, HISTOGRAM)


def model_of(name: str, is_classification: bool, directions: list[int] | None) -> Any:
    """Return an unfitted model, or None where its library is not installed."""
    if name == OURS:
        kind: Any = AMFClassifier if is_classification else AMFRegressor
        return kind(MEMBERS, **FOLLOW, monotonic_cst=directions)
    if name == HISTOGRAM:
        kind = (
            HistGradientBoostingClassifier if is_classification else HistGradientBoostingRegressor
        )
        return kind(early_stopping=False, random_state=0, monotonic_cst=directions)
    if importlib.util.find_spec("lightgbm") is None:
        print("LightGBM: left out, it is not installed", file=sys.stderr)
        return None
    import lightgbm

    kind = lightgbm.LGBMClassifier if is_classification else lightgbm.LGBMRegressor
    return kind(n_jobs=1, verbose=-1, monotone_constraints=directions)


def forecasts(model: Any, X: np.ndarray) -> np.ndarray:
    """Return means, or probabilities of the second class."""
    found: np.ndarray = (
        model.predict_proba(X)[:, 1] if hasattr(model, "predict_proba") else model.predict(X)
    )
    return found


def score(found: np.ndarray, dataset: Dataset) -> float:
    """Return the log loss of two classes, or R2 of numbers."""
    y = dataset.y_test
    if dataset.is_classification:
        likely = np.where(y == 1, found, 1.0 - found)
        return float(-np.log(np.maximum(likely, np.finfo(np.float64).tiny)).mean())
    return float(1.0 - ((found - y) ** 2).mean() / y.var())


def broken(model: Any, dataset: Dataset, places: list[int]) -> float:
    """Return the share of steps along constrained columns at which a forecast falls."""
    rows, n_falls, n_steps = dataset.X_test[:ASKED], 0, 0
    for place in places:
        X = np.repeat(rows, STEPS, 0)
        X[:, place] = np.tile(np.linspace(0.0, 1.0, STEPS, dtype=np.float32), len(rows))
        steps = np.diff(forecasts(model, X).reshape(len(rows), STEPS), axis=1)
        n_falls, n_steps = n_falls + int((steps < -LEAST).sum()), n_steps + steps.size
    return n_falls / n_steps


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the record of a set."""
    dataset = datasets.load(name, args.data, args.max_rows)
    places = [
        each if isinstance(each, int) else datasets.place_of(name, args.data, each)
        for each in COLUMNS[name]
    ]
    directions = [int(j in places) for j in range(dataset.X_train.shape[1])]
    record: dict[str, Any] = {
        "set": name, "rows": len(dataset.y_train), "classes": dataset.n_classes,
        "columns": [f"column {each}" if isinstance(each, int) else each for each in COLUMNS[name]],
    }  # fmt: skip
    for model_name in MODELS:
        for key, given in (("free", None), ("bound", directions)):
            model = model_of(model_name, dataset.is_classification, given)
            if model is None:
                continue
            start = time.process_time()
            model.fit(dataset.X_train, dataset.y_train)
            record[f"{model_name}, {key}"] = {
                "seconds": time.process_time() - start,
                "score": score(forecasts(model, dataset.X_test), dataset),
                "broken": broken(model, dataset, places),
            }
    return record


def body(records: Records) -> str:
    """Return a row for each set and model."""
    rows = []
    for record in records:
        for name in MODELS:
            free, bound = (record.get(f"{name}, {key}") for key in ("free", "bound"))
            if free and bound:
                rows.append([
                    record["set"], ", ".join(record["columns"]), name,
                    "log loss" if record["classes"] else "R2",
                    f"{free['score']:.4f}", f"{bound['score']:.4f}",
                    f"{free['broken']:.1%}", f"{bound['broken']:.1%}",
                    f"{bound['seconds'] / free['seconds']:.2f}",
                ])  # fmt: skip
    head = ["set", "rise with", "model", "score", "free", "bound", "broken, free", "broken, bound"]
    return table([*head, "times the seconds"], rows)


def gains(name: str) -> Callable[[Records], Number]:
    """Return what finds the range of log loss over that without constraints, in percent."""

    def find(records: Records) -> Number:
        used = [r for r in records if r["classes"] and f"{name}, bound" in r]
        both = [(r[f"{name}, bound"]["score"], r[f"{name}, free"]["score"]) for r in used]
        return range_of([100.0 * (bound / free - 1.0) for bound, free in both], "+.1f", used)

    return find


def losses(name: str) -> Callable[[Records], Number]:
    """Return what finds the range of what constraints take from R2."""

    def find(records: Records) -> Number:
        used = [r for r in records if not r["classes"] and f"{name}, bound" in r]
        both = [(r[f"{name}, bound"]["score"], r[f"{name}, free"]["score"]) for r in used]
        return range_of([bound - free for bound, free in both], "+.4f", used)

    return find


def kept(name: str) -> Callable[[Records], Number]:
    """Return on how many sets no forecast falls."""

    def find(records: Records) -> Number:
        used = [r for r in records if f"{name}, bound" in r]
        if not used:
            raise LookupError("no set was measured")
        n = sum(r[f"{name}, bound"]["broken"] == 0.0 for r in used)
        return Number(f"{n} of {len(used)}", "", runs_of(used))

    return find


PAGE = Page(
    title="Monotone constraints",
    question="What does it cost that forecasts rise with some columns?",
    identity=("set",),
    body=body,
    numbers={
        "kept": kept(OURS),
        "gain": gains(OURS),
        "gain_lightgbm": gains(LIGHTGBM),
        "r2": losses(OURS),
        "r2_lightgbm": losses(LIGHTGBM),
    },
    sentences=(
        "With `monotonic_cst` no forecast falls along a constrained column on {kept} sets.",
        "The log loss changes by {gain} %, that of LightGBM by {gain_lightgbm} %.",
        "R2 changes by {r2}, that of LightGBM by {r2_lightgbm}.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, list(COLUMNS))
    args = parser.parse_args()
    records = Records(RESULTS / "monotone.json", PAGE.identity, fresh=True)
    for name in args.sets:
        records.add(measure(name, args))
        print(records.only(set=name), file=sys.stderr, flush=True)
    publish("monotone", records)


if __name__ == "__main__":
    main()
