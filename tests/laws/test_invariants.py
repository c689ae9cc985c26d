"""Oracle O21: what every tree obeys after every row, and weights that stay exact for ever."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from dmondrian.forest.forest import Forest
from tests.laws.grow import Nodes, grow_forest, nodes_of, path_of
from tests.reference.cases import grid_stream, random_case
from tests.reference.closed_form import tree_of
from tests.reference.kernel import kernel_forest, log_odds
from tests.reference.prunings import number_of_prunings, prunings


def assert_sound(nodes: Nodes, X: np.ndarray, w: np.ndarray) -> None:
    """Check links, times, boxes and counts of a tree that learned rows X of weights w > 0."""
    n_nodes, root = len(nodes["left"]), int(nodes["root"])
    n_rows = np.zeros(n_nodes)
    lower = np.full((n_nodes, X.shape[1]), np.inf, np.float32)
    upper = -lower
    for x, weight in zip(X, w, strict=True):
        for v in path_of(nodes, x):
            n_rows[v] += weight
            lower[v], upper[v] = np.minimum(lower[v], x), np.maximum(upper[v], x)
    assert nodes["parent"][root] == -1
    assert n_rows[root] == w.sum()
    np.testing.assert_array_equal(nodes["n_rows"], n_rows)
    np.testing.assert_array_equal(nodes["counts"].sum(axis=1), n_rows)
    # Boxes are the smallest around the rows of the cell: lost and stale boxes show here.
    np.testing.assert_array_equal(nodes["lower"], lower)
    np.testing.assert_array_equal(nodes["upper"], upper)
    for v in range(n_nodes):
        left, right = int(nodes["left"][v]), int(nodes["right"][v])
        if left < 0:
            assert right == nodes["feature"][v] == -1
            assert nodes["time"][v] == math.inf
            continue
        assert nodes["parent"][left] == nodes["parent"][right] == v
        assert 0.0 < nodes["time"][v] < min(nodes["time"][left], nodes["time"][right])
        assert nodes["counts"][v].tolist() == (
            (nodes["counts"][left] + nodes["counts"][right]).tolist()
        )
        j = nodes["feature"][v]
        assert nodes["upper"][left, j] <= nodes["threshold"][v] < nodes["lower"][right, j]


@pytest.mark.parametrize("number", range(60))
def test_trees_are_sound_after_every_row(number: int) -> None:
    case = random_case(number)
    forest = Forest(kernel_forest(case).parameters, [case.tree])
    weights = np.ones(len(case.X)) if case.w is None else case.w
    seen = 0
    for i in range(len(case.X)):
        before = nodes_of(forest)[0] if seen else None
        forest.update(case.X[i : i + 1], case.y[i : i + 1], weights[i : i + 1])
        seen += weights[i] > 0.0
        if not seen:
            continue
        (nodes,) = nodes_of(forest)
        assert len(nodes["left"]) <= (case.max_nodes or 10**9)
        rows = weights[: i + 1] > 0.0
        if i % 7 == 0 or i == len(case.X) - 1:
            assert_sound(nodes, case.X[: i + 1][rows], weights[: i + 1][rows])
        if before is not None:  # ids are permanent
            kept = len(before["left"])
            np.testing.assert_array_equal(nodes["time"][:kept], before["time"])
            np.testing.assert_array_equal(nodes["feature"][:kept], before["feature"])
            np.testing.assert_array_equal(nodes["threshold"][:kept], before["threshold"])


@pytest.mark.parametrize("expected_extension", [False, True])
def test_probabilities_are_inside_0_1_and_sum_to_1(expected_extension: bool) -> None:
    for number in range(60):
        case = random_case(number)
        forest = kernel_forest(case, expected_extension=expected_extension)
        far = np.float32(1e6) * np.sign(case.X[:5])
        p = forest.predict_sums(np.concatenate([case.X, far])).total
        assert (p > 0.0).all()
        assert (p < 1.0).all()
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=0, atol=1e-12)


@pytest.mark.parametrize("charge_opening", [False, True])
def test_the_blend_follows_from_the_counts_alone(charge_opening: bool) -> None:
    """O11 with O13: without watching it learn, the tree's counts give all its weights."""
    for number in range(60):
        drawn = random_case(number)
        case = dataclasses.replace(drawn, charge_opening=charge_opening, w=None)
        forest = kernel_forest(case)
        (nodes,) = nodes_of(forest)
        tree = tree_of(nodes, case.alpha, charge_opening)
        found = forest.predict_sums(case.X).total
        for x, p in zip(case.X, found, strict=True):
            np.testing.assert_allclose(p, tree.predict_leaf(list(x)), rtol=1e-9)


