r"""The average over lifetimes: the predictions of cells at all of them, weighted by the posterior.

The mean over lifetimes of a tree's predictions is a sum over the cells on the way of a row: of
each, its values at the lifetimes at which it is whole, times their probabilities. So one tree,
realised to the end, holds the average in its nodes.

**More rows.** The fits at all lifetimes are functions of the weights of rows in pairs of the finest
cells, and of the sums of their labels. These are kept, and rows are added to them; the sweep over
lifetimes then has finest cells where it had rows. So the average after more rows is the one of all
rows, up to the longest lifetime that the first ones were realised to.

**Variance.** The forecast is a mixture over lifetimes: its variance is the mean over them of the
variances of the fits (joint_fit/ridge.py), plus that of their means. Cells of one tree are not
enough for that, as fits have covariances between trees: one more sweep follows the rows asked
about.

Relies on partitions of the cube, whose cells can be realised in full, also below a single row.

Shapes: n rows, T trees, k outputs, c finest cells that hold rows.

References: Balog et al. (2016), Supplement B.
"""

from __future__ import annotations

import binascii
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.kernel_settings import Joint, as_targets
from dmondrian.errors import CorruptError
from dmondrian.growth.cube_cells import split_to_the_end
from dmondrian.joint_fit.cell_columns import leaves_of
from dmondrian.joint_fit.lifetime_sweep import NO_SPREAD, KernelPath, Swept, end_of, sweep_cuts
from dmondrian.joint_fit.lifetime_sweep_kernels import Labels, Spread
from dmondrian.joint_fit.ridge import AT_ONCE, Exact, packed, unpacked
from dmondrian.joint_fit.sweep_input import Finest, cuts_of
from dmondrian.stats.cell_values import VALUE, WEIGHT
from dmondrian.tree import nodes

PRIORS = ("log_uniform", "uniform")
_NEGLIGIBLE = 1e-20  # share of a lifetime that no variance shows
_ASKED = 1024  # rows that one sweep follows: its memory


