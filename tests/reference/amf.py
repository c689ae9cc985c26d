"""AMF on the range of the data, written from the paper for the eye, not for speed.

Explicit node objects with an explicit cumulated price, an explicit log weight ``log_w`` (minus the
learning rate times that price) and an explicit log weight of the subtree ``log_subtree`` (the
paper's W), recomputed along the whole path after every change. Relies on :mod:`draws` and
:mod:`statistics` of this folder and on NumPy's float32; shares no code with the package.

References
----------
Mourtada, Gaiffas, Scornet (2021), Algorithms 3 to 6; Lakshminarayanan, Roy, Teh (2014).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .draws import RowDraws
from .statistics import Counts, Moments

Memory = Counts | Moments
LOG_2 = math.log(2.0)


@dataclass(eq=False)
class Node:
    """A cell that has seen rows: its box, its split (if any), its memory and its weights."""

    number: int
    memory: Memory
    lower: list[np.float32]
    upper: list[np.float32]
    parent: Node | None = None
    left: Node | None = None
    right: Node | None = None
    feature: int = -1
    threshold: np.float32 | None = None
    time: float = math.inf
    price: float = 0.0
    log_w: float = 0.0
    log_subtree: float = 0.0
    n_rows: float = 0.0

    @property
    def is_leaf(self) -> bool:
        return self.left is None

    @property
    def time_above(self) -> float:
        """Split time of the parent: when this cell came into being."""
        return 0.0 if self.parent is None else self.parent.time

    @property
    def log_stop(self) -> float:
        """Log posterior probability of stopping here, given that this node is reached."""
        return 0.0 if self.is_leaf else self.log_w - LOG_2 - self.log_subtree

    def child(self, x: Sequence[np.float32]) -> Node:
        assert self.left is not None
        assert self.right is not None
        return self.left if x[self.feature] <= self.threshold else self.right


def extensions(node: Node, x: Sequence[np.float32]) -> list[float]:
    """Return how far x lies outside the box, per feature; float64 holds the differences."""
    found = []
    for lower, upper, value in zip(node.lower, node.upper, x, strict=True):
        below, above = float(lower) - float(value), float(value) - float(upper)
        found.append(max(below, above, 0.0))
    return found


def sum_in_lanes(values: Sequence[float]) -> float:
    """Return the sum in the fixed order of eight lanes."""
    lane = [0.0] * 8
    for j, value in enumerate(values):
        lane[j % 8] += value
    even = (lane[0] + lane[4]) + (lane[2] + lane[6])
    odd = (lane[1] + lane[5]) + (lane[3] + lane[7])
    return even + odd


def log_add(a: float, b: float) -> float:
    """Return log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high))


def weigh(node: Node) -> None:
    """Set W of a node from its w and its children's W."""
    if node.left is None or node.right is None:
        node.log_subtree = node.log_w
    else:
        below = node.left.log_subtree + node.right.log_subtree
        node.log_subtree = log_add(node.log_w, below) - LOG_2


