"""Linear mixtures of means and variances: exponentiated weights under scaled squared loss.

Expert e forecasts q_e = sum_g p_eg m_g, m_g the mean that input g forecasts, p_e a distribution.
The loss (y - q_e)^2 is convex in p_e; after a row p_eg is multiplied by exp(-rate_e s_g), s_g =
-2 (y - q_e) (m_g - q_e) / V the slope in units of the scale V, over the sum, and a share of it is
spread anew (Kivinen, Warmuth, 1997; Cesa-Bianchi, Gaillard, Lugosi, Stoltz, 2012). The mixture is
the mean of the experts by weights v_e, multiplied by exp(-rate (y - q_e)^2 / V), a share of them
spread anew (Herbster, Warmuth, 1998).

V is the mean squared error of the mixture over the last rows or so, this one included, each at most
32 times what V was: labels that are scaled scale forecasts and change no weight, nor do labels that
are shifted, unless errors are as small as rounding; and no label, however far off, takes more than
a bounded step. Inputs and experts whose weight is hardly more than what sharing gives back are left
out of mixtures: one may be so far off that a small part of it is far too much. A row of which all
inputs forecast the same, up to 16 units in the last place, moves no weight: means are mixed as they
are, so that weights move where labels differ by more than rounding, however far they are from 0.
Means relative to the first label would be rounded less; but then the last bits of the weights of
forests that are stored would change.

An input is a law of the label, with mean m_g and variance u_g. The variance of expert e is that of
the mixture of these laws, sum_g p_eg (u_g + (m_g - q_e)^2), and that of the mixture is of the
experts' in the same way: the noise within leaves and the spread of trees and experts. As the mean
of a mixture is better than a draw from it, this is too much; with ``is_scaled`` it is
multiplied by the mean of (y - mean)^2 over the variance of late, each at most 32.

Rows are taken in their order; exponentials are the library's own.

Shapes: G inputs, E experts, n rows; outputs are a mean and a variance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.jit import implements, inline
from dmondrian.drift.mixing_kernels import (
    step_weights,
    take_inputs,
    write_experts,
    write_mixture,
)
from dmondrian.tree.keyed_random import exp

FIRST_SCALE = (0.0, 0.0, 1.0)  # mean squared error, of how many rows, factor of variances
_PRIOR_ROWS = 8.0  # that a factor of one counts as
_LEFT_OUT = 2.0  # times the weight that sharing gives back: those below are not mixed
_ALIKE = 2.0**-48  # of the size of means, what rounding leaves of equal ones
_MOST = 32.0  # exponent by which an expert falls behind in a step; error in units of a variance


class LinearExperts(NamedTuple):
    """What experts of means take, and how their weights move."""

    rates: np.ndarray  # float64 [E, G], of steps; 0 where an input is not taken, or a weight stays
    start: np.ndarray  # float64 [E], weights of the experts at first, sum 1
    share: float  # of the experts' weights that is moved to these by a row
    power: float  # of their rate
    input_share: float  # of the inputs' weights in an expert that is spread anew by a row
    rate: float  # of the experts' weights, of squared errors in units of the scale
    rows: float  # over which the scale is averaged
    is_scaled: bool  # variances are multiplied by a factor that is learned


@implements(take_inputs, LinearExperts)
def take_laws(experts, inputs, r, row):
    """Take means and variances as they are."""
    for g in range(inputs.shape[0]):
        for c in range(inputs.shape[2]):
            row.taken[g, c] = inputs[g, r, c]


@inline
def n_taken(weights):
    """Return how many of the weights [G] of an expert are not 0."""
    n = 0
    for g in range(weights.shape[0]):
        if weights[g] > 0.0:
            n += 1
    return n


@inline
def write_law(laws, weights, least, out):
    """Write mean and variance of the mixture of ``laws`` [G, 2] by ``weights`` [G].

    Those with weights below ``least`` > 0 are left out.
    """
    mean, variance, total, first = 0.0, 0.0, 0.0, 0.0
    for g in range(laws.shape[0]):
        if weights[g] >= least:
            first = laws[g, 0] if total == 0.0 else first
            total += weights[g]
            mean += weights[g] * (laws[g, 0] - first)
    mean /= total
    for g in range(laws.shape[0]):
        if weights[g] >= least:
            apart = laws[g, 0] - first - mean
            variance += weights[g] * (laws[g, 1] + apart * apart)
    out[0], out[1] = first + mean, variance / total


@implements(write_experts, LinearExperts)
def write_linear_experts(experts, row, weights):
    """Write the mixture of laws of each expert. O(E G)."""
    for e in range(row.answers.shape[0]):
        least = _LEFT_OUT * experts.input_share / n_taken(weights.inputs[e])
        write_law(row.taken, weights.inputs[e], least, row.answers[e])


@inline
def write_mixture_of_laws(experts, answers, weights, out):
    """Write mean and variance of the mixture of the experts, without the factor of variances."""
    write_law(answers, weights.experts, _LEFT_OUT * experts.share / answers.shape[0], out)


@implements(write_mixture, LinearExperts)
def write_scaled_mixture(experts, answers, weights, out):
    """Write the mixture of the experts, its variance times the factor of late."""
    write_mixture_of_laws(experts, answers, weights, out)
    if experts.is_scaled:
        out[1] *= weights.scale[2]


@inline
def are_alike(laws):
    """Return whether all means of a row are the same, but for rounding."""
    low, high = laws[0, 0], laws[0, 0]
    for g in range(1, laws.shape[0]):
        low, high = min(low, laws[g, 0]), max(high, laws[g, 0])
    return high - low <= _ALIKE * max(abs(low), abs(high))


@inline
def take_error(experts, law, y, size, scale):
    """Take the error of the mixture into its mean square, and into the factor of variances."""
    error, variance = y - law[0], law[1]
    square = error * error
    scale[1] = min(scale[1] + size, experts.rows)
    most = _MOST * scale[0] if scale[1] > _PRIOR_ROWS and scale[0] > 0.0 else square
    scale[0] += size / scale[1] * (min(square, most) - scale[0])
    if experts.is_scaled and square > 0.0:
        ratio = _MOST if square >= _MOST * variance else square / variance
        scale[2] += size / (scale[1] + _PRIOR_ROWS) * (ratio - scale[2])


@inline
def multiply_inputs(experts, laws, e, mean, slope, weights):
    """Multiply the weights [G] of inputs of expert ``e`` by exponentials of what each gained."""
    best, n_used, total = -np.inf, 0, 0.0
    for g in range(laws.shape[0]):
        if weights[g] > 0.0:
            best = max(best, experts.rates[e, g] * slope * (laws[g, 0] - mean))
            n_used += 1
    for g in range(laws.shape[0]):
        if weights[g] > 0.0:
            gain = experts.rates[e, g] * slope * (laws[g, 0] - mean)
            weights[g] *= exp(max(gain - best, -_MOST))
            total += weights[g]
    share = experts.input_share
    for g in range(laws.shape[0]):
        if weights[g] > 0.0:
            weights[g] = (1.0 - share) * (weights[g] / total) + share / n_used


@implements(step_weights, LinearExperts)
def step_linear_weights(experts, row, y, size, weights):
    """Multiply weights by exponentials of what they gained, of inputs and of experts. O(E G)."""
    laws, answers, mixture = row.taken, row.answers, row.scratch
    if are_alike(laws):
        return
    write_mixture_of_laws(experts, answers, weights, mixture)
    take_error(experts, mixture, y, size, weights.scale)
    unit, n_experts = weights.scale[0], answers.shape[0]
    if unit == 0.0:
        return
    least, total, power = np.inf, 0.0, size * experts.power
    for e in range(n_experts):
        error = y - answers[e, 0]
        least = min(least, error * error / unit)
    for e in range(n_experts):
        error = y - answers[e, 0]
        behind = experts.rate * (error * error / unit - least)
        weights.experts[e] *= exp(-power * min(behind, _MOST))
        total += weights.experts[e]
        slope = 2.0 * size * (error / unit)
        multiply_inputs(experts, laws, e, answers[e, 0], slope, weights.inputs[e])
    for e in range(n_experts):
        weights.experts[e] = (1.0 - experts.share) * (weights.experts[e] / total)
        weights.experts[e] += experts.share * experts.start[e]
