"""Arrays of rows and labels that scikit-learn's validation would return as they are.

Validation takes longer than a few rows take to be learned.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def plain_rows(estimator: Any, X: Any) -> np.ndarray | None:
    """Return rows as finite float32 [n, d], C-contiguous; None if they need a closer look.

    Parameters
    ----------
    estimator : fitted estimator
        Without feature names, which would be compared.
    X : array-like
    """
    is_plain = (
        type(X) is np.ndarray
        and X.ndim == 2
        and len(X) > 0
        and X.shape[1] == getattr(estimator, "n_features_in_", -1)
        and X.dtype in (np.float32, np.float64)
        and not hasattr(estimator, "feature_names_in_")
    )
    if not is_plain:
        return None
    with np.errstate(over="ignore"):  # beyond float32: a closer look finds infinity
        rows = np.ascontiguousarray(X, np.float32)
    return rows if np.isfinite(rows).all() else None


def plain_labels(y: Any, n: int) -> np.ndarray | None:
    """Return labels [n] if they are an array of finite numbers; None if they need a closer look."""
    if type(y) is not np.ndarray or y.shape != (n,) or y.dtype.kind not in "biuf":
        return None
    return y if y.dtype.kind != "f" or np.isfinite(y).all() else None
