"""Calibration in the stream: one exponent for the probabilities of an averaged forest.

The mean over trees that disagree is less sure than it should be, so p^b over its sum, with b above
1, forecasts better. b is fitted to forecasts made just before their rows were learned
(:mod:`dmondrian.prequential.stream_sample`). What is kept of them is the slope of their summed log
loss at fixed exponents. The loss is convex in b, so its slope only grows and where it passes zero
is the optimum: no step sizes, and the order of the rows does not matter within a doubling of the
stream. When the total weight doubles, older slopes count a quarter: b may grow with the rows.

That exponent alone has no bound where rows are few, or chosen by an adversary. With
``calibrate="auto"`` the forecast is a Bayesian mixture of two, p^b and p as it is, of the same
weight at first: once p^b has lost d nats more, it has the weight 1 / (1 + e^d). Over the sampled
rows, each counted once, the log loss of the mixture is at most log 2 above that of p, and at most
log 2 above that of p^b, each by the exponent of the rows before, whatever the rows are: the product
of its forecasts is the mean of both products. A row of great weight moves b by as many marks as it
passes, and the mixture once: a forecast that came before its weight was known has no other bound.
It is a bound for rows one ahead; nothing bounds the loss of rows far from those learned.

Regressors have a factor of their variance instead, see
:mod:`dmondrian.uncertainty.variance_scaling`.

Relies on :mod:`dmondrian.uncertainty.temperature_scaling_kernels`, loaded when it is needed: to
show a calibration it is not. Promises a pure function of the sampled forecasts in order, to the
last bit; b = 1 where none came, and near it where few did.

References: Vovk (1990), "Aggregating strategies", COLT (the mixture and its bound).

Shapes: n rows, a sampled rows, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, Final

import numpy as np

from dmondrian.ensemble.sums.exact_sums import ONE
from dmondrian.errors import CorruptError
from dmondrian.prequential.stream_sample import FADING, PRIOR_ROWS, Sampled, by_octave, octave_of
from dmondrian.uncertainty.least_loss_kernels import least_loss
from dmondrian.uncertainty.variance_scaling import VarianceFactor

AUTO: Final = "auto"
"""Value of ``calibrate``: calibrated wherever it can be, by the mixture that has a bound."""

# 1/4 to 16 in steps of 2^(1/4), as literals: they depend on no machine's exp2. Between neighbours
# b times the slope is taken as linear in b, which errs by less than one per cent.
_ROOTS = 1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429
_EXPONENTS = *(power * r for power in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0) for r in _ROOTS), 16.0
EXPONENTS = np.array(_EXPONENTS)
_WORK = 3, -(-len(EXPONENTS) // 8) * 8  # scratch of kernels, a multiple of 8
_OLD, _MIXED = {"octave", "slopes"}, {"octave", "slopes", "excess"}
_LARGEST = 2.0**1000  # beyond what the weights of rows add up to
_CERTAIN = 800.0  # nats beyond which a weight is 1 or 0
_EXACT = Context(prec=30)
_NEARLY_ONE = 0.9995  # what three digits show as 1


@dataclass(frozen=True)
class Calibration:
    """The slopes of sampled forecasts that make the exponent. Immutable: `after` returns another.

    Attributes
    ----------
    octave : int
        Doublings of the total weight when the last sampled row came.
    slopes : tuple of float
        Slope of the summed log loss at each of ``EXPONENTS``, nats.
    excess : float or None
        Summed log loss of the power less that of forecasts as they are, of all sampled rows, nats;
        None where the power alone forecasts.
    """

    octave: int = 0
    slopes: tuple[float, ...] = (0.0,) * len(EXPONENTS)
    excess: float | None = None

    @property
    def empty(self) -> Calibration:
        """The calibration of this kind before any row."""
        return Calibration(excess=None if self.excess is None else 0.0)

    def after(self, sampled: Sampled, y: np.ndarray, n_trees: int) -> Calibration:
        """Return the calibration with more sampled rows.

        Parameters
        ----------
        sampled : Sampled
            Of the rows that follow those before.
        y : float64 array of shape (n,)
            Class indices of the rows that it was sampled from.
        n_trees : int
            Trees that the sums are over.
        """
        from dmondrian.tree.box_encoding import read_only
        from dmondrian.uncertainty.temperature_scaling_kernels import add_slopes

        octave, (slopes, excess) = self.octave, self._arrays()
        unit, logs, work = 1.0 / (n_trees * ONE), np.empty(sampled.sums.shape[1]), np.empty(_WORK)
        for now, rows in by_octave(sampled):
            fading, octave = FADING ** (now - octave), now
            sums, labels, times = sampled.sums[rows], y[sampled.rows[rows]], sampled.hits[rows]
            add_slopes(
                read_only(sums), unit, read_only(labels), read_only(times), fading, EXPONENTS,
                PRIOR_ROWS, logs, work, slopes, excess,
            )  # fmt: skip
        return Calibration(octave, tuple(slopes.tolist()), *excess.tolist())

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return slopes and excess as kernels change them; no excess is an array of none."""
        return np.array(self.slopes), np.array([] if self.excess is None else [self.excess])

    @classmethod
    def between(cls, parts: Sequence[Calibration]) -> Calibration:
        """Return the mean of calibrations of the same rows by other trees.

        Forests of more trees need a slightly larger exponent; the rows that follow correct it. If
        one of them is the power alone, so is the mean.
        """
        slopes = [math.fsum(column) / len(parts) for column in zip(*(p.slopes for p in parts),
                  strict=True)]  # fmt: skip
        known = [part.excess for part in parts if part.excess is not None]
        if len(known) < len(parts):
            return cls(parts[0].octave, tuple(slopes))
        return cls(parts[0].octave, tuple(slopes), math.fsum(known) / len(parts))

    @cached_property
    def exponent(self) -> float:
        """The exponent b of least loss.

        The prior b^8 e^(-8 b), a Gamma density with its mode at 1, counts like 8 rows or so.
        """
        return least_loss(self.slopes, _EXPONENTS, PRIOR_ROWS)

    @cached_property
    def weights(self) -> tuple[float, float]:
        """Weights in the forecast of the power and of probabilities as they are.

        To the last bit the same on all machines, which the C library's exp is not; the second is
        not what the first lacks to 1, which would be 0 where the bound still needs it.
        """
        if self.excess is None:
            return 1.0, 0.0
        odds = _EXACT.exp(Decimal(min(max(self.excess, -_CERTAIN), _CERTAIN)))
        whole = _EXACT.add(1, odds)
        return float(_EXACT.divide(1, whole)), float(_EXACT.divide(odds, whole))

    @property
    def in_words(self) -> str:
        """Description of the calibration, for people."""
        text = f"probabilities to the power {self.exponent:.3f}"
        weight, _ = self.weights
        if weight >= _NEARLY_ONE:
            return text
        return f"{text}, of weight {weight:.3f} beside them as they are"

    def apply(self, proba: np.ndarray) -> np.ndarray:
        """Return calibrated probabilities, float64 [n, K]."""
        from dmondrian.tree.box_encoding import read_only
        from dmondrian.uncertainty.temperature_scaling_kernels import write_powers

        powers = np.empty(proba.shape)
        write_powers(read_only(proba), self.exponent, *self.weights, powers)
        return powers

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able copy; floats go through JSON exactly."""
        header = {"octave": self.octave, "slopes": list(self.slopes)}
        if self.excess is None:
            return header
        return {**header, "excess": self.excess}

    @classmethod
    def from_json(cls, values: Any) -> Calibration:
        """Return the calibration of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If it is not one that a forest can have.
        """
        if not isinstance(values, dict) or set(values) not in (_OLD, _MIXED):
            raise CorruptError(
                "a calibration should have the keys octave, slopes and, if it is mixed, excess"
            )
        octave, slopes = values["octave"], values["slopes"]
        excess = values.get("excess", 0.0)
        is_sound = (
            type(octave) is int
            and 0 <= octave < 1024
            and isinstance(slopes, list)
            and len(slopes) == len(EXPONENTS)
            and all(type(x) is float and abs(x) < _LARGEST for x in (*slopes, excess))
        )
        if not is_sound:
            raise CorruptError(f"a calibration cannot be {str(values)[:200]}")
        return cls(octave, tuple(slopes), values.get("excess"))


class RowByRow:
    """:meth:`Calibration.after` of rows of weight one that come alone, by one kernel in place.

    Parameters
    ----------
    answers : float64 array of shape (T, K)
        Where the trees write what they forecast of a row.
    y : float64 array of shape (1,)
        Where its label is.
    """

    def __init__(self, answers: np.ndarray, y: np.ndarray) -> None:
        from dmondrian._numba.jit import entry_of
        from dmondrian.uncertainty.temperature_scaling_kernels import add_answers

        n_trees, n_classes = answers.shape
        self._known: Calibration | None = None  # what slopes and excess are of
        self._fading, self._slopes, self._excess = np.ones(1), np.empty(0), np.empty(0)
        self._arguments = (
            answers, ONE, 1.0 / (n_trees * ONE), y, self._fading, EXPONENTS, PRIOR_ROWS,
            np.empty(n_classes, np.int64), np.empty(n_classes), np.empty(_WORK),
        )  # fmt: skip
        self._entry = entry_of(add_answers, (*self._arguments, self._slopes, self._excess))

    def after(self, calibration: Calibration, before: float) -> Calibration:
        """Return the calibration with the row, which came after rows of a total weight >= 1."""
        if calibration is not self._known:
            self._slopes, self._excess = calibration._arrays()
        octave = octave_of(before)
        self._fading[0] = FADING ** (octave - calibration.octave)
        self._entry(*self._arguments, self._slopes, self._excess)
        slopes = tuple(self._slopes.tolist())
        self._known = Calibration(octave, slopes, *self._excess.tolist())
        return self._known


FittedCalibration = Calibration | VarianceFactor


def kind_of(gives_label_variance: bool) -> type[Calibration] | type[VarianceFactor]:
    """Return the class that calibrates variances of labels, or probabilities of classes."""
    return VarianceFactor if gives_label_variance else Calibration


def new_calibration(
    calibrate: bool | str | None, gives_label_variance: bool, follows_stream: bool
) -> FittedCalibration | None:
    """Return the calibration of no rows that ``calibrate`` of an estimator asks for; None for none.

    Forests that follow the stream have an exponent of their own: "auto" adds no other.
    """
    if not calibrate or (calibrate == AUTO and follows_stream):
        return None
    if gives_label_variance:
        return VarianceFactor()
    return Calibration(excess=0.0 if calibrate == AUTO else None)


def calibrated(forecasts: np.ndarray, calibration: FittedCalibration | None) -> np.ndarray:
    """Return calibrated forecasts, or forecasts as they are where nothing calibrates them."""
    return forecasts if calibration is None else calibration.apply(forecasts)


def calibrates_std(calibration: FittedCalibration | None) -> bool:
    """Return whether it is the variance of labels that is calibrated."""
    return isinstance(calibration, VarianceFactor)


def calibrated_std(variance: np.ndarray, calibration: FittedCalibration | None) -> np.ndarray:
    """Return standard deviations, calibrated where those of labels are."""
    factor = calibration.factor if isinstance(calibration, VarianceFactor) else 1.0
    return np.sqrt(factor * variance)
