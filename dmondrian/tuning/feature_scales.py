"""Feature scales learned from rows: the forest's own evidence, then an evolution strategy.

A Mondrian tree splits a feature as often as its range is wide, so multiplying a column by a
scale is choosing how often it is split on; the process and all its laws stay what they are.
Scales are judged by the progressive loss of a small forest, and found in two searches:

1. *Evidence*: what splits on a feature were worth in the last forest, per row that they part
   (:func:`dmondrian.ensemble.feature_importances.relevances`), to the power 1/2 or 1, multiplies
   its scale. This goes on while the loss falls. Then *idle* columns may be left out: those that a
   forest of that column alone forecasts no better with than one without any. It goes on with and
   without them, once from the scales that were found, and once from the beginning, which is
   preferred unless the loss is far less the other way: noise that is left out early costs later
   rows the least, but a column that helps beside others only, and is left out early, does not come
   back. Evidence is fast, but has one measure for all columns.
2. *Evolution*: each round draws random sign vectors; for every one, two forests are tried whose
   scales are multiplied by 2 to the power of plus and of minus the signs. The difference of their
   losses, times a feature's sign and averaged over the vectors, estimates how the loss changes
   with that feature's scale, for all features at once; each log scale then moves against it, by
   at most a factor of two.

Relies on :mod:`dmondrian.prequential.progressive_validation` and
:mod:`dmondrian.ensemble.feature_importances`. Promises powers of two, so that scaling a float32
loses nothing and thresholds can be given in the units of the data; no scale other than 1 for a
column that is constant here, of which nothing is known; and no scales unless the judging forest,
which the evolution never sees, does better by two standard errors.

References
----------
Rechenberg (1973), Evolutionsstrategie; Salimans et al. (2017), "Evolution Strategies as a
Scalable Alternative to Reinforcement Learning", for the antithetic form. For Mondrian forests
these searches are new; Reis et al. (2022), "TrIM", reweigh features from expected gradients.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from dmondrian.ensemble.feature_importances import relevances
from dmondrian.ensemble.rows.encoded_rows import arranged
from dmondrian.ensemble.settings.numeric_limits import LARGEST_SCALE
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.threads import run_threads
from dmondrian.prequential.progressive_validation import Given, Rows, Trial, late_loss

_EVIDENCE_ROUNDS = 10
_ROUNDS = 10
_PAIRS = 16  # pairs of forests tried in a round
_PROBE_TREES = 2
_JUDGE_TREES = 10
_CHUNKS = 2  # parts in which rows are predicted: far ahead, as scales are to last
_SMALLEST = -12.0  # log2 of the smallest scale that ten rounds of evolution can make good again
_LEFT_OUT = -16.0  # that of idle columns, which cost nothing there
_SURE = 2.0  # standard errors that a slope or a gain must have to be believed
_LIKELY = 1.0  # those that a gain must have, at least in every other round of evidence
_FAR_LESS = 0.95  # of a loss
_SQRT_HALF = math.sqrt(0.5)


class _Judged(NamedTuple):
    """Scales, and the forest that judged them."""

    log_scales: np.ndarray  # float64 [d], of base 2
    trial: Trial  # of the second half of the rows

    @property
    def loss(self) -> float:
        """The exact sum of the losses, so that no order of additions tips a choice."""
        return math.fsum(self.trial.losses)


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
    X, y, w = rows
    varies = X.min(axis=0) < X.max(axis=0)
    is_small = np.abs(X).max(axis=0) <= 0.5 * LARGEST_SCALE
    prepared = arranged(parameters, X)
    given = X if prepared is None else prepared, y, w
    plain = _judge(parameters, np.zeros(len(varies)), given, n_threads)
    idle = _idle(parameters, varies, rows, n_threads)
    least = np.full(len(varies), _SMALLEST)
    best = _by_evidence(parameters, plain, varies, least, given, n_threads)
    if idle.any():
        least = np.where(idle, _LEFT_OUT, _SMALLEST)
        late, early = (
            _by_evidence(parameters, start, varies, least, given, n_threads)
            for start in (best, plain)
        )
        best = late if late.loss < _FAR_LESS * early.loss else early
    best = _by_evolution(parameters, best, varies, is_small, least, given, n_threads)
    return best.trial.parameters.feature_scales if _is_better(best, plain, _SURE) else None


def _judge(
    parameters: ForestParameters, log_scales: np.ndarray, rows: Given, n_threads: int
) -> _Judged:
    scaled, half = _scaled(parameters, log_scales), len(rows[1]) // 2
    trial = Trial(scaled, range(_JUDGE_TREES), rows, half, n_threads, _CHUNKS)
    return _Judged(log_scales, trial)


def _is_better(better: _Judged, worse: _Judged, errors: float) -> bool:
    """Whether the mean of paired differences of losses is that many standard errors above 0."""
    before, after = worse.trial.losses, better.trial.losses
    gains = (before - after) / max(before.max(), np.finfo(float).tiny)
    mean = math.fsum(gains) / len(gains)
    variance = math.fsum((gains - mean) ** 2) / len(gains)
    return mean > errors * math.sqrt(variance / len(gains))


def _idle(
    parameters: ForestParameters, varies: np.ndarray, rows: Rows, n_threads: int
) -> np.ndarray:
    """Return which features forecast no better alone than none does, bool [d].

    None where all do: features that help only together cannot be distinguished from noise so,
    and where there are others the judging forest has the last word on them.
    """
    losses = _losses_alone(parameters, varies, rows, n_threads)
    idle = varies & (losses[:-1] >= losses[-1])
    return idle & (varies & ~idle).any()


def _losses_alone(
    parameters: ForestParameters, varies: np.ndarray, rows: Rows, n_threads: int
) -> np.ndarray:
    """Return what small forests lose of each feature that varies alone, then of none, [d + 1].

    A column alone makes the same trees as among constant ones, which are left out; but the
    predictions of a hierarchy depend on their number.
    """
    X, y, w = rows
    losses = np.full(len(varies) + 1, np.inf)
    width = len(varies) if parameters.aggregation == "hierarchy" else 1
    of_width = dataclasses.replace(parameters, n_features=width)

    def try_alone(j: int) -> None:
        alone = np.zeros((len(X), width), np.float32)
        if j < len(varies):
            alone[:, min(j, width - 1)] = X[:, j]
        losses[j] = late_loss(of_width, range(_PROBE_TREES), (alone, y, w), n_chunks=_CHUNKS)

    run_threads(try_alone, [*np.flatnonzero(varies).tolist(), len(varies)], n_threads)
    return losses


def _by_evidence(
    parameters: ForestParameters,
    best: _Judged,
    varies: np.ndarray,
    least: np.ndarray,
    rows: Given,
    n_threads: int,
) -> _Judged:
    """Return better scales, found from what splits were worth; or ``best``."""
    sure, tried = best, {best.log_scales.tobytes()}  # none of which is better than ``best``
    for _ in range(_EVIDENCE_ROUNDS):
        worth = relevances(best.trial.forest())
        found = [best.log_scales + _log2_whole(step) for step in (worth, np.sqrt(worth))]
        idle = least < _SMALLEST
        if (best.log_scales[idle] > _LEFT_OUT).any():
            found += [np.where(idle, -np.inf, own) for own in (*found, best.log_scales)]
        levelled = {own.tobytes(): own for own in (_levelled(own, varies, least) for own in found)}
        judged = [
            _judge(parameters, own, rows, n_threads)
            for key, own in levelled.items()
            if key not in tried
        ]
        better = min(judged, key=lambda one: one.loss, default=best)
        if better.loss >= best.loss:
            break
        was_sure, best, tried = best is sure, better, tried | set(levelled)
        if _is_better(best, sure, _LIKELY):
            sure = best
        elif not was_sure:  # two rounds in a row
            break
    return best


def _by_evolution(
    parameters: ForestParameters,
    best: _Judged,
    varies: np.ndarray,
    is_small: np.ndarray,
    least: np.ndarray,
    rows: Given,
    n_threads: int,
) -> _Judged:
    """Return better scales, found from random steps; or ``best``."""
    log_scales = best.log_scales
    most = np.where(is_small, np.inf, 0.0)  # of a step: twice the column is to be a float32
    for turn in range(_ROUNDS):
        signs = _signs(parameters.seed, turn, parameters.n_features)
        steps = np.concatenate([log_scales + signs, log_scales - signs])
        losses = _try(parameters, np.where(varies, np.minimum(steps, most), 0.0), rows, n_threads)
        slopes = signs * (losses[:_PAIRS] - losses[_PAIRS:])[:, None]
        mean = slopes.sum(axis=0) / _PAIRS
        error = np.sqrt(((slopes - mean) ** 2).sum(axis=0)) / _PAIRS
        moves = mean / (_SURE * np.maximum(error, np.finfo(float).tiny))
        log_scales = _levelled(log_scales - np.clip(moves, -1.0, 1.0), varies, least)
        found = _judge(parameters, log_scales, rows, n_threads)
        if found.loss < best.loss:
            best = found
    return best


def _levelled(log_scales: np.ndarray, varies: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Return log scales up to 0 and from ``least`` on, those of constant columns 0."""
    largest = log_scales[varies].max(initial=-np.inf)
    return np.where(varies, np.maximum(log_scales - largest, least), 0.0)


