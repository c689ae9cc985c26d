"""Small random streams of rows, awkward on purpose: ties, duplicates, constants, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest


@dataclass(frozen=True)
class Case:
    """One stream and the parameters to learn it with.

    `X` float32 [n, d]; `y` float64 [n], class indices or targets; `w` float64 [n] or None; `rate`
    the learning rate, for targets in units of one over their variance (0: the theory's rate).
    """

    number: int
    X: np.ndarray
    y: np.ndarray
    w: np.ndarray | None
    n_classes: int
    alpha: float
    charge_opening: bool
    split_pure: bool
    max_nodes: int | None
    seed: int
    tree: int
    rate: float = 1.0

    def __repr__(self) -> str:
        """Say what is needed to make the case again."""
        return f"case{self.number}"


def numbers(stop: int, step: int = 1) -> list[Any]:
    """Return the numbers of a test's cases below ``stop``; all but each third are thorough."""
    return [
        pytest.param(number, marks=[pytest.mark.thorough] * (i % 3 > 0))
        for i, number in enumerate(range(0, stop, step))
    ]


def random_case(number: int, regression: bool = False) -> Case:
    """Return the stream of this number."""
    rng = np.random.default_rng([number, int(regression)])
    n, d = int(rng.integers(1, 50)), int(rng.integers(1, 13))
    X = rng.normal(size=(n, d)).astype(np.float32) * np.float32(10.0 ** rng.integers(-3, 4))
    look = rng.integers(0, 7)
    if look == 1:  # ties: a coarse grid, values of both signs
        X = rng.integers(-2, 3, size=(n, d)).astype(np.float32)
    elif look == 2:  # duplicates of earlier rows
        X = X[rng.integers(0, max(1, n // 3), size=n)]
    elif look == 3:  # a huge offset: neighbours in float32 are close to each other
        X = X + np.float32(2.0**20)
    elif look == 4:  # the ends of float32: subnormals beside the largest
        ends = np.array([-3e38, -1e-40, 0.0, 1e-45, 1e-38, 1.0, 3e38], np.float32)
        X = rng.choice(ends, size=(n, d))
    elif look == 5:  # neighbours: hardly a place for a threshold
        X = np.float32(1.0) + rng.integers(0, 4, size=(n, d)) * np.float32(2.0**-23)
    if rng.random() < 0.3:  # constant columns
        X[:, rng.random(d) < 0.4] = np.float32(3.5)
    n_classes = int(rng.integers(2, 6))
    y = rng.integers(0, n_classes, size=n).astype(np.float64)
    if rng.random() < 0.5:  # labels that depend on x, so that pure leaves and deep weights occur
        y = np.floor(n_classes * rng.permuted(np.arange(n)) / n)
        y = np.where(X[:, 0] > np.median(X[:, 0]), y, 0.0)
    if regression:
        noisy = np.round(rng.normal(size=n), 1 + int(rng.integers(0, 9)))
        y = np.where(X[:, 0] > np.median(X[:, 0]), noisy, rng.choice([0.0, 1.0, -2.5], size=n))
    return Case(
        number=number,
        X=np.ascontiguousarray(X, np.float32),
        y=y.astype(np.float64),
        w=_weights(rng, n),
        n_classes=n_classes,
        alpha=float(rng.choice([0.5, 0.5, 1.0, 0.1, 0.01])),
        charge_opening=bool(rng.random() < 0.5),
        split_pure=bool(rng.random() < 0.5),
        max_nodes=int(rng.choice([1, 2, 3, 9, 20])) if rng.random() < 0.2 else None,
        seed=int(rng.choice([0, 1, 42, 2**31 - 1, 2**32 - 1])),
        tree=int(rng.choice([0, 1, 7, 1000])),
        rate=float(rng.choice([0.0, 0.1, 1.0, 4.0] if regression else [0.1, 1.0, 4.0])),
    )


def _weights(rng: np.random.Generator, n: int) -> np.ndarray | None:
    kind = rng.integers(0, 4)
    if kind == 0:
        return rng.integers(0, 5, size=n).astype(np.float64)  # 0: rows that must leave no trace
    if kind == 1:
        return rng.choice([0.25, 0.5, 1.0, 1.5, 2.75, 3.0, 0.0], size=n)
    if kind == 2 and rng.random() < 0.3:  # too large to be learned as repeats
        return rng.choice([1.0, 257.0, 1e3, 1e6], size=n)
    return None


def grid_stream(
    rng: np.random.Generator, n_points: int, d: int, n_rows: int, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows drawn from a few distinct points: X float32 [n, d], y float64 [n]."""
    points = rng.normal(size=(n_points, d)).astype(np.float32)
    chosen = rng.integers(0, n_points, size=n_rows)
    skew = rng.dirichlet(np.full(n_classes, 0.7), size=n_points)
    u = rng.random(n_rows)
    y = (u[:, None] > np.cumsum(skew, axis=1)[chosen]).sum(axis=1).clip(max=n_classes - 1)
    return points[chosen], y.astype(np.float64)
