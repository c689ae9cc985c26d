"""A forest of numbers that follows a stream, written from its design for the eye, not for speed.

What differs from classes (:mod:`drift` of this folder): nodes keep labels, with weights that are
discounted in three ways; trees price errors in units of what they missed by of late; forecasts are
means and variances, mixed linearly. Trees are those of :mod:`amf`, with explicit sums of prices.

References
----------
Kivinen, Warmuth (1997); Herbster, Warmuth (1998).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .amf import Node, ReferenceTree
from .drift import (
    DISCOUNTS,
    LEAST_SHARE,
    NODE_SHARE,
    POWERS,
    SHARE,
    CoveringTree,
    ReferenceMember,
)
from .statistics import Moments

RATES, INPUT_SHARE, OUTER_RATE, ROWS = (0.005, 0.02, 0.08), 5e-5, 0.1, 256.0
PRICE_RATE, MEMORY_RATE, MOST, FIRST_ROWS = 0.5, 0.5, 32.0, 4.0


@dataclass
class Scale:
    """Mean squared error of what a tree forecast of late; the variance of its labels at first."""

    square: float = 0.0
    n: float = 0.0

    def of(self, error: float) -> float:
        """Return the square of an error in this unit, at most ``MOST``."""
        if error == 0.0:
            return 0.0
        return MOST if self.square == 0.0 else min(error * error / self.square, MOST)


@dataclass
class LabelMemories:
    """Labels with weights that are discounted in three ways, and the weights of these."""

    scale: Scale  # of the tree
    labels: np.ndarray = field(default_factory=lambda: np.empty(0))
    kept: np.ndarray = field(default_factory=lambda: np.empty((3, 0)))
    weights: list[float] = field(default_factory=lambda: [1 / 3] * 3)

    def each(self) -> list[float]:
        """Return the mean of the labels by each memory."""
        first = self.labels[0]  # whose digits are not to be lost in sums
        means: np.ndarray = first + self.kept @ (self.labels - first) / self.kept.sum(axis=1)
        return means.tolist()

    @property
    def mean(self) -> float:
        return sum(v * m for v, m in zip(self.weights, self.each(), strict=True))

    @property
    def variance(self) -> float:
        """Return that of a label drawn by memory, then by its weight there."""
        squares = self.kept @ (self.labels - self.mean) ** 2 / self.kept.sum(axis=1)
        return float(np.dot(self.weights, squares))

    def price(self, label: float, weight: float, opens: bool) -> float:
        return 0.0 if opens else PRICE_RATE * weight * self.scale.of(label - self.mean)

    def count(self, label: float, weight: float) -> None:
        if len(self.labels):
            moved = [
                v * math.exp(-MEMORY_RATE * weight * self.scale.of(label - m))
                for v, m in zip(self.weights, self.each(), strict=True)
            ]
            self.weights = [(1 - NODE_SHARE) * v / sum(moved) + NODE_SHARE / 3 for v in moved]
        self.labels = np.append(self.labels, label)
        discounted = self.kept * np.array(DISCOUNTS)[:, None]
        self.kept = np.column_stack([discounted, np.full(3, weight)])

    def copy(self) -> LabelMemories:
        return LabelMemories(self.scale, self.labels, self.kept, list(self.weights))

    def empty(self, parent: LabelMemories | None) -> LabelMemories:
        return LabelMemories(self.scale)

    def agrees(self, label: float) -> bool:
        return False

    def worth(self, label: float) -> float:
        return -self.scale.of(label - self.mean)

    def law(self, parent: LabelMemories | None) -> list[float]:
        """Return mean and variance of a label; the parent's counts as one row more."""
        n, variance = float(self.kept[0].sum()), self.variance
        if parent is not None:
            variance = (n * variance + parent.variance) / max(n, 1.0)
        return [self.mean, variance]


@dataclass
class KeptMoments(Moments):
    """Moments of a permanent tree that keep the labels, for their variance."""

    labels: np.ndarray = field(default_factory=lambda: np.empty((0, 2)))

    def count(self, label: float, weight: float) -> None:
        super().count(label, weight)
        self.labels = np.append(self.labels, [[label, weight]], axis=0)

    def copy(self) -> KeptMoments:
        own = self.charge_opening, self.weight, self.total, self.inherited
        return KeptMoments(*own, self.labels)

    def empty(self, parent: Moments | None) -> KeptMoments:
        return KeptMoments(self.charge_opening, inherited=super().empty(parent).inherited)

    @property
    def deviations(self) -> float:
        return float(self.labels[:, 1] @ (self.labels[:, 0] - self.mean) ** 2)

    def law(self, parent: KeptMoments | None) -> list[float]:
        """Return mean and variance of a label; the variance above counts as one row's square."""
        if parent is None:
            return [self.mean, self.deviations / self.weight]
        above = parent.deviations / parent.weight
        return [self.mean, (self.deviations + above) / max(self.weight, 1.0)]


