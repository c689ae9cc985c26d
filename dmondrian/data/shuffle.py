"""Seeded permutations that never change: of row groups, and of rows in a row group.

Relies on Philox, whose raw stream NumPy guarantees (the methods of `numpy.random.Generator` may
change between versions; raw words may not). Promises: a permutation is a pure function of
(seed, key, length), the same on every machine and NumPy version.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GROUP_ORDER = 2**64 - 1  # key of the order of row groups; row groups use their own number


def permutation(seed: int, key: int, length: int) -> npt.NDArray[np.int64]:
    """Permutation of ``range(length)``.

    Parameters
    ----------
    seed, key : int
        In [0, 2**64); both are key words of Philox.
    length : int
        Number of items.

    Returns
    -------
    ndarray of int64, shape (length,)
    """
    words = np.random.Philox(key=np.array([seed, key], dtype=np.uint64)).random_raw(length)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)
