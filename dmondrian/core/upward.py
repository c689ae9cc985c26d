"""The way from a leaf to the root, on which each node prices, counts and weighs a row.

A node's price and its statistics do not depend on weights, and its weight depends on its price and
on what the child on the way hands up. Node by node all is done in one go; where prices are
exponentials, those of many nodes are taken at once, with the same results to the last bit.
"""

from __future__ import annotations

import numpy as np

from dmondrian.core.lanes import write_exponentials
from dmondrian.core.nodes import LEAST_SCRATCH, PARENT
from dmondrian.core.policies import count, exponent, price, shift_weight
from dmondrian.core.weights import from_log, is_near


def node_by_node(loss, stat, rule, tree, leaf, q, kq, shift, y, w):
    """Do all at a node before the next. O(depth)."""
    parent = tree.i[leaf, PARENT]
    while parent >= 0:
        v = np.uint64(parent)
        p, kp = price(loss, tree, v, y, w)
        count(stat, tree, v, y, w)
        q, kq = shift_weight(rule, tree, v, p, kp, q, kq)
        q *= shift
        shift = 1.0
        parent = tree.i[v, PARENT]


def in_lots(loss, stat, rule, tree, leaf, q, kq, shift, y, w):
    """Take the exponentials of many prices at once. O(depth)."""
    told, parent = tree.scratch, tree.i[leaf, PARENT]
    while parent >= 0:
        v, n, are_near = np.uint64(parent), np.uint64(0), True
        while parent >= 0 and n < np.uint64(LEAST_SCRATCH):
            u = np.uint64(parent)
            told[n] = exponent(loss, tree, u, y, w)
            are_near = are_near and is_near(told[n])
            count(stat, tree, u, y, w)
            parent = tree.i[u, PARENT]
            n += np.uint64(1)
        if are_near:
            write_exponentials(told, n)
        for j in range(n):
            value = told[np.uint64(j)]
            p, kp = (value, np.int64(0)) if are_near else from_log(value)
            q, kq = shift_weight(rule, tree, v, p, kp, q, kq)
            q *= shift
            shift = 1.0
            v = np.uint64(tree.i[v, PARENT])
