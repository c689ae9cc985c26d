"""The encoding of columns as ONNX operators: what :mod:`dmondrian.data.encode` does, in a graph.

Relies on a run's schema. Promises the features that the run would have made, to the last bit: the
same operations in the same precision and order. What a graph cannot do, it takes another way:

* a null is NaN in a number, the empty string in a category (where that is no level of its own),
  and the least int64 in a time, which is what NumPy's NaT is;
* an infinite number or time, which a run may refuse, is far outside; nothing is counted.

Inputs are [n, 1] by the names of the columns: float64 for numbers (booleans 0 and 1, durations and
times of day in seconds), strings for categories, int64 microseconds since 1970 (UTC) for times.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dmondrian.data import Schema
from dmondrian.data.arrow_values import MICROS_PER_DAY, MOST_MICROS
from dmondrian.data.cyclic_parts import FIRST_WEEKDAY
from dmondrian.data.encode import FARTHEST, IMPUTED, bounds_of
from dmondrian.data.schema import Column
from dmondrian.errors import ParameterError
from dmondrian.export.graph import Graph

_NULL_TIME = np.iinfo(np.int64).min
# Days from 0000-03-01, a leap day's morrow, to 1970-01-01; and of 400, 100, 4 and 1 years.
_EPOCH, _ERA, _CENTURY, _LEAP, _YEAR = 719_468, 146_097, 36_524, 1_460, 365


def add_columns(graph: Graph, schema: Schema) -> str:
    """Add the encoding of all columns; return the name of the features, float32 [n, d]."""
    nameless = [at for at, column in enumerate(schema.columns) if not column.name]
    if nameless:
        raise ParameterError(
            f"column {nameless[0]} of the {len(schema.columns)} that the model reads, counted from "
            "0, has the empty name '', and an input of ONNX needs a name: rename it in the data "
            "and train again, or export with columns=False (on the command line --encoded)"
        )
    if texts := [column.name for column in schema.columns if column.kind == "text"]:
        raise ParameterError(
            f"the words of {texts[0]!r} are hashed, which ONNX has no operator for: export with "
            "columns=False (on the command line --encoded), for features that are encoded before"
        )
    if cyclic := [column.name for column in schema.columns if column.is_cyclic]:
        raise ParameterError(
            f"the cyclic parts of the time {cyclic[0]!r} are no operators of ONNX: export with "
            "columns=False (on the command line --encoded), for features that are encoded before"
        )
    features = [part for column in schema.columns for part in _column(graph, schema, column)]
    return graph.add("Concat", *features, axis=1)


def _column(graph: Graph, schema: Schema, column: Column) -> list[str]:
    if column.kind == "category":
        return [_category(graph, column)]
    if column.kind == "time":
        return _time(graph, schema, column)
    return _number(graph, schema, column)


def _number(graph: Graph, schema: Schema, column: Column) -> list[str]:
    x = graph.input(column.name, np.float64, 1)
    null = graph.add("IsNaN", x)
    features = []
    if column.parts:
        lower, upper = bounds_of(column)
        if schema.infinite == "clip":
            held = graph.add("Clip", x, _double(graph, lower), _double(graph, upper))
            x = graph.add("Where", graph.add("IsInf", x), held, x)
        features.append(_scaled(graph, x, null, lower, upper))
    return [*features, *_null_mark(graph, column, null)]


def _time(graph: Graph, schema: Schema, column: Column) -> list[str]:
    micros = graph.input(column.name, np.int64, 1)
    null = graph.add("Equal", micros, _whole(graph, _NULL_TIME))
    if schema.infinite == "clip" and column.lower is not None and column.upper is not None:
        micros = _without_infinity(graph, micros, int(column.lower), int(column.upper))
    features = []
    for part in column.parts:
        if part == "linear":
            x = graph.add("Cast", micros, to=np.float64)
            features.append(_scaled(graph, x, null, *bounds_of(column)))
        else:
            features.append(_imputed(graph, _PARTS[part](graph, micros), null))
    return [*features, *_null_mark(graph, column, null)]


def _without_infinity(graph: Graph, micros: str, lower: int, upper: int) -> str:
    """Add times of which infinite ones, as `as_micros` gives them, are the bounds."""
    for infinity, bound in ((MOST_MICROS, upper), (-MOST_MICROS, lower)):
        is_so = graph.add("Equal", micros, _whole(graph, infinity))
        micros = graph.add("Where", is_so, _whole(graph, bound), micros)
    return micros


def _category(graph: Graph, column: Column) -> str:
    """Add the indicators of levels, others and nulls; an index beyond them is 0 everywhere."""
    n_levels = len(column.levels)
    places = {"": n_levels + 1} | {level: i for i, level in enumerate(column.levels)}
    index = graph.add(
        "LabelEncoder",
        graph.input(column.name, np.str_, 1),
        domain="ai.onnx.ml",
        keys_strings=list(places),
        values_int64s=list(places.values()),
        default_int64=n_levels,
    )
    flat = graph.add("Reshape", index, _whole(graph, [-1]))
    values = graph.constant(np.array([0.0, column.level_value], np.float32))
    return graph.add("OneHot", flat, _whole(graph, [column.width]), values, axis=-1)


def _scaled(graph: Graph, x: str, null: str, lower: float, upper: float) -> str:
    """Add a number in training ranges from the lower bound, float32 [n, 1]."""
    span = upper - lower
    if math.isinf(span):
        x = graph.add("Mul", x, _double(graph, 0.5))
        lower, span = lower * 0.5, upper * 0.5 - lower * 0.5
    above = graph.add("Sub", x, _double(graph, lower))
    share = graph.add("Div", above, _double(graph, span))
    held = graph.add("Clip", share, _double(graph, -FARTHEST), _double(graph, FARTHEST))
    return _imputed(graph, held, null)


def _imputed(graph: Graph, value: str, null: str) -> str:
    whole = graph.add("Where", null, _double(graph, IMPUTED), value)
    return graph.add("Cast", whole, to=np.float32)


def _null_mark(graph: Graph, column: Column, null: str) -> list[str]:
    return [graph.add("Cast", null, to=np.float32)] if column.has_nulls else []


def _hour(graph: Graph, micros: str) -> str:
    return _share(graph, graph.add("Mod", micros, _whole(graph, MICROS_PER_DAY)), MICROS_PER_DAY)


def _weekday(graph: Graph, micros: str) -> str:
    days = graph.add("Add", _days(graph, micros), _whole(graph, FIRST_WEEKDAY))
    return _share(graph, graph.add("Mod", days, _whole(graph, 7)), 6)


def _month(graph: Graph, micros: str) -> str:
    """Add the month's share of the year; years are counted from March, so that leap days end them.

    The quotients are of numbers >= 0, so that rounding towards 0 is rounding down.
    """

    def over(value: str, days: int) -> str:
        return graph.add("Div", value, _whole(graph, days))

    def times(number: int, value: str) -> str:
        return graph.add("Mul", value, _whole(graph, number))

    since = graph.add("Add", _days(graph, micros), _whole(graph, _EPOCH))
    day = graph.add("Mod", since, _whole(graph, _ERA))  # of the 400 years
    plain = graph.add("Sub", day, over(day, _LEAP))
    plain = graph.add("Add", plain, over(day, _CENTURY))
    year = over(graph.add("Sub", plain, over(day, _ERA - 1)), _YEAR)
    leaps = graph.add("Sub", over(year, 4), over(year, 100))
    before = graph.add("Add", times(_YEAR, year), leaps)
    of_year = graph.add("Sub", day, before)
    month = over(graph.add("Add", times(5, of_year), _whole(graph, 2)), 153)  # March is 0
    shifted = graph.add("Add", month, _whole(graph, 2))
    return _share(graph, graph.add("Mod", shifted, _whole(graph, 12)), 11)


def _days(graph: Graph, micros: str) -> str:
    """Add the days since 1970, rounded down; ONNX divides whole numbers towards 0."""
    rest = graph.add("Mod", micros, _whole(graph, MICROS_PER_DAY))
    start = graph.add("Sub", micros, rest)
    return graph.add("Div", start, _whole(graph, MICROS_PER_DAY))


def _share(graph: Graph, value: str, whole: int) -> str:
    return graph.add("Div", graph.add("Cast", value, to=np.float64), _double(graph, whole))


def _double(graph: Graph, value: float) -> str:
    return graph.constant(np.float64(value))


def _whole(graph: Graph, value: int | list[int]) -> str:
    return graph.constant(np.array(value, np.int64))


_PARTS: dict[str, Callable[[Graph, str], str]] = {
    "hour": _hour,
    "weekday": _weekday,
    "month": _month,
}
