"""Slopes of a forest's loss to the scales of its features: one step's direction.

A Mondrian split falls on feature j with probability q_j, the share of j's scaled range in those of
its box. So the derivative of the log probability of a tree's splits to the log of j's scale is the
sum over splits of [split on j] - q_j, the score, and the derivative of an expected loss is the mean
of loss times score, whatever the loss. A split is answerable for the rows that it parts alone, and
for these for what forecasts gained below it over stopping there; less what splits of its depth gain
on average, which no scale has a part in. That leaves the derivative as it is, and takes most of its
variance: one small forest shows of all features at once which of them to split more often. One part
is left out: what a split changes in the weights of the prunings that stop above it.

Relies on :mod:`dmondrian.tuning.scale_slopes_kernels`. Promises the same numbers on all machines
and for any number of threads. Trees must be aggregated (a mixture over prunings), and have boxes.

Shapes: n rows, d features, T trees.

References
----------
Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
Learning", for the score function and its baselines. For Mondrian forests this is new.
"""

from __future__ import annotations

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.threads import run_threads
from dmondrian.tree.box_encoding import read_only
from dmondrian.tree.nodes import N_NODES, chunks, read_boxes
from dmondrian.tuning.scale_slopes_kernels import add_advantages, add_levels, add_scores


def scores(
    ensemble: Ensemble,
    X: np.ndarray,
    y: np.ndarray,
    slopes: np.ndarray,
    w: np.ndarray,
    n_threads: int = 1,
) -> np.ndarray:
    """Return the sum of gain times score for each feature, and its variance, float64 [2, d].

    The first, over the square root of the second, is in standard errors: a feature of many of them
    is to be split more often.

    Parameters
    ----------
    ensemble : Ensemble
        Trees that have not learned the rows.
    X : float32 [n, d]
        As the trees see them.
    y, w : float64 [n]
        Labels and weights.
    slopes : float64 [n]
        What a row gains for a unit of the trees' mean forecast of it, times its weight.
    n_threads : int
    """
    data = tuple(read_only(part) for part in (X, y, slopes, w))
    loss, trees = ensemble.policies.loss, list(ensemble.trees)
    sizes = [int(tree.head_i[N_NODES]) for tree in trees]
    node_sums = [(np.zeros((m, 2)), np.zeros(m, np.int64)) for m in sizes]  # worth, weight; depth
    deepest = [0] * len(trees)

    def walk(t: int) -> None:
        path = np.empty((sizes[t], 3))
        deepest[t] = add_advantages(loss, trees[t], *data, path, node_sums[t][0])

    run_threads(walk, range(len(trees)), n_threads)
    levels = np.zeros((max(deepest), 2))
    for tree, (nodes, depths) in zip(trees, node_sums, strict=True):
        add_levels(tree, nodes, depths, levels)
    sums = np.zeros((len(trees), 2, X.shape[1]))

    def add(t: int) -> None:
        nodes, depths = node_sums[t]
        for part in chunks(trees[t]):
            bounds = read_only(np.concatenate(read_boxes(trees[t], part), axis=1))
            add_scores(trees[t], part.start, bounds, nodes, depths, levels, sums[t, 0], sums[t, 1])

    run_threads(add, range(len(trees)), n_threads)
    return sums.sum(axis=0)
