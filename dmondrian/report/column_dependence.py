"""How forecasts depend on columns: partial dependence of the most important ones, from the trees.

Relies on the trees of a run, which are loaded, and on the encoding of its columns. Promises the
numbers of :func:`dmondrian.export.partial_dependence` at encoded values of a column, all features
of the column together.

Shapes: g values, k outputs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from markupsafe import Markup

from dmondrian.data import Column, Schema
from dmondrian.data.encode import encode_features
from dmondrian.errors import ParameterError
from dmondrian.report.charts import Line, bar_chart, line_chart, shortened
from dmondrian.report.facts import Facts
from dmondrian.report.number_format import metric, number, percent
from dmondrian.report.rendering import Figure, render

_POINTS = 33  # of a column of numbers, whose range they cut evenly
_MOST_WHOLE = 64  # whole numbers that are all shown
_MOST_LEVELS = 15
_MOST_CLASSES = 4  # in a chart: the page has as many colours
_YEARS = 253_402_300_800  # seconds from 1970 to the year 10000


class Dependence(NamedTuple):
    """Mean forecasts at values of a column, where the others vary as in the rows learned."""

    column: Column
    values: list[Any]  # numbers, microseconds or levels
    means: np.ndarray  # float64 [g, k]
    missing: np.ndarray | None  # float64 [k], where the column is null, if it was in training


def find_dependence(facts: Facts, n_columns: int) -> tuple[list[Dependence], str]:
    """Return the dependence on the most important columns, or why it cannot be had."""
    schema = facts.schema
    if schema is None:
        return [], (
            "the run was fitted on arrays; dmondrian.export.partial_dependence takes the estimator"
        )
    if facts.manifest is None:
        return [], "there is no checkpoint yet"
    if facts.no_importances is not None:
        return [], f"the columns have no importances: {facts.no_importances}"
    if str(facts.run_json.get("algorithm")).startswith("generalized"):
        return [], "the trees of a generalised forest add up on the scale of its loss alone"
    from dmondrian.estimators.load import load_estimator  # what follows loads Numba
    from dmondrian.export.plain_trees import plain_trees
    from dmondrian.export.tree_dependence import dependence_of

    try:
        trees = plain_trees(load_estimator(facts.name))
    except ParameterError as error:
        return [], str(error)
    places, start = {}, 0
    for column in schema.columns:
        places[column.name] = column, list(range(start, start + column.width))
        start += column.width
    found = []
    for name, share in facts.importances[:n_columns]:
        column, features = places[name]
        values = values_of(column)
        if share > 0.0 and values:
            means = dependence_of(trees, features, encoded(schema, column, values))
            missing = None
            if column.has_nulls:
                missing = dependence_of(trees, features, encoded(schema, column, [None]))[0]
            found.append(Dependence(column, values, means, missing))
    return found, "" if found else "no split is worth anything yet"


def values_of(column: Column) -> list[Any]:
    """Return values of a column to show: evenly over the range of the training data, or levels."""
    if column.kind == "category":
        return list(column.levels[:_MOST_LEVELS])
    if column.kind == "text":
        return []  # a hash has no word to show
    low, high = column.lower, column.upper
    if low is None or high is None or not math.isfinite(high - low):
        return []
    if column.kind == "time":
        return sorted({int(value) for value in np.linspace(low, high, _POINTS)})
    is_whole = column.type.startswith(("int", "uint", "bool"))
    if is_whole and high - low <= _MOST_WHOLE:
        return [float(value) for value in range(int(low), int(high) + 1)]
    return [float(value) for value in np.unique(np.linspace(low, high, _POINTS))]


def encoded(schema: Schema, column: Column, values: Sequence[Any]) -> np.ndarray:
    """Return values of a column as the run encodes them, float32 [g, width]."""
    kinds = {"category": pa.string(), "time": pa.timestamp("us"), "number": pa.float64()}
    array = pa.array(values, kinds[column.kind])
    alone = replace(schema, columns=(column,))
    return encode_features(alone, {column.name: array}, len(values), {}, str)


def dependence(facts: Facts) -> Markup:
    """Draw the dependence of forecasts on columns, where it was asked for."""
    if facts.dependence is None:
        return Markup()
    found, reason = facts.dependence
    classes = [str(label) for label in facts.run_json.get("classes") or []]
    places = _shown_classes(found, classes)
    what = _in_words(classes, places)
    tables: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
    figures, missing = [], []
    for one in found:
        lines = {classes[k] if classes else what: one.means[:, k].tolist() for k in places}
        name, n_more = one.column.name, len(one.column.levels) - len(one.values)
        if one.column.kind == "category" and n_more > 0:
            name += f" (of {len(one.column.levels):,} levels the first {len(one.values)})"
        form = percent if classes else metric
        if one.missing is not None:
            means = ", ".join(
                f"{classes[k]} {form(float(one.missing[k]))}" if len(places) > 1 else
                form(float(one.missing[k])) for k in places
            )  # fmt: skip
            missing.append((one.column.name, means))
        if one.column.kind != "category":
            figures.append(_line_figure(one, lines, what, form if classes else number))
        elif len(places) == 1 and float(one.means[:, places].min()) >= 0.0:
            (values,) = lines.values()
            figures.append(
                Figure(name, bar_chart(list(zip(one.values, values, strict=True)), form))
            )
        else:
            rows = [(level, *(form(values[i]) for values in lines.values()))
                    for i, level in enumerate(one.values)]  # fmt: skip
            tables.append((name, ("level", *lines), rows))
    return render(
        "dependence.html", reason=reason, what=what, figures=figures, tables=tables, missing=missing
    )


def _shown_classes(found: Sequence[Dependence], classes: Sequence[str]) -> list[int]:
    """Return the outputs to show: the second of two classes, or those that vary most of many."""
    if len(classes) <= 2:
        return [len(classes) - 1] if classes else [0]
    ranges = np.zeros(len(classes))
    for one in found:
        ranges = np.maximum(ranges, np.ptp(one.means, axis=0))
    return sorted(np.argsort(-ranges, kind="stable")[:_MOST_CLASSES].tolist())


def _in_words(classes: Sequence[str], places: Sequence[int]) -> str:
    """Return what the mean is of."""
    if not classes:
        return "mean forecast"
    return f"mean probability of {classes[places[0]]}" if len(places) == 1 else "mean probability"


def _line_figure(
    one: Dependence, lines: dict[str, list[float]], what: str, form: Callable[[float], str]
) -> Figure:
    drawn = [
        Line(name, list(zip(map(float, one.values), values, strict=True)))
        for name, values in lines.items()
    ]
    x_form = _date if one.column.kind == "time" else number
    label = f"{what} against {one.column.name}"
    chart = line_chart(drawn, shortened([one.column.name], 40)[0], x_form, form, label=label)
    return Figure(one.column.name, chart, tuple(lines) if len(lines) > 1 else ())


def _date(micros: float) -> str:
    seconds = micros / 1e6
    if not 0.0 <= seconds < _YEARS:
        return number(seconds)
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
