"""Gaussian processes with finite kernels, slowly: dense matrices of rows, no features.

The kernel of T partitions is the share of them in which two rows are in one cell (B16, Equation 2).
The function is a constant, the labels' mean, plus a process of covariance s^2 K; labels have noise
of variance s^2 delta^2 more.

Shapes: n rows, a rows asked about, T trees.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


def kernel_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the share of partitions in which rows are in one cell, of cells [n, T] and [a, T]."""
    return (first[:, None] == second[None]).mean(axis=2)


class Posterior(NamedTuple):
    """What labels tell."""

    mean: np.ndarray  # [a]
    variance: np.ndarray  # [a], of the function
    noise: float
    log_likelihood: float  # up to a constant


def posterior(
    cells: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    asked: np.ndarray,
    ridge: float,
    scale: float | None,
) -> Posterior:
    """Return the process at rows in the cells ``asked`` [a, T], after rows in ``cells`` [n, T].

    Weights are whole numbers, of repeats. Without a ``scale`` it is integrated out under
    p(s^2) = 1 / s^2: s^2 is inverse gamma of shape n / 2, scale y' M^-1 y / 2.
    """
    many = np.repeat(np.arange(len(y)), w.astype(int))
    cells, y = cells[many], y[many]
    mean, n = y.mean(), len(y)
    M = kernel_of(cells, cells) + ridge * np.eye(n)
    across, left = kernel_of(asked, cells), np.linalg.solve(M, y - mean)
    squares, log_det = (y - mean) @ left, np.linalg.slogdet(M)[1]
    if scale is None:
        square = (squares / 2) / (n / 2 - 1)
        likelihood = -0.5 * log_det - 0.5 * n * math.log(squares)
    else:
        square = scale**2
        normal = n * math.log(square) + log_det + squares / square
        likelihood = -0.5 * normal
    within = 1.0 - np.einsum("an,na->a", across, np.linalg.solve(M, across.T))
    return Posterior(mean + across @ left, square * within, square * ridge, likelihood)


def mixture(parts: list[Posterior], chances: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean, variance of the function and noise of fits averaged under their posterior."""
    logs = np.array([part.log_likelihood for part in parts]) + np.log(chances)
    shares = np.exp(logs - logs.max())
    shares /= shares.sum()
    mean = sum(share * part.mean for share, part in zip(shares, parts, strict=True))
    second = sum(
        share * (part.variance + part.mean**2) for share, part in zip(shares, parts, strict=True)
    )
    noise = sum(share * part.noise for share, part in zip(shares, parts, strict=True))
    return np.asarray(mean), np.asarray(second - mean**2), float(noise)
