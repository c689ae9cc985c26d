"""Columns of data frames that are categories, as trees see them: a feature for each level.

Relies on the encoding of jobs, :mod:`dmondrian.data.encode`. Promises the same features for the
same values whatever rows came before: levels are the categories of a column's type, which every
frame that is learned has to have. A type that lists none, polars' Categorical, has those that are
met in the first rows, as in a job; later ones are other levels.

Shapes: n rows, d columns as they are given.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dmondrian.data.arrow_values import CATEGORY, as_texts
from dmondrian.data.encode import level_numbers, write_levels
from dmondrian.data.schema import NULL_LEVEL, Column
from dmondrian.errors import DataError, ParameterError

FROM_DTYPE = "from_dtype"
_OPEN = "Categorical"  # polars', whose type lists no categories
_MANY = 8  # values, none of which is known: a few may be new ones

Columns = tuple[Column | None, ...]
"""Of each given column its encoding, None for numbers."""


def columns_of(frame: Any, categorical_features: Any, has_nulls: bool) -> Columns | None:
    """Return the columns of a frame that are categories; None where there are none.

    Parameters
    ----------
    frame : pandas or polars DataFrame
        Or anything else, which has no categories.
    categorical_features : "from_dtype", or sequence of names or places
    has_nulls : bool
        Whether values may be missing.

    Raises
    ------
    ParameterError
        A named column is not there, or its type does not list its categories.
    """
    names = _names(frame)
    if isinstance(categorical_features, str):
        wanted = None
    elif names is None:
        raise ParameterError(
            f"categorical_features={categorical_features!r} are columns of a pandas or polars "
            f"DataFrame, whose type lists their categories; got {type(frame).__name__}"
        )
    else:
        wanted = [
            _place(which, names)
            for which in np.asarray(categorical_features, object).ravel().tolist()
        ]
    if names is None:
        return None
    columns: list[Column | None] = []
    for place, (name, kind) in enumerate(zip(names, list(frame.dtypes), strict=True)):
        is_asked = wanted is None or place in wanted
        levels = _levels_of(name, kind)
        if is_asked and type(kind).__name__ == _OPEN:
            levels = frame[name].drop_nulls().unique().cast(str).to_list()
        if levels is None and wanted is not None and place in wanted:
            raise ParameterError(
                f"the column {name!r} is not of categories, its type is {kind}: make it pandas' "
                "CategoricalDtype or polars' Enum with all categories that may come, or polars' "
                "Categorical"
            )
        is_category = levels is not None and is_asked
        columns.append(
            category(name, str(kind).partition("(")[0], levels or [], has_nulls)
            if is_category
            else None
        )
    if not any(columns):
        return None
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise ParameterError("a frame with categories needs a name of its own for each column")
    return tuple(columns)


def check_same(frame: Any, columns: Columns) -> None:
    """Refuse a frame to learn whose columns do not have the categories that the first one had.

    Raises
    ------
    DataError
        With the column.
    """
    kinds = dict(zip(_names(frame) or [], getattr(frame, "dtypes", ()), strict=False))
    for column in filter(None, columns):
        kind = kinds.get(column.name)
        if column.type == _OPEN and type(kind).__name__ == _OPEN:
            continue
        levels = None if kind is None else _levels_of(column.name, kind)
        if column.name in kinds and (levels is None or sorted(levels) != list(column.levels)):
            came = "none" if levels is None else f"{levels[:8]}"
            raise DataError(
                f"the column {column.name!r} has the categories {came}, and the first rows had "
                f"{list(column.levels[:8])}: give all frames one type, with all categories"
            )


def with_numbers(frame: Any, columns: Columns) -> Any:
    """Return a frame with numbers of levels in the place of categories, NaN where one is missing.

    Raises
    ------
    DataError
        There is no frame, or a column that is no text and has no categories.
    """
    names = _names(frame)
    if names is None:
        raise DataError(
            f"expected a pandas or polars DataFrame with the columns that were learned, of which "
            f"{sum(map(bool, columns))} are categories; got {type(frame).__name__}"
        )
    numbers = {
        column.name: _numbers(frame, column)
        for column in filter(None, columns)
        if column.name in names
    }
    if _is_polars(frame):
        import polars as pl

        return frame.with_columns([pl.Series(name, values) for name, values in numbers.items()])
    return frame.assign(**numbers)


def features_of(X: np.ndarray, columns: Columns, filling: np.float32 | None) -> np.ndarray:
    """Return the features of rows, float32 [n, width].

    Parameters
    ----------
    X : float32 [n, d]
        Numbers, and numbers of levels.
    columns : Columns
    filling : float32 or None
        What stands for a missing number, with an indicator for each; None where none may be.
    """
    n = len(X)
    features = np.zeros((sum(widths_of(columns, filling is not None)), n), np.float32)
    start = 0
    for x, column in zip(X.T, columns, strict=True):
        is_missing = np.isnan(x)
        if column is not None:
            numbers = np.where(is_missing, -1, x).astype(np.int64)
            write_levels(column, numbers, features[start : start + column.width])
            start += column.width
            continue
        features[start] = x if filling is None else np.where(is_missing, filling, x)
        if filling is not None:
            features[start + 1] = is_missing
        start += 1 if filling is None else 2
    return np.ascontiguousarray(features.T)


def widths_of(columns: Columns, encodes_missing: bool) -> list[int]:
    """Return how many features each column makes."""
    return [1 + encodes_missing if column is None else column.width for column in columns]


def names_of_features(
    names: Sequence[str], columns: Columns, encodes_missing: bool
) -> Iterator[str]:
    """Yield the names of features, as a run has them."""
    for name, column in zip(names, columns, strict=True):
        if column is not None:
            yield from column.features()
        else:
            yield from (name, f"{name}={NULL_LEVEL}") if encodes_missing else (name,)


def _names(frame: Any) -> list[Any] | None:
    """Return the names of a frame's columns; None for what is no frame."""
    kind = type(frame)
    if kind.__module__.partition(".")[0] not in ("pandas", "polars"):
        return None
    is_frame = hasattr(kind, "columns") and kind.__name__ != "LazyFrame"
    return list(frame.columns) if is_frame else None


