r"""Labels: moments, and the labels themselves as far as capacity allows, with ranks.

A node holds [n, sum, sum of squares, cumulated price, k], then k <= size labels v_1 < .. < v_k with
two numbers each: ``below``, a bound from above of the weight of rows with a label < v_i, and
``upto``, a bound from below of the weight of rows with a label <= v_i.

**Learning.** A row (y, w) adds w to upto_i where v_i >= y and to below_i where v_i > y. If y is not
held it is entered with upto = upto of the label before + w and below = below of the label behind:
what holds of the neighbours holds of y. If there is no capacity then, one label is forgotten, never
the first or the last: the one without which the gap between its neighbours, below_{i+1} -
upto_{i-1}, is least. To forget a label leaves the bounds of all others true. Two nodes are merged
in the same way: the bounds of a label add, the other side's being those of its neighbours there.

**Error.** F(t), the weight of rows with a label <= t, is in [upto_i, below_{i+1}] for t from v_i to
before v_{i+1}; with the middle of the two it is known to within half the gap. Gaps are 0 until a
label is forgotten: up to ``size`` distinct labels all is exact, and so is every label that has as
much weight as a gap may have. Behind that the largest gap is the certificate of the node: it holds
whatever the order of the rows and merges (:func:`widest_gap`). For rows in random order it is about
1.6 n / size, so that F is known to 0.8 n / size, 1.25 % of the rows with 64 labels; 2.5 n / size
after merges, 9 n / size in the worst order tried (``benchmarks/generalized.py sketch``). A mean of
a function of the label whose variation is V is then known to within V gap / (2 n): 1 for the step
of a quantile, 2 delta for the derivative of Huber's loss. These are the bounds of Greenwald and
Khanna's summary, with weights, at a fixed size, and with the rule of its adaptive form for what to
forget.

All is a function of the rows in order. Merged nodes are those of one stream to the last bit as
long as no label was forgotten and weights are whole numbers.

References: Greenwald, Khanna (2001), "Space-efficient online computation of quantile summaries",
SIGMOD. Luo, Wang, Yi, Cormode (2016), "Quantiles over data streams", VLDB Journal 25, section 3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import allocating, implements, inline
from dmondrian.stats.moments import MOMENTS, SQUARES, SUM, gain_of_means, is_one_label
from dmondrian.tree.nodes import OFFSET, STAT
from dmondrian.tree.policies import add_statistics, count, gain, is_pure, is_pure_with

KEPT = STAT + MOMENTS
_FIRST = KEPT + 1
LEAST_SIZE = 4  # two ends, and what may be forgotten between them


class Labels(NamedTuple):
    """Moments and bounded, ranked labels."""

    size: int  # labels of a node


def n_labels_stats(size: int) -> int:
    """Return the statistics of a node, in doubles: one place more, for a label on its way."""
    return MOMENTS + 1 + 3 * (size + 1)


@inline
def places(stat):
    """Return the doubles at which labels, ``below`` and ``upto`` start."""
    return _FIRST, _FIRST + stat.size + 1, _FIRST + 2 * (stat.size + 1)


@inline
def first_from(row, start, k, y):
    """Return the index of the first of ``k`` labels that is >= ``y``; k if there is none."""
    low, high = 0, k
    while low < high:
        middle = (low + high) // 2
        if row[start + middle] < y:
            low = middle + 1
        else:
            high = middle
    return low


@inline
def enter(row, at, i, k, y, below, upto):
    """Put a label at index ``i`` of ``k``."""
    for start in at:
        for j in range(start + k, start + i, -1):
            row[j] = row[j - 1]
    row[at[0] + i], row[at[1] + i], row[at[2] + i] = y, below, upto


@inline
def forget_one(row, at, k):
    """Forget the label whose absence matters least, of ``k`` labels; the last place is cleared."""
    best, least = 1, row[at[1] + 2] - row[at[2]]
    for i in range(2, k - 1):
        gap = row[at[1] + i + 1] - row[at[2] + i - 1]
        if gap < least:
            best, least = i, gap
    for start in at:
        for j in range(start + best, start + k - 1):
            row[j] = row[j + 1]
        row[start + k - 1] = 0.0


@implements(count, Labels)
def count_ranked(stat, tree, v, y, w):
    row, at = tree.d[v], places(stat)
    k = int(row[KEPT])
    i = first_from(row, at[0], k, y)
    is_new = i == k or row[at[0] + i] != y
    if is_new:
        below = row[at[1] + i] if i < k else row[STAT]
        enter(row, at, i, k, y, below, row[at[2] + i - 1] if i > 0 else 0.0)
        k += 1
    row[at[2] + i] += w
    for j in range(i + 1, k):
        row[at[1] + j] += w
        row[at[2] + j] += w
    if k > stat.size:
        forget_one(row, at, k)
        k -= 1
    row[KEPT] = k
    z = y - tree.head_f[OFFSET]
    row[STAT] += w
    row[SUM] += w * z
    row[SQUARES] += w * z * z


@inline
def bounds_at(row, at, k, y):
    """Return (weight surely <= ``y``, weight at most < ``y``) of the rows of ``k`` labels."""
    i = first_from(row, at[0], k, y)
    below = row[at[1] + i] if i < k else (row[at[2] + k - 1] if k > 0 else 0.0)
    if i < k and row[at[0] + i] == y:
        return row[at[2] + i], below
    return (row[at[2] + i - 1] if i > 0 else 0.0), below


@allocating
def unite(stat, tree, v, other_stats):
    """Add the labels and sums in ``other_stats`` to those of node ``v``. O(labels)."""
    row, at, from_, k = tree.d[v], places(stat), _places_in(stat, other_stats), int(tree.d[v, KEPT])
    more = int(other_stats[KEPT - STAT])
    capacity = k + more + 1
    union, to = np.zeros(3 * capacity), (0, capacity, 2 * capacity)
    i, j, n = 0, 0, 0
    while i < k or j < more:
        take_own = j == more or (i < k and row[at[0] + i] <= other_stats[from_[0] + j])
        y = row[at[0] + i] if take_own else other_stats[from_[0] + j]
        i += int(i < k and row[at[0] + i] == y)
        j += int(j < more and other_stats[from_[0] + j] == y)
        upto, below = bounds_at(row, at, k, y)
        upto_there, below_there = bounds_at(other_stats, from_, more, y)
        union[n], union[capacity + n], union[2 * capacity + n] = (
            y,
            below + below_there,
            upto + upto_there,
        )
        n += 1
    while n > stat.size:
        forget_one(union, to, n)
        n -= 1
    for start, source in zip(at, to):  # noqa: B905 - Numba knows no strict=
        row[start : start + n] = union[source : source + n]
    row[KEPT] = n
    for s in range(MOMENTS):
        row[STAT + s] += other_stats[s]


@implements(add_statistics, Labels)
def add_ranked(stat, tree, v, other_stats):
    unite(stat, tree, v, other_stats)


@inline
def _places_in(stat, other_stats):
    """Return where labels, ``below`` and ``upto`` start in statistics apart from a node."""
    first, below, upto = places(stat)
    return first - STAT, below - STAT, upto - STAT


@inline
def weight_upto(stat, row, i, k):
    """Return the estimate of F from label ``i`` of ``k`` to before the next, the middle."""
    at = places(stat)
    if i == k - 1:
        return row[STAT]
    return 0.5 * (row[at[2] + i] + row[at[1] + i + 1])


@inline
def widest_gap(stat, row):
    """Return the largest gap of a node: twice the largest error of F, in weight of rows."""
    at, widest = places(stat), 0.0
    for i in range(int(row[KEPT]) - 1):
        widest = max(widest, row[at[1] + i + 1] - row[at[2] + i])
    return widest


@implements(is_pure_with, Labels)
def is_pure_with_ranked(stat, tree, v, y):
    return False  # as with moments: equal labels are chance


implements(is_pure, Labels)(is_one_label)
implements(gain, Labels)(gain_of_means)
