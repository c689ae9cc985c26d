"""Marks of nodes: 128 bits each, by which nodes that have changed since are found.

The mark of a node is made of its row and its box as they are in memory. Of trees that write boxes
the same way, nodes that differ have different marks but for a chance of one in 2^128: each half of
a mark takes one word after the other, by steps that lose nothing. Where boxes are written another
way, marks tell nothing: whoever compares them compares the columns first.

Shapes: m nodes, w words.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.nodes import PARENT, Tree

MARK_BYTES = 16
# Odd, of no pattern: fractions of the golden ratio and of the root of 2.
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x6A09E667F3BCC909)
_NONE = np.uint64(0)


@inline
def _first(a, word):
    """Return the first half of a mark, uint64, after one more word, uint64."""
    a = (a ^ word) * _FIRST
    return a ^ (a >> np.uint64(32))


@inline
def _second(b, word):
    """Return the second half of a mark."""
    b = (b + word) * _SECOND
    return b ^ (b >> np.uint64(29))


@kernel
def _mark(rows, boxes, bits, marks):
    """Write the marks of nodes, uint64 [m, 2]. O(m w).

    Of rows, uint64 [m, ..], boxes, uint32 [m, ..], and bits, uint64 [m, ..].
    """
    for v in range(np.uint64(rows.shape[0])):
        a, b = _FIRST, _SECOND
        for k in range(np.uint64(rows.shape[1])):
            word = rows[v, k]
            a, b = _first(a, word), _second(b, word)
        for k in range(np.uint64(boxes.shape[1])):
            word = np.uint64(boxes[v, k])
            a, b = _first(a, word), _second(b, word)
        for k in range(np.uint64(bits.shape[1])):
            word = bits[v, k]
            a, b = _first(a, word), _second(b, word)
        marks[v, 0], marks[v, 1] = a, b


@kernel
def _compare(marks, before, parents, changed):
    """Write which nodes, bool [m], have other marks than before, or a child that has. O(m)."""
    n = min(marks.shape[0], before.shape[0])
    for v in range(np.uint64(n)):
        if marks[v, 0] != before[v, 0] or marks[v, 1] != before[v, 1]:
            changed[v] = True
            if parents[v] >= 0:
                changed[parents[v]] = True
    for v in range(np.uint64(n), np.uint64(marks.shape[0])):
        changed[v] = True
        if parents[v] >= 0:
            changed[parents[v]] = True


def marks_of(tree: Tree, n_nodes: int) -> np.ndarray:
    """Return the marks of a tree's first nodes, uint64 [m, 2]. O(m w)."""
    marks = np.empty((n_nodes, 2), np.uint64)
    boxes = tree.box[:n_nodes].view(np.uint32)
    _mark(tree.i[:n_nodes].view(np.uint64), boxes, tree.bits[:n_nodes], marks)
    return marks


def changed_nodes(tree: Tree, marks: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return the nodes that are new or have other marks, and their parents, int32 [c]. O(m).

    Boxes are stored as their difference from the children's, which changes with these.

    Parameters
    ----------
    tree : Tree
    marks, before : array of uint64, [m, 2] and [n, 2]
        Of the tree's nodes, now and then.
    """
    changed = np.zeros(len(marks), bool)
    _compare(marks, before, tree.i[: len(marks), PARENT], changed)
    return np.flatnonzero(changed).astype(np.int32)


def unknown(marks: np.ndarray, nodes: np.ndarray, n_nodes: int) -> np.ndarray:
    """Return marks of the first nodes, uint64 [n, 2], with marks that no node has for some."""
    known = np.zeros((n_nodes, 2), np.uint64)
    n = min(len(marks), n_nodes)
    known[:n] = marks[:n]
    known[nodes[nodes < n_nodes]] = _NONE
    return known
