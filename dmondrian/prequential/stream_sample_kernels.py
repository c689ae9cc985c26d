"""Which rows of a stream are forecast before they are learned: a sample fixed by weight alone.

Marks stand at the total weights 1, 2, 3, ..., and from ``density`` on (a power of two) at
``density`` equal steps of each doubling. A row is asked about as often as marks lie between the
total weight before it and after it, so in a stream of weights of one each of the first
``density`` rows is, then one in two, one in four, ... The first row of weight never is: no tree
could answer. The total weight is that of every tree's header: neither the cuts between calls nor
the number of trees moves a mark.

Shapes: n rows.
"""

from __future__ import annotations

import math

import numpy as np

from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.keyed_random import power_of_two
from dmondrian.tree.loops import MAX_REPEATS


@inline
def marks_below(total, density):
    """Return how many marks are less than ``total``, as a whole float."""
    if total <= 1.0:
        return 0.0
    octave = math.frexp(total)[1] - 1
    start = power_of_two(octave)
    step = max(start / density, 1.0)
    doublings = octave - (math.frexp(density)[1] - 1)
    before = start - 1.0 if doublings <= 0 else density - 1.0 + doublings * density
    return before + np.ceil((total - start) / step)


@inline
def total_after(total, w):
    """Return the total weight after a row of weight ``w``, as ``learn_in_parts`` adds it."""
    if w <= MAX_REPEATS and w == np.floor(w):
        for _ in range(int(w)):
            total += 1.0
        return total
    return total + w


@kernel
def write_hits(total, w, density, before, hits):
    """Write the total weight before each row, and how many marks the row passes. O(n).

    ``w`` float64 [n], or [0] for weights of one; ``before`` and ``hits`` float64 [n].
    """
    for r in range(hits.shape[0]):
        before[r] = total
        total = total_after(total, w[r] if w.shape[0] > 0 else 1.0)
        passed = marks_below(total, density) - marks_below(before[r], density)
        hits[r] = passed if before[r] > 0.0 else 0.0
