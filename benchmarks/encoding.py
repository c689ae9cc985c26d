"""Measure what indicators of categories and of words in texts should be: 1, or 1 / their number.

A Mondrian tree splits columns in proportion to their ranges, so the size of one-hot
indicators decides how often categories are split. Trains on adult's official split, as the
data layer encodes it: held-out log loss and AUC for indicators of 1, of 1 / sqrt(levels) and of
1 / levels (the encoding of dmondrian.data).

Texts are drawn: ten of 400 words a row, the first ones often, thirty of which make one of two
classes more or less likely; beside them is a column of noise. Words are hashed to 256 features.

    python -m benchmarks.encoding [--trees 10]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.pages import Page, cell, publish
from benchmarks.records import RESULTS, Records, tabled
from dmondrian import AMFClassifier
from dmondrian.data import make_plan, make_scoring_plan, read_block

ADULT = Path(__file__).parents[1] / "jobs" / "data" / "adult"
PLAIN, BOOSTED = "AMF", "AMF, following, with boosted sets"
FOREST = "random forest of 100"

PAGE = Page(
    title="Indicators of categories and words",
    question="How large should the indicator of a category, or of a word, be, beside numeric"
    " columns on the unit interval?",
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
    },
    sentences=(
        "With indicators of one over the number of levels, which is the encoding, the held-out log"
        " loss is {shares}; with indicators of one it is {ones}, as wide one-hot groups are split"
        " too often.",
        "Words of texts are worth most to members that mix boosted sets: a held-out log loss of"
        " {words}, beside {forest_words} of a random forest of a hundred trees and {plain_words} of"
        " plain AMF.",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--max-rows", type=int, help="learn and score at most this many rows")
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
    publish("encoding", records)


if __name__ == "__main__":
    main()
