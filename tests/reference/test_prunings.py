"""The reference equals brute force over prunings, closed forms and one-step identities."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest

from tests.reference.amf import Node, ReferenceTree
from tests.reference.cases import Case, random_case
from tests.reference.closed_form import log_kt
from tests.reference.prunings import log_total, number_of_prunings, posterior_mean, prunings
from tests.reference.statistics import Counts, Moments


def small_tree(case: Case, n_rows: int = 7, regression: bool = False) -> ReferenceTree:
    memory = (
        Moments(case.charge_opening)
        if regression
        else Counts(case.n_classes, case.alpha, case.charge_opening)
    )
    tree = ReferenceTree(
        memory,
        case.seed,
        case.tree,
        case.split_pure,
        case.max_nodes,
        rate=case.rate if regression else 1.0,
        rate_per_variance=regression,
    )
    for x, y in itertools.islice(zip(case.X, case.y, strict=True), n_rows):
        tree.learn(list(x), y)
    return tree


@pytest.mark.parametrize("regression", [False, True])
def test_weights_and_blends_are_sums_over_all_prunings(regression: bool) -> None:
    sizes = set()
    for number in range(60):
        case = random_case(number, regression)
        tree = small_tree(case, regression=regression)
        assert tree.root is not None
        if number_of_prunings(tree.root) > 2000:
            continue
        sizes.add(number_of_prunings(tree.root))
        assert tree.root.log_subtree == pytest.approx(log_total(tree.root), abs=1e-12)
        for x in case.X[:5]:
            leaf = tree.leaf_of(list(x))
            path = tree.path_to_root(leaf)
            brute = posterior_mean(tree.root, path, lambda node: node.memory.forecast())
            np.testing.assert_allclose(tree.predict_leaf(list(x)), brute, rtol=1e-12, atol=1e-14)
    assert len(sizes) > 4


def test_full_binary_trees_have_1_2_5_26_677_prunings() -> None:
    tree = ReferenceTree(Counts(2, 0.5, True), seed=0)
    points = np.arange(16, dtype=np.float32)
    for x in points:
        tree.learn([x], 0.0)
    assert tree.root is not None
    leaves = [node for node in tree.nodes if node.is_leaf]
    assert len(leaves) == 16
    assert sum(1 for _ in prunings(leaves[0])) == 1
    counts = []
    level = leaves
    for _ in range(4):  # a perfectly balanced tree over the same leaves
        joined = []
        for left, right in zip(level[::2], level[1::2], strict=True):
            parent = copy.copy(left)
            parent.left, parent.right = left, right
            joined.append(parent)
        level = joined
        counts.append(number_of_prunings(level[0]))
        assert sum(1 for _ in prunings(level[0])) == counts[-1]
    assert counts == [2, 5, 26, 677]


def test_a_node_weight_is_the_kt_closed_form_in_any_order() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        n_classes, alpha = int(rng.integers(2, 7)), float(rng.choice([0.01, 0.5, 2.0]))
        labels = rng.integers(0, n_classes, size=int(rng.integers(1, 80)))
        for order in (labels, rng.permutation(labels), np.sort(labels)):
            memory, log_w = Counts(n_classes, alpha, True), 0.0
            for y in order:
                log_w -= memory.price(y, 1.0, opens=False)
                memory.count(y, 1.0)
            assert log_w == pytest.approx(log_kt(memory.counts, alpha), rel=1e-11)


def test_a_weight_of_three_is_three_rows_and_halves_add_up() -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        once, often = Counts(3, 0.3, True), Counts(3, 0.3, True)
        one, many = 0.0, 0.0
        for y in rng.integers(0, 3, size=20):
            whole = float(rng.integers(2, 9))
            one -= once.price(y, whole, opens=False)
            once.count(y, whole)
            for part in (0.5, whole - 1.0, 0.5):
                many -= often.price(y, part, opens=False)
                often.count(y, part)
        assert one == pytest.approx(many, rel=1e-12)
        assert one == pytest.approx(log_kt(once.counts, 0.3), rel=1e-11)


def test_one_row_costs_minus_log_of_what_the_extended_tree_predicted() -> None:
    inserted_above_a_branch = 0
    for number in range(40):
        case = random_case(number)
        memory = Counts(case.n_classes, case.alpha, charge_opening=True)
        tree = ReferenceTree(memory, case.seed, case.tree, split_pure=True)
        for x, y in zip(case.X, case.y, strict=True):
            before = len(tree.nodes)
            leaf, opens = tree.extend(list(x), y)
            assert tree.root is not None
            prior = tree.root.log_subtree
            predicted = tree.blend(leaf)
            tree.learn_label(leaf, y, 1.0, opens)
            assert tree.root.log_subtree - prior == pytest.approx(
                math.log(predicted[int(y)]), abs=1e-11
            )
            assert sum(predicted) == pytest.approx(1.0, abs=1e-12)
            if len(tree.nodes) == before + 2:
                above = tree.nodes[before]
                assert above.left is not None
                assert above.right is not None
                sibling = above.left if above.right is leaf else above.right
                inserted_above_a_branch += not sibling.is_leaf
    assert inserted_above_a_branch > 100


def test_an_insertion_changes_a_subtree_weight_by_a_factor_within_half() -> None:
    """And the ancestors must know of it: keeping their old odds is not the sum over prunings."""
    reported_and_unreported_differ = 0
    for number in range(30):
        case = random_case(number)
        memory = Counts(case.n_classes, case.alpha, charge_opening=True)
        tree = ReferenceTree(memory, case.seed, case.tree, split_pure=True)
        for x, y in zip(case.X, case.y, strict=True):
            old = {node.number: node.log_subtree for node in tree.nodes}
            before = len(tree.nodes)
            tree.extend(list(x), y)
            if len(tree.nodes) == before + 2:
                above = tree.nodes[before]
                assert above.left is not None
                assert above.right is not None
                fresh = before + 1
                node = above.left if above.right.number == fresh else above.right
                factor = math.exp(above.log_subtree - old[node.number])
                assert 0.5 - 1e-12 <= factor <= 1.5 + 1e-12
                if node.is_leaf:
                    assert factor == pytest.approx(1.0, abs=1e-12)
                else:
                    stop = math.exp(node.log_stop)
                    assert factor == pytest.approx(stop + 0.5, rel=1e-9)
                    reported_and_unreported_differ += above.parent is not None
            tree.learn(list(x), y)
    assert reported_and_unreported_differ > 50


def test_kt_regret_is_at_most_half_of_k_minus_1_log_4n() -> None:
    for n_classes in (2, 3, 5):
        for n in (1, 2, 3, 10, 60):
            for cuts in itertools.combinations_with_replacement(
                sorted({0, 1, n // 4, n // 2, n - 1, n}), n_classes - 1
            ):
                counts = np.diff([0, *cuts, n]).astype(float)
                seen = counts[counts > 0]
                best = float((seen * np.log(seen / n)).sum())
                regret = best - log_kt(counts, 0.5)
                assert -1e-9 <= regret <= (n_classes - 1) / 2 * math.log(4 * n) + 1e-9


def test_squared_loss_of_the_blend_is_bounded_by_the_weights_when_eta_is_the_theory() -> None:
    """Exp-concavity: eta times each loss is at most the drop of log W (M21 Lemma 1)."""
    violated_at_a_large_rate = False
    for number in range(40):
        case = random_case(number, regression=True)
        bound = float(np.abs(case.y).max()) or 1.0
        for rate in (1.0 / (8.0 * bound**2), 8.0 / bound**2):
            tree = ReferenceTree(Moments(True), case.seed, case.tree, rate=rate)
            for x, y in zip(case.X, case.y, strict=True):
                leaf, opens = tree.extend(list(x), y)
                assert tree.root is not None
                prior, predicted = tree.root.log_subtree, tree.blend(leaf)[0]
                tree.learn_label(leaf, y, 1.0, opens)
                holds = rate * (y - predicted) ** 2 <= prior - tree.root.log_subtree + 1e-9
                if len(tree.labels) == 1:
                    continue  # nothing could be predicted of the first row
                if rate < 1.0 / bound**2:
                    assert holds
                else:
                    violated_at_a_large_rate |= not holds
    assert violated_at_a_large_rate


def test_regret_against_every_pruning_is_at_most_its_size_times_log_2() -> None:
    """On a fixed tree (M21 Lemma 1, Corollary 1): also against the best constants in its cells."""
    for number in range(40):
        case = random_case(number)
        tree = small_tree(case, n_rows=6)
        assert tree.root is not None
        if number_of_prunings(tree.root) > 700:
            continue
        size = len(tree.nodes)
        for node in tree.nodes:  # keep the structure, forget the labels
            node.memory = Counts(case.n_classes, 0.5, True)
            node.price = node.log_w = node.log_subtree = 0.0
        rng, loss = np.random.default_rng(number), 0.0
        for _ in range(60):  # rows seen before: the structure stands still
            x, y = list(case.X[rng.integers(len(case.X[:6]))]), 0.0
            if rng.random() < 0.5:
                y = float(rng.integers(case.n_classes))
            loss -= math.log(tree.predict_leaf(x)[int(y)])
            tree.learn(x, y)
        assert len(tree.nodes) == size
        assert loss == pytest.approx(-tree.root.log_subtree, rel=1e-10)
        for pruning in prunings(tree.root):
            stops = [tree.nodes[v] for v in pruning.stops]
            halves = 2 * len(stops) - 1 - sum(node.is_leaf for node in stops)
            own = -sum(node.log_w for node in stops)
            assert loss <= own + halves * math.log(2.0) + 1e-9
            assert loss <= best_constants(stops) + halves * math.log(2.0) + sum(
                (case.n_classes - 1) / 2 * math.log(4.0 * node.memory.weight)
                for node in stops
                if node.memory.weight > 0.0
            )


def best_constants(stops: list[Node]) -> float:
    """Return the log loss of the best constant forecast in each cell, found afterwards."""
    loss = 0.0
    for node in stops:
        assert isinstance(node.memory, Counts)
        n = node.memory.weight
        loss -= sum(c * math.log(c / n) for c in node.memory.counts if c > 0.0)
    return loss
