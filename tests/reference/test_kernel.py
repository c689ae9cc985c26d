"""The kernel equals the reference on hundreds of small, awkward streams."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from dmondrian.tree.nodes import LEAST_SCRATCH
from tests.reference.cases import numbers, random_case
from tests.reference.kernel import (
    arrays_of,
    assert_same_statistics,
    assert_same_structure,
    assert_same_weights,
    kernel_forest,
    reference_tree,
    tolerance_of,
)

N_CASES = 300


@pytest.mark.parametrize("number", numbers(N_CASES))
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
    near = tolerance_of(tree)
    for i, x in enumerate(queries):
        expected = tree.predict_leaf(list(x))
        np.testing.assert_allclose(sums.total[i], expected, rtol=near, atol=1e-12)
        if tree.root is not None:
            assert sums.distance is not None
            assert sums.distance[i] == tree.distance(list(x))
            assert depths[i] == pytest.approx(tree.weighted_depth(list(x)), rel=near, abs=1e-12)


@pytest.mark.parametrize("d", [1, 16, 17, 20])
def test_rows_outside_many_boxes_in_turn(d: int) -> None:
    """Each row lies just outside all boxes on its way, more of them than bounds are kept for."""
    rng = np.random.default_rng(d)
    drawn = dataclasses.replace(random_case(0), max_nodes=None, w=None, n_classes=2, alpha=0.5)
    at = np.append(0.7 ** np.arange(230), -(2.0 ** np.arange(-9, 1)))[:, None]
    X = (at * (1.0 + 0.1 * rng.random((240, d)))).astype(np.float32)
    case = dataclasses.replace(drawn, X=X, y=rng.integers(0, 2, 240).astype(float))
    forest, tree = kernel_forest(case), reference_tree(case)
    assert_same_structure(forest, tree)
    assert_same_weights(forest, tree)
    depth = len(tree.path_to_root(tree.leaf_of(list(X[229]))))
    assert depth > max(3 * d, LEAST_SCRATCH) - d


@pytest.mark.parametrize("number", numbers(N_CASES, 5))
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
        np.testing.assert_allclose(found[i], expected, rtol=tolerance_of(tree), atol=1e-12)


@pytest.mark.parametrize("split_pure", [False, True])
def test_expected_extension_is_the_mean_of_many_extensions(split_pure: bool) -> None:
    """Not by counting the places of branching, but by Algorithm 6 itself, draw after draw."""
    rng = np.random.default_rng(5)
    X = rng.random((20, 2)).astype(np.float32)
    drawn = dataclasses.replace(random_case(0), max_nodes=None, w=None, n_classes=2, alpha=0.1)
    case = dataclasses.replace(
        drawn, X=X, y=(X[:, 0] > 0.5) * 1.0, split_pure=split_pure, charge_opening=False
    )
    tree = reference_tree(case)
    kept = pickle.dumps(tree)
    forest = kernel_forest(case, expected_extension=True)
    spread = 0.0
    for x in np.array([[0.5, 0.5], [0.6, -0.05], [1.1, 0.4], [3.0, 0.2]], np.float32):
        leaf = tree.leaf_of(list(x))
        # A paused leaf pauses at a label it agrees with; the label matters in no other way.
        label = float(np.argmax(leaf.memory.counts))  # type: ignore[union-attr]
        predicted = []
        for draw in range(400):
            throw_away = pickle.loads(kept)
            throw_away.seed = draw
            predicted.append(throw_away.blend(throw_away.extend(list(x), label)[0]))
        error = np.std(predicted, axis=0) / np.sqrt(len(predicted))
        spread = max(spread, float(error.max()))
        found = forest.predict_sums(x[None]).total[0]
        assert (np.abs(np.mean(predicted, axis=0) - found) < 4.0 * error + 1e-3).all()
    assert spread > 2e-3  # points that hardly ever branch off would show nothing


@pytest.mark.parametrize("number", numbers(N_CASES, 10))
def test_leaves_alone_predict_without_aggregation(number: int) -> None:
    case = random_case(number)
    tree = reference_tree(case)
    tree.use_aggregation = False
    found = kernel_forest(case, use_aggregation=False).predict_sums(case.X).total
    for i, x in enumerate(case.X):
        np.testing.assert_allclose(found[i], tree.predict_leaf(list(x)), rtol=1e-12)


@pytest.mark.parametrize("number", numbers(N_CASES, 6))
@pytest.mark.parametrize("chunk", [1, 7])
def test_cuts_between_calls_change_no_byte(number: int, chunk: int) -> None:
    for regression in (False, True):
        case = random_case(number, regression)
        whole, root = arrays_of(kernel_forest(case, regression))
        pieces, root_of_pieces = arrays_of(kernel_forest(case, regression, chunk=chunk))
        assert root == root_of_pieces
        for name, array in whole.items():
            assert array.tobytes() == pieces[name].tobytes(), name


@pytest.mark.parametrize("number", numbers(N_CASES, 6))
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


@pytest.mark.parametrize("number", numbers(N_CASES, 4))
def test_any_learning_rate_of_the_classifier(number: int) -> None:
    case = random_case(number)
    forest = kernel_forest(case, learning_rate=case.rate)
    tree = reference_tree(case, rate=case.rate)
    assert_same_structure(forest, tree)
    assert_same_weights(forest, tree)


def test_a_large_whole_weight_is_as_many_repeats() -> None:
    for number in range(6):
        drawn = random_case(number)
        weights = np.random.default_rng(number).choice([1.0, 300.0], size=len(drawn.X))
        case = dataclasses.replace(drawn, w=weights)
        forest, tree = kernel_forest(case), reference_tree(case, repeats_up_to=300.0)
        assert_same_structure(forest, tree)
        assert_same_weights(forest, tree)
