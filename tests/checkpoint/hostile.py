"""Files that mean harm: sound states, what can be changed in them, and what a reader may do.

A reader may refuse with an error of this package, or give a forest that predicts and learns; in
both cases within the memory that it was given. `python -m tests.checkpoint.hostile SEED N` reads N
changed states, so that it can be run in a process of its own with bounds checks.
"""

from __future__ import annotations

import copy
import dataclasses
import faulthandler
import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.checkpoint.codec import METADATA_KEY
from dmondrian.checkpoint.document import dump_json
from dmondrian.ensemble.settings.fringe_settings import FringeSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CheckpointError
from dmondrian.forest.forest import Forest
from dmondrian.forest.state import NESTED
from dmondrian.tree.sparse_rows import SparseRows, dense_rows, sparse_rows

State = tuple[dict[str, Any], list[dict[str, Any]]]

MAX_BYTES = 10**7
"""What the reader is given as the most that a state may take."""
HANG_SECONDS = 300.0
WIDEST = 200  # features or classes of a forest that is tried out: its rows are made here

NUMBERS: list[Any] = [
    0, 1, -1, 2, 3, 7, -2, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63, 2**64, -(2**63), 10**400,
    0.0, -0.0, 0.5, -1.5, 1e-320, 5e-324, 1e-30, 1e38, 1e308, -1e308, 1e200,
    float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
VALUES: list[Any] = [
    *NUMBERS, None, True, False, "", "inf", "-inf", "nan", "../../etc/passwd", "\ud800", "\0",
    [], {}, [[]], [None], {"a": []}, [1.0, 0.5, 0.25], ["alpha"], [["alpha"]], "AAAA", "A" * 5000,
]  # fmt: skip


def rows(n: int, seed: int = 0, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.random((n, d)).astype(np.float32)
    return X, (X[:, 0] > 0.5).astype(np.float64)


def forest(n: int, auto: tuple[str, ...] = (), **parameters: Any) -> Forest:
    given = {"algorithm": "amf-classifier", "n_features": 3, "n_classes": 2, "seed": 7}
    made = Forest(ForestParameters(**{**given, **parameters}), range(2), auto)
    if n:
        X, y = rows(n)
        made.update(X, y if made.parameters.n_classes else 10.0 * X[:, 0] ** 2)
    return made


REGRESSOR = {"algorithm": "amf-regressor", "n_classes": 0}
FRINGE: dict[str, Any] = {
    "algorithm": "online-forest-classifier",
    "aggregation": "mean",
    "split_pure": True,
    "empty_prior": True,
    "fringe": FringeSettings(2.0, 3, 0.0, 1.0, 1.0, 2.0, 4, "entropy", 0.5, 0.0),
}
NUMBERS_FRINGE = {
    **FRINGE,
    "algorithm": "online-forest-regressor",
    "n_classes": 0,
    "fringe": dataclasses.replace(FRINGE["fringe"], criterion="squared_error", max_fringe=None),
}
FORESTS: dict[str, Callable[[], Forest]] = {
    "classifier": lambda: forest(25),
    "regressor": lambda: forest(25, **REGRESSOR),
    "warm-up": lambda: forest(20, ("alpha", "charge_opening")),
    "no rows": lambda: forest(0),
    "no rows, regressor": lambda: forest(0, **REGRESSOR),
    "one row": lambda: forest(1),
    "extensions": lambda: forest(25, expected_extension=True),
    "one leaf predicts": lambda: forest(25, use_aggregation=False, max_nodes=9),
    "fringe": lambda: forest(80, **FRINGE),
    "fringe, regressor": lambda: forest(80, **NUMBERS_FRINGE),
    "fringe, no rows": lambda: forest(0, **FRINGE),
}
STORED = ", as stored"  # with boxes as differences
SOUND = (*FORESTS, *(name + STORED for name in ("classifier", "regressor", "warm-up", "no rows")))


@functools.cache
def sound(name: str) -> State:
    """Return the state of a forest; not made on import, as kernels would be compiled for it."""
    made = FORESTS[name.removesuffix(STORED)]()
    if not name.endswith(STORED):
        return made.state()
    header, trees, _ = made.stored()
    return header, [{key: copied(array) for key, array in tree.items()} for tree in trees]


def copied(array: np.ndarray | SparseRows) -> np.ndarray:
    return array.copy() if isinstance(array, np.ndarray) else dense_rows(array)


def forged(
    header: Any, trees: list[dict[str, Any]], rows: Any = None, compression: str | None = "zstd"
) -> bytes:
    """A well-formed Arrow file of whatever columns the trees have; arrays of any dtype."""
    columns = [{name: as_arrow(values) for name, values in sorted(tree.items())} for tree in trees]
    reported = [len(next(iter(tree.values()))) for tree in columns] if rows is None else rows
    document = dump_json({"format": 1, "header": header, "rows": reported})
    schema = pa.schema(
        [pa.field(name, values.type, nullable=False) for name, values in columns[0].items()],
        metadata={METADATA_KEY: document},
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for tree in columns:
            writer.write_batch(pa.RecordBatch.from_arrays(list(tree.values()), schema=schema))
    return bytes(sink.getvalue())


def as_arrow(values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if values.ndim == 1:
        return flat
    kind = pa.list_(pa.field("item", flat.type, nullable=False), values.shape[1])
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


def blob(state: State) -> bytes:
    """Bytes of a state, by the writer if it takes them, else by force.

    Where boxes are differences, wide fields are without their zeros, as those of large trees are.
    """
    header, trees = state
    is_nested = isinstance(header, dict) and header.get("format") == NESTED
    try:
        return encode_forest(header, [without_zeros(tree) if is_nested else tree for tree in trees])
    except ValueError:
        return forged(header, trees)


def without_zeros(tree: dict[str, Any]) -> dict[str, Any]:
    wide = {
        name: sparse_rows(array)
        for name, array in tree.items()
        if isinstance(array, np.ndarray)
        and array.ndim == 2
        and array.shape[1]
        and array.dtype.name in ("float32", "float64")
    }
    return tree | wide


def changed(state: State, rng: random.Random) -> bytes:
    """The state with one to three changes, under digests and sizes that are right again."""
    header, trees = copy.deepcopy(state)
    trees = [{name: values.copy() for name, values in tree.items()} for tree in trees]
    changes = [change_cell, change_cell, change_links, change_header, change_column]
    with np.errstate(all="ignore"):  # some numbers do not fit where they are put
        for _ in range(rng.randint(1, 3)):
            rng.choice(changes)(header, trees, rng)
    try:
        return blob((header, trees))
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return blob(state)  # not even Arrow can hold it


def change_cell(header: dict[str, Any], trees: list[dict[str, Any]], rng: random.Random) -> None:
    tree = rng.choice(trees)
    name = rng.choice(sorted(tree))
    values = tree[name]
    if not isinstance(values, np.ndarray) or not values.size:
        return
    flat = values.reshape(-1)
    value = rng.choice(NUMBERS)
    with np.errstate(all="ignore"):
        if flat.dtype.kind == "f":
            flat[rng.randrange(len(flat))] = min(float(value), 1e308) if value != 10**400 else 1e308
        elif type(value) is int and -(2**31) <= value < 2**31:
            flat[rng.randrange(len(flat))] = value
        else:
            flat[rng.randrange(len(flat))] = rng.randrange(-2, len(flat) + 2)


def change_links(header: dict[str, Any], trees: list[dict[str, Any]], rng: random.Random) -> None:
    """Cycles, shared children, strangers as parents."""
    tree = rng.choice(trees)
    m = len(next(iter(tree.values())))
    links = [tree.get(name) for name in ("left", "right", "parent")]
    if not m or any(not isinstance(v, np.ndarray) or v.shape != (m,) for v in links):
        return  # changed before
    a, b = rng.randrange(m), rng.randrange(m)
    kind = rng.randrange(5)
    if kind == 0:
        tree["left"][a] = tree["right"][a] = b
    elif kind == 1:
        tree["left"][a], tree["parent"][b] = b, a
        tree["right"][b], tree["parent"][a] = a, b
    elif kind == 2:
        for name in ("left", "right", "parent"):
            tree[name][a], tree[name][b] = tree[name][b], tree[name][a]
    elif kind == 3:
        entries = header.get("trees")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict):
                entry["root"] = b
    else:
        for name in tree:
            tree[name] = tree[name][:b]


def change_header(header: dict[str, Any], trees: list[dict[str, Any]], rng: random.Random) -> None:
    change_json(header, rng)


def change_json(content: Any, rng: random.Random) -> None:
    """Put some value at some place of a JSON document, or take the place away."""
    here, places = content, []
    while isinstance(here, dict | list) and len(here):
        keys = sorted(here) if isinstance(here, dict) else range(len(here))
        key = rng.choice(list(keys))
        places.append((here, key))
        here = here[key]
        if rng.random() < 0.2:
            break
    if not places:
        return
    inside, key = places[-1]
    if rng.random() < 0.15:
        del inside[key]
    elif rng.random() < 0.1 and isinstance(inside, list):
        inside.append(copy.deepcopy(inside[key]))
    else:
        inside[key] = copy.deepcopy(rng.choice(VALUES))


def change_column(header: dict[str, Any], trees: list[dict[str, Any]], rng: random.Random) -> None:
    name = rng.choice(sorted(trees[0]))
    kind = rng.randrange(7)
    for tree in trees:
        values = tree.get(name)
        if not isinstance(values, np.ndarray):
            return  # changed before
        if kind == 0 and len(tree) > 1:
            del tree[name]
        elif kind == 1:
            tree["another"] = values.copy()
        elif kind == 2:
            tree[name] = values.astype(rng.choice(["i4", "f4", "f8", "i8", "f2", "u1"]))
        elif kind == 3:
            plain = values if values.ndim == 1 else values[:, 0]
            tree[name] = np.stack([plain, plain], axis=1)
        elif kind == 4 and values.ndim == 2 and values.shape[1] > 1:
            tree[name] = np.ascontiguousarray(values[:, 1:])
        elif kind == 5:
            plain = values if values.ndim == 1 else values[:, 0]
            tree[name] = pa.array(plain).dictionary_encode()
        elif kind == 6:
            plain = values if values.ndim == 1 else values[:, 0]
            tree[name] = pa.array([str(value) for value in plain])


def react(data: bytes) -> str:
    """Read bytes as a forest and use it: "refused" or "used", or this raises or never ends."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    try:
        return use(Forest.from_state(*decode_forest(data, max_bytes=MAX_BYTES)))
    except CheckpointError:
        return "refused"
    finally:
        faulthandler.cancel_dump_traceback_later()


def use(made: Forest) -> str:
    """Predict and learn some rows, and store the forest again."""
    d, k = made.parameters.n_features, made.parameters.n_classes
    if not made.trees or max(d, k) > WIDEST:
        return "used"
    X, y = rows(12, 1, d)
    X[0], X[1], X[2, 0] = 3e38, -3e38, 1e-40
    y = np.minimum(y, max(k - 1, 0)) if k else 3.0 * y
    with np.errstate(all="ignore"):
        for _ in range(2):
            made.predict_sums(X, spread=True, distance=True)
            made.update(X, y)
            made.update(X, y, np.linspace(0.0, 300.0, len(X)))
    made.predict_sums(X)
    encode_forest(*made.stored())
    return "used"


def main() -> None:
    rng = random.Random(int(sys.argv[1]))
    reported = [react(changed(sound(rng.choice(SOUND)), rng)) for _ in range(int(sys.argv[2]))]
    print(reported.count("used"), reported.count("refused"))  # noqa: T201 - read by the test


if __name__ == "__main__":
    main()
