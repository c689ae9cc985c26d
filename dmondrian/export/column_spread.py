"""Where rows lie on columns: of rows of the stream that are read again, as a run keeps none.

Relies on the run's plan and on its files, which may be gone. Promises shares of the encoded rows
that were learned: of all, or of those in parts that are spread evenly over them.

Shapes: n rows, d features, b bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dmondrian.data import Plan, read_chunk
from dmondrian.data.source import is_local
from dmondrian.errors import DMondrianError

_MOST_PARTS = 16  # of the stream, of 65,536 rows at most
_MOST_QUICK_PARTS, _MOST_QUICK_VALUES = 4, 2**26  # the latter of encoded rows


class RowsRead(NamedTuple):
    """Encoded rows of the stream."""

    X: np.ndarray  # float32 [n, d], of the features that were asked for
    are_all: bool  # that were learned
    reason: str  # why there are none


def read_some(
    plan: Plan | None, learned: int, features: Sequence[int], *, is_quick: bool = False
) -> RowsRead:
    """Return rows that were learned, all or those of parts spread evenly over them.

    Parameters
    ----------
    plan : Plan or None
        Of a run whose data may be gone.
    learned : int
        Rows of the stream that the run has learned.
    features : sequence of int
        Columns of encoded rows to keep.
    is_quick : bool
        Whether to read fewer parts, and of local files alone.
    """
    none = np.empty((0, len(features)), np.float32)
    if plan is None:
        return RowsRead(none, False, "the plan of the stream cannot be read")
    parts = [chunk for chunk in plan.chunks_by_block if chunk.start < learned]
    n_parts = _MOST_PARTS
    if is_quick:
        away = next((uri for uri in plan.table.uris() if not is_local(uri)), None)
        if away is not None:
            return RowsRead(none, False, f"{away} is read with --partial-dependence N alone")
        size = max((chunk.rows for chunk in parts), default=1) * plan.schema.n_features
        n_parts = min(_MOST_QUICK_PARTS, _MOST_QUICK_VALUES // max(1, size))
        if not n_parts:
            return RowsRead(
                none, False, "rows of so many features are read with --partial-dependence N alone"
            )
    places = np.unique(np.linspace(0, len(parts) - 1, min(n_parts, len(parts))).astype(int))
    kept = [none]
    try:
        for place in places.tolist():
            X = read_chunk(plan, parts[place]).X
            kept.append(X[: learned - parts[place].start, list(features)])
    except DMondrianError as error:
        return RowsRead(none, False, f"the data cannot be read again: {error}")
    return RowsRead(np.concatenate(kept), len(places) == len(parts), "")


def shares_of_bins(values: np.ndarray, n_bins: int) -> np.ndarray:
    """Return the share of encoded numbers [n] below 0, in bins of [0, 1], and above 1: [b + 2].

    A value of 1 is in the last of the bins.
    """
    places = np.floor(values.astype(np.float64) * n_bins)
    places[values == 1.0] = n_bins - 1
    numbers = np.clip(places, -1, n_bins).astype(np.int64) + 1
    return np.bincount(numbers, minlength=n_bins + 2) / max(1, len(values))
