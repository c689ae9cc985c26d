"""What losses share whose cells forecast one constant each.

An empty cell has the forecast of the smallest cell above it with rows, or (``prior``) 0, as in Z24.

Relies on the hook ``solution``. A loss has a field ``prior``.
"""

from __future__ import annotations

from dmondrian._numba.jit import hook


@hook
def solution(loss, tree, v):
    """Return what cell ``v``, which has rows, forecasts."""


def add_solution(loss, tree, v, depth, weight, out):
    out[0] += weight * solution(loss, tree, v)


def add_empty_solution(loss, tree, v, depth, weight, out):
    out[0] += 0.0 if loss.prior else weight * solution(loss, tree, v)
