"""Limits of weights, targets and settings, within which no number of a forest overflows.

Rows come from arrays and from files; all are checked against these limits. Promises that
sums of squares, and losses of rows, are finite under these limits, and weights above 0 are found
to be so by their inverse squares.

Shapes: n rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmondrian.errors import DataError, ParameterError

# Losses need squares of weights, their inverses and logarithms of gamma functions.
LEAST_WEIGHT, LARGEST_WEIGHT = 1e-100, 1e100
LARGEST_TARGET = 1e140  # squares of differences and their sums stay finite
# Pseudo-counts beyond leave the range in which losses are stored (tree/scaled_float.py).
LEAST_ALPHA, LARGEST_ALPHA = 1e-30, 1e6
# A column is multiplied by its scale in float32.
LEAST_SCALE, LARGEST_SCALE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_LARGEST_SUM = 1e150  # target times weight: losses need its square


def check_weights(w: np.ndarray | None, n: int, seen: float) -> float:
    """Return the weight of ``n`` rows and of those before, which sum to ``seen``.

    Raises
    ------
    ParameterError
        If a weight or the sum is not within the limits.
    """
    if w is None:
        total, least = seen + n, 1.0
    else:
        with np.errstate(over="ignore"):
            total = float(seen + w.sum())
        least = float(np.min(w, where=w > 0.0, initial=np.inf))
    if total > LARGEST_WEIGHT:
        raise ParameterError(
            f"the weights of a forest's rows should sum to at most {LARGEST_WEIGHT:g}, with these "
            f"rows they sum to {total:.3g}: rescale them"
        )
    if least < LEAST_WEIGHT:
        raise ParameterError(
            f"a row has a weight of {least:.3g}, expected 0 or at least {LEAST_WEIGHT:g}: rescale "
            "the weights"
        )
    return total


def check_range(y: np.ndarray, ends: Sequence[float] | None) -> None:
    """Refuse targets [n] outside the range that was given for them, if one was.

    Raises
    ------
    DataError
        If there are any; the message names the first.
    """
    if ends is None or not len(y):
        return
    outside = np.flatnonzero((y < ends[0]) | (y > ends[1]))
    if len(outside):
        raise DataError(
            f"target_range is [{ends[0]:g}, {ends[1]:g}], and {len(outside)} of {len(y)} targets "
            f"lie outside, the first is {y[outside[0]]:g}: give a wider range, or clip the targets"
        )


def check_targets(y: np.ndarray, total: float) -> None:
    """Refuse targets [n] that are too large beside rows that weigh ``total`` in all.

    Raises
    ------
    DataError
        If they are.
    """
    largest = float(np.abs(y).max(initial=0.0))
    if largest * max(total, 1.0) > _LARGEST_SUM:
        raise DataError(
            f"the target has a value of size {largest:.3g}, expected at most {_LARGEST_SUM:g} "
            f"divided by {total:.3g}, the weight of all rows: scale the target, or the weights"
        )
