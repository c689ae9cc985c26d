"""The least empirical risk of a density that is constant on cells, while cells are split.

Cell A of volume v_A holds a share p_A of the rows, and c_A within [-beta, beta] is the log of its
density before it is normalised. The risk is

    R(c) = -sum_A p_A c_A + ln Z,  Z = sum_A v_A exp(c_A)        (Z24, section 6.6),

which is convex. Where it is least, d R / d c_A = v_A exp(c_A) / Z - p_A is 0 inside of the limits,
<= 0 at beta and >= 0 at -beta: c_A is ln(p_A / v_A) + ln Z moved into the limits. So all cells
share one number, the shift s = ln Z, which is a root of

    E(s) = exp(-s) sum_A v_A exp(c_A(s)) - 1 = V_low exp(-beta - s) + V_high exp(beta - s)
                                              - P_low - P_high,

with the volumes V and shares P of the cells that are moved to -beta and to beta: what the others
have in the sum is their share. E does not rise. It is 0 at s = 0 if nothing is moved.

Between two of the shifts at which a cell reaches a limit V and P do not change, and the root is

    s = ln(V_low exp(-beta) + V_high exp(beta)) - ln(P_low + P_high).

Sums over cells are those of a segment tree whose leaves are all cells there will be, in the order
of ln(p_A / v_A); one that is not there has 0. Nothing is ever subtracted, so a sum is that of the
cells that are there, whatever were there before. O((log m)^2) per split.

Shapes: m cells with rows of any time, c splits, k cells at the beginning.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.keyed_random import exp, log

VOLUME, SHARE, FREQUENCY = 0, 1, 2  # columns of the sums; the last is share x log density


@inline
def put(sums, place, volume, share, level):
    """Write what the cell at a place has, 0 to take it away. O(log m)."""
    i = sums.shape[0] // 2 + place
    sums[i, VOLUME], sums[i, SHARE] = volume, share
    sums[i, FREQUENCY] = share * level if share > 0.0 else 0.0
    while i > 1:
        i //= 2
        for k in range(3):
            sums[i, k] = sums[2 * i, k] + sums[2 * i + 1, k]


@inline
def summed(sums, first, last, column):
    """Return the sum over places first .. last - 1. O(log m)."""
    low, high = sums.shape[0] // 2 + first, sums.shape[0] // 2 + last
    total = 0.0
    while low < high:
        if low & 1:
            total += sums[low, column]
            low += 1
        if high & 1:
            high -= 1
            total += sums[high, column]
        low //= 2
        high //= 2
    return total


@inline
def moved(levels, beta, shift):
    """Return (first place that is not moved to -beta, first that is moved to beta)."""
    low = np.searchsorted(levels, -beta - shift)
    return low, max(low, np.searchsorted(levels, beta - shift))


@inline
def excess(levels, sums, beta, shift):
    """Return E of a shift."""
    low, high = moved(levels, beta, shift)
    m = levels.shape[0]
    total = -summed(sums, 0, low, SHARE) - summed(sums, high, m, SHARE)
    total += summed(sums, 0, low, VOLUME) * exp(-beta - shift)
    volume = summed(sums, high, m, VOLUME)  # at most exp(shift - beta)
    return total + exp(log(volume) + beta - shift) if volume > 0.0 else total


@inline
def best_shift(levels, sums, beta):
    """Return the shift at which the risk is least, 0 if it is there."""
    at_zero = excess(levels, sums, beta, 0.0)
    if at_zero == 0.0:
        return 0.0
    below, above = (0.0, beta) if at_zero > 0.0 else (-beta, 0.0)  # E > 0 at one, <= 0 at the other
    for limit in (-beta, beta):
        first, last = 0, levels.shape[0]  # of the shifts limit - level, which fall
        while first < last:
            middle = (first + last) // 2
            shift = limit - levels[middle]
            if shift >= above:
                first = middle + 1
            elif shift <= below:
                last = middle
            elif excess(levels, sums, beta, shift) > 0.0:
                below, last = shift, middle
            else:
                above, first = shift, middle + 1
    low, high = moved(levels, beta, 0.5 * below + 0.5 * above)
    m = levels.shape[0]
    share = summed(sums, 0, low, SHARE) + summed(sums, high, m, SHARE)
    at_low, at_high = summed(sums, 0, low, VOLUME), summed(sums, high, m, VOLUME)
    if share == 0.0 or at_low + at_high == 0.0:
        return above
    return min(max(log_sum(at_low, -beta, at_high, beta, 0.0, 0.0) - log(share), below), above)


@inline
def log_sum(a, x, b, y, c, z):
    """Return ln(a e^x + b e^y + c e^z) for factors >= 0, not all 0."""
    most = -np.inf
    for factor, power in ((a, x), (b, y), (c, z)):
        if factor > 0.0:
            most = max(most, log(factor) + power)
    total = 0.0
    for factor, power in ((a, x), (b, y), (c, z)):
        if factor > 0.0:
            total += exp(log(factor) + power - most)
    return most + log(total)


@inline
def risk_of(levels, sums, beta, shift):
    """Return R of the cells' log densities + ``shift``, moved into the limits."""
    low, high = moved(levels, beta, shift)
    m = levels.shape[0]
    below = summed(sums, low, high, FREQUENCY)
    within = summed(sums, low, high, SHARE)
    below += within * shift
    below += beta * (summed(sums, high, m, SHARE) - summed(sums, 0, low, SHARE))
    at_low, at_high = summed(sums, 0, low, VOLUME), summed(sums, high, m, VOLUME)
    return log_sum(at_low, -beta, at_high, beta, within, shift) - below


@kernel
def sweep_densities(
    levels, place, volume, share, start, splits, beta, is_least, sums, risks, shifts
):
    """Write the risk and the shift at the beginning, and after each split. O(c (log m)^2).

    Parameters
    ----------
    levels : float64 [m]
        Log densities of all cells of any time, in order; the first is -inf, for all without rows.
    place : int64 [cells]
        Of each cell in ``levels``.
    volume, share : float64 [cells]
    start : int64 [k]
        Cells that are there at the beginning.
    splits : int64 [c, 3]
        A cell and those in its place, in the order of time.
    beta : float64
    is_least : bool
        Whether the shift is that of the least risk; else it is 0, of log frequencies.
    sums : float64 [2 m', 3]
        Zeros, m' a power of two >= m.
    risks, shifts : float64 [c + 1]
        Written.
    """
    empty = 0.0  # volume of the cells without rows
    for a in start:
        if place[a] == 0:
            empty += volume[a]
        else:
            put(sums, place[a], volume[a], share[a], levels[place[a]])
    put(sums, 0, empty, 0.0, 0.0)
    for i in range(splits.shape[0] + 1):
        if i > 0:
            put(sums, place[splits[i - 1, 0]], 0.0, 0.0, 0.0)
            for k in range(1, 3):
                a = splits[i - 1, k]
                if place[a] == 0:
                    empty += volume[a]
                    put(sums, 0, empty, 0.0, 0.0)
                else:
                    put(sums, place[a], volume[a], share[a], levels[place[a]])
        shifts[i] = best_shift(levels, sums, beta) if is_least else 0.0
        risks[i] = risk_of(levels, sums, beta, shifts[i])
