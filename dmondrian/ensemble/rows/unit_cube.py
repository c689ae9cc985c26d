"""Where rows may lie: in the unit cube, else named or moved to its surface; scaled, in float32.

Shapes: n rows, d features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmondrian.errors import DataError, ParameterError


def check_cube(X: np.ndarray, names: Sequence[str] | None = None) -> None:
    """Raise unless all rows lie in [0, 1]^d.

    Parameters
    ----------
    X : float32 [n, d]
    names : sequence of str, optional
        Names of the columns.

    Raises
    ------
    DataError
        The first column with a value outside is named.
    """
    low, high = X.min(axis=0, initial=0.0), X.max(axis=0, initial=1.0)
    outside = np.flatnonzero((low < 0.0) | (high > 1.0))
    if len(outside):
        j = int(outside[0])
        name = j if names is None else repr(str(names[j]))
        raise DataError(
            f"column {name} has values in [{low[j]!s}, {high[j]!s}], but the cube is [0, 1]^d: "
            "scale the columns, or begin with clip=True, which moves what lies outside"
        )


def clip_to_cube(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows moved to the cube's surface, and which of them lay outside, bool [n]."""
    inside = np.clip(X, np.float32(0.0), np.float32(1.0))
    return inside, (inside != X).any(axis=1)


def scale_columns(X: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return rows times the feature scales, float32 [n, d]; refuse what no float32 holds."""
    if (scales <= 1.0).all():
        return X * scales
    with np.errstate(over="ignore"):
        scaled = X * scales
    beyond = np.flatnonzero(~np.isfinite(scaled).all(axis=0))
    if len(beyond):
        raise ParameterError(
            f"feature {beyond[0]} times its feature scale, {scales[beyond[0]]:g}, is beyond "
            "float32: give a smaller scale, or rescale the column"
        )
    return scaled
