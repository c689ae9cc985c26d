"""Many trees in one call: where the arrays of each tree lie.

To hand a tree to a kernel takes longer than to learn a row in it. A table of addresses is one
argument for any number of trees.

Relies on trees that share their columns and stay where they are during the call.

Shapes: T trees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmondrian._numba.intrinsics import array_at
from dmondrian._numba.jit import inline
from dmondrian.tree.nodes import (
    MESSAGE_SIZE,
    N_HEADER_FLOATS,
    N_HEADER_INTS,
    STAT,
    Tree,
    has_time_beside_compiled,
    n_bound_words_compiled,
)

_WORDS, _BOX, _BITS, _HEAD_I, _HEAD_F, _MESSAGES, _POOL = range(7)  # addresses
_CAPACITY, _N_STATS, _N_MESSAGES, _N_POOL, _N_WORDS = range(7, 12)


def table_of(trees: Sequence[Tree]) -> np.ndarray:
    """Return where the trees are, int64 [T, 12]; true as long as they are these objects."""
    table = np.zeros((len(trees), 12), np.int64)
    for row, tree in zip(table, trees, strict=True):
        arrays = tree.i, tree.box, tree.bits, tree.head_i, tree.head_f, tree.messages, tree.pool
        row[: len(arrays)] = [array.ctypes.data for array in arrays]
        lengths = len(tree.i), tree.n_stats, len(tree.messages), len(tree.pool), tree.i.size
        row[_CAPACITY:] = lengths
    return table


@inline
def words_at(table, t):
    """Return the words of all nodes of tree ``t``, one behind the other, int32 [m words]."""
    return array_at(table[t, _WORDS], (table[t, _N_WORDS],), np.int32)


@inline
def tree_at(table, t, columns, scratch):
    """Return tree ``t``; ``scratch`` is the caller's."""
    row = table[t]
    m, n_stats = row[_CAPACITY], row[_N_STATS]
    half, d, width = STAT + n_stats, columns.place.shape[0], n_bound_words_compiled(columns)
    q = (columns.binary.shape[0] + 63) // 64
    times, n_times = row[_BOX], (width + 1) // 2 + 1
    if has_time_beside_compiled(columns, n_stats):
        width = 2 * n_times
    else:
        half += 1
        times, n_times = row[_WORDS], half
    return Tree(
        array_at(row[_WORDS], (m, 2 * half), np.int32),
        array_at(row[_WORDS], (m, 2 * half), np.float32),
        array_at(row[_WORDS], (m, half), np.float64),
        array_at(row[_BOX], (m, width), np.float32),
        array_at(row[_BOX], (m, 2 * width), np.int16),
        array_at(row[_BITS], (m, 2 * q), np.uint64),
        columns,
        array_at(row[_HEAD_I], (N_HEADER_INTS,), np.int64),
        array_at(row[_HEAD_F], (N_HEADER_FLOATS,), np.float64),
        scratch,
        array_at(row[_MESSAGES], (row[_N_MESSAGES], MESSAGE_SIZE), np.float64),
        array_at(row[_POOL], (row[_N_POOL],), np.float64),
        array_at(times, (m, n_times), np.float64),
        d,
        n_stats,
    )
