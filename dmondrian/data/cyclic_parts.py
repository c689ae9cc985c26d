"""Parts of the calendar as points of circles, by their sine and cosine.

As a number, 23:00 is as far from 01:00 as a day is long, and a split parts them. On a circle whose
turn is a day, a week or a year they are near: each part of a time becomes two features,
(1 + sin) / 4 and (1 + cos) / 4 of its angle. Together they have the range 1 of the number that they
replace, so that a Mondrian tree splits the part as often (benchmarks/reports/encoding.md), and
``CENTRE`` of the circle stands for a missing time.

Relies on NumPy's +, -, * and / of float64, which round alike on every machine (its sine and cosine
do not), and on its calendar. Promises the same bits everywhere, to within some 1e-15 of their size,
near 0 too.

Shapes: n rows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, pi

import numpy as np
import numpy.typing as npt

from dmondrian.data.arrow_values import MICROS_PER_DAY, FloatArray, IntArray

FIRST_WEEKDAY = 3  # 1970-01-01 was a Thursday; Monday is 0
CENTRE = 0.25  # of the circle
_TERMS = 8  # of the series, up to an eighth of a turn: what is left out is below 1e-17
# Of sin(x) / (2 x) and (1 - cos(x)) / (2 x^2), by powers of x^2, the highest first.
SINE = [0.5 * (-1) ** k / factorial(2 * k + 1) for k in reversed(range(_TERMS))]
RISE = [0.5 * (-1) ** k / factorial(2 * k + 2) for k in reversed(range(_TERMS))]


def cyclic_part(part: str, micros: IntArray) -> FloatArray:
    """Return a feature of times, float64 [n] in [0, 0.5].

    Parameters
    ----------
    part : str
        Of ``dmondrian.data.schema.CYCLIC_PARTS``.
    micros : int64 [n]
        Microseconds since 1970, UTC.
    """
    of, _, function = part.partition("_")
    place, turn = _PLACES[of](micros)
    return 0.5 * on_circle(place, turn, function == "cos")


def on_circle(place: IntArray, turn: IntArray | int, is_cosine: bool) -> FloatArray:
    """Return (1 + sin a) / 2, or with the cosine, of a = 2 pi ``place`` / ``turn``, float64 [n].

    Parameters
    ----------
    place : int64 [n]
        In [0, turn).
    turn : int, or int64 [n]
        Below 2**50.
    is_cosine : bool
    """
    quarter = (8 * place + turn) // (2 * turn)  # the nearest multiple of a quarter of a turn
    x = (4 * place - quarter * turn) / np.float64(turn) * (0.5 * pi)  # the rest of the angle
    square = x * x
    half_sine, rise = x * _horner(SINE, square), square * _horner(RISE, square)
    quarter = (quarter + int(is_cosine)) % 4
    values: FloatArray = np.where(
        quarter % 2 == 1,
        np.where(quarter == 1, 1.0 - rise, rise),
        0.5 + np.where(quarter == 0, half_sine, -half_sine),
    )
    return values


def _horner(coefficients: list[float], x: FloatArray) -> FloatArray:
    total = np.full(len(x), coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total


def _hour(micros: IntArray) -> tuple[IntArray, int]:
    return micros % MICROS_PER_DAY, MICROS_PER_DAY


def _weekday(micros: IntArray) -> tuple[IntArray, int]:
    return (micros // MICROS_PER_DAY + FIRST_WEEKDAY) % 7, 7


def _yearday(micros: IntArray) -> tuple[IntArray, IntArray]:
    days = (micros // MICROS_PER_DAY).astype("datetime64[D]")
    years = days.astype("datetime64[Y]")
    first, next_first = (some.astype("datetime64[D]") for some in (years, years + 1))
    return _whole(days - first), _whole(next_first - first)


def _whole(days: npt.NDArray[np.timedelta64]) -> IntArray:
    return days.astype(np.int64)


_PLACES: dict[str, Callable[[IntArray], tuple[IntArray, IntArray | int]]] = {
    "hour": _hour,
    "weekday": _weekday,
    "yearday": _yearday,
}
