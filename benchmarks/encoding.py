"""Measure what a category level's indicator should be: 1, or 1 / (levels of its column).

A Mondrian tree splits columns in proportion to their ranges, so the size of one-hot
indicators decides how often categories are split. Trains on adult's official split, as the
data layer encodes it: held-out log loss and AUC for indicators of 1, of 1 / sqrt(levels) and of
1 / levels (the encoding of dmondrian.data).

    python -m benchmarks.encoding [--trees 10]
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.pages import Page, cell, publish
from benchmarks.records import RESULTS, Records, tabled
from dmondrian import AMFClassifier
from dmondrian.data import make_plan, make_scoring_plan, read_block

ADULT = Path(__file__).parents[1] / "jobs" / "data" / "adult"


PAGE = Page(
    title="Indicators of categories",
    question="How large should the indicator of a category be, beside numeric columns on the unit"
    " interval?",
    identity=("part",),
    numbers={
        "ones": cell("adult", {"indicator": "1"}, "log loss", ".3f"),
        "shares": cell("adult", {"indicator": "1 / levels"}, "log loss", ".3f"),
    },
    sentences=(
        "With indicators of one over the number of levels, which is the encoding, the held-out log"
        " loss is {shares}; with indicators of one it is {ones}, as wide one-hot groups are split"
        " too often.",
    ),
)


def read(plan) -> tuple[np.ndarray, np.ndarray]:
    parts = [read_block(plan, block) for block in plan.blocks]
    return np.vstack([part.X for part in parts]), np.concatenate([part.y for part in parts])


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
    publish("encoding", records)


if __name__ == "__main__":
    main()
