"""What saving and restoring a forest takes: microseconds and bytes of a row and tree.

A forest learns rows of covtype (whole numbers and indicators), or of drawn normal numbers, and is
written as a checkpoint's blob and read again, several times. Encoding makes the blob of trees in
memory, decoding the arrays of a blob, restoring the forest of these too, tree by tree: what a
worker does of a shard, without the store; once more without boxes, as a forest is read that is
asked for predictions alone. Beside its bytes are those of the first format, which has the zeros of
boxes and statistics as well.

Then forests that have learned many rows are saved again and again while they learn more, few or
many between two saves: whole states each time, and states as differences where these pay, as a
worker saves them. Each is restored too, and compared in every number with the forest that was
saved.

    python -m benchmarks.blobs --data <folder>

Times are of the processor, of one thread; a process that has the machine to itself.
"""

from __future__ import annotations

import argparse
import hashlib
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
from dmondrian.checkpoint.codec import decode_blob
from dmondrian.checkpoint.deltas import (
    Base,
    EncodedState,
    State,
    are_same_trees,
    encode_state,
    read_state,
)
from dmondrian.forest.forest import Forest
from dmondrian.forest.state import BOXES
from dmondrian.tree.sparse_rows import SparseRows, dense_rows

COVTYPE = "covtype, classifier"
PARTS = "blobs", "saves"
HEAD = ["rows of", "rows", "trees", "encode, us", "decode, us", "restore, us", "bytes",
        "bytes, first format", "without boxes, us", "its memory"]  # fmt: skip

SAVES = ["rows of", "rows", "rows a save", "saves", "differences", "whole, MB", "MB", "share",
         "whole, s", "s", "restore whole, s", "restore, s"]  # fmt: skip
LOOKS, GROWTH = {"saves": 20}, {"saves": 4}
FIRST, STEPS = 0.85, ((500, 20), (5_000, 8), (50_000, 4))
"""Part of the rows that is learned before the first save; then rows a save, and saves."""

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
            ("boxless", "without boxes, us", ".2f"),
            ("memory", "its memory", ".2f"),
        )
    }
    | {
        name: cell("saves", {"rows of": COVTYPE, **of}, column, ".2f")
        for name, of, column in (
            ("looks", LOOKS, "share"),
            ("looks_whole_s", LOOKS, "whole, s"),
            ("looks_s", LOOKS, "s"),
            ("growth", GROWTH, "share"),
            ("growth_whole_s", GROWTH, "whole, s"),
            ("growth_s", GROWTH, "s"),
        )
    },
    sentences=(
        "A row and tree of covtype takes {encode} microseconds to encode, {restore} to restore, and"
        " {size} bytes; with the zeros of boxes and statistics it would be {before}. To be asked"
        " alone, without boxes, it takes {boxless} to restore, and {memory} of the memory.",
        "A large forest of covtype that is saved after few rows each time writes {looks} of the"
        " bytes of whole states, in {looks_s} instead of {looks_whole_s} seconds; after many,"
        " {growth} of them, in {growth_s} instead of {growth_whole_s}.",
    ),
)


def forests(data: str, name: str, rows: int, trees: int) -> Iterator[tuple[str, int, Forest]]:
    """Yield what was learned, of how many rows, and the forest."""
    classes, numbers = (
        kind(trees, random_state=0, n_jobs=1) for kind in (AMFClassifier, AMFRegressor)
    )
    found = stored(name, data, rows)
    X, y = found.X_train, found.y_train
    yield f"{name}, classifier", len(y), classes.fit(X, y).forest_
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
        lambda: restored(data),
        lambda: restored(data, with_boxes=False),
    ]
    *times, boxless = [1e6 * seconds(work, repeats) / per for work in works]
    memory = restored(data, with_boxes=False).n_bytes / restored(data).n_bytes
    sizes = len(data) / per, len(first) / per
    return [name, rows, len(forest.trees), *times, *sizes, boxless, memory]


