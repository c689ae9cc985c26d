"""Shares of trees by their age along a stream, for forests that follow it.

Relies on shares that are computed at the marks of the learning curve. Promises points at fixed
positions, thinned by their number alone.

Shapes: k octaves of age.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dmondrian.distributed.metrics.baselines import number_of
from dmondrian.ensemble.settings.stored_parameters import mixes_boosted_sets, mixes_scaled_trees

AGE_POINTS = 128
"""Most points; beyond, every second one is dropped."""

FOREVER, SCALED, BOOSTED = "all rows", "scaled trees", "boosted sets"
FIRST_OCTAVE = 5
_FEWER, _SHOWN = 4.0, 4  # rows of the point that is shown before another; points


class AgeCurve:
    """Curve of how old the trees are that forecasts come from, along the stream.

    Attributes
    ----------
    points : list of list of float
        Rows, then the share of trees that never forget and of each octave, the youngest first; last
        those of :func:`others_of`.
    """

    def __init__(self) -> None:
        self.points: list[list[float]] = []
        self._stride, self._number = 1, 0

    def add(self, rows: int, shares: Sequence[float]) -> None:
        """Add the shares at a number of rows; of every ``_stride`` calls one point is kept."""
        self._number += 1
        if self._number % self._stride:
            return
        self.points.append([rows, *map(float, shares)])
        if len(self.points) > AGE_POINTS:
            self._stride *= 2
            self.points = self.points[1::2]

    def to_json(self) -> dict[str, Any]:
        """Return the points; floats go through JSON exactly."""
        return {"points": self.points, "stride": self._stride, "number": self._number}

    def load_json(self, stored: Any) -> None:
        """Take over what :meth:`to_json` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is malformed.
        """
        self._stride, self._number = stored["stride"], stored["number"]
        self.points = [[number_of(value) for value in point] for point in stored["points"]]
        counts = self._stride, self._number
        is_sound = all(type(count) is int for count in counts) and self._stride >= 1
        is_sound = is_sound and self._number >= 0 and len(self.points) <= AGE_POINTS
        if not is_sound or len({len(point) for point in self.points}) > 1:
            raise ValueError("shares of ages")
        for point in self.points:
            point[0] = int(point[0])


def others_of(parameters: Mapping[str, Any]) -> list[str]:
    """Return what a forest of these parameters, as JSON, mixes that has no age, in order."""
    scaled, boosted = mixes_scaled_trees(parameters), mixes_boosted_sets(parameters)
    return [SCALED] * scaled + [BOOSTED] * boosted


def age_names(
    n_octaves: int, other_names: Sequence[str] = (), first: int = FIRST_OCTAVE
) -> list[str]:
    """Return whose shares there are: trees that never forget, each octave, and others."""
    octaves = (span_of_ages(k, k + 1, first) for k in range(n_octaves))
    return [FOREVER, *octaves, *other_names]


def share_in_words(points: Sequence[Mapping[str, Any]], place: int) -> str:
    """Return one of the shares at the last point, and at a few of those before.

    Parameters
    ----------
    points : sequence of {"rows": int, "shares": sequence of float}
    place : int
        Of the share.
    """
    shown, most = [], float("inf")
    for point in reversed(points):
        if point["rows"] <= most:
            shown.append(f"{point['shares'][place]:.0%} at row {point['rows']:,}")
            most = point["rows"] / _FEWER
    return ", ".join(shown[:_SHOWN][::-1])


def span_of_ages(start: int, stop: int, first: int = FIRST_OCTAVE) -> str:
    """Return the ages from one octave up to another, both counted from 0, in words."""
    return f"{1 << (first + start):,} to {1 << (first + stop):,} rows"
