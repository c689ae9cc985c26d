"""Mixtures of forecasts, and a mixture of these: weights that follow the stream.

The loops are for any kind of experts: policies that implement the hooks of this module. Here is the
geometric kind, :class:`GeometricExperts`, for probabilities; that for numbers is in
:mod:`dmondrian.drift.linear_mixing_kernels`.

Each of E geometric experts forecasts q_e(c) in proportion to exp(sum_g w_eg z_g(c)), z_g the
logarithm of input g less its mean over classes; its weights descend the log loss, which is convex
in them, by steps of a rate of its own (Zinkevich, 2003; geometric mixing as in Mattern, 2013,
"Linear and geometric mixtures"). The mixture is the mean of the experts by weights v_e, updated by
the probability that each gave to the label, to a power, a share of them moved to what they were at
first (Herbster, Warmuth, 1998).

Where labels come many at a time the rows of a block are mixed by the weights before it, while
other weights go through the block step by step; their mean is what the next block is mixed by
(Polyak, Juditsky, 1992: the mean of the steps, not the last, is near what suits all rows alike).

Inputs count as at least ``FLOOR``. Logarithms and exponentials are the library's own, and rows are
taken in their order: the cuts between calls change no byte. Sums are over inputs, classes and
experts in their order, from 0.

Shapes: G inputs, E experts, n rows, k outputs: K classes, or mean and variance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmondrian._numba.intrinsics import unowned
from dmondrian._numba.jit import hook, implements, inline, kernel
from dmondrian.tree.keyed_random import exp, log, log_of_normal
from dmondrian.tree.simd.exp import write_exponentials

FLOOR = 1e-5  # least probability of an input
_LEAST = 1e-7  # least probability of an expert, where its weight is updated
_MOST_STEPS = 16  # of a row's weight; what is beyond moves no weights
_LEAST_EXPONENT = -700.0  # of those that are taken many at once


class GeometricExperts(NamedTuple):
    """What geometric experts take, and how their weights move."""

    rates: np.ndarray  # float64 [E, G], of steps; 0 where an input is not taken, or a weight stays
    start: np.ndarray  # float64 [E], weights of the experts at first, sum 1
    share: float  # of the experts' weights that is moved to these by a row
    power: float  # of the probability of a label by which they are multiplied
    least: np.ndarray  # float64 [G], weights that inputs have at least


class Weights(NamedTuple):
    """Weights of a mixture."""

    inputs: np.ndarray  # float64 [E, G]; 0 of inputs that an expert does not take
    experts: np.ndarray  # float64 [E], sum 1
    scale: np.ndarray  # float64 [3], what linear experts know of their errors; [0] of others


class Steps(NamedTuple):
    """Weights that go through a block of rows, and their sum over the steps."""

    weights: Weights
    total: Weights
    n: np.ndarray  # float64 [1], steps, those of part of a row's weight in part


class Row(NamedTuple):
    """Memory for what is computed of a row."""

    taken: np.ndarray  # float64 [G, k], what experts take of the inputs
    answers: np.ndarray  # float64 [E, k], what each expert forecasts
    scratch: np.ndarray  # float64 [E k or more, a multiple of 8], for experts of any kind


@hook
def take_inputs(experts, inputs, r, row):
    """Write what experts take of row ``r`` of ``inputs`` [G, n, k]."""


@hook
def write_experts(experts, row, weights):
    """Write what each expert forecasts."""


@hook
def write_mixture(experts, answers, weights, out):
    """Write the mixture of the experts to ``out`` [k]."""


@hook
def step_weights(experts, row, y, size, weights):
    """Take one step of ``size`` <= 1 towards label ``y``, after :func:`write_experts`."""


def make_row(weights: Weights, n_outputs: int) -> Row:
    """Return memory for a row of ``n_outputs``."""
    n_experts, n_inputs = weights.inputs.shape
    return Row(
        np.empty((n_inputs, n_outputs)),
        np.empty((n_experts, n_outputs)),
        np.zeros((n_experts * n_outputs + 7) // 8 * 8),
    )


@inline
def unowned_row(row):
    """Return the row borrowed, for one pass of a loop: slices of it are not counted then.

    See :func:`dmondrian._numba.intrinsics.unowned`.
    """
    return Row(unowned(row.taken), unowned(row.answers), unowned(row.scratch))


@implements(take_inputs, GeometricExperts)
def take_logs(experts, inputs, r, row):
    """Write the logarithms of the inputs, less their means over classes.

    Of two classes, half the difference and its negative.
    """
    logs, n_classes = row.taken, inputs.shape[2]
    for g in range(inputs.shape[0]):
        for c in range(n_classes):
            logs[g, c] = inputs[g, r, c]
    flat = logs.reshape(-1)
    for i in range(flat.shape[0]):
        flat[i] = log_of_normal(max(flat[i], FLOOR))
    for g in range(inputs.shape[0]):
        if n_classes == 2:
            half = (logs[g, 0] - logs[g, 1]) * 0.5
            logs[g, 0], logs[g, 1] = half, -half
            continue
        mean = 0.0
        for c in range(n_classes):
            mean += logs[g, c]
        mean /= n_classes
        for c in range(n_classes):
            logs[g, c] -= mean


@inline
def exponentiate(powers, n, least):
    """Write e^x in the place of the first ``n`` x <= 0 of ``powers``, none below ``least``."""
    if least > _LEAST_EXPONENT:
        write_exponentials(powers, np.uint64(n))
        return
    for i in range(n):
        powers[i] = exp(powers[i])


@implements(write_experts, GeometricExperts)
def write_geometric_experts(experts, row, weights):
    """Write the geometric mixture of each expert. O(E G K)."""
    logs, answers, powers = row.taken, row.answers, row.scratch
    n_inputs, n_experts, n_classes = logs.shape[0], answers.shape[0], answers.shape[1]
    least = 0.0
    if n_classes == 2:
        for e in range(n_experts):
            value = 0.0
            for g in range(n_inputs):
                value += weights.inputs[e, g] * logs[g, 0]
            answers[e, 0] = value
            powers[e] = -2.0 * abs(value)
            least = min(least, powers[e])
        exponentiate(powers, n_experts, least)
        for e in range(n_experts):
            odds, first = powers[e], 0 if answers[e, 0] >= 0.0 else 1
            likely = 1.0 / (1.0 + odds)
            answers[e, first] = likely
            answers[e, 1 - first] = odds * likely
        return
    for e in range(n_experts):
        largest, at = -np.inf, e * n_classes
        for c in range(n_classes):
            value = 0.0
            for g in range(n_inputs):
                value += weights.inputs[e, g] * logs[g, c]
            powers[at + c] = value
            largest = max(largest, value)
        for c in range(n_classes):
            powers[at + c] -= largest
            least = min(least, powers[at + c])
    exponentiate(powers, n_experts * n_classes, least)
    for e in range(n_experts):
        total, at = 0.0, e * n_classes
        for c in range(n_classes):
            total += powers[at + c]
        for c in range(n_classes):
            answers[e, c] = powers[at + c] / total


@implements(step_weights, GeometricExperts)
def step_geometric_weights(experts, row, label, size, weights):
    """Descend the log loss of each expert; multiply the experts by what each gave. O(E G K)."""
    y, logs, answers = np.int64(label), row.taken, row.answers
    n_inputs, n_experts, n_classes = logs.shape[0], answers.shape[0], answers.shape[1]
    total, power = 0.0, size * experts.power
    for e in range(n_experts):
        likelihood = max(answers[e, y], _LEAST)
        weights.experts[e] *= likelihood if power == 1.0 else exp(power * log(likelihood))
        total += weights.experts[e]
        for g in range(n_inputs):
            if experts.rates[e, g] == 0.0:
                continue
            if n_classes == 2:
                slope = (2.0 * answers[e, 0] if y == 1 else -2.0 * answers[e, 1]) * logs[g, 0]
            else:
                slope = -logs[g, y]
                for c in range(n_classes):
                    slope += answers[e, c] * logs[g, c]
            stepped = weights.inputs[e, g] - experts.rates[e, g] * size * slope
            weights.inputs[e, g] = max(stepped, experts.least[g])
    for e in range(n_experts):
        weights.experts[e] = (1.0 - experts.share) * (weights.experts[e] / total)
        weights.experts[e] += experts.share * experts.start[e]


@inline
def add_weights(steps, size):
    """Add the weights that go through a block to their sum."""
    weights, total = steps.weights, steps.total
    for e in range(weights.experts.shape[0]):
        total.experts[e] += size * weights.experts[e]
        for g in range(weights.inputs.shape[1]):
            total.inputs[e, g] += size * weights.inputs[e, g]
    steps.n[0] += size


@implements(write_mixture, GeometricExperts)
def write_mean(experts, answers, weights, out):
    """Write the mean of the experts. O(E K)."""
    for c in range(out.shape[0]):
        value = 0.0
        for e in range(answers.shape[0]):
            value += weights.experts[e] * answers[e, c]
        out[c] = value


@kernel
def mix_rows(experts, weights, row_memory, inputs, out):
    """Write the mixture of ``inputs`` float64 [G, n, k] to ``out`` [n, k]. O(n k E G).

    ``row_memory`` is of :func:`make_row`.
    """
    for r in range(out.shape[0]):
        row = unowned_row(row_memory)
        take_inputs(experts, inputs, r, row)
        write_experts(experts, row, weights)
        write_mixture(experts, row.answers, weights, out[r])


@kernel
def mix_and_step(experts, weights, row_memory, steps, inputs, y, w, out):
    """Write each row's mixture to ``out`` [n, k], then take a step to its label.

    Where ``steps`` has no weights those that mix take the steps; else its weights do, and are added
    up. ``y`` float64 [n] are labels and ``w`` [n] or [0] weights > 0: a weight of so many steps is
    taken in as many, up to 16. ``inputs`` are float64 [G, n, k], ``row_memory`` is of
    :func:`make_row`.
    """
    is_ahead = steps.weights.experts.shape[0] > 0
    for r in range(out.shape[0]):
        row, stepping = unowned_row(row_memory), weights
        take_inputs(experts, inputs, r, row)
        write_experts(experts, row, weights)
        write_mixture(experts, row.answers, weights, out[r])
        if is_ahead:
            stepping = steps.weights
            write_experts(experts, row, stepping)
        rest = min(w[r] if w.shape[0] > 0 else 1.0, np.float64(_MOST_STEPS))
        while True:
            size = min(rest, 1.0)
            step_weights(experts, row, y[r], size, stepping)
            if is_ahead:
                add_weights(steps, size)
            rest -= size
            if rest <= 0.0:
                break
            write_experts(experts, row, stepping)
