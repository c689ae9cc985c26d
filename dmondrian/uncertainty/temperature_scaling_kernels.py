"""Probabilities to a power: p^b over its sum, the slopes of its log loss in b, and their mixture.

The log loss -log p_y^b / sum_c p_c^b is convex in b; its slope is E_b[log p] - log p_y, the mean
being over classes drawn by p^b. Probabilities count as at least ``FLOOR``, in slopes and powers
alike, so that a class that no tree has seen here has a logarithm.

Shapes: n rows, K classes, g exponents.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import inline, kernel
from dmondrian.tree.keyed_random import exp, log
from dmondrian.tree.simd.exp import write_exponentials
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
        apart = logs[c] - largest
        total += exp(exponent * apart) if apart < 0.0 else 1.0
    return log(total) - exponent * (logs[label] - largest)


@inline
def add_slopes_of_row(exponents, logs, largest, label, times, work, slopes):
    """Add a row's slopes, ``times`` over, to ``slopes`` [g]. O(g K).

    ``work`` float64 [3, h] is scratch, h a multiple of 8 and not below g. All exponents are taken
    of a class, then of the next: many exponentials at once, of which that of 0 is 1.
    """
    g = np.uint64(exponents.shape[0])
    shares, totals, means = work[0], work[1], work[2]
    for i in range(g):
        totals[i], means[i] = 0.0, 0.0
    for c in range(logs.shape[0]):
        apart = logs[c] - largest
        for i in range(g):
            shares[i] = exponents[i] * apart
        if apart < 0.0:
            write_exponentials(shares, g)
        else:
            for i in range(g):
                shares[i] = 1.0
        for i in range(g):
            totals[i] += shares[i]
            means[i] += shares[i] * logs[c]
    for i in range(g):
        slopes[i] += times * (means[i] / totals[i] - logs[label])


@inline
def add_row(sums, unit, label, times, fading, exponents, prior, logs, work, slopes, excess):
    """Add a row's slopes to ``slopes``, and to ``excess`` what it loses by the power.

    As :func:`add_slopes` has it; slopes of rows before fade once their power has forecast the row.
    """
    largest = write_logs(sums, unit, logs)
    if excess.shape[0] > 0:
        exponent = _least_loss(slopes, exponents, prior)
        excess[0] += loss_at(exponent, logs, largest, label) + logs[label]
    if fading != 1.0:
        for i in range(exponents.shape[0]):
            slopes[i] *= fading
    add_slopes_of_row(exponents, logs, largest, label, times, work, slopes)


@kernel
def add_slopes(sums, unit, y, times, fading, exponents, prior, logs, work, slopes, excess):
    """Add each row's slopes, ``times`` [n] over, to ``slopes`` [g], row after row. O(n g K).

    ``sums`` int64 [n, K] are probabilities in units of ``unit``; ``logs`` [K] and ``work`` [3, h]
    are scratch, h a multiple of 8 and not below g. Slopes of rows before count ``fading`` times. To
    ``excess`` [1], or [0] for none, is added how much more each row, once, loses by the power that
    it was forecast with than as it is.
    """
    for r in range(sums.shape[0]):
        add_row(
            sums[r], unit, int(y[r]), times[r], fading if r == 0 else 1.0, exponents, prior, logs,
            work, slopes, excess,
        )  # fmt: skip


@kernel
def add_answers(answers, one, unit, y, fading, exponents, prior, sums, logs, work, slopes, excess):
    """Add the slopes of a row that counts once, from what each tree answered.

    ``answers`` float64 [T, K]; their sums, as whole numbers in units of 1 / ``one``, are written
    to ``sums`` int64 [K]. ``y`` and ``fading`` float64 [1]. O(T K + g K).
    """
    for c in range(sums.shape[0]):
        sums[c] = 0
        for t in range(answers.shape[0]):
            sums[c] += np.int64(np.rint(answers[t, c] * one))
    add_row(
        sums, unit, int(y[0]), 1.0, fading[0], exponents, prior, logs, work, slopes, excess
    )  # fmt: skip


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
