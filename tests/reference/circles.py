"""Cyclic parts of a time, slowly: Python's calendar, and series of 60 decimal digits."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal, localcontext

import numpy as np

_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863"
)


def cyclic_parts(moment: datetime) -> list[np.float32]:
    """Return sine and cosine of a moment's places in its day, week and year, as (1 + s) / 4.

    A moment without a time zone is in UTC.
    """
    utc = moment if moment.tzinfo is None else moment.astimezone(UTC)
    seconds = (utc.hour * 60 + utc.minute) * 60 + utc.second
    day_of_year = (utc.date() - date(utc.year, 1, 1)).days
    days_of_year = (date(utc.year, 12, 31) - date(utc.year, 1, 1)).days + 1
    places = (
        (seconds * 10**6 + utc.microsecond, 86_400 * 10**6),
        (utc.weekday(), 7),
        (day_of_year, days_of_year),
    )
    both = [on_circle(place, turn) for place, turn in places]
    return [value / np.float32(2.0) for pair in both for value in pair]


def on_circle(place: int, turn: int) -> list[np.float32]:
    """Return (1 + sin a) / 2 and (1 + cos a) / 2 of a = 2 pi place / turn, rounded to float32."""
    with localcontext() as context:
        context.prec = 60
        angle = 2 * _PI * Decimal(place) / Decimal(turn)
        sine, cosine, term = Decimal(0), Decimal(0), Decimal(1)
        for k in range(100):  # term is angle^k / k!
            if k % 2 == 0:
                cosine += term if k % 4 == 0 else -term
            else:
                sine += term if k % 4 == 1 else -term
            term *= angle / (k + 1)
        # The nearest double is rounded again, which gives another float32 in a case of 2^29.
        return [np.float32(float((1 + value) / 2)) for value in (sine, cosine)]
