"""Random draws keyed by (seed, tree, position of the row), and the functions they need.

There is no generator state: the k-th draw of a row is a hash of what names it, so any
machine that learns the row draws the same. The key of a row is the total weight seen
before it, not its count: a row of weight 3 then shifts later draws as three rows do.

``log``, ``exp`` and the gamma functions here use only +, -, *, / and comparisons, which
IEEE 754 fixes to the last bit; the C library's versions may differ from one processor to
another, and a split time or a weight must not.

References: SplitMix64 (Steele, Lea, Flood, 2014, "Fast splittable pseudorandom number
generators", finaliser variant 13).
"""

from __future__ import annotations

import math
from types import FunctionType

import numpy as np

from dmondrian._numba.jit import inline

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_ONE = np.uint64(1)
VANISHES = -745.0  # e^x is 0 below
LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01  # ln 2 to 33 bits, so that k * LN2_HIGH is exact
LN2_LOW = 1.90821492927058770002e-10  # ln 2 - LN2_HIGH
_FRACTION, _OF_ONE = np.int64((1 << 52) - 1), np.int64(1023 << 52)  # bits of a float64
_LEAST_NORMAL = 2.0**-1022
_OF_2_52, _2_52 = np.int64(1075 << 52), 2.0**52
_SQRT2 = 1.4142135623730951
TAYLOR = tuple(1.0 / math.factorial(n) for n in range(14))  # Taylor's coefficients of e^x


@inline
def mix(z):
    """Return the SplitMix64 finaliser of ``z`` (uint64)."""
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@inline
def tree_key(seed, tree):
    """Return the key of tree number ``tree`` (both uint64)."""
    return mix(mix(seed + _GOLDEN) + (tree + _ONE) * _GOLDEN)


@inline
def row_key(key, total_bits):
    """Return the key of the row before which the total weight had these bits (uint64)."""
    return mix(key ^ mix(total_bits + _GOLDEN))


@inline
def uniform(key, k):
    """Return draw ``k`` = 1, 2, ... of a row, in the open interval (0, 1)."""
    z = mix(key + np.uint64(k) * _GOLDEN)
    return (np.float64(z >> _S11) + 0.5) * 1.1102230246251565e-16  # 2^-53


@inline
def log(x):
    """Return ln ``x`` of a positive float64; error below 1 ulp or so. NaN of inf and NaN.

    ln x = k ln 2 + 2 artanh((m - 1) / (m + 1)) with m in [1/sqrt 2, sqrt 2].
    """
    shift = 0
    if x < _LEAST_NORMAL:  # its exponent is not in its bits
        x, shift = x * 18014398509481984.0, 54  # 2^54
    bits = np.float64(x).view(np.int64)
    k = (bits >> 52) - 1023 - shift
    m = np.int64((bits & _FRACTION) | _OF_ONE).view(np.float64)
    if m > _SQRT2:
        m = m * 0.5
        k = k + 1
    return _log_of(m, np.float64(k)) + (x - x)  # NaN of what is not finite, of meaningless bits


@inline
def log_of_normal(x):
    """Return what :func:`log` does, to the last bit, without a jump.

    ``x`` must not be subnormal, infinite or NaN. Loops over many numbers take several at once.
    """
    bits = np.float64(x).view(np.int64)
    k = np.int64((bits >> 52) | _OF_2_52).view(np.float64) - _2_52 - 1023.0
    m = np.int64((bits & _FRACTION) | _OF_ONE).view(np.float64)
    is_large = m > _SQRT2
    return _log_of(m * 0.5 if is_large else m, k + 1.0 if is_large else k)


@inline
def _log_of(m, k):
    """Return ln(``m`` 2^``k``), m in [1/sqrt 2, sqrt 2]."""
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    tail = 1.0 / 23.0
    tail = tail * z + 1.0 / 21.0
    tail = tail * z + 1.0 / 19.0
    tail = tail * z + 1.0 / 17.0
    tail = tail * z + 1.0 / 15.0
    tail = tail * z + 1.0 / 13.0
    tail = tail * z + 1.0 / 11.0
    tail = tail * z + 1.0 / 9.0
    tail = tail * z + 1.0 / 7.0
    tail = tail * z + 1.0 / 5.0
    tail = tail * z + 1.0 / 3.0
    low = 2.0 * s + (2.0 * s * z * tail + k * LN2_LOW)
    return k * LN2_HIGH + low


