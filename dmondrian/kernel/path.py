r"""The lifetime of a kernel, from one sweep over all of them.

The partitions of a lifetime are those of all longer ones with the later cuts left out. Exactly:
one sweep over the cuts of all trees (:mod:`dmondrian.core.cuts`) gives the ridge fit after each
cut, its held-out error and its marginal likelihood. By mini-batches: lifetimes on a grid, where
each cell begins with the value of the cell that held it, which changes no forecast, and rows are
heard once more.

**Marginal likelihood.** With w ~ N(0, s^2 I) and noise of variance s^2 delta^2 the labels less
their mean are N(0, s^2 M), M = Phi Phi' + delta^2 I. s^2 is integrated out under p(s^2) = 1 / s^2,
which leaves L = -1/2 ln det M - n/2 ln(y' M^{-1} y) up to a constant: scaling the labels changes
nothing. ln det M = ln det A + (n - c) ln delta^2 and y' M^{-1} y = (y' y - b' A^{-1} b) / delta^2,
with A and b = Phi' y those of c columns. Labels of k outputs share s^2; whole weights are repeats.

Relies on partitions that do not depend on how far they are realised. Promises a pure function of
parameters and rows.

Shapes: n rows, T trees, k outputs, L lifetimes, m nodes of all trees together.

References: Balog et al. (2016), section 4 and Supplement B.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from dmondrian.core.cuts import Average, Cuts, Fit, Labels, sweep, write_prior
from dmondrian.errors import ParameterError
from dmondrian.forest import Forest
from dmondrian.joint import as_targets
from dmondrian.kernel.batches import joint_of
from dmondrian.kernel.columns import leaves_of
from dmondrian.kernel.cuts import FIRST_CUTS, cuts_of
from dmondrian.kernel.grid import held_out_errors
from dmondrian.parameters import ForestParameters
from dmondrian.selection import held_out

Rows = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # X, y, w
_MOST_DOUBLINGS = 200


class KernelPath(NamedTuple):
    """What fits at many lifetimes are worth, and what was chosen by them.

    A fit is that of lifetimes from its own to the next one.
    """

    lifetimes: np.ndarray  # float64 [L], increasing, from 0
    n_columns: np.ndarray  # int64 [L]
    validation_errors: np.ndarray | None  # float64 [L], mean squared, of held-out rows
    log_likelihoods: np.ndarray | None  # float64 [L], up to a constant; of exact fits
    shares: np.ndarray | None  # float64 [L], posterior probabilities of the lifetimes
    chosen: float  # lifetime; of an average the posterior mean


class Swept(NamedTuple):
    """One sweep of exact fits."""

    lifetimes: np.ndarray  # float64 [L], 0 and the times of the cuts
    told: np.ndarray  # float64 [L, 5], see :func:`dmondrian.core.cuts.sweep`
    cuts: Cuts
    fit: Fit  # at the last lifetime
    mean: np.ndarray  # float64 [k], subtracted from targets
    average: Average  # over the lifetimes, if it was asked for
    offsets: np.ndarray  # int64 [T], number of each tree's first node
    end: float  # lifetime up to which the last fit holds

    @property
    def n_columns(self) -> np.ndarray:
        """Columns that hold learned rows, int64 [L]."""
        told: np.ndarray = self.told[:, 2].astype(np.int64)
        return told

    @property
    def log_likelihoods(self) -> np.ndarray:
        """Up to a constant, float64 [L]; 0 where trees are fitted each for itself."""
        return self.told[:, 4]


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
    assert joint is not None  # who calls knows
    needs_exact = by != "validation"
    if needs_exact and not joint.is_exact:
        raise ParameterError(
            f'lifetime="{by}" needs exact fits: use fitting="joint" with solver="cholesky" or '
            '"auto", or lifetime="validation"'
        )
    X, y, weights = heard_rows(rows)
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
    errors = swept.told[:, 3] / n_held if n_held else None
    likelihoods = swept.log_likelihoods if (swept.told[:, 1] != 0.0).any() else None
    worth = errors if by == "validation" else -swept.log_likelihoods
    assert worth is not None  # rows were held out
    chosen = _within(times, int(np.argmin(worth)), end)
    return KernelPath(times, columns, errors, likelihoods, None, chosen)


def _within(times: np.ndarray, at: int, end: float) -> float:
    """Return a lifetime between one cut and the next, where the fit is the same."""
    last = times[at + 1] if at + 1 < len(times) else max(end, times[at])
    return float(0.5 * (times[at] + last))


def prior_of(times: np.ndarray, prior: str, end: float) -> np.ndarray:
    """Return how likely the lifetimes from each cut to the next are beforehand, float64 [L].

    "uniform": lifetimes up to the end are as likely; "log_uniform": their logarithms are, from a
    tenth of the first cut on. Up to a constant.
    """
    ends = np.append(times, max(end, float(times[-1])))
    is_logarithmic = prior == "log_uniform" and len(times) > 1
    if is_logarithmic:
        ends[0] = 0.1 * times[1]
    told = np.empty(len(times))
    write_prior(ends, is_logarithmic, told)
    if not told.any():
        told[0] = 1.0  # no cut, no end
    return told


def heard_rows(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows that have weight: X, y, w."""
    X, y, w = rows
    weights = np.ones(len(y)) if w is None else np.array(w, np.float64)
    heard = weights > 0.0
    return np.ascontiguousarray(X[heard]), y[heard], weights[heard]


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
    assert joint is not None  # who calls knows
    cells = dataclasses.replace(joint, n_outputs=0)
    end, known = max_lifetime, np.unique(X, axis=0)
    halves = max(len(known) // 2, 1) * n_trees
    limit = halves if most is None else min(halves, most)
    if end is None:
        size = math.fsum(known.max(axis=0) - known.min(axis=0))
        end = FIRST_CUTS / size if size > 0.0 else 1.0
    for _ in range(_MOST_DOUBLINGS):
        forest = Forest(
            dataclasses.replace(parameters, lifetime=float(end), joint=cells), range(n_trees)
        )
        super(Forest, forest).update(X, np.zeros(len(X)), None, n_threads)
        if max_lifetime is not None or len(known) < 2 or n_cells(forest, X, learned) > limit:
            break
        end *= 2.0
    forest.parameters = dataclasses.replace(forest.parameters, joint=joint)
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
    labels, mean = labels_of(as_targets(y, joint.n_outputs), weights, held)
    n_trees, m, k = len(forest.placed), len(cuts.left), joint.n_outputs
    most = min(joint.max_columns, n_trees + len(times)) if joint.is_joint else 1
    if joint.is_joint and n_trees > joint.max_columns:
        raise ParameterError(
            f"{n_trees} trees have as many columns before the first cut, and max_columns is "
            f"{joint.max_columns}: use fewer trees, or a larger max_columns"
        )
    fit = Fit(
        np.zeros((most + 1, most + 1)), np.zeros(most + 1, np.int64), np.full(m, -1),
        np.zeros((n_trees, len(X)), np.int64), np.zeros((1 + k, m)), np.zeros((k, m)),
        np.zeros((3, most + 1)),
    )  # fmt: skip
    told, lifetimes = np.zeros((len(times) + 1, 5)), np.append(0.0, times)
    end = min(forest.parameters.realised_lifetime, until)
    average = Average(np.zeros(0), np.zeros(0), np.zeros((k, 0)))
    if prior is not None:
        chances = prior_of(lifetimes, prior, end)
        average = Average(chances, np.zeros(len(chances)), np.zeros((k, m)))
    done = sweep(cuts, fit, labels, joint.ridge, joint.is_joint, told, average)
    end = float(times[done]) if done < len(times) else end
    told = told[: done + 1]
    return Swept(lifetimes[: done + 1], told, cuts, fit, mean, average, offsets, end)


def labels_of(
    targets: np.ndarray, weights: np.ndarray, held: np.ndarray
) -> tuple[Labels, np.ndarray]:
    """Return targets [n, k] less their mean, and that, float64 [k]."""
    # Exact sums: how NumPy adds depends on the processor.
    total = math.fsum(weights)
    mean = np.array([math.fsum(weights * column) for column in targets.T]) / total
    centred = np.ascontiguousarray(targets - mean)
    squares = math.fsum(math.fsum(weights * column**2) for column in centred.T)
    return Labels(centred, np.array(weights, np.float64), held, total, squares), mean
