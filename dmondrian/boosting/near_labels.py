"""Labels that are numbers as boosted sets are fitted to them: those far off the others are clipped.

The unit in which a set adds up errors, and its first answer, the mean of the labels, are those of
all its rows: one label of 1e6 among thousands between 0 and 1 left neither digits nor trees for the
others. So labels are clipped beyond the span of the rows without the farthest, by one span
(Winsorization: Tukey, 1962, "The future of data analysis", Annals of Mathematical Statistics 33;
Huber's bound on errors needs a scale of errors, which there is none of before the first tree).
Normal labels are never that far: the set is then that of the labels as they are, to the bit.

Promises a pure function of the labels, the same in any order of the rows.
"""

from __future__ import annotations

import numpy as np

_ONE_IN = 256  # rows, of which the farthest to either side is left out of the span


def near_labels(y: np.ndarray) -> np.ndarray:
    """Return labels float64 [n], clipped beyond the span of all but the farthest, by that span.

    The farthest are one row in 256 to either side, and one at least, whatever their weights. Where
    the others are all equal nothing is clipped.
    """
    n = len(y)
    n_far = max(1, n // _ONE_IN)
    if n <= 2 * n_far:
        return y
    ordered = np.sort(y)
    low, high = ordered[n_far], ordered[n - 1 - n_far]
    span = high - low
    return np.clip(y, low - span, high + span) if span > 0.0 else y
