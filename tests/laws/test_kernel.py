"""O5: inner products of features estimate the Laplace kernel, with an error of 1 / sqrt(T)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from dmondrian import MondrianFeatures
from dmondrian.joint_fit.cell_columns import columns_of

LIFETIME = 5.0


def worst(domain: str, n_components: int, seed: int, is_fitted: bool) -> float:
    X = np.random.default_rng(seed).random((40, 2), dtype=np.float32)
    features = MondrianFeatures(n_components, lifetime=LIFETIME, domain=domain, random_state=seed)
    phi = features.fit(X if is_fitted else X[:20]).transform(X)
    if not is_fitted:
        phi = features.partial_fit(X[20:]).transform(X)
    distances = np.abs(X[:, None].astype(float) - X[None]).sum(axis=2)
    return float(np.abs((phi @ phi.T).toarray() - np.exp(-LIFETIME * distances)).max())


@pytest.mark.parametrize(
    ("domain", "is_fitted"),
    [
        ("cube", True),
        ("range", False),
        pytest.param("cube", False, marks=pytest.mark.thorough),
        pytest.param("range", True, marks=pytest.mark.thorough),
    ],
)
def test_errors_fall_as_one_over_the_root_of_the_partitions(domain: str, is_fitted: bool) -> None:
    sizes = (20, 80, 320, 1280)
    errors = [np.mean([worst(domain, T, seed, is_fitted) for seed in range(4)]) for T in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.62 < slope < -0.38, errors
    # The largest of 780 binomial errors of variance at most 1 / (4 T).
    assert errors[-1] < 5.0 * 0.5 / np.sqrt(sizes[-1])


def test_probabilities_of_single_pairs_are_exact() -> None:
    X = np.array([[0.1, 0.2], [0.15, 0.2], [0.15, 0.5]], np.float32)
    for domain in ("cube", "range"):
        phi = MondrianFeatures(6_000, lifetime=3.0, domain=domain, random_state=1).fit_transform(X)
        for (i, j), apart in {(0, 1): 0.05, (1, 2): 0.3, (0, 2): 0.35}.items():
            p = np.exp(-3.0 * apart)
            found = (phi[i] @ phi[j].T).toarray()[0, 0]
            assert abs(found - p) < 4.0 * np.sqrt(p * (1 - p) / 6_000), (domain, i, j)


def test_rows_that_were_not_fitted_have_the_kernel_with_those_that_were() -> None:
    """The conditional Mondrian: a row outside all boxes is parted as if it had been fitted."""
    fitted, T = np.array([[0.0, 0.0], [0.2, 0.1]], np.float32), 6_000
    unseen = np.array([[0.5, 0.0], [0.1, 0.05], [-0.3, 0.4], [0.2, 0.1]], np.float32)
    features = MondrianFeatures(T, lifetime=2.0, unseen="extend", random_state=1)
    known, phi = features.fit_transform(fitted), features.transform(unseen)
    found = (phi @ known.T).toarray()
    p = np.exp(-2.0 * np.abs(unseen[:, None].astype(float) - fitted[None]).sum(axis=2))
    assert np.abs(found - p).max() < 4.0 * 0.5 / np.sqrt(T)
    again = features.transform(unseen[::-1])[::-1]
    assert (again != phi).nnz == 0
    assert (features.transform(fitted) != known).nnz == 0
    nearest = MondrianFeatures(T, lifetime=2.0, random_state=1).fit(fitted)
    biased = (nearest.transform(unseen) @ known.T).toarray()
    assert np.abs(biased - p).max() > 0.1
    assert nearest.transform(unseen).nnz == T * len(unseen)


def in_one_cell(X: np.ndarray, domain: str, n_components: int) -> np.ndarray:
    """Return whether each partition has a pair in one cell, for all pairs, bool [n, n, T]."""
    features = MondrianFeatures(n_components, lifetime=2.0, domain=domain, random_state=3).fit(X)
    cells = columns_of(features.forest_, X)
    return cells[:, None] == cells[None]


@pytest.mark.parametrize("domain", ["cube", "range"])
@pytest.mark.thorough(but="cube")
def test_the_error_of_a_pair_is_that_of_a_binomial_share(domain: str) -> None:
    """B16, Proposition 2: M k_M(x, x') is binomial, so each error has an exponential tail in M."""
    X = np.array([[0.1, 0.2], [0.15, 0.25], [0.4, 0.3]], np.float32)
    size, n_blocks = 12, 800
    found = in_one_cell(X, domain, size * n_blocks).reshape(3, 3, n_blocks, size).sum(axis=3)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        p = float(np.exp(-2.0 * np.abs(X[i].astype(float) - X[j]).sum()))
        law = stats.binom(size, p).pmf(np.arange(size + 1)) * n_blocks
        seen = np.bincount(found[i, j], minlength=size + 1)
        is_common = law > 10.0
        observed = [*seen[is_common], seen[~is_common].sum()]
        expected = [*law[is_common], law[~is_common].sum()]
        assert stats.chisquare(observed, expected).pvalue > 1e-4, (i, j)


@pytest.mark.parametrize("domain", ["cube", "range"])
@pytest.mark.thorough(but="range")
def test_the_largest_error_over_a_grid_is_within_an_exponential_bound(domain: str) -> None:
    """B16, Proposition 2: P(sup > delta) falls as exp(-c M), over all pairs at once."""
    side = np.linspace(0.0, 1.0, 6, dtype=np.float32)
    X = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    n, total, delta = len(X), 12_800, 0.15
    exact = np.exp(-2.0 * np.abs(X[:, None].astype(float) - X[None]).sum(axis=2))
    together = in_one_cell(X, domain, total)
    chances = []
    for size in (50, 100, 200, 400):
        shares = together.reshape(n, n, -1, size).mean(axis=3)
        worst = np.abs(shares - exact[:, :, None]).max(axis=(0, 1))
        chances.append(float((worst > delta).mean()))
        # Hoeffding's bound for each of the pairs, summed; four deviations of the share of blocks.
        bound = min(1.0, n * (n - 1) * np.exp(-2.0 * size * delta**2))
        assert chances[-1] <= bound + 4.0 * np.sqrt(bound * (1.0 - bound) / len(worst)) + 1e-12
    assert chances[0] > 0.5, chances
    # At twice M the chance is about squared: faster than any power of M.
    for former, later in pairwise(chances):
        assert later <= former**2 + 0.1, chances
