"""Oracle O7: a grown tree leaves exponential, uniform and proportional residuals.

On trees grown online in several row orders this is the theorem that online equals batch. The
same laws are shown to refuse trees that are wrong in the ways public codes have been wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.laws.grow import grow_forest, nodes_of, nodes_of_reference, p_values, residuals
from tests.reference.amf import Node, ReferenceTree
from tests.reference.draws import RowDraws
from tests.reference.statistics import Counts

# Seeds are fixed, so a law either holds for good or not; the level only sets how rare a draw the
# fixed ones may be.
LEVEL = 1e-4
ORDERS = ("as drawn", "sorted", "outside in", "one cluster after the other")


def cloud(n: int, d: int, seed: int) -> np.ndarray:
    """Return two clusters of rows with columns of unlike scales."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.geomspace(0.05, 5.0, d)
    X[: n // 2, 0] += 3.0
    return rng.permutation(X).astype(np.float32)


def ordered(X: np.ndarray, order: str) -> np.ndarray:
    """Return the rows in one of the orders in which a stream may come."""
    if order == "sorted":
        return X[np.argsort(X[:, -1])]
    if order == "outside in":
        return X[np.argsort(-np.abs(X - X.mean(axis=0)).sum(axis=1))]
    if order == "one cluster after the other":
        return X[np.argsort(X[:, 0] > 1.5, kind="stable")]
    return X


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("d", [1, 4, 11])
def test_residuals_have_their_laws_in_any_row_order(order: str, d: int) -> None:
    X = ordered(cloud(100, d, seed=d), order)
    found = residuals(nodes_of(grow_forest(X, n_trees=80, seed=d)))
    assert len(found.waits) == 80 * 99
    for law, p in p_values(found).items():
        assert p > LEVEL, law


@pytest.mark.parametrize("order", ORDERS)
def test_residuals_near_each_other_are_independent(order: str) -> None:
    """A parent's wait depends on nothing of its child's: no box is shared."""
    X = ordered(cloud(100, 3, seed=9), order)
    above, below = [], []
    for nodes in nodes_of(grow_forest(X, n_trees=80, seed=9)):
        internal = np.flatnonzero((nodes["left"] >= 0) & (nodes["parent"] >= 0))
        waits = np.full(len(nodes["left"]), np.nan)
        every = np.flatnonzero(nodes["left"] >= 0)
        waits[every] = residuals_in_order(nodes, every)
        above.append(waits[nodes["parent"][internal]])
        below.append(waits[internal])
    correlation = np.corrcoef(np.concatenate(above), np.concatenate(below))[0, 1]
    assert abs(correlation) < 4.0 / np.sqrt(sum(map(len, above)))


def residuals_in_order(nodes: dict[str, np.ndarray], internal: np.ndarray) -> np.ndarray:
    """Return the waits of one tree, node by node."""
    waits = residuals([nodes]).waits
    assert len(waits) == len(internal)
    return waits


class StaleBoxes(ReferenceTree):
    """Wrong on purpose: nodes with children forget to stretch."""

    def stretch(self, node: Node, x: Sequence[np.float32]) -> None:
        if node.is_leaf or len(self.nodes) == node.number + 2:
            super().stretch(node, x)


class LostParentTime(ReferenceTree):
    """Wrong on purpose: every wait counts from zero."""

    def split_time(self, node: Node, rate: float, draws: RowDraws) -> float:
        return super().split_time(node, rate, draws) - node.time_above


class NoRandomTime(ReferenceTree):
    """Wrong on purpose: every wait is the mean wait."""

    def split_time(self, node: Node, rate: float, draws: RowDraws) -> float:
        draws.uniform()
        return node.time_above + 1.0 / rate


class CutInTheMiddle(ReferenceTree):
    """Wrong on purpose: a threshold that is not random."""

    def extend(self, x: Sequence[np.float32], y: float) -> tuple[Node, bool]:
        leaf, opens = super().extend(x, y)
        if opens and leaf.parent is not None:
            above = leaf.parent
            assert above.left is not None
            assert above.right is not None
            j = above.feature
            above.threshold = np.float32((above.left.upper[j] + above.right.lower[j]) / 2)
        return leaf, opens


BROKEN = {
    StaleBoxes: ("waits (KS)", "waits (mean)"),
    LostParentTime: ("waits (KS)", "waits (mean)"),
    NoRandomTime: ("waits (KS)", "waits (chi-square)"),
    CutInTheMiddle: ("cuts (KS)",),
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_the_laws_refuse_a_broken_tree(kind: type[ReferenceTree]) -> None:
    X = ordered(cloud(50, 3, seed=1), "one cluster after the other")
    trees = []
    for number in range(20):
        tree = kind(Counts(2, 0.5, True), seed=0, tree=number)
        for x in X:
            tree.learn(list(x), 0.0)
        trees.append(nodes_of_reference(tree))
    found = p_values(residuals(trees))
    for law in BROKEN[kind]:
        assert found[law] < 1e-6, law


def test_the_laws_accept_the_reference() -> None:
    X = ordered(cloud(50, 3, seed=1), "one cluster after the other")
    trees = []
    for number in range(20):
        tree = ReferenceTree(Counts(2, 0.5, True), seed=0, tree=number)
        for x in X:
            tree.learn(list(x), 0.0)
        trees.append(nodes_of_reference(tree))
    for law, p in p_values(residuals(trees)).items():
        assert p > LEVEL, law
