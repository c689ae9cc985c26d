"""What trees that learn a stream without forgetting forecast of its rows: each tree by itself.

Relies on :class:`dmondrian.ensemble.ensemble.Ensemble`. Promises forecasts that depend on the tree
and the rows before alone, whatever the number of threads.

Shapes: T trees, n rows, k outputs (K classes, or mean and variance).
"""

from __future__ import annotations

import numpy as np

from dmondrian.drift.task import Task
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.predictor.predictor import FrozenOutput
from dmondrian.ensemble.predictor.predictor_kernels import FrozenTree
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.sums.exact_sums import units
from dmondrian.tree import nodes


def forecast_and_learn(
    ensemble: Ensemble,
    task: Task,
    X: np.ndarray | PreparedRows,
    y: np.ndarray,
    w: np.ndarray,
    n_threads: int,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Let trees learn rows; return what each forecast just before, float64 [T, n, k].

    And the units of labels that are numbers, float64 [n, 2], which are equal in all trees.

    Parameters
    ----------
    ensemble : Ensemble
    task : Task
    X : float32 [n, d] or PreparedRows
    y : float64 [n]
    w : float64 [n] or [0]
        Weights > 0, or none for weights of one.
    n_threads : int
    """
    first = 0 if ensemble.total_weight > 0.0 else 1  # the first row no tree could answer
    answers = np.empty((len(ensemble.store), len(y), task.n_outputs))
    answers[:, :first] = task.unknown
    unit = np.zeros((len(y), 2)) if task.is_regression else None
    rows = np.arange(first, len(y))

    def take(t: int, found: np.ndarray, known: np.ndarray) -> None:
        origin = float(ensemble.store.trees[t].head_f[nodes.OFFSET])
        answers[t, first:] = task.forecasts(found, origin)
        if unit is not None:
            unit[first:] = units(known, origin)

    weights = w if len(w) else None
    ensemble.ask_and_learn(X, y, weights, n_threads, rows, np.full(len(rows), np.inf), take)
    return answers, unit


def forecast(ensemble: Ensemble, task: Task, X: np.ndarray | PreparedRows) -> np.ndarray:
    """Return what each tree, which has learned rows, forecasts of others, float64 [T, n, k]."""
    output, lives = ensemble.predictor.sample_output, np.array([np.inf])
    chosen = ensemble.policies._replace(loss=output.loss)
    found = ensemble.predictor.answers(X, chosen, lives, output.width)
    return task.forecasts(found[:, :, 0], ensemble.store.origin)


def frozen_trees(ensemble: Ensemble) -> list[FrozenTree]:
    """Return the trees frozen, as :func:`forecast` asks them; those it asks next are these."""
    its, trees = ensemble.predictor, ensemble.store.trees
    sample, lives = its.sample_output, np.full(len(trees), np.inf)
    output = FrozenOutput(sample.loss, its.policies.rule, lives, sample.width)
    return its.frozen.make(trees, output, n_threads=1).trees
