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

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # X, y, w


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


class ScaledMembers:
    """The scaled trees of members, asked and fed by the number of rows learned.

    Of streams ``rows`` (X, y, w) that are all kept. Numbers of rows are those at ends of blocks,
    in their order.
    """

    def __init__(
        self, its: ForestParameters, numbers: Sequence[int], rows: Rows, births: Sequence[int],
        most_searched: int,
    ) -> None:  # fmt: skip
        self.its, self.numbers, self.rows = its, numbers, rows
        self.births, self.most_searched = births, most_searched
        self.trees: dict[int, list[ScaledTree]] = {}  # by the number of the member
        self.position = 0

    def forecast(self, position: int, number: int, x: np.ndarray) -> list[float] | None:
        """Return what the trees of a member forecast that have learned so many rows."""
        if position > self.position:
            self.learn_until(position)
        if not self.trees:
            return None
        each = [tree.forecast(x) for tree in self.trees[number]]
        return mean_of(each, not self.its.n_classes)

    def learn_until(self, position: int) -> None:
        """Learn the rows of a block; with them those before, if trees are born in it."""
        first, self.position = self.position, position
        if any(first < birth <= position for birth in self.births):
            scales, first = self.search(), 0
            for number in self.numbers:
                own = range(number * N_TREES, (number + 1) * N_TREES)
                self.trees[number] = [ScaledTree(self.its, i, scales) for i in own]
        for x, label, weight in zip(*(part[first:position] for part in self.rows), strict=True):
            for trees in self.trees.values():
                for tree in trees:
                    tree.learn(x, float(label), float(weight))

    def search(self) -> Sequence[float] | None:
        n = min(self.position, self.most_searched)
        X, y, w = (part[self.position - n : self.position] for part in self.rows)
        plain = self.its.replace(drift=None, seed=self.its.seed ^ SEED)
        return learn_scales(plain, (X, y, w), 1, n == self.most_searched)