def _is_polars(frame: Any) -> bool:
    return type(frame).__module__.startswith("polars")


def _place(which: Any, names: Sequence[Any]) -> int:
    """Return the place of a column that is given by its name or place."""
    if isinstance(which, int) and not isinstance(which, bool) and -len(names) <= which < len(names):
        return which % len(names)
    if isinstance(which, str) and which in names:
        return list(names).index(which)
    raise ParameterError(
        f"categorical_features names {which!r}: expected names of columns, or places below "
        f"{len(names)}"
    )


def _levels_of(name: Any, kind: Any) -> list[str] | None:
    """Return the categories that a column's type lists, as texts; None where it lists none."""
    if type(kind).__name__ not in ("Enum", "CategoricalDtype"):
        return None
    try:
        categories = pa.array(kind.categories.to_list())
    except (pa.ArrowException, OverflowError) as error:
        raise ParameterError(
            f"the categories of the column {name!r} are not all texts, all times, or all numbers "
            f"within 64 bits ({str(error)[:100]}): make them texts"
        ) from error
    return as_texts(categories)[0]


def category(name: str, kind: str, levels: list[str], has_nulls: bool) -> Column:
    """Return the encoding of a column by the levels of its type."""
    if not levels or len(set(levels)) < len(levels):
        raise ParameterError(
            f"the column {name!r} has "
            + ("no categories" if not levels else "categories that are the same text")
            + ": give its type each category that may come, once"
        )
    return Column(
        name, CATEGORY, kind, levels=tuple(sorted(levels)), n_distinct=len(levels),
        has_nulls=has_nulls,
    )  # fmt: skip


def _numbers(frame: Any, column: Column) -> np.ndarray:
    """Return the number of each row's level, float64 [n]; NaN where it is missing."""
    series = frame[column.name]
    try:
        data = series.to_arrow() if _is_polars(frame) else pa.Array.from_pandas(series)
        numbers = level_numbers(column, data)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"the column {column.name!r} was one of categories, and has values now that are no "
            f"texts: {str(error)[:200]}"
        ) from error
    n = int((numbers >= 0).sum())
    if n >= _MANY and not (numbers[numbers >= 0] < len(column.levels)).any():
        warnings.warn(
            f"none of {n} values of the column {column.name!r} is one of its {len(column.levels)} "
            f"categories ({', '.join(column.levels[:5])}): all are taken for other ones; the "
            f"column has type {series.dtype} now, and was of {column.type}",
            UserWarning,
            stacklevel=2,
        )
    return np.where(numbers < 0, np.nan, numbers)
