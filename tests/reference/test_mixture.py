"""Quantiles equal those of mixtures that are written out from the tree's nodes and its rows."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from dmondrian.forest.forest import Forest
from dmondrian.uncertainty.gaussian_mixture import mixture_std, predict_quantiles
from tests.reference.amf import extensions, sum_in_lanes
from tests.reference.cases import Case, numbers
from tests.reference.cube import CubeTree
from tests.reference.gaussian import TreeProcess, fine_places, kernel_places
from tests.reference.kernel import parameters_of, reference_tree
from tests.reference.mixture import Component, distribution, of_labels, quantile
from tests.reference.test_cube import cube_case
from tests.reference.test_gaussian import targets
from tests.reference.test_lifetime import changes, queries_of

LEVELS = np.array([1e-7, 0.05, 0.5, 0.9, 0.975])
TREES = 3


def forest_of(case: Case, **more: object) -> Forest:
    forest = Forest(parameters_of(case, True, **more), range(TREES))
    forest.update(case.X, case.y, case.w)
    return forest


def learned(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    w = np.ones(len(case.X)) if case.w is None else case.w
    return case.X[w > 0.0], case.y[w > 0.0], w[w > 0.0]


def shared(parts: list[list[Component]]) -> list[Component]:
    """Return the mixture of trees that count alike."""
    return [(weight / len(parts), m, v) for part in parts for weight, m, v in part]


def cells_on_the_range(
    process: TreeProcess, x: np.ndarray, y: np.ndarray, w: np.ndarray, expected: bool
) -> list[Component]:
    """Write out the cells' Gaussians: rows are looked up by their own paths."""
    found, alive = [], 1.0
    path = process.path(list(x))
    for node in path if expected else []:
        below = np.array([node in other for other in process.paths])
        rate = sum_in_lanes(extensions(node, list(x)))
        off = -math.expm1(-rate * (min(node.time, process.lifetime) - node.time_above))
        found.append(of_labels(alive * off, y[below], w[below]))
        alive *= 1.0 - off
    inside = np.array([path[-1] is other[-1] for other in process.paths])
    return [*found, of_labels(alive, y[inside], w[inside])]


def cell_on_the_cube(tree: CubeTree, x: np.ndarray, lifetime: float) -> Component:
    cell = above = tree.root()
    is_row = bool((x == tree.X).all(axis=1).any())
    while cell.rows and cell.split()[0] <= lifetime and not (is_row and tree.n_points(cell) == 1):
        above, cell = cell, cell.child_of(tree.X, x)
    rows = list(cell.rows or above.rows)
    return of_labels(1.0, tree.y[rows], tree.w[rows])


def assert_quantiles(found: np.ndarray, mixtures: list[list[Component]], scale: float) -> None:
    assert (np.diff(found, axis=1) >= 0.0).all()
    for row, components in zip(found, mixtures, strict=True):
        expected = [quantile(components, level) for level in LEVELS.tolist()]
        np.testing.assert_allclose(row, expected, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("number", numbers(30, 3))
@pytest.mark.parametrize("expected", [False, True], ids=["leaf", "expected"])
@pytest.mark.parametrize("how", ["hierarchy", "mean"])
def test_quantiles_on_the_range(number: int, expected: bool, how: str) -> None:
    case = targets(number)
    X, y, w = learned(case)
    if np.ptp(y) < 1e-6:
        return
    forest = forest_of(case, **changes(True, how, expected_extension=expected))
    times = np.concatenate([tree["time"] for tree in forest.state()[1]])
    lifetime = float(np.median(times[np.isfinite(times)])) * 1.003
    queries = queries_of(case)[::2]
    found = predict_quantiles(forest, queries, LEVELS, lifetime)
    trees = [reference_tree(dataclasses.replace(case, tree=t), True) for t in range(TREES)]
    processes = [TreeProcess(tree, X, y, w, lifetime) for tree in trees]
    mixtures, fine = [], []
    for x in queries:
        if how == "mean":
            parts = [cells_on_the_range(process, x, y, w, expected) for process in processes]
            mixtures.append(shared(parts))
            continue
        places = kernel_places() if expected else []
        mixtures.append(shared([list(one.components(list(x), places)) for one in processes]))
        if expected:
            fine.append(shared([list(one.components(list(x), fine_places())) for one in processes]))
    assert_quantiles(found, mixtures, float(y.std()))
    for row, components in zip(found, fine, strict=False):
        near = [distribution(components, z) for z in row]
        np.testing.assert_allclose(near, LEVELS, atol=2e-4)


@pytest.mark.parametrize("number", numbers(12))
@pytest.mark.parametrize("lifetime", [1.0, 6.0])
def test_quantiles_of_cells_on_the_cube(number: int, lifetime: float) -> None:
    case = cube_case(number, regression=True)
    X, y, w = learned(case)
    if len(X) == 0:
        return
    forest = forest_of(case, **changes(True, "mean", domain="cube"))
    trees = [CubeTree(X, y, w, case.seed, t, 0) for t in range(TREES)]
    rng = np.random.default_rng(number)
    queries = np.concatenate([X[:3], rng.random((5, X.shape[1]))]).astype(np.float32)
    mixtures = [shared([[cell_on_the_cube(tree, x, lifetime)] for tree in trees]) for x in queries]
    found = predict_quantiles(forest, queries, LEVELS, lifetime)
    assert_quantiles(found, mixtures, max(float(y.std()), float(np.abs(y).max())))
    for std, parts in zip(mixture_std(forest, queries, lifetime), mixtures, strict=True):
        mean = sum(p * m for p, m, _ in parts)
        variance = sum(p * (v + (m - mean) ** 2) for p, m, v in parts)
        assert std == pytest.approx(math.sqrt(variance), rel=1e-9, abs=1e-7 * float(np.ptp(y)))


def test_points_are_reported_as_points() -> None:
    """Cells of one row each: the quantiles are labels, the least that reach the level."""
    rng = np.random.default_rng(0)
    X, y = rng.random((40, 2)).astype(np.float32), rng.normal(size=40)
    case = dataclasses.replace(targets(2), X=X, y=y, w=None)
    forest = forest_of(case, **changes(True, "mean", lifetime=None))
    queries = rng.random((20, 2)).astype(np.float32)
    alone = [Forest(forest.parameters, [t]) for t in range(TREES)]
    for tree in alone:
        tree.update(X, y)
    each = np.sort(np.stack([tree.predict_sums(queries).total[:, 0] for tree in alone], axis=1))
    assert np.abs(each[:, :, None] - y).min(axis=2).max() < 1e-15
    levels = np.array([0.2, 0.5, 0.9])  # of three trees: the first, second and third label
    found = predict_quantiles(forest, queries, levels, np.inf)
    np.testing.assert_allclose(found, each, rtol=1e-12, atol=1e-15)


def test_neither_chunks_nor_threads_change_a_quantile(monkeypatch: pytest.MonkeyPatch) -> None:
    case = targets(4)
    forest = forest_of(case, **changes(True, "hierarchy", expected_extension=True))
    queries = np.repeat(queries_of(case), 5, axis=0)
    whole = predict_quantiles(forest, queries, LEVELS, 2.0)
    monkeypatch.setattr("dmondrian.uncertainty.gaussian_mixture._CHUNK", 7)
    monkeypatch.setattr("dmondrian.uncertainty.gaussian_mixture._FIRST_CAPACITY", 1)
    parts = predict_quantiles(forest, queries, LEVELS, 2.0, n_threads=2)
    assert whole.tobytes() == parts.tobytes()
