"""Regret of a tree against its own prunings, on streams made to be hard for it.

References: Mourtada, Gaiffas, Scornet (2021), Algorithm 3, Lemma 1 and Corollary 1; Krichevsky and
Trofimov (1981) in the form of Tjalkens et al. (1993).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dmondrian import AMFClassifier
from tests.reference.amf import Node, ReferenceTree
from tests.reference.closed_form import tree_of

LOG_2 = math.log(2.0)
N_ROWS = 70


def amf(**changes: object) -> AMFClassifier:
    """Return one tree as the theory has it."""
    options = {"n_estimators": 1, "alpha": 0.5, "charge_opening": True, "domain": "cube"}
    return AMFClassifier(**{**options, "predict_extension": "expected", **changes})


def points_of(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Return rows of the cube: never seen before, near those seen before, or some of each."""
    d = int(rng.integers(1, 4))
    X = rng.random((N_ROWS, d))
    if kind != "spread":  # many cuts lie between the leaf of one point and the next point's cell
        source = rng.integers(0, 8, N_ROWS)
        X = np.clip(
            X[source] + 10.0 ** rng.uniform(-7, -2, X.shape) * rng.choice([-1, 1], X.shape), 0, 1
        )
    if kind == "repeated":
        X = X[rng.integers(0, N_ROWS // 2, N_ROWS)]
    return X.astype(np.float32)


def play(kind: str, seed: int, n_classes: int) -> tuple[float, ReferenceTree]:
    """Return the log loss of a tree whose every label is its least likely one, and the tree."""
    rng = np.random.default_rng([seed, n_classes])
    X, labels = points_of(kind, rng), np.arange(n_classes)
    forest = amf(random_state=seed)
    loss = 0.0
    for i, x in enumerate(X):
        p = forest.predict_proba(x[None])[0] if i else np.full(n_classes, 1.0 / n_classes)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        y = labels[p.argmin()] if rng.random() < 0.8 else rng.choice(labels)
        loss -= math.log(p[y])
        forest.partial_fit(x[None], [y], classes=labels)
    return loss, tree_of(forest.nodes(0), alpha=0.5, charge_opening=True)


def least(node: Node, of_leaf: Callable[[Node], float]) -> float:
    """Return the least over prunings of the sum over their leaves, plus log 2 for each node."""
    own = of_leaf(node) + LOG_2
    if node.left is None or node.right is None:
        return own
    return min(own, LOG_2 + least(node.left, of_leaf) + least(node.right, of_leaf))


def best_constant(node: Node) -> float:
    """Return the log loss of the node's own frequencies, plus what Lemma 5 adds to it."""
    counts = np.array(node.memory.counts)
    n = counts.sum()
    if n == 0.0:
        return 0.0
    seen = counts[counts > 0.0]
    return float(-(seen * np.log(seen / n)).sum() + 0.5 * (len(counts) - 1) * math.log(4.0 * n))


@pytest.mark.parametrize("kind", ["spread", "near", "repeated"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_classes", [2, 5])
def test_no_pruning_is_better_by_more_than_its_price(kind: str, seed: int, n_classes: int) -> None:
    loss, tree = play(kind, seed, n_classes)
    assert tree.root is not None
    assert loss == pytest.approx(-tree.root.log_subtree, abs=1e-9)
    assert loss <= least(tree.root, lambda node: -node.log_w) + 1e-9  # Lemma 1
    assert loss <= least(tree.root, best_constant) + 1e-9  # Corollary 1


def test_a_point_beside_the_only_row_is_forecast_as_algorithm_3_does() -> None:
    forest = amf(random_state=0).partial_fit([[0.1]], [0], classes=[0, 1])
    learned = forest.nodes(0)
    n_splits = set()
    for x in np.linspace(0.0, 1.0, 32, dtype=np.float32):
        own = amf(random_state=0).partial_fit([[0.1]], [0], classes=[0, 1])
        own.partial_fit([[x]], [1])
        k = (len(own.nodes(0)["left"]) - 1) // 2
        n_splits.add(k)
        expected = (1.0 - 0.5**k) * 0.75 + 0.5**k * 0.5
        assert forest.predict_proba([[x]])[0, 0] == pytest.approx(expected, abs=1e-12)
        depth = sum(0.5**i for i in range(1, k + 1))
        assert forest.weighted_depth([[x]])[0] == pytest.approx(depth, abs=1e-12)
    assert {1, 2} < n_splits
    assert all(
        (learned[name] == own).all() for name, own in forest.nodes(0).items() if name != "root"
    )
    as_stored = amf(random_state=0, predict_extension="leaf").partial_fit(
        [[0.1]], [0], classes=[0, 1]
    )
    assert as_stored.predict_proba([[0.9]])[0, 0] == 0.75