def restored(data: bytes, with_boxes: bool = True) -> Forest:
    """Return the forest of a blob, of which each tree is decoded when it is needed."""
    found = decode_blob(data, name="a blob", without=() if with_boxes else BOXES)
    return Forest.from_state(found.header, found.trees, with_boxes=with_boxes)


def saves(
    name: str, data: str, rows: int, trees: int, step: int, n_saves: int, repeats: int
) -> list[object]:
    """Return a row of the table of saves: of a forest of which ``step`` rows are learned a save."""
    found = stored(name, data, rows)
    X, y = found.X_train, found.y_train
    first = int(FIRST * len(y)) if step * n_saves < (1 - FIRST) * len(y) else len(y) // 2
    step = min(step, (len(y) - first) // n_saves)
    model = AMFClassifier(trees, random_state=0, n_jobs=1)
    model.partial_fit(X[:first], y[:first], classes=np.unique(y))
    blobs: dict[str, bytes] = {}
    base = _put(encode_state(model.forest_), blobs)[1]  # whole in any case, and there before
    sums, n_differences = np.zeros(len(SAVES) - 6), 0
    for at in range(first, first + n_saves * step, step):
        model.partial_fit(X[at : at + step], y[at : at + step])
        encoded = encode_state(model.forest_, base)
        sums += _priced(model.forest_, base, encoded, blobs, repeats)
        base = _put(encoded, blobs)[1]
        n_differences += encoded.base is not None
    whole, own, *times = sums.tolist()
    counts = first, step, n_saves, n_differences
    return [f"{name}, classifier", *counts, whole, own, own / whole, *times]


def _put(encoded: EncodedState, blobs: dict[str, bytes]) -> tuple[str, Base | None]:
    digest = hashlib.sha256(encoded.data).hexdigest()
    blobs[digest] = encoded.data
    return digest, encoded.base_after(digest)


def _priced(
    forest: Forest, base: Base | None, encoded: EncodedState, blobs: dict[str, bytes], repeats: int
) -> np.ndarray:
    """Return megabytes of a state and of what is saved of it, and seconds of both, and restored."""
    whole, digest = encode_forest(*forest.stored()), _put(encoded, blobs)[0]
    state = _read(digest, blobs)
    if not are_same_trees(list(state.trees), decode_forest(whole)[1]):
        raise AssertionError("a state was read that is not the one that was saved")

    def restore() -> None:  # as a worker does that saves it again
        found = _read(digest, blobs)
        found.base(Forest.from_state(found.header, found.trees))

    works: list[Callable[[], Any]] = [
        lambda: encode_forest(*forest.stored()),
        lambda: encode_state(forest, base),
        lambda: restored(whole),
        restore,
    ]
    sizes = [len(data) / 1e6 for data in (whole, encoded.data)]
    return np.array(sizes + [seconds(work, repeats) for work in works])


def _read(digest: str, blobs: dict[str, bytes]) -> State:
    return read_state(lambda one, _: blobs[one], digest, name="a state")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with a sub-folder of the set")
    parser.add_argument("--set", default="covtype")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--trees", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    args = parser.parse_args()
    pa.set_cpu_count(1)
    records = Records(RESULTS / "blobs.json", PAGE.identity)
    if "blobs" in args.parts:
        found = [
            measure(*one, args.repeats)
            for one in forests(args.data, args.set, args.rows, args.trees)
        ]
        note = "Of a row and tree; medians."
        records.add(tabled("blobs", "Blobs", HEAD, found, note, digits=3))
    if "saves" in args.parts:
        of = args.set, args.data, args.rows, args.trees
        found = [saves(*of, step, n, max(1, args.repeats // 4)) for step, n in STEPS]
        note = (
            "Megabytes and seconds of all saves together; medians. Whole states, and what is saved."
        )
        records.add(tabled("saves", "Saves while a forest learns", SAVES, found, note, digits=2))
    publish("blobs", records)


if __name__ == "__main__":
    main()
