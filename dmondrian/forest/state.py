"""Checks of a stored forest before a kernel may see it.

A state comes from outside: kernels index without bounds checks, so every link, feature
and number is checked here first. Floats that JSON cannot hold travel as strings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Sized
from typing import Any, Protocol

import numpy as np

from dmondrian.ensemble.settings.fringe_settings import FringeSettings, check_fringe
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError
from dmondrian.forest import state_kernels
from dmondrian.forest.state_kernels import (
    are_bounds,
    are_cells_of_cube,
    faults_of_links,
    faults_of_statistics,
)
from dmondrian.stats.cell_values import MARK, WEIGHT
from dmondrian.stats.labels import KEPT
from dmondrian.tree import nodes
from dmondrian.tree.box_delta import add_differences
from dmondrian.tree.box_encoding import read_only
from dmondrian.tree.scaled_float import LARGEST_EXPONENT, LARGEST_ODDS, SMALLEST_ODDS

FIRST = 1  # the same as 2 with e^x by another polynomial, which shows in the last bits of weights
FORMAT = 2
NESTED = 3  # the same with boxes as differences (tree/box_delta.py): fewer bytes once compressed

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
BOXES, _OF_WEIGHTS = ("lower", "upper"), ("odds", "odds_exponent")
_OF_FRINGE = {"fringe": np.int32, "candidates_size": np.int32}
_MOST_ROWS = 2.0**53  # up to which doubles count one by one
_SPECIAL = {"inf": math.inf, "-inf": -math.inf}


class FieldsOfTrees(Sized, Iterable[dict[str, np.ndarray]], Protocol):
    """The arrays of each tree of a state, taken once: a list, or trees that are decoded in turn."""


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
        raise CorruptError(f"expected a number in the forest's header, got {str(value)[:80]!r}")
    try:
        return float(value)
    except OverflowError:
        raise CorruptError("a number in the forest's header is beyond a double") from None


def check_header(header: Any, n_trees: int) -> list[dict[str, Any]]:
    """Return the scalars of each tree, checked.

    Raises
    ------
    CorruptError
        If the header is not one of a forest with ``n_trees`` trees.
    """
    format_ = header.get("format") if isinstance(header, dict) else type(header).__name__
    if type(format_) is not int or format_ not in (FIRST, FORMAT, NESTED):
        raise CorruptError(
            f"this version reads forests of formats {FIRST} to {NESTED}, this one is of "
            f"{format_!r}: use the version of dmondrian that wrote it"
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
            shown = f"{str(number)[:40]!r}, {str(root)[:40]!r}"
            raise CorruptError(f"impossible tree number or root: {shown}")
        if not isinstance(floats, list) or len(floats) != nodes.N_HEADER_FLOATS:
            raise CorruptError(f"a tree's header should have {nodes.N_HEADER_FLOATS} floats")
        values = [decode_float(value) for value in floats]
        check_floats(values, is_empty=root == -1)
        checked.append({"number": number, "root": root, "floats": values})
    return checked


def check_floats(values: Sequence[float], is_empty: bool) -> None:
    """Raise :class:`CorruptError` unless these are the header floats of a tree."""
    weight = values[nodes.TOTAL_WEIGHT]
    if not (weight == 0.0 if is_empty else 0.0 < weight < math.inf):
        raise CorruptError(f"impossible total weight {weight!r} of a tree")
    # Rates are inf where labels differ by less than doubles can square.
    rates = values[nodes.ETA], values[nodes.NEXT_ETA]
    low, high = values[nodes.LABEL_MIN], values[nodes.LABEL_MAX]
    is_range = (math.isfinite(low) and math.isfinite(high) and low <= high) or (
        low == math.inf and high == -math.inf
    )
    if not all(rate >= 0.0 for rate in rates) or not is_range:
        raise CorruptError(f"impossible learning rate or range of labels: {list(values)}")
    if not math.isfinite(values[nodes.OFFSET]):
        raise CorruptError(f"impossible first label {values[nodes.OFFSET]!r}")


def check_arrays(
    entry: dict[str, Any],
    arrays: dict[str, np.ndarray],
    form: int,
    parameters: ForestParameters,
    with_boxes: bool = True,
) -> None:
    """Raise :class:`CorruptError` unless the arrays are those of one sound tree.

    Statistics are counts of classes, moments of the label, labels where a loss needs them, or
    values that were fitted jointly. With a fringe there are neither boxes nor weights, and the last
    statistic is not of labels. On the cube leaves may have no row, and boxes lie in their cells.
    Boxes that come as differences (``form`` is ``NESTED``) are replaced by what they stand for;
    without boxes there are none.
    """
    fields, n_features = dict(_FIELDS), parameters.n_features
    is_counts, is_on_cube = parameters.gives_proba, parameters.domain == "cube"
    if parameters.has_fringe:
        fields = {k: fields[k] for k in fields if k not in BOXES + _OF_WEIGHTS} | _OF_FRINGE
    elif not with_boxes:
        fields = {name: dtype for name, dtype in fields.items() if name not in BOXES}
    wanted = {*fields, "candidates"} if parameters.has_fringe else set(fields)
    if set(arrays) != wanted:
        raise CorruptError(f"a tree should have the fields {sorted(wanted)}")
    n_nodes = len(arrays["left"])
    widths = {"stat": parameters.n_stats, "lower": n_features, "upper": n_features}
    for name, dtype in fields.items():
        shape = (n_nodes, widths[name]) if name in widths else (n_nodes,)
        if arrays[name].dtype != dtype or arrays[name].shape != shape:
            raise CorruptError(
                f"tree {entry['number']}: field {name} should be {np.dtype(dtype)} of shape "
                f"{shape}, it is {arrays[name].dtype} of shape {arrays[name].shape}"
            )
    check_links(entry, arrays, n_features)
    if not np.isfinite(arrays["threshold"]).all():
        raise CorruptError(f"tree {entry['number']}: its thresholds should be finite")
    if parameters.has_fringe:
        check_grown_by_fringe(entry, arrays, n_features, is_counts, parameters.fringe)
        return
    if form == NESTED and with_boxes:
        arrays |= add_differences(arrays, entry["root"])
    check_values(entry, arrays)
    # What stands where other forests store the losses of nodes may have any sign.
    is_signed = parameters.minimises_loss or parameters.learns_jointly
    check_statistics(entry, arrays, is_counts, is_on_cube, has_signed_prices=is_signed)
    if parameters.learns_jointly:
        check_fit(entry, arrays["stat"])
    if is_on_cube and n_nodes:
        check_cells(entry, arrays)
    if parameters.minimises_loss and parameters.cost.keeps_labels:
        check_labels(entry, arrays["stat"], parameters.cost.size)


def check_grown_by_fringe(
    entry: dict[str, Any],
    arrays: dict[str, np.ndarray],
    n_features: int,
    is_counts: bool,
    fringe: FringeSettings,
) -> None:
    """Raise unless statistics and candidates are those of a tree with a fringe."""
    where = f"tree {entry['number']}: "
    stat, inside = arrays["stat"], arrays["left"] >= 0
    parents = np.where(arrays["parent"] >= 0, arrays["time"][arrays["parent"]], 0.0)
    if (arrays["time"][inside] != parents[inside] + 1.0).any():
        raise CorruptError(where + "its split times should be depths")
    counted = {**arrays, "stat": stat[:, :-1]}
    check_statistics(entry, counted, is_counts, may_be_empty=True, has_signed_prices=True)
    estimated = entry["floats"][nodes.ESTIMATED]
    begun = stat[~inside, -1]
    if not (stat[:, -1] >= 0).all() or not np.isfinite(stat[:, -1]).all():
        raise CorruptError(where + "its gains should be finite and not negative")
    if (begun > estimated).any() or not math.isfinite(estimated):
        raise CorruptError(where + "its leaves should be older than its last estimation row")
    n_classes = stat.shape[1] - 2 if is_counts else 0
    if not arrays["candidates"].dtype == np.float64 or arrays["candidates"].ndim != 1:
        raise CorruptError(where + "its candidates should be one row of doubles")
    check_fringe(where, arrays, n_features, n_classes, estimated, fringe)


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
    # Every node but the root is the child of exactly one; times that increase downward then leave
    # none for a cycle.
    feature, time = arrays["feature"], arrays["time"]
    link_arrays = (read_only(array) for array in (left, right, parent, feature, time))
    faults = faults_of_links(*link_arrays, n_features)
    for fault, message in (
        (state_kernels.NO_TREE, "its links do not form a binary tree"),
        (state_kernels.BAD_FEATURE, f"it splits on features outside 0..{n_features - 1}"),
        (state_kernels.BAD_TIME, "its split times do not increase downward"),
        (state_kernels.BAD_END, "its leaves should have split time inf"),
    ):
        if faults & fault:
            raise CorruptError(where + message)


def check_values(entry: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Raise unless weights, boxes and thresholds are values that learning can reach."""
    where = f"tree {entry['number']}: "
    odds, exponent = arrays["odds"], arrays["odds_exponent"]
    # Kernels bring odds into this range by steps that end only from finite ones.
    if not ((odds >= SMALLEST_ODDS) & (odds <= LARGEST_ODDS)).all():
        raise CorruptError(where + "its weights should be in [2^-128, 2^128]")
    if not ((exponent >= -LARGEST_EXPONENT) & (exponent <= LARGEST_EXPONENT)).all():
        raise CorruptError(where + "its weights' exponents are out of range")
    if "lower" in arrays and not are_bounds(read_only(arrays["lower"]), read_only(arrays["upper"])):
        raise CorruptError(where + "its boxes should be finite, lower <= upper")


