"""Rows that are kept of a stream: all while there are few, then some old ones and the newest.

The newest rows are kept, at most ``MOST_NEWEST``, and the same number of earlier ones, those with
the smallest keys: a uniform sample without replacement (Vitter's reservoirs draw the same law; a
key for each row needs no state). Both halves have the same weight: where nothing changes any sample
is as good, and of rows that follow a change the newest have more than their share.

Rows leave the newest a step at a time, at rows whose number is a multiple of the step, so that what
is kept is a pure function of the seed and the numbered rows, whatever the cuts between calls.

Shapes: n rows, d columns, m sampled rows.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from dmondrian.boosting.boosting_kernels import write_keys
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.ensemble.settings.numeric_limits import LARGEST_TARGET
from dmondrian.errors import CorruptError
from dmondrian.forest.packed_arrays import packed, unpacked

MOST_NEWEST, _LEAST_NEWEST = 32768, 256  # powers of two
_MOST_NUMBERS = 2**21  # of the newest rows
_STEPS = 8  # in which rows leave the newest
_KEPT = np.uint64(0x8B0057EDC0DE2A11)  # apart from the draws of trees


def n_newest_of(d: int, most: int = MOST_NEWEST) -> int:
    """Return how many newest rows of ``d`` columns are kept, and of old ones: a power of two."""
    n = most
    while n > _LEAST_NEWEST and n * d > _MOST_NUMBERS:
        n //= 2
    return n


class KeptRows:
    """Rows kept of a stream.

    Parameters
    ----------
    d : int
        Columns.
    seed : int
    most_newest : int
        Newest rows that are kept, of few columns: a power of two.

    Attributes
    ----------
    position : int
        Rows that came.
    """

    def __init__(self, d: int, seed: int, most_newest: int = MOST_NEWEST) -> None:
        self._n_newest = n_newest_of(d, most_newest)
        self._step = self._n_newest // _STEPS
        self._key = np.uint64(seed) ^ _KEPT
        self.position = 0
        size = self._n_newest + self._step
        self._recent = LabelledRows(np.empty((size, d), np.float32), np.empty(size), np.empty(size))
        self._sample = self._recent.taken(slice(0, 0))
        self._numbers = np.empty(0, np.int64)

    @property
    def _n_left(self) -> int:
        """Rows that are no more among the newest."""
        whole_steps = self.position - self.position % self._step
        return max(0, whole_steps - self._n_newest)

    def rows(self) -> LabelledRows:
        """Return the rows that are kept, by their numbers."""
        recent = self._recent.taken(slice(0, self.position - self._n_left))
        return self._sample.and_then(recent)

    def newest(self, n: int) -> LabelledRows:
        """Return the newest ``n`` rows, or as many as are kept without gaps."""
        there = self.position - self._n_left
        return self._recent.taken(slice(max(0, there - n), there))

    def copy(self) -> KeptRows:
        """Return the same rows, which others can be added to."""
        copied, there = copy.copy(self), self.position - self._n_left
        copied._recent = LabelledRows(*(np.empty_like(part) for part in self._recent))
        for target, source in zip(copied._recent, self._recent, strict=True):
            target[:there] = source[:there]
        return copied

    def add(self, rows: LabelledRows) -> None:
        """Take the rows that come next."""
        start, n = 0, len(rows.y)
        while start < n:
            there = self.position - self._n_left
            stop = min(n, start + self._step - self.position % self._step)
            for target, rows_taken in zip(
                self._recent, rows.taken(slice(start, stop)), strict=True
            ):
                target[there : there + stop - start] = rows_taken
            first, self.position = self._n_left, self.position + stop - start
            if self._n_left > first:
                self._drop(first, there + stop - start)
            start = stop

    def _drop(self, first: int, there: int) -> None:
        """Sample from the rows from number ``first`` on, which leave the ``there`` newest."""
        n = self._n_left - first
        numbers = np.concatenate([self._numbers, np.arange(first, first + n)])
        both = self._sample.and_then(self._recent.taken(slice(0, n)))
        for part in self._recent:
            part[: there - n] = part[n:there].copy()
        if len(numbers) > self._n_newest:
            least = np.argpartition(self._keys(numbers), self._n_newest)[: self._n_newest]
            least.sort()
            numbers, both = numbers[least], both.taken(least)
        self._numbers, self._sample = numbers, both

    def _keys(self, numbers: np.ndarray) -> np.ndarray:
        keys = np.empty(len(numbers), np.uint64)
        write_keys(self._key, numbers, keys)
        return keys

    def to_json(self) -> dict[str, Any]:
        """Return the rows as text."""
        rows = self.rows()
        return {
            "numbers": packed(self._numbers),
            **{name: packed(part) for name, part in rows._asdict().items()},
        }

    def load_json(self, stored: Any, position: int, n_classes: int) -> None:
        """Take over the rows of :meth:`to_json`, or arrays in their place, kept of ``position``.

        Raises
        ------
        CorruptError
            If they are not.
        """
        if not isinstance(stored, dict) or set(stored) != {"numbers", *LabelledRows._fields}:
            raise CorruptError(f"kept rows should have numbers and labels: {str(stored)[:80]}")
        self.position = position
        left, d = self._n_left, self._recent.X.shape[1]
        m = min(left, self._n_newest)
        n = m + position - left
        numbers = unpacked(stored["numbers"], (m,), np.int64)
        rows = LabelledRows(
            unpacked(stored["X"], (n, d), np.float32),
            unpacked(stored["y"], (n,), np.float64),
            unpacked(stored["w"], (n,), np.float64),
        )
        is_label = np.abs(rows.y) <= LARGEST_TARGET
        if n_classes:
            is_label = (rows.y >= 0) & (rows.y < n_classes) & (rows.y == np.floor(rows.y))
        are_numbers = (numbers[:1] >= 0).all() and (np.diff(numbers) > 0).all()
        if not is_label.all() or not (rows.w > 0.0).all() or not are_numbers:
            raise CorruptError("kept rows should have numbers in order, labels, and weights > 0")
        if not (numbers[-1:] < left).all():
            raise CorruptError(f"sampled rows should be among the first {left}")
        self._numbers, self._sample = numbers, rows.taken(slice(0, m))
        for target, source in zip(self._recent, rows.taken(slice(m, n)), strict=True):
            target[: n - m] = source
