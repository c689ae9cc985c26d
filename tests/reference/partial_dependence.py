"""Partial dependence by its definitions, slowly and in exact arithmetic.

Friedman (2001, Annals of Statistics 29, section 8.2): the walk of a tree, and the mean of a model's
own predictions over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np


def of_trees(trees: Sequence[Any], point: Mapping[int, float]) -> list[float]:
    """Return the mean over trees at a point: float32 values of some features."""
    means = [of_node(tree, 0, point) for tree in trees]
    return [float(sum(column, Fraction(0)) / len(trees)) for column in zip(*means, strict=True)]


def of_node(tree: Any, node: int, point: Mapping[int, float]) -> list[Fraction]:
    """Return the mean of the leaves below a node."""
    left, right = int(tree.left[node]), int(tree.right[node])
    if left < 0:
        return [Fraction(float(value)) for value in tree.value[node]]
    feature = int(tree.feature[node])
    if feature in point:
        goes_left = np.float32(point[feature]) <= tree.threshold[node]
        return of_node(tree, left if goes_left else right, point)
    sides = of_node(tree, left, point), of_node(tree, right, point)
    weights = [Fraction(float(tree.weight[side])) for side in (left, right)]
    return [
        (weights[0] * a + weights[1] * b) / (weights[0] + weights[1])
        for a, b in zip(*sides, strict=True)
    ]


def over_rows(
    predict: Callable[[np.ndarray], np.ndarray],
    X: np.ndarray,
    features: Sequence[int],
    value: np.ndarray,
    weight: np.ndarray | None = None,
) -> np.ndarray:
    """Return the mean prediction of rows X whose features are set to a value, float64 [k]."""
    rows = X.copy()
    rows[:, features] = value
    predictions = predict(rows).reshape(len(X), -1)
    return np.average(predictions, axis=0, weights=weight)