def check_cells(entry: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Raise unless splits and boxes are those of cells of the unit cube."""
    root, lower, upper = entry["root"], arrays["lower"], arrays["upper"]
    links = tuple(read_only(arrays[name]) for name in ("left", "right", "feature"))
    value_arrays = (read_only(arrays[name]) for name in ("threshold", "stat", "lower", "upper"))
    is_inside = (lower[root] >= 0.0).all() and (upper[root] <= 1.0).all()
    if not is_inside or not are_cells_of_cube(links, *value_arrays):
        raise CorruptError(
            f"tree {entry['number']}: its boxes should lie in the unit cube, in their parents' and "
            "on their sides of splits"
        )


def check_statistics(
    entry: dict[str, Any],
    arrays: dict[str, np.ndarray],
    is_counts: bool,
    may_be_empty: bool,
    has_signed_prices: bool,
) -> None:
    """Raise unless a node's statistics are those of some rows: see :mod:`dmondrian.stats`."""
    where = f"tree {entry['number']}: "
    node_arrays = (read_only(arrays[name]) for name in ("stat", "left", "parent"))
    n_squares = 1 if has_signed_prices else 2  # squares, and prices
    faults = faults_of_statistics(
        *node_arrays, is_counts, n_squares, may_be_empty, "fringe" in arrays
    )
    for fault, message in (
        (state_kernels.BAD_WEIGHT, "its statistics should be finite, its row counts positive"),
        (state_kernels.BAD_COUNT, "its classes should count no less than 0 and no more than all"),
        (state_kernels.BAD_SQUARE, "its squares and prices should not be negative"),
    ):
        if faults & fault:
            raise CorruptError(where + message)


def check_fit(entry: dict[str, Any], stat: np.ndarray) -> None:
    """Raise unless counters are those of cells fitted jointly: see ``cell_values``.

    Marks become numbers of columns, which kernels index by; those of roots may have a half.
    """
    mark, weight, rows = stat[:, MARK - nodes.STAT], stat[:, WEIGHT - nodes.STAT], entry["floats"]
    counts = np.append(2.0 * mark, rows[nodes.N_ROWS])
    whole = (counts >= 0.0) & (counts <= _MOST_ROWS) & (counts == np.floor(counts))
    if not (whole.all() and (weight >= 0.0).all() and math.isfinite(rows[nodes.UNIT])):
        raise CorruptError(f"tree {entry['number']}: its cells' marks and rows should be counts")


def check_labels(entry: dict[str, Any], stat: np.ndarray, size: int) -> None:
    """Raise unless the labels of all nodes are in order: see :mod:`dmondrian.stats.labels`."""
    kept, at = stat[:, KEPT - nodes.STAT], KEPT + 1 - nodes.STAT
    labels, below, upto = stat[:, at:].reshape(len(stat), 3, size + 1).transpose(1, 0, 2)
    used = np.arange(size + 1) < kept[:, None]
    both = used[:, 1:]  # the label before is there too
    whole = (kept == np.floor(kept)) & (kept >= 0) & (kept <= size)
    rises = labels[:, 1:] > labels[:, :-1]
    ranked = (below[:, 1:] >= below[:, :-1]) & (upto[:, 1:] >= upto[:, :-1])
    if (
        not (whole & ((kept > 0) == (stat[:, 0] > 0))).all()
        or not (rises & ranked | ~both).all()
        or not ((below >= 0) & (upto > 0) | ~used).all()
    ):
        raise CorruptError(f"tree {entry['number']}: its labels should be in order, with ranks")
