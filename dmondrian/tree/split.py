"""Insert a split above a node: ids are permanent, the new parent takes a new id."""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline
from dmondrian.tree.box import copy, copy_box, enclose
from dmondrian.tree.nodes import (
    EXPONENT,
    FEATURE,
    LEFT,
    N_NODES,
    ODDS,
    PARENT,
    RIGHT,
    ROOT,
    STAT,
    THRESHOLD,
    set_time,
)


@inline
def open_leaf(tree, parent):
    """Append a leaf with empty statistics, whose box is still to be written; return its id."""
    v = tree.head_i[N_NODES]
    tree.head_i[N_NODES] = v + 1
    links, values, doubles = tree.i[v], tree.f[v], tree.d[v]
    links[LEFT] = -1
    links[RIGHT] = -1
    links[PARENT] = parent
    links[FEATURE] = -1
    links[EXPONENT] = 0
    values[THRESHOLD] = np.float32(0.0)
    doubles[ODDS] = 1.0
    doubles[STAT : STAT + tree.n_stats] = 0.0
    set_time(tree, v, np.inf)
    return v


@inline
def insert_parent(tree, v, time, feature, threshold, x):
    """Insert above ``v`` a split that parts ``x`` from it; return (parent, leaf).

    The parent starts as a copy of ``v``: statistics, box and cumulated price; its box
    is then stretched by the caller. O(d + s).
    """
    above = tree.i[v, PARENT]
    new = tree.head_i[N_NODES]
    copy(tree.i[v], tree.i[new])
    copy_box(tree, v, new)
    tree.head_i[N_NODES] = new + 1
    leaf = open_leaf(tree, new)
    enclose(tree, leaf, x)
    links = tree.i[new]
    x_is_left = x.values[feature] <= threshold
    links[LEFT] = leaf if x_is_left else v
    links[RIGHT] = v if x_is_left else leaf
    links[PARENT] = above
    links[FEATURE] = feature
    tree.f[new, THRESHOLD] = threshold
    set_time(tree, new, time)
    tree.i[v, PARENT] = new
    if above < 0:
        tree.head_i[ROOT] = new
    elif tree.i[above, LEFT] == v:
        tree.i[above, LEFT] = new
    else:
        tree.i[above, RIGHT] = new
    return new, leaf


@inline
def threshold_between(low, high, u):
    """Return the point at ``u`` in (0, 1) between two float32 with low < high.

    The result t satisfies low <= t < high in float32, so x <= t parts them strictly.
    """
    cut = np.float32(np.float64(low) + u * (np.float64(high) - np.float64(low)))
    if cut >= high:
        cut = np.nextafter(high, np.float32(-np.inf))
    return max(cut, low)
