"""Tallies of candidate cells, which lie side by side in a tree's pool."""

from __future__ import annotations

from dmondrian._jit import inner


@inner
def add_where(tree, at, n, thresholds, value, amount):
    """Add ``amount`` to numbers ``at``.. of the pool whose threshold is not below ``value``."""
    for k in range(n):
        tree.pool[at + k] += amount if value <= tree.pool[thresholds + k] else 0.0
