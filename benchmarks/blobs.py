"""What saving and restoring a forest takes: microseconds and bytes of a row and tree.

A forest learns rows of covtype (whole numbers and indicators), or of drawn normal numbers, and is
written as a checkpoint's blob and read again, several times. Encoding makes the blob of trees in
memory, decoding the arrays of a blob, restoring the forest of these too: what a worker does of a
shard, without the store. Beside its bytes are those of the first format, which has the zeros of
boxes and statistics as well.

    python -m benchmarks.blobs --data <folder>

Times are of the processor, of one thread; a process that has the machine to itself.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.datasets import stored
from benchmarks.pages import Page, cell, publish
from benchmarks.records import RESULTS, Records, tabled
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.forest.forest import Forest
from dmondrian.tree.sparse_rows import SparseRows, dense_rows

COVTYPE = "covtype, classifier"
HEAD = ["rows of", "rows", "trees", "encode, us", "decode, us", "restore, us", "bytes",
        "bytes, first format"]  # fmt: skip

PAGE = Page(
    title="Blobs of checkpoints",
    question="What do saving and restoring a forest take of the processor, and of the store?",
    identity=("part",),
    numbers={
        name: cell("blobs", {"rows of": COVTYPE}, column, form)
        for name, column, form in (
            ("encode", "encode, us", ".2f"),
            ("restore", "restore, us", ".2f"),
            ("size", "bytes", ".1f"),
            ("before", "bytes, first format", ".1f"),
        )
    },
    sentences=(
        "A row and tree of covtype takes {encode} microseconds to encode, {restore} to restore, and"
        " {size} bytes; with the zeros of boxes and statistics it would be {before}.",
    ),
)


def forests(data: str, rows: int, trees: int) -> Iterator[tuple[str, int, Forest]]:
    """Yield what was learned, of how many rows, and the forest."""
    classes, numbers = (
        kind(trees, random_state=0, n_jobs=1) for kind in (AMFClassifier, AMFRegressor)
    )
    covtype = stored("covtype", data, rows)
    X, y = covtype.X_train, covtype.y_train
    yield COVTYPE, len(y), classes.fit(X, y).forest_
    few = len(y) // 4
    draws = np.random.default_rng(0).normal(size=(few, 20)).astype(np.float32)
    label = draws[:, 0] + draws[:, 1] * draws[:, 2]
    yield "20 normal numbers, classifier", few, classes.fit(draws, label > 0.0).forest_
    yield "20 normal numbers, regressor", few, numbers.fit(draws, label).forest_


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the median of the processor's seconds; the first time is not counted."""
    work()
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return statistics.median(found)


def measure(name: str, rows: int, forest: Forest, repeats: int) -> list[object]:
    """Return a row of the table."""
    data = encode_forest(*forest.stored())
    header, trees, nodes = forest.stored()
    dense = (
        {field: dense_rows(a) if isinstance(a, SparseRows) else a for field, a in tree.items()}
        for tree in trees
    )
    first = encode_forest(header, dense, nodes)
    per = rows * len(forest.trees)
    works: list[Callable[[], Any]] = [
        lambda: encode_forest(*forest.stored()),
        lambda: decode_forest(data),
        lambda: Forest.from_state(*decode_forest(data)),
    ]
    times = [1e6 * seconds(work, repeats) / per for work in works]
    return [name, rows, len(forest.trees), *times, len(data) / per, len(first) / per]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with a sub-folder `covtype`")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--trees", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    pa.set_cpu_count(1)
    found = [measure(*one, args.repeats) for one in forests(args.data, args.rows, args.trees)]
    records = Records(RESULTS / "blobs.json", PAGE.identity)
    note = "Of a row and tree; medians."
    records.add(tabled("blobs", "Blobs", HEAD, found, note, digits=3))
    publish("blobs", records)


if __name__ == "__main__":
    main()
