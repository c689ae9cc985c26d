"""Calibration of a regressor in the stream: one factor for the variance of the label.

A forest's own variance of the label is that of its cells' labels and of the trees' means. It lacks
the uncertainty of cells of few rows, and counts between trees what their mean averages out. The
factor is the mean of squared errors in units of the variance, of forecasts made just before their
rows were learned (:mod:`dmondrian.prequential.stream_sample`): of all factors the one under which
Gaussians with these means and variances make the labels most likely. An error of more than ten
standard deviations counts as ten, so that one row alone does not decide. Older rows fade as they do
in :mod:`dmondrian.uncertainty.temperature_scaling`.

Relies on :mod:`dmondrian.ensemble.sums.exact_sums`. Promises a pure function of the sampled
forecasts in order, to the last bit; 1 where none came, and near it where few did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmondrian.ensemble.sums.exact_sums import label_moments
from dmondrian.errors import CorruptError
from dmondrian.prequential.stream_sample import FADING, PRIOR_ROWS, Sampled, by_octave

_LARGEST = 100.0  # squared error in units of the variance: ten standard deviations
_ROUNDED = 1.0 + 2.0**-20  # more than the roundings of sums could add


@dataclass(frozen=True)
class VarianceFactor:
    """The sums of sampled forecasts that make the factor. Immutable: `after` returns another.

    Attributes
    ----------
    octave : int
        Doublings of the total weight when the last sampled row came.
    weight : float
        Of the rows, faded.
    squares : float
        Their squared errors in units of the variance, in all, faded in the same way.
    """

    octave: int = 0
    weight: float = 0.0
    squares: float = 0.0

    @property
    def empty(self) -> VarianceFactor:
        """The factor before any row."""
        return VarianceFactor()

    def after(self, sampled: Sampled, y: np.ndarray, n_trees: int) -> VarianceFactor:
        """Return the factor with more sampled rows; see :meth:`Calibration.after`."""
        mean, variance = label_moments(sampled.sums, n_trees, sampled.units)
        errors = (y[sampled.rows] - mean) ** 2
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            squared = np.minimum(errors / variance, _LARGEST)
        hits = np.where(np.isnan(squared), 0.0, sampled.hits)  # 0 / 0 counts as no row
        squared = np.where(np.isnan(squared), 0.0, squared)
        octave, weight, squares = self.octave, self.weight, self.squares
        for now, rows in by_octave(sampled):
            fading = FADING ** (now - octave)
            weight = _added(fading * weight, hits[rows])
            squares = _added(fading * squares, hits[rows] * squared[rows])
            octave = now
        return VarianceFactor(octave, weight, squares)

    @classmethod
    def between(cls, parts: Sequence[VarianceFactor]) -> VarianceFactor:
        """Return the mean of factors of the same rows by other trees."""
        weight = math.fsum(part.weight for part in parts) / len(parts)
        squares = math.fsum(part.squares for part in parts) / len(parts)
        return cls(parts[0].octave, weight, squares)

    @property
    def factor(self) -> float:
        """Factor of variances; the prior counts like 8 rows of factor 1."""
        return (self.squares + PRIOR_ROWS) / (self.weight + PRIOR_ROWS)

    @property
    def in_words(self) -> str:
        """Description of the scaling, for people."""
        return f"variances of the label times {self.factor:.3f}"

    def apply(self, mean: np.ndarray) -> np.ndarray:
        """Return calibrated forecasts: a mean is one already."""
        return mean

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able copy; floats go through JSON exactly."""
        return {"octave": self.octave, "weight": self.weight, "squares": self.squares}

    @classmethod
    def from_json(cls, values: Any) -> VarianceFactor:
        """Return the factor of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If it is not one that a forest can have.
        """
        if not isinstance(values, dict) or set(values) != {"octave", "weight", "squares"}:
            raise CorruptError("a variance factor should have the keys octave, weight, squares")
        octave, sums = values["octave"], (values["weight"], values["squares"])
        is_whole = type(octave) is int and 0 <= octave < 1024
        are_sums = all(type(x) is float and 0.0 <= x < 2.0**1000 for x in sums)
        if not (is_whole and are_sums and sums[1] <= _ROUNDED * _LARGEST * sums[0]):
            raise CorruptError(f"a variance factor cannot be {str(values)[:200]}")
        return cls(octave, *sums)


def _added(total: float, parts: np.ndarray) -> float:
    """Return the total with parts added one by one: cuts between calls move no rounding."""
    return float(np.add.accumulate(np.concatenate([[total], parts]))[-1])
