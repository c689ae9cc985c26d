"""Bounds of nodes as their difference from what lies below them.

Boxes nest: the box of an internal node is the smallest around its children's, and that of most
leaves is a point. So bounds are stored by the bits in which they differ from that (exclusive or):
an internal node's from its children's, a leaf's upper ones from its lower ones. Nearly all
differences are 0, and only the others are written; any bounds come back as they were, also those
that do not nest.

Differences are of bounds as floats, however a tree writes its boxes, but what is written alike is
compared without making floats of it: numbers of steps, and 64 features of two values at a time.

Shapes: m nodes, d features, p of them numeric, g stepped, b binary, q = ceil(b / 64) words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.intrinsics import prefetch
from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.box_encoding import Columns, bounds_by_values_of, read_only, value_of
from dmondrian.tree.nodes import LEFT, RIGHT, Tree
from dmondrian.tree.sparse_rows import (
    SparseRows,
    begin_row,
    empty_buffer,
    end_row,
    lowest_bit,
    packed_rows,
    take,
    without_lowest,
)


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


_AHEAD = 16  # nodes


class _Boxes(NamedTuple):
    """The boxes of a tree as kernels read them."""

    links: np.ndarray  # int32 [m, words]
    words: np.ndarray  # int32 [m, 2 p + g or more], the box as it is stored
    steps: np.ndarray  # int16, the same
    bits: np.ndarray  # uint64 [m, 2 q]
    columns: Columns
    bounds: np.ndarray  # int32 [b, 4, 2], of binary features by what was seen
    # uint64 [5, q], a bit for each binary feature: is there one; has its lower bound a bit that is
    # 1 where its first value was seen, its second, both; do its bounds differ where both were.
    binary: np.ndarray
    # uint64 [q]: are bounds the least and the most of the children's, where what was seen of it is
    # what either of these has seen.
    nested: np.ndarray


def _boxes_of(tree: Tree, m: int) -> _Boxes:
    columns = tree.columns
    bounds = bounds_by_values_of(columns).view(np.int32)
    some = bounds[:, 1:] != 0
    flags = np.array(
        [
            np.ones(len(bounds), bool),
            *some[:, :, 0].T,
            bounds[:, 3, 0] != bounds[:, 3, 1],
            _are_nested(bounds),
        ]
    )
    binary = np.packbits(flags, axis=1, bitorder="little")
    words = np.zeros((len(flags), 8 * (tree.bits.shape[1] // 2)), np.uint8)
    words[:, : binary.shape[1]] = binary
    masks = words.view("<u8").astype(np.uint64)
    box = tree.box[:m].view(np.int32)
    rest = columns, bounds, masks[:-1], masks[-1]
    return _Boxes(tree.i[:m], box, tree.steps[:m], tree.bits[:m], *rest)


def _are_nested(bounds: np.ndarray) -> np.ndarray:
    """Return ``nested`` of :class:`_Boxes`, bool [b]."""
    ranks = bounds ^ (bounds >> 31 & 0x7FFFFFFF)
    nested = np.ones(len(bounds), bool)
    for a in (1, 2, 3):
        for b in (1, 2, 3):
            nested &= ranks[:, a | b, 0] == np.minimum(ranks[:, a, 0], ranks[:, b, 0])
            nested &= ranks[:, a | b, 1] == np.maximum(ranks[:, a, 1], ranks[:, b, 1])
    return nested


@inline
def _bound(boxes, v, j, side):
    """Return the bits of a bound of feature ``j``, the lower (0) or the upper one (1)."""
    columns = boxes.columns
    p, place = columns.numeric.shape[0], np.int64(columns.place[j])
    if place >= p:
        return _stepped_bound(boxes, v, np.uint64(place - p), side)
    if place >= 0:
        return boxes.words[v, place + side * p]
    k, half = np.uint64(~place), np.uint64(boxes.nested.shape[0])
    w, at, one = k >> np.uint64(6), k & np.uint64(63), np.uint64(1)
    first, second = boxes.bits[v, w] >> at & one, boxes.bits[v, half + w] >> at & one
    return boxes.bounds[k, first | second << one, side]


@inline
def _stepped_bound(boxes, v, k, side):
    """Return the bits of a bound of stepped feature ``k``, uint64."""
    columns = boxes.columns
    at = np.uint64(4 * columns.numeric.shape[0] + side * columns.stepped.shape[0])
    return np.float32(value_of(columns, k, boxes.steps[v, at + k])).view(np.int32)


@inline
def _take_of_leaf(boxes, v, r, lower, upper):
    """Write the differences of a leaf: its lower bounds, and in what upper ones are unlike them.

    Node ``v`` is row ``r`` of what is taken.
    """
    columns, binary, bits = boxes.columns, boxes.binary, boxes.bits
    p, half = np.uint64(columns.numeric.shape[0]), np.uint64(boxes.nested.shape[0])
    for k in range(p):
        j, low = np.uint64(columns.numeric[k]), boxes.words[v, k]
        take(lower, r, j, low)
        take(upper, r, j, boxes.words[v, p + k] ^ low)
    g, at = np.uint64(columns.stepped.shape[0]), np.uint64(4) * p
    for k in range(g):
        j, low = np.uint64(columns.stepped[k]), _stepped_bound(boxes, v, k, 0)
        take(lower, r, j, low)
        if boxes.steps[v, at + k] != boxes.steps[v, at + g + k]:
            take(upper, r, j, _stepped_bound(boxes, v, k, 1) ^ low)
    for w in range(half):
        first, second = bits[v, w], bits[v, half + w]
        both = first & second
        left = (first ^ both) & binary[1, w] | (second ^ both) & binary[2, w]
        left |= both & (binary[3, w] | binary[4, w])
        while left != 0:
            bit = lowest_bit(left)
            k, seen = (w << np.uint64(6)) + bit, first >> bit & np.uint64(1)
            seen |= (second >> bit & np.uint64(1)) << np.uint64(1)
            j, low, high = (
                np.uint64(columns.binary[k]),
                boxes.bounds[k, seen, 0],
                boxes.bounds[k, seen, 1],
            )
            take(lower, r, j, low)
            take(upper, r, j, high ^ low)
            left = without_lowest(left)


@inline
def _take_feature(boxes, v, r, a, b, j, lower, upper):
    """Take the differences of feature ``j`` of a node with the children ``a`` and ``b``."""
    rank_a, rank_b = _rank(_bound(boxes, a, j, 0)), _rank(_bound(boxes, b, j, 0))
    take(lower, r, j, _bound(boxes, v, j, 0) ^ _rank(min(rank_a, rank_b)))
    rank_a, rank_b = _rank(_bound(boxes, a, j, 1)), _rank(_bound(boxes, b, j, 1))
    take(upper, r, j, _bound(boxes, v, j, 1) ^ _rank(max(rank_a, rank_b)))


@inline
def _are_written_apart(boxes, v, a, b):
    """Return whether the numbers of a box are other ones than nested boxes have."""
    words, steps = boxes.words, boxes.steps
    p, g = np.uint64(boxes.columns.numeric.shape[0]), np.uint64(boxes.columns.stepped.shape[0])
    apart, at = np.int32(0), np.uint64(4) * p
    for k in range(p):
        apart |= words[v, k] ^ _least(words, a, b, k)
        apart |= words[v, p + k] ^ _most(words, a, b, p + k)
    for k in range(g):
        apart |= steps[v, at + k] ^ min(steps[a, at + k], steps[b, at + k])
        apart |= steps[v, at + g + k] ^ max(steps[a, at + g + k], steps[b, at + g + k])
    return apart != 0


@inline
def _take_of_split(boxes, v, r, a, b, lower, upper):
    """Take the differences of a node with the children ``a`` and ``b``."""
    columns, bits, half = boxes.columns, boxes.bits, np.uint64(boxes.nested.shape[0])
    if _are_written_apart(boxes, v, a, b):
        for k in range(columns.numeric.shape[0]):
            _take_feature(boxes, v, r, a, b, np.uint64(columns.numeric[k]), lower, upper)
        for k in range(columns.stepped.shape[0]):
            _take_feature(boxes, v, r, a, b, np.uint64(columns.stepped[k]), lower, upper)
    for w in range(half):
        firsts, seconds = bits[a, w] | bits[b, w], bits[a, half + w] | bits[b, half + w]
        apart = (bits[v, w] ^ firsts) | (bits[v, half + w] ^ seconds)
        apart |= ~((bits[a, w] | bits[a, half + w]) & (bits[b, w] | bits[b, half + w]))
        apart = (apart | ~boxes.nested[w]) & boxes.binary[0, w]
        while apart != 0:
            k = (w << np.uint64(6)) + lowest_bit(apart)
            _take_feature(boxes, v, r, a, b, np.uint64(columns.binary[k]), lower, upper)
            apart = without_lowest(apart)


@inline
def _ask_for(boxes, v):
    """Ask for the boxes of the children of node ``v``: they lie anywhere."""
    a, b, m = boxes.links[v, LEFT], boxes.links[v, RIGHT], boxes.links.shape[0]
    if 0 <= a < m and 0 <= b < m:
        prefetch(boxes.words, a)
        prefetch(boxes.words, b)
        prefetch(boxes.bits, a)
        prefetch(boxes.bits, b)


@kernel
def _take_differences(boxes, chosen, lower, upper):
    """Take differences of lower and upper bounds of chosen nodes, uint32 [c, d] each. O(c d).

    ``chosen`` are int32 [c]; where there is none, all m nodes are taken.

    Links beyond the nodes are of a tree that learns meanwhile: what is taken then is of no tree,
    but nothing else is read.
    """
    m, is_all = boxes.links.shape[0], chosen.shape[0] == 0
    n_rows = m if is_all else chosen.shape[0]
    for r in range(np.uint64(n_rows)):
        soon = min(r + np.uint64(_AHEAD), np.uint64(n_rows - 1))
        v = r if is_all else np.uint64(chosen[r])
        _ask_for(boxes, soon if is_all else np.uint64(chosen[soon]))
        begin_row(lower, r)
        begin_row(upper, r)
        left, right = np.int64(boxes.links[v, LEFT]), np.int64(boxes.links[v, RIGHT])
        if not (0 <= left < m and 0 <= right < m):
            _take_of_leaf(boxes, v, r, lower, upper)
        else:
            _take_of_split(boxes, v, r, np.uint64(left), np.uint64(right), lower, upper)
        end_row(lower, r)
        end_row(upper, r)


def box_differences(
    tree: Tree, n_nodes: int, chosen: np.ndarray | None = None
) -> tuple[SparseRows, SparseRows]:
    """Return the differences of the lower and upper bounds of nodes, float32 [m, d] each. O(m d).

    ``n_nodes`` is m: no more than the tree has. Of ``chosen`` nodes, int32 [c], it is [c, d].
    """
    d, n_rows = tree.n_features, n_nodes if chosen is None else len(chosen)
    lower, upper = (empty_buffer(n_rows, d, np.uint32) for _ in range(2))
    if n_rows:
        nodes = np.empty(0, np.int32) if chosen is None else chosen
        _take_differences(_boxes_of(tree, n_nodes), read_only(nodes), lower, upper)
    kind = np.dtype(np.float32)
    return packed_rows(lower, kind), packed_rows(upper, kind)


@inline
def _first_below(left, v):
    """Return the leaf that is reached from ``v`` by left children."""
    while left[v] >= 0:
        v = np.int64(left[v])
    return np.int64(v)


@kernel
def _order_upward(links, root, order):
    """Write the nodes of a sound tree to ``order``, int64 [m], children before parents. O(m)."""
    left, right, parent = links
    v, n = _first_below(left, root), 0
    while v >= 0:
        order[n] = v
        n += 1
        above = np.int64(parent[v])
        v = above if above < 0 or right[above] == v else _first_below(left, right[above])


@kernel
def _add_differences(links, order, lower, upper):
    """Make bits of bounds of differences, in place. O(m d).

    ``order`` has all nodes of a sound tree, children before parents.
    """
    left, right, _ = links
    last = order.shape[0] - 1
    for i in range(last + 1):
        v, soon = np.uint64(order[i]), order[min(i + _AHEAD, last)]
        prefetch(lower, soon)
        prefetch(upper, soon)
        if left[v] < 0:
            for j in range(np.uint64(lower.shape[1])):
                upper[v, j] ^= lower[v, j]
            continue
        a, b = np.uint64(left[v]), np.uint64(right[v])
        for j in range(np.uint64(lower.shape[1])):
            lower[v, j] ^= _least(lower, a, b, j)
            upper[v, j] ^= _most(upper, a, b, j)


def add_differences(arrays: dict[str, np.ndarray], root: int) -> dict[str, np.ndarray]:
    """Return the bounds of which ``lower`` and ``upper``, float32 [m, d], are the differences.

    In their memory, unless it is read-only. The links ``left``, ``right`` and ``parent`` must be
    those of a tree (trusted).
    """
    links = tuple(read_only(arrays[name]) for name in ("left", "right", "parent"))
    ends = {name: np.require(arrays[name], None, ["C", "W"]) for name in ("lower", "upper")}
    if root >= 0:
        order = np.empty(len(links[0]), np.int64)
        _order_upward(links, root, order)
        _add_differences(links, order, *(end.view(np.int32) for end in ends.values()))
    return ends
