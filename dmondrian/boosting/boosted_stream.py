"""Boosted sets along a stream: one after the other, each fitted to rows kept before its birth.

A set is fitted before row number b, from ``FIRST_SET`` on, where b is a multiple of a quarter of
the largest power of two up to b; or, if that is smaller, of half the number of newest rows that are
kept, at least of 4,096. So four sets are fitted while the stream doubles, and from some row on one
at equal distances. A set answers until the next one is fitted. The rows that it answers come after
those that it was fitted to, so that mixtures learn what its forecasts are worth.

Relies on :mod:`dmondrian.boosting.kept_rows`, :mod:`dmondrian.boosting.near_labels`,
:mod:`dmondrian.boosting.found_rounds` and :mod:`dmondrian.boosting.boosted_set`. Promises a pure
function of the seed, the numbered rows and the calls that have several births, as those of blocks
of labels have: where each set answers rows, as where labels come one by one, other cuts between
calls change nothing.

Shapes: n rows, d columns.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.boosting.boosting_kernels import BoostingSettings
from dmondrian.boosting.found_rounds import rounds_after
from dmondrian.boosting.kept_rows import MOST_NEWEST, KeptRows, n_newest_of
from dmondrian.boosting.near_labels import near_labels
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.errors import CorruptError

FIRST_SET = 64  # row
GetOrFit = Callable[[int, Callable[[], BoostedSet]], BoostedSet]
"""Returns the set born before a row of this number: one that is kept, or what the function fits."""
_ROUNDS, _LEAVES, _RATE, _L2, _LEAST_ROWS, _LEAST_CURVATURE = 60, 15, 0.2, 1.0, 5, 1e-3
_LARGEST_STEP = 10.0  # log odds
_OF_NUMBERS = BoostingSettings(
    n_rounds=100, n_leaves=15, rate=0.15, l2=1.0, least_rows=20, least_curvature=0.0,
    largest_step=2.0,
)  # fmt: skip
_MANY, _ROUNDS_OF_MANY = 10, 30  # classes, and rounds from so many on
_MOST_TREES, _LEAST_ROUNDS = 900, 5  # of still more classes, each of which takes a tree a round
# Rounds that are found, trees of as many rounds, columns from which these are fewer; least rounds.
_MOST_ROUNDS, _MOST_FOUND, _WIDE, _LEAST_OF_NUMBERS = 400, 1200, 64, 15
# How sets are fitted: as in the first version that had them; to clipped numbers; with as many
# rounds as are found, to more rows. Streams that earlier versions began go on as they did.
AS_THEY_CAME, CLIPPED, ROUNDS_FOUND = 1, 2, 3
_NEWEST_BEFORE = 8192  # rows that earlier versions kept; of wide rows half is the longest life


def settings_of(n_classes: int) -> BoostingSettings:
    """Return how the trees of sets grow, those of the first set if rounds are found."""
    if not n_classes:
        return _OF_NUMBERS
    n_rounds = _ROUNDS
    if n_classes >= _MANY:
        n_rounds = max(_LEAST_ROUNDS, min(_ROUNDS_OF_MANY, _MOST_TREES // n_classes))
    return BoostingSettings(
        n_rounds, _LEAVES, _RATE, _L2, _LEAST_ROWS, _LEAST_CURVATURE, _LARGEST_STEP
    )


def most_rounds_of(n_classes: int, d: int) -> int:
    """Return how many rounds a set of ``d`` columns has at most, where they are found."""
    n_trees = _MOST_FOUND * _WIDE // max(d, _WIDE)
    return max(settings_of(n_classes).n_rounds, min(_MOST_ROUNDS, n_trees // max(n_classes, 1)))


def next_birth(position: int, longest_life: int = MOST_NEWEST // 2) -> int:
    """Return the number of the first row after row ``position`` before which a set is born."""
    if position < FIRST_SET:
        return FIRST_SET
    step = min(longest_life, 1 << max(position.bit_length() - 3, 0))
    return (position // step + 1) * step


def previous_birth(position: int, longest_life: int = MOST_NEWEST // 2) -> int:
    """Return the number of the last row before row ``position`` before which a set was born.

    ``position`` is beyond the first birth.
    """
    step = min(longest_life, 1 << max((position - 1).bit_length() - 3, 0))
    return (position - 1) // step * step


class BoostedStream:
    """The boosted set of a stream's rows so far, if there is one yet.

    Parameters
    ----------
    d, n_classes, seed : int
        No classes for numbers.
    fitting : int
        How sets are fitted: ``ROUNDS_FOUND``, but for streams that earlier versions began.
    monotone : sequence of int
        As in :meth:`BoostedSet.fit`.

    Attributes
    ----------
    newest : BoostedSet or None
        That answers.
    fitting : int
        As given.
    get_or_fit : GetOrFit
        Keeps sets for streams of the same rows and seed, which fit each set once. By default each
        stream fits its own.
    """

    def __init__(
        self,
        d: int,
        n_classes: int,
        seed: int,
        fitting: int = ROUNDS_FOUND,
        monotone: Sequence[int] = (),
    ) -> None:
        self._d, self._n_classes, self._settings = d, n_classes, settings_of(n_classes)
        self.newest: BoostedSet | None = None
        self.get_or_fit: GetOrFit = _fit_always
        self.fitting, self._monotone = fitting, monotone
        most = MOST_NEWEST if fitting >= ROUNDS_FOUND else _NEWEST_BEFORE
        self._kept = KeptRows(d, seed, most)
        self._longest_life = max(n_newest_of(d, most), _NEWEST_BEFORE) // 2

    def next_birth(self, position: int) -> int:
        """Return what the function of this name does, for this stream."""
        return next_birth(position, self._longest_life)

    def answer(self, X: np.ndarray) -> np.ndarray | None:
        """Return what :meth:`BoostedSet.answer` does; None where there is no set yet."""
        return None if self.newest is None else self.newest.answer(X)

    def born_with(self, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> BoostedStream | None:
        """Return the stream after the rows that come next, if a set is born; this one stays.

        Parameters as in :meth:`learn`.
        """
        before = self._kept.position
        if self.next_birth(before) > before + len(y):
            return None
        after = copy.copy(self)
        after._kept = self._kept.copy()
        after.learn(X, y, w)
        return after

    def learn(self, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        """Take the rows that come next; fit the last set born among them, or behind them.

        Those born before would answer no row.

        Parameters
        ----------
        X : float32 [n, d]
        y : float64 [n]
            Classes, or numbers.
        w : float64 [n] or [0]
            Weights > 0, or none for weights of one.
        """
        rows = LabelledRows(X, y, w if len(w) else np.ones(len(y)))
        start, n = 0, len(y)
        while start < n:
            birth = self.next_birth(self._kept.position)
            left = birth - self._kept.position
            self._kept.add(rows.taken(slice(start, min(n, start + left))))
            if start + left <= n < start + left + self.next_birth(birth) - birth:
                self.newest = self.get_or_fit(self._kept.position, self._fit)
            start += left

    def _fit(self) -> BoostedSet:
        """Return a set fitted to the rows kept now."""
        rows, settings = self._kept.rows(), self._settings
        is_clipped = self.fitting >= CLIPPED and not self._n_classes
        y = near_labels(rows.y) if is_clipped else rows.y
        if self.fitting >= ROUNDS_FOUND and self.newest is not None:
            birth = self._kept.position
            n_since = birth - previous_birth(birth, self._longest_life)  # the set is no younger
            since = self._kept.newest(n_since)
            least = settings.n_rounds if self._n_classes else _LEAST_OF_NUMBERS
            most = most_rounds_of(self._n_classes, self._d)
            n_rounds = rounds_after(self.newest, since, least, most)
            settings = settings if n_rounds is None else settings._replace(n_rounds=n_rounds)
        return BoostedSet.fit(rows.X, y, rows.w, self._n_classes, settings, self._monotone)

    def kept_rows(self) -> LabelledRows:
        """Return the rows that are kept for the next sets."""
        return self._kept.rows()

    @property
    def digest(self) -> str:
        """SHA-256 of kept rows and set, and of how sets are fitted, as hexadecimal digits."""
        hasher = hashlib.sha256(bytes([self.fitting]))
        of_set = () if self.newest is None else (*self.newest.trees, self.newest.first_scores)
        for part in (*self._kept.rows(), *of_set):
            hasher.update(part.tobytes())
        return hasher.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return kept rows and set as text."""
        newest = None if self.newest is None else self.newest.to_json()
        return {"kept": self._kept.to_json(), "set": newest}

    def load_json(self, stored: Any, position: int) -> None:
        """Take over what :meth:`to_json` wrote after ``position`` rows, of a stream fitted alike.

        Raises
        ------
        CorruptError
            If it is not that of such a stream.
        """
        has_set = position >= FIRST_SET
        is_whole = isinstance(stored, dict) and set(stored) == {"kept", "set"}
        if not is_whole or (stored["set"] is not None) != has_set:
            raise CorruptError(
                f"after {position} rows there should be kept rows and {'a' if has_set else 'no'} "
                f"boosted set, found {str(stored)[:80]}"
            )
        self._kept.load_json(stored["kept"], position, self._n_classes)
        if has_set:
            most = self._settings
            if self.fitting >= ROUNDS_FOUND:
                most = most._replace(n_rounds=most_rounds_of(self._n_classes, self._d))
            self.newest = BoostedSet.from_json(stored["set"], self._d, self._n_classes, most)


def _fit_always(birth: int, fit: Callable[[], BoostedSet]) -> BoostedSet:
    return fit()
