"""The lifetime of a kernel, from one sweep over all of them.

The partitions of a lifetime are those of all longer ones with the later cuts left out. Exactly: one
sweep over the cuts of all trees (:mod:`dmondrian.joint_fit.lifetime_sweep_kernels`) gives the ridge
fit after each cut, its held-out error and its marginal likelihood. By mini-batches: lifetimes on a
grid, where each cell begins with the value of the cell that held it, which changes no forecast, and
rows are used once more.

Relies on partitions that do not depend on how far they are realised. Promises a pure function of
parameters and rows.

Shapes: n rows, T trees, k outputs, L lifetimes.

References: Balog et al. (2016), section 4 and Supplement B.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dmondrian.ensemble.lifetime_selection import held_out
from dmondrian.ensemble.settings.kernel_settings import as_targets
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.cell_columns import leaves_of
from dmondrian.joint_fit.lifetime_sweep import KernelPath, Swept, sweep_cuts
from dmondrian.joint_fit.lifetime_sweep_kernels import Labels
from dmondrian.joint_fit.minibatch import joint_of
from dmondrian.joint_fit.sweep_input import cuts_of, first_lifetime
from dmondrian.kernel_machine.lifetime_grid import held_out_errors

Rows = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # X, y, w
_MOST_DOUBLINGS = 200


def choose_lifetime(
    parameters: ForestParameters,
    n_trees: int,
    rows: Rows,
    n_threads: int,
    max_lifetime: float | None,
    by: str,
    fraction: float,
) -> KernelPath:
    """Return the path of fits to rows, with the lifetime chosen.

    Parameters
    ----------
    parameters : ForestParameters
        Whose lifetime is to be chosen.
    n_trees : int
    rows : tuple
        X float32 [n, d], y float64 [n], w float64 [n] or None.
    n_threads : int
    max_lifetime : float or None
        None for where exact fits have ``max_columns``, or trees half as many cells as rows.
    by : {"validation", "marginal_likelihood"}
    fraction : float
        Share of the rows that is held out for "validation".

    Raises
    ------
    ParameterError
        If exact fits are needed, and not asked for.
    """
    joint = parameters.joint
    needs_exact = by != "validation"
    if needs_exact and not joint.is_exact:
        raise ParameterError(
            f'lifetime="{by}" needs exact fits: use fitting="joint" with solver="cholesky" or '
            '"auto", or lifetime="validation"'
        )
    X, y, weights = weighted_rows(rows)
    is_held = held_out(len(y), fraction) if by == "validation" else np.zeros(len(y), bool)
    learned, held = np.where(is_held, 0.0, weights), np.flatnonzero(is_held)
    is_exact = needs_exact or joint.solver == "cholesky" or not joint.is_joint
    if is_exact or joint.solver == "auto":
        most = joint.max_columns if joint.is_joint else None
        forest = realised(parameters, n_trees, X, learned, n_threads, max_lifetime, most)
        if is_exact or n_cells(forest, X, learned) <= joint.max_columns:
            return _chosen(sweep_exactly(forest, X, y, learned, held), by, len(held))
    rows = X, y, learned
    times, columns, errors = held_out_errors(
        parameters, n_trees, rows, held, n_threads, max_lifetime
    )
    best = float(times[np.argmin(errors)])
    return KernelPath(times, columns, errors, None, None, best)


def _chosen(swept: Swept, by: str, n_held: int) -> KernelPath:
    times, columns, end = swept.lifetimes, swept.n_columns, swept.end
    errors = swept.table[:, 3] / n_held if n_held else None
    likelihoods = swept.log_likelihoods if (swept.table[:, 1] != 0.0).any() else None
    worth = errors if by == "validation" else -swept.log_likelihoods
    assert worth is not None  # rows were held out
    chosen = _within(times, int(np.argmin(worth)), end)
    return KernelPath(times, columns, errors, likelihoods, None, chosen)


def _within(times: np.ndarray, at: int, end: float) -> float:
    """Return a lifetime between one cut and the next, where the fit is the same."""
    last = times[at + 1] if at + 1 < len(times) else max(end, times[at])
    return float(0.5 * (times[at] + last))


def weighted_rows(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows that have weight: X, y, w."""
    X, y, w = rows
    weights = np.ones(len(y)) if w is None else np.array(w, np.float64)
    kept = weights > 0.0
    return np.ascontiguousarray(X[kept]), y[kept], weights[kept]


def realised(
    parameters: ForestParameters,
    n_trees: int,
    X: np.ndarray,
    learned: np.ndarray,
    n_threads: int,
    max_lifetime: float | None,
    most: int | None,
) -> Forest:
    """Return partitions realised for rows, as far as a sweep may go.

    Without an end they are realised further and further, until there are more than ``most``
    columns of rows of positive weight ``learned``, or half as many cells in a tree as rows.
    """
    joint = parameters.joint
    cells = dataclasses.replace(joint, n_outputs=0)
    end, known = max_lifetime, np.unique(X, axis=0)
    halves = max(len(known) // 2, 1) * n_trees
    limit = halves if most is None else min(halves, most)
    if end is None:
        end = first_lifetime(known, math.inf)
    for _ in range(_MOST_DOUBLINGS):
        forest = Forest(parameters.replace(lifetime=float(end), joint=cells), range(n_trees))
        super(Forest, forest).update(X, np.zeros(len(X)), None, n_threads)
        if max_lifetime is not None or len(known) < 2 or n_cells(forest, X, learned) > limit:
            break
        end *= 2.0
    forest.parameters = forest.parameters.replace(joint=joint)
    return forest


def n_cells(forest: Forest, X: np.ndarray, weights: np.ndarray) -> int:
    """Return the cells of all trees that hold rows of positive weight."""
    leaves = leaves_of(forest, X[weights > 0.0])
    return sum(len(np.unique(column)) for column in leaves.T)


def sweep_exactly(
    forest: Forest,
    X: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    held: np.ndarray,
    until: float = np.inf,
    prior: str | None = None,
) -> Swept:
    """Return the fits to rows of positive weight after each cut up to a lifetime.

    The trees must have taken in all rows. ``prior``: the values are to be averaged under the
    posterior, up to the end of the forest's lifetimes.
    """
    joint = joint_of(forest)
    cuts, times, offsets = cuts_of(forest, X, until)
    labels, mean = labels_of(as_targets(y, joint.n_outputs), weights, held, joint.scale)
    end = min(forest.parameters.realised_lifetime, until)
    return sweep_cuts(joint, cuts, (times, end), labels, prior)._replace(mean=mean, offsets=offsets)


def labels_of(
    targets: np.ndarray, weights: np.ndarray, held: np.ndarray, scale: float | None
) -> tuple[Labels, np.ndarray]:
    """Return targets [n, k] less their mean, and that, float64 [k]."""
    # Exact sums: how NumPy adds depends on the processor.
    total = math.fsum(weights)
    mean = np.array([math.fsum(weights * column) for column in targets.T]) / total
    centred = np.ascontiguousarray(targets - mean)
    squares = math.fsum(math.fsum(weights * column**2) for column in centred.T)
    row_weights = np.array(weights, np.float64)
    return Labels(centred, row_weights, held, total, squares, scale or 0.0), mean
