"""A tree at a lifetime: every node whose split comes later is a leaf.

What such a tree predicts is written as the papers do, node by node and recursively: proportions,
votes, means, and interpolated Kneser-Ney smoothing with its branch-off prediction, whose
expected discount is integrated numerically. Shares no code with the package.

References
----------
Lakshminarayanan, Roy, Teh (2014), section 5; Mourtada, Gaiffas, Scornet (2017), Algorithm 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad

from .amf import Node, ReferenceTree, extensions, sum_in_lanes
from .draws import RowDraws
from .statistics import Counts


@dataclass
class LifetimeTree(ReferenceTree):
    """A reference tree that is not split after `lifetime`."""

    lifetime: float = math.inf

    def split_time(self, node: Node, rate: float, draws: RowDraws) -> float:
        time = super().split_time(node, rate, draws)
        return time if time <= self.lifetime else math.inf


@dataclass
class Pruned:
    """A grown tree, at a lifetime.

    `how` is "mean", "vote" or "hierarchy"; `expected` averages over where x may branch off;
    `prior` makes an empty cell predict 1/K or 0 and not what its parent does.
    """

    tree: ReferenceTree
    lifetime: float
    how: str = "mean"
    expected: bool = False
    prior: bool = False
    gamma: float = 1.0

    def is_leaf(self, node: Node) -> bool:
        return node.is_leaf or node.time > self.lifetime

    def path(self, x: Sequence[np.float32]) -> list[Node]:
        """Return the nodes from the root to the cell of x."""
        assert self.tree.root is not None
        path = [self.tree.root]
        while not self.is_leaf(path[-1]):
            path.append(path[-1].child(x))
        return path

    def predict(self, x: Sequence[np.float32]) -> list[float]:
        """Return class probabilities, or the mean."""
        path = self.path(x)
        predicted, alive = np.zeros(len(self.cell_predicts(path[0]))), 1.0
        for node in path if self.expected else []:
            rate = sum_in_lanes(extensions(node, x))
            paused = node.is_leaf and not self.tree.split_pure and node.memory.is_pure
            end = min(node.time, self.lifetime)
            if rate > 0.0 and not paused:
                off = -math.expm1(-rate * (end - node.time_above))
                predicted = predicted + alive * off * np.array(
                    self.branch_predicts(node, rate, end)
                )
                alive *= 1.0 - off
        return (predicted + alive * np.array(self.cell_predicts(path[-1]))).tolist()

    def cell_predicts(self, node: Node) -> list[float]:
        if self.how == "hierarchy":
            return self.smoothed(node)
        return self.voted(own_forecast(node))

    def branch_predicts(self, node: Node, rate: float, end: float) -> list[float]:
        """Return what an empty cell predicts that branches off above `node`."""
        if self.how != "hierarchy":
            own = own_forecast(node)
            empty = [1.0 / len(own) if isinstance(node.memory, Counts) else 0.0] * len(own)
            return self.voted(empty if self.prior else own)
        span = end - node.time_above
        both = rate + self.gamma  # in units of which the waits are integrated, far enough
        weight = quad(lambda t: math.exp(-t), 0.0, min(rate * span, 60.0), epsrel=1e-11)[0]
        decay = quad(lambda t: math.exp(-t), 0.0, min(both * span, 60.0), epsrel=1e-11)[0]
        decay *= rate / both
        tab = [min(c, 1.0) for c in self.customers(node)]
        own = [c / sum(tab) for c in tab]
        d = decay / weight
        above = self.above(node)
        return [(1.0 - d) * a + d * b for a, b in zip(own, above, strict=True)]

    def voted(self, forecast: list[float]) -> list[float]:
        if self.how != "vote":
            return forecast
        return [float(c == int(np.argmax(forecast))) for c in range(len(forecast))]

    def customers(self, node: Node) -> list[float]:
        """Return counts at a leaf, inside the sum of the children's tables."""
        assert isinstance(node.memory, Counts)
        if self.is_leaf(node):
            return node.memory.counts
        assert node.left is not None
        assert node.right is not None
        left, right = self.customers(node.left), self.customers(node.right)
        return [min(a, 1.0) + min(b, 1.0) for a, b in zip(left, right, strict=True)]

    def above(self, node: Node) -> list[float]:
        k = len(self.customers(node))
        return [1.0 / k] * k if node.parent is None else self.smoothed(node.parent)

    def smoothed(self, node: Node) -> list[float]:
        """Return G of interpolated Kneser-Ney."""
        counts = self.customers(node)
        end = min(node.time, self.lifetime)
        decay = math.exp(-self.gamma * (end - node.time_above))
        tab = [min(c, 1.0) for c in counts]
        kept = zip(counts, tab, self.above(node), strict=True)
        return [(n - decay * t + decay * sum(tab) * g) / sum(counts) for n, t, g in kept]


def own_forecast(node: Node) -> list[float]:
    """Return class proportions, or the mean label."""
    if isinstance(node.memory, Counts):
        return [c / node.memory.weight for c in node.memory.counts]
    return [node.memory.mean]
