"""Closed forms of trees with a lifetime: O4, O5, O7, O9 and O10 on the range and on the cube."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from dmondrian.ensemble.settings.lifetime import PowerLifetime
from dmondrian.forest.forest import Forest
from tests.laws.grow import grow_forest, nodes_of, time_of_parting
from tests.laws.test_residuals import LEVEL, ORDERS, cloud, ordered

MEAN = {"algorithm": "mondrian-forest-classifier", "aggregation": "mean"}


def on_cube(X: np.ndarray, n_trees: int, **more: object) -> Forest:
    values = {"domain": "cube", "lifetime": PowerLifetime()} | more
    return grow_forest(X, n_trees=n_trees, **(MEAN | values))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lifetime", [0.3, 1.5])
def test_residuals_are_exponential_up_to_the_lifetime(order: str, lifetime: float) -> None:
    """O7: waits of nodes are exponential, censored where the lifetime comes first."""
    X = ordered(cloud(100, 3, seed=4), order)
    forest = grow_forest(X, n_trees=120, seed=3, lifetime=lifetime, **MEAN)
    n_splits, exposure, places = 0, 0.0, []
    for nodes in nodes_of(forest):
        parent = nodes["parent"]
        born = np.where(parent >= 0, nodes["time"][parent], 0.0)
        sizes = (nodes["upper"].astype(float) - nodes["lower"]).sum(axis=1)
        inside = nodes["left"] >= 0
        assert (nodes["time"][inside] <= lifetime).all()
        waits = (np.minimum(nodes["time"], lifetime) - born) * sizes
        n_splits += int(inside.sum())
        exposure += float(waits.sum())
        ends = ((lifetime - born) * sizes)[inside]
        places.append(np.expm1(-waits[inside]) / np.expm1(-ends))
    assert abs(n_splits - exposure) < stats.norm.isf(LEVEL / 2) * np.sqrt(exposure)
    assert stats.kstest(np.concatenate(places), "uniform").pvalue > LEVEL


@pytest.mark.parametrize("order", range(3))
@pytest.mark.thorough(but="1")
def test_any_two_rows_on_the_cube_part_as_if_alone(order: int) -> None:
    """O5: P(one cell at lifetime t) = exp(-t |x - x'|_1), whatever other rows there are."""
    X = np.random.default_rng(1).random((6, 2)).astype(np.float32)
    X = X[np.random.default_rng(order).permutation(6)]
    times = np.array([time_of_parting(nodes, X) for nodes in nodes_of(on_cube(X, 3000))])
    for i, j in itertools.combinations(range(len(X)), 2):
        distance = float(np.abs(X[i].astype(float) - X[j].astype(float)).sum())
        assert stats.kstest(times[:, i, j] * distance, "expon").pvalue > LEVEL, (i, j)


@pytest.mark.parametrize("lifetime", [1.0, 4.0])
@pytest.mark.thorough(but="4.0")
def test_cells_with_rows_on_a_line(lifetime: float) -> None:
    """O9 and O10: cells with rows, less one, are a sum of Bernoulli(1 - exp(-lifetime gap))."""
    points = np.array([0.01, 0.1, 0.15, 0.5, 0.6, 0.97], np.float32)
    law = np.ones(1)
    for gap in np.diff(points.astype(float)):
        chance = -np.expm1(-lifetime * gap)
        law = np.convolve(law, [1.0 - chance, chance])
    for more in ({"lifetime": lifetime}, {}):
        trees = nodes_of(on_cube(points[:, None], 3000, **more))
        seen = np.zeros(len(law))
        for nodes in trees:
            parent = nodes["parent"]
            born = np.where(parent >= 0, nodes["time"][parent], 0.0)
            is_cell = (born <= lifetime) & (nodes["time"] > lifetime) & (nodes["n_rows"] > 0)
            seen[int(is_cell.sum()) - 1] += 1
        expected = law * len(trees)
        merged = [np.append(a[expected >= 5.0], a[expected < 5.0].sum()) for a in (seen, expected)]
        if merged[1][-1] < 5.0:
            merged = [np.append(a[:-2], a[-2:].sum()) for a in merged]
        assert stats.chisquare(*merged).pvalue > LEVEL


@pytest.mark.parametrize("lifetime", [0.5, 3.0])
def test_a_point_shares_the_cell_of_another_by_their_distance(lifetime: float) -> None:
    """O5 where no tree was split: below a leaf of one point the cells are drawn when asked for."""
    X = np.array([[0.4, 0.7, 0.1]], np.float32)
    forest = on_cube(X, 4000, empty_prior=True)
    assert forest.n_nodes == 4000
    query = np.array([[0.5, 0.7, 0.35]], np.float32)
    total = forest.predict_sums(query, lifetimes=np.array([lifetime])).total[0, 0, 0]
    together = round(2.0 * (total - 0.5 * 4000))  # one in the cell of the row, a half outside
    chance = float(np.exp(-0.35 * lifetime))
    assert stats.binomtest(together, 4000, chance).pvalue > LEVEL


def test_the_cell_of_a_point_reaches_exponentially_far() -> None:
    """O4: how far to the right of x its cell goes, cut off at the surface of the cube."""
    line = np.linspace(0.2, 1.0, 161, dtype=np.float32)
    X = np.stack([line, np.full(161, 0.5, np.float32)], axis=1)
    lifetime = 5.0
    reach = []
    for nodes in nodes_of(on_cube(X, 2000, lifetime=lifetime)):
        v = int(nodes["root"])
        while nodes["left"][v] >= 0:
            goes_left = X[0, nodes["feature"][v]] <= nodes["threshold"][v]
            v = int(nodes["left" if goes_left else "right"][v])
        reach.append(float(nodes["upper"][v, 0]) - 0.2)
    steps = np.rint(np.array(reach) / 0.005).astype(int)  # whole steps of the line
    edges = [0, 5, 10, 20, 40, 80, 160]
    seen = np.histogram(steps, bins=[*edges, 161])[0]
    tail = np.exp(-lifetime * 0.005 * np.array(edges))  # P(at least so many steps)
    expected = len(reach) * (tail - np.append(tail[1:], 0.0))
    assert stats.chisquare(seen, expected).pvalue > LEVEL


@pytest.mark.parametrize("domain", ["range", "cube"])
def test_without_discounts_the_hierarchy_predicts_frequencies(domain: str) -> None:
    """O17: D = 0 gives the frequencies of the cell."""
    rng = np.random.default_rng(0)
    X, y = rng.random((80, 2)).astype(np.float32), rng.integers(0, 3, 80).astype(float)
    how = {"algorithm": MEAN["algorithm"], "domain": domain, "lifetime": 3.0}
    smooth, plain = (
        grow_forest(X, y, n_trees=3, n_classes=3, aggregation=aggregation, **(how | more))
        for aggregation, more in (("hierarchy", {"discount": 1e12}), ("mean", {}))
    )
    found, expected = (forest.predict_sums(X).total for forest in (smooth, plain))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    how |= {"discount": 0.5}
    tight = grow_forest(X, y, n_trees=3, n_classes=3, aggregation="hierarchy", **how)
    assert np.abs(tight.predict_sums(X).total - expected).max() > 0.01


@pytest.mark.parametrize("domain", ["range", "cube"])
def test_whole_discounts_copy_the_parent_where_all_counts_are_one(domain: str) -> None:
    """O17: D = 1 and counts of 1; the root's parent is uniform."""
    X, y = np.array([[0.1, 0.2], [0.9, 0.7]], np.float32), np.array([0.0, 1.0])
    how = {"domain": domain, "lifetime": 50.0, "discount": 1e-15, "aggregation": "hierarchy"}
    forest = grow_forest(X, y, n_trees=3, n_classes=3, algorithm=MEAN["algorithm"], **how)
    assert all(len(nodes["left"]) > 1 for nodes in nodes_of(forest))
    np.testing.assert_allclose(forest.predict_sums(X).total / 3.0, 1.0 / 3.0, atol=1e-12)


@pytest.mark.parametrize("span", [0.4, 5.0])
def test_the_expected_discount_is_the_mean_over_branches(span: float) -> None:
    """O17: draw where x branches off a leaf, smooth down that tree, and average."""
    distance, gamma, n_draws = 0.75, 2.0, 200_000
    waits = np.random.default_rng(0).exponential(1.0 / distance, n_draws)
    discount = np.exp(-gamma * np.minimum(waits, span))  # of the branch, or of the leaf
    drawn = (1.0 - discount) + 0.5 * discount  # one row of class 0, two classes
    forest = grow_forest(
        np.zeros((1, 2), np.float32),
        algorithm=MEAN["algorithm"],
        aggregation="hierarchy",
        lifetime=span,
        discount=gamma,
        expected_extension=True,
    )
    found = forest.predict_sums(np.array([[0.5, -0.25]], np.float32)).total[0]
    assert abs(found[0] - drawn.mean()) < 4.0 * drawn.std() / np.sqrt(n_draws)
    assert found.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("d", [1, 2])
def test_the_error_of_a_tree_falls_at_the_minimax_rate(d: int) -> None:
    """O16: lambda_n ~ n^(1/(d+2)) gives n^(-2/(d+2)) for a Lipschitz function, within 15 %."""

    def zigzag(X: np.ndarray) -> np.ndarray:
        return np.abs(2.0 * (2.0 * X.mean(axis=1) % 1.0) - 1.0)

    steps = [2**k for k in (10, 12, 14, 16)]
    rng = np.random.default_rng(d)
    X, query = (rng.random((n, d)).astype(np.float32) for n in (steps[-1], 3000))
    y, truth = zigzag(X) + rng.normal(0.0, 0.5, len(X)), zigzag(query)
    growth = PowerLifetime(2.0, 1.0 / (d + 2))
    how = {"algorithm": "mondrian-forest-regressor", "aggregation": "mean", "domain": "cube"}
    how |= {"n_classes": 0, "lifetime": growth.at(steps[-1]), "seed": d}
    forest = grow_forest(X[:0], n_trees=20, **how)
    errors, done = [], 0
    for n in steps:
        forest.update(X[done:n], y[done:n])
        sums = forest.predict_sums(query, spread=True, lifetimes=np.array([growth.at(n)]))
        assert sums.square is not None
        center, mean = truth - sums.origin, sums.mean[0, :, 0] - sums.origin
        one_tree = sums.square[0, :, 0] / sums.n_trees - 2.0 * center * mean + center**2
        errors.append(float(np.mean(one_tree)))
        done = n
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert slope == pytest.approx(-2.0 / (d + 2.0), rel=0.15)