@inline
def exp(x):
    """Return e^``x``; 0 below `VANISHES`, inf above 709; error below 1 ulp or so.

    e^x = 2^k e^r, r in [-ln 2 / 2, ln 2 / 2]; the terms of e^r by fours, which do not wait for
    each other.
    """
    if x < VANISHES:
        return 0.0
    if x > 709.0:
        return np.inf
    k = np.floor(x * LOG2_E + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    z = r * r
    low = (TAYLOR[2] + TAYLOR[3] * r) + z * (TAYLOR[4] + TAYLOR[5] * r)
    middle = (TAYLOR[6] + TAYLOR[7] * r) + z * (TAYLOR[8] + TAYLOR[9] * r)
    high = (TAYLOR[10] + TAYLOR[11] * r) + z * (TAYLOR[12] + TAYLOR[13] * r)
    total = 1.0 + (r + z * (low + z * z * (middle + z * z * high)))
    if -1000.0 < k < 1000.0:
        return total * power_of_two(int(k))
    half = int(k) // 2
    return total * power_of_two(half) * power_of_two(int(k) - half)


@inline
def power_of_two(k):
    """Return 2^``k`` for |k| <= 1022, exactly."""
    return np.int64((np.int64(k) + 1023) << 52).view(np.float64)


@inline
def _tail_of_stirling(x):
    """Return what ln Gamma(``x``) is more than by Stirling's formula, x >= 12."""
    y = 1.0 / x
    z = y * y
    return y * (1.0 / 12.0 - z * (1.0 / 360.0 - z * (1.0 / 1260.0 - z * (1.0 / 1680.0))))


@inline
def log_gamma_by_recurrence(x):
    """Return ln Gamma(``x``), x > 0: Stirling's series beyond 12, recurrence below."""
    shift = 0.0
    while x < 12.0:
        shift += log(x)
        x += 1.0
    return (x - 0.5) * log(x) - x + 0.9189385332046727 + _tail_of_stirling(x) - shift


def _halves(n: int) -> np.ndarray:
    """Return ln Gamma(k / 2) for k below ``n``, by the recurrence without a compiler."""
    plain = dict(globals())
    for name, part in globals().items():
        if hasattr(part, "py_func"):
            plain[name] = FunctionType(part.py_func.__code__, plain)
    return np.array([np.inf, *(plain["log_gamma_by_recurrence"](0.5 * k) for k in range(1, n))])


_HALVES = _halves(24)  # most nodes hold few rows of a class


@inline
def log_gamma(x):
    """Return ln Gamma(``x``), x > 0; from a table where it is of few rows and a half."""
    twice = x + x
    if 0.0 < twice < _HALVES.shape[0] and twice == np.floor(twice):
        return _HALVES[np.uint64(twice)]
    return log_gamma_by_recurrence(x)


@inline
def log_gamma_rise(x, d):
    """Return ln Gamma(``x`` + ``d``) - ln Gamma(``x``), x and d > 0, to the digits of d ln(x + d).

    From x = 12 on: below, both are taken by themselves.
    """
    if x < 12.0:
        return log_gamma(x + d) - log_gamma(x)
    tails = _tail_of_stirling(x + d) - _tail_of_stirling(x)
    return d * log(x + d) + (x - 0.5) * log_of_sum(d / x) - d + tails


@inline
def log_of_sum(x):
    """Return ln(1 + ``x``), x >= 0, to the last digits, as Kahan does."""
    total = 1.0 + x
    return x if total == 1.0 else log(total) * x / (total - 1.0)


@inline
def trigamma(x):
    """Return the second derivative of ln Gamma at ``x`` > 0."""
    shift = 0.0
    while x < 12.0:
        shift += 1.0 / (x * x)
        x += 1.0
    y = 1.0 / x
    z = y * y
    series = 1.0 / 6.0 - z * (1.0 / 30.0 - z * (1.0 / 42.0 - z * (1.0 / 30.0)))
    return shift + y + z * (0.5 + y * series)


@inline
def harmonic(x):
    """Return 1 + 1/2 + ... + 1/``x``, continued to all ``x`` > 0."""
    shift = 0.0
    x += 1.0
    while x < 12.0:
        shift += 1.0 / x
        x += 1.0
    z = 1.0 / (x * x)
    series = 1.0 / 12.0 - z * (1.0 / 120.0 - z * (1.0 / 252.0 - z * (1.0 / 240.0)))
    return 0.5772156649015329 + log(x) - 0.5 / x - z * series - shift
