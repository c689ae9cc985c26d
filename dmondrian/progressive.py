"""Progressive loss of small forests: each chunk of rows is predicted, then learned.

Relies on :class:`dmondrian.ensemble.Ensemble`. Promises a pure function of the parameters, the
tree numbers and the rows: sums run in order and use this package's own logarithm, so that no
machine's libraries can tip a choice that is made by these losses.

Shapes: n rows, d features, k outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmondrian.core.score import sum_losses
from dmondrian.ensemble import Ensemble, read_only
from dmondrian.parameters import ForestParameters

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # X float32 [n, d], y and w float64 [n]

_CHUNKS = 16  # of the second half of the rows


def late_loss(
    parameters: ForestParameters, numbers: Sequence[int], rows: Rows, n_threads: int = 1
) -> float:
    """Return the mean progressive loss over the second half of the rows.

    Parameters
    ----------
    parameters : ForestParameters
    numbers : sequence of int
        Numbers of the trees.
    rows : tuple
        X, y, w.
    n_threads : int

    Returns
    -------
    float
        In nats (classification) or squared units of the target.
    """
    X, y, w = (read_only(column) for column in rows)
    half = len(X) // 2
    probe = Ensemble(parameters, numbers)
    probe.update(X[:half], y[:half], w[:half], n_threads)
    loss = probe.policies.loss
    lost = 0.0
    for chunk in np.array_split(np.arange(half, len(X)), _CHUNKS):
        at = slice(int(chunk[0]), int(chunk[-1]) + 1)
        sums = probe.predict_sums(X[at])
        lost += sum_losses(loss, sums.total, sums.n_trees, y[at], w[at])
        probe.update(X[at], y[at], w[at], n_threads)
    return float(lost / w[half:].sum())
