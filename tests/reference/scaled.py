"""Scaled trees of members, in plain Python but for the search of the scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.tuning.feature_scales import learn_scales
from tests.reference.amf import ReferenceTree
from tests.reference.drift import ExactCounts, OddsTree
from tests.reference.drift_numbers import KeptMoments, laws_of, mixture_of_laws, way

N_TREES, SEED = 8, 0x5CA1ED


def births_until(n: int, first: int, longest_life: int) -> list[int]:
    """Return the rows before which scaled trees are born, of ``n`` rows."""
    births = []
    while first < min(n, longest_life):
        births.append(first)
        first *= 4
    return [*births, *range(longest_life, n, longest_life)]


class ScaledTree:
    """One tree on scaled rows."""

    def __init__(self, its: ForestParameters, number: int, scales: Sequence[float] | None) -> None:
        self.n_classes, seed = its.n_classes, its.seed ^ SEED
        self.scales = None if scales is None else np.array(scales, np.float32)
        self.tree: Any
        if self.n_classes:
            memory: Any = ExactCounts(self.n_classes, its.alpha, False)
            self.tree = OddsTree(memory, seed, number, split_pure=False)
        else:
            rate: Any = its.system.learning_rate  # type: ignore[attr-defined]  # of AMF
            memory = KeptMoments(False)
            self.tree = ReferenceTree(memory, seed, number, rate=rate, rate_per_variance=True)

    def seen(self, x: np.ndarray) -> list[np.float32]:
        return list(x if self.scales is None else x * self.scales)

    def forecast(self, x: np.ndarray) -> list[float]:
        if self.n_classes:
            found: list[float] = self.tree.forecast(self.seen(x), self.n_classes, 0.0)
            return found
        shares, path = way(self.tree, self.seen(x))
        return mixture_of_laws(shares, laws_of(path))

    def learn(self, x: np.ndarray, y: float, w: float) -> None:
        self.tree.learn(self.seen(x), int(y) if self.n_classes else y, w)


def mean_of(each: Sequence[Sequence[float]], is_law: bool) -> list[float]:
    """Return the mean of forecasts: of probabilities, or of laws of a number."""
    means = []
    for column in zip(*each, strict=True):
        total = column[0]
        for value in column[1:]:
            total += value
        means.append(total / len(each))
    if is_law:
        apart = [(one[0] - means[0]) * (one[0] - means[0]) for one in each]
        total = apart[0]
        for square in apart[1:]:
            total += square
        means[1] += total / len(each)
    return means


def answers_of_scaled(
    its: ForestParameters,
    numbers: Sequence[int],
    X: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    births: Sequence[int],
    most_searched: int,
) -> list[list[list[float] | None]]:
    """Return what the scaled trees of each member forecast of each row; None of none.

    Of streams whose rows are all kept.
    """
    n, answers = len(y), [[None] * len(numbers) for _ in range(len(y))]
    plain = its.replace(drift=None, seed=its.seed ^ SEED)
    for birth, end in zip(births, [*births[1:], n], strict=True):
        rows = slice(birth - min(birth, most_searched), birth)
        is_last = birth >= most_searched
        scales = learn_scales(plain, (X[rows], y[rows], w[rows]), 1, is_last)
        for m, number in enumerate(numbers):
            trees = [ScaledTree(its, number * N_TREES + i, scales) for i in range(N_TREES)]
            for t in range(end):
                if t >= birth:
                    each = [tree.forecast(X[t]) for tree in trees]
                    answers[t][m] = mean_of(each, not its.n_classes)  # type: ignore[call-overload]
                for tree in trees:
                    tree.learn(X[t], float(y[t]), float(w[t]))
    return answers  # type: ignore[return-value]
