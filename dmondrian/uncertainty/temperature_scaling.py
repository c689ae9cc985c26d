"""Calibration in the stream: one exponent for the probabilities of an averaged forest.

The mean over trees that disagree is less sure than it should be, so p^b over its sum, with b above
1, forecasts better. b is fitted to forecasts made just before their rows were learned
(:mod:`dmondrian.prequential.stream_sample`). What is kept of them is the slope of their summed log
loss at fixed exponents. The loss is convex in b, so its slope only grows and where it passes zero
is the optimum: no step sizes, and the order of the rows does not matter within a doubling of the
stream. When the total weight doubles, older slopes count a quarter: b may grow with the rows.
Regressors have a factor of their variance instead, see
:mod:`dmondrian.uncertainty.variance_scaling`.

Relies on :mod:`dmondrian.uncertainty.temperature_scaling_kernels`, loaded when it is needed: to
show a calibration it is not. Promises a pure function of the sampled forecasts in order, to the
last bit; b = 1 where none came, and near it where few did.

Shapes: n rows, a sampled rows, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmondrian.ensemble.sums.exact_sums import ONE
from dmondrian.errors import CorruptError
from dmondrian.prequential.stream_sample import FADING, PRIOR_ROWS, Sampled, by_octave
from dmondrian.uncertainty.variance_scaling import VarianceFactor

# 1/4 to 16 in steps of 2^(1/4), as literals: they depend on no machine's exp2. Between neighbours
# b times the slope is taken as linear in b, which errs by less than one per cent.
_ROOTS = 1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429
EXPONENTS = np.array(
    [*(power * r for power in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0) for r in _ROOTS), 16.0]
)


@dataclass(frozen=True)
class Calibration:
    """The slopes of sampled forecasts that make the exponent. Immutable: `after` returns another.

    Attributes
    ----------
    octave : int
        Doublings of the total weight when the last sampled row came.
    slopes : tuple of float
        Slope of the summed log loss at each of ``EXPONENTS``, nats.
    """

    octave: int = 0
    slopes: tuple[float, ...] = (0.0,) * len(EXPONENTS)

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

        slopes, octave = np.array(self.slopes), self.octave
        unit, logs = 1.0 / (n_trees * ONE), np.empty(sampled.sums.shape[1])
        for now, rows in by_octave(sampled):
            slopes *= FADING ** (now - octave)
            octave = now
            sums, own, times = sampled.sums[rows], y[sampled.rows[rows]], sampled.hits[rows]
            add_slopes(
                read_only(sums), unit, read_only(own), read_only(times), EXPONENTS, logs, slopes
            )  # fmt: skip
        return Calibration(octave, tuple(slopes.tolist()))

    @classmethod
    def between(cls, parts: Sequence[Calibration]) -> Calibration:
        """Return the mean of calibrations of the same rows by other trees.

        Forests of more trees need a slightly larger exponent; the rows that follow correct it.
        """
        slopes = [math.fsum(column) / len(parts) for column in zip(*(p.slopes for p in parts),
                  strict=True)]  # fmt: skip
        return cls(parts[0].octave, tuple(slopes))

    @property
    def exponent(self) -> float:
        """The exponent b of least loss.

        The prior b^8 e^(-8 b), a Gamma density with its mode at 1, counts like 8 rows or so.
        """
        slopes = np.array(self.slopes) * EXPONENTS + PRIOR_ROWS * (EXPONENTS - 1.0)
        above = int(np.argmax(slopes >= 0.0)) if (slopes >= 0.0).any() else len(slopes)
        if above in (0, len(slopes)):
            return float(EXPONENTS[min(above, len(slopes) - 1)])
        low, high = slopes[above - 1], slopes[above]
        share = low / (low - high)
        return float(EXPONENTS[above - 1] + share * (EXPONENTS[above] - EXPONENTS[above - 1]))

    @property
    def in_words(self) -> str:
        """What is done, for people."""
        return f"probabilities to the power {self.exponent:.3f}"

    def apply(self, proba: np.ndarray) -> np.ndarray:
        """Return calibrated probabilities, float64 [n, K]."""
        from dmondrian.tree.box_encoding import read_only
        from dmondrian.uncertainty.temperature_scaling_kernels import write_powers

        powers = np.empty(proba.shape)
        write_powers(read_only(proba), self.exponent, powers)
        return powers

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able copy; floats go through JSON exactly."""
        return {"octave": self.octave, "slopes": list(self.slopes)}

    @classmethod
    def from_json(cls, values: Any) -> Calibration:
        """Return the calibration of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If it is not one that a forest can have.
        """
        if not isinstance(values, dict) or set(values) != {"octave", "slopes"}:
            raise CorruptError("a calibration should have the keys octave, slopes")
        octave, slopes = values["octave"], values["slopes"]
        is_sound = (
            type(octave) is int
            and 0 <= octave < 1024
            and isinstance(slopes, list)
            and len(slopes) == len(EXPONENTS)
            and all(type(slope) is float and math.isfinite(slope) for slope in slopes)
        )
        if not is_sound:
            raise CorruptError(f"a calibration cannot be {str(values)[:200]}")
        return cls(octave, tuple(slopes))


Fitted = Calibration | VarianceFactor


def kind_of(gives_label_variance: bool) -> type[Calibration] | type[VarianceFactor]:
    """Return the class that calibrates variances of labels, or probabilities of classes."""
    return VarianceFactor if gives_label_variance else Calibration


def calibrated(forecasts: np.ndarray, calibration: Fitted | None) -> np.ndarray:
    """Return calibrated forecasts, or forecasts as they are where nothing calibrates them."""
    return forecasts if calibration is None else calibration.apply(forecasts)


def tells_labels(calibration: Fitted | None) -> bool:
    """Return whether it is the variance of labels that is calibrated."""
    return isinstance(calibration, VarianceFactor)


def calibrated_std(variance: np.ndarray, calibration: Fitted | None) -> np.ndarray:
    """Return standard deviations, calibrated where those of labels are."""
    factor = calibration.factor if isinstance(calibration, VarianceFactor) else 1.0
    return np.sqrt(factor * variance)
