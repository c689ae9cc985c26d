"""Conformal intervals: how far they have to reach, by the errors of rows that were not learned.

Relies on nothing. Promises the coverage of split conformal prediction: with m scores exchangeable
with a new one, it is at most the value returned with at least the asked probability.

References: Lei, G'Sell, Rinaldo, Tibshirani, Wasserman (2018), "Distribution-Free Predictive
Inference for Regression", section 2.2.
"""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np

from dmondrian.errors import ParameterError


def probability(name: str, value: Any) -> float:
    """Return a number that was given as a probability, if it lies in (0, 1)."""
    if not isinstance(value, Real) or not 0.0 < float(value) < 1.0:
        raise ParameterError(f"{name} should be a number in (0, 1), got {value!r}")
    return float(value)


def conformal_quantile(scores: np.ndarray, coverage: float) -> float:
    """Return the ceil(coverage (m + 1))-th least of m sorted scores; inf where there is none."""
    # 0.55 is a hair above 55 / 100 in binary: the rank is that of the decimal that was meant.
    meant = Fraction(coverage).limit_denominator(10**9)
    rank = max(math.ceil(meant * (len(scores) + 1)), 1)
    return float(scores[rank - 1]) if rank <= len(scores) else math.inf