def mixture_of_laws(shares: Sequence[float], laws: Sequence[Sequence[float]]) -> list[float]:
    """Return mean and variance of a label whose law is one of these, by shares of any sum."""
    pairs = list(zip(shares, laws, strict=True))
    mean = math.fsum(s * law[0] for s, law in pairs) / math.fsum(shares)
    square = math.fsum(s * (law[1] + (law[0] - mean) ** 2) for s, law in pairs)
    return [mean, square / math.fsum(shares)]


@dataclass
class NumberTree(ReferenceTree):
    """A tree that is born before row ``birth`` and dies ``life`` rows later."""

    birth: int = 0
    life: int = 0
    place: int = 0
    scales: Sequence[np.float32] = ()
    since: np.ndarray = field(default_factory=lambda: np.zeros(0))

    draws = CoveringTree.draws
    scaled = CoveringTree.scaled

    def renew_rate(self, y: float) -> None:
        """Before a row: until the tree has forecast one, the scale is the labels' variance."""
        if self.root is not None and self.memory.scale.n == 0.0:
            self.memory.scale.square = self.root.memory.variance

    def note_forecast(self, mean: float, y: float) -> None:
        """Take the error of a forecast into the scale."""
        scale = self.memory.scale
        scale.n = min(max(scale.n, FIRST_ROWS) + 1.0, ROWS)
        square = (y - mean) ** 2
        if scale.square > 0.0:
            square = min(square, MOST * scale.square)
        scale.square += (square - scale.square) / scale.n


def way(tree: ReferenceTree, x: Sequence[np.float32]) -> tuple[list[float], list[Node]]:
    """Return the nodes from root to leaf, and their posterior shares."""
    path = tree.path_to_root(tree.leaf_of(x))[::-1]
    rest, shares = 1.0, []
    for node in path:
        stop = 1.0 if node.is_leaf else math.exp(node.log_stop)
        shares.append(rest * stop)
        rest *= 1.0 - stop
    return shares, path


def laws_of(path: Sequence[Node]) -> list[list[float]]:
    """Return what the nodes of a way forecast."""
    return [node.memory.law(node.parent and node.parent.memory) for node in path]


class Linear:
    """Mixers of means and variances, and a mixture of them."""

    def __init__(self, starts: list[list[float]], takes: list[list[int]], rates: list[float]):
        self.weights = [list(start) for start in starts]
        self.takes, self.rates = takes, rates
        self.outer = [1.0 / len(rates)] * len(rates)
        self.square, self.n, self.factor, self.is_scaled = 0.0, 0.0, 1.0, False
        self.power = 1.0  # of the rate of weights of mixers

    def _mixed(self, inputs: list[list[float]]) -> tuple[list[list[float]], list[float]]:
        result = [
            self._without_the_least(weights, [inputs[g] for g in takes], INPUT_SHARE)
            for weights, takes in zip(self.weights, self.takes, strict=True)
        ]
        return result, self._without_the_least(self.outer, result, SHARE)

    def _without_the_least(
        self, weights: list[float], laws: list[list[float]], share: float
    ) -> list[float]:
        kept = [g for g, w in enumerate(weights) if w >= 2.0 * share / len(weights)]
        return mixture_of_laws([weights[g] for g in kept], [laws[g] for g in kept])

    def mix(self, inputs: list[list[float]]) -> list[float]:
        mean, variance = self._mixed(inputs)[1]
        return [mean, self.factor * variance]

    def learn(self, inputs: list[list[float]], y: float, weight: float = 1.0) -> None:
        for _ in self.steps(inputs, y, weight):
            pass

    def steps(self, inputs: list[list[float]], y: float, weight: float) -> Iterator[float]:
        """Take the steps of a row; yield the size of each after it."""
        rest = min(weight, 16.0)
        while rest > 0.0:
            self._step(inputs, y, min(rest, 1.0))
            yield min(rest, 1.0)
            rest -= min(rest, 1.0)

    def _step(self, inputs: list[list[float]], y: float, size: float) -> None:
        means = [law[0] for law in inputs]
        if max(means) - min(means) <= 2.0**-48 * max(abs(min(means)), abs(max(means))):
            return
        result, (mean, variance) = self._mixed(inputs)
        self.n = min(self.n + size, ROWS)
        square = (y - mean) ** 2
        if self.n > 8.0 and self.square > 0.0:
            square = min(square, MOST * self.square)
        self.square += size / self.n * (square - self.square)
        if self.is_scaled and mean != y:
            found = min((y - mean) ** 2 / variance, MOST) if variance > 0.0 else MOST
            self.factor += size / (self.n + 8.0) * (found - self.factor)
        if self.square == 0.0:
            return
        losses = [(y - law[0]) ** 2 / self.square for law in result]
        moved = [
            v * math.exp(-size * self.power * min(OUTER_RATE * (loss - min(losses)), MOST))
            for v, loss in zip(self.outer, losses, strict=True)
        ]
        n = len(moved)
        self.outer = [(1 - SHARE) * v / sum(moved) + SHARE / n for v in moved]
        for e, takes in enumerate(self.takes):
            if self.rates[e] == 0.0:
                continue
            slope = 2.0 * self.rates[e] * size * (y - result[e][0]) / self.square
            gains = [slope * (means[g] - result[e][0]) for g in takes]
            moved = [
                w * math.exp(max(gain - max(gains), -MOST))
                for w, gain in zip(self.weights[e], gains, strict=True)
            ]
            n = len(moved)
            self.weights[e] = [(1 - INPUT_SHARE) * w / sum(moved) + INPUT_SHARE / n for w in moved]


