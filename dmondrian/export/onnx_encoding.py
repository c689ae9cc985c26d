"""The encoding of columns as ONNX operators: what :mod:`dmondrian.data.encode` does, in a graph.

Relies on a run's schema. Promises the features that the run would have made, to the last bit: the
same operations in the same precision and order. What a graph cannot do, it takes another way:

* a null is NaN in a number, the empty string in a category (where that is no level of its own),
  and the least int64 in a time, which is what NumPy's NaT is;
* an infinite number, where the run refuses it, makes the numbers of the answer NaN; an infinite
  time is far outside; nothing is counted.

Inputs are [n, 1] by the names of the columns: float64 for numbers (booleans 0 and 1, durations and
times of day in seconds), strings for categories, int64 microseconds since 1970 (UTC) for times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dmondrian.data import Schema
from dmondrian.data.arrow_values import MICROS_PER_DAY, MOST_MICROS
from dmondrian.data.cyclic_parts import CENTRE, FIRST_WEEKDAY, RISE, SINE
from dmondrian.data.encode import FARTHEST, IMPUTED, bounds_of, level_places
from dmondrian.data.schema import Column
from dmondrian.errors import ParameterError
from dmondrian.export.graph import Graph

_NULL_TIME = np.iinfo(np.int64).min
# Days from 0000-03-01, a leap day's morrow, to 1970-01-01; and of 400, 100, 4 and 1 years.
_EPOCH, _ERA, _CENTURY, _LEAP, _YEAR = 719_468, 146_097, 36_524, 1_460, 365
_TO_JANUARY = 306  # days from the first of March


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
        else:
            known = graph.add("Where", null, _double(graph, 0.0), x)
            graph.refuse_infinite(known)
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
        elif part in _PARTS:
            features.append(_imputed(graph, _PARTS[part](graph, micros), null))
        else:
            of, _, function = part.partition("_")
            point = _on_circle(graph, *_PLACES[of](graph, micros), function == "cos")
            features.append(_imputed(graph, point, null, CENTRE))
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
    places = {"": n_levels + 1} | level_places(column)
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


def _imputed(graph: Graph, value: str, null: str, imputed: float = IMPUTED) -> str:
    whole = graph.add("Where", null, _double(graph, imputed), value)
    return graph.add("Cast", whole, to=np.float32)


def _null_mark(graph: Graph, column: Column, null: str) -> list[str]:
    return [graph.add("Cast", null, to=np.float32)] if column.has_nulls else []


def _hour(graph: Graph, micros: str) -> str:
    return _share(graph, _in_day(graph, micros), MICROS_PER_DAY)


def _weekday(graph: Graph, micros: str) -> str:
    return _share(graph, _in_week(graph, micros), 6)


def _month(graph: Graph, micros: str) -> str:
    """Add the month's share of the year."""
    _, of_year = _from_march(graph, micros)
    month = graph.add("Mul", of_year, _whole(graph, 5))
    month = graph.add("Div", graph.add("Add", month, _whole(graph, 2)), _whole(graph, 153))
    shifted = graph.add("Add", month, _whole(graph, 2))  # March is 0
    return _share(graph, graph.add("Mod", shifted, _whole(graph, 12)), 11)


def _in_day(graph: Graph, micros: str) -> str:
    return graph.add("Mod", micros, _whole(graph, MICROS_PER_DAY))


def _in_week(graph: Graph, micros: str) -> str:
    days = graph.add("Add", _days(graph, micros), _whole(graph, FIRST_WEEKDAY))
    return graph.add("Mod", days, _whole(graph, 7))


