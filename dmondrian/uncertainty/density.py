r"""Densities on the unit cube from Mondrian trees (Z24, section 6.6).

A tree predicts h on each cell A of a lifetime, within [-beta_n, beta_n]: log(n_A / (n vol A)) moved
into these limits, or the value of least empirical risk (:mod:`dmondrian.ensemble.density_risk`), in
either case -beta_n on empty ones. Its density is f_t = exp(h) / Z_t, and Z_t = sum of vol A exp(h)
over cells with rows + (the rest of the volume) exp(-beta_n) is exact. The forest is exp of the mean
over trees of h less its integral, normalised. As constants cancel, that is the normalised geometric
mean of the trees' densities, f = G / Z with G = (prod f_t)^(1/T) and Z = integral of G.

**Normalising a forest.** Z is an integral over the common refinement of T partitions. With A the
arithmetic mean of the f_t, a density that is easy to draw from, Z = E_A[G / A], and G / A is in
(0, 1] everywhere: the mean of N draws has a standard error of at most 1 / (2 sqrt(N)), and in
truth of its own deviation, which is returned (``error``). Draws come in equal numbers from each
tree and are keyed by the seed.

**Many features.** Where rows are a small part of the cube, the density there is larger than the
limit e^beta_n and is cut, while the rest of the volume keeps e^-beta_n: a tree of many small cells
comes close to the uniform density. The mass of cells without rows (``empty_mass``)
should be small beside that of the rows.

**Drawing from it.** Draws from A that are kept with probability G / A are draws from f, exactly; a
share Z of them is kept.

Relies on :mod:`dmondrian.ensemble.density_risk` and on the forest's answers for the cell of a
point.

Shapes: n rows, d features, T trees, c cells with rows, m nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian.ensemble.density_risk import Cells, cells_at, limit
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.sums.prediction_sums import Sums
from dmondrian.errors import ParameterError
from dmondrian.losses.cell import Cell
from dmondrian.tree import nodes

_CHUNK = 4096  # rows whose cells are looked up at once
_NORMALISER = 1  # key of the draws that normalise
_MOST_ROUNDS = 10_000  # of rejected draws, before they are taken not to end


class TreeDensity(NamedTuple):
    """The density of one tree at a lifetime."""

    lower: np.ndarray  # float64 [c, d], cells with rows
    upper: np.ndarray  # float64 [c, d]
    mass: np.ndarray  # float64 [c + 1], probability of each cell, and of all empty ones
    log_density: np.ndarray  # float64 [m + 1], at nodes whose cells have rows; else of empty cells
    is_empty: np.ndarray  # bool [m + 1], where it is of empty cells


class ForestDensity:
    """The density of a forest at a lifetime.

    Parameters
    ----------
    ensemble : Ensemble
        On the cube, with rows.
    lifetimes : float64 array of shape (T,)
        Of each tree, up to the one that trees are realised to.
    bound : float or None
        beta_n; None for max(1, ln(1 + n)).
    cell_value : {"log_frequency", "minimizer"}
        The values of a tree.
    n_draws : int
        Draws that normalise it, where there is more than one tree.

    Attributes
    ----------
    log_normalizer : float
        ln Z.
    error : float
        Standard error of Z relative to it: of ln Z; 0 for one tree.
    empty_mass : float
        Probability that cells without rows have, mean over trees.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        lifetimes: np.ndarray,
        bound: float | None,
        cell_value: str,
        n_draws: int,
    ) -> None:
        ensemble.check_learned()
        self._ensemble = ensemble
        self._at = lifetimes[:, None]
        beta, seed = limit(bound, ensemble.total_weight), ensemble.parameters.seed
        each = zip(ensemble.trees, ensemble.tree_numbers.tolist(), lifetimes.tolist(), strict=True)
        self.trees = [
            _tree_density(tree, cells_at(tree, seed, number, lifetime, beta, cell_value), beta)
            for tree, number, lifetime in each
        ]
        self.empty_mass = float(np.mean([tree.mass[-1] for tree in self.trees]))
        self.log_normalizer, self.error = 0.0, 0.0
        if len(self.trees) > 1:
            rng = np.random.default_rng([ensemble.parameters.seed, _NORMALISER])
            share = -(-n_draws // len(self.trees))
            drawn = [self._draw(t, share, rng) for t in range(len(self.trees))]
            ratios = np.exp(self._log_ratio(np.concatenate(drawn)))
            self.log_normalizer = float(np.log(ratios.mean()))
            self.error = float(ratios.std() / np.sqrt(len(ratios)) / ratios.mean())

    def log_density(self, X: np.ndarray) -> np.ndarray:
        """Return the log of the density at rows of the cube, float64 [n]."""
        return self._by_tree(X).mean(axis=0) - self.log_normalizer

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return independent draws, float32 [n, d]."""
        draws = [np.empty((0, self._ensemble.parameters.n_features), np.float32)]
        n_kept, n_drawn = 0, 0
        for _ in range(_MOST_ROUNDS):
            if n_kept >= n:
                return np.concatenate(draws)[:n]
            which = rng.integers(len(self.trees), size=max(2 * (n - n_kept), 64))
            counts = np.bincount(which, minlength=len(self.trees))
            drawn = np.concatenate([self._draw(t, c, rng) for t, c in enumerate(counts)])
            kept = np.log(rng.random(len(drawn))) < self._log_ratio(drawn)
            # In random order: the first of a sample would be all of the first tree.
            draws.append(rng.permutation(drawn[kept]))
            n_kept, n_drawn = n_kept + int(kept.sum()), n_drawn + len(drawn)
        raise ParameterError(
            f"only {n_kept} of {n_drawn} draws were kept: the trees hardly agree on where rows "
            "are; use a shorter lifetime, fewer trees or more rows"
        )

    def _by_tree(self, X: np.ndarray) -> np.ndarray:
        """Return the log density of each tree, float64 [T, n]."""
        log_density = np.empty((len(self.trees), len(X)))
        for start in range(0, len(X), _CHUNK):
            rows = slice(start, start + _CHUNK)
            nodes_of = self._nodes_of(X[rows])
            for t, tree in enumerate(self.trees):
                log_density[t, rows] = tree.log_density[nodes_of[t]]
        return log_density

    def _nodes_of(self, X: np.ndarray) -> np.ndarray:
        """Return the node whose cell has each row, int64 [T, n]; -1 in a cell without a node."""
        chosen = self._ensemble.policies._replace(loss=Cell(True))
        return self._ensemble.answers(X, chosen, self._at, 1)[:, :, 0, 0].astype(np.int64)

    def _log_ratio(self, X: np.ndarray) -> np.ndarray:
        """Return ln(G / A), float64 [n], at most 0."""
        logs = self._by_tree(X)
        arithmetic = np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))
        return np.minimum(logs.mean(axis=0) - arithmetic, 0.0)

    def _draw(self, t: int, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws from the density of one tree, float32 [n, d]."""
        tree, d = self.trees[t], self._ensemble.parameters.n_features
        cells = rng.choice(len(tree.mass), size=n, p=tree.mass / tree.mass.sum())
        is_empty = cells == len(tree.lower)
        drawn, u = np.empty((n, d)), rng.random((int((~is_empty).sum()), d))
        occupied = cells[~is_empty]
        drawn[~is_empty] = tree.lower[occupied] + u * (tree.upper[occupied] - tree.lower[occupied])
        drawn[is_empty] = self._draw_empty(t, int(is_empty.sum()), rng)
        return np.minimum(drawn, 1.0).astype(np.float32)

    def _draw_empty(self, t: int, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return uniform draws from the cells without rows of one tree, float64 [n, d]."""
        draws = [np.empty((0, self._ensemble.parameters.n_features))]
        while sum(map(len, draws)) < n:
            tried = rng.random((max(2 * n, 64), draws[0].shape[1]))
            # Not by the density: one of a cell with rows may be as low as that of empty cells.
            at = self._nodes_of(tried.astype(np.float32))[t]
            draws.append(tried[self.trees[t].is_empty[at]])
        return np.concatenate(draws)[:n]


class DensityAnswers:
    """The density of a forest, asked as the forest itself is where rows are scored.

    Parameters
    ----------
    forest : Ensemble
        All trees of the density: one normaliser is of all of them.
    n_draws : int
        As of :class:`ForestDensity`.
    """

    def __init__(self, forest: Ensemble, n_draws: int) -> None:
        cost, lifetimes = forest.parameters.cost, forest.tree_lifetimes()[:, 0]
        self._density = ForestDensity(forest, lifetimes, cost.bound, cost.cell_value, n_draws)
        self.check_domain = forest.check_domain

    def predict_sums(
        self, X: np.ndarray, spread: bool, distance: bool, onto: Sums | None, labels: bool
    ) -> Sums:
        """Return log densities in place of sums over trees, and nothing else."""
        assert onto is None  # all trees are here
        return Sums(self._density.log_density(X)[:, None], None, None, 1)


def _tree_density(tree: nodes.Tree, cells: Cells, beta: float) -> TreeDensity:
    """Return the density of one tree, normalised."""
    masses = np.exp(cells.log_volume + cells.values)
    mass = np.append(masses, cells.rest * np.exp(-beta))
    log_density = np.full(int(tree.head_i[nodes.N_NODES]) + 1, -beta)
    log_density[cells.nodes] = cells.values
    is_empty = np.ones(len(log_density), bool)
    is_empty[cells.nodes] = False
    log_z = np.log(mass.sum())
    return TreeDensity(cells.lower, cells.upper, mass / mass.sum(), log_density - log_z, is_empty)
