"""Mondrian forests with a lifetime equal the slow reference, at every lifetime."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dmondrian.ensemble.settings.lifetime import PowerLifetime
from tests.reference.cases import Case, numbers, random_case
from tests.reference.kernel import arrays_of, assert_same_structure, kernel_forest, reference_tree
from tests.reference.pruned import LifetimeTree, Pruned

GROW = PowerLifetime(1.0, 0.3)
WAYS = [("mean", False), ("vote", False), ("hierarchy", False), ("mean", True)]


def changes(regression: bool, aggregation: str = "mean", **more: object) -> dict[str, object]:
    """Return the parameters that make a case's forest a Mondrian forest."""
    kind = "regressor" if regression else "classifier"
    return {
        "algorithm": f"mondrian-forest-{kind}",
        "aggregation": aggregation,
        "lifetime": GROW,
    } | more


def query_lifetimes(times: np.ndarray) -> np.ndarray:
    """Return lifetimes between, at, before and after the split times of a tree."""
    inside = np.unique(times[np.isfinite(times)])
    if not len(inside):
        return np.array([1.0, np.inf])
    chosen = [inside[0] / 2.0, inside[len(inside) // 2], inside[len(inside) // 2] * 1.01]
    return np.unique([*chosen, inside[-1] * 0.99, inside[-1] * 2.0])


def queries_of(case: Case) -> np.ndarray:
    """Return rows that were learned, rows near them and rows far away."""
    rng = np.random.default_rng(case.number)
    reach = min(float(np.abs(case.X.astype(float)).mean()) + 1e-9, 5e36)
    near = np.clip(case.X[:3] + rng.normal(size=case.X[:3].shape) * reach, -3e38, 3e38)
    return np.concatenate([case.X[:3], near]).astype(np.float32)


@pytest.mark.parametrize("number", numbers(300, 4))
@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
@pytest.mark.parametrize("expected", [False, True], ids=["leaf", "expected"])
def test_every_lifetime_of_one_tree(number: int, regression: bool, expected: bool) -> None:
    case = random_case(number, regression)
    tree, queries = reference_tree(case, regression), queries_of(case)
    if tree.root is None:
        return
    for how in ("mean",) if regression else ("mean", "vote", "hierarchy"):
        for prior in (False, True):
            more = changes(regression, how, expected_extension=expected, empty_prior=prior)
            forest = kernel_forest(case, regression, **more)
            assert_same_structure(forest, tree)
            lifetimes = query_lifetimes(arrays_of(forest)[0]["time"]) * 1.003
            gamma = 10.0 * case.X.shape[1]
            found = forest.predict_sums(queries, lifetimes=lifetimes).total
            own = forest.predict_sums(queries).total
            lifetimes = [*lifetimes, GROW.at(forest.total_weight)]
            for lifetime, predicted in zip(lifetimes, [*found, own], strict=True):
                pruned = Pruned(tree, float(lifetime), how, expected, prior, gamma)
                for x, p in zip(queries, predicted, strict=True):
                    np.testing.assert_allclose(p, pruned.predict(list(x)), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("number", numbers(300, 5))
@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
def test_a_fixed_lifetime_grows_the_tree_of_the_reference(number: int, regression: bool) -> None:
    case = random_case(number, regression)
    times = arrays_of(kernel_forest(case, regression))[0]["time"]
    lifetime = float(query_lifetimes(times)[1]) * 1.003
    forest = kernel_forest(case, regression, **changes(regression, lifetime=min(lifetime, 1e300)))
    whole = reference_tree(case, regression)
    tree = LifetimeTree(
        whole.memory, case.seed, case.tree, case.split_pure, case.max_nodes, lifetime=lifetime
    )
    weights = np.ones(len(case.X)) if case.w is None else case.w
    for x, y, w in zip(case.X, case.y.tolist(), weights.tolist(), strict=True):
        tree.learn(list(x), y, w)
    assert_same_structure(forest, tree)


@pytest.mark.parametrize("number", numbers(300, 5))
@pytest.mark.parametrize(("how", "expected"), WAYS)
def test_a_tree_at_a_lifetime_is_the_tree_trained_to_it(
    number: int, how: str, expected: bool
) -> None:
    """To the byte: the splits after a lifetime take nothing from those before it."""
    case = dataclasses.replace(random_case(number), split_pure=True, max_nodes=None)
    grown = kernel_forest(case, **changes(False, how, expected_extension=expected))
    if grown.n_nodes == 0:
        return
    queries = queries_of(case)
    lifetimes = query_lifetimes(arrays_of(grown)[0]["time"])
    staged = grown.predict_sums(queries, spread=True, lifetimes=lifetimes)
    for i, lifetime in enumerate(lifetimes[np.isfinite(lifetimes)].tolist()):
        more = changes(False, how, expected_extension=expected, lifetime=lifetime)
        trained = kernel_forest(case, **more)
        assert trained.n_nodes <= grown.n_nodes
        alone = trained.predict_sums(queries, spread=True)
        assert alone.total.tobytes() == staged.total[i].tobytes()
        assert staged.square is not None
        assert alone.square is not None
        assert alone.square.tobytes() == staged.square[i].tobytes()
