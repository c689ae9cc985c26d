"""Cells of the unit cube at a lifetime, in full: also where the tree leaves them whole.

Relies on :mod:`dmondrian.growth.cube`: a leaf of one point is not split in the tree, but what its
cell would be at any lifetime is drawn from its path.

Shapes: d features, c cells.
"""

from __future__ import annotations

import numpy as np

from dmondrian._jit import kernel
from dmondrian._memory import borrow
from dmondrian.core.box import bound, copy, is_point
from dmondrian.core.columns import Row
from dmondrian.core.draws import tree_key
from dmondrian.core.nodes import LEFT, borrow_tree
from dmondrian.growth.cube import birth, cell_of, child_key, draw_split, narrow


@kernel
def write_cells(tree, seed, number, which, lifetime, lower, upper):
    """Write the cells of nodes ``which`` [c] at a lifetime to ``lower``, ``upper`` float64 [c, d].

    The nodes must have rows and come into being before the lifetime. O(depth * d) each.
    """
    tree, which, lower, upper = borrow_tree(tree), borrow(which), borrow(lower), borrow(upper)
    first, d = tree_key(seed, number), tree.n_features
    memory = np.empty(d, np.float32)
    corner = borrow(memory)
    for c in range(which.shape[0]):
        v = which[c]
        for j in range(d):
            corner[j] = bound(tree, v, j, False)
        key = cell_of(tree, first, v, Row(corner, corner, tree.bits[v]))
        time = birth(tree, v)
        while tree.i[v, LEFT] < 0 and is_point(tree, v):
            time, feature, threshold = draw_split(tree, key, time)
            if time > lifetime:
                break
            goes_left = corner[feature] <= threshold
            narrow(tree, feature, threshold, goes_left)
            key = child_key(key, goes_left)
        copy(tree.scratch[d : 2 * d], lower[c])
        copy(tree.scratch[2 * d : 3 * d], upper[c])
