"""Kernel classifiers with logistic and hinge loss, warm-started over lifetimes.

Of T partitions a row has the entry 1 / sqrt(T) in the column of its cell in each (B16, Equation 2).
Weights minimise |w|^2 / 2 + sum over rows of C loss, C = weight / regularization, as scikit-learn's
``LogisticRegression`` (its intercept costs nothing) and ``LinearSVC`` (its intercept is a weight)
do; of more than two classes the first is multinomial, the second one class against the others.

From one lifetime to the next a cell is split into cells that start with its weight, which changes
no prediction of a learned row; the dual variables of the hinge loss, one per row, stay the same.

Relies on scikit-learn for the logistic loss and on :mod:`dmondrian.kernel_machine.dual_kernels` for
the hinge, as
``LinearSVC`` has no warm start. Promises optima up to the tolerance, not to the last bit: the
logistic loss depends on the BLAS.

Shapes: n rows, T trees, c columns, K classes, k outputs.

References: Balog et al. (2016), section 4.2.2.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from dmondrian.ensemble.lifetime_selection import held_out
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.cell_columns import grow_columns, leaves_of
from dmondrian.joint_fit.lifetime_sweep import KernelPath
from dmondrian.joint_fit.minibatch import joint_of
from dmondrian.joint_fit.ridge import write_cells
from dmondrian.joint_fit.sweep_input import first_lifetime
from dmondrian.kernel_machine.dual_kernels import add_duals, descend
from dmondrian.kernel_machine.lifetime_grid import grid_of, until_worse
from dmondrian.kernel_machine.lifetime_search import Rows, weighted_rows
from dmondrian.stats.cell_values import MARK

LOGISTIC_TOLERANCE = 1e-6  # of the largest derivative by a weight, per unit of rows' weight
HINGE_TOLERANCE = 1e-4  # of the largest derivative by a dual variable
_MOST_ITERATIONS = 2000
_ABSENT = -30.0  # log odds of a class that no learned row has
_AHEAD = 2.0  # factor by which trees are grown beyond a requested lifetime


class Cells(NamedTuple):
    """Cells of rows: the sparse features of the linear model."""

    columns: np.ndarray  # int64 [n, T], -1 for cells without learned rows
    n_columns: int

    @property
    def features(self) -> csr_matrix:
        """The rows' features, float64 [n, c]."""
        known = self.columns >= 0
        ends = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
        entries = np.full(ends[-1], 1.0 / math.sqrt(self.columns.shape[1]))
        shape = len(self.columns), self.n_columns
        return csr_matrix((entries, self.columns[known], ends), shape=shape)


class Optimum(NamedTuple):
    """Minimiser of the loss, also the start of the next one."""

    weights: np.ndarray  # float64 [p, c], of p linear functions: K, or one of two classes
    intercepts: np.ndarray  # float64 [p]
    duals: np.ndarray  # float64 [p, n]; the hinge's, else [p, 0]
    n_iterations: int

    def scores(self, cells: Cells) -> np.ndarray:
        """Return the linear functions at rows, float64 [n, p]."""
        scores: np.ndarray = cells.features @ self.weights.T + self.intercepts
        return scores


def minimise(
    loss: str,
    cells: Cells,
    codes: np.ndarray,
    w: np.ndarray,
    n_classes: int,
    ridge: float,
    start: Optimum | None = None,
) -> Optimum:
    """Return the optimum for rows of positive weight.

    Parameters
    ----------
    loss : {"log_loss", "hinge"}
    cells : Cells
        Of these rows.
    codes : int64 [n]
        Their classes, 0 .. K - 1.
    w : float64 [n]
    n_classes : int
        K.
    ridge : float
        Reciprocal of C for a row of weight one.
    start : Optimum, optional
        Warm start, with the same columns.
    """
    least = _least_log_loss if loss == "log_loss" else _least_hinge
    return least(cells, codes, w, n_classes, ridge, start)


def _least_log_loss(
    cells: Cells,
    codes: np.ndarray,
    w: np.ndarray,
    n_classes: int,
    ridge: float,
    start: Optimum | None,
) -> Optimum:
    p = 1 if n_classes == 2 else n_classes
    present = np.unique(codes)
    weights, intercepts = np.zeros((p, cells.n_columns)), np.zeros(p)
    if len(present) < n_classes:
        odds = np.where(np.isin(np.arange(n_classes), present), 0.0, _ABSENT)
        intercepts = odds[1:] - odds[:1] if n_classes == 2 else odds
    if len(present) < 2:
        return Optimum(weights, intercepts, np.zeros((p, 0)), 0)
    from sklearn.linear_model import LogisticRegression  # slow to import

    model = LogisticRegression(
        C=1.0 / ridge, tol=LOGISTIC_TOLERANCE, max_iter=_MOST_ITERATIONS, warm_start=True
    )
    which = np.arange(1) if len(present) == 2 else present  # their rows among all classes
    is_pair = len(present) == 2 and n_classes > 2
    if start is not None and not is_pair:
        model.classes_, model.coef_ = present, start.weights[which].copy()
        model.intercept_ = start.intercepts[which].copy()
    model.fit(cells.features, codes, sample_weight=w)
    if is_pair:  # two of several classes have rows
        signs = np.array([[-0.5], [0.5]])
        weights[present], intercepts[present] = signs * model.coef_, signs[:, 0] * model.intercept_
    else:
        weights[which], intercepts[which] = model.coef_, model.intercept_
    return Optimum(weights, intercepts, np.zeros((p, 0)), int(np.max(model.n_iter_)))