def test_a_row_seen_before_costs_minus_log_of_the_prediction() -> None:
    """O14 on growing trees: new rows change the structure, repeats are the probes."""
    for number in range(25):
        drawn = random_case(number)
        case = dataclasses.replace(drawn, charge_opening=True, w=None, max_nodes=None)
        forest = Forest(dataclasses.replace(kernel_forest(case).parameters), [case.tree])
        rng = np.random.default_rng(number)
        for i in range(len(case.X)):
            forest.update(case.X[i : i + 1], case.y[i : i + 1])
            old = int(rng.integers(0, i + 1))
            x, y = case.X[old : old + 1], float(rng.integers(case.n_classes))
            before = log_total_weight(forest, case.alpha)
            predicted = forest.predict_sums(x).total[0, int(y)]
            n_nodes = forest.n_nodes
            forest.update(x, np.array([y]))
            assert forest.n_nodes == n_nodes
            paid = log_total_weight(forest, case.alpha) - before
            assert paid == pytest.approx(math.log(predicted), abs=1e-9)


def log_total_weight(forest: Forest, alpha: float) -> float:
    """Return log W of the root, from the counts."""
    root = tree_of(nodes_of(forest)[0], alpha, charge_opening=True).root
    assert root is not None
    return root.log_subtree


def test_regret_of_a_fixed_tree_against_every_pruning() -> None:
    """O15: once all points are known the log loss is -log of the growth of W."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, y = grid_stream(rng, n_points=5, d=2, n_rows=400, n_classes=3)
        points = np.unique(X, axis=0)
        start = grow_forest(points, n_classes=3, alpha=0.5, charge_opening=True, seed=seed)
        before = tree_of(nodes_of(start)[0], 0.5, charge_opening=True)
        loss, forest = 0.0, start
        for i in range(len(X)):
            loss -= math.log(forest.predict_sums(X[i : i + 1]).total[0, int(y[i])])
            forest.update(X[i : i + 1], y[i : i + 1])
        after = tree_of(nodes_of(forest)[0], 0.5, charge_opening=True)
        assert before.root is not None
        assert after.root is not None
        assert number_of_prunings(after.root) <= 677
        assert loss == pytest.approx(before.root.log_subtree - after.root.log_subtree, rel=1e-9)
        prior = {pruning.stops: pruning.log_weight for pruning in prunings(before.root)}
        for pruning in prunings(after.root):
            own = -sum(after.nodes[v].log_w - before.nodes[v].log_w for v in pruning.stops)
            unlikely = before.root.log_subtree - prior[pruning.stops]
            assert loss <= own + unlikely + 1e-6


@pytest.mark.parametrize("charge_opening", [False, True])
@pytest.mark.parametrize("n_classes", [2, 5])
def test_odds_stay_exact_over_many_rows(n_classes: int, charge_opening: bool) -> None:
    rng = np.random.default_rng(n_classes)
    X, y = grid_stream(rng, n_points=9, d=3, n_rows=200_000, n_classes=n_classes)
    forest = grow_forest(
        X, y, n_classes=n_classes, alpha=0.5, charge_opening=charge_opening, n_trees=2
    )
    _, states = forest.state()
    for nodes, arrays in zip(nodes_of(forest), states, strict=True):
        assert len(nodes["left"]) == 17
        tree = tree_of(nodes, 0.5, charge_opening)
        found = log_odds(arrays)
        assert np.isfinite(found).all()
        largest = 0.0
        for v, node in enumerate(tree.nodes):
            if node.left is not None and node.right is not None:
                expected = node.log_w - node.left.log_subtree - node.right.log_subtree
                largest = max(largest, abs(expected))
                assert found[v] == pytest.approx(expected, rel=1e-9, abs=1e-7)
        assert largest > 1000.0  # far beyond the exponents of a float64


@pytest.mark.parametrize("n_classes", [0, 2])
def test_huge_weights_keep_predictions_finite(n_classes: int) -> None:
    """A total weight of 10^9: odds leave every float, the forecasts must not."""
    rng = np.random.default_rng(2)
    X, y = grid_stream(rng, n_points=6, d=2, n_rows=60, n_classes=2)
    w = 10.0 ** rng.uniform(6.0, 7.5, size=len(X))
    forest = grow_forest(X, y, w=w, n_classes=n_classes, learning_rate=1.0)
    assert forest.total_weight > 1e8
    p = forest.predict_sums(X).total
    assert np.isfinite(p).all()
    assert (p >= 0.0).all()
    for x, found in zip(X, p, strict=True):
        here = (x == X).all(axis=1)
        np.testing.assert_allclose(
            found[-1], np.average(y[here], weights=w[here]), rtol=1e-5, atol=1e-5
        )
