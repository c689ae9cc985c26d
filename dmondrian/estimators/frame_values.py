"""Values of frames and arrays that are no numbers: texts, and times.

Relies on NumPy. Promises that a missing time is a missing value, and that columns which cannot be
learned are named. Times themselves are numbers since 1970, in the units of their type; a forest
keeps the units of its first rows, and refuses times in others.

Shapes: n rows, d columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dmondrian.errors import DataError, ParameterError

_OF_TIMES = "date", "time", "duration", "period"  # pandas', polars', Arrow's and NumPy's types
_MISSING_TIME = np.float32(np.iinfo(np.int64).min)  # what a conversion makes of NaT


def names_of(frame: Any) -> list[Any] | None:
    """Return the names of a frame's columns, those of an Arrow table too; None for no frame."""
    names = getattr(frame, "column_names", None)
    names = getattr(frame, "columns", None) if names is None else names
    return None if names is None else list(names)


def check_labels_known(y: Any) -> None:
    """Refuse labels of which some are None or pandas' NA; those that are NaN are refused later.

    Raises
    ------
    DataError
    """
    if getattr(getattr(y, "dtype", None), "kind", "O") != "O" or y is None:
        return  # numbers, texts of NumPy: of these, scikit-learn finds those that are missing
    labels = np.asarray(y, object).ravel().tolist()
    n_missing = sum(label is None or type(label).__name__ == "NAType" for label in labels)
    if n_missing:
        raise DataError(
            f"{n_missing:,} of {len(labels):,} labels are missing (None or NA): leave out the rows "
            "whose label is not known"
        )


def missing_times(X: Any, rows: Any) -> np.ndarray | None:
    """Return which values are missing times, bool [n, d]; None where there are none.

    Parameters
    ----------
    X : array-like
        Rows as they were given.
    rows : float32 [n, d] or sparse matrix
        What scikit-learn's validation made of them.
    """
    if not isinstance(rows, np.ndarray) or not any(map(_is_of_times, _types(X))):
        return None
    is_missing: np.ndarray = rows == _MISSING_TIME
    return is_missing if is_missing.any() else None


def time_units(X: Any, d: int) -> list[str] | None:
    """Return the unit of each of d columns, "" of numbers; None where no column is of times."""
    types = _types(X)
    if not any(map(_is_of_times, types)):
        return None
    units = [_unit(kind) if _is_of_times(kind) else "" for kind in types]
    return units if len(units) == d else units[:1] * d  # an array has one type


def check_units(X: Any, units: Sequence[str]) -> None:
    """Refuse times in other units than those of the first rows.

    Parameters
    ----------
    X : array-like
        Rows as they were given; numbers are taken as they are.
    units : sequence of str
        As :func:`time_units` returned them of the first rows; none where that is not known.

    Raises
    ------
    DataError
        With the column and both units.
    """
    now = time_units(X, len(units)) if units else None
    if now is None:
        return
    names = names_of(X) or range(len(units))
    for name, unit, known in zip(names, now, units, strict=True):
        if unit and unit != known:
            begun = f"times in the unit {known!r}" if known else "numbers"
            raise DataError(
                f"column {name!r} of X has times in the unit {unit!r}, and had {begun} in the "
                "first rows that were learned: convert it, as times are taken for numbers in the "
                "unit of their type"
            )


def error_of_values(frame: Any, error: Exception, reset: bool) -> ParameterError | None:
    """Return the error of a frame with columns that are no numbers, by name; None if all are.

    Parameters
    ----------
    frame : pandas, polars or Arrow frame
    error : Exception
        Of the conversion to numbers.
    reset : bool
        Whether these are the first rows of a forest.
    """
    if (names := names_of(frame)) is None:
        return None
    times = [name for name, kind in zip(names, _types(frame), strict=False) if _is_of_times(kind)]
    if times:
        return ParameterError(
            f"{_columns(times)} of X has times: make them numbers, such as the days since the "
            "first one, or leave them out"
        )
    texts = [name for name in names if not _are_numbers(frame[name])]
    if not texts:
        return None
    if isinstance(error, TypeError):  # pandas.NA among objects, say
        return ParameterError(
            f"{_columns(texts)} of X has values that are no numbers ({error}): convert them, or "
            "leave it out"
        )
    what = f"{_columns(texts)} of X has texts"
    if not reset:
        return ParameterError(
            f"{what} ({error}), and had numbers when the forest was fitted: give numbers"
        )
    return ParameterError(
        f"{what} ({error}): make it pandas' CategoricalDtype or polars' Enum or Categorical and "
        "set categorical_features='from_dtype', or leave it out"
    )


def _columns(names: list[Any]) -> str:
    """Return the first of some names, in words."""
    return f"column {', '.join(map(repr, names[:5]))}{', ...' if len(names) > 5 else ''}"


def _types(X: Any) -> list[Any]:
    """Return the types of the columns of a frame, or the one of an array; none of anything else."""
    if (schema := getattr(X, "schema", None)) is not None and hasattr(schema, "types"):
        return list(schema.types)
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        return list(X.dtypes)
    return [X.dtype] if hasattr(X, "dtype") else []


def _unit(kind: Any) -> str:
    """Return the unit of a type of times, as NumPy writes it."""
    match = re.search(r"(?:\[|time_unit=')(\w+)", str(kind))
    return {"day": "D"}.get(match[1], match[1]) if match else "D"  # polars' Date names none


def _is_of_times(kind: Any) -> bool:
    return str(kind).lower().startswith(_OF_TIMES)


def _are_numbers(column: Any) -> bool:
    try:
        np.asarray(column).astype(np.float32)
    except (TypeError, ValueError):
        return False
    return True
