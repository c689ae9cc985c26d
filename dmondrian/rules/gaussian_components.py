"""Mixtures of Gaussians: a tree's forecast of a label at a point, summed or listed; quantiles.

A list is one row of float64: the number of Gaussians, then (weight, mean, standard deviation) of
each. A list that is too short holds the first ones and the number of all: the caller makes space
for so many and asks again. A Gaussian without spread is a point.

Relies on weights that sum to one for each tree. Promises quantiles that do not cross and are
correct to a few units in the last place of the labels, points included, where the quantile is the
least label at which the distribution reaches the level.

Shapes: n rows, q levels, T trees.
"""

from __future__ import annotations

import math

import numpy as np

from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.keyed_random import exp

LIST_HEAD, GAUSSIAN = 1, 3  # doubles of a list's head, and of each Gaussian
_ROOT_HALF = math.sqrt(0.5)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)
_ULPS = 2.0**-50


@inline
def add_gaussian(is_listed, mean, origin, variance, weight, out):
    """Add a Gaussian to the list ``out``, or mean and square about ``origin`` to ``out`` [2]."""
    if not is_listed:
        out[0] += weight * mean
        out[1] += weight * (variance + (mean - origin) * (mean - origin))
        return
    place = LIST_HEAD + GAUSSIAN * int(out[0])
    out[0] += 1.0
    if place + GAUSSIAN <= out.shape[0]:
        out[place] = weight
        out[place + 1] = mean
        out[place + 2] = np.sqrt(max(variance, 0.0))


@inline
def distribution(lists, z):
    """Return weight up to ``z``, and density there, of the trees' lists [T, width] together."""
    below, density = 0.0, 0.0
    for t in range(lists.shape[0]):
        row = lists[t]
        for g in range(int(row[0])):
            place = LIST_HEAD + GAUSSIAN * g
            weight, mean, std = row[place], row[place + 1], row[place + 2]
            if std > 0.0:
                u = (z - mean) / std
                below += weight * 0.5 * math.erfc(-u * _ROOT_HALF)
                density += weight * _DENSITY * exp(-0.5 * u * u) / std
            elif mean <= z:
                below += weight
    return below, density


@inline
def bracket(lists, score):
    """Return (low, high, weight of all): the quantile lies between those of the Gaussians.

    ``score`` is the quantile of the standard normal distribution at the level.
    """
    low, high, total = np.inf, -np.inf, 0.0
    for t in range(lists.shape[0]):
        row = lists[t]
        for g in range(int(row[0])):
            place = LIST_HEAD + GAUSSIAN * g
            if row[place] > 0.0:
                quantile = row[place + 1] + score * row[place + 2]
                low, high = min(low, quantile), max(high, quantile)
                total += row[place]
    return low, high, total


@inline
def invert(lists, target, low, high):
    """Return where the weight below reaches ``target``, between ``low`` and ``high``.

    Newton's steps while they halve, else bisection, as both ends close in.
    """
    least = _ULPS * max(abs(low), abs(high))
    z, last = 0.5 * (low + high), high - low
    while high - low > least:
        below, density = distribution(lists, z)
        if below < target:
            low = z
        else:
            high = z
        step = (target - below) / density if density > 0.0 else np.inf
        if not low < z + step < high or abs(step) > 0.5 * last:
            step = 0.5 * (low + high) - z
        last = abs(step)
        z += step
        if last <= least:
            return z
    return high


@kernel
def write_quantiles(lists, levels, scores, out):
    """Write quantiles of the trees' mixtures to ``out`` [n, q].

    ``lists`` float64 [T, n, width]; ``levels`` [q] increase, ``scores`` [q] are the standard
    normal distribution's quantiles there. O(q * Gaussians) per row, times some ten steps.
    """
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            low, high, total = bracket(lists[:, r], scores[j])
            if j > 0:
                low = max(low, out[r, j - 1])
            out[r, j] = invert(lists[:, r], levels[j] * total, low, max(low, high))
