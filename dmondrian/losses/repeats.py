"""How much of a row's weight is learned at once: weight w stands for w repeats of the row.

A loss that prices repeats in closed form, or not at all, takes all of it. Others find their
forecasts changed by the repeats before: weight is learned in parts, of one up to 128 and of one
part in 64 of what was learned from then on. A part is priced by the forecast before it, as a single
row is. What a whole weight beyond that costs more than its repeats do is below 1 % of what the
repeats after the first cost.

Promises that parts are whole numbers but for the last, and that their sum is the weight exactly.
"""

from __future__ import annotations

import numpy as np

_PARTS = 64.0


def all_at_once(loss, done):
    return np.inf


def in_parts(loss, done):
    return max(1.0, np.floor(done / _PARTS)) if loss.priced else np.inf
