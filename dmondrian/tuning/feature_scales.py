"""Feature scales learned from rows: steps along the score of a forest's splits, then evolution.

A Mondrian tree splits a feature as often as its range is wide, so multiplying a column by a
scale is choosing how often it is split on; the process and all its laws stay what they are.
Scales are judged by the progressive loss of a small forest, and found in two searches:

1. *Score*: forecasts that the judging forest makes of rows before it learns them show the
   derivative of the loss to the log of each scale, and its standard error
   (:mod:`dmondrian.tuning.scale_slopes`). Each log scale moves by half its standard errors, at most
   by a factor of two, and goes on half as far at the next step; steps get shorter, and end where
   none has had a smaller loss for a while. Of all that was tried the scales of least loss are
   taken. A dozen forests find most of what there is to find, but from one to the next their loss
   is as random as their trees.
2. *Evolution*, where the choice is for good. *Idle* columns, those that a forest of that column
   alone forecasts no better with than one without any, are left out first, if that has a smaller
   loss. Then, of up to 200 columns (of more there are more steps along the score instead), each
   round draws random sign vectors; for every one, two trees are tried whose scales are multiplied
   by 2 to the power of plus and of minus the signs. A tree gains what the forest of all trees of
   the round loses less where that tree counts twice: so scales serve a forest, as those that are
   best for a tree alone do not. The difference of the two gains, times a feature's sign and
   averaged over the vectors, estimates how the loss changes with that feature's scale, for all
   features at once; each log scale then moves along it, by at most a factor of two, and less from
   round to round. Other trees judge where the rounds end, and the mean of their second half.

The score is that of an aggregated forest; another takes the scales of an AMF, if they serve it.

Relies on :mod:`dmondrian.prequential.progressive_validation`. Promises powers of two, so that
scaling a float32 loses nothing and thresholds can be given in the units of the data; no scale other
than 1 for a column that is constant here, of which nothing is known; and no scales unless the
judging forest does better by two standard errors, or by four where the score is all there is,
before a later choice or of many columns: it looks at the rows that it is judged by, and few rows,
or many columns, can be served by chance. Standard errors are the largest of those of single rows
and of means over blocks of consecutive rows: neighbours in a stream are often alike, and a series
of time has less to say than as many independent rows.

References
----------
Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
Learning", for the score function; Rechenberg (1973), Evolutionsstrategie; Salimans et al. (2017),
"Evolution Strategies as a Scalable Alternative to Reinforcement Learning", for the antithetic form.
For Mondrian forests these searches are new; Reis et al. (2022), "TrIM", reweigh features from
expected gradients.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from dmondrian.ensemble.rows.encoded_rows import encode_rows
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings.numeric_limits import LARGEST_SCALE
from dmondrian.ensemble.settings.parameters import ForestParameters, policies
from dmondrian.ensemble.sums.prediction_sums import Sums
from dmondrian.ensemble.threads import run_threads
from dmondrian.prequential.progressive_validation import RowArrays, Trial, TrialRows, late_loss
from dmondrian.prequential.progressive_validation_kernels import write_losses
from dmondrian.tree.box_encoding import read_only
from dmondrian.tuning.scale_slopes import scores

_ROUNDS = 20
_PAIRS, _LEAST_PAIRS = 8, 4  # of trees tried in a round
_SHORTER = 0.1  # by which moves are divided more at each round
_JUDGES = 1 << 16  # number of the first tree that judges rounds: none that scales were found with
_IDLE_TREES = 2  # of each column alone
_TREES, _LEAST_TREES = 10, 2
_CHEAP = 50  # classes up to which all rounds and trees are tried: a node has a number of each
_CHUNKS = 2  # parts in which rows are predicted: far ahead, as scales are to last
_WHOLE = 2.0  # standard errors of a score that is worth a whole step
_MOST = 1.0  # of a step, in log2
_DOUBT = 0.25  # standard errors taken from all scores: a column is split less until it serves
_KEPT = 0.5  # share of a step that the next one goes on
_SMALLEST = -12.0  # log2 of the smallest scale
_LEFT_OUT = -16.0  # that of idle columns, which cost nothing there
_WIDEST = 200  # features up to which random steps follow: of more they show less, for more time
_AMF = {True: "amf-classifier", False: "amf-regressor"}  # of classes, or of numbers
_ALPHA = 0.2  # pseudo-count of its classes, times 1 / K
_SURE, _SURE_BY_SCORE = 2.0, 4.0  # standard errors that a gain must have
_FEWEST_BLOCKS = 8  # of rows, of which a standard error is taken


class _Steps(NamedTuple):
    """How far steps along the score go."""

    most: int
    patience: int  # steps without a smaller loss after which none follows
    shorter: float  # by which steps are divided more at each


# The first chosen on ten sets, of 1,100 and of 6,000 rows, by held-out loss; the second, where no
# random steps follow, on three of them among 300 columns of noise.
_STEPS, _STEPS_ALONE = _Steps(16, 5, 0.2), _Steps(32, 10, 0.1)


class _EvaluatedScales(NamedTuple):
    """Scales, and what they lose."""

    log_scales: np.ndarray  # float64 [d], of base 2
    scales: tuple[float, ...]
    losses: np.ndarray  # float64, of each row of the second half, times its weight

    @property
    def loss(self) -> float:
        """The exact sum of the losses, so that no order of additions tips a choice."""
        return math.fsum(self.losses)


def _evaluated(log_scales: np.ndarray, trial: Trial, rows: TrialRows) -> _EvaluatedScales:
    """Return scales, and what the forest of a trial lost with them."""
    scales = trial.parameters.feature_scales
    assert scales is not None
    return _EvaluatedScales(log_scales, scales, trial.losses * rows[2][len(rows[1]) // 2 :])


def _evaluate(
    parameters: ForestParameters,
    log_scales: np.ndarray,
    rows: TrialRows,
    n_threads: int,
    first: int = 0,
) -> _EvaluatedScales:
    """Return scales, and what a small forest loses with them, of trees numbered from ``first``."""
    scaled, half = _scaled(parameters, log_scales), len(rows[1]) // 2
    numbers = range(first, first + _n_trees(parameters))
    return _evaluated(log_scales, Trial(scaled, numbers, rows, half, n_threads, _CHUNKS), rows)


def _n_trees(parameters: ForestParameters, most: int = _TREES, least: int = _LEAST_TREES) -> int:
    """Return how many trees to try, by default to judge with: fewer where classes are many."""
    return min(max(most * _CHEAP // max(parameters.n_classes, 1), least), most)


class _ScoringTrial(Trial):
    """A small forest that forecast rows before it learned them, and the scores of its splits.

    Attributes
    ----------
    scores : float64 array of shape (2, d)
        As :func:`dmondrian.tuning.scale_slopes.scores` returns, of all rows that were forecast.
    """

    def __init__(self, parameters: ForestParameters, rows: TrialRows, n_threads: int) -> None:
        self.scores = np.zeros((2, parameters.n_features))
        trees, half = range(_n_trees(parameters)), len(rows[1]) // 2
        super().__init__(parameters, trees, rows, half, n_threads, _CHUNKS)

    def _forecast(self, X: PreparedRows, out: np.ndarray) -> Sums:
        forecast = super()._forecast(X, out)
        y, w = (column[self._rest] for column in self._rows[1:])
        self.scores += scores(
            self._forest, X.values, y, w * self._slopes(forecast, y), w, self._n_threads
        )
        return forecast

    def _slopes(self, forecast: Sums, y: np.ndarray) -> np.ndarray:
        """Return how the loss of each row falls with the forecast of its label.

        Half of that for numbers: a step depends on scores in their standard errors alone.
        """
        if not self.parameters.n_classes:
            return y - forecast.total[:, 0] / forecast.n_trees
        of_label = forecast.total[np.arange(len(y)), y.astype(np.int64)]
        return forecast.n_trees / np.maximum(of_label, np.finfo(float).tiny)


def learn_scales(
    parameters: ForestParameters, rows: RowArrays, n_threads: int = 1, is_last: bool = True
) -> tuple[float, ...] | None:
    """Return one scale per feature, powers of two up to 1, or None where no scale helps.

    Parameters
    ----------
    parameters : ForestParameters
    rows : tuple
        X float32 [n, d], y float64 [n], w float64 [n]; some dozen to a few thousand rows.
    n_threads : int
        Threads over the trees or forests that are tried.
    is_last : bool
        Whether the choice is for good, and worth hundreds of trees that are tried beside the score,
        or more steps along it where there are many features.
    """
    X, y, w = rows
    varies = X.min(axis=0) < X.max(axis=0)
    if np.count_nonzero(varies) < 2:
        return None  # the largest scale is 1
    prepared = encode_rows(parameters, X)
    values = X if prepared is None else prepared
    aggregated = _aggregated(parameters)
    in_units = values, _in_units(y, parameters.n_classes), w
    is_wide = parameters.n_features > _WIDEST
    steps = _STEPS_ALONE if is_wide and is_last else _STEPS
    plain, scaled = _by_score(aggregated, varies, in_units, steps, n_threads)
    judging = in_units if aggregated is parameters else (values, y, w)
    if aggregated is not parameters:
        plain, scaled = (
            _evaluate(parameters, judged.log_scales, judging, n_threads)
            for judged in (plain, scaled)
        )
    if not 0.0 < plain.loss < math.inf:
        return None  # there is nothing to gain, or nothing that can be compared
    best = min(plain, scaled, key=lambda judged: judged.loss)
    if is_last:
        idle = _idle(parameters, varies, (X, *judging[1:]), n_threads)
        least = np.where(idle, _LEFT_OUT, _SMALLEST)
        if idle.any():
            levelled = _levelled(np.where(idle, _LEFT_OUT, best.log_scales), varies, least)
            without = _evaluate(parameters, levelled, judging, n_threads)
            best = min(without, best, key=lambda judged: judged.loss)
        if not is_wide:
            # Scales of trees that are tried are up to 2: the column is to be a float32 then.
            most = np.where(np.abs(X).max(axis=0) <= 0.5 * LARGEST_SCALE, np.inf, 0.0)
            later = _by_evolution(
                parameters, best.log_scales, varies, (least, most), judging, n_threads
            )
            plain, *candidates = (
                _evaluate(parameters, log_scales, judging, n_threads, _JUDGES)
                for log_scales in (plain.log_scales, best.log_scales, *later)
            )
            best = min(candidates, key=lambda judged: judged.loss)
    errors = _SURE if is_last and not is_wide else _SURE_BY_SCORE
    return best.scales if _is_better(best, plain, errors) else None


def may_be_learned(scales: tuple[float, ...]) -> bool:
    """Return whether some rows can have :func:`learn_scales` return these scales, one or more."""
    are_powers = all(math.frexp(s)[0] == 0.5 and s >= 2.0**_LEFT_OUT for s in scales)
    return are_powers and max(scales) == 1.0


def _in_units(y: np.ndarray, n_classes: int) -> np.ndarray:
    """Return labels; numbers in a unit, a power of two, in which the largest is about one.

    The forests of an AMF are the same then, and squares of labels of any size are numbers.
    """
    return y if n_classes else np.ldexp(y, -math.frexp(float(np.abs(y).max()))[1])


def _by_score(
    parameters: ForestParameters, varies: np.ndarray, rows: TrialRows, steps: _Steps, n_threads: int
) -> tuple[_EvaluatedScales, _EvaluatedScales]:
    """Return scales of one, and those that steps along the score found."""
    log_scales, step, since = np.zeros(len(varies)), np.zeros(len(varies)), 0
    last = _ScoringTrial(_scaled(parameters, log_scales), rows, n_threads)
    plain = best = _evaluated(log_scales, last, rows)
    for k in range(steps.most):
        score, error = last.scores[0], np.sqrt(last.scores[1])
        in_errors = np.divide(score, error, out=np.zeros(len(varies)), where=error > 0.0)
        towards = (in_errors - _DOUBT) / _WHOLE
        step = _KEPT * step + np.clip(towards, -_MOST, _MOST) / (1.0 + steps.shorter * k)
        log_scales = _levelled(log_scales + step, varies)
        last = _ScoringTrial(_scaled(parameters, log_scales), rows, n_threads)
        stepped = _evaluated(log_scales, last, rows)
        best, since = (stepped, 0) if stepped.loss < best.loss else (best, since + 1)
        if since == steps.patience:
            break
    return plain, best


def _by_evolution(
    parameters: ForestParameters,
    log_scales: np.ndarray,
    varies: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    rows: TrialRows,
    n_threads: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return scales that random steps lead to: the last, and the mean of the second half of rounds.

    ``bounds`` are the least and the largest log scales to try.
    """
    least, most = bounds
    path, n = [], _n_trees(parameters, _PAIRS, _LEAST_PAIRS)
    for turn in range(_ROUNDS):
        signs = _signs(parameters.seed, turn, n, parameters.n_features)
        steps = np.minimum(np.concatenate([log_scales + signs, log_scales - signs]), most)
        first = _TREES + n * turn  # the same trees for both signs, others in each round
        gains = _gains(parameters, np.where(varies, steps, 0.0), first, rows, n_threads)
        slopes = signs * (gains[:n] - gains[n:])[:, None]
        mean = slopes.sum(axis=0) / n
        error = np.sqrt(((slopes - mean) ** 2).sum(axis=0)) / n
        towards = mean / (_WHOLE * np.maximum(error, np.finfo(float).tiny))
        move = np.clip(towards, -_MOST, _MOST) / (1.0 + _SHORTER * turn)
        log_scales = _levelled(log_scales + move, varies, least)
        path.append(log_scales)
    late = np.stack(path[_ROUNDS // 2 :])
    return log_scales, _levelled(late.sum(axis=0) / len(late), varies, least)


def _idle(
    parameters: ForestParameters, varies: np.ndarray, rows: RowArrays, n_threads: int
) -> np.ndarray:
    """Return which features forecast no better alone than none does, bool [d].

    None where all do: features that help only together cannot be distinguished from noise so,
    and where there are others the judging forest has the last word on them.
    """
    losses = _losses_alone(parameters, varies, rows, n_threads)
    idle = varies & (losses[:-1] >= losses[-1])
    return idle & (varies & ~idle).any()


def _losses_alone(
    parameters: ForestParameters, varies: np.ndarray, rows: RowArrays, n_threads: int
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
        losses[j] = late_loss(of_width, range(_IDLE_TREES), (alone, y, w), n_chunks=_CHUNKS)

    run_threads(try_alone, [*np.flatnonzero(varies).tolist(), len(varies)], n_threads)
    return losses


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


def _levelled(
    log_scales: np.ndarray, varies: np.ndarray, least: np.ndarray | float = _SMALLEST
) -> np.ndarray:
    """Return log scales up to 0 and from ``least`` on, those of constant columns 0."""
    largest = log_scales[varies].max(initial=-np.inf)
    return np.where(varies, np.maximum(log_scales - largest, least), 0.0)


def _is_better(better: _EvaluatedScales, worse: _EvaluatedScales, errors: float) -> bool:
    """Return whether the mean of paired differences of losses is that many standard errors."""
    gains = (worse.losses - better.losses) / max(worse.losses.max(), np.finfo(float).tiny)
    return math.fsum(gains) / len(gains) > errors * _standard_error(gains)


def _standard_error(values: np.ndarray) -> float:
    """Return the largest standard error of a mean that blocks of 1, 2, 4, ... values show."""
    largest, size = 0.0, 1
    while size == 1 or len(values) // size >= _FEWEST_BLOCKS:
        n = len(values) // size
        means = [math.fsum(block) / size for block in values[: n * size].reshape(n, size)]
        mean = math.fsum(means) / n
        variance = math.fsum((block_mean - mean) ** 2 for block_mean in means) / n
        largest, size = max(largest, math.sqrt(variance / n)), 2 * size
    return largest


class _ForecastTrial(Trial):
    """A tree that forecast rows before it learned them.

    Attributes
    ----------
    total : float64 array of shape (n - start, k)
        Its forecasts.
    """

    def __init__(self, parameters: ForestParameters, number: int, rows: TrialRows) -> None:
        self._totals: list[np.ndarray] = []
        super().__init__(parameters, [number], rows, len(rows[1]) // 2, n_chunks=_CHUNKS)
        self.total = np.concatenate(self._totals)

    def _forecast(self, X: PreparedRows, out: np.ndarray) -> Sums:
        forecast = super()._forecast(X, out)
        self._totals.append(forecast.total)
        return forecast


def _gains(
    parameters: ForestParameters, steps: np.ndarray, first: int, rows: TrialRows, n_threads: int
) -> np.ndarray:
    """Return what a forest of a tree at each of the steps loses less if that tree counts twice.

    From -1 to 0, the greatest. Trees of both halves of the steps are numbered from ``first``.
    """
    tried: list[Any] = [None] * len(steps)

    def try_step(i: int) -> None:
        scaled = _scaled(parameters, np.maximum(steps[i], 2 * _SMALLEST))
        tried[i] = _ForecastTrial(scaled, first + i % (len(steps) // 2), rows).total

    run_threads(try_step, range(len(steps)), n_threads)
    half = len(rows[1]) // 2
    y, w, loss = read_only(rows[1][half:]), rows[2][half:], np.empty(len(rows[1]) - half)
    together, policy = np.add.reduce(tried), policies(parameters).loss
    gains = np.empty(len(steps))
    for i, tree_total in enumerate(tried):
        write_losses(policy, together + tree_total, len(steps) + 1, y, loss)
        gains[i] = -math.fsum(loss * w)
    gains -= gains.max()
    return gains / max(-gains.min(), np.finfo(float).tiny)


def _signs(seed: int, turn: int, n: int, d: int) -> np.ndarray:
    """Return +1 and -1, float64 [n, d], from a stream of bits that no version changes."""
    key = np.array([seed, turn], np.uint64)
    bits = np.random.Philox(key=key).random_raw(-(-n * d // 64))
    drawn = np.unpackbits(bits.astype("<u8").view(np.uint8))[: n * d]
    return 2.0 * drawn.reshape(n, d) - 1.0
