"""Feature scales learned from rows: an evolution strategy on the progressive loss.

A Mondrian tree splits a feature as often as its range is wide, so multiplying a column by a
scale is choosing how often it is split on; the process and all its laws stay what they are.
Which scales help is asked of small forests themselves. Each round draws random sign vectors;
for every one, two forests are tried whose scales are multiplied by 2 to the power of plus and
of minus the signs (and rounded to powers of two). The difference of their progressive losses,
times a feature's sign and averaged over the vectors, estimates how the loss changes with that
feature's scale, for all features at once; each log scale then moves against it, by at most a
factor of two.

Relies on :mod:`dmondrian.progressive`. Promises powers of two, so that scaling a float32
loses nothing and thresholds can be told in the units of the data; and no scales unless forests
that took no part in the search do better with them, by two standard errors.

References
----------
Rechenberg (1973), Evolutionsstrategie; Salimans et al. (2017), "Evolution Strategies as a
Scalable Alternative to Reinforcement Learning", for the antithetic form. For Mondrian forests
this search is new; Reis et al. (2022), "TrIM", reweigh features from expected gradients.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dmondrian.parameters import ForestParameters
from dmondrian.progressive import Rows, late_loss, late_losses
from dmondrian.threads import run_threads

_ROUNDS = 6
_PAIRS = 16  # pairs of forests tried in a round
_PROBE_TREES = 2
_JUDGE_TREES = 10  # trees of the forests that are compared in the end
_SMALLEST = -12.0  # log2 of the smallest scale: the feature is as good as left out
_SURE = 2.0  # standard errors that a slope or a gain must have to be believed


def learn_scales(
    parameters: ForestParameters, rows: Rows, n_threads: int = 1
) -> tuple[float, ...] | None:
    """Return one scale per feature, powers of two up to 1, or None where no scale helps.

    Parameters
    ----------
    parameters : ForestParameters
    rows : tuple
        X float32 [n, d], y float64 [n], w float64 [n]; a few thousand rows.
    n_threads : int
        Threads over the forests that are tried.
    """
    log_scales = np.zeros(parameters.n_features)
    numbers, half = range(_JUDGE_TREES), len(rows[0]) // 2
    plain = late_losses(parameters, numbers, rows, half, n_threads)
    unit = max(plain.max(), np.finfo(float).tiny)
    best, least = None, math.fsum(plain)
    for turn in range(_ROUNDS):
        signs = _signs(parameters.seed, turn, parameters.n_features)
        steps = np.concatenate([log_scales + signs, log_scales - signs])
        losses = _try(parameters, steps, rows, n_threads)
        slopes = signs * (losses[:_PAIRS] - losses[_PAIRS:])[:, None]
        mean = slopes.sum(axis=0) / _PAIRS
        error = np.sqrt(((slopes - mean) ** 2).sum(axis=0)) / _PAIRS
        moves = mean / (_SURE * np.maximum(error, np.finfo(float).tiny))
        log_scales = log_scales - np.clip(moves, -1.0, 1.0)
        log_scales = np.maximum(log_scales - log_scales.max(), _SMALLEST)
        found = _scaled(parameters, log_scales)
        lost = late_losses(found, numbers, rows, half, n_threads)
        if math.fsum(lost) < least and _is_sure((plain - lost) / unit):
            best, least = found.feature_scales, math.fsum(lost)
    return best


def _is_sure(gains: np.ndarray) -> bool:
    """Whether the mean of paired differences is above zero by more than their noise."""
    mean = math.fsum(gains) / len(gains)
    variance = math.fsum((gains - mean) ** 2) / len(gains)
    return mean > _SURE * math.sqrt(variance / len(gains))


def _scaled(parameters: ForestParameters, log_scales: np.ndarray) -> ForestParameters:
    scales = tuple(np.exp2(np.rint(log_scales)).tolist())  # exact for whole numbers
    return dataclasses.replace(parameters, feature_scales=scales)


def _try(parameters: ForestParameters, steps: np.ndarray, rows: Rows, n_threads: int) -> np.ndarray:
    """Return the loss of two small forests at each of the steps, relative to the largest."""
    losses = np.empty(len(steps))

    def try_step(i: int) -> None:
        first = _JUDGE_TREES + _PROBE_TREES * (i % _PAIRS)  # the same trees for both signs
        numbers = range(first, first + _PROBE_TREES)
        losses[i] = late_loss(
            _scaled(parameters, np.maximum(steps[i], 2 * _SMALLEST)), numbers, rows
        )

    run_threads(try_step, range(len(steps)), n_threads)
    return losses / max(losses.max(), np.finfo(float).tiny)


def _signs(seed: int, turn: int, d: int) -> np.ndarray:
    """Return +1 and -1, float64 [pairs, d], from a stream of bits that no version changes."""
    key = np.array([seed, turn], np.uint64)
    bits = np.random.Philox(key=key).random_raw(-(-_PAIRS * d // 64))
    drawn = np.unpackbits(bits.astype("<u8").view(np.uint8))[: _PAIRS * d]
    return 2.0 * drawn.reshape(_PAIRS, d) - 1.0
