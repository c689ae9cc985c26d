"""What it costs a run to forecast each row just before it is learned, and what that is worth.

Three ways through the same rows, with the same trees: to learn them alone; to forecast each row
just before it is learned, as runs do, in one pass over each tree; and to predict slices of rows and
then learn them, as runs of earlier versions did, whose forecasts were made up to 4,096 rows before.
Rates are rows x trees per second of the processor's time, on one thread; the ways take turns, so
that a disturbance of the machine falls on all of them. Beside them are the progressive log losses,
or roots of the mean squared error.

The streams are ``classes`` and ``labels`` (10 uniform columns; two classes, by the mean of
five, every tenth label flipped; the same mean with noise) and, with ``--data``, ``electricity`` and
``covtype`` in the order of their files. Columns are scaled and rounded, as by default. The Mondrian
forest of classes is measured as ``predict_extension`` "leaf" and, by default, "expected" has it.

    python -m benchmarks.forecasts --data <folder>
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks import datasets
from benchmarks.pages import Number, Page, publish, range_of
from benchmarks.records import RESULTS, Records, table
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.prequential.forecast_lag import slices
from dmondrian.prequential.forecasts import forecast_and_learn_all, mean_over_trees

FORESTS: dict[str, dict[str, Any]] = {  # behind a comma: what parts it from others of its kind
    "amf-classifier": {},
    "amf-regressor": {},
    "mondrian-forest-classifier": {"aggregation": "hierarchy"},
    "mondrian-forest-classifier, expected": {
        "aggregation": "hierarchy",
        "expected_extension": True,
    },
    "mondrian-forest-regressor": {"aggregation": "mean"},
}
STREAMS = ("classes", "labels", "electricity", "covtype")
WAYS = ("learn", "forecast", "slices")
UNIT = 2.0**-14

Rows = tuple[np.ndarray, np.ndarray, int]


def stream(name: str, args: argparse.Namespace) -> Rows:
    """Return rows float32 [n, d] in [0, 1], labels or class indices float64 [n], and classes."""
    n = args.max_rows
    if name in ("classes", "labels"):
        draw = np.random.default_rng(datasets.SEED)
        X = draw.random((n, 10), dtype=np.float32)
        mean = X[:, :5].mean(axis=1)
        if name == "labels":
            return X, mean + draw.normal(0.0, 0.1, n), 0
        return X, ((mean > 0.5) ^ (draw.random(n) < 0.1)).astype(np.float64), 2
    if name == "electricity":
        frame = pq.read_table(Path(args.data) / name).to_pandas().head(n)
        X = frame.drop(columns="class").to_numpy(np.float64)
        y = np.unique(frame["class"], return_inverse=True)[1]
    else:
        dataset = datasets.stored(name, args.data, n)
        X, y = dataset.X_train, dataset.y_train
    low, high = X.min(axis=0), X.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    return ((X - low) / span).astype(np.float32), y.astype(np.float64), int(y.max()) + 1


def learn(forest: Ensemble, X: np.ndarray, y: np.ndarray) -> None:
    """Learn the rows alone."""
    forest.update(X, y)


def forecast(forest: Ensemble, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Forecast each row just before it is learned; return the forecasts."""
    trees = len(forest.trees)
    reported = forecast_and_learn_all(forest, X, y, position=0, n_trees=trees)
    return mean_over_trees(reported.sums, trees)


