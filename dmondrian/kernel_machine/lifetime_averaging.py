"""The average over lifetimes, fitted to rows.

Relies on :mod:`dmondrian.joint_fit.lifetime_sums`, which keeps it up with more rows.

References: Balog et al. (2016), Supplement B.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dmondrian.ensemble.settings.kernel_settings import as_targets
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.lifetime_sums import Averaged, split_in_full, write_averages
from dmondrian.joint_fit.lifetime_sweep import KernelPath, end_of
from dmondrian.joint_fit.minibatch import joint_of
from dmondrian.joint_fit.sweep_input import cuts_of
from dmondrian.kernel_machine.lifetime_search import (
    Rows,
    labels_of,
    realised,
    sweep_exactly,
    weighted_rows,
)


def averaged(
    parameters: ForestParameters,
    n_trees: int,
    rows: Rows,
    n_threads: int,
    max_lifetime: float | None,
    prior: str,
) -> tuple[Forest, KernelPath]:
    """Return a forest that predicts the average over lifetimes, and the path of the fits.

    Parameters as of :func:`dmondrian.kernel_machine.lifetime_search.choose_lifetime`.

    Raises
    ------
    ParameterError
        On the range of the data, or without exact fits.
    """
    joint = parameters.joint
    if parameters.domain != "cube" or not joint.is_exact:
        raise ParameterError(
            'lifetime="average" needs cells of the cube and exact fits: use domain="cube" with '
            'fitting="joint" and solver="cholesky" or "auto", or lifetime="validation"'
        )
    X, y, weights = weighted_rows(rows)
    forest = realised(parameters, n_trees, X, weights, n_threads, max_lifetime, joint.max_columns)
    held = np.empty(0, np.int64)
    labels, _ = labels_of(as_targets(y, joint.n_outputs), weights, held, joint.scale)
    cuts, times, _ = cuts_of(forest, X, np.inf)
    end = end_of(joint, cuts, (times, forest.parameters.realised_lifetime), labels)
    forest.parameters = forest.parameters.replace(lifetime=end)
    forest = _in_full(forest, X, n_threads)
    path = write_averages(forest, sweep_exactly(forest, X, y, weights, held, prior=prior))
    forest.exact = kept = Averaged(joint_of(forest), n_trees, prior)
    kept.count(forest, X, y, weights)
    kept.path = path
    return forest, path


def _in_full(forest: Forest, X: np.ndarray, n_threads: int) -> Forest:
    """Return the trees of the forest's lifetime with every cell of a row split to the end."""
    joint = dataclasses.replace(joint_of(forest), is_averaged=True)
    anew = Forest(forest.parameters.replace(joint=joint), forest.tree_numbers)
    super(Forest, anew).update(X, np.zeros(len(X)), None, n_threads)
    split_in_full(anew)
    return anew
