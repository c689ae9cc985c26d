"""Small streams whose labels change what they depend on."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian.drift import scaled_trees

CUTS = [(0, 1), (1, 3), (3, 64), (64, 65), (65, 201), (201, 450)]  # of 450 rows


def early_births(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have scaled trees born before rows 64 and 128, 256 and so on, so that few rows show it."""
    monkeypatch.setattr(scaled_trees, "FIRST_SCALED", 64)
    monkeypatch.setattr(scaled_trees, "LONGEST_LIFE", 128)
    monkeypatch.setattr(scaled_trees, "_MOST_SEARCHED", 128)


def switching(n: int, n_classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows, float32 [n, 4], and classes, int [n]; the labels change their column twice."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 4)).astype(np.float32)
    column = X[np.arange(n), np.arange(n) * 3 // max(n, 1)]
    y = np.minimum((column * n_classes).astype(int), n_classes - 1)
    noisy = rng.random(n) < 0.05
    return X, np.where(noisy, rng.integers(0, n_classes, n), y)


def numbers(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows, float32 [n, 4], and numbers, float64 [n]; they change their column twice."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 4)).astype(np.float32)
    column = X[np.arange(n), np.arange(n) * 3 // max(n, 1)]
    return X, 20.0 + 10.0 * np.sin(5.0 * column) + rng.normal(size=n)
