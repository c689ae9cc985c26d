"""Rows in parts: sparse ones are made dense a part at a time, and a fit may end between two.

Relies on the promise that the cut of rows into calls changes no byte of a forest. Promises parts in
the order of the rows, at least one, and no more dense memory than ``PART_BYTES`` beside a row.

Shapes: n rows, d features.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dmondrian.errors import ParameterError

PART_BYTES = 16 << 20
"""Bytes of sparse rows that are made dense at once, as float32."""

_FIRST_ROWS = 64  # learned before time is looked at for the first time
_SHORT, _LONG = 0.01, 0.04  # of the budget: parts that take less are doubled, more halved


@dataclass(frozen=True)
class TimeBudget:
    """Time that a fit may go on learning, and when it began."""

    seconds: float
    began: float

    @property
    def is_spent(self) -> bool:
        """Whether no further rows are to be begun."""
        return time.monotonic() - self.began >= self.seconds


def budget_of(time_budget: Any) -> TimeBudget | None:
    """Return the budget of a fit that begins now; None where there is none.

    Raises
    ------
    ParameterError
        It is no number above 0.
    """
    if time_budget is None:
        return None
    is_number = isinstance(time_budget, Real) and not isinstance(time_budget, (bool, np.bool_))
    if not is_number or not float(time_budget) > 0.0:
        raise ParameterError(f"time_budget should be a number of seconds above 0: {time_budget!r}")
    return TimeBudget(float(time_budget), time.monotonic())


def rows_of(max_rows: Any, n: int) -> int:
    """Return how many of n rows a fit may learn.

    Raises
    ------
    ParameterError
        It is no whole number of at least 1.
    """
    if max_rows is None:
        return n
    is_count = isinstance(max_rows, Integral) and not isinstance(max_rows, (bool, np.bool_))
    if not is_count or int(max_rows) < 1:
        raise ParameterError(f"max_rows should be a whole number of at least 1: {max_rows!r}")
    return min(int(max_rows), n)


def dense(X: Any) -> Any:
    """Return sparse rows as an array, float32 [n, d], and anything else as it is.

    Raises
    ------
    ParameterError
        The array does not fit into memory.
    """
    if not issparse(X):
        return X
    size = 4 * X.shape[0] * X.shape[1]
    if size > PART_BYTES:
        from dmondrian._memory_limit import usable_bytes  # not needed for few rows

        if size > (there := usable_bytes()):
            raise ParameterError(
                f"{X.shape[0]} sparse rows of {X.shape[1]} columns take {size / 2**30:.3g} GiB as "
                f"an array, there are {there / 2**30:.3g}: give fewer rows at a time"
            )
    return np.ascontiguousarray(X.toarray(), np.float32)


def parts_of(X: Any, budget: TimeBudget | None = None) -> Iterator[slice]:
    """Yield which rows are learned or asked about together, until a budget is spent.

    Parameters
    ----------
    X : array or sparse matrix [n, d]
    budget : TimeBudget, optional
        It is looked at after each part, so that one is always learned.
    """
    n = X.shape[0]
    most = max(1, PART_BYTES // (4 * max(1, X.shape[1]))) if issparse(X) else n
    if budget is None:
        yield from (slice(start, min(start + most, n)) for start in range(0, n, most))
        return
    done, size = 0, _FIRST_ROWS
    while done < n:
        stop, began = min(done + min(size, most), n), time.monotonic()
        yield slice(done, stop)
        done = stop
        if budget.is_spent:
            return
        took = time.monotonic() - began
        if took < _SHORT * budget.seconds:
            size *= 2
        elif took > _LONG * budget.seconds:
            size = max(1, size // 2)


def answered_in_parts(answer: Callable[[Any], Any], X: Any) -> np.ndarray:
    """Return the answers about sparse rows, float64 [n, k], which are made dense part by part."""
    X = X.tocsr()
    parts = list(parts_of(X)) or [slice(0, 0)]  # of no rows there is an error
    return np.concatenate([answer(X[part].toarray()) for part in parts])
