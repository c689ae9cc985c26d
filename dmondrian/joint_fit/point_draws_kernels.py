"""Draws keyed by a point: the same each time that a tree is asked about it."""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import kernel
from dmondrian.tree.keyed_random import mix, row_key, tree_key, uniform


@kernel
def write_point_draws(seed, numbers, X, draws):
    """Write a uniform draw of each tree at each of the points X float32 [n, d]. O(n (d + T)).

    ``numbers`` uint64 [T] are the trees'; ``draws`` float64 [n, T].
    """
    for r in range(X.shape[0]):
        point = np.uint64(0)
        for j in range(X.shape[1]):
            value = np.float32(X[r, j] + np.float32(0.0))  # -0.0 is 0.0
            point = mix(point ^ np.uint64(value.view(np.uint32)))
        for t in range(numbers.shape[0]):
            draws[r, t] = uniform(row_key(tree_key(seed, numbers[t]), point), 1)
