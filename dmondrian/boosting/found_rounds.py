"""How many rounds of trees the next boosted set has: early stopping on rows that came since.

The best number of rounds differs by a factor of ten between streams, and grows with their rows. A
set was fitted to rows before its birth alone; so the rows that came since, of which the next set is
born, judge it as held-out rows judge a model: what they lose after half of its rounds, after three
quarters, and after all. The next set has the number of rounds of least loss, and where that is all
of them half as many more, as more might be better still. So it doubles within two births, or halves
at one (early stopping: Zhang, Yu, 2005, "Boosting with early stopping", Annals of Statistics 33).
Of classes it never has fewer than the first: members raise what a set answers to a power, so that
one which learned too much is worth more to them than its loss alone is; numbers have no powers.

Relies on :func:`dmondrian.boosting.boosting_kernels.sum_losses`. Promises a pure function of the
set and the rows in order, to the last bit on every machine.
"""

from __future__ import annotations

import numpy as np

from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.ensemble.rows.labelled_rows import LabelledRows

_PARTS = (2, 3)  # quarters of the rounds that are judged, before all
_GROWN = 1.5  # times as many rounds where all of them are best


def rounds_after(newest: BoostedSet, rows: LabelledRows, least: int, most: int) -> int | None:
    """Return how many rounds the set after ``newest`` has, from ``least`` to ``most``.

    None where ``newest`` has no trees, as of one class.

    Parameters
    ----------
    newest : BoostedSet
    rows : LabelledRows
        Those that came since its birth, or the newest of these; labels as they came.
    least, most : int
    """
    n = newest.n_rounds
    if not n:
        return None
    judged = sorted({max(1, part * n // 4) for part in _PARTS} | {n})
    best = judged[int(np.argmin(newest.losses_after(judged, rows.X, rows.y, rows.w)))]
    n_rounds = best if best < n else int(_GROWN * n)
    return min(max(n_rounds, least), most)
