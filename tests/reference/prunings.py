"""Brute force over all prunings of a small tree: what context-tree weighting must equal.

A pruning is a set of nodes at which to stop, one on every path from the root to a leaf. Its
prior weight is 2^-(its nodes that are not leaves of the full tree), counted together with the
nodes above them; its likelihood is the product of the weights w of its nodes.

References
----------
Mourtada, Gaiffas, Scornet (2021), equations 6 and 7 and Proposition 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .amf import Node


@dataclass(frozen=True)
class Pruning:
    """The log of prior times likelihood, and the nodes at which it stops."""

    log_weight: float
    stops: frozenset[int]


def prunings(node: Node) -> Iterator[Pruning]:
    """Yield every pruning of the subtree of `node`; there are a(v) = 1 + a(left) a(right)."""
    stop = frozenset([node.number])
    if node.left is None or node.right is None:
        yield Pruning(node.log_w, stop)
        return
    yield Pruning(math.log(0.5) + node.log_w, stop)
    for left in prunings(node.left):
        for right in prunings(node.right):
            together = math.log(0.5) + left.log_weight + right.log_weight
            yield Pruning(together, left.stops | right.stops)


def number_of_prunings(node: Node) -> int:
    """Return how many prunings the subtree of `node` has."""
    if node.left is None or node.right is None:
        return 1
    return 1 + number_of_prunings(node.left) * number_of_prunings(node.right)


def log_total(node: Node) -> float:
    """Return log of the sum over all prunings."""
    logs = [pruning.log_weight for pruning in prunings(node)]
    top = max(logs)
    return top + math.log(math.fsum(math.exp(value - top) for value in logs))


def posterior_mean(
    root: Node, path: Sequence[Node], value_of: Callable[[Node], Sequence[float]]
) -> list[float]:
    """Return the mean over prunings of the value of the node where `path` is stopped."""
    on_path = {node.number: value_of(node) for node in path}
    found = list(prunings(root))
    top = max(pruning.log_weight for pruning in found)
    total = 0.0
    mean = [0.0] * len(value_of(root))
    for pruning in found:
        weight = math.exp(pruning.log_weight - top)
        (stopped,) = pruning.stops & on_path.keys()
        total += weight
        mean = [m + weight * value for m, value in zip(mean, on_path[stopped], strict=True)]
    return [m / total for m in mean]
