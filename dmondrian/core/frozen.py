"""A tree at rest: what each leaf says, written out, and small nodes to find the leaf.

Where no cell branches off (growth on the range, predictions from the leaf that a row falls in) a
tree says one thing per leaf. Written out once, by the same operations in the same order as
:func:`dmondrian.core.loops.predict` uses on the way down, it is the same to the last bit. A node
is then 16 bytes; children lie side by side, the heavier child's children next. Several rows are on
their way at a time, so that their waits for the memory overlap.

Shapes: n rows, d features, m nodes, l leaves, k outputs, w numbers of an answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dmondrian._jit import inner, kernel
from dmondrian._memory import borrow
from dmondrian.core.nodes import (
    FEATURE,
    LEFT,
    N_NODES,
    PARENT,
    ROOT,
    STAT,
    THRESHOLD,
    TIME,
    Tree,
    borrow_tree,
)
from dmondrian.core.policies import Visit, add_leaf, begin, pass_node, second_moment

# Words. The child is the left one's place, the leaf -1; a leaf is its own child, left of inf.
_FEATURE, _THRESHOLD, _CHILD, _LEAF = 0, 1, 2, 3
_WORDS = 4
_LANES = 16  # rows on their way at a time


class FrozenTree(NamedTuple):
    """What predictions need of a tree."""

    i: np.ndarray  # int32 [m, 4], links
    f: np.ndarray  # float32 [m, 4], the same memory, thresholds
    answers: np.ndarray  # float64 [l, w]


class Work(NamedTuple):
    """Room to freeze a tree in."""

    i: np.ndarray  # int32 [m, 4]
    f: np.ndarray  # float32 [m, 4], the same memory
    answers: np.ndarray  # float64 [l, w]
    nodes: np.ndarray  # int32 [m], which node of the tree stands at which place
    stack: np.ndarray  # int32 [m], places whose children are still to be written
    paths: np.ndarray  # float64 [m, w + 2], what is known above each place, depth and rest


def freeze(loss: Any, rule: Any, tree: Tree, width: int, lifetime: float) -> FrozenTree:
    """Return the tree at a lifetime, frozen; it must not be empty."""
    used = int(tree.head_i[N_NODES])
    words = np.zeros((used, _WORDS), np.int32)
    answers = np.zeros((used // 2 + 1, width))
    work = Work(
        words,
        words.view(np.float32),
        answers,
        np.empty(used, np.int32),
        np.empty(used, np.int32),
        np.empty((used, width + 2)),
    )
    n_nodes, n_leaves = write(loss, rule, tree, lifetime, work)
    if n_nodes < used:  # the lifetime left some out
        words, answers = words[:n_nodes].copy(), answers[:n_leaves].copy()
    return FrozenTree(words, words.view(np.float32), answers)


@inner
def write_place(loss, rule, tree, lifetime, work, place, n_nodes, n_leaves):
    """Write what stands at ``place``; return (nodes, leaves) used, children counted."""
    v = int(work.nodes[place])
    parent = tree.i[v, PARENT]
    path = work.paths[place]
    width = work.answers.shape[1]
    birth = tree.d[parent, TIME] if parent >= 0 else 0.0
    depth, rest = path[width], path[width + 1]
    time = tree.d[v, TIME]
    if tree.i[v, LEFT] < 0 or lifetime < time:
        at = Visit(v, True, birth, min(time, lifetime), depth, rest)
        add_leaf(rule, loss, tree, at, 1.0, path[:width], work.answers[n_leaves])
        work.f[place, _THRESHOLD] = np.float32(np.inf)
        work.i[place, _CHILD] = place
        work.i[place, _LEAF] = n_leaves
        return n_nodes, n_leaves + 1
    at = Visit(v, False, birth, time, depth, rest)
    rest = pass_node(rule, loss, tree, at, path[:width])
    work.i[place, _FEATURE] = tree.i[v, FEATURE]
    work.f[place, _THRESHOLD] = tree.f[v, THRESHOLD]
    work.i[place, _CHILD] = n_nodes
    work.i[place, _LEAF] = -1
    for k in range(2):
        below = work.paths[n_nodes + k]
        for c in range(width):
            below[c] = path[c]
        below[width], below[width + 1] = depth + 1.0, rest
        work.nodes[n_nodes + k] = tree.i[v, LEFT + k]  # left, then right
    return n_nodes + 2, n_leaves


@kernel
def write(loss, rule, tree, lifetime, work):
    """Write nodes and answers of the tree to ``work``; return how many. O(m w)."""
    tree = borrow_tree(tree)
    begin(rule, work.paths[0, : work.answers.shape[1]])
    work.paths[0, work.answers.shape[1]] = 0.0
    work.paths[0, work.answers.shape[1] + 1] = 1.0
    work.nodes[0] = tree.head_i[ROOT]
    work.stack[0] = 0
    n_waiting, n_nodes, n_leaves = 1, 1, 0
    while n_waiting > 0:
        n_waiting -= 1
        place = np.int64(work.stack[n_waiting])
        first = n_nodes
        n_nodes, n_leaves = write_place(loss, rule, tree, lifetime, work, place, n_nodes, n_leaves)
        if n_nodes > first:
            left, right = work.nodes[first], work.nodes[first + 1]
            is_left_lighter = tree.d[left, STAT] < tree.d[right, STAT]
            work.stack[n_waiting] = first if is_left_lighter else first + 1
            work.stack[n_waiting + 1] = first + 1 if is_left_lighter else first
            n_waiting += 2
    return n_nodes, n_leaves


@kernel
def predict_frozen(rule, tree, frozen, X, leaves, total, square):
    """Add a frozen tree's predictions to ``total`` [n, 1, k], and to ``square`` [n, 1, k].

    ``square`` takes second moments about ``OFFSET`` where it has rows; ``leaves`` int32 [n] takes
    the leaves. ``tree`` is what was frozen.
    """
    tree, X, leaves = borrow_tree(tree), borrow(X), borrow(leaves)
    total, square, answers = borrow(total), borrow(square), borrow(frozen.answers)
    find_leaves(borrow(frozen.i), borrow(frozen.f), X, leaves)
    for r in range(X.shape[0]):
        out = answers[leaves[r]]
        for c in range(total.shape[2]):
            total[r, 0, c] += out[c]
            if square.shape[0] > 0:
                square[r, 0, c] += second_moment(rule, tree, out, c)


@inner
def step(links, thresholds, x, v):
    """Return the place below ``v`` to which row ``x`` goes; a leaf's own place."""
    is_right = x[np.uint64(links[v, _FEATURE])] > thresholds[v, _THRESHOLD]
    return np.uint64(np.uint32(links[v, _CHILD])) + np.uint64(is_right)


@inner
def find_leaves(links, thresholds, X, leaves):
    """Write the leaf of each row."""
    n = X.shape[0]
    at = np.zeros(_LANES, np.uint64)
    rows = np.empty(_LANES, np.uint64)
    n_lanes = min(n, _LANES)
    for b in range(n_lanes):
        rows[b] = np.uint64(b)
    begun = n_lanes
    while n_lanes > 0:
        b = 0
        while b < n_lanes:
            v, x = at[b], X[rows[b]]
            v = step(links, thresholds, x, v)
            v = step(links, thresholds, x, v)
            v = step(links, thresholds, x, v)
            v = step(links, thresholds, x, v)
            at[b] = v
            leaf = links[v, _LEAF]
            if leaf < 0:
                b += 1
                continue
            leaves[rows[b]] = leaf
            at[b] = np.uint64(0)
            if begun < n:
                rows[b] = np.uint64(begun)
                begun += 1
            else:  # the last lane takes over this one's place
                n_lanes -= 1
                rows[b], at[b] = rows[n_lanes], at[n_lanes]
