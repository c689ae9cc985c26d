"""Validation of sample weights.

Relies on NumPy alone. Promises that each accepted weight changes the total, which keys the draws.

Shapes: n rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian.errors import ParameterError


def checked_weights(sample_weight: Any, n: int, seen: float) -> np.ndarray:
    """Return weights as float64 [n]; ``seen`` is the total weight of earlier rows.

    Raises
    ------
    ValueError
        If they are not a finite number >= 0 for each row.
    ParameterError
        If one is too small to change the total before it.
    """
    w = np.array(sample_weight, np.float64)
    w = np.full(n, float(w)) if w.ndim == 0 else w
    if w.shape != (n,):
        raise ValueError(f"sample_weight.shape == {w.shape}, expected {(n,)}: one weight per row")
    if not np.isfinite(w).all() or (w < 0).any():
        raise ValueError("Negative values or not a finite number in sample_weight")
    # :mod:`dmondrian.ensemble.settings.numeric_limits` refuses too large weights.
    with np.errstate(over="ignore"):
        before = seen + np.concatenate([[0.0], np.cumsum(w)[:-1]])
    vanishing = np.flatnonzero((w > 0) & (w < 4.0 * np.finfo(np.float64).eps * before))
    if len(vanishing):
        row = vanishing[0]
        raise ParameterError(
            f"sample_weight[{row}], {w[row]:.3g}, does not change the total weight before it, "
            f"{before[row]:.3g}, in double precision: rescale the weights or drop the row"
        )
    return w


def check_some_weight(w: np.ndarray | None, name: str = "sample_weight") -> None:
    """Refuse rows that all have weight 0."""
    if w is not None and not w.any():
        raise ValueError(f"{name} must contain at least one non-zero number")
