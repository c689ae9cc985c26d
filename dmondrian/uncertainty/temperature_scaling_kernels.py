"""Probabilities to a power: p^b over its sum, the slopes of its log loss in b, and their mixture.

The log loss -log p_y^b / sum_c p_c^b is convex in b; its slope is E_b[log p] - log p_y, the mean
being over classes drawn by p^b. Probabilities count as at least ``FLOOR``, in slopes and powers
alike, so that a class that no tree has seen here has a logarithm.

Shapes: n rows, K classes, g exponents.
"""

from __future__ import annotations

from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.keyed_random import exp, log
from dmondrian.uncertainty.least_loss_kernels import least_loss

FLOOR = 2.0**-40

_least_loss = inline(least_loss)


@inline
def write_logs(values, unit, logs):
    """Write log(max(``values`` * ``unit``, FLOOR)) to ``logs`` [K]; return the largest."""
    largest = log(FLOOR)
    for c in range(logs.shape[0]):
        logs[c] = log(max(values[c] * unit, FLOOR))
        largest = max(largest, logs[c])
    return largest


@inline
def loss_at(exponent, logs, largest, label):
    """Return the log loss of probabilities to a power, over their sum; nats."""
    total = 0.0
    for c in range(logs.shape[0]):
        total += exp(exponent * (logs[c] - largest))
    return log(total) - exponent * (logs[label] - largest)


@kernel
def add_slopes(sums, unit, y, times, fading, exponents, prior, logs, slopes, excess):
    """Add each row's slopes, ``times`` [n] over, to ``slopes`` [g], row after row. O(n g K).

    ``sums`` int64 [n, K] are probabilities in units of ``unit``; ``logs`` [K] is scratch. Slopes of
    rows before count ``fading`` times. To ``excess`` [1], or [0] for none, is added how much more
    each row, once, loses by the power that it was forecast with than as it is.
    """
    for r in range(sums.shape[0]):
        largest, label = write_logs(sums[r], unit, logs), int(y[r])
        if excess.shape[0] > 0:
            exponent = _least_loss(slopes, exponents, prior)
            excess[0] += loss_at(exponent, logs, largest, label) + logs[label]
        if r == 0:  # not before its forecast, which knew no later row
            for i in range(exponents.shape[0]):
                slopes[i] *= fading
        for i in range(exponents.shape[0]):
            total, mean = 0.0, 0.0
            for c in range(logs.shape[0]):
                share = exp(exponents[i] * (logs[c] - largest))
                total += share
                mean += share * logs[c]
            slopes[i] += times[r] * (mean / total - logs[label])


@kernel
def write_powers(proba, exponent, weight, rest, powers):
    """Write a mixture to ``powers`` [n, K]: ``proba`` [n, K] to a power and as it is.

    The power, over its sum, has the ``weight``, and probabilities as they are have the ``rest``,
    which may be far less than what a weight lacks to 1.
    """
    for r in range(proba.shape[0]):
        logs = powers[r]
        largest = write_logs(proba[r], 1.0, logs)
        total = 0.0
        for c in range(logs.shape[0]):
            logs[c] = exp(exponent * (logs[c] - largest))
            total += logs[c]
        for c in range(logs.shape[0]):
            logs[c] = weight * (logs[c] / total) + rest * max(proba[r, c], FLOOR)
