"""Feature scales learned from rows: an evolution strategy on the progressive loss.

A Mondrian tree splits a feature as often as its range is wide, so multiplying a column by a
scale is choosing how often it is split on; the process and all its laws stay what they are.
Which scales help is asked of small forests themselves. Each round draws random sign vectors;
for every one, two forests are tried whose scales are multiplied by 2 to the power of plus and
of minus the signs. The difference of their progressive losses, times a feature's sign and
averaged over the vectors, estimates how the loss changes with that feature's scale, for all
features at once; each log scale then moves against it, by at most a factor of two.

Relies on :mod:`dmondrian.progressive`. Promises powers of two, so that scaling a float32
loses nothing and thresholds can be told in the units of the data; and scales of a lower
progressive loss than none at all, or no scales.

References
----------
Rechenberg (1973), Evolutionsstrategie; Salimans et al. (2017), "Evolution Strategies as a
Scalable Alternative to Reinforcement Learning", for the antithetic form. For Mondrian forests
this search is new; Reis et al. (2022), "TrIM", reweigh features from expected gradients.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dmondrian.ensemble import run_threads
from dmondrian.parameters import ForestParameters
from dmondrian.progressive import Rows, late_loss

_ROUNDS = 6
_PAIRS = 16  # pairs of forests tried in a round
_PROBE_TREES = 2
_JUDGE_TREES = 10  # trees of the forests that are compared in the end
_SMALLEST = -12.0  # log2 of the smallest scale: the feature is as good as left out
_SURE = 2.0  # standard errors of an estimated slope that move a scale by a factor of two


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
    d = parameters.n_features
    log_scales = np.zeros(d)
    judged = [(_loss(parameters, log_scales, range(_JUDGE_TREES), rows, n_threads), log_scales)]
    for turn in range(_ROUNDS):
        signs = _signs(parameters.seed, turn, d)
        steps = np.concatenate([signs, -signs])
        losses = np.empty(len(steps))

        def try_step(i: int, base=log_scales, steps=steps, losses=losses) -> None:  # type: ignore[no-untyped-def]  # bound early
            first = _JUDGE_TREES + _PROBE_TREES * (i % _PAIRS)
            numbers = range(first, first + _PROBE_TREES)
            losses[i] = _loss(parameters, base + steps[i], numbers, rows)

        run_threads(try_step, range(len(steps)), n_threads)
        slopes = signs * (losses[:_PAIRS] - losses[_PAIRS:])[:, None]
        mean = slopes.sum(axis=0) / _PAIRS
        error = np.sqrt(((slopes - mean) ** 2).sum(axis=0)) / _PAIRS
        moves = mean / (_SURE * np.maximum(error, np.finfo(float).tiny))
        log_scales = log_scales - np.clip(moves, -1.0, 1.0)
        log_scales = np.maximum(log_scales - log_scales.max(), _SMALLEST)
        rounded = np.rint(log_scales)
        loss = _loss(parameters, rounded, range(_JUDGE_TREES), rows, n_threads)
        judged.append((loss, rounded))
    _, best = min(judged, key=lambda pair: pair[0])
    return tuple(np.exp2(best).tolist()) if best.any() else None


def _signs(seed: int, turn: int, d: int) -> np.ndarray:
    """Return +1 and -1, float64 [pairs, d], from a stream of bits that no version changes."""
    bits = np.random.Philox(key=[seed, turn]).random_raw(-(-_PAIRS * d // 64))
    drawn = np.unpackbits(bits.astype("<u8").view(np.uint8))[: _PAIRS * d]
    return 2.0 * drawn.reshape(_PAIRS, d) - 1.0


def _loss(
    parameters: ForestParameters,
    log_scales: np.ndarray,
    numbers: range,
    rows: Rows,
    n_threads: int = 1,
) -> float:
    scales = tuple(np.exp2(log_scales).tolist())
    tried = dataclasses.replace(parameters, feature_scales=scales)
    return late_loss(tried, numbers, rows, n_threads)
