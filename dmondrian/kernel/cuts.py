"""Trees as a sweep over lifetimes sees them: their cuts in the order of time, and their rows.

Relies on partitions that do not depend on how far they are realised.

Shapes: n rows, T trees, m nodes of all trees together, q cuts.
"""

from __future__ import annotations

import numpy as np

from dmondrian.core import nodes
from dmondrian.core.columns import read_only
from dmondrian.core.cuts import Cuts, sort_rows
from dmondrian.forest import Forest
from dmondrian.layout import without_boxes

FIRST_CUTS = 2.0  # cuts of a tree expected up to the lifetime that is realised at first


def cuts_of(forest: Forest, X: np.ndarray, until: float) -> tuple[Cuts, np.ndarray, np.ndarray]:
    """Return the cuts up to a lifetime, their times float64 [q], and each tree's first node.

    The trees must have taken in the rows.
    """
    given = without_boxes(read_only(X))
    used = [int(tree.head_i[nodes.N_NODES]) for tree in forest.placed]
    offsets = np.concatenate([[0], np.cumsum(used)]).astype(np.int64)
    m = int(offsets[-1])
    left, right, tree_of = np.empty((3, m), np.int64)
    first, last = np.zeros((2, m), np.int64)
    time, rows = np.empty(m), np.empty((len(used), len(X)), np.int64)
    for t, tree in enumerate(forest.placed):
        mine = slice(int(offsets[t]), int(offsets[t + 1]))
        links = tree.i[: used[t]]
        left[mine] = links[:, nodes.LEFT] + mine.start
        right[mine] = links[:, nodes.RIGHT] + mine.start
        time[mine], tree_of[mine] = nodes.times_of(tree), t
        sort_rows(tree, given, first[mine], last[mine], rows[t])
    roots = np.array([tree.head_i[nodes.ROOT] for tree in forest.placed]) + offsets[:-1]
    cut = np.flatnonzero(np.isfinite(time) & (time <= until))
    cut = cut[np.lexsort((cut, time[cut]))]
    cuts = Cuts(left, right, first, last, tree_of, rows, roots.astype(np.int64), cut)
    return cuts, time[cut], offsets[:-1]
