"""Convex losses, their derivatives and limits, written down from Z24 once more, in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

DELTA = 0.7
LEVELS = (0.1, 0.5, 0.85)


def _binary(phi: Callable) -> Callable:
    return lambda z, y: phi(-(2.0 * y - 1.0) * z)


def _smoothed(v: np.ndarray) -> np.ndarray:
    return np.where(v >= 0, 0.5 + v, np.where(v > -1, 0.5 * (1 + v) ** 2, 0.0))


def _huber(z: float, y: np.ndarray) -> np.ndarray:
    e = np.abs(y - z)
    return np.where(e <= DELTA, 0.5 * e**2, DELTA * (e - 0.5 * DELTA))


def pinball(level: float) -> Callable:
    return lambda z, y: (y - z) * (level - (y < z))


LOSSES: dict[str, Callable] = {
    "squared": lambda z, y: (y - z) ** 2,
    "gaussian": lambda z, y: 0.5 * (y - z) ** 2,
    "poisson": lambda z, y: np.exp(z) - y * z,
    "geometric": lambda z, y: -np.log1p(-np.exp(z)) - y * z,
    "huber": _huber,
    "bernoulli": lambda z, y: np.logaddexp(0.0, z) - y * z,
    "square": _binary(lambda v: (1.0 + v) ** 2),
    "hinge": _binary(lambda v: np.maximum(1.0 + v, 0.0)),
    "smoothed_hinge": _binary(_smoothed),
    "modified_square": _binary(lambda v: np.maximum(1.0 + v, 0.0) ** 2),
    "logistic": _binary(lambda v: np.logaddexp(0.0, v) / np.log(2.0)),
    "exponential": _binary(np.exp),
}
# Of losses that are strictly convex where their minimum is: the derivative, whose root it is.
SLOPES: dict[str, Callable] = {
    "squared": lambda z, y: 2.0 * (z - y),
    "gaussian": lambda z, y: z - y,
    "poisson": lambda z, y: np.exp(z) - y,
    "geometric": lambda z, y: 1.0 / np.expm1(-z) - y,
    "bernoulli": lambda z, y: 1.0 / (1.0 + np.exp(-z)) - y,
    "square": lambda z, y: 2.0 * (z - (2.0 * y - 1.0)),
    "logistic": lambda z, y: (1.0 / (1.0 + np.exp(-z)) - y) / np.log(2.0),
    "exponential": lambda z, y: -(2.0 * y - 1.0) * np.exp(-(2.0 * y - 1.0) * z),
}


def limits(loss: str, bound: float | None, y: np.ndarray, n: float) -> tuple[float, float]:
    """Return beta_n's interval: of Z24 where a bound is given, else that of the docstrings."""
    if bound is not None:
        return -bound, -1.0 / bound if loss == "geometric" else bound
    if loss in ("squared", "gaussian", "huber", "quantile"):
        return float(y.min()) - 1.0, float(y.max()) + 1.0
    beta = max(1.0, np.log1p(n))
    if loss == "poisson":
        return np.log(y.mean()) - beta, np.log(y.mean()) + beta
    if loss == "geometric":
        middle = np.log(y.mean() / (1.0 + y.mean()))
        return middle - beta, middle * np.exp(-beta)
    return -beta, beta
