"""One tree of an online random forest, from Appendix A of D13, candidate child by candidate child.

Every candidate child keeps histograms of its own; nothing is derived from anything else, and the
fringe is chosen by fractions. Shares no code with the package. What Appendix A leaves open is as
:mod:`dmondrian.growth.fringe` has it.

References
----------
Denil, Matheson, de Freitas (2013), Algorithms 1 to 10 and section 3.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from .draws import GOLDEN, MODULUS, mix64, row_key, tree_key

UNITS = 2**20  # in which n log2 n is rounded


@dataclass(frozen=True)
class Settings:
    """Parameters of the paper; ``criterion`` "entropy", "gini", "hellinger" or "squared_error"."""

    n_features: int
    n_classes: int  # 0: labels are numbers
    rate: float
    n_points: int
    min_gain: float
    least: float
    factor: float
    ratio: float
    max_fringe: int | None
    criterion: str
    structure: float
    ignored: float
    max_nodes: int | None

    def alpha(self, depth: int) -> float:
        return self.least * self.factor**depth


class Tally:
    """N(A) and Y(A): the histogram of a stream's labels in a cell, or their moments."""

    def __init__(self, n_classes: int) -> None:
        self.n = 0.0
        self.classes = [0.0] * n_classes
        self.total = self.squares = 0.0

    def add(self, y: float, w: float) -> None:
        self.n += w
        if self.classes:
            self.classes[int(y)] += w
        else:
            self.total += w * y
            self.squares += w * y * y

    def squared_error(self) -> float:
        return max(self.squares - self.total * self.total / self.n, 0.0) if self.n else 0.0

    def impurity(self, criterion: str) -> float:
        """Return n times the impurity."""
        if criterion == "squared_error":
            return self.squared_error()
        if criterion == "gini":
            return self.n - sum(c * c for c in self.classes) / self.n

        def f(x: float) -> int:
            return round(x * math.log(x) / math.log(2.0) * UNITS) if x > 0 else 0

        return (f(self.n) - sum(f(c) for c in self.classes)) / UNITS

    def error(self) -> Fraction | float:
        if not self.classes:
            return self.squared_error()
        return Fraction(self.n) - max(map(Fraction, self.classes))


@dataclass
class Child:
    """A candidate child: what both streams say of its cell."""

    estimation: Tally
    structure: Tally


@dataclass
class Split:
    """A candidate split."""

    feature: int
    threshold: float
    begun: float  # weight of the tree's estimation rows when it was made
    left: Child
    right: Child

    def child_of(self, x: list[float]) -> Child:
        return self.left if x[self.feature] <= self.threshold else self.right

    def gain(self, criterion: str) -> float:
        left, right = self.left.structure, self.right.structure
        if criterion == "hellinger":
            return hellinger(left.classes, right.classes)
        if not left.n or not right.n:
            return 0.0
        both = self.both()
        apart = left.impurity(criterion) + right.impurity(criterion)
        return (both.impurity(criterion) - apart) / both.n

    def both(self) -> Tally:
        left, right = self.left.structure, self.right.structure
        both = Tally(len(left.classes))
        both.n = left.n + right.n
        both.classes = [a + b for a, b in zip(left.classes, right.classes, strict=True)]
        both.total, both.squares = left.total + right.total, left.squares + right.squares
        return both


def hellinger(left: list[float], right: list[float]) -> float:
    """Return the distance between the shares of two classes on the two sides."""
    if min(left[0] + right[0], left[1] + right[1]) <= 0:
        return 0.0
    p, q = (left[c] / (left[c] + right[c]) for c in (0, 1))
    a, b = math.sqrt(p) - math.sqrt(q), math.sqrt(1.0 - p) - math.sqrt(1.0 - q)
    return math.sqrt(a * a + b * b)


@dataclass
class Node:
    """A leaf, or what it was before it was split."""

    number: int
    depth: int
    parent: Node | None
    begun: float
    estimation: Tally
    active: bool = False
    features: list[int] | None = None
    n_points: int = 0
    candidates: list[Split] = field(default_factory=list)
    feature: int = -1
    threshold: float = 0.0
    gain: float = 0.0
    left: Node | None = None
    right: Node | None = None