def by_slices(forest: Ensemble, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Predict rows slice by slice, and then learn them; return the forecasts."""
    reported = []
    for start, stop in slices(0, len(y)):
        reported.append(forest.predict_sums(X[start:stop]).mean)
        forest.update(X[start:stop], y[start:stop])
    return np.concatenate(reported)


def loss_of(reported: np.ndarray, y: np.ndarray, n_classes: int) -> float:
    """Return the log loss, or the root of the mean squared error; without the first row."""
    if not n_classes:
        return float(np.sqrt(((reported[1:, 0] - y[1:]) ** 2).mean()))
    share = reported[np.arange(len(y)), y.astype(np.int64)]
    return float(-np.log(np.clip(share[1:], 1e-15, 1.0)).mean())


def measure(name: str, forest_name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the record of one forest on one stream."""
    X, y, n_classes = stream(name, args)
    d = X.shape[1]
    scales = {"feature_scales": (1.0,) * d, "feature_units": (UNIT,) * d}
    kind = forest_name.partition(",")[0]
    its = ForestParameters(kind, d, n_classes, datasets.SEED, **scales, **FORESTS[forest_name])
    ways: dict[str, Callable[..., Any]] = dict(zip(WAYS, (learn, forecast, by_slices), strict=True))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    losses = {}
    for way in ways.values():
        way(Ensemble(its, range(2)), X[:500], y[:500])  # compiles
    for _ in range(args.repeats):
        for label, way in ways.items():
            forest, began = Ensemble(its, range(args.trees)), time.process_time()
            reported = way(forest, X, y)
            seconds[label].append(time.process_time() - began)
            if reported is not None:
                losses[label] = loss_of(reported, y, n_classes)
    rates = {way: len(y) * args.trees / statistics.median(seconds[way]) for way in WAYS}
    per_turn = zip(seconds["forecast"], seconds["slices"], strict=True)
    saved = statistics.median(one / other for one, other in per_turn)
    return {
        "stream": name, "forest": forest_name, "rows": len(y), "trees": args.trees, "K": n_classes,
        "repeats": args.repeats, "rates": rates, "losses": losses, "of_slices": saved,
    }  # fmt: skip


def report(records: Records) -> str:
    """Markdown: a row per stream and forest."""
    rows = [
        [
            *(r["stream"], r["forest"], f"{r['rows']:,}"),
            *(f"{r['rates'][way] / 1000:,.0f}" for way in WAYS),
            f"{r['rates']['learn'] / r['rates']['forecast']:.2f}",
            f"{r['of_slices']:.2f}",
            *(f"{r['losses'][way]:.4f}" for way in WAYS[1:]),
        ]
        for r in sorted(records, key=lambda r: (STREAMS.index(r["stream"]), r["forest"]))
    ]
    head = ["stream", "forest", "rows", "learn", "forecast each row, learn", "slices"]
    head += ["time, over learning alone", "time, over slices", "loss", "loss by slices"]
    turns = sorted({f"{r['trees']} trees, {r['repeats']} turns" for r in records})
    return (
        "Thousands of rows x trees per second of processor time, one thread; "
        f"{', '.join(turns)}, medians.\n\n" + table(head, rows)
    )


def over_learning(records: Records) -> Number:
    """Return the range of the time of learning with forecasts over that of learning alone."""
    found = list(records)
    return range_of([r["rates"]["learn"] / r["rates"]["forecast"] for r in found], ".1f", found)


def over_slices(records: Records) -> Number:
    """Return the range of the time of learning with forecasts over that of slices."""
    return range_of([r["of_slices"] for r in records], ".2f", list(records))


PAGE = Page(
    title="Forecasts of each row",
    question="What does it cost a run to forecast each row just before it is learned, and what are"
    " such forecasts worth?",
    identity=("stream", "forest", "rows", "trees", "cpu"),
    body=report,
    numbers={"over_learning": over_learning, "over_slices": over_slices},
    sentences=(
        "With forecasts, learning takes {over_learning} times as long as alone, and {over_slices}"
        " times as long as predicting slices of rows first.",
        "Where a stream is ordered, as electricity and covtype in the order of their files, the"
        " loss of slices is far above that of forecasts made just before each row; on shuffled"
        " rows both are nearly equal.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder with one sub-folder of Parquet per real set")
    parser.add_argument("--streams", nargs="+", default=STREAMS, choices=STREAMS)
    parser.add_argument("--max-rows", type=int, default=100_000)
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "forecasts.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity)
    for name in args.streams:
        if name in STREAMS[2:] and args.data is None:
            print(f"{name}: left out, no --data", file=sys.stderr)
            continue
        for forest_name in FORESTS:
            if forest_name.endswith("regressor") == (name == "labels"):
                records.add(measure(name, forest_name, args))
                print(f"{name}, {forest_name}: done", file=sys.stderr)
    publish("forecasts", records)


if __name__ == "__main__":
    main()
