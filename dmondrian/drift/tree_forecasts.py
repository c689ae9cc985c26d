"""Forecasts by each tree of an ensemble that never forgets, for members to mix.

Relies on :class:`dmondrian.ensemble.ensemble.Ensemble`. Promises forecasts that depend on the tree
and the rows before alone, whatever the number of threads.

Shapes: T trees, n rows, k outputs (K classes, or mean and variance).
"""

from __future__ import annotations

import numpy as np

from dmondrian.drift.label_policies import LabelPolicies
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.predictor.predictor import FrozenOutput
from dmondrian.ensemble.predictor.predictor_kernels import FrozenTree
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.sums.exact_sums import units
from dmondrian.tree import nodes


def forecast_and_learn(
    ensemble: Ensemble,
    label_policies: LabelPolicies,
    X: np.ndarray | PreparedRows,
    y: np.ndarray,
    w: np.ndarray,
    n_threads: int,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Let trees learn rows; return what each forecast just before, float64 [T, n, k].

    The second value are the units of labels that are numbers, float64 [n, 2], equal in all trees;
    None for classes.

    Parameters
    ----------
    ensemble : Ensemble
    label_policies : LabelPolicies
    X : float32 [n, d] or PreparedRows
    y : float64 [n]
    w : float64 [n] or [0]
        Weights > 0, or none for weights of one.
    n_threads : int
    """
    first = 0 if ensemble.total_weight > 0.0 else 1  # the first row no tree could answer
    answers = np.empty((len(ensemble.store), len(y), label_policies.n_outputs))
    answers[:, :first] = label_policies.unknown
    unit = np.zeros((len(y), 2)) if label_policies.is_regression else None
    rows = np.arange(first, len(y))

    def take(t: int, tree_answers: np.ndarray, known: np.ndarray) -> None:
        origin = float(ensemble.store.trees[t].head_f[nodes.OFFSET])
        answers[t, first:] = label_policies.forecasts(tree_answers, origin)
        if unit is not None:
            unit[first:] = units(known, origin)

    weights = w if len(w) else None
    ensemble.ask_and_learn(X, y, weights, n_threads, rows, np.full(len(rows), np.inf), take)
    return answers, unit


def forecast(
    ensemble: Ensemble, label_policies: LabelPolicies, X: np.ndarray | PreparedRows
) -> np.ndarray:
    """Return what each tree, which has learned rows, forecasts of others, float64 [T, n, k]."""
    output, lifetimes = ensemble.predictor.sample_output, np.array([np.inf])
    chosen = ensemble.policies._replace(loss=output.loss)
    answers = ensemble.predictor.answers(X, chosen, lifetimes, output.width)
    return label_policies.forecasts(answers[:, :, 0], ensemble.store.origin)


def frozen_for_forecasts(ensemble: Ensemble) -> list[FrozenTree]:
    """Return the trees frozen; the next :func:`forecast` uses these."""
    predictor, trees = ensemble.predictor, ensemble.store.trees
    sample, lifetimes = predictor.sample_output, np.full(len(trees), np.inf)
    output = FrozenOutput(sample.loss, predictor.policies.rule, lifetimes, sample.width)
    return predictor.frozen_cache.make(trees, output, n_threads=1).trees
