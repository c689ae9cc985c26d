"""Seeded permutations and shares that never change: of row groups, and of rows in them.

Relies on Philox, whose raw stream NumPy guarantees (the methods of `numpy.random.Generator` may
change between versions; raw words may not). Promises: a permutation is a pure function of
(seed, key, length), the same on every machine and NumPy version.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Keys of Philox: row groups use their own number, chunks of a mixed stream are counted from
# CHUNK_ORDER by the position of their first row.
GROUP_ORDER = 2**64 - 1
CHUNK_ORDER = 2**63


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


def share_size(rows: int, share: int, shares: int) -> int:
    """Return how many of the rows of a row group a share has; see `share_rows`."""
    return rows // shares + (share < rows % shares)


def share_rows(seed: int, key: int, rows: int, share: int, shares: int) -> npt.NDArray[np.int64]:
    """Numbers of the rows of a row group that are in one of its shares, in ascending order.

    Of every `shares` consecutive rows each share has one, drawn at random: whatever order the rows
    of the group are in, sorted or periodic, its shares are alike.

    Parameters
    ----------
    seed, key : int
        As in `permutation`.
    rows : int
        Rows of the row group.
    share, shares : int
        Number of the share, and how many there are.

    Returns
    -------
    ndarray of int64, shape (share_size(rows, share, shares),)
    """
    whole = rows // shares
    words = np.random.Philox(key=np.array([seed, key], dtype=np.uint64)).random_raw(whole)
    shifts = (words % np.uint64(shares)).astype(np.int64)
    drawn = (shifts + share) % shares + np.arange(0, whole * shares, shares)
    if share < rows % shares:
        drawn = np.append(drawn, whole * shares + share)
    return drawn
