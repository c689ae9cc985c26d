"""Assert every invariant of a tree; for tests and for the doubtful, not for speed.

O(m (d + s)) for m nodes, in NumPy. What a stored tree must satisfy to be safe is checked by
:mod:`dmondrian.forest.state`; this checks that it is a Mondrian tree of the rows it holds.
"""

from __future__ import annotations

import numpy as np

from dmondrian.tree import nodes
from dmondrian.tree.nodes import Tree
from dmondrian.tree.scaled_float import LARGEST_EXPONENT, LARGEST_ODDS, SMALLEST_ODDS


class InvariantError(AssertionError):
    """A tree is not what learning can produce."""


def check(tree: Tree, paused: bool = True, may_be_empty: bool = False) -> None:
    """Raise :class:`InvariantError` unless every invariant holds.

    Parameters
    ----------
    tree : Tree
    paused : bool, default=True
        Whether leaves may hold more than one distinct row (``split_pure=False`` or a cap
        on the nodes); if False, every leaf's box is a single point.
    may_be_empty : bool, default=False
        Whether leaves may have seen no row, as on the cube.
    """
    used = int(tree.head_i[nodes.N_NODES])
    root = int(tree.head_i[nodes.ROOT])
    if used == 0:
        _claim(root == -1, "an empty tree has no root")
        return
    a = nodes.fields(tree)
    inside = np.flatnonzero(a["left"] >= 0)
    leaves = np.flatnonzero(a["left"] < 0)
    _check_links(a, root, inside, leaves)
    _check_times(a, inside, leaves)
    _check_boxes(a, inside)
    _check_statistics(a, inside, float(tree.head_f[nodes.TOTAL_WEIGHT]), root, may_be_empty)
    if not paused:
        single = (a["lower"][leaves] == a["upper"][leaves]).all()
        _claim(bool(single), "every leaf holds one distinct row")


def _claim(holds: bool, claim: str) -> None:
    if not holds:
        raise InvariantError(f"broken: {claim}")


def _check_links(
    a: dict[str, np.ndarray], root: int, inside: np.ndarray, leaves: np.ndarray
) -> None:
    left, right, parent = a["left"], a["right"], a["parent"]
    _claim(parent[root] == -1, "the root has no parent")
    _claim(len(leaves) == len(inside) + 1, "a binary tree has one more leaf than splits")
    for child in (left, right):
        _claim(bool((parent[child[inside]] == inside).all()), "children name their parent")
    _claim(bool((left[inside] != right[inside]).all()), "children differ")
    _claim(bool((right[leaves] == -1).all()), "leaves have no child")
    _claim(bool((a["feature"][leaves] == -1).all()), "leaves split on no feature")
    reached, frontier = 0, [root]
    while frontier:
        v = frontier.pop()
        reached += 1
        if left[v] >= 0:
            frontier += [int(left[v]), int(right[v])]
        _claim(reached <= len(left), "no node is reached twice")
    _claim(reached == len(left), "every node is reached from the root")


def _check_times(a: dict[str, np.ndarray], inside: np.ndarray, leaves: np.ndarray) -> None:
    time = a["time"]
    _claim(bool((time[inside] > 0).all()), "split times are positive")
    for child in (a["left"], a["right"]):
        _claim(bool((time[child[inside]] > time[inside]).all()), "times increase downward")
    _claim(bool(np.isposinf(time[leaves]).all()), "leaves never split")


def _check_boxes(a: dict[str, np.ndarray], inside: np.ndarray) -> None:
    left, right, lower, upper = a["left"][inside], a["right"][inside], a["lower"], a["upper"]
    _claim(bool((lower <= upper).all()), "boxes are not inside out")
    # A cell that no row has reached has no box.
    empty = a["stat"][:, :1] == 0.0
    lower, upper = np.where(empty, np.inf, lower), np.where(empty, -np.inf, upper)
    low, high = np.minimum(lower[left], lower[right]), np.maximum(upper[left], upper[right])
    same = (low == lower[inside]).all() and (high == upper[inside]).all()
    _claim(bool(same), "a box is the smallest around its children's")
    j, cut = a["feature"][inside], a["threshold"][inside]
    _claim(bool((upper[left, j] <= cut).all()), "the left child lies at or below the cut")
    _claim(bool((lower[right, j] > cut).all()), "the right child lies strictly above the cut")


def _check_statistics(
    a: dict[str, np.ndarray], inside: np.ndarray, total: float, root: int, may_be_empty: bool
) -> None:
    stat = a["stat"]
    _claim(bool(np.isfinite(stat).all()), "statistics are finite")
    seen = stat[:, 0] > 0 if not may_be_empty else stat[inside, 0] > 0
    _claim(bool(seen.all()), "every node has seen a row")
    _claim(bool(np.isclose(stat[root, 0], total, rtol=1e-12)), "the root has seen every row")
    # All but the last column of moments (the cumulated price) add up; class counts all do.
    additive = stat[:, :3] if stat.shape[1] == 4 else stat
    both = additive[a["left"][inside]] + additive[a["right"][inside]]
    scale = np.abs(additive).max(axis=0)
    close = np.abs(both - additive[inside]) <= 1e-9 * scale
    _claim(bool(close.all()), "statistics of children add up to the parent's")
    odds, exponent = a["odds"][inside], a["odds_exponent"][inside].astype(np.int64)
    in_range = (odds >= SMALLEST_ODDS) & (odds <= LARGEST_ODDS)
    _claim(bool(in_range.all()), "odds are as near to one as exponents allow")
    _claim(bool((np.abs(exponent) <= LARGEST_EXPONENT).all()), "exponents are in range")
