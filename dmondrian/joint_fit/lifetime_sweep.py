r"""Exact fits at all lifetimes, from one sweep over the cuts, and what their labels are worth.

**Marginal likelihood.** With w ~ N(0, s^2 I) and noise of variance s^2 delta^2 the labels less
their mean are N(0, s^2 M), M = Phi Phi' + delta^2 I. B16 has s = 1; a given s leaves
L = -1/2 ln det M - y' M^{-1} y / (2 s^2) up to a constant. Else s^2 is integrated out under
p(s^2) = 1 / s^2, which leaves L = -1/2 ln det M - n/2 ln(y' M^{-1} y): scaling the labels changes
nothing. (B16 writes ln det A for ln det M and leaves out c ln delta^2, which lifetimes change.)
ln det M = ln det A + (n - c) ln delta^2 and y' M^{-1} y = (y' y - b' A^{-1} b) / delta^2,
with A and b = Phi' y those of c columns. Labels of k outputs share s^2; whole weights are repeats.

**Predictions.** The function at a row has the mean phi w and the variance
s^2 delta^2 phi' A^{-1} phi; a label s^2 delta^2 more. Where s^2 is integrated out its posterior
mean counts, y' M^{-1} y / (n - 2): labels have Student's distribution of n degrees of freedom.

Relies on :mod:`dmondrian.joint_fit.lifetime_sweep_kernels`.

Shapes: T trees, k outputs, q cuts, L lifetimes, m nodes of all trees together.

References: Balog et al. (2016), section 4.2.1 and Supplement B.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from dmondrian.ensemble.settings.kernel_settings import Joint
from dmondrian.errors import ParameterError
from dmondrian.joint_fit.lifetime_sweep_kernels import (
    Average,
    Cuts,
    Fit,
    Labels,
    Spread,
    sweep,
    write_prior,
)

NO_SPREAD = Spread(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(1))


class KernelPath(NamedTuple):
    """Worth of fits at many lifetimes, and the choice made by them.

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
    table: np.ndarray  # float64 [L, 5], as written by lifetime_sweep_kernels.sweep
    cuts: Cuts
    fit: Fit  # at the last lifetime
    mean: np.ndarray  # float64 [k], subtracted from targets
    average: Average  # over the lifetimes, if it was asked for
    offsets: np.ndarray  # int64 [T], number of each tree's first node
    end: float  # lifetime up to which the last fit holds

    @property
    def n_columns(self) -> np.ndarray:
        """Columns that hold learned rows, int64 [L]."""
        n_columns: np.ndarray = self.table[:, 2].astype(np.int64)
        return n_columns

    @property
    def log_likelihoods(self) -> np.ndarray:
        """Up to a constant, float64 [L]; 0 where trees are fitted each for itself."""
        return self.table[:, 4]


def prior_of(times: np.ndarray, prior: str, end: float) -> np.ndarray:
    """Return how likely the lifetimes from each cut to the next are beforehand, float64 [L].

    "uniform": lifetimes up to the end are as likely; "log_uniform": their logarithms are, from a
    tenth of the first cut on. Up to a constant.
    """
    ends = np.append(times, max(end, float(times[-1])))
    is_logarithmic = prior == "log_uniform" and len(times) > 1
    if is_logarithmic:
        ends[0] = 0.1 * times[1]
    shares = np.empty(len(times))
    write_prior(ends, is_logarithmic, shares)
    if not shares.any():
        shares[0] = 1.0  # no cut, no end
    return shares


def sweep_cuts(
    joint: Joint,
    cuts: Cuts,
    lives: tuple[np.ndarray, float],
    labels: Labels,
    prior: str | None = None,
    spread: Spread = NO_SPREAD,
) -> Swept:
    """Return the fits after each cut; the caller fills in ``mean`` and ``offsets``.

    Parameters
    ----------
    joint : Joint
    cuts : Cuts
    lives : tuple
        Times of the cuts, float64 [q], and the longest lifetime.
    labels : Labels
    prior : str, optional
        "log_uniform" or "uniform": values are averaged under the posterior, up to the end.
    spread : Spread, optional
        Where the variances of the last rows are to be added up.

    Raises
    ------
    ParameterError
        If there are more trees than columns may be.
    """
    times, end = lives
    n_trees, m, k = len(cuts.roots), len(cuts.left), joint.n_outputs
    most = min(joint.max_columns, n_trees + len(times)) if joint.is_joint else 1
    if joint.is_joint and n_trees > joint.max_columns:
        raise ParameterError(
            f"{n_trees} trees have as many columns before the first cut, and max_columns is "
            f"{joint.max_columns}: use fewer trees, or a larger max_columns"
        )
    n_asked = len(spread.means)
    fit = Fit(
        np.zeros((most + 1, most + 1)), np.zeros(most + 1, np.int64), np.full(m, -1),
        np.zeros((n_trees, cuts.rows.shape[1]), np.int64), np.zeros((1 + k, m)), np.zeros((k, m)),
        np.zeros((3, most + 1)), np.zeros((most + 2, n_asked)),
    )  # fmt: skip
    table, lifetimes = np.zeros((len(times) + 1, 5)), np.append(0.0, times)
    average = Average(np.zeros(0), np.zeros(0), np.zeros((k, 0)))
    if prior is not None:
        chances = prior_of(lifetimes, prior, end)
        average = Average(chances, np.zeros(len(chances)), np.zeros((k, m)))
    done = sweep(cuts, fit, labels, joint.ridge, joint.is_joint, table, average, spread)
    end = float(times[done]) if done < len(times) else end
    table, none = table[: done + 1], np.zeros(0, np.int64)
    return Swept(lifetimes[: done + 1], table, cuts, fit, np.zeros(k), average, none, end)


def end_of(joint: Joint, cuts: Cuts, lives: tuple[np.ndarray, float], labels: Labels) -> float:
    """Return the lifetime at which there are more columns than exact fits may have, or the last.

    Parameters as of :func:`sweep_cuts`.
    """
    # Trees fitted each for itself have the same columns, and no matrix.
    swept = sweep_cuts(dataclasses.replace(joint, is_joint=False), cuts, lives, labels)
    at = int(np.searchsorted(swept.n_columns, joint.max_columns, side="right"))
    return float(swept.lifetimes[at]) if at < len(swept.lifetimes) else swept.end
