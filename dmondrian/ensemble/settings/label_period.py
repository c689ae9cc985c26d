"""A delay of labels as a length of time: "7 days", or "500" in units of a column of numbers.

Relies on nothing. Promises that the words of a length are read as that length again.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from dmondrian.errors import ParameterError

_UNITS = {
    "microsecond": (1.0, ("us", "\u00b5s", "\u03bcs")),
    "millisecond": (1e3, ("ms",)),
    "second": (1e6, ("s", "sec", "secs")),
    "minute": (6e7, ("min", "mins")),
    "hour": (3.6e9, ("h", "hr", "hrs")),
    "day": (8.64e10, ("d",)),
    "week": (6.048e11, ("w",)),
}
"""Microseconds of each unit, and its short names, those of pandas' offsets among them."""

_BY_NAME = {
    name: unit for unit, (_, short) in _UNITS.items() for name in (unit, f"{unit}s", *short)
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([^\W\d]*)\s*")
_NO_LENGTH = {
    "m": "minutes are min, and months have no fixed length: say days",
    "month": "months have no fixed length: say days",
    "year": "years have no fixed length: say days",
}


class Period(NamedTuple):
    """A length of time in which labels come together."""

    length: float  # microseconds, or units of a column of numbers; > 0
    is_dated: bool  # whether it is of dates, and not of numbers
    in_words: str  # "7 days", "1 hour"; of numbers "500"


def period_of(text: str) -> Period:
    """Return the length of time that a text describes.

    Raises
    ------
    ParameterError
        If it describes none.
    """
    match = _TEXT.fullmatch(text)
    name = match[2] if match else ""
    unit = _BY_NAME.get(name) or _BY_NAME.get(name.lower(), "")
    amount = float(match[1]) if match and (unit or not name) else math.nan
    length = amount * (_UNITS[unit][0] if unit else 1.0)
    if unit:
        length = float(round(length)) if length < 2.0**53 else math.inf
    if not 0.0 < length < math.inf:
        why = _NO_LENGTH.get(name.lower().removesuffix("s") if len(name) > 1 else name, "")
        raise ParameterError(
            f"delay={text!r} is no length of time{f' ({why})' if why else ''}: expected a whole "
            'number of rows, such as 64; as text a time, such as "7 days", "12 h", "30 min", '
            '"90 s" or "2 weeks"; or, where the times of rows are numbers, a number as text, '
            'such as "500"'
        )
    words = _shown(amount)
    if unit:
        words += f" {unit}" + ("" if amount == 1.0 else "s")
    return Period(length, bool(unit), words)


def _shown(number: float) -> str:
    return f"{int(number)}" if number.is_integer() and number < 1e15 else repr(number)
