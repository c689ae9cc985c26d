"""The kernel equals the reference on hundreds of small, awkward streams."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest

from tests.reference.cases import random_case
from tests.reference.kernel import (
    arrays_of,
    assert_same_statistics,
    assert_same_structure,
    assert_same_weights,
    kernel_forest,
    reference_tree,
)

N_CASES = 300


@pytest.mark.parametrize("number", range(N_CASES))
@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
def test_kernel_equals_reference(number: int, regression: bool) -> None:
    case = random_case(number, regression)
    forest, tree = kernel_forest(case, regression), reference_tree(case, regression)
    assert_same_structure(forest, tree)
    assert_same_statistics(forest, tree)
    assert_same_weights(forest, tree)
    rng = np.random.default_rng(number)
    reach = min(3.0 * float(np.abs(case.X).max()) + 1e-9, 5e37)
    far = rng.normal(size=(4, case.X.shape[1])) * reach
    far = np.clip(far, -3e38, 3e38)  # some cases fill the range of float32
    queries = np.concatenate([case.X[:6], far.astype(np.float32)])
    sums = forest.predict_sums(queries, distance=True)
    depths = forest.weighted_depth(queries)
    for i, x in enumerate(queries):
        expected = tree.predict_leaf(list(x))
        np.testing.assert_allclose(sums.total[i], expected, rtol=1e-9, atol=1e-12)
        if tree.root is not None:
            assert sums.distance is not None
            assert sums.distance[i] == tree.distance(list(x))
            assert depths[i] == pytest.approx(tree.weighted_depth(list(x)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("number", range(0, N_CASES, 5))
@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
def test_expected_extension_averages_algorithm_6(number: int, regression: bool) -> None:
    case = random_case(number, regression)
    tree = reference_tree(case, regression)
    forest = kernel_forest(case, regression, expected_extension=True)
    rng = np.random.default_rng(number)
    reach = min(float(np.abs(case.X.astype(float)).mean()) + 1e-9, 5e36)
    near = np.clip(case.X[:3] + rng.normal(size=case.X[:3].shape) * reach, -3e38, 3e38)
    queries = np.concatenate([case.X[:3], near]).astype(np.float32)
    found = forest.predict_sums(queries).total
    for i, x in enumerate(queries):
        expected = tree.predict_expected(list(x))
        np.testing.assert_allclose(found[i], expected, rtol=1e-9, atol=1e-12)


def test_expected_extension_is_the_mean_of_many_extensions() -> None:
    """Not by counting places of branching, but by Algorithm 6 itself, draw after draw."""
    for number in (3, 8, 24):
        case = dataclasses.replace(random_case(number), max_nodes=None, w=None)
        tree = reference_tree(case)
        forest = kernel_forest(case, expected_extension=True)
        near = case.X[0] + np.float32(0.3) * (case.X[-1] - case.X[0]) + np.float32(0.01)
        seen = []
        for draw in range(1000):
            throw_away = copy.deepcopy(tree)
            throw_away.seed = draw
            label = 0.0 if tree.split_pure else float("nan")  # a label unlike any of a pure leaf
            if not tree.split_pure and tree.leaf_of(list(near)).memory.is_pure:
                label = float(np.argmax(tree.leaf_of(list(near)).memory.counts))  # type: ignore[union-attr]
            leaf, _ = throw_away.extend(list(near), 0.0 if np.isnan(label) else label)
            seen.append(throw_away.blend(leaf))
        found = forest.predict_sums(near[None]).total[0]
        error = np.std(seen, axis=0) / np.sqrt(len(seen))
        assert (np.abs(np.mean(seen, axis=0) - found) <= 4.5 * error + 1e-9).all()


@pytest.mark.parametrize("number", range(0, N_CASES, 10))
def test_leaves_alone_speak_without_aggregation(number: int) -> None:
    case = random_case(number)
    tree = reference_tree(case)
    tree.use_aggregation = False
    found = kernel_forest(case, use_aggregation=False).predict_sums(case.X).total
    for i, x in enumerate(case.X):
        np.testing.assert_allclose(found[i], tree.predict_leaf(list(x)), rtol=1e-12)


@pytest.mark.parametrize("number", range(0, N_CASES, 6))
@pytest.mark.parametrize("chunk", [1, 7])
def test_cuts_between_calls_change_no_byte(number: int, chunk: int) -> None:
    for regression in (False, True):
        case = random_case(number, regression)
        whole, root = arrays_of(kernel_forest(case, regression))
        pieces, root_of_pieces = arrays_of(kernel_forest(case, regression, chunk=chunk))
        assert root == root_of_pieces
        for name, array in whole.items():
            assert array.tobytes() == pieces[name].tobytes(), name


@pytest.mark.parametrize("number", range(0, N_CASES, 6))
def test_whole_weights_are_repeats_to_the_byte(number: int) -> None:
    for regression in (False, True):
        case = random_case(number, regression)
        weights = np.random.default_rng(number).integers(0, 4, size=len(case.X))
        weighted = dataclasses.replace(case, w=weights.astype(np.float64))
        repeated = dataclasses.replace(
            case, X=np.repeat(case.X, weights, axis=0), y=np.repeat(case.y, weights), w=None
        )
        if len(repeated.X) == 0:
            continue
        once, root = arrays_of(kernel_forest(weighted, regression))
        often, root_of_often = arrays_of(kernel_forest(repeated, regression))
        assert root == root_of_often
        for name, array in once.items():
            assert array.tobytes() == often[name].tobytes(), name


@pytest.mark.parametrize("number", range(0, N_CASES, 4))
def test_any_learning_rate_of_the_classifier(number: int) -> None:
    case = random_case(number)
    forest = kernel_forest(case, learning_rate=case.rate)
    tree = reference_tree(case, rate=case.rate)
    assert_same_structure(forest, tree)
    assert_same_weights(forest, tree)


def test_a_large_whole_weight_is_as_many_repeats() -> None:
    for number in range(20):
        drawn = random_case(number)
        weights = np.random.default_rng(number).choice([1.0, 300.0, 1000.0], size=len(drawn.X))
        case = dataclasses.replace(drawn, w=weights)
        forest, tree = kernel_forest(case), reference_tree(case, repeats_up_to=1000.0)
        assert_same_structure(forest, tree)
        assert_same_weights(forest, tree)
