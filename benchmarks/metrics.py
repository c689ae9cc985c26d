"""Held-out metrics, the same for every peer.

Log loss is in nats with probabilities clipped at the float64 epsilon and renormalised, as
scikit-learn does: a forest that gives 0 to the true class of one row in a thousand pays 0.036.
"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

EPSILON = float(np.finfo(np.float64).eps)


def row_losses(y: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Negative log probability of each row's class, in nats; shape (n,)."""
    clipped = np.clip(np.asarray(probabilities, dtype=np.float64), EPSILON, 1.0)
    clipped /= clipped.sum(axis=1, keepdims=True)
    return -np.log(clipped[np.arange(len(y)), y])


def classification(y: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Log loss, accuracy and, for two classes, the area under the ROC curve."""
    scores = {
        "log_loss": float(row_losses(y, probabilities).mean()),
        "accuracy": float((np.argmax(probabilities, axis=1) == y).mean()),
    }
    if probabilities.shape[1] == 2:
        scores["auc"] = float(roc_auc_score(y, probabilities[:, 1]))
    return scores


def regression(y: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """R2, RMSE and MAE, the last two in the target's unit."""
    errors = np.asarray(predictions, dtype=np.float64).reshape(len(y)) - y
    return {
        "r2": float(1.0 - np.mean(errors**2) / np.var(y)),
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "mae": float(np.mean(np.abs(errors))),
    }
