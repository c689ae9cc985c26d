"""A forest that follows a stream, written from its design for the eye, not for speed.

Relies on the structure of the trees of :mod:`amf` of this folder, whose nodes get memories and odds
of their own, and takes logarithms and exponentials, and those of gamma functions, from the package,
which has its own. Sums are in the order of the design: from 0, by inputs, classes, memories
or experts as they stand; so that what is equal is equal to the last bit.

Trees are kept in a list, born and thrown away by the rule as it stands: one is born before each row
b that is a multiple of 2^first, nu is the exponent of 2 in b (at most ``last``, and ``last`` for
row 0), and it dies at b + 2^(nu + 1).

References
----------
Daniely, Gonen, Shalev-Shwartz (2015), section 3; Herbster, Warmuth (1998); Mattern (2013).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dmondrian.losses.kt import log_repeats
from dmondrian.tree.keyed_random import exp, log

from .amf import Node, ReferenceTree
from .draws import GOLDEN, MODULUS, RowDraws, mix64, tree_key
from .statistics import Counts

DISCOUNTS, NODE_SHARE = (1.0, 0.9, 0.6), 0.01
POWERS, FLOORS = (0, 1, 2, 3), (1.0, 0.1, 0.05, 0.03)
RATES, SHARE, FLOOR, LEAST = (0.002, 0.006, 0.02), 0.0005, 1e-5, 1e-7
LEAST_SHARE = 2.0**-20
ONE = 2.0**40  # of a forecast that is added up over members, as a whole number
COVERING = 0xC0FE12A65EED1E55


def total(values: Sequence[float]) -> float:
    """Return the sum from 0, one after the other; ``sum`` may compensate what it loses."""
    found = 0.0
    for value in values:
        found += value
    return found


@dataclass
class ExactCounts(Counts):
    """Class counts, and the probability of a label."""

    def probability(self, y: int, weight: float) -> float:
        n, n_c = self.weight, self.counts[y]
        if weight == 1.0:
            return (n_c + self.alpha) / (n + self.n_classes * self.alpha)
        return exp(log_repeats(n_c, n, self.alpha, self.n_classes, weight))

    def shares(self, weight: float) -> list[float]:
        scale = weight / (self.weight + self.n_classes * self.alpha)
        return [(n + self.alpha) * scale for n in self.counts]

    def copy(self) -> ExactCounts:
        return ExactCounts(self.n_classes, self.alpha, self.charge_opening, list(self.counts))

    def empty(self, parent: Counts | None) -> ExactCounts:
        return ExactCounts(self.n_classes, self.alpha, self.charge_opening)


@dataclass
class Memories:
    """Three discounted class counts and factors, weights over counts and pseudo-counts."""

    n_classes: int
    alpha: float
    counts: list[list[float]] = field(default_factory=list)
    totals: list[float] = field(default_factory=lambda: [0.0] * 3)
    factors: list[float] = field(default_factory=lambda: [0.0] * 3)

    def __post_init__(self) -> None:
        self.counts = self.counts or [[0.0] * self.n_classes for _ in DISCOUNTS]

    def each(self, y: int) -> tuple[float, float, float]:
        """Return the share of each memory in the forecast of a class."""
        p, q, r = (f * (n[y] + self.alpha) for f, n in zip(self.factors, self.counts, strict=True))
        return p, q, r

    def probability(self, y: int, weight: float) -> float:
        p, q, r = self.each(y)
        return p + q + r if weight == 1.0 else exp(weight * log(p + q + r))

    def shares(self, weight: float) -> list[float]:
        p, q, r = (weight * f for f in self.factors)
        a, b, c = ([n + self.alpha for n in memory] for memory in self.counts)
        return [p * u + q * v + r * w for u, v, w in zip(a, b, c, strict=True)]

    def moved(self, y: int, weight: float) -> list[float]:
        """Return the weights times the probability of a label to the power of its weight."""
        if weight == 1.0:
            return list(self.each(y))
        found = []
        for f, n, known in zip(self.factors, self.counts, self.totals, strict=True):
            whole = known + self.n_classes * self.alpha
            found.append(f * whole * exp(weight * log((n[y] + self.alpha) / whole)))
        return found

    def count(self, label: float, weight: float) -> None:
        y, third = int(label), 1.0 / 3.0
        weights = [third] * 3
        if self.totals[0] > 0.0:
            moved = self.moved(y, weight)
            kept, spread = (1.0 - NODE_SHARE) / total(moved), NODE_SHARE * third
            weights = [kept * one + spread for one in moved]
            pairs = list(zip(self.counts, DISCOUNTS, strict=True))
            self.counts = [[n * discount for n in memory] for memory, discount in pairs]
            self.totals = [n * d for n, d in zip(self.totals, DISCOUNTS, strict=True)]
        for memory in self.counts:
            memory[y] += weight
        self.totals = [n + weight for n in self.totals]
        whole = self.n_classes * self.alpha
        self.factors = [w / (n + whole) for w, n in zip(weights, self.totals, strict=True)]

    def copy(self) -> Memories:
        counts = [list(memory) for memory in self.counts]
        its = list(self.totals), list(self.factors)
        return Memories(self.n_classes, self.alpha, counts, *its)

    def empty(self, parent: Memories | None) -> Memories:
        return Memories(self.n_classes, self.alpha)

    def agrees(self, label: float) -> bool:
        return all(n == 0.0 for c, n in enumerate(self.counts[0]) if c != int(label))


def held(odds: float, k: int) -> tuple[float, int]:
    """Return odds 2^(256 k) with the first number in [2^-128, 2^128]."""
    while odds > 2.0**128:
        odds, k = odds * 2.0**-256, k + 1
    while odds < 2.0**-128:
        odds, k = odds * 2.0**256, k - 1
    return odds, k


@dataclass
class OddsTree(ReferenceTree):
    """A tree whose weights are kept as the odds of stopping at each node.

    From the leaf up each node turns its odds o into o p / q and hands o p / (1 + o) + q / (1 + o)
    to its parent, p being its own probability of the label and q what its child handed. A new
    parent has the odds of its child's weight to that of the subtree, and what it hands counts for
    the weight that its insertion took from the subtree.
    """

    odds: dict[int, tuple[float, int]] = field(default_factory=dict)
    shift: float = 1.0

    def reweigh(self, leaf: Node) -> None:
        """Do nothing: there are no weights of subtrees."""

    def split_time(self, node: Node, rate: float, draws: RowDraws) -> float:
        return node.time_above - log(draws.uniform()) / rate

    def stop(self, node: Node) -> float:
        """Return the posterior probability of stopping at a node; of odds far off, 0 or 1."""
        if node.is_leaf:
            return 1.0
        odds, k = self.odds[node.number]
        return odds / (1.0 + odds) if k == 0 else float(k > 0)

    def _split_above(self, node: Node, *others: object) -> Node:
        leaf = super()._split_above(node, *others)  # type: ignore[arg-type]  # handed on
        above = leaf.parent
        assert above is not None
        odds, k = (1.0, 0) if node.is_leaf else self.odds[node.number]
        if not node.is_leaf:
            odds = 2.0 * odds / (1.0 + odds) if k == 0 else 2.0 * odds if k < 0 else 2.0
        self.odds[above.number] = held(odds, min(k, 0))
        self.shift = 0.5 / (1.0 - self.stop(above))
        return leaf

    def learn_label(self, leaf: Node, y: float, weight: float, opens: bool) -> None:
        label, (first, *above) = int(y), self.path_to_root(leaf)
        q = 1.0 if opens else first.memory.probability(label, weight)
        first.memory.count(y, weight)
        for node in above:
            p, (odds, k) = node.memory.probability(label, weight), self.odds[node.number]
            node.memory.count(y, weight)
            go_on = 1.0 / (1.0 + odds)
            self.odds[node.number] = held(odds * p / q, k)
            handed = odds * go_on * p + go_on * q
            q = (handed if k == 0 else p if k > 0 else q) * self.shift
            self.shift = 1.0
        self.shift = 1.0
        self.total_weight += weight

    def forecast(self, x: Sequence[np.float32], n_classes: int, least: float) -> list[float]:
        """Return the mixture over prunings; shares below ``least`` above the leaf are left out."""
        found, rest = [0.0] * n_classes, 1.0
        for node in self.path_to_root(self.leaf_of(x))[::-1]:
            share = self.stop(node)
            if node.is_leaf or rest * share >= least:
                own = node.memory.shares(rest * share)
                found = [a + b for a, b in zip(found, own, strict=True)]
            rest *= 1.0 - share
        return found


@dataclass
class CoveringTree(OddsTree):
    """A tree that is born before row ``birth`` and dies ``life`` rows later."""

    birth: int = 0
    life: int = 0
    place: int = 0
    scales: Sequence[np.float32] = ()
    since: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def draws(self) -> RowDraws:
        own = mix64(tree_key(self.seed, self.tree) ^ COVERING)
        return RowDraws.keyed(
            mix64(own ^ mix64((self.birth + GOLDEN) % MODULUS)), self.total_weight
        )

    def scaled(self, x: Sequence[np.float32]) -> list[np.float32]:
        return [np.float32(a * b) for a, b in zip(x, self.scales, strict=True)]

    def take_credits(self, x: Sequence[np.float32], y: int) -> None:
        """Add what splits on the way were worth, and how much of the mixture goes on below."""
        path, rest = self.path_to_root(self.leaf_of(x))[::-1], 1.0
        for node, child in itertools.pairwise(path):
            rest *= 1.0 - self.stop(node)
            gain = child.memory.probability(y, 1.0) - node.memory.probability(y, 1.0)
            self.since[0, node.feature] += rest * gain
            self.since[1, node.feature] += rest


class Geometric:
    """Mixers by logarithms, and a mixture of them: see ``mix`` for the order of steps."""

    def __init__(
        self,
        starts: list[list[float]],
        takes: list[list[int]],
        rates: list[float],
        shares: list[float] | None = None,
        least: Sequence[float] | None = None,
    ):
        self.least = least  # weight of each input in every mixture
        self.weights = [list(start) for start in starts]
        self.takes, self.rates = takes, rates
        self.start = shares or [1.0 / len(rates)] * len(rates)
        self.outer = list(self.start)
        self.power = 1.0  # of the probability of a label, where weights of experts move by it

    def _logs(self, inputs: list[list[float]]) -> list[list[float]]:
        logs = [[log(max(p, FLOOR)) for p in one] for one in inputs]
        if len(logs[0]) == 2:
            halves = [(a - b) * 0.5 for a, b in logs]
            return [[half, -half] for half in halves]
        means = [total(one) / len(one) for one in logs]
        return [[z - mean for z in one] for one, mean in zip(logs, means, strict=True)]

    def _experts(self, logs: list[list[float]]) -> list[list[float]]:
        found = []
        for weights, takes in zip(self.weights, self.takes, strict=True):
            pairs = list(zip(weights, takes, strict=True))
            sums = [total([w * logs[g][c] for w, g in pairs]) for c in range(len(logs[0]))]
            if len(sums) == 2:
                odds = exp(-2.0 * abs(sums[0]))
                likely = 1.0 / (1.0 + odds)
                both = [likely, odds * likely]
                found.append(both if sums[0] >= 0.0 else both[::-1])
                continue
            powers = [exp(value - max(sums)) for value in sums]
            found.append([power / total(powers) for power in powers])
        return found

    def mix(self, inputs: list[list[float]]) -> list[float]:
        found = self._experts(self._logs(inputs))
        return [
            total([v * q[c] for v, q in zip(self.outer, found, strict=True)])
            for c in range(len(inputs[0]))
        ]

    def learn(self, inputs: list[list[float]], y: int, weight: float = 1.0) -> None:
        for _ in self.steps(inputs, y, weight):
            pass

    def steps(self, inputs: list[list[float]], y: int, weight: float) -> Iterator[float]:
        """Take the steps of a row; yield the size of each after it."""
        rest, logs = min(weight, 16.0), self._logs(inputs)
        while rest > 0.0:
            size, found = min(rest, 1.0), self._experts(logs)
            moved = []
            for v, q in zip(self.outer, found, strict=True):
                likelihood = max(q[y], LEAST)
                power = size * self.power
                moved.append(v * (likelihood if power == 1.0 else exp(power * log(likelihood))))
            shares = zip(moved, self.start, strict=True)
            self.outer = [(1.0 - SHARE) * (v / total(moved)) + SHARE * v0 for v, v0 in shares]
            for e, (takes, q) in enumerate(zip(self.takes, found, strict=True)):
                for i, g in enumerate(takes):
                    if len(q) == 2:
                        slope = (2.0 * q[0] if y == 1 else -2.0 * q[1]) * logs[g][0]
                    else:
                        slope = -logs[g][y]
                        for p, z in zip(q, logs[g], strict=True):
                            slope += p * z
                    self.weights[e][i] -= self.rates[e] * size * slope
                    if self.least is not None:
                        self.weights[e][i] = max(self.weights[e][i], self.least[g])
            yield size
            rest -= size


class ReferenceMember:
    """A permanent tree, covering trees and their mixture."""

    def __init__(
        self, seed: int, number: int, d: int, n_classes: int, alpha: float, first: int, last: int,
        has_boosted: bool = False, has_scaled: bool = False, is_monotone: bool = False,
    ) -> None:  # fmt: skip
        self.seed, self.number, self.d = seed, number, d
        self.n_classes, self.alpha, self.first, self.last = n_classes, alpha, first, last
        memory = ExactCounts(n_classes, alpha, False)
        self.permanent = OddsTree(memory, seed, number, split_pure=False)  # type: ignore[arg-type]
        self.trees: list[CoveringTree] = []
        self.t = 0
        n_levels = min(last, 12) - first + 1
        self.levels = np.zeros((n_levels, 2, d))
        g = 2 + last - first + has_scaled + has_boosted
        everything = list(range(g))
        weights, takes, rates = [[1.0 / g] * g for _ in RATES], [everything] * 3, [*RATES]
        weights, takes, rates = [*weights, [1.0]], [*takes, [0]], [*rates, 0.0]
        if has_boosted:
            weights, takes, rates = [*weights, [1.0]], [*takes, [g - 1]], [*rates, 0.003]
        self.has_boosted, self.has_scaled = has_boosted, has_scaled
        least = [-math.inf] * (g - 1) + [0.0 if is_monotone else -math.inf]
        self.mixer = Geometric(weights, takes, rates, least=least)

    def give_birth(self) -> None:
        b, nu = self.t, self.last
        while b % (1 << nu):
            nu -= 1
        since = np.zeros((2, self.d))
        for tree in sorted(self.trees, key=lambda tree: tree.place):
            since += tree.since
            tree.since = np.zeros((2, self.d))
        decay = 0.5
        for level in self.levels:
            decay = math.sqrt(decay)
            level *= decay
            level += since
        self.trees = [tree for tree in self.trees if tree.birth + tree.life > b]
        scales = self.scales(*self.levels[min(nu - self.first, len(self.levels) - 1)])
        tree = self.new_tree()
        tree.birth, tree.life, tree.scales = b, 1 << (nu + 1), scales
        tree.place = nu - self.first + (nu == self.last and (b >> self.last) % 2)
        tree.since = np.zeros((2, self.d))
        self.trees.append(tree)

    def new_tree(self) -> CoveringTree:
        memory = Memories(self.n_classes, self.alpha)
        return CoveringTree(memory, self.seed, self.number, split_pure=False)  # type: ignore[arg-type]

    def scales(self, credits: np.ndarray, visits: np.ndarray) -> list[np.float32]:
        power, floor = POWERS[self.number % 4], FLOORS[self.number % 4]
        whole, d = total(visits.tolist()), self.d
        prior = 0.02 * whole / d + 5.0
        rates = [max(c / (v + prior), 0.0) for c, v in zip(credits.tolist(), visits, strict=True)]
        if not power or whole < 50.0 or not any(rates):
            return [np.float32(1.0)] * d
        largest, shares = max(rates), []
        for rate in rates:
            share = rate / largest
            for _ in range(power - 1):
                share *= rate / largest
            shares.append(share)
        both = [share / total(shares) for share in shares]
        return [np.float32(floor + (1.0 - floor) * d * share) for share in both]

    def in_octave(self, k: int) -> CoveringTree | None:
        alive = [tree for tree in self.trees if self.t < tree.birth + tree.life]
        found = [tree for tree in alive if 1 << k <= self.t - tree.birth < 2 << k]
        assert len(found) <= 1
        return found[0] if found else None

    def inputs(self, x: Sequence[np.float32], y: int | None) -> list[list[float]]:
        """Return all forecasts; take credits if there is a label."""
        equal = [1.0 / self.n_classes] * self.n_classes
        reported = [self.permanent.forecast(x, self.n_classes, 0.0) if self.t else equal]
        for k in range(self.first, self.last + 1):
            tree = self.in_octave(k)
            if tree is None:
                reported.append(reported[0])
                continue
            scaled = tree.scaled(x)
            reported.append(tree.forecast(scaled, self.n_classes, LEAST_SHARE))
            if y is not None and POWERS[self.number % 4]:
                tree.take_credits(scaled, y)
        return reported

    def forecast_and_learn(
        self,
        x: Sequence[np.float32],
        y: int,
        weight: float = 1.0,
        boosted: list[float] | None = None,
        scaled: list[float] | None = None,
    ) -> tuple[list[float], list[float]]:
        """Return what the permanent tree and the member forecast.

        ``boosted`` is what the boosted set answers, None while there is none; of a number it is
        the mean, and the variance is the permanent tree's. ``scaled`` is what the member's scaled
        trees forecast.
        """
        if self.t % (1 << self.first) == 0:
            self.give_birth()
        inputs = self.inputs(x, y)
        if self.has_scaled:
            inputs.append(inputs[0] if scaled is None else scaled)
        if self.has_boosted:
            answer = [] if boosted is None else boosted
            inputs.append([*answer, *inputs[0][len(answer) :]])
        reported = self.mixer.mix(inputs)
        self.mixer.learn(inputs, y, weight)
        self.permanent.learn(x, y, weight)
        for tree in self.trees:
            tree.learn(tree.scaled(x), y, weight)
        self.t += 1
        return inputs[0], reported


class ReferenceDriftForest:
    """Members and their guard."""

    def __init__(
        self, seed: int, n: int, d: int, n_classes: int, alpha: float, first: int, last: int,
        has_boosted: bool = False, has_scaled: bool = False, monotone: Sequence[int] = (),
    ) -> None:  # fmt: skip
        kinds = has_boosted, has_scaled, bool(monotone)
        self.members = [
            ReferenceMember(seed, i, d, n_classes, alpha, first, last, *kinds) for i in range(n)
        ]
        self.monotone = monotone  # places of columns that boosted sets alone see
        self.guard = self.new_guard()
        if monotone:
            self.guard.least = [0.0] * (min(n, 4) + 2)

    def new_guard(self, delay: int = 1) -> Geometric:
        """Return a guard that knows nothing, for labels that come ``delay`` at a time."""
        k, slower = min(len(self.members), 4), math.sqrt(delay)
        some, equal, moving = list(range(k + 1)), [1.0 / k] * k + [0.0], 0.6 / math.sqrt(slower)
        return Geometric(
            [[1.0], equal, equal, [1.0], [1.0]],
            [[k + 1], some, some, [k], [k]],
            [rate / slower for rate in (0.003, 0.001, 0.004, 0.003, 0.0)],
            [moving / 3.0] * 3 + [(1.0 - moving) / 2.0] * 2,
        )

    def guard_inputs(
        self, permanent: Sequence[list[float]], reported: Sequence[list[float]]
    ) -> list[list[float]]:
        """Return what the guard mixes, of what permanent trees and members forecast."""
        permanent, reported = (
            [[round(p * ONE) for p in one] for one in part] for part in (permanent, reported)
        )
        k = min(len(reported), 4)
        groups = [*(reported[i::4] for i in range(k)), permanent, reported]
        return [[sum(c) / (len(group) * ONE) for c in zip(*group, strict=True)] for group in groups]

    def forecast_and_learn(
        self,
        x: Sequence[np.float32],
        y: int,
        weight: float = 1.0,
        boosted: list[float] | None = None,
        scaled: Sequence[list[float] | None] | None = None,
    ) -> list[float]:
        each = [None] * len(self.members) if scaled is None else scaled
        x = [np.float32(0.0) if j in self.monotone else x[j] for j in range(len(x))]
        both = [
            member.forecast_and_learn(x, y, weight, boosted, own)
            for member, own in zip(self.members, each, strict=True)
        ]
        inputs = self.guard_inputs(*zip(*both, strict=True))
        mixed = self.guard.mix(inputs)
        self.guard.learn(inputs, y, weight)
        return mixed
