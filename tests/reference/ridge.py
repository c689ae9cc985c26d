"""Ridge regression on cells, slowly: dense matrices, straight from B16 section 4.2.1.

Shapes: n rows, T trees, c columns, k outputs.
"""

from __future__ import annotations

import numpy as np


def features(cells: np.ndarray) -> np.ndarray:
    """Return Phi [n, c] of cells [n, T], numbers of any kind that are distinct between trees."""
    phi = np.zeros((len(cells), cells.max() + 1))
    np.put_along_axis(phi, cells, 1.0 / np.sqrt(cells.shape[1]), axis=1)
    return phi[:, phi.any(axis=0)]


def weights_of(
    phi: np.ndarray, y: np.ndarray, w: np.ndarray, ridge: float
) -> tuple[np.ndarray, float, float]:
    """Return the weights [c], ln det A, and the log marginal likelihood up to a constant."""
    A = phi.T @ (w[:, None] * phi) + ridge * np.eye(phi.shape[1])
    found = np.linalg.solve(A, phi.T @ (w * y))
    # Rows of weight w are w repeats.
    many = np.repeat(np.arange(len(y)), w.astype(int))
    M = phi[many] @ phi[many].T + ridge * np.eye(len(many))
    squares = y[many] @ np.linalg.solve(M, y[many])
    likelihood = -0.5 * np.linalg.slogdet(M)[1] - 0.5 * len(many) * np.log(squares)
    return found, float(np.linalg.slogdet(A)[1]), float(likelihood)
