"""Chosen lifetimes: of the order of the best one, on functions whose smoothness is known."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian import GeneralizedMondrianForestRegressor
from dmondrian.ensemble.lifetime_selection import sweep

N, TREES = 3000, 5
WAVES = {"slow": 1.0, "quick": 8.0}


def rows(waves: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.random((N, 1)).astype(np.float32)
    return X, np.sin(2.0 * np.pi * waves * X[:, 0]) + rng.normal(0.0, 0.5, N)


def forest(**options) -> GeneralizedMondrianForestRegressor:
    """Return a forest of rows as they are: rounding them turns the choice between near ties."""
    return GeneralizedMondrianForestRegressor(TREES, random_state=0, feature_units=None, **options)


def best_lifetime(waves: float) -> tuple[float, float]:
    """Return the lifetime of least error to the function, and that error."""
    X, y = rows(waves)
    grid = np.geomspace(1.0, 1000.0, 40)
    query = np.linspace(0.001, 0.999, 2000, dtype=np.float32)[:, None]
    truth = np.sin(2.0 * np.pi * waves * query[:, 0])
    free = forest(lifetime=None, max_lifetime=1000.0).fit(X, y)
    errors = [((reported - truth) ** 2).mean() for reported in free.staged_predict(query, grid)]
    return float(grid[np.argmin(errors)]), float(min(errors))


@pytest.mark.parametrize("name", sorted(WAVES))
def test_it_is_of_the_order_of_the_best(name: str) -> None:
    waves = WAVES[name]
    best, least = best_lifetime(waves)
    query = np.linspace(0.001, 0.999, 2000, dtype=np.float32)[:, None]
    truth = np.sin(2.0 * np.pi * waves * query[:, 0])
    for way in ("penalized", "prequential", "validation"):
        fitted = forest(lifetime=way, max_lifetime=1000.0).fit(*rows(waves))
        assert best / 4.0 < fitted.lifetime_ < 4.0 * best
        assert ((fitted.predict(query) - truth) ** 2).mean() < 2.0 * least


def test_a_quicker_function_asks_for_a_longer_lifetime() -> None:
    for way in ("penalized", "prequential", "validation"):
        chosen = [
            forest(lifetime=way, max_lifetime=1000.0).fit(*rows(w)).lifetime_ for w in (1.0, 8.0)
        ]
        assert chosen[1] > 2.0 * chosen[0]


def test_a_constant_asks_for_one_cell_or_a_few() -> None:
    X, _ = rows(1.0)
    y = np.random.default_rng(1).normal(size=N)
    for way in ("penalized", "prequential"):
        lifetimes = forest(lifetime=way, max_lifetime=1000.0).fit(X, y).lifetimes_
        assert np.median(lifetimes) < 2.0
        assert lifetimes.max() < 4.0


def test_without_noise_the_last_split_pays() -> None:
    X, _ = rows(1.0)
    fitted = forest(lifetime="penalized", max_lifetime=300.0).fit(X, X[:, 0])
    assert (fitted.lifetimes_ > 100.0).all()


def test_alpha_n_chooses_the_corner_nearest_to_mallows_choice() -> None:
    """By brute force over alpha: every lifetime that Equation 8 can choose at all."""
    X, y = rows(8.0)
    fitted = forest(lifetime="penalized", max_lifetime=300.0).fit(X[:400], y[:400])
    cost, policy = fitted.forest_.parameters.cost, fitted.forest_.policies.loss
    for tree, chosen in zip(fitted.forest_.trees, fitted.lifetimes_, strict=True):
        lifetimes, risks = sweep(tree, policy, cost)
        gains = -np.diff(risks)
        noise = gains[len(gains) // 2 :].mean()
        assert 0.2 < noise * 400 / 0.25 < 3.0  # of the order of the variance / n
        wanted = lifetimes[np.argmin(risks + 2.0 * noise * np.arange(len(risks)))]
        possible = {
            float(lifetimes[np.argmin(risks + alpha * lifetimes)])
            for alpha in np.geomspace(1e-8, 10.0, 20_000)
        } - {0.0}
        away = {at: abs(np.log(at / wanted)) for at in possible}
        assert chosen in possible
        assert away[chosen] == pytest.approx(min(away.values()), abs=1e-12)


def test_the_curve_has_its_least_where_the_held_out_one_has() -> None:
    best, _ = best_lifetime(1.0)
    path = forest(lifetime="prequential", max_lifetime=1000.0).fit(*rows(1.0)).lifetime_path_
    curve = path.risks.mean(axis=0)
    assert best / 4.0 < path.lifetimes[np.argmin(curve)] < 4.0 * best
    assert curve[0] > 1.2 * curve.min()
    assert curve[-1] > 1.2 * curve.min()
