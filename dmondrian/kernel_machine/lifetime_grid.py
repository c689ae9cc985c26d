"""Lifetimes on a grid, by mini-batches that are warm-started: each cell goes on from its parent's.

The trees are realised some way ahead, and cut where the lifetime has come to: a cut moves the rows
of its cell, and no others. When the lifetime passes what is realised, the trees are drawn again,
further; what cells know goes with their rows.

Relies on :mod:`dmondrian.joint_fit.minibatch`, and on partitions that do not depend on how far they
are realised. Promises that going on to a longer lifetime changes no forecast of a row that is
learned before it is used again.

Shapes: n rows, T trees, k outputs, L lifetimes.

References: Balog et al. (2016), section 4.2.2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from dmondrian.ensemble.settings.kernel_settings import as_targets
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.minibatch import apply_in_batches, joint_of, predictions_of
from dmondrian.joint_fit.sweep_input import cuts_of, first_lifetime
from dmondrian.kernel_machine.lifetime_grid_kernels import cut_cells
from dmondrian.tree import nodes

_STEP = 1.4142135623730951  # from one lifetime of the grid to the next
_FIRST = 0.0625  # times the lifetime realised at first: the first of the grid
_PASSES = 2  # over the rows at each lifetime
_AHEAD = 2.0  # times what is realised: how far trees are drawn the next time
_MOST_STEPS = 400
_PATIENCE = 6  # so many lifetimes in a row much worse than the best: longer ones are not tried
_WORSE = 1.1  # times the best error: before cells have learned enough errors only waver


class WarmSweep:
    """Partitions that are cut further and further, with values that go on.

    Parameters
    ----------
    parameters : ForestParameters
        Whose lifetime is swept.
    n_trees : int
    X : float32 array of shape (n, d)
        Rows that are learned or held out.
    weights : float64 array of shape (n,)
        0 for rows that are held out.
    n_threads : int
    end : float
        Longest lifetime, or inf.

    Attributes
    ----------
    lifetime : float
        At which the trees are; 0 at first.
    n_columns : int
        Cells that hold learned rows.
    """

    def __init__(
        self,
        parameters: ForestParameters,
        n_trees: int,
        X: np.ndarray,
        weights: np.ndarray,
        n_threads: int,
        end: float,
    ) -> None:
        joint = parameters.joint
        self._X, self._weights, self._n_threads, self._end = X, weights, n_threads, end
        self._parameters = parameters.replace(joint=dataclasses.replace(joint, solver="sgd"))
        self._learned = np.flatnonzero(weights > 0.0)
        self.lifetime, self.n_columns = 0.0, n_trees
        self._forest = Forest(self._parameters, range(n_trees))
        self._realise(first_lifetime(X, end))

    def _realise(self, lifetime: float) -> None:
        """Draw the trees up to a lifetime; cut them as they are, with what cells know."""
        before, cells = self._forest, getattr(self, "_cells", None)
        parameters = self._parameters.replace(lifetime=lifetime)
        self._forest = forest = Forest(parameters, before.tree_numbers)
        super(Forest, forest).update(self._X, np.zeros(len(self._X)), None, self._n_threads)
        self._realised = lifetime
        self._cuts, self._times, self._offsets = cuts_of(forest, self._X, np.inf)
        roots = self._cuts.roots - self._offsets
        self._cells = np.repeat(roots[:, None], len(self._X), axis=1)
        for tree in forest.store.trees:
            tree.i[:, nodes.LEFT] = -1  # whole until it is cut
        self._n_cut = 0
        self._cut()
        if cells is None:
            return
        known = slice(nodes.STAT + 1, nodes.STAT + forest.store.trees[0].n_stats)
        for t, (tree, old) in enumerate(zip(forest.store.trees, before.store.trees, strict=True)):
            tree.head_f[nodes.UNIT :] = old.head_f[nodes.UNIT :]
            tree.d[roots[t], known] = old.d[old.head_i[nodes.ROOT], known]
            tree.d[self._cells[t], known] = old.d[cells[t], known]

    def _cut(self) -> int:
        """Cut the trees up to the lifetime; return the columns gained."""
        last = int(np.searchsorted(self._times, self.lifetime, side="right"))
        trees = self._forest.store.trees
        gained: int = cut_cells(
            self._forest.policies.stat, self._forest.store.addresses, trees[0].columns, self._cuts,
            self._offsets, self._cells, self._weights, self._n_cut, last,
        )  # fmt: skip
        self._n_cut = last
        return gained

    def cut_to(self, lifetime: float) -> None:
        """Go on to a longer lifetime."""
        if lifetime > self._realised:
            self._realise(min(max(_AHEAD * self._realised, lifetime), self._end))
        self.lifetime = lifetime
        self.n_columns += self._cut()

    def apply_rows(self, y: np.ndarray) -> None:
        """Apply the rows that are learned to their cells, once; ``y`` float64 [n]."""
        rows = self._learned
        apply_in_batches(self._forest, self._cells, rows, y[rows], self._weights[rows])

    def forecasts(self, rows: np.ndarray) -> np.ndarray:
        """Return the predictions of ``rows`` int64 [a] of those given, float64 [a, k]."""
        sums = predictions_of(self._forest, self._cells, rows, is_under_way=False).sums
        mean: np.ndarray = sums / len(self._forest.store)
        return mean

    def errors(self, y: np.ndarray, held: np.ndarray) -> Iterator[tuple[float, int, float]]:
        """Yield lifetimes, their columns and the mean squared errors of rows ``held`` int64 [a].

        Each after passes over the rows that are learned.
        """
        targets = as_targets(y[held], joint_of(self._forest).n_outputs)
        for lifetime in grid_of(self._realised, self._end):
            self.cut_to(lifetime)
            for _ in range(_PASSES):
                self.apply_rows(y)
            squares = (self.forecasts(held) - targets) ** 2
            yield lifetime, self.n_columns, math.fsum(squares.ravel()) / len(held)


def grid_of(realised: float, end: float) -> Iterator[float]:
    """Yield increasing lifetimes, up to the end or for long.

    From a sixteenth of the lifetime that is ``realised`` at first, in steps of the root of two.
    Quotients and products: a power might be another one on another processor.
    """
    first, has_end = _FIRST * realised, end < math.inf
    descending = [end if has_end else first]
    while descending[-1] > first:
        descending.append(descending[-1] / _STEP)
    yield from reversed(descending)
    for _ in range(0 if has_end else _MOST_STEPS):
        first *= _STEP
        yield first


def until_worse(
    tried: Iterator[tuple[float, int, float]], most: float, known: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lifetimes [L], columns [L] and errors [L] of those worth trying.

    The last one has more than ``most`` columns, or errors have long risen; one is enough where
    fewer than two rows are ``known``.
    """
    kept: list[tuple[float, int, float]] = []
    errors: list[float] = []
    for trial in tried:
        kept.append(trial)
        errors.append(trial[2])
        if trial[1] > most or known < 2:
            break
        if len(errors) > _PATIENCE and min(errors[-_PATIENCE:]) > _WORSE * min(errors):
            break
    times, columns, _ = zip(*kept, strict=True)
    return np.array(times), np.array(columns), np.array(errors)


def held_out_errors(
    parameters: ForestParameters,
    n_trees: int,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    held: np.ndarray,
    n_threads: int,
    max_lifetime: float | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lifetimes [L], their numbers of columns [L], and errors of held-out rows [L].

    Up to the longest lifetime, else to where trees have half as many cells as distinct rows, or
    where errors have long risen. ``rows`` X, y and weights, 0 where rows are ``held`` out.
    """
    X, y, weights = rows
    end = math.inf if max_lifetime is None else float(max_lifetime)
    sweep = WarmSweep(parameters, n_trees, X, weights, n_threads, end)
    known = len(np.unique(X[weights > 0.0], axis=0))
    most = known // 2 * n_trees if end == math.inf else math.inf
    return until_worse(sweep.errors(y, held), most, known)