def _in_year(graph: Graph, micros: str) -> tuple[str, str]:
    """Add the days since the first of January, and those of the year."""
    from_march, of_year = _from_march(graph, micros)
    is_next = graph.add("Greater", of_year, _whole(graph, _TO_JANUARY - 1))
    year = graph.add("Add", from_march, graph.add("Cast", is_next, to=np.int64))

    def divides(number: int) -> str:
        return graph.add("Equal", graph.add("Mod", year, _whole(graph, number)), _whole(graph, 0))

    is_plain = graph.add("And", divides(100), graph.add("Not", divides(400)))
    is_leap = graph.add("And", divides(4), graph.add("Not", is_plain))
    leap = graph.add("Cast", is_leap, to=np.int64)
    behind = graph.add("Add", of_year, graph.add("Add", leap, _whole(graph, _YEAR - _TO_JANUARY)))
    since = graph.add("Sub", of_year, _whole(graph, _TO_JANUARY))
    days = graph.add("Where", is_next, since, behind)
    return days, graph.add("Add", leap, _whole(graph, _YEAR))


def _on_circle(graph: Graph, place: str, turn: str, is_cosine: bool) -> str:
    """Add half of what :func:`dmondrian.data.cyclic_parts.on_circle` returns, by its operations."""
    eight = graph.add("Mul", place, _whole(graph, 8))
    twice = graph.add("Mul", turn, _whole(graph, 2))
    quarter = graph.add("Div", graph.add("Add", eight, turn), twice)
    four = graph.add("Mul", place, _whole(graph, 4))
    rest = graph.add("Sub", four, graph.add("Mul", quarter, turn))
    numbers = [graph.add("Cast", each, to=np.float64) for each in (rest, turn)]
    x = graph.add("Mul", graph.add("Div", *numbers), _double(graph, 0.5 * math.pi))
    square = graph.add("Mul", x, x)
    half_sine = graph.add("Mul", x, _horner(graph, SINE, square))
    rise = graph.add("Mul", square, _horner(graph, RISE, square))
    turned = graph.add("Add", quarter, _whole(graph, int(is_cosine)))
    at = graph.add("Mod", turned, _whole(graph, 4))
    is_first, is_second, is_fourth = (
        graph.add("Equal", at, _whole(graph, each)) for each in (0, 1, 3)
    )
    high = graph.add("Sub", _double(graph, 1.0), rise)
    rising = graph.add("Add", _double(graph, 0.5), half_sine)
    falling = graph.add("Sub", _double(graph, 0.5), half_sine)
    point = graph.add("Where", is_first, rising, falling)
    point = graph.add("Where", is_second, high, graph.add("Where", is_fourth, rise, point))
    return graph.add("Mul", _double(graph, 0.5), point)


def _horner(graph: Graph, coefficients: Sequence[float], x: str) -> str:
    total = _double(graph, coefficients[0])
    for coefficient in coefficients[1:]:
        total = graph.add("Add", graph.add("Mul", total, x), _double(graph, coefficient))
    return total


def _from_march(graph: Graph, micros: str) -> tuple[str, str]:
    """Add the year of its 400, and the day of the year; years begin with March.

    So leap days end them. The quotients are of numbers >= 0, so that rounding towards 0 is rounding
    down.
    """

    def over(value: str, days: int) -> str:
        return graph.add("Div", value, _whole(graph, days))

    since = graph.add("Add", _days(graph, micros), _whole(graph, _EPOCH))
    day = graph.add("Mod", since, _whole(graph, _ERA))  # of the 400 years
    plain = graph.add("Sub", day, over(day, _LEAP))
    plain = graph.add("Add", plain, over(day, _CENTURY))
    year = over(graph.add("Sub", plain, over(day, _ERA - 1)), _YEAR)
    leaps = graph.add("Sub", over(year, 4), over(year, 100))
    before = graph.add("Add", graph.add("Mul", year, _whole(graph, _YEAR)), leaps)
    return year, graph.add("Sub", day, before)


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

_PLACES: dict[str, Callable[[Graph, str], tuple[str, str]]] = {
    "hour": lambda graph, micros: (_in_day(graph, micros), _whole(graph, MICROS_PER_DAY)),
    "weekday": lambda graph, micros: (_in_week(graph, micros), _whole(graph, 7)),
    "yearday": _in_year,
}
"""How far a time is in the turn of a circle, and how long the turn is."""
