"""Gradient boosting on bins, written from its definition for the eye, not for speed.

Shares no code with the package but its logarithm and exponential, and, where many sets of a stream
follow each other (:func:`sets_of`), the fits that the rest of this file is compared with. Sums of
gradients are Python's whole numbers; each leaf looks at its own rows anew, without histograms of
other leaves.

References
----------
Friedman (2001), "Greedy function approximation: a gradient boosting machine", Annals of Statistics
29; Chen, Guestrin (2016), "XGBoost: a scalable tree boosting system", KDD, section 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.boosting.boosted_stream import most_rounds_of, settings_of
from dmondrian.boosting.boosting_kernels import Trees
from dmondrian.tree.keyed_random import exp, log

Row = Sequence[float]


@dataclass(frozen=True)
class Settings:
    n_rounds: int
    n_leaves: int
    rate: float
    l2: float
    least_rows: int
    least_curvature: float
    largest_step: float


@dataclass
class Leaf:
    rows: list[int]
    number: int
    low: float = -math.inf  # bounds of what is answered, before the rate
    high: float = math.inf
    answer: float = 0.0


@dataclass
class Split:
    column: int
    threshold: float
    left: Leaf | Split
    right: Leaf | Split


def cuts_of(values: Sequence[float], most: int) -> list[float]:
    """Return where a column is cut: at quantiles if there are many values; large ones alone."""
    ordered = sorted(values)
    n = len(ordered)
    ends = [i for i in range(n - 1) if ordered[i] < ordered[i + 1]]
    if len(ends) >= most:
        rows = {value: ordered.count(value) for value in set(ordered)}
        large = {value for value in rows if rows[value] >= 4 * n / most}
        others = [value for value in ordered if value not in large]
        n_parts = most - 2 * len(large)
        part = {value: others.index(value) * n_parts // len(others) for value in set(others)}
        ends = [
            i
            for i in ends
            if {ordered[i], ordered[i + 1]} & large or part[ordered[i]] < part[ordered[i + 1]]
        ]
    found = []
    for i in ends:
        middle = float(np.float32((ordered[i] + ordered[i + 1]) * 0.5))
        found.append(middle if middle < ordered[i + 1] else ordered[i])
    return found


def near_labels(y: Sequence[float]) -> list[float]:
    """Return numbers as sets are fitted to them: none farther off than the span of the near ones.

    Near are all but one in 256 to either side, and at least all but one.
    """
    n = len(y)
    far = max(1, n // 256)
    near = sorted(y)[far : n - far]
    if not near or near[0] == near[-1]:
        return list(y)
    span = near[-1] - near[0]
    return [min(max(label, near[0] - span), near[-1] + span) for label in y]


class ReferenceBoostedSet:
    """Sum of trees' log odds; ``trees`` are pairs of an output and a tree."""

    largest = 1.0  # gradient of a row of weight 1

    def __init__(
        self, X: Sequence[Row], y: Sequence[float], w: Sequence[float], n_classes: int,
        its: Settings, most_bins: int, monotone: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.monotone = monotone
        self.X, self.y, self.w, self.n_classes, self.its = X, y, w, n_classes, its
        self.cuts = [cuts_of(column, most_bins) for column in zip(*X, strict=True)]
        self.per_unit = 2.0 ** min(46 - math.frexp(self.total(w) * self.largest)[1], 1000)
        outputs = self.begin()
        self.trees: list[tuple[int, Leaf | Split]] = []
        scores = [list(self.first) for _ in X]
        for _ in range(its.n_rounds):
            before = [list(row) for row in scores]
            grown = [(c, *self.grow(c, before)) for c in outputs]
            if all(isinstance(tree, Leaf) for _, tree, _ in grown):
                break
            for c, tree, leaves in grown:
                self.trees.append((c, tree))
                for leaf in leaves:
                    for r in leaf.rows:
                        scores[r][c] += leaf.answer

    def begin(self) -> list[int]:
        """Find the first scores; return the outputs that trees are grown for."""
        k = self.n_classes
        weights = [
            self.total(v for v, c in zip(self.w, self.y, strict=True) if c == i) for i in range(k)
        ]
        whole = self.total(weights) + 0.5 * k
        logs = [log((weight + 0.5) / whole) for weight in weights]
        present = sorted({int(label) for label in self.y})
        self.first = [0.0, logs[1] - logs[0]] if k == 2 else logs
        if len(present) < 2:
            return []
        return [1] if k == 2 else present

    @staticmethod
    def total(values: object) -> float:
        found = 0.0
        for value in values:  # type: ignore[attr-defined]  # an iterable of floats
            found += value
        return found

    def probabilities(self, scores: Row) -> list[float]:
        """Return the probabilities of scores as a fit needs them."""
        if self.n_classes == 2:
            p = 1.0 / (1.0 + exp(-scores[1]))
            return [1.0 - p, p]
        top = max(scores)
        powers = [exp(score - top) for score in scores]
        whole = self.total(powers)
        return [power / whole for power in powers]

    def slope(self, scores: Row, label: float, c: int) -> tuple[float, float]:
        """Return the first and second derivative of the loss by score ``c``."""
        p = self.probabilities(scores)[c]
        curvature = p * (1.0 - p)
        if self.n_classes > 2:
            curvature *= self.n_classes / (self.n_classes - 1.0)
        return (p - 1.0 if label == c else p), curvature

    def grow(self, c: int, scores: list[list[float]]) -> tuple[Leaf | Split, list[Leaf]]:
        """Return a tree for the gradients of class ``c``, and its leaves."""
        g, h = [], []
        for row, label, weight in zip(scores, self.y, self.w, strict=True):
            slope, curvature = self.slope(row, label, c)
            g.append(math.floor(weight * slope * self.per_unit + 0.5))
            h.append(math.floor(weight * curvature * self.per_unit + 0.5))
        leaves = [Leaf(list(range(len(self.X))), 0)]
        root: Leaf | Split = leaves[0]
        parents: dict[int, tuple[Split, str]] = {}
        while len(leaves) < self.its.n_leaves:
            found = [self.best(leaf, g, h) for leaf in leaves]
            k = max(range(len(found)), key=lambda i: (found[i][0], -i))
            gain, column, cut = found[k]
            if gain <= 0.0:
                break
            old = leaves[k]
            under = [r for r in old.rows if self.X[r][column] <= cut]
            over = [r for r in old.rows if self.X[r][column] > cut]
            left = Leaf(under, k, old.low, old.high)
            right = Leaf(over, len(leaves), old.low, old.high)
            if direction := self.monotone[column] if self.monotone else 0:
                middle = 0.5 * self.step(left, g, h) + 0.5 * self.step(right, g, h)
                lower, upper = (left, right) if direction > 0 else (right, left)
                lower.high = upper.low = middle
            split = Split(column, cut, left, right)
            if k in parents:
                setattr(*parents[k], split)
            else:
                root = split
            parents[k], parents[len(leaves)] = (split, "left"), (split, "right")
            leaves[k] = left
            leaves.append(right)
        for leaf in leaves:
            step, most = self.step(leaf, g, h), self.its.largest_step
            leaf.answer = self.its.rate * max(-most, min(most, step))
        return root, leaves

    def step(self, leaf: Leaf, g: list[int], h: list[int]) -> float:
        """Return what a leaf answers within its bounds, before the rate."""
        up, down = (sum(part[r] for r in leaf.rows) / self.per_unit for part in (g, h))
        return max(leaf.low, min(leaf.high, -up / (down + self.its.l2)))

    def best(self, leaf: Leaf, g: list[int], h: list[int]) -> tuple[float, int, float]:
        """Return gain, column and cut of the best split of a leaf; gain 0 for none."""
        its, best, rows = self.its, (0.0, 0, 0.0), leaf.rows

        def score(some: list[int]) -> tuple[float, float]:
            up, down = (sum(part[r] for r in some) / self.per_unit for part in (g, h))
            if self.monotone:
                step = self.step(Leaf(some, 0, leaf.low, leaf.high), g, h)
                return -step * (2.0 * up + (down + its.l2) * step), down
            return up * up / (down + its.l2), down

        own = score(rows)[0]
        for column, cuts in enumerate(self.cuts):
            for cut in cuts:
                left = [r for r in rows if self.X[r][column] <= cut]
                right = [r for r in rows if self.X[r][column] > cut]
                if min(len(left), len(right)) < its.least_rows:
                    continue
                (a, low), (b, high) = score(left), score(right)
                if min(low, high) < its.least_curvature:
                    continue
                if self.monotone:
                    sides = (Leaf(some, 0, leaf.low, leaf.high) for some in (left, right))
                    down_here, up_here = (self.step(side, g, h) for side in sides)
                    if self.monotone[column] * (up_here - down_here) < 0.0:
                        continue
                if a + b - own > best[0]:
                    best = a + b - own, column, cut
        return best

    def scores(self, x: Row) -> list[float]:
        """Return what trees add up to at a row."""
        scores = list(self.first)
        for c, tree in self.trees:
            at = tree
            while isinstance(at, Split):
                at = at.left if x[at.column] <= at.threshold else at.right
            scores[c] += at.answer
        return scores

    def answer(self, x: Row) -> list[float]:
        """Return the probabilities of classes at a row."""
        scores = self.scores(x)
        if self.n_classes == 2:
            odds = exp(-abs(scores[1]))
            likely = 1.0 / (1.0 + odds)
            pair = [odds * likely, likely]
            return pair if scores[1] >= 0.0 else pair[::-1]
        return self.probabilities(scores)

    def loss(self, x: Row, label: float) -> float:
        """Return what its answer loses at a label."""
        scores = self.scores(x)
        if self.n_classes == 2:
            towards = scores[1] if label == 1 else -scores[1]
            return max(-towards, 0.0) + log(1.0 + exp(-abs(towards)))
        top = max(scores)
        return top + log(self.total(exp(score - top) for score in scores)) - scores[int(label)]


class ReferenceBoostedNumbers(ReferenceBoostedSet):
    """Sum of trees' numbers, in units of a power of two about the mean."""

    largest = 4.0

    def begin(self) -> list[int]:
        y, first = self.y, self.y[0]
        apart = self.total(v * (label - first) for v, label in zip(self.w, y, strict=True))
        self.center = first + apart / self.total(self.w)
        farthest = max(abs(label - self.center) for label in y)
        self.unit = 2.0 ** max(math.frexp(farthest)[1], -1000)
        self.first = [0.0]
        return [0] if farthest > 0.0 else []

    def slope(self, scores: Row, label: float, c: int) -> tuple[float, float]:
        error = scores[0] - (label - self.center) / self.unit
        return max(-self.largest, min(self.largest, error)), 1.0

    def loss(self, x: Row, label: float) -> float:
        in_units = min(max((label - self.center) / self.unit, -(2.0**20)), 2.0**20)
        error = abs(in_units - self.scores(x)[0])
        near = min(error, self.largest)
        return near * (error - 0.5 * near)

    def answer(self, x: Row) -> list[float]:
        """Return the number at a row."""
        return [self.center + self.unit * self.scores(x)[0]]


def leaves_in_order(tree: Leaf | Split) -> list[float]:
    """Return the answers of a tree's leaves, from left to right."""
    if isinstance(tree, Leaf):
        return [tree.answer]
    return list(itertools.chain(leaves_in_order(tree.left), leaves_in_order(tree.right)))


def rounds_after(
    newest: ReferenceBoostedSet, X: Sequence[Row], y: Sequence[float], w: Sequence[float],
    least: int, most: int,
) -> int | None:  # fmt: skip
    """Return how many rounds the next set has, by what rows lose after some of the newest one's."""
    outputs = len({c for c, _ in newest.trees})
    if not outputs:
        return None
    every, n = newest.trees, len(newest.trees) // outputs
    losses: dict[int, float] = {}
    for rounds in (max(1, n // 2), max(1, 3 * n // 4), n):
        newest.trees = every[: rounds * outputs]
        losses[rounds] = newest.total(
            v * newest.loss(x, label) for x, label, v in zip(X, y, w, strict=True)
        )
    newest.trees = every
    best = min(losses, key=lambda rounds: (losses[rounds], rounds))
    return min(max(best if best < n else 3 * n // 2, least), most)


def births_until(n: int) -> list[int]:
    """Return the rows before which sets are born, of the first ``n``: by the rule as it stands."""
    found = []
    for b in range(64, n + 1):
        power = 1
        while 2 * power <= b:
            power *= 2
        if b % min(16_384, power // 4) == 0:
            found.append(b)
    return found


def sets_of(
    births: Sequence[int],
    X: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    n_classes: int,
    monotone: Sequence[int] = (),
) -> list[BoostedSet]:
    """Return the package's sets of these births, whose rounds answers alone find.

    Those of the one before, to rows since the birth before this one, which may have had no set.
    """
    found: list[BoostedSet] = []
    for birth in births:
        growing = settings_of(n_classes)
        if found and len(found[-1].trees.outputs):
            since, newest = slice(births_until(birth)[-2], birth), found[-1]
            n = len(newest.trees.outputs) // len(set(newest.trees.outputs.tolist()))
            losses = {
                rounds: float(
                    w[since] @ _losses(_first_rounds(newest, rounds, n), X[since], y[since])
                )
                for rounds in (max(1, n // 2), max(1, 3 * n // 4), n)
            }
            best = min(losses, key=lambda rounds: (losses[rounds], rounds))
            least = settings_of(n_classes).n_rounds if n_classes else 15
            most = most_rounds_of(n_classes, X.shape[1])
            rounds = min(max(best if best < n else 3 * n // 2, least), most)
            growing = growing._replace(n_rounds=rounds)
        labels = y[:birth] if n_classes else np.array(near_labels(y[:birth].tolist()))
        found.append(BoostedSet.fit(X[:birth], labels, w[:birth], n_classes, growing, monotone))
    return found


def _first_rounds(whole: BoostedSet, rounds: int, n: int) -> BoostedSet:
    """Return a set of the first rounds of ``n``."""
    stop = rounds * len(whole.trees.outputs) // n
    trees = Trees(*(part[:stop].copy() for part in whole.trees))
    return BoostedSet(trees, whole.first_scores, whole.scale)


def _losses(known: BoostedSet, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return what a set's answers lose at labels."""
    answers = known.answer(X)
    if not known.scale:
        return -np.log(answers[np.arange(len(y)), y.astype(int)])  # type: ignore[no-any-return]  # an array
    error = np.abs(y - answers[:, 0]) / known.scale
    near = np.minimum(error, 4.0)
    return near * (error - 0.5 * near)  # type: ignore[no-any-return]  # an array
