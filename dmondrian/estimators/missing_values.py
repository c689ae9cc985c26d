"""Rows with missing values, as trees see them: each column, and beside it whether it is missing.

Relies on NumPy. Promises that a row is encoded alike whatever rows came before it, so that the cut
of a stream into calls changes nothing.

Jobs encode nulls by :mod:`dmondrian.data.encode`: the middle of the training range, and an
indicator ``name=<null>``, where the training data had any. Here ranges and rows to come are not
known beforehand. So each column has an indicator from the start, and what stands for a missing
value is a number that is the same for all rows: the middle of the cube, on the range 0, the mean of
columns that are standardised.

Shapes: n rows, d columns as they are given, 2 d features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian.estimators._sklearn_private import StrOptions

ENCODE = "encode"
ALLOWED: list[Any] = [StrOptions({"error", ENCODE})]
"""Values of the parameter ``missing_values``."""


def filling(domain: str) -> np.float32:
    """Return what stands for a missing value."""
    return np.float32(0.5 if domain == "cube" else 0.0)


def with_indicators(filled: np.ndarray, is_missing: np.ndarray) -> np.ndarray:
    """Return the features of rows: of column j 2 j, its value, and 2 j + 1, whether it is missing.

    Parameters
    ----------
    filled : float32 [n, d]
        With :func:`filling` where a value is missing.
    is_missing : bool [n, d]

    Returns
    -------
    float32 [n, 2 d], C-contiguous
    """
    n, d = filled.shape
    features = np.empty((n, d, 2), np.float32)
    features[:, :, 0], features[:, :, 1] = filled, is_missing
    return features.reshape(n, 2 * d)


def encoded_row(X: np.ndarray, d: int, domain: str) -> np.ndarray | None:
    """Return the features of a row [1, d], float32 [1, 2 d]; None if it needs a closer look."""
    if X.shape != (1, d) or X.dtype.kind != "f" or X.dtype.itemsize > 8:
        return None
    with np.errstate(over="ignore"):  # beyond float32: infinity is found later
        row = X.astype(np.float32)
    is_missing = np.isnan(row)
    row[is_missing] = filling(domain)
    return with_indicators(row, is_missing)
