"""Detection of streams that are sorted by the target, while their rows are learned.

Most data are checked when they are planned; files added later are not, nor are the parts of a
shuffle that could not mix all row groups.

Relies on targets that arrive in stream order. Promises to warn at most once.
"""

from __future__ import annotations

import logging

import numpy as np

from dmondrian.data.target import FEW_CHANGES, MIN_MOVES, ONE_WAY

_log = logging.getLogger("dmondrian")

_LEAST_ROWS = 1000


class Sortedness:
    """Warns if consecutive rows of a stream differ in their target too rarely.

    Parameters
    ----------
    target : str
        Name of the target column.
    n_classes : int
        0 for regression.
    is_shuffled : bool
        Whether the stream is shuffled already: the warning then gives other advice.
    """

    def __init__(self, target: str, n_classes: int, is_shuffled: bool) -> None:
        self._target, self._is_shuffled = target, is_shuffled
        self._counts = np.zeros(n_classes, np.int64)
        self._rows = self._changes = self._rises = 0
        self._last = np.empty(0)
        self._is_done = False

    def add(self, y: np.ndarray) -> None:
        """Add the targets of the next rows, float64 [n]; warn if all rows so far look sorted."""
        if self._is_done or not len(y):
            return
        steps = np.diff(np.concatenate([self._last, y]))
        self._last = y[-1:].copy()
        self._rows += len(y)
        self._changes += int(np.count_nonzero(steps))
        self._rises += int((steps > 0).sum())
        if len(self._counts):
            self._counts += np.bincount(y.astype(np.int64), minlength=len(self._counts))
        if self._rows >= _LEAST_ROWS and self._looks_sorted():
            self._is_done = True
            _log.warning("%s", self._warning())

    def _looks_sorted(self) -> bool:
        if len(self._counts):
            shares = self._counts / self._rows
            expected = (self._rows - 1) * (1.0 - float(shares @ shares))
            return expected >= MIN_MOVES and self._changes < FEW_CHANGES * expected
        most = max(self._rises, self._changes - self._rises)
        return self._changes >= MIN_MOVES and most > ONE_WAY * self._changes

    def _warning(self) -> str:
        advice = (
            "write the data in smaller row groups or in random order"
            if self._is_shuffled
            else "use shuffle=True (in a job file: shuffle = true) in a new run"
        )
        return (
            f"the first {self._rows:,} rows learned look sorted by the target {self._target!r} "
            "(neighbours nearly always agree), which misleads a forest that learns row by row: "
            f"{advice}, unless the order is the point"
        )
