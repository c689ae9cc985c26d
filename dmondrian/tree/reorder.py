"""Nodes in the order of heavy paths: behind each node its heavier child.

Nodes lie where they came in, so each on a row's way is in another place, and the way waits for the
memory at each. Most rows go to the heavier child (most of all in deep trees, whose cuts part few
rows from many): where that one comes next, one wait brings several nodes.

Promises the same tree: whoever numbers nodes needs their ids (:func:`ids_of`).

Shapes: m nodes.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.intrinsics import flat_view, prefetch_word
from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.nodes import LEFT, N_NODES, PARENT, RIGHT, ROOT, STAT, Tree, make_tree

_AHEAD = 16  # rows asked for before they are copied
_WORDS = 8  # of a row moved at a time: more take less time, but more than half of a tree's memory


@inline
def _find_heavier(links, stats, heavier, lighter):
    """Write the heavier and the lighter child of each node, -1 at leaves."""
    for v in range(heavier.shape[0]):
        left, right = np.int64(links[v, LEFT]), np.int64(links[v, RIGHT])
        if left < 0:
            heavier[v] = -1
            continue
        is_left = stats[np.uint64(left), STAT] >= stats[np.uint64(right), STAT]
        heavier[v] = left if is_left else right
        lighter[v] = right if is_left else left


@kernel
def find_order(links, stats, root, which, place, lighter):
    """Write which node comes where, and the place of each; O(m).

    ``links`` int32 [m, words] and ``stats`` float64 are views of the nodes; ``which``, ``place``
    and ``lighter`` (scratch) are int32 [m].
    """
    heavier = place  # of nodes that have none yet
    _find_heavier(links, stats, heavier, lighter)
    last = which.shape[0] - 1
    n_waiting, p = 1, 0  # lighter children wait at the end: with those placed they are m at most
    which[last] = root
    while n_waiting > 0:
        n_waiting -= 1
        v = np.int64(which[last - n_waiting])
        while True:
            below = np.int64(heavier[v])
            which[p], place[v] = v, p
            p += 1
            if below < 0:
                break
            which[last - n_waiting] = lighter[v]
            n_waiting += 1
            v = below


@inline
def _move_rows(rows, width, which, scratch):
    """Put row ``which[p]`` of ``rows``, int32 [m width], at place p, for all p."""
    m, w = which.shape[0], np.uint64(width)
    for first in range(0, width, _WORDS):
        n, begin = np.uint64(min(_WORDS, width - first)), np.uint64(first)
        for p in range(m):
            later = np.uint64(min(p + _AHEAD, m - 1))
            asked = np.int64(which[later]) * np.int64(width) + np.int64(first)
            prefetch_word(rows, asked)
            prefetch_word(rows, asked + np.int64(n) - 1)
            source, target = np.uint64(which[p]) * w + begin, np.uint64(p) * n
            for k in range(n):
                scratch[target + np.uint64(k)] = rows[source + np.uint64(k)]
        for p in range(m):
            source, target = np.uint64(p) * n, np.uint64(p) * w + begin
            for k in range(n):
                rows[target + np.uint64(k)] = scratch[source + np.uint64(k)]


@kernel
def move(words, boxes, bits, which, place, scratch):
    """Move node ``which[p]``, with all its rows, to place p, and renumber the links. O(m width).

    At once, as no signal breaks in: links that lead elsewhere could lead nowhere.

    ``words``, ``boxes`` and ``bits`` int32 [m, ..]; ``scratch`` int32 [8 m] is scratch.
    """
    for v in range(place.shape[0]):
        for link in (LEFT, RIGHT, PARENT):
            if words[v, link] >= 0:
                words[v, link] = place[np.uint64(words[v, link])]
    _move_rows(flat_view(words), words.shape[1], which, scratch)
    _move_rows(flat_view(boxes), boxes.shape[1], which, scratch)
    _move_rows(flat_view(bits), bits.shape[1], which, scratch)


def order_along_heavy_paths(tree: Tree) -> Tree:
    """Return the tree with its nodes moved, in the arrays of the one that is given.

    That must not be asked any more; it must not be empty, and have no candidates.

    Raises
    ------
    MemoryError
        Before any node was moved.
    """
    m, root = int(tree.head_i[N_NODES]), int(tree.head_i[ROOT])
    which, place = np.empty((2, m), np.int32)
    rows = [array[:m].view(np.int32) for array in (tree.i, tree.box, tree.bits)]
    scratch = np.empty(m * _WORDS, np.int32)
    find_order(rows[0], tree.d, root, which, place, scratch[:m])
    ids = ids_of(tree)[which]
    move(*rows, which, place, scratch)
    tree.head_i[ROOT] = place[root]
    return tree._replace(ids=ids)


def in_order_of_ids(tree: Tree) -> Tree:
    """Return a copy of the tree with each node where it came in."""
    m, ids = int(tree.head_i[N_NODES]), ids_of(tree)
    place = np.empty(m, np.int64)
    place[ids] = np.arange(m)
    new = make_tree(tree.columns, tree.n_stats, len(tree.i))
    for array, old in ((new.i, tree.i), (new.box, tree.box), (new.bits, tree.bits)):
        np.take(old, place, axis=0, out=array[:m], mode="clip")  # else by way of a copy
    for link in (LEFT, RIGHT, PARENT):
        links = new.i[:m, link]
        links[:] = np.where(links < 0, links, ids[links])
    new.head_i[:], new.head_f[:] = tree.head_i, tree.head_f
    new.head_i[ROOT] = ids[tree.head_i[ROOT]]
    return new


def ids_of(tree: Tree) -> np.ndarray:
    """Return the ids of all nodes, int32 [m]: where they came in."""
    later = np.arange(len(tree.ids), tree.head_i[N_NODES], dtype=np.int32)
    return np.concatenate([tree.ids, later])


def ids_at(tree: Tree, places: np.ndarray) -> np.ndarray:
    """Return the ids of nodes at these places, of their type; -1 stays."""
    ids = np.append(ids_of(tree), np.int32(-1))
    return ids[places.astype(np.int64)].astype(places.dtype)
