"""Mixtures of forecasts, and a mixture of these: weights that follow the stream.

The loops are for any kind of mixture: what a policy answers to the hooks of this module. Here is
the geometric kind, :class:`Experts`, for probabilities; that for numbers is in
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
from dmondrian.tree.keyed_random import LN2_HIGH, LN2_LOW, exp, log

FLOOR = 1e-5  # least probability of an input
_LEAST = 1e-7  # least probability of an expert, where its weight is updated
_MOST_STEPS = 16  # of a row's weight; what is beyond moves no weights
_SQRT2 = 1.4142135623730951
_FRACTION, _OF_ONE = np.int64((1 << 52) - 1), np.int64(1023 << 52)  # bits of a float64
_OF_2_52, _2_52 = np.int64(1075 << 52), 2.0**52


class Experts(NamedTuple):
    """What geometric experts take, and how their weights move."""

    rates: np.ndarray  # float64 [E, G], of steps; 0 where an input is not taken, or a weight stays
    start: np.ndarray  # float64 [E], weights of the experts at first, sum 1
    share: float  # of the experts' weights that is moved to these by a row
    power: float  # of the probability of a label by which they are multiplied


class Weights(NamedTuple):
    """Weights of a mixture."""

    inputs: np.ndarray  # float64 [E, G]; 0 of inputs that an expert does not take
    experts: np.ndarray  # float64 [E], sum 1
    scale: np.ndarray  # float64 [3], what a kind knows of its errors, or [0]


class Steps(NamedTuple):
    """Weights that go through a block of rows, and their sum over the steps."""

    weights: Weights
    total: Weights
    n: np.ndarray  # float64 [1], steps, those of part of a row's weight in part


@hook
def take_inputs(experts, inputs):
    """Write in the place of ``inputs`` [G, n, k] what experts take of them."""


@hook
def write_experts(experts, inputs, weights, r, answers):
    """Write what each expert forecasts of row ``r`` to ``answers`` [E, k]."""


@hook
def write_mixture(experts, answers, weights, out):
    """Write the mixture of the experts to ``out`` [k]."""


@hook
def step_weights(experts, inputs, answers, r, y, size, weights, work):
    """Take one step of ``size`` <= 1 towards label ``y`` of row ``r``; ``work`` [k] is scratch."""


@inline
def log_of_normal(x):
    """Return ln ``x`` as :func:`dmondrian.tree.keyed_random.log`, to the last bit.

    ``x`` must not be subnormal, infinite or NaN: then no step is a jump, and loops over many
    numbers take several at once.
    """
    bits = np.float64(x).view(np.int64)
    k = np.int64((bits >> 52) | _OF_2_52).view(np.float64) - _2_52 - 1023.0
    m = np.int64((bits & _FRACTION) | _OF_ONE).view(np.float64)
    is_large = m > _SQRT2
    m = m * 0.5 if is_large else m
    k = k + 1.0 if is_large else k
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


@implements(take_inputs, Experts)
def take_logs(experts, inputs):
    """Write in the place of ``inputs`` [G, n, K] their logarithms, less their means over classes.

    Of two classes, half the difference and its negative.
    """
    n_classes = inputs.shape[2]
    flat = inputs.reshape(-1)
    for i in range(flat.shape[0]):
        flat[i] = log_of_normal(max(flat[i], FLOOR))
    if n_classes == 2:
        for i in range(0, flat.shape[0], 2):
            half = (flat[i] - flat[i + 1]) * 0.5
            flat[i], flat[i + 1] = half, -half
        return
    for i in range(0, flat.shape[0], n_classes):
        mean = 0.0
        for c in range(n_classes):
            mean += flat[i + c]
        mean /= n_classes
        for c in range(n_classes):
            flat[i + c] -= mean


@implements(write_experts, Experts)
def write_geometric_experts(experts, logs, weights, r, answers):
    """Write the geometric mixture of each expert. O(E G K)."""
    n_inputs, n_classes = logs.shape[0], answers.shape[1]
    for e in range(answers.shape[0]):
        if n_classes == 2:
            value = 0.0
            for g in range(n_inputs):
                value += weights.inputs[e, g] * logs[g, r, 0]
            odds = exp(-2.0 * abs(value))
            likely = 1.0 / (1.0 + odds)
            first = 0 if value >= 0.0 else 1
            answers[e, first] = likely
            answers[e, 1 - first] = odds * likely
            continue
        largest, total = -np.inf, 0.0
        for c in range(n_classes):
            value = 0.0
            for g in range(n_inputs):
                value += weights.inputs[e, g] * logs[g, r, c]
            answers[e, c] = value
            largest = max(largest, value)
        for c in range(n_classes):
            answers[e, c] = exp(answers[e, c] - largest)
            total += answers[e, c]
        for c in range(n_classes):
            answers[e, c] /= total


@implements(step_weights, Experts)
def step_geometric_weights(experts, logs, answers, r, label, size, weights, work):
    """Descend the log loss of each expert; multiply the experts by what each gave. O(E G K)."""
    y = np.int64(label)
    n_inputs, n_experts, n_classes = logs.shape[0], answers.shape[0], answers.shape[1]
    total, power = 0.0, size * experts.power
    for e in range(n_experts):
        likelihood = max(answers[e, y], _LEAST)
        weights.experts[e] *= likelihood if power == 1.0 else exp(power * log(likelihood))
        total += weights.experts[e]
        for g in range(n_inputs):
            if n_classes == 2:
                slope = (2.0 * answers[e, 0] if y == 1 else -2.0 * answers[e, 1]) * logs[g, r, 0]
            else:
                slope = -logs[g, r, y]
                for c in range(n_classes):
                    slope += answers[e, c] * logs[g, r, c]
            weights.inputs[e, g] -= experts.rates[e, g] * size * slope
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


@implements(write_mixture, Experts)
def write_mean(experts, answers, weights, out):
    """Write the mean of the experts. O(E K)."""
    for c in range(out.shape[0]):
        value = 0.0
        for e in range(answers.shape[0]):
            value += weights.experts[e] * answers[e, c]
        out[c] = value


@kernel
def mix_rows(experts, weights, inputs, out):
    """Write the mixture of ``inputs`` float64 [G, n, k] to ``out`` [n, k]. O(n k E G).

    ``inputs`` is written to.
    """
    memory = np.empty((weights.experts.shape[0], out.shape[1]))
    take_inputs(experts, inputs)
    for r in range(out.shape[0]):
        answers = unowned(memory)
        write_experts(experts, inputs, weights, r, answers)
        write_mixture(experts, answers, weights, out[r])


@kernel
def mix_and_step(experts, weights, steps, inputs, y, w, out):
    """Write each row's mixture to ``out`` [n, k], then take a step to its label.

    Where ``steps`` has no weights those that mix take the steps; else its weights do, and are added
    up. ``y`` float64 [n] are labels and ``w`` [n] or [0] weights > 0: a weight of so many steps is
    taken in as many, up to 16. ``inputs`` float64 [G, n, k] is written to.
    """
    memory, scratch = np.empty((weights.experts.shape[0], out.shape[1])), np.empty(out.shape[1])
    is_ahead = steps.weights.experts.shape[0] > 0
    take_inputs(experts, inputs)
    for r in range(out.shape[0]):
        answers, work, moved = unowned(memory), unowned(scratch), weights
        write_experts(experts, inputs, weights, r, answers)
        write_mixture(experts, answers, weights, out[r])
        if is_ahead:
            moved = steps.weights
            write_experts(experts, inputs, moved, r, answers)
        rest = min(w[r] if w.shape[0] > 0 else 1.0, np.float64(_MOST_STEPS))
        while True:
            size = min(rest, 1.0)
            step_weights(experts, inputs, answers, r, y[r], size, moved, work)
            if is_ahead:
                add_weights(steps, size)
            rest -= size
            if rest <= 0.0:
                break
            write_experts(experts, inputs, moved, r, answers)
