"""Sums of all shards for a mini-batch, where cells of all trees are fitted together (`Rounds`).

A unit is the rows of one mini-batch in one block. When a shard has learned a unit, its trees take
in the next one and say what they know of it (``ahead``); the sums of all shards, in the order of
the shards, divided by the number of trees, go out with the orders to learn that unit. So one order
a unit goes to each shard, and none before all have learned the unit before it.

Relies on sums that are a pure function of shard and unit: the first counts, and a shard that
replays a stretch gets what was said then. Promises to keep what a replay from the newest checkpoint
needs, and nothing older.
"""

from __future__ import annotations

import numpy as np


class Rounds:
    """Forecasts of units that are under way, or may have to be learned again.

    Parameters
    ----------
    n_shards, n_trees : int
    """

    def __init__(self, n_shards: int, n_trees: int) -> None:
        self._n_shards, self._n_trees = n_shards, n_trees
        self._said: dict[int, dict[int, np.ndarray]] = {}
        self._means: dict[int, np.ndarray] = {}

    def take(self, shard: int, unit: int, sums: np.ndarray | None) -> None:
        """Note what a shard says of a unit, if it does, and for the first time."""
        if sums is None or unit in self._means:
            return
        said = self._said.setdefault(unit, {})
        said.setdefault(shard, sums)
        if len(said) == self._n_shards:
            total = np.zeros_like(sums)
            for number in sorted(said):
                total += said[number]
            self._means[unit] = total / self._n_trees
            del self._said[unit]

    def mean(self, unit: int) -> np.ndarray | None:
        """Return what all trees say of a unit, float64 [n, k]; None as long as some have not."""
        return self._means.get(unit)

    def forget_before(self, unit: int) -> None:
        """Drop units that no shard can have to learn again."""
        for old in [known for known in self._means if known < unit]:
            del self._means[old]
