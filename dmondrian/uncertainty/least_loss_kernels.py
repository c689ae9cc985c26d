"""The exponent of least loss, from slopes at fixed exponents: compiled, and as it stands.

Compiled by :mod:`dmondrian.uncertainty.temperature_scaling_kernels`, hence its name; it loads no
Numba itself, as showing a calibration needs none. The same operations in the same order: the same
number to the last bit.
"""

from __future__ import annotations

from typing import Any


def least_loss(slopes: Any, exponents: Any, prior: float) -> float:
    """Return the exponent at which the loss and ``prior`` rows of the exponent 1 have slope zero.

    ``slopes``, ``exponents`` [g], these increasing. The prior's loss is prior (b - 1 - log b).
    Between exponents b times the slope is taken as linear.
    """
    low = 0.0
    for i in range(len(exponents)):
        high = slopes[i] * exponents[i] + prior * (exponents[i] - 1.0)
        if high >= 0.0:
            if i == 0:
                return exponents[0]
            share = low / (low - high)
            return exponents[i - 1] + share * (exponents[i] - exponents[i - 1])
        low = high
    return exponents[len(exponents) - 1]
