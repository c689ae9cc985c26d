"""The node: one contiguous row of 32-bit words, seen through three typed views, and its box.

A visit to a node reads its links, its weight and its statistics; few visits need its box. So a node
is one row, of one cache line for two classes, and boxes are kept apart: a row of bounds, of 32 bits
each and then of 16, and a row of bits for features of two values
(:mod:`dmondrian.tree.box_encoding`). ``Tree`` is these arrays (the words as int32, float32 and
float64 views of the same memory, the bounds as float32 and int16) and a small header.

The split time is last in the node's row; but where the row is whole cache lines without it, as for
labels that are numbers and for three classes, it stands behind the bounds, with which it is read.

Where growth does not look at boxes, none are written (``boxless`` columns). Where it keeps
candidate splits of leaves, these lie in a pool beside the nodes (growth/candidates.py).

Shapes: m nodes of capacity, d features, s doubles of statistics, p numeric features, g stepped
ones, q words of bits per value, c doubles of the pool.

Row, in 32-bit words::

    0 left   1 right   2 parent   3 feature   4 threshold   5 odds' exponent
    6-7 odds   8 .. statistics (s doubles)   then, where it is here, split time
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dmondrian._numba.intrinsics import CACHE_LINE
from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.box_encoding import (
    Columns,
    bounds_by_values_of,
    has_boxes,
    n_words,
    read_bounds,
    read_only,
    write_bounds,
)
from dmondrian.tree.memory import aligned, bytes_held, is_spacious, release, resized

LEFT, RIGHT, PARENT, FEATURE = 0, 1, 2, 3  # words, int32; -1 where there is none
THRESHOLD = 4  # word, float32; rows with x <= threshold go left
EXPONENT = 5  # word, int32; odds = ODDS * 2^(256 EXPONENT)
CANDIDATES = EXPONENT  # word, int32, of growth without odds: see growth/candidates.py
ODDS = 3  # double; s / (1 - s), s the posterior probability of stopping here
STAT = 4  # double; first statistic, always the weight of the node's rows

ROOT, N_NODES = 0, 1  # header, int64: index of the root (-1: empty), nodes in use
N_ACTIVE = 2  # header, int64: leaves whose splits are being chosen
POOL_END, POOL_LIVE = 3, 4  # header, int64: doubles of the pool up to its last block; in use
REPEATS = 5  # header, int64: repeats learned of a row for which there was no more capacity
N_HEADER_INTS = 6
TOTAL_WEIGHT = 0  # header, float64: weight of the rows learned
ETA = 1  # header, float64: learning rate in force, in units of 1 / price
ESTIMATED = ETA  # header, float64, where nothing is priced: weight of the estimation rows
NEXT_ETA = 2  # header, float64: total weight at which ETA is taken anew
UNIT, N_ROWS = 1, 2  # in their places where cells are fitted jointly: unit of sums, rows learned
OFFSET = 3  # header, float64: the first label; statistics are of y - OFFSET
LABEL_MIN, LABEL_MAX = 4, 5  # header, float64: range of the labels seen, less OFFSET
N_HEADER_FLOATS = 6
MESSAGE_SIZE = 3  # doubles of a message
LEAST_SCRATCH = 48  # doubles, a multiple of 8: what rules/gaussian.py computes together, and prices

_NOT_WEIGHED: dict[str, np.ndarray] = {
    "odds": np.empty(0, np.float64),
    "odds_exponent": np.empty(0, np.int32),
}
_MOST_TOGETHER = 65_536  # nodes whose boxes are read as floats at a time
_BYTES_TOGETHER = 2**26  # and bytes of these: one node of a wide tree has a MiB of them


class Tree(NamedTuple):
    """One tree: nodes and header. Row r of each array is node r."""

    i: np.ndarray  # int32 [m, 8 + 2 s or 2 more], links
    f: np.ndarray  # float32, alike, threshold
    d: np.ndarray  # float64 [m, 4 + s or one more], odds, statistics
    box: np.ndarray  # float32 [m, 2 p + g or more], lower bounds, then upper ones, then steps
    steps: np.ndarray  # int16, the same; from 4 p on lower bounds [g], then upper ones
    bits: np.ndarray  # uint64 [m, 2 q], which first values were seen, then which second ones
    columns: Columns
    head_i: np.ndarray  # int64 [6], root, counts of nodes, the pool's ends
    head_f: np.ndarray  # float64 [6], weight, learning rate and label range
    scratch: np.ndarray  # float64 [max(3 d, 48)], extensions, then a cell or bounds; one writer
    messages: np.ndarray  # float64 [m + 2, 3] or [0, 3], what a rule gathered to predict
    pool: np.ndarray  # float64 [c], blocks of candidate splits
    times: np.ndarray  # float64 [m, ..], d or box as doubles; the last of a row is the split time
    n_features: int  # d
    n_stats: int  # s

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same object: arrays compare by element."""
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)


