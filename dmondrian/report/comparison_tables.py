"""A comparison of runs as tables of text, for the terminal and for a page.

Relies on what :func:`dmondrian.report.compare_runs` returns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dmondrian._text.wording import counted, size
from dmondrian.distributed.cluster.progress import clock
from dmondrian.distributed.metrics.curve import NAMES
from dmondrian.prequential.forecast_lag import delay_in_words
from dmondrian.report.number_format import metric

_SHOWN_POINTS = 10  # of a learning curve
_SHOWN_ROWS = 60  # of a table of differences
_SHOWN_ITEMS = 8  # of a list; else two of them
_LONGEST = 48  # characters of a value
_NONE = "-"
_LABELS = {**NAMES, "r2": "R2"}
_FORMS: dict[str, Callable[[float], str]] = {
    "seconds of work": lambda value: f"{value:.1f}" if value < 60.0 else clock(value),
    "rows a second": lambda value: f"{value:,.0f}",
    "bytes in memory": size,
    "bytes stored": size,
}
BETTER = "* is better than others of the same rows, forecast equally far ahead"


class Table(NamedTuple):
    """A part of a comparison."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]  # of the head's length each; none where nothing differs
    notes: tuple[str, ...] = ()
    none: str = ""  # what there is not, where there are no rows


def tables_of(comparison: Mapping[str, Any]) -> list[Table]:
    """Return the parts of a comparison in order: runs, differences, metrics, curves, work."""
    names = tuple(run["name"] for run in comparison["runs"])
    keys = ("", *names)
    differences = [
        Table(title, keys, *_differing(comparison[part], form), none=none)
        for title, part, form, none in (
            ("Settings that differ", "settings", _as_toml, "no key of a job file differs"),
            ("Data that differ", "data", _as_text, _same_data(comparison)),
            ("Versions that differ", "versions", _as_text, "the versions are the same"),
        )
    ]
    runs = [_run(run) for run in comparison["runs"]]
    return [
        Table("Runs", ("", "algorithm", "rows learned", "run"), runs),
        *differences,
        _metrics(comparison, keys),
        *_curves(comparison, keys),
        Table("Time and sizes", keys, [_work(row) for row in comparison["work"]]),
    ]  # fmt: skip


def _same_data(comparison: Mapping[str, Any]) -> str:
    """Return what is the same where no data differ."""
    named = any(row["key"] in ("data.exclude", "data.include") for row in comparison["settings"])
    addition = "; the jobs name other columns to leave out" if named else ""
    return f"rows and columns are the same{addition}"


def _run(run: Mapping[str, Any]) -> tuple[str, ...]:
    unfinished = "" if run["final"] else " (unfinished)"
    return run["name"], str(run["algorithm"]), f"{run['rows']:,}{unfinished}", run["run"]


def _differing(
    rows: Sequence[Mapping[str, Any]], form: Callable[[Any], str]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    n_more = len(rows) - _SHOWN_ROWS
    more = (f"and {counted(n_more, 'more difference')}",) if n_more > 0 else ()
    return [_row(row, form) for row in rows[:_SHOWN_ROWS]], more


def _row(row: Mapping[str, Any], form: Callable[[Any], str]) -> tuple[str, ...]:
    """Return a row of a table: numbers of four digits, unless values would then look the same."""
    short = [form(_rounded(value)) for value in row["values"]]
    full = [form(value) for value in row["values"]]
    texts = short if len(set(short)) == len(set(full)) else full
    return row["key"], *map(_cut, texts)


def _rounded(value: Any) -> Any:
    """Return a value whose fractions have four significant digits, lists and mappings of them."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if isinstance(value, float) and abs(value) < 1e4:
        return float(f"{value:.4g}")
    return value


def _as_toml(value: Any) -> str:
    """Return a value as a job file has it, long lists cut; "-" for none."""
    if value is None:
        return _NONE
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        if len(value) <= _SHOWN_ITEMS:
            return f"[{', '.join(map(_as_toml, value))}]"
        return f"[{', '.join(map(_as_toml, value[:2]))}, ... {len(value):,} in all]"
    return json.dumps(value, ensure_ascii=False)


def _as_text(value: Any) -> str:
    """Return a fact of the data, or a version; "-" for none."""
    if value is None:
        return _NONE
    if isinstance(value, list):
        return _as_toml(value)
    return f"{value:,}" if type(value) is int else str(value)


def _cut(text: str) -> str:
    """Return a text of bounded length, with its end, in which paths differ."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def _marked(value: float | None, name: str, better: Sequence[str]) -> str:
    if value is None:
        return _NONE
    return f"{metric(value)} *" if name in better else metric(value)


def _metrics(comparison: Mapping[str, Any], keys: tuple[str, ...]) -> Table:
    rows = []
    for row in comparison["metrics"]:
        label = f"{_LABELS[row['metric']]}, {_span(row)}"
        values = (
            _marked(*pair, row["better"]) for pair in zip(row["values"], keys[1:], strict=True)
        )
        rows.append((label, *values))
    alike = tuple(
        f"{_listed(group['runs'])} forecast the same target of the same first "
        f"{counted(group['rows'], 'row')}, {delay_in_words(group['delay'])}"
        for group in comparison["alike"]
    )
    reasons = tuple(f"not compared: {reason}" for reason in comparison["reasons"])
    marks = (BETTER,) if any(row["better"] for row in comparison["metrics"]) else ()
    return Table("Metrics", keys, rows, (*alike, *reasons, *marks), none="no run has metrics")


def _span(row: Mapping[str, Any]) -> str:
    """Return the rows that a metric is of."""
    numbers = {rows for rows in row["rows"] if rows is not None}
    of = f"{next(iter(numbers)):,} rows" if len(numbers) == 1 else "rows"
    span = str(row["span"])
    return {"last rows": f"last {of}", "first rows in common": f"first {of} in common"}.get(
        span, span
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _curves(comparison: Mapping[str, Any], keys: tuple[str, ...]) -> list[Table]:
    """Return the first metric's curve at some of the common positions."""
    for name, curves in comparison["curves"].items():
        places = _some(len(curves["rows"]))
        rows = [
            (f"{curves['rows'][i]:,} rows", *(_NONE if values is None else metric(values[i])
                                         for values in curves["values"]))
            for i in places
        ]  # fmt: skip
        return [Table(f"Learning curve, {_LABELS[name]} so far", keys, rows)]
    return []


def _some(n: int) -> list[int]:
    """Return some of n places, the last among them."""
    most = min(n, _SHOWN_POINTS)
    return sorted({(i + 1) * n // most - 1 for i in range(most)})


def _work(row: Mapping[str, Any]) -> tuple[str, ...]:
    form = _FORMS.get(row["key"])
    values = [
        _NONE if value is None else form(value) if form is not None
        else ", ".join(value) or _NONE if isinstance(value, list) else f"{value:,}"
        for value in row["values"]
    ]  # fmt: skip
    return row["key"], *values
