"""Trees as a sweep over lifetimes sees them: their cuts in the order of time, and their rows.

Relies on partitions that do not depend on how far they are realised.

Shapes: n rows, T trees, m nodes of all trees together, q cuts, p finest cells.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.joint_fit.lifetime_sweep_kernels import Cuts, sort_rows, write_leaves
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding import read_only
from dmondrian.tree.box_encoding_choice import without_boxes

FIRST_CUTS = 2.0  # cuts of a tree expected up to the lifetime that is realised at first


def first_lifetime(X: np.ndarray, end: float) -> float:
    """Return the lifetime at which trees have a few cuts, up to an ``end``."""
    size = math.fsum(X.max(axis=0) - X.min(axis=0))
    return min(FIRST_CUTS / size if size > 0.0 else 1.0, end)


class Finest(NamedTuple):
    """The finest cells that hold rows which were learned."""

    pairs: np.ndarray  # float64 [p, p], weights of the rows that are in two of them, symmetric
    cells: np.ndarray  # int64 [2, p], tree and node of each


def cuts_of(
    forest: Ensemble, X: np.ndarray, until: float, finest: Finest | None = None
) -> tuple[Cuts, np.ndarray, np.ndarray]:
    """Return the cuts up to a lifetime, their times float64 [q], and each tree's first node.

    The trees must have taken in the rows, or the ``finest`` cells, which are the first "rows" then.
    """
    encoded_rows = without_boxes(read_only(X))
    used = [int(tree.head_i[nodes.N_NODES]) for tree in forest.store.trees]
    offsets = np.concatenate([[0], np.cumsum(used)]).astype(np.int64)
    pairs, cells = (np.empty((0, 0)), np.empty((2, 0), np.int64)) if finest is None else finest
    m, p = int(offsets[-1]), len(pairs)
    left, right, tree_of = np.empty((3, m), np.int64)
    first, last = np.zeros((2, m), np.int64)
    time, rows = np.empty(m), np.empty((len(used), p + len(X)), np.int64)
    leaves = np.empty(p + len(X), np.int64)
    for t, tree in enumerate(forest.store.trees):
        span = slice(int(offsets[t]), int(offsets[t + 1]))
        links = tree.i[: used[t]]
        left[span] = links[:, nodes.LEFT] + span.start
        right[span] = links[:, nodes.RIGHT] + span.start
        time[span], tree_of[span] = nodes.times_of(tree), t
        leaves[:p] = np.where(cells[0] == t, cells[1], -1)
        write_leaves(tree, encoded_rows, leaves[p:])
        sort_rows(tree, leaves, first[span], last[span], rows[t])
    roots = np.array([tree.head_i[nodes.ROOT] for tree in forest.store.trees]) + offsets[:-1]
    cut = np.flatnonzero(np.isfinite(time) & (time <= until))
    cut = cut[np.lexsort((cut, time[cut]))]
    owner = np.ascontiguousarray(cells[0])
    cuts = Cuts(
        left, right, first, last, tree_of, rows, roots.astype(np.int64), cut, pairs, owner
    )  # fmt: skip
    return cuts, time[cut], offsets[:-1]