def _log2_whole(values: np.ndarray) -> np.ndarray:
    """Return log2 of values >= 0 over their largest, to the nearest whole number.

    By the exponents of floats: the result depends on no machine's logarithm.
    """
    largest = values.max()
    if largest <= 0.0:
        return np.zeros(len(values))
    mantissas, exponents = np.frexp(np.maximum(values / largest, 2.0 ** (2 * _SMALLEST)))
    return np.where(mantissas >= _SQRT_HALF, exponents, exponents - 1).astype(np.float64)


def _scaled(parameters: ForestParameters, log_scales: np.ndarray) -> ForestParameters:
    scales = tuple(np.exp2(np.rint(log_scales)).tolist())  # exact for whole numbers
    return dataclasses.replace(parameters, feature_scales=scales)


def _try(
    parameters: ForestParameters, steps: np.ndarray, rows: Given, n_threads: int
) -> np.ndarray:
    """Return the loss of two small forests at each of the steps, relative to the largest."""
    losses = np.empty(len(steps))

    def try_step(i: int) -> None:
        first = _JUDGE_TREES + _PROBE_TREES * (i % _PAIRS)  # the same trees for both signs
        numbers = range(first, first + _PROBE_TREES)
        scaled = _scaled(parameters, np.maximum(steps[i], 2 * _SMALLEST))
        losses[i] = late_loss(scaled, numbers, rows, n_chunks=_CHUNKS)

    run_threads(try_step, range(len(steps)), n_threads)
    return losses / max(losses.max(), np.finfo(float).tiny)


def _signs(seed: int, turn: int, d: int) -> np.ndarray:
    """Return +1 and -1, float64 [pairs, d], from a stream of bits that no version changes."""
    key = np.array([seed, turn], np.uint64)
    bits = np.random.Philox(key=key).random_raw(-(-_PAIRS * d // 64))
    drawn = np.unpackbits(bits.astype("<u8").view(np.uint8))[: _PAIRS * d]
    return 2.0 * drawn.reshape(_PAIRS, d) - 1.0
