"""Charts of how forecasts depend on columns, and which pairs of them act together.

Relies on :mod:`dmondrian.export.column_dependence` for the numbers. Promises words where there are
none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from dmondrian._text.wording import size
from dmondrian.errors import DMondrianError, ParameterError
from dmondrian.report.charts import (
    LONGEST_NAME,
    Line,
    bar_chart,
    histogram_chart,
    line_chart,
    shortened,
)
from dmondrian.report.facts import Facts
from dmondrian.report.number_format import metric, number, percent
from dmondrian.report.rendering import Figure, render

if TYPE_CHECKING:
    from dmondrian.export.column_dependence import Dependence

_NONE: Any = ([], [], 0, "", [])
_YEARS = 253_402_300_800  # seconds from 1970 to the year 10000


_QUICK_COLUMNS, _QUICK_BYTES = 6, 2**27
"""Most important columns that are drawn unasked, of forests that take so much memory at most."""


def quick_dependence(facts: Facts) -> tuple[Any, str] | None:
    """Return what is drawn unasked: what takes seconds, or why there is nothing.

    Returns
    -------
    found, reason
        As of :func:`find_dependence`; None of a model that has no partial dependence at all.
    """
    if facts.schema is None or facts.manifest is None or facts.no_importances is not None:
        return None
    if facts.n_bytes > _QUICK_BYTES:
        return _NONE, (
            f"the trees take {size(facts.n_bytes)}, which are loaded with --partial-dependence N "
            "alone"
        )
    try:
        return find_dependence(facts, _QUICK_COLUMNS, is_quick=True)
    except DMondrianError as error:
        return _NONE, str(error)


def find_dependence(facts: Facts, n_columns: int, *, is_quick: bool = False) -> tuple[Any, str]:
    """Return the dependence on the most important columns, or why it cannot be had.

    ``is_quick`` as :func:`dmondrian.export.column_dependence.dependence_on` has it.

    Returns
    -------
    dependences : Dependences
        See :mod:`dmondrian.export.column_dependence`, which loads Numba.
    reason : str
        "" where there is one.
    """
    if facts.schema is None:
        return _NONE, (
            "the run was fitted on arrays; dmondrian.export.partial_dependence takes the estimator"
        )
    if facts.manifest is None:
        return _NONE, "there is no checkpoint yet"
    if facts.no_importances is not None:
        return _NONE, f"the columns have no importances: {facts.no_importances}"
    from dmondrian.ensemble.settings.parameters import ForestParameters
    from dmondrian.estimators.load import load_estimator  # loads Numba
    from dmondrian.export.column_dependence import dependence_on, why_no_dependence

    parameters = ForestParameters.from_json(facts.run_json["parameters"])
    if (why := why_no_dependence(facts.run_json["algorithm"], parameters)) is not None:
        return _NONE, why
    shares = {name: share for name, share in facts.importances if share > 0.0}
    names = list(dict.fromkeys([*facts.bound, *shares]))[:n_columns]
    learned = facts.manifest.position
    try:
        dependences = dependence_on(
            load_estimator(facts.name), facts.schema, facts.plan, learned, names, is_quick=is_quick
        )
    except ParameterError as error:
        return _NONE, str(error)
    return (
        dependences,
        "" if dependences.columns or dependences.not_shown else "no split is worth anything yet",
    )


def dependence(facts: Facts) -> Markup:
    """Draw the dependence of forecasts on columns."""
    if facts.dependence is None:
        return Markup()
    from dmondrian.export.column_dependence import (
        LEAST_TOGETHER,
        classes_shown,
        forecast_in_words,
        name_of_value,
    )

    (dependences, pairs, n_paired, rows_in_words, not_shown), reason = facts.dependence
    classes = [str(label) for label in facts.run_json.get("classes") or []]
    places = classes_shown(dependences, classes)
    what = forecast_in_words(classes, places)
    tables: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
    figures, missing = [], []
    shown = [float(value) for each in dependences for value in each.means[:, places].ravel()]
    y_ends = min(shown, default=0.0), max(shown, default=0.0)  # one range: sizes can be compared
    for of_column in dependences:
        lines = {classes[k] if classes else what: of_column.means[:, k].tolist() for k in places}
        name = (
            f"{of_column.column.name}, {of_column.part}"
            if of_column.part
            else of_column.column.name
        )
        n_more = len(of_column.column.levels) - len(of_column.values)
        if of_column.column.kind == "category" and n_more > 0:
            name += (
                f" (of {len(of_column.column.levels):,} levels the first {len(of_column.values)})"
            )
        form = percent if classes else metric
        if of_column.missing is not None:
            means = ", ".join(
                f"{classes[k]} {form(float(of_column.missing[k]))}" if len(places) > 1 else
                form(float(of_column.missing[k])) for k in places
            )  # fmt: skip
            missing.append((of_column.column.name, means))
        is_boolean = of_column.column.type == "bool"
        if (
            of_column.column.kind != "category"
            and of_column.part in ("", "date")
            and not is_boolean
        ):
            y_form = form if classes else number
            figures.append(_line_figure(of_column, name, lines, what, y_form, y_ends))
            figures += _histogram(of_column, name)
            continue
        levels = (
            [name_of_value(of_column.part, each) for each in of_column.values]
            if of_column.part
            else of_column.values
        )
        if is_boolean:
            levels = [_BOOLEANS[int(value)] for value in of_column.values]
        if len(places) == 1 and float(of_column.means[:, places].min()) >= 0.0:
            (values,) = lines.values()
            chart = bar_chart(list(zip(levels, values, strict=True)), form, y_ends[1])
            figures.append(Figure(name, chart))
        else:
            rows = [(level, *(form(values[i]) for values in lines.values()))
                    for i, level in enumerate(shortened(levels, LONGEST_NAME))]  # fmt: skip
            tables.append((name, ("level", *lines), rows))
        if of_column.column.kind == "category" and of_column.shares is not None:
            bars = list(zip(of_column.values, of_column.shares.tolist(), strict=True))
            figures.append(Figure(f"{name}: {_OF_ROWS}", bar_chart(bars, percent)))
        if is_boolean and of_column.shares is not None:
            n_false = len(of_column.shares) // 2  # of the bins, the first of which has all of them
            sums = [
                float(part.sum())
                for part in (of_column.shares[:n_false], of_column.shares[n_false:])
            ]
            bars = list(zip(_BOOLEANS, sums, strict=True))
            figures.append(Figure(f"{name}: {_OF_ROWS}", bar_chart(bars, percent)))
    together = [
        (
            " and ".join(pair.names),
            percent(pair.size) if classes else number(pair.size),
            percent(pair.share),
        )
        for pair in pairs
    ]
    return render(
        "dependence.html", reason=reason, what=what, figures=figures, tables=tables,
        missing=missing, together=together, n_paired=n_paired,
        rows_in_words=rows_in_words, least_share=percent(LEAST_TOGETHER),
        not_shown=", ".join(not_shown),
    )  # fmt: skip


_OF_ROWS = "shares of rows"
_BOOLEANS = ("false", "true")


def _histogram(of_column: Dependence, name: str) -> list[Figure]:
    """Return where rows lie on a column of numbers or times, if it is known."""
    if of_column.shares is None:
        return []
    bars = list(zip(of_column.ends, of_column.ends[1:], of_column.shares.tolist(), strict=False))
    x_form = _date if of_column.column.kind == "time" else number
    chart = histogram_chart(bars, shortened([of_column.column.name], 40)[0], x_form)
    return [Figure(f"{name}: {_OF_ROWS}", chart)]


def _line_figure(
    of_column: Dependence,
    name: str,
    lines: dict[str, list[float]],
    what: str,
    form: Callable[[float], str],
    y_ends: tuple[float, float],
) -> Figure:
    drawn = [
        Line(name, list(zip(map(float, of_column.values), values, strict=True)))
        for name, values in lines.items()
    ]
    x_form = _date if of_column.column.kind == "time" else number
    label = f"{what} against {of_column.column.name}"
    x_name = shortened([of_column.column.name], 40)[0]
    chart = line_chart(drawn, x_name, x_form, form, y_ends=y_ends, label=label)
    return Figure(name, chart, tuple(lines) if len(lines) > 1 else ())


def _date(micros: float) -> str:
    seconds = micros / 1e6
    if not 0.0 <= seconds < _YEARS:
        return number(seconds)
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
