"""Moments of the label: [n, sum, sum of squares, cumulated price], float64.

Labels are taken relative to the first label of the stream, so that a large common shift
costs no digits.
"""

from __future__ import annotations

from typing import NamedTuple

from dmondrian._jit import implements
from dmondrian.core.nodes import OFFSET, STAT
from dmondrian.core.policies import count, is_pure, is_pure_with

SUM, SQUARES, PRICE = STAT + 1, STAT + 2, STAT + 3
MOMENTS = 4  # statistics of a node


class Moments(NamedTuple):
    """Weight, sum and sum of squares of the labels."""

    width: int


@implements(count, Moments)
def count_label(stat, tree, v, y, w):
    z = y - tree.head_f[OFFSET]
    tree.d[v, STAT] += w
    tree.d[v, SUM] += w * z
    tree.d[v, SQUARES] += w * z * z


@implements(is_pure_with, Moments)
def is_pure_with_label(stat, tree, v, y):
    return False  # labels are continuous: pausing on equal ones has no meaning


@implements(is_pure, Moments)
def is_one_label(stat, tree, v):
    return False
