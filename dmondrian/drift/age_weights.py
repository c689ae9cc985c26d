"""How far back a forest that follows a stream looks: the weights of trees by their age.

A member mixes the logarithms of forecasts by trees of all ages, and the guard those of members. The
exponent with which the forecasts of one age enter the forest's is the sum, over the ways through
both mixtures, of the products of weights. Shares of ages are these exponents, those below 0 left
out, over their sum. (Means of members are of probabilities, not of logarithms: where members
differ, shares describe the mixture, and do not determine it.)

Where there is no tree of an age yet, or it is younger than the delay, the tree that never forgets
takes its place, and its weight.

Relies on :mod:`dmondrian.drift.mixer`. Promises a pure function of the mixers' weights.

Shapes: T members, G = 1 + k inputs of a member: a permanent tree, then octaves of age.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmondrian.drift.member import KINDS, Ages
from dmondrian.drift.mixer import Mixer


def exponents_of(mixer: Mixer) -> np.ndarray:
    """Return the exponent of each input in a mixture, float64 [G]: the mean over its experts."""
    summed = np.zeros(mixer.weights.shape[1])
    for share, weights in zip(mixer.outer, mixer.weights, strict=True):  # in order, no BLAS
        summed += share * weights
    return summed


def age_shares(
    of_members: np.ndarray, numbers: Sequence[int], guard: Mixer, ages: Ages, position: int,
    delay: int = 1,
) -> np.ndarray:  # fmt: skip
    """Return the share of each age in a forest's forecasts, float64 [G], sum 1.

    Parameters
    ----------
    of_members : float64 [T, G]
        Exponents of each member's inputs, see :func:`exponents_of`, by their numbers.
    numbers : sequence of int
        Of the members.
    guard : Mixer
        Its inputs are means of members by kind, the permanent trees, and all members.
    ages : Ages
    position : int
        Rows learned.
    delay : int, default=1
        Rows whose labels come together.
    """
    kind_of = np.array(numbers) % len(KINDS)
    kinds = sorted(set(kind_of.tolist()))
    of_guard = exponents_of(guard)
    summed = of_guard[-1] * _mean(of_members)
    summed[0] += of_guard[-2]
    for kind, exponent in zip(kinds, of_guard, strict=False):
        summed += exponent * _mean(of_members[kind_of == kind])
    for octave in range(ages.n_octaves):
        start = 1 << (ages.first + octave)
        if start > position or start < delay:
            summed[0] += summed[1 + octave]
            summed[1 + octave] = 0.0
    shares = np.maximum(summed, 0.0)
    whole = float(np.add.accumulate(shares)[-1])
    if not whole > 0.0:
        shares[0] = whole = 1.0
    return shares / whole


def _mean(exponents: np.ndarray) -> np.ndarray:
    """Return the mean over members, added up in their order."""
    return np.add.accumulate(exponents, axis=0)[-1] / len(exponents)
