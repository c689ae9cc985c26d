"""What a stored forest must look like before a kernel may see it.

A state comes from outside: kernels index without bounds checks, so every link, feature
and number is checked here first. Floats that JSON cannot hold travel as strings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dmondrian.core import nodes
from dmondrian.errors import CorruptError

FORMAT = 1

_FIELDS = {
    "left": np.int32,
    "right": np.int32,
    "parent": np.int32,
    "feature": np.int32,
    "threshold": np.float32,
    "time": np.float64,
    "odds": np.float64,
    "odds_exponent": np.int32,
    "stat": np.float64,
    "lower": np.float32,
    "upper": np.float32,
}
_SPECIAL = {"inf": math.inf, "-inf": -math.inf}


def encode_float(value: float) -> float | str:
    """Return ``value``, or its name where JSON has no number for it."""
    value = float(value)
    if math.isfinite(value):
        return value
    return "inf" if value > 0 else "-inf"


def decode_float(value: Any) -> float:
    """Return the float of :func:`encode_float`."""
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CorruptError(f"expected a number in the forest's header, got {value!r}")
    return float(value)


def check_header(header: Any, n_trees: int) -> list[dict[str, Any]]:
    """Return the scalars of each tree, checked.

    Raises
    ------
    CorruptError
        If the header is not one of a forest with ``n_trees`` trees.
    """
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise CorruptError(
            f"this version reads forests of format {FORMAT}, this one says {found!r}: "
            "use the version of dmondrian that wrote it"
        )
    entries = header.get("trees")
    is_whole = {"parameters", "warmup"} <= set(header)
    if not isinstance(entries, list) or len(entries) != n_trees or not is_whole:
        raise CorruptError(f"the forest's header does not describe its {n_trees} trees")
    checked = []
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != {"number", "root", "floats"}:
            raise CorruptError("a tree's header should have the keys number, root, floats")
        number, root, floats = entry["number"], entry["root"], entry["floats"]
        whole = all(isinstance(v, int) and not isinstance(v, bool) for v in (number, root))
        if not whole or not 0 <= number < 2**62:
            raise CorruptError(f"impossible tree number or root: {number!r}, {root!r}")
        if not isinstance(floats, list) or len(floats) != nodes.N_HEADER_FLOATS:
            raise CorruptError(f"a tree's header should have {nodes.N_HEADER_FLOATS} floats")
        values = [decode_float(value) for value in floats]
        if not 0.0 <= values[nodes.TOTAL_WEIGHT] < math.inf:
            raise CorruptError(f"impossible total weight {values[nodes.TOTAL_WEIGHT]!r}")
        checked.append({"number": number, "root": root, "floats": values})
    return checked


def check_arrays(
    entry: dict[str, Any],
    arrays: dict[str, np.ndarray],
    n_features: int,
    n_stats: int,
    may_be_empty: bool,
) -> None:
    """Raise :class:`CorruptError` unless the arrays are those of one sound tree.

    ``may_be_empty`` tells whether leaves may have seen no row, as on the cube.
    """
    if set(arrays) != set(_FIELDS):
        raise CorruptError(f"a tree should have the fields {sorted(_FIELDS)}")
    n_nodes = len(arrays["left"])
    widths = {"stat": n_stats, "lower": n_features, "upper": n_features}
    for name, dtype in _FIELDS.items():
        shape = (n_nodes, widths[name]) if name in widths else (n_nodes,)
        if arrays[name].dtype != dtype or arrays[name].shape != shape:
            raise CorruptError(
                f"tree {entry['number']}: field {name} should be {np.dtype(dtype)} of shape "
                f"{shape}, it is {arrays[name].dtype} of shape {arrays[name].shape}"
            )
    check_links(entry, arrays, n_features)
    check_values(entry, arrays, may_be_empty)


def check_links(entry: dict[str, Any], arrays: dict[str, np.ndarray], n_features: int) -> None:
    """Raise unless the links form one binary tree over all nodes, rooted at the root."""
    left, right, parent = arrays["left"], arrays["right"], arrays["parent"]
    n_nodes, root = len(left), entry["root"]
    where = f"tree {entry['number']}: "
    if n_nodes == 0:
        if root != -1:
            raise CorruptError(where + "an empty tree should have root -1")
        return
    if not 0 <= root < n_nodes or parent[root] != -1:
        raise CorruptError(where + f"root {root} is not the root of {n_nodes} nodes")
    internal = left >= 0
    children = np.concatenate([left[internal], right[internal]])
    parents = np.concatenate([np.flatnonzero(internal)] * 2)
    sound = (
        n_nodes % 2 == 1
        and (left[~internal] == -1).all()
        and (right[~internal] == -1).all()
        and len(children) == n_nodes - 1
        and ((children >= 0) & (children < n_nodes)).all()
        and len(np.unique(children)) == len(children)
        and (parent[children] == parents).all()
    )
    if not sound:
        raise CorruptError(where + "its links do not form a binary tree")
    feature = arrays["feature"]
    inside = (feature[internal] >= 0) & (feature[internal] < n_features)
    if not inside.all() or not (feature[~internal] == -1).all():
        raise CorruptError(where + f"it splits on features outside 0..{n_features - 1}")
    # Every node but the root is the child of exactly one; times that increase downward
    # (checked with the values) then leave no room for a cycle.
    time = arrays["time"]
    if not (time[parents] < time[children]).all() or not (time[internal] > 0).all():
        raise CorruptError(where + "its split times do not increase downward")
    if not np.isposinf(time[~internal]).all():
        raise CorruptError(where + "its leaves should have split time inf")


def check_values(entry: dict[str, Any], arrays: dict[str, np.ndarray], may_be_empty: bool) -> None:
    """Raise unless statistics, weights and boxes are values that learning can reach."""
    where = f"tree {entry['number']}: "
    stat, lower, upper = arrays["stat"], arrays["lower"], arrays["upper"]
    empty = stat[:, 0] == 0.0
    misplaced = empty & ((arrays["left"] >= 0) | (arrays["parent"] < 0) | (not may_be_empty))
    if not np.isfinite(stat).all() or (stat[:, 0] < 0).any() or misplaced.any():
        raise CorruptError(where + "its statistics should be finite, its row counts positive")
    odds = arrays["odds"]
    if not ((odds > 0) & np.isfinite(odds)).all():
        raise CorruptError(where + "its weights should be positive and finite")
    if not np.isfinite(lower).all() or not np.isfinite(upper).all() or (lower > upper).any():
        raise CorruptError(where + "its boxes should be finite, lower <= upper")
    if not np.isfinite(arrays["threshold"]).all():
        raise CorruptError(where + "its thresholds should be finite")
