"""Tallies of candidate cells, which lie side by side in a tree's pool."""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline


@inline
def add_where(tree, at, n, thresholds, value, amount):
    """Add ``amount`` to numbers ``at``.. of the pool whose threshold is not below ``value``."""
    at, thresholds = np.uint64(at), np.uint64(thresholds)  # no test for negative ones on the way
    for k in range(np.uint64(n)):
        tree.pool[at + k] += amount if value <= tree.pool[thresholds + k] else 0.0
