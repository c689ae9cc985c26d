"""Losses of averaged forecasts, row by row."""

from __future__ import annotations

from dmondrian._numba.jit import kernel
from dmondrian.tree.policies import forecast_loss


@kernel
def write_losses(loss, total, n_trees, y, out):
    """Write the loss of ``total`` [n, k] / ``n_trees`` at labels y [n] to ``out`` [n]."""
    for r in range(total.shape[0]):
        out[r] = forecast_loss(loss, total[r], n_trees, y[r])
