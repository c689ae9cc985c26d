"""Successive halving: when candidates are compared, and which of them go on.

Relies on ranks by losses. Promises a pure function of the number of candidates, of rows, and of
losses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dmondrian.checkpoint.search_record import ranking


def rounds(n_candidates: int, n_rows: int) -> list[int]:
    """Return the rows after which candidates are compared, increasing; the last is `n_rows`.

    Each round has twice the rows of the one before, and half the candidates, until one is left.
    """
    n_rounds = max(1, math.ceil(math.log2(max(1, n_candidates))))
    ends = [max(1, n_rows >> (n_rounds - 1 - k)) for k in range(n_rounds)]
    return sorted(set(ends))


def going_on(losses: Mapping[int, float], is_last: bool) -> list[int]:
    """Return the numbers of the candidates that go on, in order: the better half, or the best.

    Parameters
    ----------
    losses : mapping of number to loss
    is_last : bool
        Whether one alone is looked for.
    """
    ranked = ranking(losses)
    return sorted(ranked[: 1 if is_last else math.ceil(len(ranked) / 2)])


def dealt(numbers: Sequence[int], n_groups: int) -> list[list[int]]:
    """Return candidates in groups of nearly equal sizes, none of them empty."""
    n_groups = max(1, min(n_groups, len(numbers)))
    return [list(numbers[start::n_groups]) for start in range(n_groups)]
