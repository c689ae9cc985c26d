"""Draws and elementary functions: right to the last digits, the same on every machine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from dmondrian.losses import kt
from dmondrian.tree import keyed_random, scaled_float


def test_log_and_exp_agree_with_the_library() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([10.0 ** rng.uniform(-300, 300, 2000), 1 + rng.normal(0, 1e-6, 500)])
    found = np.array([keyed_random.log(x) for x in values])
    np.testing.assert_allclose(found, np.log(values), rtol=4e-16, atol=1e-21)
    exponents = np.concatenate([rng.uniform(-700, 700, 2000), rng.normal(0, 1e-3, 500)])
    found = np.array([keyed_random.exp(x) for x in exponents])
    np.testing.assert_allclose(found, np.exp(exponents), rtol=3e-15)
    assert np.isnan([keyed_random.log(np.inf), keyed_random.log(np.nan)]).all()
    assert keyed_random.log(1.0) == 0.0
    small = np.array([5e-324, 5e-320, 2.0**-1023, 2.0**-1022])
    np.testing.assert_allclose([keyed_random.log(x) for x in small], np.log(small), rtol=4e-16)
    assert keyed_random.exp(-1000.0) == 0.0
    assert keyed_random.exp(1000.0) == np.inf


def test_gamma_functions_agree_with_the_library() -> None:
    values = 10.0 ** np.random.default_rng(1).uniform(-3, 8, 1000)
    np.testing.assert_allclose(
        [keyed_random.log_gamma(x) for x in values], special.gammaln(values), rtol=1e-12, atol=1e-11
    )
    np.testing.assert_allclose(
        [keyed_random.trigamma(x) for x in values], special.polygamma(1, values), rtol=1e-11
    )


def test_a_table_of_log_gamma_equals_the_recurrence() -> None:
    near = [np.nextafter(9.5, 0.0), np.nextafter(9.5, 10.0), 0.25, 11.75]  # whose bits are others
    values = [*(0.5 * np.arange(1, 60)), *near]
    recurrence = keyed_random.log_gamma_by_recurrence
    assert [keyed_random.log_gamma(x) for x in values] == [recurrence(x) for x in values]


def test_uniforms_are_uniform_and_never_zero_or_one() -> None:
    key = np.uint64(keyed_random.tree_key(np.uint64(7), np.uint64(3)))
    rows = [keyed_random.row_key(key, np.float64(n).view(np.uint64)) for n in range(4000)]
    for k in (1, 2):
        values = np.array([keyed_random.uniform(np.uint64(row), k) for row in rows])
        assert 0.0 < values.min() < values.max() < 1.0
        assert stats.kstest(values, "uniform").pvalue > 1e-3
    other = np.uint64(keyed_random.tree_key(np.uint64(7), np.uint64(4)))
    zero = np.uint64(0)
    assert keyed_random.row_key(other, zero) != keyed_random.row_key(key, zero)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e3])
def test_weights_neither_overflow_nor_lose_digits(size: float) -> None:
    rng = np.random.default_rng(2)
    logs = rng.normal(0, 300 * size, (200, 2))
    for a, b in logs:
        m, k = scaled_float.add(*scaled_float.from_log(a), *scaled_float.from_log(b))
        expected = np.logaddexp(a, b)
        assert np.log(m) + k * 256 * np.log(2) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_no_price_is_beyond_all_exponents() -> None:
    for value in (1e12, 1e85, 1e300):
        assert scaled_float.from_log(value) == (1.0, 2**29)
        assert scaled_float.from_log(-value) == (1.0, -(2**29))


@pytest.mark.parametrize("x", [1e-6, 0.5, 11.9, 12.0, 1e6 + 0.5, 1e12, 1e15])
@pytest.mark.parametrize("d", [1, 2, 300])
def test_rises_of_the_gamma_function_are_products(x: float, d: int) -> None:
    expected = math.fsum(math.log(x + i) for i in range(d))
    assert keyed_random.log_gamma_rise(x, float(d)) == pytest.approx(expected, rel=1e-13, abs=1e-11)


@pytest.mark.parametrize("n", [3e6, 1e9, 1e12, 1e15])
@pytest.mark.parametrize("share", [0.0, 1e-9, 0.5, 1.0])
@pytest.mark.parametrize("w", [1, 3, 300])
def test_repeats_after_many_rows_cost_what_they_do_one_by_one(
    n: float, share: float, w: int
) -> None:
    """Also where the logarithms of gamma functions agree in all digits that matter."""
    a, b = share * n + 0.5, n + 1.0
    expected = math.fsum(math.log((a + i) / (b + i)) for i in range(w))
    found = kt.log_repeats(share * n, n, 0.5, 2, float(w))
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("w", [2.0**21, 1e15, 1e99])
def test_many_repeats_of_the_first_row_cost_what_stirling_has(w: float) -> None:
    """Gamma(w + 1/2) / (Gamma(1/2) Gamma(w + 1)) for a class of two that came alone."""
    expected = -0.5 * math.log(math.pi * w) - 1.0 / (8.0 * w)
    assert kt.log_repeats(0.0, 0.0, 0.5, 2, w) == pytest.approx(expected, rel=1e-12)
    assert kt.log_repeats(w, w, 0.5, 2, w) == pytest.approx(-0.5 * math.log(2.0), rel=1e-6)
    other = -w * math.log(4.0)  # as many of the other class: Gamma(w)^2 / Gamma(2 w), about
    assert kt.log_repeats(0.0, w, 0.5, 2, w) == pytest.approx(other, rel=1e-4)
