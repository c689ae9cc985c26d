"""Learning of trees whose cells are fitted jointly: exactly, by batches, or columns alone.

Relies on :mod:`dmondrian.joint_fit.ridge` and :mod:`dmondrian.joint_fit.minibatch`. Promises that
the cuts between calls change nothing; "auto" turns from one to the other at a row that the rows
before it decide, and the values go on from where they are.
"""

from __future__ import annotations

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.kernel_settings import as_targets
from dmondrian.errors import ParameterError
from dmondrian.joint_fit.cell_columns import grow_columns, leaves_of
from dmondrian.joint_fit.minibatch import joint_of, learn_batches, set_unit
from dmondrian.joint_fit.ridge import Exact
from dmondrian.stats.cell_values import BATCH_WEIGHT, MARK, RESIDUAL, VALUE, WEIGHT
from dmondrian.tree import nodes

RowsToLearn = tuple[np.ndarray | PreparedRows, np.ndarray, np.ndarray | None]  # X, y, w


def exact_of(ensemble: Ensemble) -> Exact | None:
    """Return an exact fit without rows, if the ensemble begins with one."""
    if not ensemble.parameters.learns_jointly or not joint_of(ensemble).is_exact:
        return None
    return Exact(joint_of(ensemble), len(ensemble.store))


def learn_jointly(
    ensemble: Ensemble, exact: Exact | None, rows: RowsToLearn, n_threads: int
) -> Exact | None:
    """Learn rows in order; return the exact fit of all rows, as long as there is one.

    Raises
    ------
    ParameterError
        If the values are averages over lifetimes whose sums were not stored, or minimise another
        loss than squared errors, or exact fits need more memory than there is.
    """
    X, y, w = rows
    joint = joint_of(ensemble)
    if joint.is_averaged and exact is None:
        raise ParameterError(
            "this average over lifetimes was stored by an earlier version, without the sums that "
            "more rows are added to: call fit with all rows"
        )
    if joint.loss != "squared":
        raise ParameterError(
            f'loss="{joint.loss}" has its optimum found for all rows together and learns no row '
            'after them: call fit with all rows, or use loss="squared"'
        )
    if joint_of(ensemble).n_outputs == 0:
        grow_columns(ensemble, X, w, n_threads, n_columns(ensemble))
        return None
    done = 0
    if exact is not None:
        done = exact.learn(ensemble, X, y, w, n_threads)
        if done == len(y):
            return exact
        _leave_exact(ensemble)
    learn_batches(ensemble, X[done:], y[done:], None if w is None else w[done:], n_threads)
    return None


def fit_tree_by_tree(
    ensemble: Ensemble, X: np.ndarray, y: np.ndarray, w: np.ndarray | None
) -> None:
    """Set the values of cells to the ridge estimates of all rows, each tree for itself.

    The ensemble has learned these rows and no other. A cell's value shrinks to the mean of all
    labels, whatever the order of the rows; as rows came it shrank to the mean of those before the
    cell's first.
    """
    targets = as_targets(y, joint_of(ensemble).n_outputs)
    weights = np.ones(len(y)) if w is None else np.asarray(w, np.float64)
    mean = weights @ targets / weights.sum()
    learned = weights > 0.0
    leaves, learned_weights = leaves_of(ensemble, X[learned]), weights[learned]
    for t, tree in enumerate(ensemble.store.trees):
        used = int(tree.head_i[nodes.N_NODES])
        stat, cells = tree.d[:used], leaves[:, t]
        stat[:, [MARK, BATCH_WEIGHT, WEIGHT]] = 0.0
        stat[:, WEIGHT] = np.bincount(cells, learned_weights, used)
        for c, value in enumerate(mean):
            residuals = learned_weights * (targets[learned, c] - value)
            stat[:, VALUE + 2 * c] = value
            stat[:, RESIDUAL + 2 * c] = np.bincount(cells, residuals, used)
        root = tree.head_i[nodes.ROOT]  # what cells without rows forecast
        stat[root, WEIGHT] = weights.sum()


def n_columns(ensemble: Ensemble) -> int:
    """Return the columns that have a number."""
    used = (tree.d[: tree.head_i[nodes.N_NODES], MARK] for tree in ensemble.store.trees)
    return int(max((marks.max(initial=0.0) for marks in used), default=0.0))


def _leave_exact(ensemble: Ensemble) -> None:
    """Make ready for mini-batches: no node is in one yet."""
    for tree in ensemble.store.trees:
        used = slice(0, int(tree.head_i[nodes.N_NODES]))
        tree.d[used, MARK] = 0.0
        tree.d[used, BATCH_WEIGHT] = 0.0
    set_unit(ensemble)
