"""Geometric mixtures of forecasts, and a mixture of these: weights that follow the stream.

Each of E experts forecasts q_e(c) in proportion to exp(sum_g w_eg z_g(c)), z_g the logarithm of
input g less its mean over classes; its weights descend the log loss, which is convex in them, by
steps of a rate of its own (Zinkevich, 2003; geometric mixing as in Mattern, 2013, "Linear and
geometric mixtures"). The mixture is the mean of the experts by weights v_e, updated by the
probability that each gave to the label, a share of them spread anew (Herbster, Warmuth, 1998).

Inputs count as at least ``FLOOR``. Logarithms and exponentials are the library's own, and rows are
taken in their order: the cuts between calls change no byte.

Shapes: G inputs, E experts, n rows, K classes.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.intrinsics import unowned
from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.keyed_random import exp, log

FLOOR = 1e-5  # least probability of an input
_LEAST = 1e-7  # least probability of an expert, where its weight is updated
_MOST_STEPS = 16  # of a row's weight; what is beyond moves no weights


@inline
def write_centred_logs(inputs, r, logs):
    """Write the logarithms of row ``r`` of ``inputs`` [G, n, K], less their means, to ``logs``."""
    for g in range(logs.shape[0]):
        mean = 0.0
        for c in range(logs.shape[1]):
            logs[g, c] = log(max(inputs[g, r, c], FLOOR))
            mean += logs[g, c]
        mean /= logs.shape[1]
        for c in range(logs.shape[1]):
            logs[g, c] -= mean


@inline
def write_experts(logs, weights, used, experts):
    """Write what each expert forecasts to ``experts`` [E, K]; ``used`` bool [E, G]."""
    for e in range(experts.shape[0]):
        largest = -np.inf
        for c in range(experts.shape[1]):
            value = 0.0
            for g in range(logs.shape[0]):
                if used[e, g]:
                    value += weights[e, g] * logs[g, c]
            experts[e, c] = value
            largest = max(largest, value)
        total = 0.0
        for c in range(experts.shape[1]):
            experts[e, c] = exp(experts[e, c] - largest)
            total += experts[e, c]
        for c in range(experts.shape[1]):
            experts[e, c] /= total


@inline
def step_weights(logs, experts, used, rates, share, y, size, weights, outer):
    """Take one step of ``size`` <= 1 towards label ``y``."""
    n_experts, total = experts.shape[0], 0.0
    for e in range(n_experts):
        likelihood = max(experts[e, y], _LEAST)
        outer[e] *= likelihood if size == 1.0 else exp(size * log(likelihood))
        total += outer[e]
        if rates[e] > 0.0:
            for g in range(logs.shape[0]):
                if used[e, g]:
                    slope = -logs[g, y]
                    for c in range(logs.shape[1]):
                        slope += experts[e, c] * logs[g, c]
                    weights[e, g] -= rates[e] * size * slope
    for e in range(n_experts):
        outer[e] = (1.0 - share) * outer[e] / total + share / n_experts


@inline
def write_mean(experts, outer, out):
    """Write the mean of the experts to ``out`` [K]."""
    for c in range(out.shape[0]):
        value = 0.0
        for e in range(experts.shape[0]):
            value += outer[e] * experts[e, c]
        out[c] = value


@kernel
def mix_rows(inputs, weights, outer, used, out):
    """Write the mixture of ``inputs`` float64 [G, n, K] to ``out`` [n, K]. O(n K E G).

    ``weights`` float64 [E, G], ``outer`` [E]; expert e takes the inputs where ``used`` bool [E, G].
    """
    n_inputs, n_experts, n_classes = inputs.shape[0], outer.shape[0], out.shape[1]
    memory, shares = np.empty((n_inputs, n_classes)), np.empty((n_experts, n_classes))
    for r in range(out.shape[0]):
        logs, experts = unowned(memory), unowned(shares)
        write_centred_logs(inputs, r, logs)
        write_experts(logs, weights, used, experts)
        write_mean(experts, outer, out[r])


@kernel
def mix_and_step(inputs, weights, outer, used, rates, share, y, w, out):
    """Write each row's mixture to ``out`` [n, K], then let the weights take a step to its label.

    ``rates`` float64 [E] are of steps, 0 for weights that stay; ``y`` float64 [n] are classes and
    ``w`` [n] or [0] weights > 0: a weight of so many steps is taken in as many, up to 16.
    """
    n_inputs, n_experts, n_classes = inputs.shape[0], outer.shape[0], out.shape[1]
    memory, shares = np.empty((n_inputs, n_classes)), np.empty((n_experts, n_classes))
    for r in range(out.shape[0]):
        logs, experts = unowned(memory), unowned(shares)
        write_centred_logs(inputs, r, logs)
        write_experts(logs, weights, used, experts)
        write_mean(experts, outer, out[r])
        rest = min(w[r] if w.shape[0] > 0 else 1.0, np.float64(_MOST_STEPS))
        label = np.int64(y[r])
        while True:
            size = min(rest, 1.0)
            step_weights(logs, experts, used, rates, share, label, size, weights, outer)
            rest -= size
            if rest <= 0.0:
                break
            write_experts(logs, weights, used, experts)