class NumberMember(ReferenceMember):
    """A permanent tree, covering trees and their mixture."""

    def __init__(
        self, seed: int, number: int, d: int, first: int, last: int, has_boosted: bool = False,
        has_scaled: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(seed, number, d, 2, 1.0, first, last, has_boosted, has_scaled)
        memory = KeptMoments(False)
        self.permanent = ReferenceTree(memory, seed, number, rate=8.0, rate_per_variance=True)
        g = 2 + last - first + has_scaled + has_boosted
        alone = [0, g - 1] if has_boosted else [0]
        self.mixer = Linear(
            [[1.0 / g] * g for _ in RATES] + [[1.0] for _ in alone],
            [list(range(g)) for _ in RATES] + [[i] for i in alone],
            [*RATES, *(0.0 for _ in alone)],
        )

    def new_tree(self) -> NumberTree:
        tree = NumberTree(LabelMemories(Scale()), self.seed, self.number, rate_per_variance=True)
        tree.eta = 1.0  # prices are in units of the scale already
        return tree

    def inputs(self, x: Sequence[np.float32], y: float | None) -> list[list[float]]:
        """Return all forecasts; take credits and errors if there is a label."""
        result = [[0.0, 0.0]]
        if self.permanent.root is not None:
            shares, path = way(self.permanent, x)
            result = [mixture_of_laws(shares, laws_of(path))]
        for k in range(self.first, self.last + 1):
            tree = self.in_octave(k)
            if tree is None:
                result.append(result[0])
                continue
            shares, path = way(tree, tree.scaled(x))
            last, laws = len(shares) - 1, laws_of(path)
            kept = [i for i, s in enumerate(shares) if i == last or s >= LEAST_SHARE]
            result.append(mixture_of_laws([shares[i] for i in kept], [laws[i] for i in kept]))
            if y is None:
                continue
            if POWERS[self.number % 4]:
                worth = [node.memory.worth(y) for node in path]
                for i in range(last):
                    beyond = sum(shares[i + 1 :])
                    tree.since[:, path[i].feature] += beyond * (worth[i + 1] - worth[i]), beyond
            tree.note_forecast(result[-1][0], y)
        return result


class ReferenceNumberForest:
    """Members and their guard."""

    def __init__(
        self, seed: int, n: int, d: int, first: int, last: int, has_boosted: bool = False,
        has_scaled: bool = False,
    ) -> None:  # fmt: skip
        self.members = [
            NumberMember(seed, i, d, first, last, has_boosted, has_scaled) for i in range(n)
        ]
        self.guard = self.new_guard()

    def new_guard(self, delay: int = 1) -> Linear:
        """Return a guard that knows nothing, for labels that come ``delay`` at a time."""
        k = min(len(self.members), 4)
        some, equal = list(range(k + 1)), [1.0 / (k + 1)] * (k + 1)
        rates = [0.0, 0.02 / math.sqrt(delay), 0.08 / math.sqrt(delay), 0.0]
        guard = Linear([[1.0], equal, equal, [1.0]], [[k + 1], some, some, [k]], rates)
        guard.is_scaled = True
        return guard

    def guard_inputs(
        self, permanent: Sequence[list[float]], result: Sequence[list[float]]
    ) -> list[list[float]]:
        """Return what the guard mixes, of what permanent trees and members forecast."""
        k = min(len(result), 4)
        groups = [*(result[i::4] for i in range(k)), permanent, result]
        return [mixture_of_laws([1.0 / len(group)] * len(group), group) for group in groups]

    def forecast_and_learn(
        self,
        x: Sequence[np.float32],
        y: float,
        weight: float = 1.0,
        boosted: list[float] | None = None,
        scaled: Sequence[list[float] | None] | None = None,
    ) -> list[float]:
        each = [None] * len(self.members) if scaled is None else scaled
        both = [
            member.forecast_and_learn(x, y, weight, boosted, own)
            for member, own in zip(self.members, each, strict=True)
        ]
        inputs = self.guard_inputs(*zip(*both, strict=True))
        mixed = self.guard.mix(inputs)
        self.guard.learn(inputs, y, weight)
        return mixed
