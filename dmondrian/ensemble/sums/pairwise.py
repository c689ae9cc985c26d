"""Sums over trees that do not depend on how the trees are spread over machines.

Trees are added pairwise by their numbers: tree 0 to tree 1, 2 to 3, then both pairs, and so on. A
shard makes those of these additions that are of its own trees; the rest are made once the partial
sums of all shards are there. So each addition of floats has the same operands, whichever shard
makes it, and the sum is the same to the last bit.

Shapes: T trees; what is added may have any shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

Partial = dict[tuple[int, int], np.ndarray]
"""By (level, place): the sum over the 2^level trees from number place 2^level on."""


def partial_sums(numbers: Sequence[int], answers: Sequence[np.ndarray]) -> Partial:
    """Return the partial sums of some trees.

    Parameters
    ----------
    numbers : sequence of int
        Of the trees.
    answers : sequence of ndarray
        One per tree; they are not changed, but may be among the sums.
    """
    return joined([{(0, int(t)): answer} for t, answer in zip(numbers, answers, strict=True)])


def joined(parts: Iterable[Partial]) -> Partial:
    """Return the partial sums of all trees of disjoint sets of them."""
    sums: Partial = {}
    for part in parts:
        join(sums, part)
    return sums


def join(sums: Partial, part: Partial) -> None:
    """Add the partial sums of other trees to partial sums."""
    waiting = list(part.items())
    while waiting:
        (level, place), summed = waiting.pop()
        sibling = sums.pop((level, place ^ 1), None)
        if sibling is None:
            sums[level, place] = summed
        else:  # two floats have one sum, in whichever order
            waiting.append(((level + 1, place >> 1), summed + sibling))


def total(sums: Partial) -> np.ndarray:
    """Return the sum over all trees; where a tree's number is not in use nothing is added."""
    level, remaining = 0, dict(sums)
    while len(remaining) > 1:
        for place in sorted(place for at, place in remaining if at == level):
            summed = remaining.pop((level, place))
            above = level + 1, place >> 1
            remaining[above] = summed if above not in remaining else remaining[above] + summed
        level += 1
    return next(iter(remaining.values()))
