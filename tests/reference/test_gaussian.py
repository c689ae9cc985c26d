"""Message passing equals the dense Gaussian process of O18."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dmondrian.forest.forest import Forest
from tests.reference.cases import Case, numbers, random_case
from tests.reference.cube import CubeTree
from tests.reference.gaussian import LabelProcess, TreeProcess
from tests.reference.kernel import arrays_of, kernel_forest, parameters_of, reference_tree
from tests.reference.test_cube import cube_case
from tests.reference.test_lifetime import changes, queries_of, query_lifetimes


def targets(number: int) -> Case:
    """Return a case with targets that vary and columns of size one."""
    case = random_case(number, regression=True)
    X = np.random.default_rng(number).normal(size=case.X.shape).astype(np.float32)
    X = np.round(X, 1) if number % 2 else X
    return dataclasses.replace(case, X=X, max_nodes=None)


@pytest.mark.parametrize("number", numbers(30))
@pytest.mark.parametrize("expected", [False, True], ids=["leaf", "expected"])
def test_messages_equal_the_dense_posterior(number: int, expected: bool) -> None:
    case = targets(number)
    tree = reference_tree(case, regression=True)
    more = changes(True, "hierarchy", expected_extension=expected)
    forest = kernel_forest(case, regression=True, **more)
    if forest.n_nodes < 3:
        return
    lifetimes = query_lifetimes(arrays_of(forest)[0]["time"]) * 1.003
    queries = queries_of(case)
    found = forest.predict_sums(queries, spread=True, lifetimes=lifetimes)
    squares = found.variance + found.total**2  # of one tree
    w = np.ones(len(case.X)) if case.w is None else case.w
    seen = w > 0.0
    for i, lifetime in enumerate(lifetimes.tolist()):
        process = TreeProcess(tree, case.X[seen], case.y[seen], w[seen], lifetime)
        near = {"rtol": 1e-4, "atol": 1e-4} if expected else {"rtol": 1e-8, "atol": 1e-9}
        for x, mean, square in zip(queries, found.total[i, :, 0], squares[i, :, 0], strict=True):
            np.testing.assert_allclose([mean, square], process.moments(list(x), expected), **near)


def test_far_from_all_rows_the_prior_predicts() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((400, 2)).astype(np.float32), rng.normal(3.0, 2.0, 400)
    case = dataclasses.replace(random_case(0, True), X=X, y=y, w=None, max_nodes=None)
    more = changes(True, "hierarchy", expected_extension=True, lifetime=None)
    forest = kernel_forest(case, regression=True, **more)
    sums = forest.predict_sums(np.full((1, 2), 1e6, np.float32), spread=True)
    assert sums.total[0, 0] == pytest.approx(y.mean(), rel=1e-3)
    assert sums.variance[0, 0] == pytest.approx(y.var(), rel=0.01)


def test_labels_without_variance_are_reported_as_they_are() -> None:
    case = dataclasses.replace(targets(1), y=np.full(len(targets(1).X), 7.0), w=None)
    forest = kernel_forest(case, regression=True, **changes(True, "hierarchy"))
    sums = forest.predict_sums(case.X, spread=True)
    assert (sums.total == 7.0).all()
    assert (sums.variance == 0.0).all()


@pytest.mark.parametrize("size", [1e-138, 1e-155, 1e-200])
def test_labels_whose_squares_vanish_give_finite_answers(size: float) -> None:
    case = dataclasses.replace(targets(1), y=size * targets(1).y, w=None)
    forest = kernel_forest(case, regression=True, **changes(True, "hierarchy"))
    sums = forest.predict_sums(case.X, spread=True)
    assert np.isfinite(sums.variance).all()
    assert (np.abs(sums.total) <= np.abs(case.y).max() * (1.0 + 1e-12)).all()


@pytest.mark.parametrize("aggregation", ["mean", "hierarchy"])
def test_a_large_common_shift_of_the_labels_costs_no_digits(aggregation: str) -> None:
    """Also not those of variances: labels in seconds since 1970, say."""
    rng = np.random.default_rng(0)
    X, queries = rng.random((300, 2)).astype(np.float32), 2.0 * rng.random((50, 2))
    y = np.rint(1024.0 * rng.normal(size=300)) / 1024.0  # sums with the shift are exact
    case = dataclasses.replace(random_case(0, True), X=X, y=y, w=None, max_nodes=None)
    more = changes(True, aggregation, expected_extension=True, lifetime=4.0)
    found = []
    for shift in (0.0, 2.0**31):
        forest = Forest(parameters_of(case, regression=True, **more), range(5))
        forest.update(X, y + shift)
        found.append(forest.predict_sums(queries.astype(np.float32), spread=True).variance)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", numbers(12))
def test_messages_follow_learning(number: int) -> None:
    """Predicting in the middle leaves nothing behind: later answers are those of a fresh forest."""
    case = targets(number)
    more = changes(True, "hierarchy", expected_extension=True)
    whole = kernel_forest(case, regression=True, **more)
    half = Forest(parameters_of(case, regression=True, **more), [case.tree])
    for row in range(len(case.X)):
        part = slice(row, row + 1)
        half.update(case.X[part], case.y[part], None if case.w is None else case.w[part])
        if row % 5 == 0:
            half.predict_sums(case.X)
    a, b = whole.predict_sums(case.X, spread=True), half.predict_sums(case.X, spread=True)
    assert a.total.tobytes() == b.total.tobytes()
    assert a.square is not None
    assert b.square is not None
    assert a.square.tobytes() == b.square.tobytes()


@pytest.mark.parametrize("number", numbers(12))
@pytest.mark.parametrize("lifetime", [1.0, 6.0])
def test_on_the_cube_covariances_follow_the_cells(number: int, lifetime: float) -> None:
    case = cube_case(number, regression=True)
    w = np.ones(len(case.X)) if case.w is None else case.w
    X, y, w = case.X[w > 0], case.y[w > 0], w[w > 0]
    if len(X) == 0:
        return
    forest = kernel_forest(case, regression=True, **changes(True, "hierarchy", domain="cube"))
    cells = CubeTree(X, y, w, case.seed, case.tree, 0)
    rng = np.random.default_rng(number)
    queries = np.concatenate([X[:2], rng.random((4, X.shape[1]))]).astype(np.float32)
    found = forest.predict_sums(queries, spread=True, lifetimes=np.array([lifetime]))
    squares = found.variance + found.total**2  # of one tree

    def parted(x: np.ndarray) -> np.ndarray:
        times, cell = np.full(len(X), lifetime), cells.root()
        while cell.rows and cell.split()[0] <= lifetime and not (X[list(cell.rows)] == x).all():
            below = cell.child_of(X, x)
            times[list(set(cell.rows) - set(below.rows))] = below.born
            cell = below
        return times

    if np.ptp(y) < 1e-6:
        return
    process = LabelProcess(np.array([parted(x) for x in X]), y, w, X.shape[1], lifetime)
    for x, predicted in zip(queries, np.hstack([found.total[0], squares[0]]), strict=True):
        np.testing.assert_allclose(predicted, process.moments(parted(x)), rtol=1e-7, atol=1e-9)
