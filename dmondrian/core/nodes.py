"""The node: one contiguous row of 32-bit words, seen through three typed views.

A visit to a node reads its links, its weight, its statistics and then its box. Held in a
dozen arrays that is a dozen cache misses; in one row it is one miss and a run of lines
that the hardware fetches ahead. ``Tree`` is that row array (as int32, float32 and
float64 views of the same memory) and a small header.

Shapes: m nodes of capacity, d features, s doubles of statistics.

Row, in 32-bit words::

    0 left   1 right   2 parent   3 feature   4 threshold   5 odds' exponent
    6-7 split time   8-9 odds   10 .. statistics (s doubles)
    .. lower bounds (d)   .. upper bounds (d)   padding to an even number of words
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dmondrian._jit import borrow, inner

LEFT, RIGHT, PARENT, FEATURE = 0, 1, 2, 3  # words, int32; -1 where there is none
THRESHOLD = 4  # word, float32; rows with x <= threshold go left
EXPONENT = 5  # word, int32; odds = ODDS * 2^(256 EXPONENT)
TIME = 3  # double; split time, inf at a leaf
ODDS = 4  # double; s / (1 - s), s the posterior probability of stopping here
STAT = 5  # double; first statistic, always the weight of the node's rows

ROOT, N_NODES = 0, 1  # header, int64: index of the root (-1: empty), nodes in use
TOTAL_WEIGHT = 0  # header, float64: weight of the rows learned
ETA = 1  # header, float64: learning rate in force, in units of 1 / price
NEXT_ETA = 2  # header, float64: total weight at which ETA is taken anew
OFFSET = 3  # header, float64: the first label; statistics are of y - OFFSET
LABEL_MIN, LABEL_MAX = 4, 5  # header, float64: range of the labels seen, less OFFSET
N_HEADER_FLOATS = 6


class Tree(NamedTuple):
    """One tree: nodes and header. Row r of each view is node r."""

    i: np.ndarray  # int32 [m, w], links
    f: np.ndarray  # float32 [m, w], threshold and box
    d: np.ndarray  # float64 [m, w / 2], time, odds, statistics
    head_i: np.ndarray  # int64 [2], ROOT and N_NODES
    head_f: np.ndarray  # float64 [6], weight, learning rate and label range
    scratch: np.ndarray  # float64 [3 d], extensions or a cell at hand; one writer at a time
    messages: np.ndarray  # float64 [m + 2, 2] or [0, 2], what a rule gathered to predict
    n_features: int  # d
    n_stats: int  # s
    lower: int  # word at which the lower bounds start


def _views(words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return words, words.view(np.float32), words.view(np.float64)


def make_tree(n_features: int, n_stats: int, capacity: int) -> Tree:
    """Return an empty tree with room for ``capacity`` nodes."""
    lower = 2 * (STAT + n_stats)
    width = lower + 2 * n_features
    words = np.zeros((capacity, width), np.int32)
    head_i = np.array([-1, 0], np.int64)
    head_f = np.zeros(N_HEADER_FLOATS, np.float64)
    head_f[LABEL_MIN], head_f[LABEL_MAX] = np.inf, -np.inf
    scratch, messages = np.zeros(3 * n_features), np.zeros((0, 2))
    return Tree(*_views(words), head_i, head_f, scratch, messages, n_features, n_stats, lower)


@inner
def borrow_tree(tree):
    """Return the tree with arrays that carry no reference counts (see ``borrow``)."""
    return Tree(
        borrow(tree.i),
        borrow(tree.f),
        borrow(tree.d),
        borrow(tree.head_i),
        borrow(tree.head_f),
        borrow(tree.scratch),
        borrow(tree.messages),
        tree.n_features,
        tree.n_stats,
        tree.lower,
    )


@inner
def first_in_postorder(tree):
    """Return the node visited first when children come before parents."""
    v = tree.head_i[ROOT]
    while tree.i[v, LEFT] >= 0:
        v = tree.i[v, LEFT]
    return v


@inner
def next_in_postorder(tree, v):
    """Return the node visited after ``v`` when children come before parents, or -1."""
    parent = tree.i[v, PARENT]
    if parent < 0 or tree.i[parent, RIGHT] == v:
        return parent
    v = tree.i[parent, RIGHT]
    while tree.i[v, LEFT] >= 0:
        v = tree.i[v, LEFT]
    return v


def resize(tree: Tree, capacity: int) -> Tree:
    """Return the tree with room for ``capacity`` nodes (at least those in use)."""
    used = int(tree.head_i[N_NODES])
    words = np.zeros((max(capacity, used), tree.i.shape[1]), np.int32)
    words[:used] = tree.i[:used]
    i, f, d = _views(words)
    return tree._replace(i=i, f=f, d=d)


def fields(tree: Tree) -> dict[str, np.ndarray]:
    """Return the nodes in use as one array per field, copies, one entry per node."""
    return {name: np.array(value, order="C") for name, value in views(tree).items()}


def views(tree: Tree) -> dict[str, np.ndarray]:
    """Return what :func:`fields` does as strided views, which change as the tree learns."""
    used = int(tree.head_i[N_NODES])
    i, f, d = tree.i[:used], tree.f[:used], tree.d[:used]
    low, n = tree.lower, tree.n_features
    return {
        "left": i[:, LEFT],
        "right": i[:, RIGHT],
        "parent": i[:, PARENT],
        "feature": i[:, FEATURE],
        "threshold": f[:, THRESHOLD],
        "time": d[:, TIME],
        "odds": d[:, ODDS],
        "odds_exponent": i[:, EXPONENT],
        "stat": d[:, STAT : STAT + tree.n_stats],
        "lower": f[:, low : low + n],
        "upper": f[:, low + n : low + 2 * n],
    }


def from_fields(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> Tree:
    """Return the tree whose :func:`fields` and header scalars are given (trusted)."""
    used, n_stats = arrays["stat"].shape
    n_features = arrays["lower"].shape[1]
    tree = make_tree(n_features, n_stats, used)
    i, f, d, low = tree.i, tree.f, tree.d, tree.lower
    i[:, LEFT], i[:, RIGHT] = arrays["left"], arrays["right"]
    i[:, PARENT], i[:, FEATURE] = arrays["parent"], arrays["feature"]
    i[:, EXPONENT], f[:, THRESHOLD] = arrays["odds_exponent"], arrays["threshold"]
    d[:, TIME], d[:, ODDS] = arrays["time"], arrays["odds"]
    d[:, STAT : STAT + n_stats] = arrays["stat"]
    f[:, low : low + n_features] = arrays["lower"]
    f[:, low + n_features : low + 2 * n_features] = arrays["upper"]
    tree.head_i[:] = header["root"], used
    tree.head_f[:] = header["floats"]
    return tree


def node_bytes(n_features: int, n_stats: int) -> int:
    """Return the bytes of one node in memory."""
    return 4 * (2 * (STAT + n_stats) + 2 * n_features)
