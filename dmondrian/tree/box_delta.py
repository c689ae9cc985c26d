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

from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.box_encoding import read_only
from dmondrian.tree.nodes import LEFT, RIGHT, Tree, bounds_of


@inline
def _rank(bits):
    """Return an integer that rises with the float of these bits; the rank of a rank is the bits.

    Floats are not compared: by the processor's settings those below 2^-126 are all zero.
    """
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


@inline
def _least(bits, a, b, j):
    """Return the bits of the lower of two nodes' bounds."""
    return _rank(min(_rank(bits[a, j]), _rank(bits[b, j])))


@inline
def _most(bits, a, b, j):
    """Return the bits of the higher of two nodes' bounds."""
    return _rank(max(_rank(bits[a, j]), _rank(bits[b, j])))


@kernel
def _take_differences(links, bits, lower, upper):
    """Write differences of bounds to ``lower`` and ``upper``, int32 [m, d]. O(m d).

    ``links`` int32 [m, words] are those of nodes; ``bits`` int32 [m, 2 d or more] those of lower
    bounds, then of upper ones. Links beyond the nodes are of a tree that learns meanwhile: what
    is written then is no tree, but nothing else is read.
    """
    d, m = lower.shape[1], links.shape[0]
    for v in range(m):
        a, b = np.int64(links[v, LEFT]), np.int64(links[v, RIGHT])
        has_children = 0 <= a < m and 0 <= b < m
        for j in range(d):
            low, high = bits[v, j], bits[v, d + j]
            if has_children:
                lower[v, j] = low ^ _least(bits, a, b, j)
                upper[v, j] = high ^ _most(bits, a, b, d + j)
            else:
                lower[v, j], upper[v, j] = low, high ^ low


def take_differences(tree: Tree, lower: np.ndarray, upper: np.ndarray) -> None:
    """Write the differences of all bounds of a tree to ``lower`` and ``upper``, float32 [m, d]."""
    links = tree.i[: len(lower)]
    bounds = bounds_of(tree, slice(0, len(links)))
    _take_differences(links, bounds.view(np.int32), lower.view(np.int32), upper.view(np.int32))


@inline
def _first_below(left, v):
    """Return the leaf that is reached from ``v`` by left children."""
    while left[v] >= 0:
        v = np.int64(left[v])
    return np.int64(v)


@kernel
def _add_differences(links, root, lower, upper):
    """Make bits of bounds of differences, in place; links are those of a sound tree. O(m d)."""
    left, right, parent = links
    v = _first_below(left, root)
    while v >= 0:  # children before parents
        a, b = np.int64(left[v]), np.int64(right[v])
        for j in range(lower.shape[1]):
            if a < 0:
                upper[v, j] ^= lower[v, j]
            else:
                lower[v, j] ^= _least(lower, a, b, j)
                upper[v, j] ^= _most(upper, a, b, j)
        above = np.int64(parent[v])
        v = above if above < 0 or right[above] == v else _first_below(left, right[above])


def add_differences(arrays: dict[str, np.ndarray], root: int) -> dict[str, np.ndarray]:
    """Return the bounds of which ``lower`` and ``upper``, float32 [m, d], are the differences.

    In their memory, unless it is read-only. The links ``left``, ``right`` and ``parent`` must be
    those of a tree (trusted).
    """
    links = tuple(read_only(arrays[name]) for name in ("left", "right", "parent"))
    ends = {name: np.require(arrays[name], None, ["C", "W"]) for name in ("lower", "upper")}
    if root >= 0:
        _add_differences(links, root, *(end.view(np.int32) for end in ends.values()))
    return ends
