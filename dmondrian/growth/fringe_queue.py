"""Which leaf enters a full fringe next: the one of largest p e, without a look at all of them.

Each node knows the best of the leaves below it that wait for a place, so the root knows the best
of all. p e is stored as it was when last looked at, in the leaf's place for odds; since then it can
have fallen, as p is a share of ever more rows, but not risen: a leaf that gains in error is looked
at (:func:`note`). So what is stored is never too little, and the root's leaf is looked at again
until it keeps its place. Of equal ones the older leaf wins.

A node's word ``CANDIDATES`` is ~u, < 0, where u is the best waiting leaf below it, or itself;
else as :mod:`dmondrian.growth.candidates` has it. The words of a stored tree are written anew when
they are first needed, and change no choice.

Relies on leaves whose counts grow, and on a weight of estimation rows that does. Promises the
choice that a look at all leaves would make, to the last bit: divisions and differences of doubles
round in order.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline
from dmondrian.growth.candidates import NONE, OPEN
from dmondrian.tree.nodes import (
    CANDIDATES,
    ESTIMATED,
    LEFT,
    N_ACTIVE,
    N_NODES,
    ODDS,
    PARENT,
    RIGHT,
    ROOT,
    STAT,
    first_in_postorder,
    next_in_postorder,
)
from dmondrian.tree.policies import error

WORTH = ODDS  # double of a waiting leaf; p e when last looked at


@inline
def worth(stat, tree, v):
    """Return p e of leaf ``v``: p the share of estimation rows since its counts began."""
    return error(stat, tree, v) / (tree.head_f[ESTIMATED] - tree.d[v, STAT + tree.n_stats - 1])


@inline
def is_better(tree, first, second):
    """Return whether the leaf of word ``first`` goes before that of ``second``."""
    if first >= NONE or second >= NONE:
        return first < NONE
    a, b = tree.d[~first, WORTH], tree.d[~second, WORTH]
    return a > b or (a == b and ~first < ~second)


@inline
def best_below(tree, v):
    """Return the word of the best leaf below internal node ``v``, NONE if none waits."""
    left, right = tree.i[tree.i[v, LEFT], CANDIDATES], tree.i[tree.i[v, RIGHT], CANDIDATES]
    if is_better(tree, left, right):
        return left
    return right if right < NONE else np.int32(NONE)


@inline
def lift(tree, v):
    """Let the ancestors of ``v`` know its best leaf, which got better. O(depth)."""
    best = tree.i[v, CANDIDATES]
    parent = tree.i[v, PARENT]
    while parent >= 0:
        known = tree.i[parent, CANDIDATES]
        if known != best and not is_better(tree, best, known):
            return
        tree.i[parent, CANDIDATES] = best
        parent = tree.i[parent, PARENT]


@inline
def sink(tree, v):
    """Let the ancestors of ``v`` know that its best leaf got worse, or waits no more. O(depth)."""
    parent = tree.i[v, PARENT]
    while parent >= 0:
        tree.i[parent, CANDIDATES] = best_below(tree, parent)
        parent = tree.i[parent, PARENT]


@inline
def note(stat, tree, v):
    """Take notice of what leaf ``v`` has counted. O(1), O(depth) if it got better."""
    if tree.i[v, CANDIDATES] < NONE:
        now = worth(stat, tree, v)
        if now > tree.d[v, WORTH]:
            tree.d[v, WORTH] = now
            lift(tree, v)


@inline
def queue(stat, tree, v):
    """Let leaf ``v`` wait, unknown to its ancestors as yet."""
    tree.i[v, CANDIDATES] = ~np.int32(v)
    tree.d[v, WORTH] = worth(stat, tree, v)


@inline
def queue_all(stat, tree):
    """Write the words of all leaves that have no place, and of the nodes above. O(m)."""
    v = first_in_postorder(tree)
    while v >= 0:
        if tree.i[v, LEFT] >= 0:
            tree.i[v, CANDIDATES] = best_below(tree, v)
        elif tree.i[v, CANDIDATES] <= NONE:
            queue(stat, tree, v)
        v = next_in_postorder(tree, v)


@inline
def queue_children(stat, tree, v):
    """Let the leaves below ``v``, which was split, wait. O(depth), O(m) for a stored tree."""
    root = tree.head_i[ROOT]
    n_others = (tree.head_i[N_NODES] + 1) // 2 - 2
    if n_others > tree.head_i[N_ACTIVE] and tree.i[root, CANDIDATES] == NONE:
        queue_all(stat, tree)
        return
    queue(stat, tree, tree.i[v, LEFT])
    queue(stat, tree, tree.i[v, RIGHT])
    tree.i[v, CANDIDATES] = best_below(tree, v)
    lift(tree, v)


@inline
def call_next(stat, tree):
    """Give the best of the waiting leaves a place. O(depth) for each one that is looked at."""
    root = tree.head_i[ROOT]
    while True:
        v = np.int64(~tree.i[root, CANDIDATES])
        now = worth(stat, tree, v)
        if not now < tree.d[v, WORTH]:
            break
        tree.d[v, WORTH] = now
        sink(tree, v)
    tree.i[v, CANDIDATES] = OPEN
    sink(tree, v)
