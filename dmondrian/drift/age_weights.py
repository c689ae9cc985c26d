"""How far back a forest that follows a stream looks: the weights of trees by their age.

A member mixes the logarithms of forecasts by trees of all ages, and the guard those of members. The
exponent with which the forecasts of one age enter the forest's is the sum, over the ways through
both mixtures, of the products of weights. Shares of ages are these exponents, those below 0 left
out, over their sum. (Means of members are of probabilities, not of logarithms: where members
differ, shares describe the mixture, and do not determine it.)

Where there is no tree of an age yet, or it is younger than the delay, the tree that never forgets
takes its place, and its weight. Scaled trees and boosted sets, where a forest has these, are one
more input each, of no age.

Relies on :mod:`dmondrian.drift.mixer`. Promises a pure function of the mixers' weights.

Shapes: T members, G inputs of a member: a permanent tree, k octaves of age, then scaled trees and
boosted sets, if any.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dmondrian.drift.mixer import Mixer
from dmondrian.prequential.forecast_lag import marks

LEAST_ROWS = 256
"""Fewest rows between two marks."""


def cut_at_marks(position: int, n: int) -> Iterator[tuple[slice, bool]]:
    """Yield slices of ``n`` rows from row ``position`` on; whether weights are noted at their end.

    Marks are those of the learning curve, :func:`dmondrian.prequential.forecast_lag.marks`.
    """
    start = 0
    for mark in marks(position, position + n, LEAST_ROWS):
        yield slice(start, mark - position), True
        start = mark - position
    if start < n:
        yield slice(start, n), False


def exponents_of(mixer: Mixer) -> np.ndarray:
    """Return the exponent of each input in a mixture, float64 [G]: the mean over its experts."""
    inputs, experts = mixer.weights.inputs, mixer.weights.experts
    summed = np.zeros(inputs.shape[1])
    for share, weights in zip(experts, inputs, strict=True):  # in order, without BLAS
        summed += share * weights
    return summed


def shares_of_ages(
    of_members: np.ndarray, kinds: np.ndarray, of_guard: np.ndarray, is_mixed: np.ndarray
) -> np.ndarray:
    """Return the share of each input in a forest's forecasts, float64 [G], sum 1.

    Parameters
    ----------
    of_members : float64 [T, G]
        Exponents of each member's inputs, see :func:`exponents_of`.
    kinds : int [T]
        Of the members.
    of_guard : float64 [kinds + 2]
        Exponents of the guard's inputs: members by kind, permanent trees, all members.
    is_mixed : bool [G]
        Inputs that members mix; in place of others that which never forgets.
    """
    summed = of_guard[-1] * _mean(of_members)
    summed[0] += of_guard[-2]
    for kind, exponent in zip(np.unique(kinds), of_guard[:-2], strict=True):
        summed += exponent * _mean(of_members[kinds == kind])
    for i in range(1, len(summed)):
        if not is_mixed[i]:
            summed[0] += summed[i]
            summed[i] = 0.0
    shares = np.maximum(summed, 0.0)
    whole = float(np.add.accumulate(shares)[-1])
    if not whole > 0.0:
        shares[0] = whole = 1.0
    return shares / whole


def _mean(exponents: np.ndarray) -> np.ndarray:
    """Return the mean over members, added up in their order."""
    return np.add.accumulate(exponents, axis=0)[-1] / len(exponents)
