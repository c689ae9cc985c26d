"""A forest that follows a stream, written from its design for the eye, not for speed.

Relies on the trees of :mod:`amf` of this folder, whose nodes get a memory of their own; shares no
code with the package. Trees are kept in a list, born and thrown away by the rule as it stands:
one is born before each row b that is a multiple of 2^first, nu is the exponent of 2 in b (at most
``last``, and ``last`` for row 0), and it dies at b + 2^(nu + 1).

References
----------
Daniely, Gonen, Shalev-Shwartz (2015), section 3; Herbster, Warmuth (1998); Mattern (2013).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .amf import ReferenceTree
from .draws import GOLDEN, MODULUS, RowDraws, mix64, tree_key
from .statistics import Counts

DISCOUNTS, NODE_SHARE = (1.0, 0.9, 0.6), 0.01
POWERS, FLOORS = (0, 1, 2, 3), (1.0, 0.1, 0.05, 0.03)
RATES, SHARE, FLOOR, LEAST = (0.002, 0.006, 0.02), 0.0005, 1e-5, 1e-7
LEAST_SHARE = 2.0**-20
COVERING = 0xC0FE12A65EED1E55


@dataclass
class Memories:
    """Three discounted class counts and their weights; the interface of :class:`Counts`."""

    n_classes: int
    alpha: float
    counts: list[list[float]] = field(default_factory=list)
    weights: list[float] = field(default_factory=lambda: [1 / 3] * 3)

    def __post_init__(self) -> None:
        self.counts = self.counts or [[0.0] * self.n_classes for _ in DISCOUNTS]

    def each(self, c: int) -> list[float]:
        """Return what each memory forecasts of a class."""
        whole = self.n_classes * self.alpha
        return [(n[c] + self.alpha) / (sum(n) + whole) for n in self.counts]

    def forecast(self) -> list[float]:
        return [
            sum(w * p for w, p in zip(self.weights, self.each(c), strict=True))
            for c in range(self.n_classes)
        ]

    def price(self, label: float, weight: float, opens: bool) -> float:
        return 0.0 if opens else -weight * math.log(self.forecast()[int(label)])

    def count(self, label: float, weight: float) -> None:
        y = int(label)
        if sum(self.counts[0]) > 0.0:
            moved = [w * p**weight for w, p in zip(self.weights, self.each(y), strict=True)]
            self.weights = [(1 - NODE_SHARE) * w / sum(moved) + NODE_SHARE / 3 for w in moved]
            pairs = zip(self.counts, DISCOUNTS, strict=True)
            self.counts = [[n * discount for n in memory] for memory, discount in pairs]
        for memory in self.counts:
            memory[y] += weight

    def copy(self) -> Memories:
        counts = [list(memory) for memory in self.counts]
        return Memories(self.n_classes, self.alpha, counts, list(self.weights))

    def empty(self, parent: Memories | None) -> Memories:
        return Memories(self.n_classes, self.alpha)

    def agrees(self, label: float) -> bool:
        return all(n == 0.0 for c, n in enumerate(self.counts[0]) if c != int(label))


@dataclass
class CoveringTree(ReferenceTree):
    """A tree that is born before row ``birth`` and dies ``life`` rows later."""

    birth: int = 0
    life: int = 0
    scales: Sequence[np.float32] = ()

    def draws(self) -> RowDraws:
        own = mix64(tree_key(self.seed, self.tree) ^ COVERING)
        return RowDraws.keyed(
            mix64(own ^ mix64((self.birth + GOLDEN) % MODULUS)), self.total_weight
        )

    def scaled(self, x: Sequence[np.float32]) -> list[np.float32]:
        return [np.float32(a * b) for a, b in zip(x, self.scales, strict=True)]

    def way(self, x: Sequence[np.float32]) -> tuple[list[float], list[list[float]], list[int]]:
        """Return posterior shares, forecasts and split columns of the nodes from root to leaf."""
        path = self.path_to_root(self.leaf_of(x))[::-1]
        rest, shares = 1.0, []
        for node in path:
            stop = 1.0 if node.is_leaf else math.exp(node.log_stop)
            shares.append(rest * stop)
            rest *= 1.0 - stop
        return shares, [node.memory.forecast() for node in path], [node.feature for node in path]


class Geometric:
    """Mixers by logarithms, and a mixture of them: see ``mix`` for the order of steps."""

    def __init__(self, starts: list[list[float]], takes: list[list[int]], rates: list[float]):
        self.weights = [list(start) for start in starts]
        self.takes, self.rates = takes, rates
        self.outer = [1.0 / len(rates)] * len(rates)

    def _experts(self, inputs: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
        logs = [[math.log(max(p, FLOOR)) for p in one] for one in inputs]
        logs = [[z - sum(one) / len(one) for z in one] for one in logs]
        told = []
        for weights, takes in zip(self.weights, self.takes, strict=True):
            sums = [
                sum(w * logs[g][c] for w, g in zip(weights, takes, strict=True))
                for c in range(len(logs[0]))
            ]
            powers = [math.exp(value - max(sums)) for value in sums]
            told.append([power / sum(powers) for power in powers])
        return logs, told

    def mix(self, inputs: list[list[float]]) -> list[float]:
        _, told = self._experts(inputs)
        return [
            sum(v * q[c] for v, q in zip(self.outer, told, strict=True))
            for c in range(len(inputs[0]))
        ]

    def learn(self, inputs: list[list[float]], y: int, weight: float = 1.0) -> None:
        rest = min(weight, 16.0)
        while rest > 0.0:
            size = min(rest, 1.0)
            logs, told = self._experts(inputs)
            moved = [v * max(q[y], LEAST) ** size for v, q in zip(self.outer, told, strict=True)]
            n = len(moved)
            self.outer = [(1 - SHARE) * v / sum(moved) + SHARE / n for v in moved]
            for e, (takes, q) in enumerate(zip(self.takes, told, strict=True)):
                for i, g in enumerate(takes):
                    mean = sum(p * z for p, z in zip(q, logs[g], strict=True))
                    self.weights[e][i] -= self.rates[e] * size * (mean - logs[g][y])
            rest -= size


class ReferenceMember:
    """A permanent tree, covering trees and their mixture."""

    def __init__(
        self, seed: int, number: int, d: int, n_classes: int, alpha: float, first: int, last: int
    ) -> None:
        self.seed, self.number, self.d = seed, number, d
        self.n_classes, self.alpha, self.first, self.last = n_classes, alpha, first, last
        memory = Counts(n_classes, alpha, False)
        self.permanent = ReferenceTree(memory, seed, number, split_pure=False)
        self.trees: list[CoveringTree] = []
        self.t = 0
        n_levels = min(last, 12) - first + 1
        self.since = np.zeros((2, d))
        self.levels = np.zeros((n_levels, 2, d))
        g = 2 + last - first
        everything = list(range(g))
        self.mixer = Geometric(
            [[1.0 / g] * g for _ in RATES] + [[1.0]], [everything] * 3 + [[0]], [*RATES, 0.0]
        )

    def give_birth(self) -> None:
        b, nu = self.t, self.last
        while b % (1 << nu):
            nu -= 1
        self.trees = [tree for tree in self.trees if tree.birth + tree.life > b]
        for level, credit in enumerate(self.levels):
            back = 2.0 ** (self.first + level + 1)
            credit *= 0.5 ** (2.0**self.first / back)
            credit += self.since
        self.since = np.zeros((2, self.d))
        scales = self.scales(*self.levels[min(nu - self.first, len(self.levels) - 1)])
        memory = Memories(self.n_classes, self.alpha)
        tree = CoveringTree(memory, self.seed, self.number, split_pure=False)
        tree.birth, tree.life, tree.scales = b, 1 << (nu + 1), scales
        self.trees.append(tree)

    def scales(self, credits: np.ndarray, visits: np.ndarray) -> list[np.float32]:
        power, floor = POWERS[self.number % 4], FLOORS[self.number % 4]
        worth = credits / (visits + 0.02 * visits.sum() / self.d + 5.0)
        worth = np.maximum(worth, 0.0)
        if not power or visits.sum() < 50.0 or not worth.any():
            return [np.float32(1.0)] * self.d
        shares = (worth / worth.max()) ** power
        return [np.float32(s) for s in floor + (1 - floor) * self.d * shares / shares.sum()]

    def in_octave(self, k: int) -> CoveringTree | None:
        found = [tree for tree in self.trees if 1 << k <= self.t - tree.birth < 2 << k]
        assert len(found) <= 1
        return found[0] if found else None

    def inputs(self, x: Sequence[np.float32], y: int | None) -> list[list[float]]:
        """Return all forecasts; take credits if there is a label."""
        told = [self.permanent.predict_leaf(x)]
        for k in range(self.first, self.last + 1):
            tree = self.in_octave(k)
            if tree is None:
                told.append(told[0])
                continue
            shares, forecasts, columns = tree.way(tree.scaled(x))
            last = len(shares) - 1
            told.append(
                [
                    sum(
                        s * f[c]
                        for i, (s, f) in enumerate(zip(shares, forecasts, strict=True))
                        if i == last or s >= LEAST_SHARE
                    )
                    for c in range(self.n_classes)
                ]
            )
            if y is not None and POWERS[self.number % 4]:
                for i in range(last):
                    beyond = sum(shares[i + 1 :])
                    gain = forecasts[i + 1][y] - forecasts[i][y]
                    self.since[:, columns[i]] += beyond * gain, beyond
        return told

    def forecast_and_learn(
        self, x: Sequence[np.float32], y: int, weight: float = 1.0
    ) -> tuple[list[float], list[float]]:
        """Return what the permanent tree and the member forecast."""
        if self.t % (1 << self.first) == 0:
            self.give_birth()
        inputs = self.inputs(x, y)
        told = self.mixer.mix(inputs)
        self.mixer.learn(inputs, y, weight)
        self.permanent.learn(x, y, weight)
        for tree in self.trees:
            tree.learn(tree.scaled(x), y, weight)
        self.t += 1
        return inputs[0], told


class ReferenceDriftForest:
    """Members and their guard."""

    def __init__(
        self, seed: int, n: int, d: int, n_classes: int, alpha: float, first: int, last: int
    ) -> None:
        numbers = range(n)
        self.members = [ReferenceMember(seed, i, d, n_classes, alpha, first, last) for i in numbers]
        k = min(n, 4)
        some, equal = list(range(k + 1)), [1.0 / k] * k + [0.0]
        self.guard = Geometric(
            [[1.0], equal, equal, [1.0], [1.0]],
            [[k + 1], some, some, [k], [k]],
            [0.003, 0.001, 0.004, 0.003, 0.0],
        )

    def forecast_and_learn(
        self, x: Sequence[np.float32], y: int, weight: float = 1.0
    ) -> list[float]:
        both = [member.forecast_and_learn(x, y, weight) for member in self.members]
        permanent, told = (np.array(part) for part in zip(*both, strict=True))
        k = min(len(told), 4)
        means = [told[i::4].mean(axis=0) for i in range(k)]
        inputs = [list(mean) for mean in (*means, permanent.mean(axis=0), told.mean(axis=0))]
        mixed = self.guard.mix(inputs)
        self.guard.learn(inputs, y, weight)
        return mixed