def _least_hinge(
    cells: Cells,
    codes: np.ndarray,
    w: np.ndarray,
    n_classes: int,
    ridge: float,
    start: Optimum | None,
) -> Optimum:
    positives = [1] if n_classes == 2 else range(n_classes)
    p, most = len(positives), 0
    duals = np.zeros((p, len(codes))) if start is None else start.duals.copy()
    weights = np.zeros((p, cells.n_columns + 1))
    for i, positive in enumerate(positives):
        signs = np.where(codes == positive, 1.0, -1.0)
        add_duals(cells.columns, signs, duals[i], weights[i])
        worst, n_passes = math.inf, 0
        while worst > HINGE_TOLERANCE and n_passes < _MOST_ITERATIONS:
            worst = descend(cells.columns, signs, w / ridge, duals[i], weights[i])
            n_passes += 1
        if worst > HINGE_TOLERANCE:
            warnings.warn(
                f"hinge loss: {_MOST_ITERATIONS} passes left a derivative of {worst:.2g}; expected "
                f"at most {HINGE_TOLERANCE:g}: use a larger regularization",
                ConvergenceWarning,
                stacklevel=2,
            )
        most = max(most, n_passes)
    return Optimum(weights[:, :-1], weights[:, -1], duals, most)


def losses_of(loss: str, scores: np.ndarray, codes: np.ndarray, n_classes: int) -> np.ndarray:
    """Return the loss of rows, float64 [n], of linear functions float64 [n, p]."""
    if loss == "log_loss":
        whole = as_scores(scores, n_classes)
        losses: np.ndarray = logsumexp(whole, axis=1) - whole[np.arange(len(codes)), codes]
        return losses
    positives = np.arange(1, 2) if n_classes == 2 else np.arange(n_classes)
    signs = np.where(codes[:, None] == positives, 1.0, -1.0)
    margins: np.ndarray = np.maximum(1.0 - signs * scores, 0.0)
    return margins.sum(axis=1)


def as_scores(values: np.ndarray, n_classes: int) -> np.ndarray:
    """Return a score for each class, [., K]; for two classes half the linear function by sign."""
    return values @ np.array([[-0.5, 0.5]]) if n_classes == 2 else values


def fit_values(forest: Forest, rows: Rows, n_threads: int) -> None:
    """Grow the partitions of an empty forest for all rows, and write the optimal cell values."""
    X, y, w = rows
    joint, weights = joint_of(forest), np.ones(len(y)) if w is None else np.array(w, np.float64)
    columns = grow_columns(forest, X, w, n_threads, 0)
    learned = np.flatnonzero(weights > 0.0)
    cells = Cells(np.ascontiguousarray(columns[learned]), int(columns.max()) + 1)
    codes, learned_weights = y[learned].astype(np.int64), weights[learned]
    optimum = minimise(joint.loss, cells, codes, learned_weights, joint.n_outputs, joint.ridge)
    root = math.sqrt(len(forest.store))
    values = as_scores(root * optimum.weights.T, joint.n_outputs).T
    write_cells(forest, as_scores(optimum.intercepts[None], joint.n_outputs)[0], values)
    for tree in forest.store.trees:
        tree.d[:, MARK] = 0.0  # clears column numbers


