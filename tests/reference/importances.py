"""Importances from nodes and rows, in plain Python: labels are priced one by one, in order."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np


def kt_log_loss(labels: list[int], n_classes: int) -> float:
    """Log loss of Krichevsky-Trofimov forecasts, taken before each label is counted."""
    counts, lost = [0] * n_classes, 0.0
    for n, label in enumerate(labels):
        lost -= math.log((counts[label] + 0.5) / (n + 0.5 * n_classes))
        counts[label] += 1
    return lost


def running_mean_loss(labels: list[float]) -> float:
    """Squared error of forecasting each label but the first by the mean of those before it."""
    return sum(
        (labels[n] - sum(labels[:n]) / n) ** 2 for n in range(1, len(labels))
    )  # fmt: skip


def mean_over_orders(labels: list[float]) -> float:
    """Mean of :func:`running_mean_loss` over all orders: of pairs, or by their number."""
    if len(labels) <= 6:
        orders = [list(order) for order in itertools.permutations(labels)]
        return sum(map(running_mean_loss, orders)) / len(orders)
    return spread(labels) * sum(n / (n - 1) for n in range(2, len(labels) + 1))


def spread(labels: list[float]) -> float:
    """Variance of the labels as half the mean squared difference of two of them."""
    n = len(labels)
    if n < 2:
        return 0.0
    squares = sum((a - b) ** 2 for a, b in itertools.combinations(labels, 2))
    return squares / (n * (n - 1))


def reference_importances(
    trees: list[dict[str, Any]], X: np.ndarray, y: np.ndarray, n_classes: int, lifetime: float
) -> list[float]:
    """Sum max(gain, 0) over the nodes split on each feature, over trees, as shares."""
    gains = [0.0] * X.shape[1]
    for nodes in trees:
        at = [(int(nodes["root"]), list(range(len(X))))]
        while at:
            v, rows = at.pop()
            j = int(nodes["feature"][v])
            if j < 0 or nodes["time"][v] > lifetime:
                continue
            sides = (
                [r for r in rows if X[r, j] <= nodes["threshold"][v]],
                [r for r in rows if X[r, j] > nodes["threshold"][v]],
            )
            at += zip((int(nodes["left"][v]), int(nodes["right"][v])), sides, strict=True)
            below = [[y[r] for r in side] for side in sides]
            here = [y[r] for r in rows]
            if n_classes:
                price = [kt_log_loss([int(label) for label in own], n_classes)
                         for own in (here, *below)]  # fmt: skip
                gain = price[0] - price[1] - price[2]
            else:
                price = [mean_over_orders(own) for own in (here, *below)]
                gain = price[0] - price[1] - price[2] - spread(here)
            gains[j] += max(gain, 0.0)
    total = sum(gains)
    return [gain / total for gain in gains] if total else gains
