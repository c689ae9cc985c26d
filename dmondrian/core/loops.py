"""The two loops: learn rows, predict rows. No algorithm has its own.

Shapes: n rows, d features, k outputs (classes, or one).

A row is learned in this order: it is routed to its leaf (growth), then from the leaf up
each node on the path first prices it, then counts it, then shifts its weight. Kernels
allocate nothing per row: :func:`update` returns at the row for which there is no room.
"""

from __future__ import annotations

import numpy as np

from dmondrian._jit import borrow, inner, kernel
from dmondrian.core.box import measure
from dmondrian.core.draws import row_key, tree_key
from dmondrian.core.nodes import (
    FEATURE,
    LEFT,
    N_NODES,
    PARENT,
    RIGHT,
    ROOT,
    THRESHOLD,
    TIME,
    TOTAL_WEIGHT,
    borrow_tree,
)
from dmondrian.core.policies import (
    add_empty_forecast,
    add_forecast,
    branch_off,
    count,
    grow,
    inserted_factor,
    insertion,
    opening_price,
    prepare,
    price,
    shift_weight,
    stop_weight,
)

MAX_REPEATS = 256  # integer weights up to this are learned as repeats, byte for byte


@inner
def learn_path(stat, loss, rule, tree, leaf, opened, y, w):
    """Price, count and weigh one row from its leaf to the root. O(depth)."""
    if opened:
        q, kq = opening_price(loss, tree, leaf, y, w)
    else:
        q, kq = price(loss, tree, leaf, y, w)
    count(stat, tree, leaf, y, w)
    v = tree.i[leaf, PARENT]
    factor = inserted_factor(rule, tree, v) if opened and v >= 0 else 1.0
    while v >= 0:
        p, kp = price(loss, tree, v, y, w)
        count(stat, tree, v, y, w)
        q, kq = shift_weight(rule, tree, v, p, kp, q, kq)
        q *= factor
        factor = 1.0
        v = tree.i[v, PARENT]


@inner
def learn_row(growth, stat, loss, rule, tree, key, x, y, w):
    """Learn one row of weight ``w`` > 0."""
    prepare(loss, rule, tree, y)
    bits = np.float64(tree.head_f[TOTAL_WEIGHT]).view(np.uint64)
    leaf, opened = grow(growth, stat, rule, tree, x, y, row_key(key, bits))
    if w == 1.0:
        learn_path(stat, loss, rule, tree, leaf, opened, y, 1.0)
        tree.head_f[TOTAL_WEIGHT] += 1.0
    elif w <= MAX_REPEATS and w == np.floor(w):
        for repeat in range(int(w)):
            if repeat > 0:
                prepare(loss, rule, tree, y)
            learn_path(stat, loss, rule, tree, leaf, opened and repeat == 0, y, 1.0)
            tree.head_f[TOTAL_WEIGHT] += 1.0
    else:
        learn_path(stat, loss, rule, tree, leaf, opened, y, w)
        tree.head_f[TOTAL_WEIGHT] += w


@kernel
def update(growth, stat, loss, rule, tree, seed, number, X, y, w, start):
    """Learn rows ``start``.. of a block in order; return the row reached.

    Writes the tree. Returns before n where two more nodes would not fit. ``X`` float32
    [n, d], ``y`` float64 [n], ``w`` float64 [n] or [0] for weights of one; rows of
    weight zero are passed over. O(depth * d) per row.
    """
    tree, X, y, w = borrow_tree(tree), borrow(X), borrow(y), borrow(w)
    key = tree_key(seed, number)
    capacity = tree.i.shape[0]
    for r in range(start, X.shape[0]):
        if tree.head_i[N_NODES] + 2 > capacity:
            return r
        weight = w[r] if w.shape[0] > 0 else 1.0
        if weight > 0.0:
            learn_row(growth, stat, loss, rule, tree, key, X[r], y[r], weight)
    return X.shape[0]


@inner
def predict_row(growth, stat, loss, rule, tree, x, path, out):
    """Write one tree's prediction for ``x`` to ``out``; return the leaf. O(depth).

    ``path`` gathers the mixture of the tree as it is. Where growth may branch off above
    v, the tree extended there mixes what the nodes above v say, a copy of v and an empty
    leaf; the insertion changes the weight of the subtree by a factor, so of all above.
    """
    path[:] = 0.0
    out[:] = 0.0
    v = tree.head_i[ROOT]
    parent_time = 0.0
    depth = 0.0
    rest = 1.0  # share of the mixture not yet given to nodes above v
    alive = 1.0  # probability of no branch above v
    while True:
        is_leaf = tree.i[v, LEFT] < 0
        off = branch_off(growth, stat, tree, v, parent_time, x)
        if off > 0.0:
            share, factor = insertion(rule, tree, v, is_leaf)
            below = rest * factor
            scale = alive * off / (1.0 - rest + below)
            for c in range(out.shape[0]):
                out[c] += scale * path[c]
            add_forecast(loss, tree, v, depth, scale * below * share, out)
            add_empty_forecast(loss, tree, v, depth + 1.0, scale * below * (1.0 - share), out)
            alive *= 1.0 - off
        if is_leaf:
            add_forecast(loss, tree, v, depth, rest, path)
            for c in range(out.shape[0]):
                out[c] += alive * path[c]
            return v
        share = stop_weight(rule, tree, v)
        if share > 0.0:
            add_forecast(loss, tree, v, depth, rest * share, path)
            rest *= 1.0 - share
        parent_time = tree.d[v, TIME]
        depth += 1.0
        goes_left = x[tree.i[v, FEATURE]] <= tree.f[v, THRESHOLD]
        v = tree.i[v, LEFT] if goes_left else tree.i[v, RIGHT]


@kernel
def predict(growth, stat, loss, rule, tree, X, work, total, square, distance):
    """Add one tree's predictions to ``total`` [n, k], and what else is asked for.

    ``square`` [n, k] takes squares where it has rows, ``distance`` [n] the sum of
    extensions to the leaf's box; ``work`` [2, k] is scratch. The tree must not be empty.
    """
    tree, X, work = borrow_tree(tree), borrow(X), borrow(work)
    total, square, distance = borrow(total), borrow(square), borrow(distance)
    out = work[1]
    low, d = tree.lower, tree.n_features
    for r in range(X.shape[0]):
        leaf = predict_row(growth, stat, loss, rule, tree, X[r], work[0], out)
        for c in range(out.shape[0]):
            total[r, c] += out[c]
        if square.shape[0] > 0:
            for c in range(out.shape[0]):
                square[r, c] += out[c] * out[c]
        if distance.shape[0] > 0:
            box = tree.f[leaf]
            lower, upper = box[low : low + d], box[low + d : low + d + d]
            distance[r] += measure(lower, upper, X[r], tree.scratch)
