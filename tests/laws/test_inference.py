"""Laws of forests' means: cells (O2, O3), bias, variance and rates (O16), and CKU's intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dmondrian import MondrianForestRegressor, PowerLifetime
from dmondrian.uncertainty.confidence import RATIO, debiasing_weights, weight_norms
from tests.laws.test_residuals import LEVEL
from tests.reference.cube import Cell, CubeTree


def n_cells(cell: Cell, lifetime: float) -> int:
    none = np.empty((0, len(cell.lower)), np.float32)
    if cell.split()[0] > lifetime:
        return 1
    return sum(n_cells(cell.child(none, side), lifetime) for side in (True, False))


@pytest.mark.parametrize(("d", "lifetime"), [(1, 3.0), (2, 2.0), (3, 1.0)])
def test_the_number_of_cells(d: int, lifetime: float) -> None:
    """O3: E[cells] = prod (1 + lifetime); O2: on a line they are 1 + Poisson(lifetime)."""
    nothing = np.empty((0, d), np.float32)
    counts = np.array(
        [
            n_cells(CubeTree(nothing, np.empty(0), np.empty(0), d, tree, 0).root(), lifetime)
            for tree in range(1500)
        ]
    )
    error = counts.std() / np.sqrt(len(counts))
    assert abs(counts.mean() - (1.0 + lifetime) ** d) < stats.norm.isf(LEVEL / 2) * error
    if d == 1:
        law = stats.poisson(lifetime)
        expected = len(counts) * np.append(law.pmf(range(8)), law.sf(7))
        seen = np.bincount(np.minimum(counts - 1, 8), minlength=9)
        assert stats.chisquare(seen, expected).pvalue > LEVEL


def n_meeting(cell: Cell, lifetime: float, low: np.ndarray, high: np.ndarray) -> int:
    """Return the number of cells that meet the inside of a box."""
    none = np.empty((0, len(cell.lower)), np.float32)
    if (np.asarray(cell.upper) <= low).any() or (np.asarray(cell.lower) >= high).any():
        return 0
    if cell.split()[0] > lifetime:
        return 1
    return sum(n_meeting(cell.child(none, side), lifetime, low, high) for side in (True, False))


def test_what_a_box_sees_is_the_mondrian_process_of_the_box() -> None:
    """O6 by O3: cells that meet a box of sides a are prod (1 + lifetime a_j), not those of all."""
    low, high, lifetime = np.array([0.2, 0.1]), np.array([0.7, 0.5]), 3.0
    nothing = np.empty((0, 2), np.float32)
    counts = np.array(
        [
            n_meeting(
                CubeTree(nothing, np.empty(0), np.empty(0), 7, tree, 0).root(), lifetime, low, high
            )
            for tree in range(1500)
        ]
    )
    error = counts.std() / np.sqrt(len(counts))
    expected = np.prod(1.0 + lifetime * (high - low))
    assert abs(counts.mean() - expected) < stats.norm.isf(LEVEL / 2) * error


def waves(X: np.ndarray) -> np.ndarray:
    return np.sin(2.0 * np.pi * X.astype(np.float64)).mean(axis=1)


def inside(n: int, d: int) -> np.ndarray:
    """Return points away from the surface of the cube."""
    return np.random.default_rng(9).uniform(0.3, 0.7, (n, d)).astype(np.float32)


def test_debiasing_keeps_constants_and_cancels_the_square() -> None:
    for ratio in (1.2, RATIO, 3.0):
        plain, wide = debiasing_weights(ratio)
        assert plain + wide == pytest.approx(1.0, rel=1e-14)
        assert plain + wide / ratio**2 == pytest.approx(0.0, abs=1e-14)
    np.testing.assert_allclose(debiasing_weights(), [-0.8, 1.8], rtol=1e-14)


def test_the_bias_of_a_large_forest() -> None:
    """O16: f'' / (2 lifetime^2), which debiasing takes away; rows on a grid, without noise."""
    X = ((np.arange(8000) + 0.5) / 8000.0).astype(np.float32)[:, None]
    X = np.random.default_rng(0).permutation(X)
    y = 50.0 * (X[:, 0].astype(np.float64) - 0.5) ** 2
    lifetime = 15.0
    forest = MondrianForestRegressor(600, domain="cube", lifetime=RATIO * lifetime, random_state=0)
    forest.fit(X, y)
    query = np.array([[0.5]], np.float32)  # where the slope, and so the noise of cells, vanishes
    found = float(forest.predict(query, lifetime=lifetime)[0])
    std = y.std() * 0.1  # generous: a cell's mean is of the order of its bias
    assert found == pytest.approx(50.0 / lifetime**2, abs=4.0 * std / np.sqrt(600.0))
    assert abs(float(forest.predict_debiased(query, lifetime)[0])) < 0.3 * found


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.thorough(but="2")
def test_the_variance_of_a_large_forest(d: int) -> None:
    """n ||W||^2 -> prod 2 int g_l g_k, derived in confidence.py, plain and debiased."""
    n, lifetime = 10_000, 10.0
    X = np.random.default_rng(d).random((n, d)).astype(np.float32)
    both = np.array([lifetime, RATIO * lifetime])
    forest = MondrianForestRegressor(250, domain="cube", lifetime=both[1], random_state=0)
    forest.fit(X, np.zeros(n))

    def overlap(a: float, b: float) -> float:
        sides = a * (1.0 - a / b * np.log1p(b / a)) + b * (1.0 - b / a * np.log1p(a / b))
        return float(2.0 / 3.0 * sides) ** d

    law = np.array([[overlap(a, b) for b in both] for a in both])
    for lifetimes, shares in ((both[:1], np.ones(1)), (both, debiasing_weights())):
        k = len(shares)
        norms = weight_norms(forest.forest_, inside(60, d), X, lifetimes, shares)
        assert n * np.mean(norms**2) == pytest.approx(shares @ law[:k, :k] @ shares, rel=0.12)


def test_debiased_forests_have_the_better_rate() -> None:
    """O16: at lifetimes n^(1/(d+8)), -4 / (d+8) against -8 / (d+8) for a smooth function.

    Errors are those of infinitely many trees: products of the errors of independent halves.
    """
    steps, growth, query = (
        [2**k for k in (8, 10, 12)],
        PowerLifetime(4.0, 1.0 / 9.0),
        inside(300, 1),
    )
    errors = np.zeros((2, len(steps)))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X = rng.random((steps[-1], 1)).astype(np.float32)
        y, truth = waves(X) + rng.normal(0.0, 1.0, len(X)), waves(query)
        top = RATIO * growth.at(steps[-1])
        halves = [
            MondrianForestRegressor(150, domain="cube", lifetime=top, random_state=2 * seed + half)
            for half in range(2)
        ]
        for i, n in enumerate(steps):
            for half in halves:
                done = steps[i - 1] if i else 0
                half.partial_fit(X[done:n], y[done:n])
            at = growth.at(n)
            plain = [half.predict(query, lifetime=at) - truth for half in halves]
            debiased = [half.predict_debiased(query, at) - truth for half in halves]
            errors[:, i] += np.mean(plain[0] * plain[1]), np.mean(debiased[0] * debiased[1])
    slopes = [np.polyfit(np.log(steps), np.log(error), 1)[0] for error in errors]
    assert slopes[0] > -4.0 / 9.0 - 0.1
    assert slopes[1] == pytest.approx(-8.0 / 9.0, rel=0.2)
    assert errors[1, -1] < errors[0, -1] / 3.0


def test_confidence_intervals_hold_the_mean() -> None:
    """CKU: at lifetimes whose bias is no longer small, debiasing restores coverage."""
    n, lifetime, query = 600, 9.0, inside(10, 1)
    held, n_sets = np.zeros(2), 40  # plain and debiased
    for seed in range(n_sets):
        rng = np.random.default_rng(seed)
        X = rng.random((n, 1)).astype(np.float32)
        y = waves(X) + rng.normal(0.0, 0.5, n)
        forest = MondrianForestRegressor(
            60, domain="cube", lifetime=RATIO * lifetime, random_state=seed
        ).fit(X, y)
        for i, debias in enumerate((False, True)):
            lower, upper = forest.confidence_interval(
                query, X, level=0.9, lifetime=lifetime, debias=debias
            )
            held[i] += np.mean((lower <= waves(query)) & (waves(query) <= upper)) / n_sets
    assert 0.82 < held[1] < 0.97
    assert held[0] < held[1] - 0.15
