"""The label at a point as a forest sees it: a mixture of Gaussians over trees and branches.

Each tree lists its Gaussians in one way down (:mod:`dmondrian.rules.gaussian_components`): a
Gaussian hierarchy those of the last cell and of all branches off above it (L16, section 5), the
mean of cells those of the cells. Trees count alike.

Relies on :meth:`dmondrian.ensemble.ensemble.Ensemble.answers`. Promises that rows are asked one by
one, so that neither chunks nor threads change an answer.

Shapes: n rows, q levels, T trees.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist

import numpy as np

from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.threads import run_threads
from dmondrian.errors import ParameterError
from dmondrian.rules.cell_gaussian import Cells
from dmondrian.rules.gaussian import GaussianHierarchy
from dmondrian.rules.gaussian_components import GAUSSIAN, LIST_HEAD, write_quantiles
from dmondrian.tree.box_encoding import read_only

_FIRST_CAPACITY = 20  # Gaussians: one of the cell, and those of a branch
_CHUNK = 256  # rows whose lists are held at once


def check_levels(quantiles: Iterable[float]) -> np.ndarray:
    """Return the levels of quantiles, float64 [q].

    Raises
    ------
    ParameterError
        Unless they increase within (0, 1).
    """
    try:
        levels = np.asarray(list(quantiles), np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"quantiles should be numbers, got {quantiles!r}") from error
    sound = levels.ndim == 1 and len(levels) and ((levels > 0.0) & (levels < 1.0)).all()
    if not sound or (np.diff(levels) <= 0.0).any():
        raise ParameterError(
            f"quantiles should be one or more numbers in (0, 1) that increase, got "
            f"{levels.tolist()}"
        )
    return levels


def predict_quantiles(
    forest: Ensemble, X: np.ndarray, levels: np.ndarray, lifetime: float, n_threads: int = 1
) -> np.ndarray:
    """Return quantiles of the label at each row, float64 [n, q].

    Parameters
    ----------
    forest : Ensemble
        Of a Mondrian forest regressor.
    X : float32 [n, d], C-contiguous
    levels : float64 [q]
        As of :func:`check_levels`.
    lifetime : float
    n_threads : int
        Threads over chunks of rows.
    """
    quantiles, levels = np.empty((len(X), len(levels))), read_only(levels)
    scores = read_only(np.array([NormalDist().inv_cdf(level) for level in levels.tolist()]))

    def work(start: int) -> None:
        rows = slice(start, start + _CHUNK)
        write_quantiles(_lists(forest, X[rows], lifetime), levels, scores, quantiles[rows])

    run_threads(work, range(0, len(X), _CHUNK), n_threads)
    return quantiles


def mixture_std(forest: Ensemble, X: np.ndarray, lifetime: float) -> np.ndarray:
    """Return the standard deviation of the label at each row, float64 [n].

    The law of total variance over cells and trees. Arguments as of :func:`predict_quantiles`.
    """
    stds = np.empty(len(X))
    for start in range(0, len(X), _CHUNK):
        rows = slice(start, start + _CHUNK)
        lists = _lists(forest, X[rows], lifetime)
        each = lists[:, :, LIST_HEAD:].reshape(*lists.shape[:2], -1, GAUSSIAN)
        is_there = np.arange(each.shape[2]) < lists[:, :, :1]
        weight, mean, std = (np.where(is_there, each[..., i], 0.0) for i in range(GAUSSIAN))
        total = weight.sum(axis=(0, 2))
        center = (weight * mean).sum(axis=(0, 2)) / total
        square = weight * (std**2 + (mean - center[:, None]) ** 2)
        stds[rows] = np.sqrt(square.sum(axis=(0, 2)) / total)
    return stds


def _lists(forest: Ensemble, X: np.ndarray, lifetime: float) -> np.ndarray:
    """Return the Gaussians of each tree at each row, float64 [T, n, width]."""
    is_hierarchy = forest.parameters.has_gaussian_mixture
    rule = GaussianHierarchy(lifetime, True) if is_hierarchy else Cells(True)
    chosen, lifetimes = forest.policies._replace(rule=rule), np.array([lifetime])
    capacity = _FIRST_CAPACITY
    while True:
        lists = forest.answers(X, chosen, lifetimes, LIST_HEAD + GAUSSIAN * capacity)[:, :, 0]
        needed = int(lists[..., 0].max(initial=0.0))
        if needed <= capacity:
            return np.ascontiguousarray(lists)
        capacity = needed
