"""Measure encodings: indicators of 1, or 1 / their number; times as numbers, or on circles.

A Mondrian tree splits columns in proportion to their ranges, so the size of one-hot
indicators decides how often categories are split. Trains on adult's official split, as the
data layer encodes it: held-out log loss and AUC for indicators of 1, of 1 / sqrt(levels) and of
1 / levels (the encoding of dmondrian.data).

Texts are drawn: ten of 400 words a row, the first ones often, thirty of which make one of two
classes more or less likely; beside them is a column of noise. Words are hashed to 256 features.

Times are drawn where circles should help: an hour each of three years, with labels that depend on
how far the time is from midnight, from the weekend and from New Year. Of the real sets, electricity
is in half hours from 7 May 1996 on, which is its time in place of `date`, `day` and `period`; the
taxi trips have the time at which they began. Rows are forecast by forests that have learned those
before, a block at a time. Circles have the range of the numbers that they
replace, beside them are some of twice the size.

    python -m benchmarks.encoding [--trees 10] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.pages import Page, cell, publish
from benchmarks.records import RESULTS, Records, tabled
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.data import make_plan, make_scoring_plan, read_block

BLOCK = 96  # rows that are forecast at a time
ADULT = Path(__file__).parents[1] / "jobs" / "data" / "adult"
DRAWN, ELECTRICITY, TAXI = "drawn", "electricity", "taxi trips"
PLAIN, BOOSTED = "AMF", "AMF, following, with boosted sets"
FOREST = "random forest of 100"

PAGE = Page(
    title="Encoding of categories, words and times",
    question="How large should the indicator of a category, or of a word, be, beside numeric"
    " columns on the unit interval; and should parts of the calendar be numbers or circles?",
    identity=("part",),
    numbers={
        "ones": cell("adult", {"indicator": "1"}, "log loss", ".3f"),
        "shares": cell("adult", {"indicator": "1 / levels"}, "log loss", ".3f"),
        "words": cell(
            "texts", {"learner": BOOSTED, "indicator": "1 / features"}, "log loss", ".3f"
        ),
        "plain_words": cell(
            "texts", {"learner": PLAIN, "indicator": "1 / features"}, "log loss", ".3f"
        ),
        "forest_words": cell("texts", {"learner": FOREST, "indicator": "1"}, "log loss", ".3f"),
        **{
            f"{name}_{kind}": cell("times", {"set": set_, "times": kind}, "loss", ".4f")
            for name, set_ in (("drawn", DRAWN), ("electricity", ELECTRICITY), ("taxi", TAXI))
            for kind in ("numbers", "circles")
        },
    },
    sentences=(
        "With indicators of one over the number of levels, which is the encoding, the held-out log"
        " loss is {shares}; with indicators of one it is {ones}, as wide one-hot groups are split"
        " too often.",
        "Words of texts are worth most to members that mix boosted sets: a held-out log loss of"
        " {words}, beside {forest_words} of a random forest of a hundred trees and {plain_words} of"
        " plain AMF.",
        "Times as circles (`[data] cyclic`) take the log loss of drawn times from"
        " {drawn_numbers} to {drawn_circles}; that of electricity is {electricity_circles} beside"
        " {electricity_numbers}, the squared error of taxi trips {taxi_circles} beside"
        " {taxi_numbers}.",
    ),
)


def read(plan) -> tuple[np.ndarray, np.ndarray]:
    parts = [read_block(plan, block) for block in plan.blocks]
    return np.vstack([part.X for part in parts]), np.concatenate([part.y for part in parts])


def texts(rows: int) -> Iterator[tuple[str, str, float, float]]:
    """Yield learner, indicator, log loss and AUC of drawn texts, a quarter of them held out."""
    draw = np.random.default_rng(0)
    often = 1.0 / np.arange(1, 401) ** 0.7
    words = draw.choice(400, (rows, 10), p=often / often.sum())
    worth = np.zeros(400)
    worth[10:40] = 2.0 * draw.normal(size=30)
    y = worth[words].sum(axis=1) + draw.logistic(size=rows) > 0.0
    text = [" ".join(f"word{number}" for number in row) for row in words]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "texts.parquet")
        pq.write_table(pa.table({"text": text, "noise": draw.random(rows), "y": y}), path)
        X, labels = read(make_plan(str(path), target="y", text=["text"]))
    cut = rows * 3 // 4
    for name, model in (
        (PLAIN, AMFClassifier(10, random_state=0)),
        (
            BOOSTED,
            AMFClassifier(
                10,
                drift="follow",
                experts=("mondrian", "boosted"),
                delay=rows // 16,
                random_state=0,
            ),
        ),
        (FOREST, RandomForestClassifier(100, random_state=0)),
    ):
        for indicator, factor in (("1 / features", 1.0), ("1", 256.0)):
            own = X * np.float32([*[factor] * 256, 1.0])
            p = model.fit(own[:cut], labels[:cut]).predict_proba(own[cut:])[:, 1]
            yield name, indicator, log_loss(labels[cut:], p), roc_auc_score(labels[cut:], p)


def drawn_times(rows: int) -> tuple[pa.Table, str]:
    """Return a table of times and labels, and the name of the label."""
    draw = np.random.default_rng(1)
    hours = np.sort(draw.choice(3 * 365 * 24, rows, replace=False))
    near = [np.cos(2.0 * np.pi * hours / turn) for turn in (24.0, 168.0, 365.25 * 24.0)]
    y = 2.0 * np.sum(near, axis=0) + draw.logistic(size=rows) > 0.0
    times = np.datetime64("2021-01-01T00", "us") + hours * np.timedelta64(1, "h")
    return pa.table({"time": times, "noise": draw.random(rows), "y": y}), "y"


def electricity(folder: Path) -> tuple[pa.Table, str]:
    table = pq.read_table(folder / "electricity")
    steps = np.arange(len(table)) * np.timedelta64(30, "m")
    table = table.drop_columns(["date", "day", "period"])
    return table.append_column("time", pa.array(np.datetime64("1996-05-07", "us") + steps)), "class"


def taxi(folder: Path) -> tuple[pa.Table, str]:
    table = pq.read_table(next((folder / "nyc_green_taxi").glob("*.parquet")))
    names = ["lpep_pickup_datetime", "PULocationID", "DOLocationID", "trip_distance", "fare_amount"]
    table = table.select(names).sort_by(names[0])
    is_fare = pc.less(table["fare_amount"], 200.0)  # a few are typing errors
    table = table.filter(pc.and_(is_fare, pc.greater(table["fare_amount"], 0.0)))
    return table.rename_columns(["time", *names[1:]]), "fare_amount"


def progressive_loss(table: pa.Table, target: str, rows: int | None, cyclic: bool, factor: float,
                     trees: int) -> tuple[int, float]:  # fmt: skip
    """Return how many rows were forecast, and the mean log loss, or squared error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "times.parquet")
        pq.write_table(table.slice(0, rows), path)
        is_number = pa.types.is_floating(table.schema.field(target).type)
        task = "regression" if is_number else "classification"
        named = ["time"] if cyclic else []
        plan = make_plan(str(path), target=target, task=task, cyclic=named)
        X, y = read(plan)
    on_circle = [name.endswith(("_sin", "_cos")) for name in plan.schema.feature_names]
    X *= np.where(on_circle, factor, 1.0).astype(np.float32)
    kind = AMFRegressor if is_number else AMFClassifier
    model = kind(trees, random_state=0)
    begun = len(y) // 8
    if is_number:
        model.fit(X[:begun], y[:begun])
    else:
        model.partial_fit(X[:begun], y[:begun], classes=np.unique(y))
    losses = []
    for start in range(begun, len(y), BLOCK):
        own, labels = X[start : start + BLOCK], y[start : start + BLOCK]
        if is_number:
            losses.append((model.predict(own) - labels) ** 2)
        else:
            shares = model.predict_proba(own)
            losses.append(-np.log(shares[np.arange(len(own)), labels.astype(int)]))
        model.partial_fit(own, labels)
    return len(y) - begun, float(np.concatenate(losses).mean())


