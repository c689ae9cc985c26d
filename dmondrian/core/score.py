"""Losses of averaged forecasts, summed in the order of the rows."""

from __future__ import annotations

from dmondrian._jit import borrow, kernel
from dmondrian.core.policies import forecast_loss


@kernel
def sum_losses(loss, total, n_trees, y, w):
    """Return the sum of w times the loss of ``total`` [n, k] / ``n_trees`` at labels y [n]."""
    total, y, w = borrow(total), borrow(y), borrow(w)
    lost = 0.0
    for r in range(total.shape[0]):
        lost += w[r] * forecast_loss(loss, total[r], n_trees, y[r])
    return lost