class Averaged(Exact):
    """The sums of the rows so far, from which averages over lifetimes are made.

    Parameters
    ----------
    joint : Joint
    n_trees : int
    prior : {"log_uniform", "uniform"}

    Attributes
    ----------
    path : KernelPath or None
        Of the last sweep; None before there was one.
    """

    def __init__(self, joint: Joint, n_trees: int, prior: str) -> None:
        super().__init__(joint, n_trees)
        self.path: KernelPath | None = None
        self._prior = prior
        self._cells = np.zeros((2, 0), np.int64)  # tree and node of each column

    def learn(
        self,
        ensemble: Ensemble,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None,
        n_threads: int,
    ) -> int:
        """Learn rows and make the averages anew; return how many were learned: all."""
        for start in range(0, len(y), AT_ONCE):
            self._check_memory('lifetime="average"')
            part = slice(start, start + AT_ONCE)
            weights = None if w is None else w[part]
            Ensemble.update(ensemble, X[part], np.zeros(len(y[part])), weights, n_threads)
            split_in_full(ensemble)
            self.count(ensemble, X[part], y[part], weights)
        self.write_values(ensemble)
        return len(y)

    def count(
        self,
        ensemble: Ensemble,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None,
    ) -> None:
        """Add rows to the sums; the trees have been split for them, in full."""
        targets = as_targets(y, self._joint.n_outputs)
        weights = np.ones(len(y)) if w is None else np.array(w, np.float64)
        learned = np.flatnonzero(weights > 0.0)
        columns = np.full((len(y), self._n_trees), -1)
        if len(learned):
            columns[learned] = self._columns_at(leaves_of(ensemble, X[learned]))
        self._take(columns, targets, weights)

    def _columns_at(self, leaves: np.ndarray) -> np.ndarray:
        """Return the columns of leaves int64 [n, T]; new ones have the next numbers, row by row."""
        size = 1 + int(max(leaves.max(), self._cells[1].max(initial=0)))
        known = np.full(self._n_trees * size, -1)
        known[self._cells[0] * size + self._cells[1]] = np.arange(len(self._cells[0]))
        at = (np.arange(self._n_trees) * size + leaves).ravel()
        fresh = at[known[at] < 0]
        fresh = fresh[np.sort(np.unique(fresh, return_index=True)[1])]
        known[fresh] = len(self._cells[0]) + np.arange(len(fresh))
        self._cells = np.concatenate([self._cells, np.stack(np.divmod(fresh, size))], axis=1)
        columns: np.ndarray = known[at].reshape(leaves.shape)
        return columns

    def write_values(self, ensemble: Ensemble) -> None:
        """Write the averages of all cells into the trees."""
        if self.n_columns:
            none = np.empty((0, ensemble.parameters.n_features), np.float32)
            self.path = write_averages(ensemble, self._swept(ensemble, none, self._prior))

    def _finest(self) -> Finest:
        upper = np.triu(self._sums[: self.n_columns, : self.n_columns])
        return Finest(upper + np.triu(upper, 1).T, self._cells)

    def _swept(
        self, ensemble: Ensemble, X: np.ndarray, prior: str | None, spread: Spread = NO_SPREAD
    ) -> Swept:
        """Return the fits at all lifetimes, averaged under a prior, or with the spread of rows."""
        joint, c = self._joint, self.n_columns
        cuts, times, offsets = cuts_of(ensemble, X, np.inf, self._finest())
        of_cells, mean = np.diag(self._sums)[:c], self._moments[1:] / self._moments[0]
        targets, weights = np.zeros((c + len(X), len(mean))), np.zeros(c + len(X))
        targets[:c] = (self._targets[:, :c] / of_cells).T - mean
        weights[:c] = of_cells
        held, total = np.zeros(0, np.int64), float(self._moments[0])
        scale, squares = joint.scale or 0.0, self.centred_squares()
        labels = Labels(targets, weights, held, total, squares, scale)
        end = end_of(joint, cuts, (times, ensemble.parameters.realised_lifetime), labels)
        n = int(np.searchsorted(times, end, side="right"))
        cuts, lives = cuts._replace(nodes=cuts.nodes[:n]), (times[:n], end)
        swept = sweep_cuts(joint, cuts, lives, labels, prior, spread)
        return swept._replace(mean=mean, offsets=offsets)

    def variances(
        self, ensemble: Ensemble, X: np.ndarray, means: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Return the variance of the function at rows over the posterior, and of the noise.

        Of the mixture over lifetimes, whose mean at rows is ``means`` [n]: float64 [n] and one
        number. A sweep for each 1024 rows, O(c^3), and O(c^2) per row.
        """
        with self._lock:
            if self.path is None:  # it was restored
                self.path = path_of(self._swept(ensemble, X[:0], self._prior))
            shares = self.path.shares
        assert shares is not None  # of an average
        shares = np.where(shares < _NEGLIGIBLE, 0.0, shares)
        variances, noise = np.zeros(len(X)), np.zeros(1)
        centred = means - self._moments[1] / self._moments[0]
        for start in range(0, len(X), _ASKED):
            part, noise = slice(start, start + _ASKED), np.zeros(1)
            spread = Spread(shares, np.ascontiguousarray(centred[part]), variances[part], noise)
            self._swept(ensemble, X[part], None, spread)
        return variances, float(noise[0])

    def beside(self) -> dict[str, Any]:
        """Return what is stored beside the state, JSON-able: all that is known of rows."""
        sums = self.to_json()
        return {
            **super().beside(),
            "sums": sums,
            "prior": self._prior,
            "cells": packed(self._cells),
        }

    @classmethod
    def from_beside(cls, stored: Any, joint: Joint, trees: Sequence[nodes.Tree]) -> Averaged:
        """Return the sums of :meth:`beside`, checked.

        Raises
        ------
        CorruptError
            If they are not of these trees.
        """
        try:
            if stored["prior"] not in PRIORS:
                raise CorruptError("a kernel's prior of lifetimes is none")
            made = cls(joint, len(trees), stored["prior"])
            sums = cls._restored(made, stored["sums"], joint, len(trees))
            cells = unpacked(stored["cells"]).reshape(2, -1)
        except (KeyError, TypeError, ValueError, zlib.error, binascii.Error) as error:
            raise CorruptError(f"the sums of a kernel cannot be read: {error}") from None
        sums._cells = cells.astype(np.int64)
        sums.take_beside(stored)
        used = np.array([int(tree.head_i[nodes.N_NODES]) for tree in trees])
        is_whole = cells.shape[1] == sums.n_columns and (cells == np.floor(cells)).all()
        is_whole = is_whole and ((cells[0] >= 0) & (cells[0] < len(used)) & (cells[1] >= 0)).all()
        is_sound = bool(is_whole) and bool((cells[1] < used[sums._cells[0]]).all())
        if not is_sound or np.unique(cells, axis=1).shape != cells.shape:
            raise CorruptError("the sums of a kernel are not of its cells")
        return sums


def split_in_full(ensemble: Ensemble) -> None:
    """Split every cell of a row to the end of the forest's lifetime, also below a single row."""
    seed, lifetime = np.uint64(ensemble.parameters.seed), ensemble.parameters.realised_lifetime
    for t, number in enumerate(ensemble.tree_numbers.astype(np.uint64)):
        while not split_to_the_end(ensemble.store.trees[t], seed, number, lifetime):
            tree = ensemble.store.trees[t]
            ensemble.store.replace(t, nodes.resize(tree, 2 * len(tree.i)))


def write_averages(ensemble: Ensemble, swept: Swept) -> KernelPath:
    """Write the averages over lifetimes into all nodes; return the path of the fits."""
    averages = swept.average.values
    for tree, offset in zip(ensemble.store.trees, swept.offsets, strict=True):
        _write(tree, averages[:, offset:], swept.mean)
    return path_of(swept)


def path_of(swept: Swept) -> KernelPath:
    """Return the path of averaged fits."""
    times, shares = swept.lifetimes, swept.average.shares[: len(swept.lifetimes)]
    chosen = math.fsum(shares * (0.5 * (times + np.append(times[1:], swept.end))))
    return KernelPath(times, swept.n_columns, None, swept.log_likelihoods, shares, chosen)


def _write(tree: nodes.Tree, averages: np.ndarray, mean: np.ndarray) -> None:
    """Write each node's value: the mean target, its own averages, and those of all above it."""
    used = int(tree.head_i[nodes.N_NODES])
    tree.d[:used, nodes.STAT + 1 : nodes.STAT + tree.n_stats] = 0.0
    tree.d[:used, WEIGHT] = 1.0
    parent = tree.i[:used, nodes.PARENT]
    for v in range(used):  # on the cube children come after their parents
        above = mean if parent[v] < 0 else tree.d[parent[v], VALUE : VALUE + 2 * len(mean) : 2]
        tree.d[v, VALUE : VALUE + 2 * len(mean) : 2] = above + averages[:, v]