def times(folder: Path | None, most: int | None, trees: int) -> Iterator[list[object]]:
    """Yield set, rows, how times are encoded and the progressive loss."""
    sets = {DRAWN: drawn_times(min(12_000, most or 12_000))}
    if folder is not None and (folder / "electricity").is_dir():
        sets |= {ELECTRICITY: electricity(folder), TAXI: taxi(folder)}
    for name, (table, target) in sets.items():
        for encoding, cyclic, factor in (
            ("numbers", False, 1.0),
            ("circles", True, 1.0),
            ("circles of twice the size", True, 2.0),
        ):
            rows, loss = progressive_loss(table, target, most, cyclic, factor, trees)
            yield [name, rows, encoding, loss]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--max-rows", type=int, help="learn and score at most this many rows")
    parser.add_argument("--data", type=Path, help="folder with one sub-folder per real set")
    args = parser.parse_args()
    trees, rows = args.trees, slice(args.max_rows)
    plan = make_plan(str(ADULT / "part-0000-train.parquet"), target="income")
    test = make_scoring_plan(str(ADULT / "part-0001-test.parquet"), plan.schema, target=True)
    (X, y), (X_test, y_test) = read(plan), read(test)
    source = [name.split("=")[0] for name in plan.schema.feature_names]
    is_level = np.array(["=" in name for name in plan.schema.feature_names])
    width = np.array([Counter(source)[name] for name in source])
    whole = np.where(is_level, X.max(axis=0), 1.0)
    whole[whole == 0] = 1.0
    found = []
    for name, value in (("1", 1.0), ("1 / sqrt(levels)", width**-0.5), ("1 / levels", 1 / width)):
        scale = np.where(is_level, value / whole, 1.0).astype(np.float32)
        forest = AMFClassifier(trees, feature_scales=None, random_state=0)
        p = forest.fit((X * scale)[rows], y[rows]).predict_proba((X_test * scale)[rows])[:, 1]
        loss, auc = log_loss(y_test[rows], p), roc_auc_score(y_test[rows], p)
        found.append([name, float(loss), float(auc)])
    records = Records(RESULTS / "encoding.json", PAGE.identity)
    note = f"{len(y[rows])} rows learned, {len(y_test[rows])} held out; {trees} trees."
    records.add(tabled("adult", "adult", ["indicator", "log loss", "AUC"], found, note, digits=4))
    n = min(8000, args.max_rows or 8000)
    head = ["learner", "indicator", "log loss", "AUC"]
    note = f"{n * 3 // 4} rows learned, {n - n * 3 // 4} held out."
    records.add(tabled("texts", "texts", head, [list(row) for row in texts(n)], note, digits=4))
    head = ["set", "rows", "times", "loss"]
    note = f"{trees} trees; mean log loss, of taxi trips mean squared error."
    found = list(times(args.data, args.max_rows, trees))
    records.add(tabled("times", "times", head, found, note, digits=4))
    publish("encoding", records)


if __name__ == "__main__":
    main()
