"""Cells of the unit cube at a lifetime, in full: also where the tree leaves them whole.

Relies on :mod:`dmondrian.growth.cube`: a leaf of one point is not split in the tree, but what its
cell would be at any lifetime is drawn from its path.

Shapes: d features, c cells.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.intrinsics import unowned
from dmondrian._numba.jit import kernel
from dmondrian.growth.cube import cell_of, child_key, draw_split, narrow, split_leaf
from dmondrian.tree.box import bound, copy, is_point
from dmondrian.tree.box_encoding import Row
from dmondrian.tree.keyed_random import tree_key
from dmondrian.tree.nodes import LEFT, N_NODES, STAT, birth_of


@kernel
def split_to_the_end(tree, seed, number, lifetime):
    """Split the cells of single points as the process does, up to a lifetime.

    Returns whether there was capacity; if not, calling again goes on. O(depth * d) per node.
    """
    first, d = tree_key(seed, number), tree.n_features
    memory = np.empty(d, np.float32)
    v = 0
    while v < tree.head_i[N_NODES]:
        corner = unowned(memory)
        if tree.i[v, LEFT] < 0 and tree.d[v, STAT] > 0.0 and is_point(tree, v):
            for j in range(d):
                corner[j] = bound(tree, v, j, False)
            key = cell_of(tree, first, v, Row(corner, corner, tree.steps[v, :0], tree.bits[v]))
            time, feature, threshold = draw_split(tree, key, birth_of(tree, v))
            if time <= lifetime:
                if tree.head_i[N_NODES] + 2 > tree.i.shape[0]:
                    return False
                split_leaf(tree, v, time, feature, threshold)
        v += 1
    return True


@kernel
def write_cells(tree, seed, number, which, lifetime, lower, upper):
    """Write the cells of nodes ``which`` [c] at a lifetime to ``lower``, ``upper`` float64 [c, d].

    The nodes must have rows and come into being before the lifetime. O(depth * d) each.
    """
    first, d = tree_key(seed, number), tree.n_features
    memory = np.empty(d, np.float32)
    for c in range(which.shape[0]):
        corner = unowned(memory)
        v = which[c]
        for j in range(d):
            corner[j] = bound(tree, v, j, False)
        key = cell_of(tree, first, v, Row(corner, corner, tree.steps[v, :0], tree.bits[v]))
        time = birth_of(tree, v)
        while tree.i[v, LEFT] < 0 and is_point(tree, v):
            time, feature, threshold = draw_split(tree, key, time)
            if time > lifetime:
                break
            goes_left = corner[feature] <= threshold
            narrow(tree, feature, threshold, goes_left)
            key = child_key(key, goes_left)
        copy(tree.scratch[d : 2 * d], lower[c])
        copy(tree.scratch[2 * d : 3 * d], upper[c])
