"""The average over lifetimes: what cells say at all of them, weighted by the posterior.

The mean over lifetimes of what a tree says is a sum over the cells on the way of a row: of each,
its values at the lifetimes at which it is whole, times their probabilities. So one tree, realised
to the end, holds the average in its nodes.

Relies on partitions of the cube, whose cells can be realised in full, also below a single row.

References: Balog et al. (2016), Supplement B.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dmondrian.core import nodes
from dmondrian.errors import ParameterError
from dmondrian.forest import Forest
from dmondrian.growth.cells import split_to_the_end
from dmondrian.kernel.batches import joint_of
from dmondrian.kernel.path import KernelPath, Rows, heard_rows, realised, sweep_exactly
from dmondrian.parameters import ForestParameters
from dmondrian.stats.values import VALUE, WEIGHT


def averaged(
    parameters: ForestParameters,
    n_trees: int,
    rows: Rows,
    n_threads: int,
    max_lifetime: float | None,
    prior: str,
) -> tuple[Forest, KernelPath]:
    """Return a forest that says the average over lifetimes, and the path of the fits.

    Parameters as of :func:`dmondrian.kernel.path.choose_lifetime`.

    Raises
    ------
    ParameterError
        On the range of the data, or without exact fits.
    """
    joint = parameters.joint
    assert joint is not None  # who calls knows
    if parameters.domain != "cube" or not joint.is_exact:
        raise ParameterError(
            'lifetime="average" needs cells of the cube and exact fits: use domain="cube" with '
            'fitting="joint" and solver="cholesky" or "auto", or lifetime="validation"'
        )
    X, y, weights = heard_rows(rows)
    forest = realised(parameters, n_trees, X, weights, n_threads, max_lifetime, joint.max_columns)
    held = np.empty(0, np.int64)
    end = _end_of(forest, X, y, weights, held)
    forest.parameters = dataclasses.replace(forest.parameters, lifetime=end)
    forest = _in_full(forest, X, n_threads)
    swept = sweep_exactly(forest, X, y, weights, held, prior=prior)
    averages = swept.average.values
    for tree, offset in zip(forest.placed, swept.offsets, strict=True):
        _write(tree, averages[:, offset:], swept.mean)
    times, shares = swept.lifetimes, swept.average.shares[: len(swept.lifetimes)]
    chosen = math.fsum(shares * (0.5 * (times + np.append(times[1:], swept.end))))
    path = KernelPath(times, swept.n_columns, None, swept.log_likelihoods, shares, chosen)
    return forest, path


def _end_of(
    forest: Forest, X: np.ndarray, y: np.ndarray, weights: np.ndarray, held: np.ndarray
) -> float:
    """Return the lifetime at which there are more columns than exact fits may have, or the last."""
    joint = joint_of(forest)
    parameters = forest.parameters
    # Trees fitted each for itself have the same columns, and no matrix.
    forest.parameters = dataclasses.replace(
        parameters, joint=dataclasses.replace(joint, is_joint=False)
    )
    swept = sweep_exactly(forest, X, y, weights, held)
    forest.parameters = parameters
    at = int(np.searchsorted(swept.n_columns, joint.max_columns, side="right"))
    return float(swept.lifetimes[at]) if at < len(swept.lifetimes) else swept.end


def _in_full(forest: Forest, X: np.ndarray, n_threads: int) -> Forest:
    """Return the trees of the forest's lifetime with every cell of a row split to the end."""
    joint = dataclasses.replace(joint_of(forest), is_averaged=True)
    anew = Forest(dataclasses.replace(forest.parameters, joint=joint), forest.tree_numbers)
    super(Forest, anew).update(X, np.zeros(len(X)), None, n_threads)
    seed, lifetime = np.uint64(anew.parameters.seed), anew.parameters.realised_lifetime
    for t, number in enumerate(anew.tree_numbers.astype(np.uint64)):
        while not split_to_the_end(anew.placed[t], seed, number, lifetime):
            anew.placed[t] = nodes.resize(anew.placed[t], 2 * len(anew.placed[t].i))
    anew.exact = None
    return anew


def _write(tree: nodes.Tree, averages: np.ndarray, mean: np.ndarray) -> None:
    """Write each node's value: the mean target, its own averages, and those of all above it."""
    used = int(tree.head_i[nodes.N_NODES])
    tree.d[:used, nodes.STAT + 1 : nodes.STAT + tree.n_stats] = 0.0
    tree.d[:used, WEIGHT] = 1.0
    parent = tree.i[:used, nodes.PARENT]
    for v in range(used):  # on the cube children come after their parents
        above = mean if parent[v] < 0 else tree.d[parent[v], VALUE : VALUE + 2 * len(mean) : 2]
        tree.d[v, VALUE : VALUE + 2 * len(mean) : 2] = above + averages[:, v]
