"""Feature scales learned from rows: steps along the score of a forest's splits.

A Mondrian tree splits a feature as often as its range is wide, so multiplying a column by a
scale is choosing how often it is split on; the process and all its laws stay what they are.
Scales are judged by the progressive loss of a small forest, which also shows where to
go on: from forecasts made before rows are learned follows the derivative of the loss to the log of
each scale, and its standard error (:mod:`dmondrian.tuning.scale_slopes`). Each log scale moves by
half its standard errors, at most by a factor of two, and goes on half as far at the next step;
steps get shorter, and end where none has had a smaller loss for a while. Of all that was tried the
scales of least loss are taken.

A forest that is not aggregated takes the scales of an AMF, if they serve it.

Relies on :mod:`dmondrian.prequential.progressive_validation`. Promises powers of two, so that
scaling a float32 loses nothing and thresholds can be given in the units of the data; no scale other
than 1 for a column that is constant here, of which nothing is known; and no scales unless the
judging forest does better by two standard errors.

References
----------
Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
Learning", for the score function. For Mondrian forests this search is new; Reis et al. (2022),
"TrIM", reweigh features from expected gradients.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dmondrian.ensemble.rows.encoded_rows import arranged
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.prediction_sums import Sums
from dmondrian.prequential.progressive_validation import Given, Rows, Trial
from dmondrian.tuning.scale_slopes import scores

_STEPS, _PATIENCE = 16, 5  # at most, and those without a smaller loss after which none follows
_MOST = 1.0  # of a step, in log2
_SHORTER = 0.2  # by which steps are divided more at each
_DOUBT = 0.25  # standard errors taken from all scores: a column is split less until it serves
_KEPT = 0.5  # share of a step that the next one goes on
_TREES = 10
_CHUNKS = 2  # parts in which rows are predicted: far ahead, as scales are to last
_SMALLEST = -12.0  # log2 of the smallest scale
_AMF = {True: "amf-classifier", False: "amf-regressor"}  # of classes, or of numbers
_ALPHA = 0.2  # pseudo-count of its classes, times 1 / K
_SURE = 2.0  # standard errors of a whole step, and of a gain that is believed


class _Scored(Trial):
    """A small forest that forecast rows before it learned them.

    Attributes
    ----------
    scores : float64 array of shape (2, d)
        As :func:`dmondrian.tuning.scale_slopes.scores` returns, of all rows that were forecast.
    loss : float
        The exact sum of the losses, so that no order of additions tips a choice.
    """

    def __init__(self, parameters: ForestParameters, rows: Given, n_threads: int) -> None:
        self.scores = np.zeros((2, parameters.n_features))
        super().__init__(parameters, range(_TREES), rows, len(rows[1]) // 2, n_threads, _CHUNKS)
        self.loss = math.fsum(self.losses * rows[2][len(rows[1]) // 2 :])

    def _forecast(self, X: PreparedRows, out: np.ndarray) -> Sums:
        forecast = super()._forecast(X, out)
        y, w = (column[self._rest] for column in self._rows[1:])
        self.scores += scores(
            self._forest, X.values, y, w * self._slopes(forecast, y), w, self._n_threads
        )
        return forecast

    def _slopes(self, forecast: Sums, y: np.ndarray) -> np.ndarray:
        """Return how the loss of each row falls with the forecast of its label."""
        if not self.parameters.n_classes:
            return 2.0 * (y - forecast.total[:, 0] / forecast.n_trees)
        own = forecast.total[np.arange(len(y)), y.astype(np.int64)]
        return forecast.n_trees / np.maximum(own, np.finfo(float).tiny)


def learn_scales(
    parameters: ForestParameters, rows: Rows, n_threads: int = 1
) -> tuple[float, ...] | None:
    """Return one scale per feature, powers of two up to 1, or None where no scale helps.

    Parameters
    ----------
    parameters : ForestParameters
    rows : tuple
        X float32 [n, d], y float64 [n], w float64 [n]; some dozen to a few thousand rows.
    n_threads : int
        Threads over the trees that are tried.
    """
    varies = rows[0].min(axis=0) < rows[0].max(axis=0)
    looked_at = _aggregated(parameters)
    prepared = arranged(looked_at, rows[0])
    given = rows[0] if prepared is None else prepared, *rows[1:]
    log_scales, step, since = np.zeros(len(varies)), np.zeros(len(varies)), 0
    plain = best = last = _Scored(_scaled(looked_at, log_scales), given, n_threads)
    for k in range(_STEPS):
        errors = np.maximum(np.sqrt(last.scores[1]), np.finfo(float).tiny)
        towards = (last.scores[0] / errors - _DOUBT) / _SURE
        step = _KEPT * step + np.clip(towards, -_MOST, _MOST) / (1.0 + _SHORTER * k)
        log_scales = _levelled(log_scales + step, varies)
        last = _Scored(_scaled(looked_at, log_scales), given, n_threads)
        best, since = (last, 0) if last.loss < best.loss else (best, since + 1)
        if since == _PATIENCE:
            break
    found = best.parameters.feature_scales
    before, after = plain.losses, best.losses
    if looked_at is not parameters and best is not plain:
        before, after = (
            Trial(
                dataclasses.replace(parameters, feature_scales=trial.parameters.feature_scales),
                range(_TREES), given, len(rows[1]) // 2, n_threads, _CHUNKS,
            ).losses
            for trial in (plain, best)
        )  # fmt: skip
    return found if _is_less(after, before, rows[2][len(rows[1]) // 2 :]) else None


def _aggregated(parameters: ForestParameters) -> ForestParameters:
    """Return the parameters of forests whose splits have scores: these, or those of an AMF."""
    is_amf = parameters.algorithm in _AMF.values()
    if is_amf and parameters.aggregates_prunings and parameters.splits_range:
        return parameters
    return ForestParameters(
        _AMF[parameters.n_classes > 0],
        parameters.n_features,
        parameters.n_classes,
        parameters.seed,
        alpha=_ALPHA / max(parameters.n_classes, 1),
        charge_opening=False,
    )


def _scaled(parameters: ForestParameters, log_scales: np.ndarray) -> ForestParameters:
    scales = tuple(np.exp2(np.rint(log_scales)).tolist())  # exact for whole numbers
    return dataclasses.replace(parameters, feature_scales=scales)


def _levelled(log_scales: np.ndarray, varies: np.ndarray) -> np.ndarray:
    """Return log scales up to 0 and from the smallest on, those of constant columns 0."""
    largest = log_scales[varies].max(initial=-np.inf)
    return np.where(varies, np.maximum(log_scales - largest, _SMALLEST), 0.0)


def _is_less(losses: np.ndarray, others: np.ndarray, w: np.ndarray) -> bool:
    """Whether the mean of paired differences of losses is surely above 0."""
    gains = (others - losses) * w / max(others.max(), np.finfo(float).tiny)
    mean = math.fsum(gains) / len(gains)
    variance = math.fsum((gains - mean) ** 2) / len(gains)
    return mean > _SURE * math.sqrt(variance / len(gains))
