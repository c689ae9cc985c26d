"""Sums over all rows, over the last ones, and over rows that fade: of a stream, by row number.

The last window are the rows since a multiple of ``PANE`` rows, ``WINDOW`` of them or up to a pane
more. Faded sums count a row half once ``HALF_LIFE`` rows have come after it (Gama, Sebastiao,
Rodrigues, 2013, "On evaluating stream learning algorithms", Machine Learning 90, section 3).

Of numbers the spread of labels is kept about a label of each pane, and panes are put together by
Chan, Golub, LeVeque (1983): labels far from zero lose no digits.

Relies on NumPy alone. Promises sums that are added row by row, so that neither the cuts between
calls nor JSON between them change a bit, and a size that does not grow with the rows.

Shapes: n rows, F forecasters, C = 1 + 2 F columns: the weight, and two terms of each forecaster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dmondrian.distributed.metrics.baselines import number_of

PANE = 128
"""Rows by which the last window moves on."""

WINDOW = 8 * PANE
"""Least rows of the last window, once there are as many."""

HALF_LIFE = 1024
"""Rows after which a row counts half."""

_Spread = tuple[float, float, float]  # weight, mean, sum of squared deviations
_NONE: _Spread = (0.0, 0.0, 0.0)


def _growth() -> np.ndarray:
    """Return 2^(i / HALF_LIFE) for i up to PANE, float64 [PANE + 1].

    By roots and products alone, which are rounded alike everywhere.
    """
    root = 2.0
    for _ in range(HALF_LIFE.bit_length() - 1):
        root **= 0.5
    return np.multiply.accumulate(np.concatenate([[1.0], np.full(PANE, root)]))


_GROWTH = _growth()


class Sums(NamedTuple):
    """Sums of losses and weights over some rows."""

    rows: int
    columns: np.ndarray  # float64 [C]
    spread: _Spread  # of labels


class Windows:
    """Sums over a stream, by windows of rows.

    Parameters
    ----------
    n_forecasters : int
    """

    def __init__(self, n_forecasters: int) -> None:
        n = 1 + 2 * n_forecasters
        self.n_forecasters = n_forecasters
        self.rows = 0
        self.total, self.pane, self.fading = np.zeros(n), np.zeros(n), np.zeros(n)
        self.since = np.zeros(n)  # of rows since the last of the places asked for
        self.faded = np.zeros(n)  # of full panes
        self.panes: list[tuple[np.ndarray, _Spread]] = []  # the newest full ones
        self.pivot = 0.0  # label that deviations in the pane are from
        # Weighted deviations and their squares; the same growing with the row; weight growing.
        self.deviations, self.faded_spread = np.zeros(4), _NONE
        self._pivots = np.zeros(0)  # of the rows that are added

    def add(
        self, y: np.ndarray, w: np.ndarray, terms: np.ndarray, stops: list[int]
    ) -> Iterator[int]:
        """Add rows; yield at each of some places, ascending, and at the end of each pane.

        Parameters
        ----------
        y, w : float64 [n]
        terms : float64 [n, 2 F]
        stops : list of int
            Numbers of rows of these, 1 to n.

        Yields
        ------
        int
            Rows of these that were added.
        """
        n, width = len(y), len(self.total)
        if not n:
            return
        weighted = np.concatenate([w[:, None], w[:, None] * terms], axis=1)
        rows, ends = self._rows_in_panes(y, w, weighted)
        whole = np.add.accumulate(np.concatenate([self.total[None], weighted]), axis=0)
        since = self._since_places(weighted, stops)
        # Sums of full panes, at once: they begin with nothing.
        first, last = ends[0] if ends else n, ends[-1] if ends else n
        panes = rows[first:last].reshape(-1, PANE, rows.shape[1])
        full = np.add.accumulate(np.pad(panes, ((0, 0), (1, 0), (0, 0))), axis=1)[:, -1]
        start = 0
        for stop in sorted({*ends, *stops, n}):
            self.rows += stop - start
            if start < first or stop > last or stop not in ends or start not in ends:
                sums = np.concatenate([self.pane, self.fading, self.deviations])
                sums = _after(sums, rows[start:stop])
            else:
                sums = full[(start - first) // PANE]
            self.pane, self.fading = sums[:width], sums[width : 2 * width]
            self.deviations, self.total = sums[2 * width :], whole[stop]
            self.pivot = float(self._pivots[stop - 1])
            if stop in ends:
                self._end_pane()
            if stop in since:
                self.since = since[stop]
            if stop in ends or stop in stops:
                yield stop
            if stop in stops:
                self.since = np.zeros(width)
            start = stop

    def _since_places(self, weighted: np.ndarray, stops: list[int]) -> dict[int, np.ndarray]:
        """Return by each place, and the end, the sums since the place before."""
        sums_by_stop, begun, start = {}, self.since, 0
        for stop in sorted({*stops, len(weighted)}):
            sums_by_stop[stop] = _after(begun, weighted[start:stop])
            begun, start = np.zeros_like(begun), stop
        return sums_by_stop

    def _rows_in_panes(
        self, y: np.ndarray, w: np.ndarray, weighted: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        """Return what each row adds to the sums of its pane, and where panes end."""
        n, into = len(y), self.rows % PANE
        places = (into + np.arange(n)) % PANE
        starts = np.arange(n) - places
        self._pivots = np.where(starts >= 0, y[np.maximum(starts, 0)], self.pivot)
        growth = _GROWTH[places][:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = y - self._pivots
            both = np.stack([w * deviation, w * deviation * deviation], axis=1)
            parts = [weighted, growth * weighted, both, growth * both]
        return np.concatenate(parts, axis=1), list(range(PANE - into, n + 1, PANE))

    def _end_pane(self) -> None:
        """Move the last window on, and let rows fade."""
        self.panes = [*self.panes, (self.pane, self._pane_spread(self.pane[0], 0))][-8:]
        faded = self._faded()
        self.faded, self.faded_spread = faded.columns, faded.spread
        self.pane, self.fading = np.zeros_like(self.pane), np.zeros_like(self.pane)
        self.deviations = np.zeros(4)

    def _pane_spread(self, weight: float, first: int) -> _Spread:
        if not weight > 0.0:
            return _NONE
        step = float(self.deviations[first]) / weight
        squares = float(self.deviations[first + 1]) - step * float(self.deviations[first])
        return float(weight), self.pivot + step, max(squares, 0.0)

    def last(self) -> Sums:
        """Return the sums over the last window."""
        columns, spread, into = np.zeros_like(self.total), _NONE, self.rows % PANE
        for sums, of_labels in self.panes:
            columns, spread = columns + sums, _joined(spread, of_labels)
        if into:
            columns = columns + self.pane
            spread = _joined(spread, self._pane_spread(self.pane[0], 0))
        return Sums(PANE * len(self.panes) + into, columns, spread)

    def _faded(self) -> Sums:
        """Return the faded sums of a pane that is not new: the newest row counts one."""
        into = (self.rows - 1) % PANE + 1
        scale = 1.0 / _GROWTH[into - 1]
        weight, mean, squares = self.faded_spread
        decay = 1.0 / _GROWTH[into]
        new_spread = self._pane_spread(self.fading[0], 2)
        new_spread = new_spread[0] * scale, new_spread[1], new_spread[2] * scale
        weight, mean, squares = _joined((weight * decay, mean, squares * decay), new_spread)
        spread = float(weight), float(mean), float(squares)
        return Sums(self.rows, self.faded * decay + self.fading * scale, spread)

    def fade(self) -> Sums:
        """Return the sums of rows that fade: the newest one counts one."""
        if self.rows % PANE:
            return self._faded()
        return Sums(self.rows, self.faded, self.faded_spread)

    def to_json(self) -> dict[str, Any]:
        """Return all sums; floats go through JSON exactly."""
        names = "total", "since", "pane", "fading", "faded", "deviations"
        return {
            "rows": self.rows,
            **{name: getattr(self, name).tolist() for name in names},
            "panes": [[sums.tolist(), list(spread)] for sums, spread in self.panes],
            "pivot": self.pivot,
            "faded_spread": list(self.faded_spread),
        }

    def load_json(self, stored: Any) -> None:
        """Take over what :meth:`to_json` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is malformed.
        """
        rows, n = stored["rows"], len(self.total)
        if type(rows) is not int or not 0 <= rows <= 2**62:
            raise ValueError("rows")
        self.rows = rows
        for name in ("total", "pane", "fading", "faded"):
            setattr(self, name, _numbers(stored[name], n))
        if "since" in stored:  # earlier versions kept sums so far alone
            self.since = _numbers(stored["since"], n)
        self.deviations = _numbers(stored["deviations"], 4)
        self.pivot = number_of(stored["pivot"])
        self.faded_spread = _spread(stored["faded_spread"])
        self.panes = [(_numbers(sums, n), _spread(spread)) for sums, spread in stored["panes"]]
        if len(self.panes) != min(rows // PANE, WINDOW // PANE):
            raise ValueError("panes")


def _after(start: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Return sums after rows were added one by one, float64 [C]."""
    return np.add.accumulate(np.concatenate([start[None], parts]), axis=0)[-1]


def _joined(a: _Spread, b: _Spread) -> _Spread:
    """Return weight, mean and squared deviations of both."""
    if a[0] == 0.0 or b[0] == 0.0:
        return b if a[0] == 0.0 else a
    weight, step = a[0] + b[0], b[1] - a[1]
    return weight, a[1] + step * b[0] / weight, a[2] + b[2] + step * step * a[0] * b[0] / weight


def _numbers(stored: Any, n: int) -> np.ndarray:
    if not isinstance(stored, list) or len(stored) != n:
        raise ValueError(f"{str(stored)[:80]!r} are not {n} numbers")
    return np.array([number_of(value) for value in stored], np.float64)


def _spread(stored: Any) -> _Spread:
    weight, mean, squares = _numbers(stored, 3).tolist()
    return weight, mean, squares
