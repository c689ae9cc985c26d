"""Rows that wait for their labels, in a stored forest: arrays beside those of its trees.

In the state they are part of the header, which an Arrow file holds twice, uncompressed, and which
whoever looks at a model reads: as text many rows of many columns would be most of it. Stored, they
are the ``memory`` of one tree more, whose other fields are 0, and the header has their number. A
forest that waits for no row is stored as its state.

Relies on whoever reads a state to check the rows. Promises a round trip to the bit: float64 holds
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
    numbers = np.concatenate([part.reshape(-1).astype(np.float64) for part in rows])
    n_nodes = -(-len(numbers) // _MOST_ITEMS)
    sizes = np.full(n_nodes, _MOST_ITEMS, np.int32)
    sizes[-1] = len(numbers) - (n_nodes - 1) * _MOST_ITEMS
    last = {name: np.zeros((n_nodes, *own.shape[1:]), own.dtype) for name, own in trees[0].items()}
    last |= {"memory": numbers, "memory_size": sizes}
    drift = {**header["drift"], "version": apart(header["drift"]["version"]), "waiting": n}
    return {**header, "drift": drift}, [*trees, last]


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
    parameters, n = header.get("parameters"), header["drift"]["waiting"]
    d = parameters.get("n_features") if isinstance(parameters, dict) else None
    numbers = trees[-1].get("memory") if trees else None
    if type(n) is not int or type(d) is not int or n < 1 or d < 1 or numbers is None:
        raise CorruptError(f"{str(n)[:40]!r} rows wait, and {len(trees)} trees are there")
    if numbers.ndim != 1 or len(numbers) != n * (d + 2):
        raise CorruptError(f"{n} rows of {d} features wait, and {numbers.size} numbers are there")
    X, y, w = np.split(numbers, [n * d, n * (d + 1)])
    drift = {**header["drift"], "version": version, "waiting": [X.reshape(n, d), y, w]}
    return {**header, "drift": drift}, trees[:-1]