class LossPath:
    """Optima at increasing lifetimes, each warm-started from the previous one.

    Parameters
    ----------
    parameters : ForestParameters
        Those of the forest; the lifetime is to be chosen.
    n_trees : int
    rows : tuple
        X float32 [n, d], classes float64 [n], weights float64 [n], 0 for held-out rows.
    n_threads : int
    is_warm : bool, default=True
        Whether to start from the previous optimum.

    Attributes
    ----------
    optimum : Optimum or None
        At the last lifetime.
    n_columns : int
        Cells with learned rows at that lifetime.
    """

    def __init__(
        self,
        parameters: ForestParameters,
        n_trees: int,
        rows: tuple[np.ndarray, np.ndarray, np.ndarray],
        n_threads: int,
        is_warm: bool = True,
    ) -> None:
        self._parameters, self._n_trees, self._n_threads = parameters, n_trees, n_threads
        self._joint, self._is_warm = parameters.joint, is_warm
        self._X, self._codes, self._weights = rows[0], rows[1].astype(np.int64), rows[2]
        self._learned = np.flatnonzero(self._weights > 0.0)
        self._forest: Forest | None = None
        self._before: Cells | None = None
        self.optimum: Optimum | None = None
        self.n_columns = 0

    def _leaves(self, lifetime: float) -> np.ndarray:
        """Return the rows' cells at a lifetime, int64 [n, T]."""
        if self._forest is None or lifetime > self._forest.parameters.realised_lifetime:
            at = lifetime if self._forest is None else _AHEAD * lifetime
            joint = dataclasses.replace(self._joint, loss="squared", n_outputs=0)
            features = self._parameters.replace(
                algorithm="mondrian-features", n_classes=0, lifetime=at,
                expected_extension=False, joint=joint,
            )  # fmt: skip
            self._forest = Forest(features, range(self._n_trees))
            self._forest.update(self._X, np.zeros(len(self._X)), None, self._n_threads)
        return leaves_of(self._forest, self._X, lifetime)

    def at(self, lifetime: float) -> Cells:
        """Compute the optimum at a lifetime longer than the last; return the cells of all rows."""
        leaves, learned = self._leaves(lifetime), self._learned
        size = 1 + int(leaves.max())
        names = leaves + size * np.arange(leaves.shape[1])
        known, first, columns = np.unique(
            names[learned], return_index=True, return_inverse=True
        )  # fmt: skip
        at = np.minimum(np.searchsorted(known, names), len(known) - 1)
        cells = Cells(np.where(known[at] == names, at, -1), len(known))
        learned_cells = Cells(np.ascontiguousarray(columns.reshape(len(learned), -1)), len(known))
        start = None
        if self._is_warm and self.optimum is not None and self._before is not None:
            parents = self._before.columns.ravel()[first]  # old cell of each new one
            start = self.optimum._replace(weights=self.optimum.weights[:, parents])
        self.optimum = minimise(
            self._joint.loss, learned_cells, self._codes[learned], self._weights[learned],
            self._joint.n_outputs, self._joint.ridge, start,
        )  # fmt: skip
        self._before, self.n_columns = learned_cells, len(known)
        return cells

    def errors(
        self, held: np.ndarray, lifetimes: Iterator[float]
    ) -> Iterator[tuple[float, int, float]]:
        """Yield lifetimes, their columns and the mean losses of rows ``held`` int64 [a]."""
        for lifetime in lifetimes:
            cells = self.at(lifetime)
            assert self.optimum is not None  # set by `at`
            held_cells = cells._replace(columns=cells.columns[held])
            scores, k = self.optimum.scores(held_cells), self._joint.n_outputs
            losses = losses_of(self._joint.loss, scores, self._codes[held], k)
            yield lifetime, self.n_columns, math.fsum(losses) / len(held)


def choose_by_loss(
    parameters: ForestParameters,
    n_trees: int,
    rows: Rows,
    n_threads: int,
    max_lifetime: float | None,
    fraction: float,
) -> KernelPath:
    """Return the path of optima on a grid of lifetimes, chosen by the loss of held-out rows.

    Parameters as of :func:`dmondrian.kernel_machine.lifetime_search.choose_lifetime`;
    ``validation_errors`` are mean losses.
    """
    X, y, weights = weighted_rows(rows)
    is_held = held_out(len(y), fraction)
    learned, held = np.where(is_held, 0.0, weights), np.flatnonzero(is_held)
    end = math.inf if max_lifetime is None else float(max_lifetime)
    known = len(np.unique(X[~is_held], axis=0))
    most = known // 2 * n_trees if end == math.inf else math.inf
    path = LossPath(parameters, n_trees, (X, y, learned), n_threads)
    tried = path.errors(held, grid_of(first_lifetime(X, end), end))
    times, columns, errors = until_worse(tried, most, known)
    return KernelPath(times, columns, errors, None, None, float(times[np.argmin(errors)]))


def check_settings(loss: str, fitting: str, solver: str, lifetime: Any) -> None:
    """Refuse settings that need the squared loss.

    Raises
    ------
    ParameterError
        If the loss is another one.
    """
    if loss == "squared":
        return
    for name, value, allowed in (
        ("fitting", fitting, ("joint",)), ("solver", solver, ("auto",)),
        ("lifetime", lifetime, ("validation",)),
    ):  # fmt: skip
        if isinstance(value, str) and value not in allowed:
            also = "a number or " if name == "lifetime" else ""
            raise ParameterError(
                f'{name}="{value}" is for loss="squared": with loss="{loss}" use {also}'
                f'{name}="{allowed[0]}"'
            )
