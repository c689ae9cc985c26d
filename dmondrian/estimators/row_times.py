"""Validation of the times of rows, by which labels come with a delay that is a time.

Relies on NumPy alone. Promises microseconds since 1970 in UTC, or the numbers themselves; a time
without a zone is taken as UTC.

Shapes: n rows.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from dmondrian.ensemble.settings.label_period import Period
from dmondrian.errors import DataError, ParameterError

_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_WHOLE = 2**53  # whole numbers up to it are doubles


def checked_times(times: Any, n: int, period: Period) -> np.ndarray:
    """Return times as float64 [n], in the units of a period.

    Parameters
    ----------
    times : array-like of shape (n,)
        datetime64, datetimes or dates for a period of dates; numbers for one of numbers.
    n : int
    period : Period
        The delay.

    Raises
    ------
    ParameterError
        If they are of the other kind than the delay.
    DataError
        If there is not one for each row, or one is missing.
    """
    array = _as_array(times)
    if array.shape != (n,):
        raise DataError(f"times.shape == {array.shape}, expected {(n,)}: one time per row")
    if array.dtype.kind == "O":
        array = _of_objects(array)
    if array.dtype.kind not in "Miuf":
        raise ParameterError(
            f"times of dtype {array.dtype} are neither dates nor numbers: convert texts to "
            'datetime64 (np.array(times, "datetime64[us]") or pandas.to_datetime)'
        )
    is_dated = array.dtype.kind == "M"
    if is_dated != period.is_dated:
        raise ParameterError(
            f'delay="{period.in_words}" is a length of time, and times are numbers: give times as '
            'datetime64, or the delay in the units of the numbers, as text, such as "500"'
            if period.is_dated
            else f'delay="{period.in_words}" is in units of numbers, and times are dates: give '
            'delay with a unit, such as "7 days"'
        )
    missing = np.isnat(array) if is_dated else ~np.isfinite(array)
    if missing.any():
        row = int(np.argmax(missing))
        raise DataError(f"times[{row}] is {array[row]}: expected a time for each row")
    if (
        array.dtype.kind in "iu"
        and len(array)
        and max(abs(int(array.min())), int(array.max())) > _WHOLE
    ):
        raise DataError(
            f"times reach from {array.min()} to {array.max()}, and double precision has no whole "
            "numbers beyond 2^53: subtract the first time from all"
        )
    return microseconds_of(array) if is_dated else array.astype(np.float64)


def _as_array(times: Any) -> np.ndarray:
    """Return an array; of a column of a data frame with a time zone, its times in UTC."""
    if getattr(getattr(times, "dtype", None), "tz", None) is not None:
        return np.asarray(times, "datetime64[us]")
    return np.asarray(times)


def _of_objects(objects: np.ndarray) -> np.ndarray:
    """Return datetimes and dates as datetime64, with zones in UTC; other objects as they are."""
    converted = np.empty(len(objects), "datetime64[us]")
    zones = set()
    for i, value in enumerate(objects.tolist()):
        if _is_missing(value):
            raise DataError(f"times[{i}] is missing: expected a time for each row")
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()
        elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            value = datetime.datetime(value.year, value.month, value.day)
        if not isinstance(value, datetime.datetime):
            return objects
        zones.add(value.tzinfo is not None)
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        converted[i] = np.datetime64((value - _EPOCH) // _MICROSECOND, "us")
    if len(zones) > 1:
        raise DataError("some times have a time zone and others have none: give all of them one")
    return converted


def _is_missing(value: Any) -> bool:
    """Whether an object is None, NaT, NaN or pandas' NA, which is neither equal nor unequal."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def microseconds_of(times: np.ndarray) -> np.ndarray:
    """Return datetime64 [n], none of them NaT, as float64 microseconds since 1970.

    Raises
    ------
    DataError
        If they are too far from 1970 to be counted.
    """
    whole = times.astype("datetime64[us]")
    unit = np.datetime_data(times.dtype)[0]
    if unit in ("Y", "M", "W", "D", "h", "m", "s", "ms") and (
        (whole.astype(times.dtype) != times).any()
    ):
        raise DataError(f"a time is more than 290,000 years from 1970: {times.max()}")
    return whole.astype(np.int64).astype(np.float64)
