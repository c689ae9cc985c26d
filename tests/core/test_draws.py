"""Draws and elementary functions: right to the last digits, the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from dmondrian.core import draws, weights


def test_log_and_exp_agree_with_the_library() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([10.0 ** rng.uniform(-300, 300, 2000), 1 + rng.normal(0, 1e-6, 500)])
    found = np.array([draws.log(x) for x in values])
    np.testing.assert_allclose(found, np.log(values), rtol=4e-16, atol=1e-21)
    exponents = np.concatenate([rng.uniform(-700, 700, 2000), rng.normal(0, 1e-3, 500)])
    found = np.array([draws.exp(x) for x in exponents])
    np.testing.assert_allclose(found, np.exp(exponents), rtol=3e-15)
    assert np.isnan([draws.log(np.inf), draws.log(np.nan)]).all()
    assert draws.log(1.0) == 0.0
    assert draws.exp(-1000.0) == 0.0
    assert draws.exp(1000.0) == np.inf


def test_gamma_functions_agree_with_the_library() -> None:
    values = 10.0 ** np.random.default_rng(1).uniform(-3, 8, 1000)
    np.testing.assert_allclose(
        [draws.log_gamma(x) for x in values], special.gammaln(values), rtol=1e-12, atol=1e-11
    )
    np.testing.assert_allclose(
        [draws.trigamma(x) for x in values], special.polygamma(1, values), rtol=1e-11
    )


def test_uniforms_are_uniform_and_never_zero_or_one() -> None:
    key = np.uint64(draws.tree_key(np.uint64(7), np.uint64(3)))
    rows = [draws.row_key(key, np.float64(n).view(np.uint64)) for n in range(4000)]
    for k in (1, 2):
        values = np.array([draws.uniform(np.uint64(row), k) for row in rows])
        assert 0.0 < values.min() < values.max() < 1.0
        assert stats.kstest(values, "uniform").pvalue > 1e-3
    other = np.uint64(draws.tree_key(np.uint64(7), np.uint64(4)))
    zero = np.uint64(0)
    assert draws.row_key(other, zero) != draws.row_key(key, zero)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e3])
def test_weights_neither_overflow_nor_lose_digits(size: float) -> None:
    rng = np.random.default_rng(2)
    logs = rng.normal(0, 300 * size, (200, 2))
    for a, b in logs:
        m, k = weights.add(*weights.from_log(a), *weights.from_log(b))
        expected = np.logaddexp(a, b)
        assert np.log(m) + k * 256 * np.log(2) == pytest.approx(expected, rel=1e-12, abs=1e-12)
