"""Weights of rows in a forest's mean equal those of cells that look at all rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dmondrian.errors import DataError
from dmondrian.uncertainty.confidence import debiasing_weights, weight_norms
from tests.reference.cube import CubeTree
from tests.reference.kernel import kernel_forest
from tests.reference.test_cube import cube_case
from tests.reference.test_lifetime import changes


def row_weights(tree: CubeTree, x: np.ndarray, lifetime: float, prior: bool) -> np.ndarray:
    """Return the weight of each row in one tree's mean at x."""
    found = np.zeros(len(tree.X))
    cell = above = tree.root()
    is_row = bool((x == tree.X).all(axis=1).any())
    while cell.rows and cell.split()[0] <= lifetime and not (is_row and tree.n_points(cell) == 1):
        above, cell = cell, cell.child_of(tree.X, x)
    speaking = list(cell.rows if cell.rows or prior else above.rows)
    found[speaking] = 1.0 / max(len(speaking), 1)
    return found


@pytest.mark.parametrize("number", range(15))
@pytest.mark.parametrize("prior", [False, True], ids=["parent", "prior"])
def test_norms_and_predictions_are_those_of_the_weights(number: int, prior: bool) -> None:
    case = dataclasses.replace(cube_case(number, regression=True), w=None)
    X, y = case.X, case.y
    forest = kernel_forest(
        case, regression=True, **changes(True, "mean", domain="cube", empty_prior=prior)
    )
    rng = np.random.default_rng(number)
    queries = np.concatenate([X[:3], rng.random((6, X.shape[1]))]).astype(np.float32)
    lifetimes, shares = np.array([1.5, 4.0]), debiasing_weights(4.0 / 1.5)
    tree = CubeTree(X, y, np.ones(len(X)), case.seed, case.tree, 0)
    each = np.array([[row_weights(tree, x, t, prior) for x in queries] for t in lifetimes])
    predicted = forest.predict_sums(queries, lifetimes=lifetimes).total[:, :, 0]
    np.testing.assert_allclose(predicted, each @ y, rtol=1e-9, atol=1e-9)
    expected = np.linalg.norm(np.tensordot(shares, each, 1), axis=1)
    order = rng.permutation(len(X))
    found = weight_norms(forest, queries, X[order], lifetimes, shares)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_other_rows_than_those_learned_are_refused() -> None:
    case = dataclasses.replace(cube_case(2, regression=True), w=None)
    forest = kernel_forest(case, regression=True, **changes(True, "mean", domain="cube"))
    at, one = np.array([1.0]), np.ones(1)
    X = case.X
    for other in (X[1:], np.concatenate([X, X[:1]]), np.ones_like(X) - X):
        with pytest.raises(DataError, match="are not the"):
            weight_norms(forest, X, other, at, one)
