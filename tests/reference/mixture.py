"""Mixtures of Gaussians written out, and their quantiles by bisection of the distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

Component = tuple[float, float, float]  # weight, mean, variance


def distribution(components: Sequence[Component], z: float) -> float:
    """Return P(label <= z); a component without variance is a point."""
    weight, mean, variance = np.array(components).T
    std = np.sqrt(np.maximum(variance, 0.0))
    below = np.where(mean <= z, 1.0, 0.0)
    wide = std > 0.0
    below[wide] = stats.norm.cdf((z - mean[wide]) / std[wide])
    return float(weight @ below)


def quantile(components: Sequence[Component], level: float) -> float:
    """Return the least z with P(label <= z) >= level."""
    _, mean, variance = np.array(components).T
    reach = 10.0 * (np.sqrt(max(float(variance.max()), 0.0)) + 1.0)
    low, high = float(mean.min()) - reach, float(mean.max()) + reach
    for _ in range(70):
        middle = 0.5 * (low + high)
        if distribution(components, middle) < level:
            low = middle
        else:
            high = middle
    return high


def of_labels(weight: float, y: np.ndarray, w: np.ndarray) -> Component:
    """Return the Gaussian with mean and variance of labels y of weights w."""
    mean = float((w * y).sum() / w.sum())
    return weight, mean, float((w * (y - mean) ** 2).sum() / w.sum())
