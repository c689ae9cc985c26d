"""Growth on the unit cube equals the batch reference, in any order of the rows."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from dmondrian.growth.cube import draw_split, whole_cube
from dmondrian.tree.box_encoding import boxless
from dmondrian.tree.invariants import check
from dmondrian.tree.nodes import ETA, make_tree
from tests.laws.grow import nodes_of
from tests.reference.cases import Case, numbers, random_case
from tests.reference.closed_form import tree_of
from tests.reference.cube import CubeTree
from tests.reference.kernel import arrays_of, kernel_forest, log_odds
from tests.reference.test_lifetime import changes


def cube_case(number: int, regression: bool = False) -> Case:
    """Return a case whose rows lie in the cube, on a grid or anywhere, a few on its surface."""
    rng = np.random.default_rng([number, 17])
    drawn = random_case(number, regression)
    X = rng.random(drawn.X.shape).astype(np.float32)
    if number % 3 == 0:
        X = np.round(X * 3) / np.float32(3)
    if number % 4 == 0:
        X = X[rng.integers(0, max(1, len(X) // 2), size=len(X))]
    if number % 5 == 0:
        X[:, 0] = X[0, 0] + rng.integers(0, 3, len(X)) * np.float32(2.0**-22)
        X = np.minimum(X, np.float32(1.0))
    if number % 7 == 0:  # apart by less than numbers elsewhere can be, and than any at 0
        X[:, 0] *= np.float32(1e-42 if number % 2 else 1e-20)
        X[:, 1:] = X[0, 1:]
    return dataclasses.replace(drawn, X=np.ascontiguousarray(X), max_nodes=None)


def weights_of(case: Case) -> np.ndarray:
    return np.ones(len(case.X)) if case.w is None else case.w


def reference_of(case: Case, regression: bool, lifetime: float = math.inf) -> CubeTree:
    k = 0 if regression else case.n_classes
    return CubeTree(case.X, case.y, weights_of(case), case.seed, case.tree, k, lifetime)


def preorder(forest: Forest) -> np.ndarray:
    """Return the nodes of the only tree from the root, left before right."""
    arrays, root = arrays_of(forest)
    order, stack = [], [root] if root >= 0 else []
    while stack:
        v = stack.pop()
        order.append(v)
        if arrays["left"][v] >= 0:
            stack += [int(arrays["right"][v]), int(arrays["left"][v])]
    return np.array(order, int)


def assert_same_cells(forest: Forest, reference: CubeTree) -> None:
    """Compare splits, weights and counts of all realised cells, in one order."""
    arrays, _ = arrays_of(forest)
    order = preorder(forest)
    cells = list(reference.preorder()) if len(order) else []
    assert len(cells) == len(order)
    for v, cell in zip(order, cells, strict=True):
        time, feature, cut = cell.split()
        assert arrays["stat"][v, 0] == math.fsum(reference.w[r] for r in cell.rows)
        if reference.n_classes:
            assert arrays["stat"][v, 1:].tolist() == reference.counts(cell)
        if arrays["left"][v] >= 0:
            assert arrays["time"][v] == pytest.approx(time, rel=1e-12)
            assert (arrays["feature"][v], arrays["threshold"][v]) == (feature, cut)


@pytest.mark.parametrize("number", numbers(40))
@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
def test_realised_cells_are_those_with_two_distinct_rows(number: int, regression: bool) -> None:
    case = cube_case(number, regression)
    forest = kernel_forest(case, regression, **changes(regression, domain="cube"))
    assert_same_cells(forest, reference_of(case, regression))
    for tree in forest.trees:
        check(tree, paused=False, may_be_empty=True)
    rng = np.random.default_rng(number)
    order = rng.permutation(len(case.X))
    w = None if case.w is None else case.w[order]
    other = dataclasses.replace(case, X=case.X[order], y=case.y[order], w=w)
    shuffled = kernel_forest(other, regression, **changes(regression, domain="cube"))
    assert_same_cells(shuffled, reference_of(case, regression))


@pytest.mark.parametrize("number", numbers(40, 2))
@pytest.mark.parametrize("lifetime", [0.2, 3.0])
def test_a_fixed_lifetime_stops_the_same_cells(number: int, lifetime: float) -> None:
    case = cube_case(number)
    forest = kernel_forest(case, **changes(False, domain="cube", lifetime=lifetime))
    assert_same_cells(forest, reference_of(case, False, lifetime))
    for tree in forest.trees:
        check(tree, may_be_empty=True)


@pytest.mark.parametrize("number", numbers(40, 2))
@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
@pytest.mark.parametrize("prior", [False, True], ids=["parent", "prior"])
def test_every_lifetime_predicts_for_the_whole_partition(
    number: int, regression: bool, prior: bool
) -> None:
    """Also where a leaf with one point is not split: its cells go on, unseen."""
    case = cube_case(number, regression)
    reference = reference_of(case, regression)
    forest = kernel_forest(
        case, regression, **changes(regression, domain="cube", empty_prior=prior)
    )
    if forest.n_nodes == 0:
        return
    rng = np.random.default_rng(number)
    queries = np.concatenate([case.X[:4], rng.random((6, case.X.shape[1]))]).astype(np.float32)
    lifetimes = np.array([0.1, 1.0, 4.0, 30.0])
    found = forest.predict_sums(queries, lifetimes=lifetimes).total
    for predicted, lifetime in zip(found, lifetimes.tolist(), strict=True):
        for x, p in zip(queries, predicted, strict=True):
            expected = reference.predict(x, lifetime, prior)
            np.testing.assert_allclose(p, expected, rtol=1e-9, atol=1e-9)
    if not regression:
        smooth = kernel_forest(case, **changes(False, "hierarchy", domain="cube"))
        found = smooth.predict_sums(queries, lifetimes=lifetimes).total
        gamma = 10.0 * case.X.shape[1]
        for predicted, lifetime in zip(found, lifetimes.tolist(), strict=True):
            for x, p in zip(queries, predicted, strict=True):
                expected = reference.smoothed(x, lifetime, gamma)
                np.testing.assert_allclose(p, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("number", range(0, 40, 4))
@pytest.mark.parametrize("how", ["mean", "vote", "hierarchy"])
def test_a_tree_at_a_lifetime_is_the_tree_trained_to_it(number: int, how: str) -> None:
    case = cube_case(number)
    grown = kernel_forest(case, **changes(False, how, domain="cube"))
    if grown.n_nodes == 0:
        return
    queries = np.random.default_rng(number).random((9, case.X.shape[1])).astype(np.float32)
    lifetimes = np.array([0.3, 2.0, 10.0])
    staged = grown.predict_sums(queries, lifetimes=lifetimes).total
    for i, lifetime in enumerate(lifetimes.tolist()):
        trained = kernel_forest(case, **changes(False, how, domain="cube", lifetime=lifetime))
        assert trained.predict_sums(queries).total.tobytes() == staged[i].tobytes()


@pytest.mark.parametrize("number", range(0, 40, 3))
@pytest.mark.parametrize("chunk", [1, 7])
def test_cuts_between_calls_change_no_byte(number: int, chunk: int) -> None:
    for regression in (False, True):
        case = cube_case(number, regression)
        more = changes(regression, domain="cube")
        whole, _ = arrays_of(kernel_forest(case, regression, **more))
        pieces, _ = arrays_of(kernel_forest(case, regression, chunk=chunk, **more))
        for name, array in whole.items():
            assert array.tobytes() == pieces[name].tobytes(), name


def test_a_row_that_needs_many_nodes_waits_for_memory() -> None:
    """Neighbours in float32: more splits than the first arrays hold."""
    X = np.full((2, 3), 0.3, np.float32)
    X[1, 0] = np.nextafter(X[0, 0], np.float32(1))
    case = dataclasses.replace(random_case(0), X=X, y=np.array([0.0, 1.0]), w=None)
    case = dataclasses.replace(case, n_classes=2, max_nodes=None)
    forest = kernel_forest(case, **changes(False, domain="cube"))
    assert forest.n_nodes > 64
    assert_same_cells(forest, reference_of(case, False))
    capped = kernel_forest(case, **changes(False, domain="cube", max_nodes=9))
    assert capped.n_nodes == 9
    assert capped.total_weight == 2.0


@pytest.mark.parametrize("number", numbers(40, 2))
@pytest.mark.parametrize("charge_opening", [False, True])
def test_the_mixture_over_prunings_follows_from_the_counts(
    number: int, charge_opening: bool
) -> None:
    """O13 for AMF on the cube: cells without rows are leaves of weight one that say 1/K."""
    case = dataclasses.replace(cube_case(number), w=None, charge_opening=charge_opening)
    forest = kernel_forest(case, domain="cube")
    (nodes,) = nodes_of(forest)
    tree = tree_of(nodes, case.alpha, charge_opening)
    rng = np.random.default_rng(number)
    queries = np.concatenate([case.X[:6], rng.random((6, case.X.shape[1]))]).astype(np.float32)
    for x, p in zip(queries, forest.predict_sums(queries).total, strict=True):
        np.testing.assert_allclose(p, tree.predict_leaf(list(x)), rtol=1e-9)


@pytest.mark.parametrize("number", numbers(40, 2))
def test_weights_of_squared_loss_follow_from_the_rows(number: int) -> None:
    """AMF's regressor on the cube: each cell pays for its rows, the first of them free."""
    case = dataclasses.replace(cube_case(number, True), w=None, charge_opening=False)
    forest = kernel_forest(case, regression=True, domain="cube")
    header, (arrays,) = forest.state()
    eta = header["trees"][0]["floats"][ETA]
    order = preorder(forest)
    log_w, log_subtree = {}, {}
    for v, cell in zip(order, reference_of(case, True).preorder(), strict=True):
        price, seen = 0.0, []
        for r in cell.rows:
            price += (case.y[r] - np.mean(seen)) ** 2 if seen else 0.0
            seen.append(case.y[r])
        log_w[v] = -eta * price
    found = log_odds(arrays)
    for v in order[::-1]:
        log_subtree[v] = log_w[v]
        if arrays["left"][v] >= 0:
            below = log_subtree[arrays["left"][v]] + log_subtree[arrays["right"][v]]
            log_subtree[v] = np.logaddexp(log_w[v], below) - math.log(2.0)
            assert found[v] == pytest.approx(log_w[v] - below, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("born", [0.0, 1.0, 1e9, 1e17, 1e300])
def test_cells_are_split_after_they_came_into_being(born: float) -> None:
    """Also where doubles do not tell two times apart: stored trees are refused otherwise."""
    tree = make_tree(boxless(2), 1, 1)
    for key in range(50):
        whole_cube(tree)
        assert draw_split(tree, np.uint64(key), born)[0] > born


@pytest.mark.parametrize("apart", [1e-10, 1e-20, 1e-38, 1.4e-45])
def test_rows_part_however_near_they_are(apart: float) -> None:
    """In cells that are one float32 wide in all other features, cuts there would never end."""
    X = np.full((2, 4), 0.5, np.float32)
    X[:, 0] = np.array([apart, 0.0 if apart < 1e-40 else 2 * apart], np.float32)
    assert X[0, 0] != X[1, 0]
    forest = Forest(ForestParameters("amf-classifier", 4, 2, domain="cube", seed=0), range(3))
    forest.update(X, np.array([0.0, 1.0]))
    for tree in forest.trees:
        check(tree, paused=False, may_be_empty=True)
    splits = 2 * 4 * math.log(1 / apart)
    assert forest.n_nodes < 3 * 2 * 2 * splits
