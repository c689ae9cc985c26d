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


def brier(y: np.ndarray, probabilities: np.ndarray) -> float:
    """Brier score: the mean over rows of squared errors of probabilities, summed over classes.

    Of two classes it is half of that, the squared error of one class's probability, as in
    scikit-learn; so it is in [0, 1] of two classes and in [0, 2] of more.
    """
    errors = np.array(probabilities, dtype=np.float64)
    errors[np.arange(len(y)), y] -= 1.0
    total = float(np.square(errors).sum(axis=1).mean())
    return total / 2.0 if errors.shape[1] == 2 else total


def classification(y: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Log loss, Brier score, accuracy and, for two classes, the area under the ROC curve."""
    scores = {
        "log_loss": float(row_losses(y, probabilities).mean()),
        "brier": brier(y, probabilities),
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
