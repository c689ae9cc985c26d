"""Linear classifiers by hinge loss, one dual variable per row: passes of coordinate descent.

A row has the entry 1 / sqrt(T) in the column of its cell in each tree, and a last entry of one for
the intercept. With signs y = +-1 and costs C the weights minimise |w|^2 / 2 + sum C max(0, 1 - y w
x); they are sum alpha y x, 0 <= alpha <= C. A step makes alpha of one row the best there is.

Shapes: n rows, T trees, c columns.

References: Hsieh, Chang, Lin, Keerthi, Sundararajan (2008), "A dual coordinate descent method for
large-scale linear SVM", Algorithm 1, without shrinking.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline, kernel


@inline
def score_of(mine, entry, weights):
    """Return w x of a row in the columns ``mine`` [T], -1 where it has none."""
    total = 0.0
    for t in range(mine.shape[0]):
        if mine[t] >= 0:
            total += weights[mine[t]]
    return entry * total + weights[weights.shape[0] - 1]


@inline
def add_row(mine, entry, step, weights):
    """Add ``step`` times a row to the weights."""
    for t in range(mine.shape[0]):
        if mine[t] >= 0:
            weights[mine[t]] += step * entry
    weights[weights.shape[0] - 1] += step


@kernel
def add_duals(columns, signs, duals, weights):
    """Add sum alpha y x to ``weights`` float64 [c + 1]. O(n T)."""
    entry = 1.0 / np.sqrt(columns.shape[1])
    for r in range(columns.shape[0]):
        add_row(columns[r], entry, duals[r] * signs[r], weights)


@kernel
def descend(columns, signs, costs, duals, weights):
    """Go through the rows once, in order; return by how much gradients leave what is best.

    That is 0 at the optimum. ``columns`` int64 [n, T], -1 for none; ``signs``, ``costs`` and
    ``duals`` float64 [n]; ``weights`` float64 [c + 1]. O(n T).
    """
    n_trees = columns.shape[1]
    entry, worst = 1.0 / np.sqrt(n_trees), 0.0
    for r in range(columns.shape[0]):
        mine, known = columns[r], 0
        for t in range(n_trees):
            known += mine[t] >= 0
        gradient = signs[r] * score_of(mine, entry, weights) - 1.0
        before = duals[r]
        after = min(max(before - gradient / (known / n_trees + 1.0), 0.0), costs[r])
        if before == 0.0:
            gradient = min(gradient, 0.0)
        elif before == costs[r]:
            gradient = max(gradient, 0.0)
        worst = max(worst, abs(gradient))
        if after != before:
            duals[r] = after
            add_row(mine, entry, (after - before) * signs[r], weights)
    return worst
