"""Barrier of mini-batch fits: mean predictions of all trees, where cell values are fitted jointly.

A unit is the rows of one mini-batch in one chunk. When a shard has learned a unit, it returns its
trees' summed predictions of the next one (``next_sums``). The sums of all shards, added in the
order of the shards and divided by the number of trees, are sent with the orders to learn that unit.
So each shard gets one order per unit, and none before all shards have learned the previous unit.

Relies on sums that are a pure function of shard and unit: the first ones count, and shards that
replay rows get the same means again. Promises to keep the means that a replay from the newest
checkpoint needs, and no older ones.
"""

from __future__ import annotations

import numpy as np


class MinibatchBarrier:
    """Mean predictions of units that are being learned, or may have to be learned again.

    Parameters
    ----------
    n_shards, n_trees : int
    """

    def __init__(self, n_shards: int, n_trees: int) -> None:
        self._n_shards, self._n_trees = n_shards, n_trees
        self._sums: dict[int, dict[int, np.ndarray]] = {}
        self._means: dict[int, np.ndarray] = {}

    def take(self, shard: int, unit: int, sums: np.ndarray | None) -> None:
        """Store a shard's sums for a unit; duplicates and None are ignored."""
        if sums is None or unit in self._means:
            return
        by_shard = self._sums.setdefault(unit, {})
        by_shard.setdefault(shard, sums)
        if len(by_shard) == self._n_shards:
            total = np.zeros_like(sums)
            for number in sorted(by_shard):
                total += by_shard[number]
            self._means[unit] = total / self._n_trees
            del self._sums[unit]

    def mean(self, unit: int) -> np.ndarray | None:
        """Return the mean prediction for a unit, float64 [n, k]; None until all sums are there."""
        return self._means.get(unit)

    def forget_before(self, unit: int) -> None:
        """Drop units that no shard can need to replay."""
        for old in [known for known in self._means if known < unit]:
            del self._means[old]
