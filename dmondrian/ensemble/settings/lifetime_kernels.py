"""Lifetimes that grow with the rows learned, to the same last bit everywhere."""

from __future__ import annotations

from dmondrian._numba.jit import kernel
from dmondrian.tree.keyed_random import exp, log


@kernel
def power_law(scale, power, total):
    """Return ``scale`` * ``total``^``power``, ``total`` > 0."""
    return scale * exp(power * log(total))
