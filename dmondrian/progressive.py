"""Progressive loss of small forests: each chunk of rows is predicted, then learned.

Relies on :class:`dmondrian.ensemble.Ensemble`. Promises a pure function of the parameters, the
tree numbers and the rows: sums are exact and logarithms this package's own, so that no
machine's libraries can tip a choice that is made by these losses.

Shapes: n rows, d features, k outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dmondrian.core.columns import read_only
from dmondrian.core.score import write_losses
from dmondrian.ensemble import Ensemble
from dmondrian.parameters import ForestParameters

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # X float32 [n, d], y and w float64 [n]

_CHUNKS = 16  # of the rows that are predicted, unless told otherwise


def try_out(
    parameters: ForestParameters,
    numbers: Sequence[int],
    rows: Rows,
    start: int,
    n_threads: int = 1,
    n_chunks: int = _CHUNKS,
) -> tuple[np.ndarray, Ensemble]:
    """Return the progressive loss of each row from ``start`` on, and the forest after all rows.

    Parameters
    ----------
    parameters : ForestParameters
    numbers : sequence of int
        Numbers of the trees.
    rows : tuple
        X, y, w.
    start : int
        Rows before are learned only.
    n_threads : int
    n_chunks : int
        Parts of the rows from there on, each predicted before it is learned: fewer look further
        ahead.

    Returns
    -------
    losses : float64 array of shape (n - start,)
        Unweighted; in nats (classification) or squared units of the target.
    probe : Ensemble
    """
    X, y, w = (read_only(column) for column in rows)
    probe = Ensemble(parameters, numbers)
    probe.update(X[:start], y[:start], w[:start], n_threads)
    losses = np.empty(len(X) - start)
    for chunk in np.array_split(np.arange(start, len(X)), n_chunks):
        at = slice(int(chunk[0]), int(chunk[-1]) + 1)
        sums = probe.predict_sums(X[at], n_threads)
        out = losses[at.start - start : at.stop - start]
        write_losses(probe.policies.loss, sums.total, sums.n_trees, y[at], out)
        probe.update(X[at], y[at], w[at], n_threads)
    return losses, probe


def late_loss(
    parameters: ForestParameters,
    numbers: Sequence[int],
    rows: Rows,
    n_threads: int = 1,
    n_chunks: int = _CHUNKS,
) -> float:
    """Return the weighted mean progressive loss over the second half of the rows."""
    half = len(rows[0]) // 2
    weights = rows[2][half:]
    losses, _ = try_out(parameters, numbers, rows, half, n_threads, n_chunks)
    return math.fsum(losses * weights) / math.fsum(weights)