@dataclass
class ReferenceTree:
    """One AMF tree.

    `memory` is an empty memory (a prototype) of the root; `seed` and `tree` key its draws. `rate`
    is the learning rate; with `rate_per_variance` it is in units of one over the variance of the
    labels, taken anew when the total weight passes 2, 4, 8 and so on (0: the theory's 1 / (8 B^2),
    lowered to at most half as soon as the range of the labels, also of the next, asks for it).
    """

    memory: Memory
    seed: int
    tree: int = 0
    split_pure: bool = True
    max_nodes: int | None = None
    use_aggregation: bool = True
    rate: float = 1.0
    rate_per_variance: bool = False
    repeats_up_to: float = 256.0
    root: Node | None = None
    total_weight: float = 0.0
    nodes: list[Node] = field(default_factory=list)
    labels: list[tuple[float, float]] = field(default_factory=list)
    next_rate: float = 2.0

    def __post_init__(self) -> None:
        self.eta = 0.0 if self.rate_per_variance else self.rate

    # ---------------------------------------------------------------- learning

    def learn(self, x: Sequence[np.float32], y: float, weight: float = 1.0) -> None:
        """Learn one row; an integer weight is so many repeats, weight 0 is no row.

        Beyond `repeats_up_to` it is priced in one piece: the same price, but a learning rate in
        units of the variance is then taken once for all of the weight.
        """
        if weight == 0.0:
            return
        whole = float(weight).is_integer() and weight <= self.repeats_up_to
        repeats = [1.0] * int(weight) if whole else [weight]
        if self.rate_per_variance:
            self.renew_rate(y)
        leaf, opens = self.extend(x, y)
        for i, part in enumerate(repeats):
            if i > 0 and self.rate_per_variance:
                self.renew_rate(y)
            self.learn_label(leaf, y, part, opens and i == 0)

    def learn_label(self, leaf: Node, y: float, weight: float, opens: bool) -> None:
        """Price, then count, one row along its path; then weigh the path anew."""
        path = self.path_to_root(leaf)
        for node in path:
            node.price += node.memory.price(y, weight, opens and node is leaf)
            node.log_w = -self.eta * node.price
        for node in path:
            node.memory.count(y, weight)
            node.n_rows += weight
        self.reweigh(leaf)
        self.total_weight += weight
        self.labels.append((y, weight))

    def renew_rate(self, y: float) -> None:
        """Take the learning rate from the labels so far; the theory's knows the next one, too."""
        if self.rate == 0.0:
            self.lower_rate(y)
            return
        if self.total_weight < self.next_rate:
            return
        first = self.labels[0][0]
        shifted = [(y - first, w) for y, w in self.labels]
        mean = math.fsum(w * z for z, w in shifted) / self.total_weight
        variance = math.fsum(w * (z - mean) ** 2 for z, w in shifted) / self.total_weight
        has_range = max(z for z, _ in shifted) > min(z for z, _ in shifted)
        self.eta = self.rate / variance if has_range else 0.0
        while self.next_rate <= self.total_weight:
            self.next_rate *= 2.0
        self._rebuild_weights()

    def lower_rate(self, y: float) -> None:
        """Lower the learning rate where it is above 1 / (8 B^2), to half or less."""
        labels = [y, *(label for label, _ in self.labels)]
        bound = (max(labels) - min(labels)) / 2.0
        if bound > 0.0 and (self.eta == 0.0 or self.eta * 8.0 * bound**2 > 1.0):
            most = 1.0 / (8.0 * bound**2)
            self.eta = most if self.eta == 0.0 else min(most, self.eta / 2.0)
            self._rebuild_weights()

    def _rebuild_weights(self) -> None:
        for node in self.nodes:
            node.log_w = -self.eta * node.price
        self.reweigh_all()

    def extend(self, x: Sequence[np.float32], y: float) -> tuple[Node, bool]:
        """Make a place for x, the label uncounted; return its leaf and whether it was created."""
        if self.root is None:
            self.root = self._new_node(self.memory.empty(None), x)
            return self.root, True
        draws = self.draws()
        node = self.root
        while True:
            outside = extensions(node, x)
            rate = sum_in_lanes(outside)
            if rate > 0.0 and self._may_split(node, y):
                time = self.split_time(node, rate, draws)
                if node.time_above < time < node.time:
                    return self._split_above(node, x, time, outside, rate, draws), True
            self.stretch(node, x)
            if node.is_leaf:
                return node, False
            node = node.child(x)

    def draws(self) -> RowDraws:
        """Return the draws of the next row."""
        return RowDraws(self.seed, self.tree, self.total_weight)

    def split_time(self, node: Node, rate: float, draws: RowDraws) -> float:
        """Return when the next split would come: an exponential wait after the parent's."""
        return node.time_above - math.log(draws.uniform()) / rate

    def _may_split(self, node: Node, y: float) -> bool:
        if self.max_nodes is not None and len(self.nodes) + 2 > self.max_nodes:
            return False
        return self.split_pure or not node.is_leaf or not node.memory.agrees(y)

    def stretch(self, node: Node, x: Sequence[np.float32]) -> None:
        """Make the box of a node hold x."""
        node.lower = [min(a, b) for a, b in zip(node.lower, x, strict=True)]
        node.upper = [max(a, b) for a, b in zip(node.upper, x, strict=True)]

    def _new_node(self, memory: Memory, x: Sequence[np.float32]) -> Node:
        node = Node(len(self.nodes), memory, list(x), list(x))
        self.nodes.append(node)
        return node

    def _split_above(
        self,
        node: Node,
        x: Sequence[np.float32],
        time: float,
        outside: Sequence[float],
        rate: float,
        draws: RowDraws,
    ) -> Node:
        """Insert a parent of `node` that splits it from a new leaf at x; return the leaf."""
        feature = choose_feature(outside, draws.uniform() * rate)
        above = self._new_node(node.memory.copy(), x)
        leaf = self._new_node(node.memory.empty(node.memory), x)
        above.time, above.feature = time, feature
        above.price, above.log_w, above.n_rows = node.price, node.log_w, node.n_rows
        above.lower, above.upper = list(node.lower), list(node.upper)
        self.stretch(above, x)
        new_leaf_is_right = x[feature] > node.upper[feature]
        edge = node.upper[feature] if new_leaf_is_right else node.lower[feature]
        above.threshold = cut_between(edge, x[feature], draws.uniform())
        above.left, above.right = (node, leaf) if new_leaf_is_right else (leaf, node)
        self._hang(above, node)
        leaf.parent = above
        self.reweigh(leaf)
        return leaf

    def _hang(self, above: Node, node: Node) -> None:
        above.parent, node.parent = node.parent, above
        if above.parent is None:
            self.root = above
        elif above.parent.left is node:
            above.parent.left = above
        else:
            above.parent.right = above

    # ---------------------------------------------------------------- weights

    def path_to_root(self, leaf: Node) -> list[Node]:
        path, node = [], leaf
        while node is not None:
            path.append(node)
            node = node.parent  # type: ignore[assignment]  # the loop ends above the root
        return path

    def reweigh(self, leaf: Node) -> None:
        """Recompute W along the path: w at a leaf, w / 2 + W_left W_right / 2 inside."""
        for node in self.path_to_root(leaf):
            weigh(node)

    def reweigh_all(self) -> None:
        """Recompute W of every node, children before parents."""
        for node in sorted(self.nodes, key=lambda node: -node.time):
            weigh(node)

    # ---------------------------------------------------------------- predicting

    def leaf_of(self, x: Sequence[np.float32]) -> Node:
        assert self.root is not None
        node = self.root
        while not node.is_leaf:
            node = node.child(x)
        return node

    def blend(self, leaf: Node, values: dict[int, Sequence[float]] | None = None) -> list[float]:
        """Return the posterior mean over prunings at a leaf (`values` instead of forecasts)."""

        def value_of(node: Node) -> Sequence[float]:
            return node.memory.forecast() if values is None else values[node.number]

        mixed = list(value_of(leaf))
        if not self.use_aggregation:
            return mixed
        for node in self.path_to_root(leaf)[1:]:
            stop = math.exp(node.log_stop)
            own = value_of(node)
            mixed = [stop * a + (1.0 - stop) * b for a, b in zip(own, mixed, strict=True)]
        return mixed

    def predict_leaf(self, x: Sequence[np.float32]) -> list[float]:
        """Return the blended prediction of the existing leaf."""
        if self.root is None:
            return self.memory.forecast()
        return self.blend(self.leaf_of(x))

    def predict_expected(self, x: Sequence[np.float32]) -> list[float]:
        """Return the expectation of Algorithm 6, by making each throw-away tree in turn."""
        if self.root is None:
            return self.memory.forecast()
        answer = [0.0] * len(self.memory.forecast())
        for probability, tree, leaf in self.extended_copies(x):
            blended = tree.blend(leaf)
            answer = [a + probability * b for a, b in zip(answer, blended, strict=True)]
        return answer

    def extended_copies(
        self, x: Sequence[np.float32]
    ) -> Iterator[tuple[float, ReferenceTree, Node]]:
        """Yield (probability, tree, leaf of x) of every place where x may branch off, or not."""
        assert self.root is not None
        remaining, node = 1.0, self.root
        while True:
            rate = sum_in_lanes(extensions(node, x))
            paused = node.is_leaf and not self.split_pure and node.memory.is_pure
            if rate > 0.0 and not paused:
                branch = -math.expm1(-rate * (node.time - node.time_above))
                yield (remaining * branch, *self._branched_copy(node, x))
                remaining *= 1.0 - branch
            if node.is_leaf:
                yield remaining, self, node
                return
            node = node.child(x)

    def _branched_copy(self, node: Node, x: Sequence[np.float32]) -> tuple[ReferenceTree, Node]:
        tree = copy.deepcopy(self)
        twin = tree.nodes[node.number]
        # The time and place of the cut change no prediction: any will do.
        draws = RowDraws(tree.seed, tree.tree, tree.total_weight)
        outside = extensions(twin, x)
        leaf = tree._split_above(twin, x, twin.time_above, outside, sum_in_lanes(outside), draws)
        return tree, leaf

    def weighted_depth(self, x: Sequence[np.float32]) -> float:
        """Return the posterior mean of the depth of x over prunings (M21 section 5.1)."""
        leaf = self.leaf_of(x)
        path = self.path_to_root(leaf)
        depths = {node.number: [float(len(path) - 1 - i)] for i, node in enumerate(path)}
        return self.blend(leaf, depths)[0]

    def distance(self, x: Sequence[np.float32]) -> float:
        """Return the sum of the extensions of x to the box of its leaf."""
        return sum_in_lanes(extensions(self.leaf_of(x), x))


def choose_feature(outside: Sequence[float], target: float) -> int:
    """Return the first feature whose running sum of extensions passes the target."""
    running, last = 0.0, -1
    for j, value in enumerate(outside):
        running += value
        if value > 0.0:
            last = j
            if running > target:
                return j
    return last


def cut_between(edge: np.float32, value: np.float32, u: float) -> np.float32:
    """Return a threshold between the box and the value that separates them strictly."""
    low, high = min(edge, value), max(edge, value)
    threshold = np.float32(float(low) + u * (float(high) - float(low)))
    if threshold >= high:
        threshold = np.nextafter(high, np.float32(-np.inf))
    return max(threshold, low)
