"""Values of frames and arrays that are no numbers: texts, and times.

Relies on NumPy. Promises that a missing time is a missing value, and that columns which cannot be
learned are named. Times themselves are numbers since 1970, in the units of their type.

Shapes: n rows, d columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian.errors import ParameterError

_OF_TIMES = "date", "time", "duration", "period"  # pandas', polars', Arrow's and NumPy's types
_MISSING_TIME = np.float32(np.iinfo(np.int64).min)  # what a conversion makes of NaT


def names_of(frame: Any) -> list[Any] | None:
    """Return the names of a frame's columns, those of an Arrow table too; None for no frame."""
    names = getattr(frame, "column_names", None)
    names = getattr(frame, "columns", None) if names is None else names
    return None if names is None else list(names)


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


def _is_of_times(kind: Any) -> bool:
    return str(kind).lower().startswith(_OF_TIMES)


def _are_numbers(column: Any) -> bool:
    try:
        np.asarray(column).astype(np.float32)
    except (TypeError, ValueError):
        return False
    return True
