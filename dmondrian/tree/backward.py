"""The walk from a leaf to the root, on which each node prices, counts and weighs a row.

A node's price and its statistics do not depend on weights, and its weight depends on its price and
on what the child on the path hands up. Node by node all is done in one go; where prices are
exponentials, those of many nodes are taken at once, with the same results to the last bit.

Parent links form a chain of dependent loads; the row's path was noted when it was prefetched
(:mod:`dmondrian.tree.prefetch`). So the processor goes on with the noted node, and the links only
have to confirm it.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.intrinsics import speculate
from dmondrian._numba.jit import inline
from dmondrian.tree.nodes import LEAST_SCRATCH, PARENT, ROOT
from dmondrian.tree.policies import count, exponent, price, shift_near, shift_weight
from dmondrian.tree.scaled_float import from_log, is_near
from dmondrian.tree.simd.exp import write_exponentials


@inline
def next_above(tree, cached_path, v, level):
    """Return the parent of ``v``, -1 at the root, and which noted node is expected above that."""
    parent = np.int64(tree.i[v, PARENT])
    if parent < 0:
        return parent, level
    guess = (
        np.int64(cached_path.nodes[np.uint64(level)]) if level >= 0 else np.int64(tree.head_i[ROOT])
    )
    return speculate(parent, guess, level)


def node_by_node(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path):
    """Do all at a node before the next. O(depth)."""
    v, level = next_above(tree, cached_path, np.uint64(leaf), cached_path.n - 1)
    while v >= 0:
        n, d, k = 1.0, 1.0, np.int64(0)
        while v >= 0:
            u = np.uint64(v)
            n, d, k = price(loss, tree, u, y, w)
            count(stat, tree, u, y, w)
            if (k | kq) != 0:
                break
            is_done, handed = shift_near(rule, tree, u, n, d, q)
            if not is_done:
                break
            q = handed * shift
            shift = 1.0
            v, level = next_above(tree, cached_path, u, level)
        if v >= 0:
            u = np.uint64(v)
            q, kq = shift_weight(rule, tree, u, n, d, k, q, kq)
            q *= shift
            shift = 1.0
            v, level = next_above(tree, cached_path, u, level)


def in_batches(loss, stat, rule, tree, leaf, q, kq, shift, y, w, cached_path):
    """Take the exponentials of many prices at once. O(depth)."""
    prices = tree.scratch
    parent, level = next_above(tree, cached_path, np.uint64(leaf), cached_path.n - 1)
    while parent >= 0:
        v, n, are_near, first = parent, np.uint64(0), True, level
        while parent >= 0 and n < np.uint64(LEAST_SCRATCH):
            u = np.uint64(parent)
            prices[n] = exponent(loss, tree, u, y, w)
            are_near = are_near and is_near(prices[n])
            count(stat, tree, u, y, w)
            parent, level = next_above(tree, cached_path, u, level)
            n += np.uint64(1)
        if are_near:
            write_exponentials(prices, n)
        j = np.uint64(0)
        while j < n:
            while j < n and are_near and kq == 0:
                is_done, handed = shift_near(rule, tree, np.uint64(v), prices[j], 1.0, q)
                if not is_done:
                    break
                q = handed * shift
                shift = 1.0
                j += np.uint64(1)
                v, first = next_above(tree, cached_path, np.uint64(v), first)
            if j < n:
                value = prices[j]
                p, kp = (value, np.int64(0)) if are_near else from_log(value)
                q, kq = shift_weight(rule, tree, np.uint64(v), p, 1.0, kp, q, kq)
                q *= shift
                shift = 1.0
                j += np.uint64(1)
                v, first = next_above(tree, cached_path, np.uint64(v), first)
