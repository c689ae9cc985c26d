"""The values of a density's cells, and its risk at every lifetime, equal the slow reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmondrian import MondrianDensity
from dmondrian.ensemble.density_risk import cells_at, sweep_density
from tests.reference import densities
from tests.reference.cube import Cell, CubeTree

# Rows, features, lifetime, bound, seed: rows that gather, rows of the whole cube, few and many.
CASES = [
    (n, d, lifetime, bound, seed)
    for seed, (n, d, lifetime, bound) in enumerate(
        [
            (40, 1, 6.0, None),
            (40, 1, 6.0, 0.3),
            (80, 2, 4.0, None),
            (80, 2, 8.0, 1.0),
            (30, 3, 3.0, 2.0),
            (5, 2, 10.0, None),
            (1, 1, 8.0, None),
            (60, 1, 0.3, 4.0),
            (200, 1, 3.0, 6.0),
            (50, 2, 5.0, 30.0),
        ]
    )
]


def case(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.beta(2.0, 5.0, size=(n, d)) if seed % 3 else rng.random((n, d))
    return X.astype(np.float32), rng.integers(1, 4, n).astype(float)


def both(
    n: int, d: int, bound: float | None, seed: int, **options: Any
) -> tuple[MondrianDensity, CubeTree, float]:
    """Return a density of one tree, the reference's tree, and beta."""
    X, w = case(n, d, seed)
    options = {"lifetime": None, "max_lifetime": 12.0, "bound": bound} | options
    density = MondrianDensity(1, random_state=seed, **options).fit(X, sample_weight=w)
    tree = CubeTree(X, np.zeros(n), w, density.forest_.parameters.seed, 0, 0)
    return density, tree, max(1.0, float(np.log1p(w.sum()))) if bound is None else bound


def values_of(density: MondrianDensity, cells: list[Cell], *given: Any) -> np.ndarray:
    """Return the package's values of the reference's cells."""
    found = cells_at(density.forest_.trees[0], density.forest_.parameters.seed, 0, *given)
    beta = given[1]
    of_cell = {cell.lower + cell.upper: i for i, cell in enumerate(cells)}
    values = np.full(len(cells), -beta)
    for low, high, value in zip(found.lower, found.upper, found.values, strict=True):
        bounds = *low.astype(np.float32), *high.astype(np.float32)
        values[of_cell[bounds]] = value
    return values


@pytest.mark.parametrize(("n", "d", "lifetime", "bound", "seed"), CASES)
def test_the_minimizer_is_where_the_risk_is_least(n, d, lifetime, bound, seed) -> None:
    density, tree, beta = both(n, d, bound, seed)
    cells = densities.partition(tree, lifetime)
    shares, volumes = densities.shares_and_volumes(tree, cells)
    assert volumes.sum() == pytest.approx(1.0, rel=1e-12)
    mine = values_of(density, cells, lifetime, beta, "minimizer")
    low, high = densities.least(shares, volumes, beta)
    assert low - 1e-12 < densities.risk(mine, shares, volumes) < high + 1e-12
    # What makes a point the least of a convex function: no change within the limits pays.
    slopes = densities.slopes(mine, shares, volumes)
    assert np.abs(mine).max() <= beta
    assert (np.abs(slopes[np.abs(mine) < beta]) < 1e-12).all()
    assert (slopes[mine == beta] < 1e-12).all()
    assert (slopes[mine == -beta] > -1e-12).all()


def test_the_minimizer_never_has_more_risk_than_log_frequencies_and_mostly_less() -> None:
    gains = []
    for n, d, lifetime, bound, seed in CASES:
        density, tree, beta = both(n, d, bound, seed)
        cells = densities.partition(tree, lifetime)
        shares, volumes = densities.shares_and_volumes(tree, cells)
        each = {
            how: values_of(density, cells, lifetime, beta, how)
            for how in ("log_frequency", "minimizer")
        }
        expected = densities.log_frequencies(shares, volumes, beta)
        np.testing.assert_allclose(each["log_frequency"], expected, rtol=1e-12, atol=1e-12)
        risks = {how: densities.risk(c, shares, volumes) for how, c in each.items()}
        gains.append(risks["log_frequency"] - risks["minimizer"])
    assert min(gains) >= -1e-14
    assert sum(gain > 1e-7 for gain in gains) >= 5
    assert max(gains) > 1e-2


@pytest.mark.parametrize(
    ("n", "d", "lifetime", "bound", "seed", "cell_value"),
    [
        # Outside of the thorough run each case has one of the two, in turns.
        pytest.param(*case, value, marks=[pytest.mark.thorough] * ((i + k) % 2))
        for i, case in enumerate(CASES)
        for k, value in enumerate(("log_frequency", "minimizer"))
    ],
)
def test_the_sweep_is_brute_force(n, d, lifetime, bound, seed, cell_value) -> None:
    """The risk at every lifetime at which a cell is split, and what each penalty chooses."""
    n = min(n, 30)
    options = {"lifetime": "penalized", "max_lifetime": lifetime, "cell_value": cell_value}
    density, tree, beta = both(n, d, bound, seed, **options)
    forest = density.forest_
    times, risks = sweep_density(
        forest.trees[0], forest.parameters.seed, 0, lifetime, forest.parameters.cost
    )
    expected = densities.split_times(tree, lifetime)
    np.testing.assert_allclose(times, expected, rtol=1e-12)
    slow = []
    for time in expected:
        measured = densities.shares_and_volumes(tree, densities.partition(tree, time))
        slow.append(densities.risks(*measured, beta, cell_value))
    low, high = np.add(np.transpose(slow), [[-1e-11], [1e-11]])
    assert ((low <= risks) & (risks <= high)).all()
    assert np.median(high - low) < 1e-6
    for penalty in (0.0, 0.03, 0.2, 1.0, 10.0):
        chosen = MondrianDensity(1, random_state=seed, bound=bound, penalty=penalty, **options)
        chosen.fit(tree.X, sample_weight=tree.w)
        (at,) = np.flatnonzero(times == chosen.lifetime_)
        assert at in np.flatnonzero(low + penalty * times <= (high + penalty * times).min())
