"""Cells of the unit cube at a lifetime, in full: also where the tree leaves them whole.

Relies on :mod:`dmondrian.growth.cube`: a leaf of one point is not split in the tree, but what its
cell would be at any lifetime is drawn from its path.

Shapes: d features, c cells.
"""

from __future__ import annotations

from dmondrian._jit import kernel
from dmondrian._memory import borrow
from dmondrian.core.box import copy, is_outside
from dmondrian.core.draws import tree_key
from dmondrian.core.nodes import LEFT, borrow_tree
from dmondrian.growth.cube import birth, cell_of, child_key, draw_split, narrow


@kernel
def write_cells(tree, seed, number, which, lifetime, lower, upper):
    """Write the cells of nodes ``which`` [c] at a lifetime to ``lower``, ``upper`` float64 [c, d].

    The nodes must have rows and come into being before the lifetime. O(depth * d) each.
    """
    tree, which, lower, upper = borrow_tree(tree), borrow(which), borrow(lower), borrow(upper)
    first, low, d = tree_key(seed, number), tree.lower, tree.n_features
    for c in range(which.shape[0]):
        v = which[c]
        point, far = tree.f[v, low : low + d], tree.f[v, low + d : low + d + d]
        key = cell_of(tree, first, v, point)
        time = birth(tree, v)
        while tree.i[v, LEFT] < 0 and not is_outside(point, point, far):
            time, feature, threshold = draw_split(tree, key, time)
            if time > lifetime:
                break
            goes_left = point[feature] <= threshold
            narrow(tree, feature, threshold, goes_left)
            key = child_key(key, goes_left)
        copy(tree.scratch[d : 2 * d], lower[c])
        copy(tree.scratch[2 * d : 3 * d], upper[c])
