"""Oracles O1, O5, O8, O9: closed forms of small trees, against many independent ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from tests.laws.grow import depths, grow_forest, nodes_of, time_of_parting

LEVEL = 1e-4  # seeds are fixed: see test_residuals
ORDERS = (slice(None), slice(None, None, -1), [3, 0, 5, 1, 4, 2])


@pytest.mark.parametrize("lifetime", [0.1, 0.5, 2.0])
@pytest.mark.thorough(but="0.5")
def test_two_points_part_with_the_exponential_of_their_distance(lifetime: float) -> None:
    """O5 and O9: P(one cell at lifetime t) = exp(-t |x - x'|_1)."""
    X = np.array([[0.0, 1.0, -2.0], [0.5, 1.25, -2.0]], np.float32)
    times = np.array(
        [nodes["time"][nodes["root"]] for nodes in nodes_of(grow_forest(X, n_trees=4000))]
    )
    assert stats.kstest(times, "expon", args=(0.0, 1.0 / 0.75)).pvalue > LEVEL
    parted = int((times <= lifetime).sum())
    chance = -np.expm1(-0.75 * lifetime)
    assert stats.binomtest(parted, len(times), chance).pvalue > LEVEL


def test_first_split_picks_feature_and_place_in_proportion() -> None:
    """O1 on the box of the data, whichever row came last."""
    X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    low, high = X.min(axis=0).astype(float), X.max(axis=0).astype(float)
    sides = high - low
    for order in ORDERS:
        trees = nodes_of(grow_forest(X[order], n_trees=3000, seed=5))
        roots = [int(nodes["root"]) for nodes in trees]
        picked = np.array([n["feature"][r] for n, r in zip(trees, roots, strict=True)])
        times = np.array([n["time"][r] for n, r in zip(trees, roots, strict=True)])
        cuts = np.array([n["threshold"][r] for n, r in zip(trees, roots, strict=True)], float)
        expected = len(trees) * sides / sides.sum()
        assert stats.chisquare(np.bincount(picked, minlength=3), expected).pvalue > LEVEL
        assert stats.kstest(times * sides.sum(), "expon").pvalue > LEVEL
        place = (cuts - low[picked]) / sides[picked]
        assert stats.kstest(place, "uniform").pvalue > LEVEL


@pytest.mark.parametrize("order", range(len(ORDERS)))
@pytest.mark.thorough(but="2")
def test_any_two_rows_of_a_larger_stream_part_as_if_alone(order: int) -> None:
    """O5 with O6: other rows, before or after, change nothing between two of them."""
    X = np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)[ORDERS[order]]
    trees = nodes_of(grow_forest(X, n_trees=3000, seed=order))
    times = np.array([time_of_parting(nodes, X) for nodes in trees])
    for i, j in itertools.combinations(range(len(X)), 2):
        distance = float(np.abs(X[i].astype(float) - X[j].astype(float)).sum())
        p = stats.kstest(times[:, i, j] * distance, "expon").pvalue
        assert p > LEVEL, (i, j)


@pytest.mark.parametrize("order", range(len(ORDERS)))
@pytest.mark.thorough(but="2")
def test_mean_depths_on_a_line(order: int) -> None:
    """O8: the cut of gap i rings at Exp(g_i); the tree is the Cartesian tree of these times."""
    points = np.array([0.0, 0.1, 0.15, 1.0, 1.6, 4.0], np.float32)
    gaps = np.diff(points.astype(float))
    expected = [
        sum(gaps[i] / gaps[i:k].sum() for i in range(k))
        + sum(gaps[i] / gaps[k : i + 1].sum() for i in range(k, len(gaps)))
        for k in range(len(points))
    ]
    X = points[:, None]
    trees = nodes_of(grow_forest(X[ORDERS[order]], n_trees=4000, seed=order))
    found = np.array([depths(nodes, X) for nodes in trees], float)
    error = (found.mean(axis=0) - expected) / (found.std(axis=0) / np.sqrt(len(found)))
    assert np.abs(error).max() < stats.norm.isf(LEVEL / 2)


@pytest.mark.parametrize("order", range(len(ORDERS)))
@pytest.mark.parametrize("lifetime", [0.3, 1.5])
@pytest.mark.thorough(but="1.5-2")
def test_number_of_cells_on_a_line(order: int, lifetime: float) -> None:
    """O9: cells - 1 is a sum of independent Bernoulli(1 - exp(-lifetime gap))."""
    points = np.array([0.0, 0.1, 0.15, 1.0, 1.6, 4.0], np.float32)
    law = np.ones(1)
    for gap in np.diff(points.astype(float)):
        chance = -np.expm1(-lifetime * gap)
        law = np.convolve(law, [1.0 - chance, chance])
    trees = nodes_of(grow_forest(points[ORDERS[order], None], n_trees=4000, seed=7))
    cuts = [int((nodes["time"] <= lifetime).sum()) for nodes in trees]
    seen = np.bincount(cuts, minlength=len(law)).astype(float)
    common = law * len(trees) >= 5.0  # chi-square needs filled bins: pool the rare ones
    pooled = [np.append(a[common], a[~common].sum()) for a in (seen, law * len(trees))]
    if pooled[1][-1] < 1.0:
        pooled = [np.append(a[:-2], a[-2:].sum()) for a in pooled]
    assert stats.chisquare(*pooled).pvalue > LEVEL
