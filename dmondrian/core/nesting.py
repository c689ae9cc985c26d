"""Bounds of nodes as their difference from what lies below them.

Boxes nest: the box of an internal node is the smallest around its children's, and that of most
leaves is a point. So bounds are stored by the bits in which they differ from that (exclusive or):
an internal node's from its children's, a leaf's upper ones from its lower ones. Nearly all bits are
0, which takes next to nothing once compressed; and any bounds come back as they were, also those
that do not nest.

Shapes: m nodes, d features.
"""

from __future__ import annotations

import numpy as np

from dmondrian._jit import inner, kernel
from dmondrian._memory import borrow
from dmondrian.core.columns import read_only
from dmondrian.core.nodes import LEFT, RIGHT, Tree, bounds_of


@inner
def _least(values, bits, a, b, j):
    """Return the bits of the lower of two nodes' bounds; by one comparison, whatever is compared.

    A library's minimum may return either zero of two, by the processor.
    """
    return bits[a, j] if values[a, j] < values[b, j] else bits[b, j]


@inner
def _most(values, bits, a, b, j):
    """Return the bits of the higher of two nodes' bounds; see :func:`_least`."""
    return bits[a, j] if values[a, j] > values[b, j] else bits[b, j]


@kernel
def _take_differences(links, values, bits, lower, upper):
    """Write differences of bounds to ``lower`` and ``upper``, int32 [m, d]. O(m d).

    ``links`` int32 [m, words] are those of nodes; ``values`` float32 [m, 2 d] are lower bounds,
    then upper ones, ``bits`` int32 the same memory.
    """
    links, values, bits = borrow(links), borrow(values), borrow(bits)
    lower, upper, d = borrow(lower), borrow(upper), lower.shape[1]
    for v in range(lower.shape[0]):
        a, b = np.int64(links[v, LEFT]), np.int64(links[v, RIGHT])
        for j in range(d):
            low, high = bits[v, j], bits[v, d + j]
            if a < 0:
                lower[v, j], upper[v, j] = low, high ^ low
            else:
                lower[v, j] = low ^ _least(values, bits, a, b, j)
                upper[v, j] = high ^ _most(values, bits, a, b, d + j)


def take_differences(tree: Tree, lower: np.ndarray, upper: np.ndarray) -> None:
    """Write the differences of all bounds of a tree to ``lower`` and ``upper``, float32 [m, d]."""
    bounds = bounds_of(tree, slice(0, len(lower)))
    ends = lower.view(np.int32), upper.view(np.int32)
    _take_differences(tree.i[: len(lower)], bounds, bounds.view(np.int32), *ends)


@inner
def _first_below(left, v):
    """Return the leaf that is reached from ``v`` by left children."""
    while left[v] >= 0:
        v = np.int64(left[v])
    return np.int64(v)


@kernel
def _add_differences(links, root, values, bits):
    """Make bounds of differences, in place; links are those of a sound tree. O(m d)."""
    left, right, parent = links
    left, right, parent = borrow(left), borrow(right), borrow(parent)
    (lower, upper), (low_bits, high_bits) = values, bits
    lower, upper, low_bits, high_bits = (
        borrow(lower), borrow(upper), borrow(low_bits), borrow(high_bits),
    )  # fmt: skip
    v = _first_below(left, root)
    while v >= 0:  # children before parents
        a, b = np.int64(left[v]), np.int64(right[v])
        for j in range(lower.shape[1]):
            if a < 0:
                high_bits[v, j] ^= low_bits[v, j]
            else:
                low_bits[v, j] ^= _least(lower, low_bits, a, b, j)
                high_bits[v, j] ^= _most(upper, high_bits, a, b, j)
        above = np.int64(parent[v])
        v = above if above < 0 or right[above] == v else _first_below(left, right[above])


def add_differences(arrays: dict[str, np.ndarray], root: int) -> dict[str, np.ndarray]:
    """Return the bounds of which ``lower`` and ``upper``, float32 [m, d], are the differences.

    The links ``left``, ``right`` and ``parent`` must be those of a tree (trusted).
    """
    links = tuple(read_only(arrays[name]) for name in ("left", "right", "parent"))
    values = np.array(arrays["lower"], order="C"), np.array(arrays["upper"], order="C")
    if root >= 0:
        _add_differences(links, root, values, tuple(end.view(np.int32) for end in values))
    return dict(zip(("lower", "upper"), values, strict=True))
