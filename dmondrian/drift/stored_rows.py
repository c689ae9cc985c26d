"""Rows that wait for their labels, or are kept, in a stored forest: arrays beside its trees'.

In the state they are text in the header, which an Arrow file holds twice, uncompressed, and which
is read for each look at a model: many rows of many columns would be most of it. Stored, they are
the ``memory`` of one tree more, whose other fields are 0, and the header has their number. A forest
without rows that wait is stored as its state. Rows that are kept for boosted sets are the last
tree.

Leaves checks of the rows to the readers of a state. Promises a round trip to the bit: float64 holds
float32.

Shapes: n rows, d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmondrian.errors import CorruptError

_MOST_ITEMS = 2**30  # of a node's memory, whose size is an int32
Arrays = dict[str, np.ndarray]


def apart(version: int) -> int:
    """Return the version of a header whose rows are stored apart, of a state of ``version``."""
    return version + 1


def stored_apart(
    header: dict[str, Any], trees: list[Arrays], rows: Sequence[np.ndarray]
) -> tuple[dict[str, Any], list[Arrays]]:
    """Return header and arrays of a state with its rows, X, y and w, as a tree of their own."""
    n = len(rows[1])
    if not n:
        return header, trees
    version = apart(header["drift"]["version"])
    drift = {**header["drift"], "version": version, "waiting": n}
    return {**header, "drift": drift}, [*trees, _as_tree(rows, trees[0])]


def _as_tree(rows: Sequence[np.ndarray], other: Arrays) -> Arrays:
    """Return rows, X, y and w, as a tree with the fields of an ``other``."""
    numbers = np.concatenate([part.reshape(-1).astype(np.float64) for part in rows])
    n_nodes = -(-len(numbers) // _MOST_ITEMS)
    sizes = np.full(n_nodes, _MOST_ITEMS, np.int32)
    sizes[-1] = len(numbers) - (n_nodes - 1) * _MOST_ITEMS
    fields = {
        name: np.zeros((n_nodes, *array.shape[1:]), array.dtype) for name, array in other.items()
    }
    return fields | {"memory": numbers, "memory_size": sizes}


def taken_in(
    header: dict[str, Any], trees: Sequence[Arrays], version: int
) -> tuple[dict[str, Any], Sequence[Arrays]]:
    """Return header and arrays of :func:`stored_apart` as those of a state of ``version``.

    Rows are three arrays, unchecked, in place of texts.

    Raises
    ------
    CorruptError
        If there are not as many rows as the header has.
    """
    rows = _of_tree(header, trees, header["drift"]["waiting"])
    drift = {**header["drift"], "version": version, "waiting": rows}
    return {**header, "drift": drift}, trees[:-1]


def _of_tree(header: dict[str, Any], trees: Sequence[Arrays], n: Any) -> list[np.ndarray]:
    """Return the rows, X, y and w, of the last tree, which should be ``n``."""
    parameters = header.get("parameters")
    d = parameters.get("n_features") if isinstance(parameters, dict) else None
    numbers = trees[-1].get("memory") if trees else None
    if type(n) is not int or type(d) is not int or n < 1 or d < 1 or numbers is None:
        raise CorruptError(f"{str(n)[:40]!r} rows are apart, and {len(trees)} trees are there")
    if numbers.ndim != 1 or len(numbers) != n * (d + 2):
        raise CorruptError(f"{n} rows of {d} features are apart, with {numbers.size} numbers")
    X, y, w = np.split(numbers, [n * d, n * (d + 1)])
    return [X.reshape(n, d), y, w]


def kept_apart(
    header: dict[str, Any], trees: list[Arrays], rows: Sequence[np.ndarray]
) -> tuple[dict[str, Any], list[Arrays]]:
    """Return what :func:`stored_apart` did, with the rows kept for boosted sets apart as well."""
    n = len(rows[1])
    if not n:
        return header, trees
    boosted = header["drift"]["boosted"]
    kept = {"numbers": boosted["kept"]["numbers"], "n": n}
    drift = {**header["drift"], "boosted": {**boosted, "kept": kept}}
    return {**header, "drift": drift}, [*trees, _as_tree(rows, trees[0])]


def kept_taken_in(
    header: dict[str, Any], trees: Sequence[Arrays]
) -> tuple[dict[str, Any], Sequence[Arrays]]:
    """Return header and arrays of :func:`kept_apart` as they were, rows as :func:`taken_in`.

    Raises
    ------
    CorruptError
        If there are not as many rows as the header has.
    """
    boosted = header["drift"].get("boosted")
    kept = boosted.get("kept") if isinstance(boosted, dict) else None
    if not isinstance(kept, dict) or set(kept) != {"numbers", "n"}:
        return header, trees
    X, y, w = _of_tree(header, trees, kept["n"])
    whole = {"numbers": kept["numbers"], "X": X, "y": y, "w": w}
    drift = {**header["drift"], "boosted": {**boosted, "kept": whole}}
    return {**header, "drift": drift}, trees[:-1]