class ReferenceTree:
    """A tree that learns row by row."""

    def __init__(self, settings: Settings, seed: int, tree: int) -> None:
        self.settings, self.key = settings, tree_key(seed, tree)
        self.nodes: list[Node] = []
        self.weight = self.estimated = 0.0
        self.streams: list[str] = []  # of each row or repeat

    def learn(self, x: list[float], y: float, w: float) -> None:
        repeats = int(w) if w <= 256 and w == int(w) else 1
        for _ in range(repeats):
            unit = 1.0 if w <= 256 and w == int(w) else w
            self.take_in(x, y, unit)
            self.weight += unit

    def take_in(self, x: list[float], y: float, w: float) -> None:
        """Algorithm 1, the body of its loop."""
        p = self.settings
        if not self.nodes:
            self.nodes.append(Node(0, 0, None, 0.0, Tally(p.n_classes)))
            self.nodes[0].active = self.may_split()
        leaf = self.leaf_of(x)
        u = self.uniform(row_key(self.key, self.weight), 1)
        if u < p.structure:
            self.streams.append("structure")
            if leaf.active:
                self.structure(leaf, x, y, w)
        elif u < p.structure + p.ignored:
            self.streams.append("ignored")
        else:
            self.streams.append("estimation")
            self.estimated += w
            leaf.estimation.add(y, w)
            for candidate in leaf.candidates:
                candidate.child_of(x).estimation.add(y, w)

    def structure(self, leaf: Node, x: list[float], y: float, w: float) -> None:
        p = self.settings
        if leaf.features is None:
            leaf.features = self.draw_features(leaf.number)
        if leaf.n_points < p.n_points:
            leaf.n_points += 1
            for j in leaf.features:
                children = [Child(Tally(p.n_classes), Tally(p.n_classes)) for _ in range(2)]
                leaf.candidates.append(Split(j, x[j], self.estimated, *children))
        for candidate in leaf.candidates:
            candidate.child_of(x).structure.add(y, w)
        valid = [s for s in leaf.candidates if self.is_valid(leaf, s)]
        if not valid:
            return
        best = valid[0]
        for s in valid:
            if s.gain(p.criterion) >= best.gain(p.criterion):
                best = s
        unit = 1.0
        if p.criterion == "squared_error":
            unit = best.both().squared_error() / best.both().n
        should = best.gain(p.criterion) > p.min_gain * unit
        if should or leaf.estimation.n >= p.ratio * p.alpha(leaf.depth):
            self.split(leaf, best)

    def is_valid(self, leaf: Node, s: Split) -> bool:
        alpha = self.settings.alpha(leaf.depth)
        return s.left.estimation.n >= alpha and s.right.estimation.n >= alpha

    def split(self, leaf: Node, s: Split) -> None:
        leaf.feature, leaf.threshold = s.feature, s.threshold
        leaf.gain = max(s.gain(self.settings.criterion), 0.0) * s.both().n
        for side in ("left", "right"):
            estimation = getattr(s, side).estimation
            made = Node(len(self.nodes), leaf.depth + 1, leaf, s.begun, estimation)
            setattr(leaf, side, made)
            self.nodes.append(made)
        leaf.active, leaf.candidates = False, []
        if not self.may_split():
            for node in self.nodes:
                node.active, node.candidates = False, []
            return
        limit = self.settings.max_fringe
        while True:
            waiting = [v for v in self.nodes if v.left is None and not v.active]
            n_active = sum(v.active for v in self.nodes)
            if not waiting or (limit is not None and n_active >= limit):
                return
            max(waiting, key=self.worth).active = True  # the first of the largest

    def may_split(self) -> bool:
        limit = self.settings.max_nodes
        return limit is None or len(self.nodes) + 2 <= limit

    def worth(self, leaf: Node) -> Fraction:
        """Section 3.6: p-hat times e-hat."""
        n, error = Fraction(leaf.estimation.n), Fraction(leaf.estimation.error())
        p_hat = n / (Fraction(self.estimated) - Fraction(leaf.begun))
        return p_hat * (error / n)

    def leaf_of(self, x: list[float]) -> Node:
        node = self.nodes[0]
        while node.left is not None and node.right is not None:
            node = node.left if x[node.feature] <= node.threshold else node.right
        return node

    @staticmethod
    def uniform(key: int, k: int) -> float:
        return ((mix64((key + k * GOLDEN) % MODULUS) >> 11) + 0.5) * 2.0**-53

    def draw_features(self, number: int) -> list[int]:
        """min(1 + Poisson, D) features, each set of so many as likely."""
        key = mix64(self.key ^ mix64((MODULUS - 1 - number + GOLDEN) % MODULUS))
        draws = iter(self.uniform(key, k) for k in range(1, 10**6))
        wanted, clock = 1, -math.log(next(draws))
        while clock <= self.settings.rate and wanted < self.settings.n_features:
            wanted += 1
            clock -= math.log(next(draws))
        chosen: list[int] = []
        for j in range(self.settings.n_features):
            if next(draws) * (self.settings.n_features - j) < wanted - len(chosen):
                chosen.append(j)
        return chosen
