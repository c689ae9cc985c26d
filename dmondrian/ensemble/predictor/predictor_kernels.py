"""A tree at rest: what each leaf forecasts, written out, and few steps to find the leaf.

Where no cell branches off (growth on the range, predictions from the leaf that a row falls in) a
tree forecasts one thing per leaf. Written out once, by the same operations in the same order as
:func:`dmondrian.tree.loops.predict` uses on the way down, it is the same to the last bit.

Mondrian trees are deep and lopsided: a row mostly goes on to the heavier child. So a tree is cut
into ways: from a node always to the heavier child, down to a leaf. A way is written as groups of
four conditions, one cache line each, which are compared at once; the first that a row does not meet
decides where it goes on; where it meets all, that is the next group. Several rows are on their
way at a time, so that their waits for the memory overlap.

Shapes: n rows, d features, m nodes, g groups, l leaves, k outputs, w numbers of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dmondrian._numba.intrinsics import array_at, prefetch, stream, unowned
from dmondrian._numba.jit import allocating, hook, implements, inline, kernel
from dmondrian.ensemble.settings.row_thresholds import thresholds_of_rows
from dmondrian.tree.address_table import tree_at
from dmondrian.tree.box import distance_to
from dmondrian.tree.box_encoding import row_of
from dmondrian.tree.memory import aligned
from dmondrian.tree.nodes import (
    FEATURE,
    LEFT,
    N_NODES,
    RIGHT,
    ROOT,
    STAT,
    THRESHOLD,
    Tree,
    scratch_size_compiled,
    splits_after,
)
from dmondrian.tree.policies import Visit, add_leaf, begin, pass_node, second_moment
from dmondrian.tree.simd.lanes import EXITS, FEATURES, LANES, SIDES, THRESHOLDS, WORDS, way_on

# Exits of a group (tree/simd/lanes.py) are the group to go on at, or ~leaf. A way ends with a
# condition that nothing meets, whose exit is its leaf.
_WAYS = 12  # ways gone at a time
_BYTES_PER_ROW = 512  # more are not read in order for a row: what it looks at comes in sooner
_GROUPS, _N_GROUPS, _ANSWERS, _N_ANSWERS, _LEAVES = range(5)  # addresses and lengths


class FrozenTree(NamedTuple):
    """Arrays of one tree that predictions read."""

    groups: np.ndarray  # int32 [g, 16]
    answers: np.ndarray  # float64 [l, w]
    leaves: np.ndarray  # int32 [l], the node that forecasts it


class Work(NamedTuple):
    """Scratch to freeze a tree in."""

    groups: np.ndarray  # int32 [g, 16]
    thresholds: np.ndarray  # float32 [g, 16], the same memory
    answers: np.ndarray  # float64 [l, w]
    leaves: np.ndarray  # int32 [l]
    waiting: np.ndarray  # int32 [l, 2], nodes whose ways are still to be written, and their exits
    paths: np.ndarray  # float64 [l + 1, w + 2], what is known above them; the last: at hand


def freeze(loss: Any, rule: Any, tree: Tree, width: int, lifetime: float) -> FrozenTree:
    """Return the tree at a lifetime, frozen; it must not be empty."""
    n_splits = int(tree.head_i[N_NODES]) // 2
    groups = aligned(max(n_splits, 1), WORDS, np.int32)  # a way of n splits has at most n groups
    n_leaves = n_splits + 1
    work = Work(
        groups,
        groups.view(np.float32),
        np.zeros((n_leaves, width)),
        np.empty(n_leaves, np.int32),
        np.empty((n_leaves, 2), np.int32),
        np.empty((n_leaves + 1, width + 2)),
    )
    n_groups, n_leaves = write(loss, rule, tree, lifetime, work)
    kept = aligned(n_groups, WORDS, np.int32)
    kept[:] = groups[:n_groups]
    answers, leaves = work.answers, work.leaves
    if n_leaves < len(leaves):  # the lifetime left some out
        answers, leaves = answers[:n_leaves].copy(), leaves[:n_leaves].copy()
    return FrozenTree(kept, answers, leaves)


def take_unscaled(frozen: Sequence[FrozenTree], scales: Sequence[np.ndarray]) -> None:
    """Let frozen trees take rows as they come, which took them times scales, float32 [d] each."""
    of_each = [tree.groups.view(np.float32)[:, THRESHOLDS : THRESHOLDS + LANES] for tree in frozen]
    factors = [
        of_tree[tree.groups[:, FEATURES : FEATURES + LANES]]
        for of_tree, tree in zip(scales, frozen, strict=True)
    ]
    thresholds_before = thresholds_of_rows(np.concatenate(of_each), np.concatenate(factors))
    ends = np.cumsum([len(thresholds) for thresholds in of_each])
    for thresholds, new_thresholds in zip(
        of_each, np.split(thresholds_before, ends[:-1]), strict=True
    ):
        thresholds[:] = new_thresholds


@inline
def write_leaf(loss, rule, tree, lifetime, work, v, path, leaf):
    """Write what node ``v``, a leaf at the lifetime, forecasts: answer number ``leaf``."""
    width = work.answers.shape[1]
    at = Visit(np.uint64(v), True, lifetime, path[width], path[width + 1])
    add_leaf(rule, loss, tree, at, 1.0, path[:width], work.answers[leaf])
    work.leaves[leaf] = v


@inline
def pass_split(loss, rule, tree, lifetime, v, path):
    """Take split ``v`` into ``path``: what is known, then depth and rest."""
    width = path.shape[0] - 2
    at = Visit(np.uint64(v), False, lifetime, path[width], path[width + 1])
    path[width + 1] = pass_node(rule, loss, tree, at, path[:width])
    path[width] += 1.0


@inline
def begin_group(work, group):
    """Begin a group, of a way that goes on behind it."""
    work.groups[group, SIDES] = 1 << LANES
    work.groups[group, EXITS + LANES] = group + 1


@inline
def prefetch_children(tree, v):
    """Ask for the children of ``v``."""
    if tree.i[v, LEFT] >= 0:
        prefetch(tree.i, tree.i[v, LEFT])
        prefetch(tree.i, tree.i[v, RIGHT])


@inline
def write_way(loss, rule, tree, lifetime, work, v, group, n_waiting):
    """Write the way from node ``v`` at hand down to a leaf, from ``group`` on.

    Returns the group, slot and node of its end, and how many nodes wait.
    """
    path, slot = work.paths[work.paths.shape[0] - 1], 0
    begin_group(work, group)
    while tree.i[v, LEFT] >= 0 and not splits_after(tree, v, lifetime):
        left, right = tree.i[v, LEFT], tree.i[v, RIGHT]
        goes_right = tree.d[left, STAT] < tree.d[right, STAT]
        prefetch_children(tree, left)
        prefetch_children(tree, right)
        pass_split(loss, rule, tree, lifetime, v, path)
        work.groups[group, FEATURES + slot] = tree.i[v, FEATURE]
        work.thresholds[group, THRESHOLDS + slot] = tree.f[v, THRESHOLD]
        work.groups[group, SIDES] |= np.int32(goes_right) << slot
        work.waiting[n_waiting, 0] = left if goes_right else right
        work.waiting[n_waiting, 1] = LANES * group + slot
        above = work.paths[n_waiting]
        for c in range(path.shape[0]):
            above[c] = path[c]
        n_waiting += 1
        v = right if goes_right else left
        slot += 1
        if slot == LANES:
            group, slot = group + 1, 0
            begin_group(work, group)
    return group, slot, v, n_waiting


@kernel
def write(loss, rule, tree, lifetime, work):
    """Write groups and answers of the tree to ``work``; return how many. O(m w)."""
    stream(tree.i[: tree.head_i[N_NODES]])
    width = work.answers.shape[1]
    path = work.paths[work.paths.shape[0] - 1]
    begin(rule, path[:width])
    path[width], path[width + 1] = 0.0, 1.0
    v, n_waiting, n_groups, n_leaves = int(tree.head_i[ROOT]), 0, 0, 0
    exit_at = -1  # of no group: the root's way
    while True:
        is_leaf = tree.i[v, LEFT] < 0 or splits_after(tree, v, lifetime)
        if exit_at >= 0:
            exit_ = ~n_leaves if is_leaf else n_groups
            work.groups[exit_at // LANES, EXITS + exit_at % LANES] = exit_
        if exit_at < 0 or not is_leaf:
            group, slot, v, n_waiting = write_way(
                loss, rule, tree, lifetime, work, v, n_groups, n_waiting
            )
            work.thresholds[group, THRESHOLDS + slot] = np.float32(np.inf)
            work.groups[group, SIDES] |= 1 << slot
            work.groups[group, EXITS + slot] = ~n_leaves
            n_groups = group + 1
        write_leaf(loss, rule, tree, lifetime, work, v, path, n_leaves)
        n_leaves += 1
        if n_waiting == 0:
            return n_groups, n_leaves
        n_waiting -= 1
        v, exit_at = int(work.waiting[n_waiting, 0]), int(work.waiting[n_waiting, 1])
        for c in range(path.shape[0]):
            path[c] = work.paths[n_waiting, c]


class FrozenRows(NamedTuple):
    """Rows on their ways down one frozen tree."""

    groups: np.ndarray  # int32 [g, 16]
    X: np.ndarray  # float32 [n, d]


class FrozenRow(NamedTuple):
    """One row on its ways down frozen trees."""

    table: np.ndarray  # int64 [T, 5], see :func:`frozen_table`
    x: np.ndarray  # float32 [d]


@hook
def frozen_way(ways, b):
    """Return the groups and the row of way number ``b``."""


@implements(frozen_way, FrozenRows)
def frozen_way_of_row(ways, b):
    """Return the groups, and the row."""
    return ways.groups, ways.X[np.uint64(b)]


@implements(frozen_way, FrozenRow)
def frozen_way_in_tree(ways, b):
    """Return the groups, and the row."""
    return groups_at(ways.table[b]), ways.x


def frozen_table(frozen: Sequence[FrozenTree]) -> np.ndarray:
    """Return where frozen trees lie, int64 [T, 5]; true as long as they are these objects."""
    table = np.zeros((len(frozen), 5), np.int64)
    for row, tree in zip(table, frozen, strict=True):
        row[_GROUPS], row[_N_GROUPS] = tree.groups.ctypes.data, len(tree.groups)
        row[_ANSWERS], row[_N_ANSWERS] = tree.answers.ctypes.data, len(tree.answers)
        row[_LEAVES] = tree.leaves.ctypes.data
    return table


@inline
def groups_at(place):
    """Return the groups of the tree that a row of :func:`frozen_table` describes."""
    return array_at(place[_GROUPS], (place[_N_GROUPS], WORDS), np.int32)


@inline
def answers_at(place, width):
    """Return its answers, of ``width`` numbers."""
    return array_at(place[_ANSWERS], (place[_N_ANSWERS], width), np.float64)


@kernel
def predict_frozen_alone(table, width, rows, leaves, total):
    """Add the forecasts of frozen trees for the only row to ``total`` [1, 1, k], tree by tree.

    ``leaves`` int32 [T] takes the leaves; ``width`` numbers are an answer.
    """
    find_leaves(FrozenRow(table, rows.values[0]), leaves)
    for t in range(table.shape[0]):
        answers = answers_at(table[t], width)
        for c in range(total.shape[2]):
            total[0, 0, c] += answers[leaves[t], c]


@inline
def answers_of_rows(place, width, X, leaves):
    """Write the leaves of rows; return the answers of the tree at ``place``, ready to be read."""
    groups, answers = groups_at(place), answers_at(place, width)
    bring_for(groups, leaves.shape[0])
    find_leaves(FrozenRows(groups, X), leaves)
    bring_for(answers, leaves.shape[0])
    return answers


@inline
def next_answer(answers, leaves, r):
    """Return the answer of row ``r``, and ask for that of a row soon after."""
    if r + _WAYS < leaves.shape[0]:
        prefetch(answers, leaves[r + _WAYS])
    return answers[leaves[r]]


@kernel
def collect_frozen(frozen, width, X, answers):
    """Write each frozen tree's answers as they are to ``answers`` [T, n, width].

    ``frozen`` is of :func:`frozen_table`, ``X`` float32 [n, d].
    """
    leaf_memory = np.empty(X.shape[0], np.int32)
    for t in range(frozen.shape[0]):
        leaves = unowned(leaf_memory)
        tree_answers = answers_of_rows(frozen[t], width, X, leaves)
        for r in range(X.shape[0]):
            answer = next_answer(tree_answers, leaves, r)
            for c in range(width):
                answers[t, r, c] = answer[c]


@kernel
def predict_frozen(rule, table, columns, frozen, width, rows, total, square, distance):
    """Add the forecasts of frozen trees to ``total`` [n, 1, k], and what else is asked for.

    ``square`` [n, 1, k] takes second moments about ``OFFSET`` where it has rows, ``distance`` [n]
    extensions, as in :func:`dmondrian.tree.loops.predict`. ``frozen`` is of :func:`frozen_table`,
    ``table`` and ``columns`` of what was frozen.
    """
    lengths = np.empty(scratch_size_compiled(columns))
    memory = np.empty(max(rows.values.shape[1], 8))
    leaf_memory = np.empty(total.shape[0], np.int32)
    for t in range(frozen.shape[0]):
        tree, leaves = tree_at(table, t, columns, unowned(lengths)), unowned(leaf_memory)
        answers = answers_of_rows(frozen[t], width, rows.values, leaves)
        for r in range(total.shape[0]):
            out = next_answer(answers, leaves, r)
            for c in range(total.shape[2]):
                total[r, 0, c] += out[c]
                if square.shape[0] > 0:
                    square[r, 0, c] += second_moment(rule, tree, out, c)
        if distance.shape[0] > 0:
            add_distances(tree, frozen[t], rows, leaves, distance, unowned(memory))


@inline
def add_distances(tree, place, rows, leaves, distance, extensions):
    """Add the extensions from the boxes of frozen ``leaves``, which become nodes, to the rows."""
    nodes = array_at(place[_LEAVES], (place[_N_ANSWERS],), np.int32)
    for r in range(distance.shape[0]):
        leaves[r] = nodes[leaves[r]]
    for r in range(distance.shape[0]):
        if r + _WAYS < distance.shape[0]:
            prefetch(tree.box, leaves[r + _WAYS])
            prefetch(tree.bits, leaves[r + _WAYS])
        distance[r] += distance_to(tree, leaves[r], row_of(rows, r), extensions)


@inline
def bring_for(array, n):
    """Bring ``array`` into the cache where ``n`` rows would bring much of it, in no order."""
    if array.size * array.itemsize <= n * _BYTES_PER_ROW:
        stream(array)


@allocating
def find_leaves(ways, leaves):
    """Write the leaf at the end of each way."""
    n = leaves.shape[0]
    at = np.zeros(_WAYS, np.uint64)
    names = np.empty(_WAYS, np.int64)
    n_moving = min(n, _WAYS)
    for b in range(n_moving):
        names[b] = b
    begun = n_moving
    while n_moving > 0:
        b = 0
        while b < n_moving:
            groups, x = frozen_way(ways, names[b])
            exit_ = way_on(groups, at[b], x)
            if exit_ >= 0:
                at[b] = np.uint64(exit_)
                b += 1
                continue
            leaves[names[b]] = ~exit_
            at[b] = np.uint64(0)
            if begun < n:
                names[b] = begun
                begun += 1
            else:  # the last way takes over this one's place
                n_moving -= 1
                names[b], at[b] = names[n_moving], at[n_moving]
