"""O5: inner products of features estimate the Laplace kernel, with an error of 1 / sqrt(T)."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian import MondrianFeatures

LIFETIME = 5.0


def worst(domain: str, n_components: int, seed: int, is_fitted: bool) -> float:
    X = np.random.default_rng(seed).random((40, 2), dtype=np.float32)
    features = MondrianFeatures(n_components, lifetime=LIFETIME, domain=domain, random_state=seed)
    phi = features.fit(X if is_fitted else X[:20]).transform(X)
    if not is_fitted:
        phi = features.partial_fit(X[20:]).transform(X)
    distances = np.abs(X[:, None].astype(float) - X[None]).sum(axis=2)
    return float(np.abs((phi @ phi.T).toarray() - np.exp(-LIFETIME * distances)).max())


@pytest.mark.parametrize("is_fitted", [True, False])
@pytest.mark.parametrize("domain", ["cube", "range"])
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
        phi = MondrianFeatures(20_000, lifetime=3.0, domain=domain, random_state=1).fit_transform(X)
        for (i, j), apart in {(0, 1): 0.05, (1, 2): 0.3, (0, 2): 0.35}.items():
            p = np.exp(-3.0 * apart)
            found = (phi[i] @ phi[j].T).toarray()[0, 0]
            assert abs(found - p) < 4.0 * np.sqrt(p * (1 - p) / 20_000), (domain, i, j)


def test_rows_that_were_not_fitted_have_the_kernel_with_those_that_were() -> None:
    """The conditional Mondrian: a row outside all boxes is parted as if it had been fitted."""
    fitted, T = np.array([[0.0, 0.0], [0.2, 0.1]], np.float32), 20_000
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
