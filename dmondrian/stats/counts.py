"""Class counts: [n, n_1 .. n_K], float64, exact for whole weights up to 2^53."""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._jit import implements
from dmondrian.core.nodes import STAT
from dmondrian.core.policies import count, is_pure, is_pure_with


class Counts(NamedTuple):
    """Weight of the rows, and of the rows of each class."""

    n_classes: int


@implements(count, Counts)
def count_class(stat, tree, v, y, w):
    tree.d[v, STAT] += w
    tree.d[v, STAT + 1 + int(y)] += w


@implements(is_pure_with, Counts)
def is_pure_with_class(stat, tree, v, y):
    return tree.d[v, STAT] == tree.d[v, STAT + 1 + int(y)]


@implements(is_pure, Counts)
def is_one_class(stat, tree, v):
    largest = 0.0
    for c in range(stat.n_classes):
        largest = max(largest, tree.d[v, STAT + 1 + c])
    return largest == tree.d[v, STAT]