def has_time_beside(columns, n_stats):
    """Return whether split times stand behind the bounds; see above."""
    n_written = columns.numeric.shape[0] + columns.stepped.shape[0] + columns.binary.shape[0]
    return n_written > 0 and 8 * (STAT + n_stats) % CACHE_LINE == 0


def n_bound_words(columns):
    """Return 2 p + g, the words of a node's bounds."""
    return 2 * columns.numeric.shape[0] + columns.stepped.shape[0]


has_time_beside_compiled, n_bound_words_compiled = inline(has_time_beside), inline(n_bound_words)


def _boxes(columns: Columns, n_stats: int, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Return empty arrays box, bits for ``capacity`` nodes."""
    width = n_bound_words(columns)
    if has_time_beside(columns, n_stats):
        width += width % 2 + 2
    return aligned(capacity, width, np.float32), aligned(capacity, n_words(columns), np.uint64)


def _with_views(tree: Tree) -> Tree:
    """Return the tree with views of its own words and boxes."""
    d = tree.i.view(np.float64)
    is_beside = has_time_beside(tree.columns, tree.n_stats)
    times = tree.box.view(np.float64) if is_beside else d
    steps = tree.box.view(np.int16)
    return tree._replace(f=tree.i.view(np.float32), d=d, steps=steps, times=times)


@inline
def time_of(tree, v):
    """Return the split time of node ``v``, inf at a leaf."""
    return tree.times[np.uint64(v), np.uint64(tree.times.shape[1] - 1)]


@inline
def birth_of(tree, v):
    """Return the time at which node ``v`` came into being."""
    parent = tree.i[v, PARENT]
    return time_of(tree, parent) if parent >= 0 else 0.0


@inline
def end_of(tree, v, lifetime):
    """Return the time until which the cell of node ``v`` is whole: its split, or the lifetime."""
    return min(time_of(tree, v), lifetime)


@inline
def span_of(tree, v, lifetime):
    """Return how long the cell of node ``v`` is whole."""
    return end_of(tree, v, lifetime) - birth_of(tree, v)


@inline
def splits_after(tree, v, lifetime):
    """Return whether node ``v``, a split or a leaf, is whole at the lifetime."""
    return lifetime < np.inf and lifetime < time_of(tree, v)  # without a lifetime nothing is read


@inline
def set_time(tree, v, time):
    """Write the split time of node ``v``."""
    tree.times[v, tree.times.shape[1] - 1] = time


def times_of(tree: Tree) -> np.ndarray:
    """Return the split times of the nodes in use, float64 [m], a view."""
    return tree.times[: tree.head_i[N_NODES], -1]


def scratch_size(columns):
    """Return how many doubles the scratch for trees of these columns has."""
    return max(3 * columns.place.shape[0], LEAST_SCRATCH)


scratch_size_compiled = inline(scratch_size)


def make_tree(columns: Columns, n_stats: int, capacity: int) -> Tree:
    """Return an empty tree with capacity for ``capacity`` nodes."""
    n_features = len(columns.place)
    head_i = np.zeros(N_HEADER_INTS, np.int64)
    head_i[ROOT] = -1
    head_f = np.zeros(N_HEADER_FLOATS, np.float64)
    head_f[LABEL_MIN], head_f[LABEL_MAX] = np.inf, -np.inf
    scratch = np.zeros(scratch_size(columns))
    messages, pool = np.zeros((0, MESSAGE_SIZE)), np.zeros(0)
    width = STAT + n_stats + (not has_time_beside(columns, n_stats))
    i, (box, bits) = aligned(capacity, 2 * width, np.int32), _boxes(columns, n_stats, capacity)
    f, d = i.view(np.float32), i.view(np.float64)
    steps = box.view(np.int16)
    tree = Tree(
        i, f, d, box, steps, bits, columns, head_i, head_f, scratch, messages, pool, d, n_features,
        n_stats,
    )  # fmt: skip
    return _with_views(tree)


@inline
def child_of(tree, v, x):
    """Return the child of internal node ``v`` to which ``x`` goes."""
    u = np.uint64(v)  # a signed index costs a test for negative ones, on the way to the memory
    goes_left = x.values[np.uint64(tree.i[u, FEATURE])] <= tree.f[u, THRESHOLD]
    return tree.i[u, LEFT] if goes_left else tree.i[u, RIGHT]


@inline
def leaf_of(tree, v, x):
    """Return the leaf below ``v`` that ``x`` reaches."""
    while tree.i[np.uint64(v), LEFT] >= 0:
        v = np.int64(child_of(tree, v, x))
    return v


@inline
def first_in_postorder(tree):
    """Return the node visited first when children come before parents."""
    v = tree.head_i[ROOT]
    while tree.i[v, LEFT] >= 0:
        v = tree.i[v, LEFT]
    return v


@inline
def next_in_postorder(tree, v):
    """Return the node visited after ``v`` when children come before parents, or -1."""
    parent = tree.i[v, PARENT]
    if parent < 0 or tree.i[parent, RIGHT] == v:
        return parent
    v = tree.i[parent, RIGHT]
    while tree.i[v, LEFT] >= 0:
        v = tree.i[v, LEFT]
    return v


def resize(tree: Tree, capacity: int, soon: int = 0) -> Tree:
    """Return the tree with capacity for ``capacity`` nodes (at least those in use).

    It shares the header with the tree that is given, which is not to be used any more. ``soon`` is
    how many nodes there will be before spare capacity is given back, if that is known. There is
    less of it where memory, or addresses, which it takes, are limited.
    """
    used = int(tree.head_i[N_NODES])
    capacity, fewer = max(capacity, used), used + used // 2 + 1
    arrays, soon = (tree.i, tree.box, tree.bits), min(soon, capacity)
    try:
        i, box, bits = (resized(array, used, capacity, soon) for array in arrays)
    except MemoryError:
        if capacity <= fewer:
            raise
        return resize(tree, fewer)
    return _with_views(tree._replace(i=i, box=box, bits=bits))


def give_back(tree: Tree) -> Tree:
    """Return the tree without capacity for more nodes, unless that takes little memory."""
    used = int(tree.head_i[N_NODES])
    if is_spacious(tree.i, used):
        return resize(tree, used)
    for array in (tree.i, tree.box, tree.bits):
        release(array, used)
    return tree


def widen_pool(tree: Tree, capacity: int) -> Tree:
    """Return the tree with a pool of ``capacity`` doubles (at least those up to its end)."""
    end = int(tree.head_i[POOL_END])
    pool = np.zeros(max(capacity, end))
    pool[:end] = tree.pool[:end]
    return tree._replace(pool=pool)


def lay_out(tree: Tree, columns: Columns) -> Tree:
    """Return the tree with its boxes written another way."""
    box, bits = _boxes(columns, tree.n_stats, len(tree.i))
    new = _with_views(tree._replace(box=box, bits=bits, columns=columns))
    times_of(new)[:] = times_of(tree)
    for nodes in chunks(tree):
        write_boxes(new, nodes, *read_boxes(tree, nodes))
    return new


def chunks(tree: Tree) -> Iterator[slice]:
    """Yield the nodes in use, as many at a time as may have their boxes in memory as floats."""
    used = int(tree.head_i[N_NODES])
    size = max(1, min(_MOST_TOGETHER, _BYTES_TOGETHER // (8 * tree.n_features)))
    for start in range(0, used, size):
        yield slice(start, min(start + size, used))


def bounds_of(tree: Tree, nodes: slice) -> np.ndarray:
    """Return bounds of nodes, float32 [m, 2 d or more], lower ones first; 0 where there is no box.

    The boxes themselves where all features are numeric, with all that stands in them.
    """
    columns = tree.columns
    box, steps, bits = tree.box[nodes], tree.steps[nodes], tree.bits[nodes]
    if not len(columns.binary) + len(columns.stepped):
        return box
    bounds = np.empty((len(box), 2 * tree.n_features), np.float32)
    read_bounds(
        bounds_by_values_of(columns).view(np.int32),
        columns,
        box.view(np.int32),
        steps,
        bits,
        bounds.view(np.int32),
    )
    return bounds


def read_boxes(tree: Tree, nodes: slice) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper bounds of nodes, float32 [m, d] each; see :func:`bounds_of`."""
    bounds, d = bounds_of(tree, nodes), tree.n_features if has_boxes(tree.columns) else 0
    return bounds[:, :d], bounds[:, d : 2 * d]


def write_boxes(tree: Tree, nodes: slice, lower: np.ndarray, upper: np.ndarray) -> bool:
    """Write lower and upper bounds of nodes, float32 [m, d] each; return whether all could be.

    The nodes' weights are there: what stands where there are no rows is of no account.
    """
    has_rows = read_only(tree.d[nodes, STAT] > 0.0)
    ends = [read_only(end).view(np.int32) for end in (lower, upper)]
    wanted, box = tree.columns.values.view(np.int32), tree.box[nodes].view(np.int32)
    written = box, tree.steps[nodes], tree.bits[nodes]
    return bool(write_bounds(*ends, has_rows, wanted, tree.columns, *written))


def fields(tree: Tree) -> dict[str, np.ndarray]:
    """Return the nodes in use as one array per field, copies, one entry per node."""
    return {name: np.array(value, order="C") for name, value in views(tree).items()}


def views(tree: Tree, with_boxes: bool = True) -> dict[str, np.ndarray]:
    """Return what :func:`fields` does, as views where it can; they change as the tree learns."""
    used = int(tree.head_i[N_NODES])
    i, f, d = tree.i[:used], tree.f[:used], tree.d[:used]
    arrays = {
        "left": i[:, LEFT],
        "right": i[:, RIGHT],
        "parent": i[:, PARENT],
        "feature": i[:, FEATURE],
        "threshold": f[:, THRESHOLD],
        "time": times_of(tree),
        "odds": d[:, ODDS],
        "odds_exponent": i[:, EXPONENT],
        "stat": d[:, STAT : STAT + tree.n_stats],
    }
    if with_boxes and has_boxes(tree.columns):
        arrays["lower"], arrays["upper"] = read_boxes(tree, slice(0, used))
    return arrays


@kernel
def write_words(links, threshold, time, odds, exponent, stat, tree):
    """Write nodes to the rows of an empty tree; O(m s).

    ``links`` are left, right, parent and feature. Where nothing is weighed ``odds`` and
    ``exponent`` are empty, and stand for 1 and 0.
    """
    left, right, parent, feature = links
    i, f, d = tree.i, tree.f, tree.d
    is_weighed = odds.shape[0] > 0
    for v in range(stat.shape[0]):
        i[v, LEFT], i[v, RIGHT], i[v, PARENT], i[v, FEATURE] = (
            left[v], right[v], parent[v], feature[v],
        )  # fmt: skip
        f[v, THRESHOLD] = threshold[v]
        set_time(tree, v, time[v])
        i[v, EXPONENT] = exponent[v] if is_weighed else np.int32(0)
        d[v, ODDS] = odds[v] if is_weighed else 1.0
        for c in range(stat.shape[1]):
            d[v, STAT + c] = stat[v, c]


def from_fields(
    arrays: dict[str, np.ndarray], header: dict[str, Any], columns: Columns
) -> tuple[Tree, bool]:
    """Return the tree whose :func:`fields` and header scalars are given (trusted).

    And whether its boxes could be written by these columns; if not, they are other ones.
    """
    used, n_stats = arrays["stat"].shape
    tree = make_tree(columns, n_stats, used)
    links = tuple(read_only(arrays[name]) for name in ("left", "right", "parent", "feature"))
    value_names = ("threshold", "time", "odds", "odds_exponent", "stat")
    rest = [read_only({**_NOT_WEIGHED, **arrays}[name]) for name in value_names]
    write_words(links, *rest, tree)
    fit = True
    if has_boxes(columns):
        fit = write_boxes(tree, slice(0, used), arrays["lower"], arrays["upper"])
    tree.head_i[ROOT], tree.head_i[N_NODES] = header["root"], used
    tree.head_f[:] = header["floats"]
    return tree, fit


def tree_bytes(tree: Tree) -> int:
    """Return the bytes of memory that the nodes take, spare capacity included."""
    used = int(tree.head_i[N_NODES])
    held = sum(bytes_held(array, used) for array in (tree.i, tree.box, tree.bits))
    return held + tree.pool.nbytes
