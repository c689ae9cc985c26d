"""Encoding of Arrow columns: float32 features, float64 target, weights and times.

Relies on `Schema` for the encoding and on `arrow_values` for Arrow types. Promises: a pure function
of (schema, columns), vectorised; nothing is altered silently: imputed, clipped, unseen values and
those outside the training range are counted.

Numbers outside the training range are *not* clipped to it: a forest grown on the range of the data
uses the distance to that range as uncertainty (the row branches off early and is predicted by the
upper nodes), which clipping would hide. They are limited to `FARTHEST` ranges, for float32.

Shapes: n rows, d features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dmondrian.data.arrow_values import (
    MICROS_PER_DAY,
    TIME,
    BoolArray,
    FloatArray,
    IntArray,
    as_micros,
    as_numbers,
    as_texts,
    flatten,
    plain_level,
)
from dmondrian.data.cyclic_parts import CENTRE, FIRST_WEEKDAY, cyclic_part
from dmondrian.data.schema import CYCLIC_PARTS, Column, Label, Schema
from dmondrian.data.tables import Where
from dmondrian.data.target import as_labels
from dmondrian.data.text_words import word_features
from dmondrian.errors import DataError

FARTHEST = 1e6  # limit of encoded numbers, in training ranges
IMPUTED = 0.5  # encoded value of a null: the middle of the training range
# Numbers encoded at a time: intermediate arrays stay in the cache, and below the 128 KiB from which
# the C library may allocate from the system each time, as it does in Dask's workers.
TILE_ROWS = 15_360
TILE_VALUES = 65_536  # values transposed from columns to rows at a time: 256 kB

Matrix: TypeAlias = npt.NDArray[np.float32]
Arrays: TypeAlias = Mapping[str, pa.ChunkedArray | pa.Array]
Counts: TypeAlias = dict[str, int]


def encode_features(
    schema: Schema, columns: Arrays, n: int, counts: Counts, where: Where
) -> Matrix:
    """Encode the feature columns of n rows.

    Parameters
    ----------
    columns : mapping of name to column of n rows
    n : int
        Number of rows.
    counts : dict
        Events are added: ``outside:<column>`` (beyond the training range), ``clipped:<column>``
        (infinite), ``unseen:<column>`` (level not in the training data), ``other:<column>`` (rare
        or unseen level), ``null:<column>`` (null where training had none).

    Returns
    -------
    ndarray of float32, shape (n, d), C-contiguous

    Raises
    ------
    DataError
        An infinity, unless the schema clips them.
    """
    d = schema.n_features
    features: Matrix = np.zeros((d, n), dtype=np.float32)
    start = 0
    for column in schema.columns:
        stop = start + column.width
        _encode(schema, column, columns[column.name], features[start:stop], counts, where)
        start = stop
    # Columns are written contiguously and transposed at the end, in tiles that fit the cache, which
    # is quicker than to write into the columns of X.
    X: Matrix = np.empty((n, d), dtype=np.float32)
    tile = max(16, TILE_VALUES // d)
    for first in range(0, n, tile):
        X[first : first + tile] = features[:, first : first + tile].T
    return X


def encode_target(
    schema: Schema, column: pa.ChunkedArray | pa.Array, where: Where
) -> tuple[FloatArray, BoolArray | None]:
    """Return class indices or target values, float64 [n], and where they are missing (or None).

    Raises
    ------
    DataError
        A label that the schema does not know, or an infinite value.
    """
    if schema.classes is None:
        values, null = as_numbers(column)
        infinite = np.isinf(values)
        if not infinite.any():
            return values, null
        if schema.null_target == "drop":
            return values, infinite if null is None else infinite | null
        raise DataError(
            f"the target {schema.target!r} is infinite at {where(int(infinite.argmax()))}: "
            "expected finite numbers; correct the row, or take such rows out of the data; a model "
            'that was trained with null_target="drop" passes over them'
        )
    index, labels, codes = _class_indices(schema.classes, column, str(schema.target))
    unknown = index == -2
    if unknown.any():
        row = int(unknown.argmax())
        raise DataError(
            f"unknown label {labels[codes[row]]!r} of the target {schema.target!r} at "
            f"{where(row)}: expected one of the {len(schema.classes)} classes known from training "
            f"({', '.join(repr(label) for label in schema.classes[:8])}"
            f"{', ...' if len(schema.classes) > 8 else ''}); correct the row or take it out of the "
            "data; classes that come later have to be named by `classes` when a run begins"
        )
    missing = index < 0
    return index.astype(np.float64), missing if missing.any() else None


def encode_earlier_labels(schema: Schema, column: pa.ChunkedArray | pa.Array) -> FloatArray:
    """Return labels of earlier rows as `encode_target` has them, float64 [n]; nan for none.

    A label that the schema does not know, and an infinite value, are none.
    """
    if schema.classes is None:
        values, null = as_numbers(column)
        is_known = np.isfinite(values) if null is None else np.isfinite(values) & ~null
        return np.where(is_known, values, np.nan)
    index = _class_indices(schema.classes, column, str(schema.target))[0]
    return np.where(index >= 0, index, np.nan)


def _class_indices(
    classes: tuple[Label, ...], column: pa.ChunkedArray | pa.Array, name: str
) -> tuple[IntArray, list[Label], IntArray]:
    """Return classes int64 [n], -1 for null and -2 for an unknown one; labels and codes of them."""
    labels, codes = as_labels(column, name)
    places = {label: i for i, label in enumerate(classes)}
    index = np.array([places.get(label, -2) for label in labels] or [-2], dtype=np.int64)
    return np.where(codes >= 0, index[np.maximum(codes, 0)], -1), labels, codes


def encode_weight(schema: Schema, column: pa.ChunkedArray | pa.Array, where: Where) -> FloatArray:
    """Return row weights, float64 [n].

    Raises
    ------
    DataError
        A weight is null, negative or infinite.
    """
    values, null = as_numbers(column)
    wrong = ~np.isfinite(values) | (values < 0)
    if null is not None:
        wrong |= null
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"the weight {schema.weight!r} is null, negative or infinite at {where(row)}: expected "
            "finite numbers not below 0"
        )
    return values


def with_class_weight(
    schema: Schema, target: FloatArray, weight: FloatArray | None, where: Where
) -> FloatArray:
    """Return the weights of rows times those of their classes, float64 [n].

    Parameters
    ----------
    schema : Schema
        With weights of classes.
    target : float64 [n]
        Class indices; below 0 where there is none, whose weight is 0.
    weight : float64 [n] or None
        Weights of rows.

    Raises
    ------
    DataError
        A product is infinite.
    """
    weights = np.array([*(schema.class_weight or ()), 0.0])[target.astype(np.int64)]
    if weight is None:
        return weights
    with np.errstate(over="ignore", under="ignore"):
        weights *= weight
    if np.isinf(weights).any():
        raise DataError(
            f"the weight {schema.weight!r} times that of the class is infinite at "
            f"{where(int(np.isinf(weights).argmax()))}: rescale the weights"
        )
    return weights


def encode_times(schema: Schema, column: pa.ChunkedArray | pa.Array, where: Where) -> FloatArray:
    """Return the times of rows, float64 [n]: microseconds since 1970 (UTC), or numbers.

    Raises
    ------
    DataError
        A time is null or infinite.
    """
    if schema.time_kind == TIME:
        micros, null, infinite = as_micros(column)
        values = micros.astype(np.float64)
    else:
        values, null = as_numbers(column)
        infinite = ~np.isfinite(values)
    wrong = np.zeros(len(values), np.bool_)
    for some in (null, infinite):
        if some is not None:
            wrong |= some
    if wrong.any():
        raise DataError(
            f"the time {schema.time!r} is null or infinite at {where(int(wrong.argmax()))}: "
            "labels come by it, and each row needs one"
        )
    return values


def _encode(
    schema: Schema,
    column: Column,
    data: pa.ChunkedArray | pa.Array,
    features: Matrix,
    counts: Counts,
    where: Where,
) -> None:
    """Encode one column, numbers and times in tiles; others whole, to look at each text once."""
    n, encode = features.shape[1], _ENCODERS[column.kind]
    if column.kind in ("category", "text"):
        encode(schema, column, data, features, counts, where)
        return
    data = flatten(data)
    for first in range(0, n, TILE_ROWS):
        tile = slice(first, first + TILE_ROWS)
        part = data.slice(first, TILE_ROWS)
        encode(schema, column, part, features[:, tile], counts, partial(_from, where, first))


def _from(where: Where, first: int, row: int) -> str:
    """Return the name of a row by its number in a tile."""
    return where(first + row)


def _encode_number(
    schema: Schema, column: Column, data: pa.Array, features: Matrix, counts: Counts, where: Where
) -> None:
    values, null = as_numbers(data)
    if column.parts:
        lower, upper = bounds_of(column)
        ends = _ends(values, lower, upper)
        if not np.isfinite(ends).all():
            infinite = ~np.isfinite(values)
            _refuse_infinity(schema, column, infinite, where)
            _count(counts, "clipped", column, int(infinite.sum()))
            values = np.clip(values, lower, upper, where=infinite, out=values.copy())
            ends = _ends(values, lower, upper)
        _scale(values, null, ends, column, features[0], counts)
    _mark_nulls(column, null, features, counts)


def _refuse_infinity(schema: Schema, column: Column, infinite: BoolArray, where: Where) -> None:
    if schema.infinite == "clip":
        return
    raise DataError(
        f"the column {column.name!r} is infinite at {where(int(infinite.argmax()))}: expected "
        f'finite {column.kind}s; correct the row or use infinite="clip"'
    )


def _encode_time(
    schema: Schema, column: Column, data: pa.Array, features: Matrix, counts: Counts, where: Where
) -> None:
    micros, null, infinite = as_micros(data)
    if infinite is not None and column.lower is not None and column.upper is not None:
        # earlier versions took an infinite time in the training data for a bound
        infinite &= (micros < column.lower) | (micros > column.upper)
        if infinite.any():
            _refuse_infinity(schema, column, infinite, where)
            _count(counts, "clipped", column, int(infinite.sum()))
            lower, upper = int(column.lower), int(column.upper)
            micros = np.where(infinite, np.clip(micros, lower, upper), micros)
    for i, part in enumerate(column.parts):
        if part == "linear":
            values = micros.astype(np.float64)
            ends = _ends(values, *bounds_of(column))
            _scale(values, null, ends, column, features[i], counts)
        else:
            features[i] = _TIME_PARTS[part](micros)
            if null is not None:
                features[i, null] = CENTRE if part in _CYCLIC else IMPUTED
    _mark_nulls(column, null, features, counts)


def _encode_category(
    schema: Schema, column: Column, data: pa.Array, features: Matrix, counts: Counts, where: Where
) -> None:
    numbers = level_numbers(column, data)
    n_null = write_levels(column, numbers, features)
    event = "other" if column.n_distinct > len(column.levels) else "unseen"
    _count(counts, event, column, int((numbers == len(column.levels)).sum()))
    if not column.has_nulls:
        _count(counts, "null", column, n_null)


def _encode_text(
    schema: Schema, column: Column, data: pa.Array, features: Matrix, counts: Counts, where: Where
) -> None:
    texts, codes = as_texts(data)
    n_features, longest = column.hashed
    starts, words = word_features(texts, n_features, longest)
    rows = np.flatnonzero(codes >= 0)
    sizes = np.diff(starts)[codes[rows]]
    first = np.repeat(starts[codes[rows]] - np.cumsum(sizes) + sizes, sizes)
    features[words[first + np.arange(len(first))], np.repeat(rows, sizes)] = 1.0 / n_features
    _mark_nulls(column, None if len(rows) == len(codes) else codes < 0, features, counts)


def level_numbers(column: Column, data: pa.ChunkedArray | pa.Array) -> IntArray:
    """Return the number of each row's level, int64 [n].

    Levels of a category are numbered in their order; all others have the number after the last,
    nulls -1.
    """
    texts, codes = as_texts(data)
    places = level_places(column)
    n_levels = len(column.levels)
    feature = np.array([places.get(text, n_levels) for text in texts] or [0], dtype=np.int64)
    return np.where(codes >= 0, feature[np.maximum(codes, 0)], -1)


def level_places(column: Column) -> dict[str, int]:
    """Return the number of each level of a category; all others have the next one."""
    places = {level: i for i, level in enumerate(column.levels)}
    if column.type.startswith("decimal"):
        for i, level in enumerate(column.levels):
            places.setdefault(plain_level(level), i)
    return places


def write_levels(column: Column, numbers: IntArray, features: Matrix) -> int:
    """Write the features of levels by their numbers; return how many rows are null.

    Parameters
    ----------
    column : Column
        A category.
    numbers : int64 [n]
        Of :func:`level_numbers`.
    features : float32 [width, n]
        Zeros.
    """
    rows = np.flatnonzero(numbers >= 0)
    features[numbers[rows], rows] = column.level_value
    if column.has_nulls and len(rows) < len(numbers):
        features[-1, numbers < 0] = column.level_value
    return len(numbers) - len(rows)


def _ends(values: FloatArray, lower: float, upper: float) -> FloatArray:
    """Return the smallest and the largest of values and bounds."""
    return np.array([values.min(initial=lower), values.max(initial=upper)])


def _scale(
    values: FloatArray,
    null: BoolArray | None,
    ends: FloatArray,
    column: Column,
    feature: Matrix,
    counts: Counts,
) -> None:
    """Write values in units of the training range; nulls in the middle; count values outside.

    Scaling is monotone, so the ends of the values show whether any may be outside.
    """
    lower, upper = bounds_of(column)
    scaled_ends = np.empty(2)
    _divide(ends, lower, upper, scaled_ends)
    if scaled_ends[0] >= 0.0 and scaled_ends[1] <= 1.0:
        _divide(values, lower, upper, feature)
        if null is not None:
            feature[null] = IMPUTED
        return
    scaled = np.empty(len(values))
    _divide(values, lower, upper, scaled)
    if null is not None:
        scaled[null] = IMPUTED
    _count(counts, "outside", column, int(((scaled < 0.0) | (scaled > 1.0)).sum()))
    np.clip(scaled, -FARTHEST, FARTHEST, out=feature)


def _divide(values: FloatArray, lower: float, upper: float, out: np.ndarray) -> None:
    """Write values in units of the training range, computed in float64."""
    span = upper - lower
    with np.errstate(over="ignore"):  # values outside may overflow; they are limited later
        if np.isinf(span):  # bounds of both signs near the end of float64
            half = lower * 0.5
            np.divide(values * 0.5 - half, upper * 0.5 - half, out=out, casting="same_kind")
        else:
            np.divide(values - lower, span, out=out, casting="same_kind")


def _mark_nulls(column: Column, null: BoolArray | None, features: Matrix, counts: Counts) -> None:
    if null is None:
        return
    if column.has_nulls:
        features[-1, null] = column.level_value
    else:
        _count(counts, "null", column, int(null.sum()))


def bounds_of(column: Column) -> tuple[float, float]:
    """Return the training range of a number or time."""
    if column.lower is None or column.upper is None:
        raise DataError(f"the schema has no bounds for the column {column.name!r}: plan it again")
    return float(column.lower), float(column.upper)


def _count(counts: Counts, event: str, column: Column, number: int) -> None:
    if number:
        key = f"{event}:{column.name}"
        counts[key] = counts.get(key, 0) + number


def _hour(micros: IntArray) -> FloatArray:
    return (micros % MICROS_PER_DAY) / MICROS_PER_DAY


def _weekday(micros: IntArray) -> FloatArray:
    return ((micros // MICROS_PER_DAY + FIRST_WEEKDAY) % 7) / 6.0


def _month(micros: IntArray) -> FloatArray:
    months = micros.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
    return (months % 12) / 11.0


_CYCLIC = {part for pair in CYCLIC_PARTS.values() for part in pair}
_TIME_PARTS: dict[str, Callable[[IntArray], FloatArray]] = {
    "hour": _hour,
    "weekday": _weekday,
    "month": _month,
    **{part: partial(cyclic_part, part) for part in _CYCLIC},
}
_ENCODERS: dict[str, Callable[[Schema, Column, pa.Array, Matrix, Counts, Where], None]] = {
    "number": _encode_number,
    "time": _encode_time,
    "category": _encode_category,
    "text": _encode_text,
}
