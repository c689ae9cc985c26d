"""Predictions of trees as whole numbers, whose sums do not depend on the order of additions.

Nor, then, on how trees are cut into shards and those spread over threads. Probabilities are
in units of 2^-40. Moments of a label are about the mean of the labels learned before it, in
units of their standard deviation, which all trees know alike; what is farther off than 256
deviations counts as that far. Each is written as two numbers, the second for what the first rounds
away, so that a cell's variance may be many orders of magnitude below that of all labels. A million
trees fit.

Relies on nothing. Promises the same whole numbers on every machine.

Shapes: a rows, k numbers of an answer.
"""

from __future__ import annotations

import numpy as np

ONE = 2.0**40  # of a probability
_ONE_MEAN, _ONE_SQUARE = 2.0**32, 2.0**24  # with the farthest ones 2^40 each
_FINER = 2.0**40  # the second number's unit, as part of the first's
_FARTHEST = 256.0
WORDS = 4  # whole numbers that tell two moments
KNOWN = 3  # statistics of a root that tell the unit: weight, sum and sum of squares of the labels


def finest_one(n_trees: int) -> float:
    """Return the largest power of two that probability 1 can be, where so many trees add up."""
    return float(2.0 ** (62 - int(n_trees).bit_length()))


def whole_shares(answers: np.ndarray, one: float = ONE) -> np.ndarray:
    """Return probabilities float64 [a, k] as int64 [a, k], in units of 1 / ``one``."""
    return np.rint(answers * one).astype(np.int64)


def units(known: np.ndarray, offset: float = 0.0) -> np.ndarray:
    """Return mean and standard deviation, float64 [a, 2], of labels of these statistics [a, 3].

    ``offset`` is what the statistics are from: the first label of the stream.
    """
    center = known[:, 1] / known[:, 0]
    variance = np.maximum(known[:, 2] / known[:, 0] - center * center, 0.0)
    return np.stack([offset + center, np.sqrt(variance)], axis=1)


def whole_moments(answers: np.ndarray, offset: float, known: np.ndarray) -> np.ndarray:
    """Return a tree's mean and second moment of labels, float64 [a, 2], as int64 [a, 4].

    Parameters
    ----------
    answers : float64 [a, 2]
        Mean; second moment about ``offset``.
    offset : float
        First label of the stream.
    known : float64 [a, 3]
        Statistics of the root when the rows were forecast.
    """
    center, scale = units(known).T
    mean = answers[:, 0] - offset
    square = answers[:, 1] - center * (2.0 * mean - center)
    return _whole(mean - center, square, scale)


def whole_laws(laws: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return means and variances of labels, float64 [a, 2], as int64 [a, 4].

    ``unit`` float64 [a, 2] is that of :func:`units`; :func:`label_moments` reads the sums.
    """
    center, scale = unit.T
    apart = laws[:, 0] - center
    return _whole(apart, laws[:, 1] + apart * apart, scale)


def _whole(mean: np.ndarray, square: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return a mean and second moment about the unit's mean, float64 [a], as int64 [a, 4]."""
    apart = np.zeros((2, len(mean)))
    np.divide(mean, scale, out=apart[0], where=scale > 0.0)
    np.divide(square, scale * scale, out=apart[1], where=scale * scale > 0.0)
    apart[0] = np.clip(apart[0], -_FARTHEST, _FARTHEST) * _ONE_MEAN
    apart[1] = np.clip(apart[1], 0.0, _FARTHEST**2) * _ONE_SQUARE
    apart = np.nan_to_num(apart)  # of statistics that no double holds
    whole = np.rint(apart)
    return np.concatenate([whole, np.rint((apart - whole) * _FINER)]).T.astype(np.int64)


def label_moments(
    sums: np.ndarray, n_trees: int, unit: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of labels, float64 [a] each.

    Parameters
    ----------
    sums : int64 [a, 4]
        Over ``n_trees``, of :func:`whole_moments`.
    unit : float64 [a, 2]
        Of :func:`units`.
    """
    center, scale = unit.T
    moments = sums[:, :2] + sums[:, 2:] / _FINER
    mean = moments[:, 0] / (n_trees * _ONE_MEAN)
    square = moments[:, 1] / (n_trees * _ONE_SQUARE)
    variance = np.maximum(square - mean * mean, 0.0)
    return center + scale * mean, scale * scale * variance
