"""A comparison of runs as a page of one file, with their curves in one chart.

Relies on the templates and charts of this package. Promises a page as that of one run: no script,
and nothing from a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dmondrian._atomic_write import check_whole, write_whole
from dmondrian.report.charts import Line, line_chart
from dmondrian.report.comparison import LETTERS, compared, gather_all
from dmondrian.report.comparison_tables import Table, tables_of
from dmondrian.report.facts import Facts
from dmondrian.report.number_format import short
from dmondrian.report.page import KIND, page_of_sections
from dmondrian.report.rendering import Figure, render
from dmondrian.report.sections import curve_figures, window_figures

_DRAWN = 4  # runs in a chart: the page has as many colours


def write_comparison(
    runs: Sequence[str | PathLike[str]], out: str | PathLike[str]
) -> tuple[Path, dict[str, Any]]:
    """Write a comparison of runs, finished or in progress, as a page of one file.

    Parameters
    ----------
    runs : sequence of str or path
        As of :func:`dmondrian.report.compare_runs`.
    out : str or path
        The file to write.

    Returns
    -------
    Path
        Of the file.
    dict
        As of :func:`dmondrian.report.compare_runs`.

    Raises
    ------
    CheckpointError
        There is no such run, or its checkpoint is damaged.
    ParameterError
        The runs cannot be compared; or the file cannot be written, or is there and no report.
    """
    check_whole(out, *KIND)
    facts = gather_all(runs)
    comparison = compared(facts)
    text = _page(facts, comparison)
    return write_whole(out, text.encode(errors="backslashreplace"), *KIND), comparison


def _page(facts: Sequence[Facts], comparison: Mapping[str, Any]) -> str:
    tables = tables_of(comparison)
    figures = {"Metrics": _curves(facts), "Time and sizes": _growth(facts)}
    sections = []
    for table in tables[1:]:
        figures_of_table = next(
            (figures.pop(title) for title in list(figures) if title == table.title), []
        )
        sections.append((table.title, _section(table, figures_of_table), False))
    name = " and ".join(_short_name(of_run.name) for of_run in facts[:2])
    more = f" and {len(facts) - 2:,} more" if len(facts) > 2 else ""
    where = f"{len(facts)} runs compared"
    return page_of_sections(f"{name}{more}", where, _section(tables[0], []), sections)


def _section(table: Table, figures: list[Figure]) -> Markup:
    return render("comparison.html", table=table, figures=figures)


def _short_name(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] or name


def _curves(facts: Sequence[Facts]) -> list[Figure]:
    """Draw learning curves, so far and by window of the stream, of all runs in one chart each."""
    reports = {
        name: of_run.progressive.report()
        for name, of_run in zip(LETTERS[:_DRAWN], facts, strict=False)
        if of_run.progressive is not None and of_run.progressive.curve
    }
    if len(reports) < 2:
        return []
    windows = {name: report.get("windows", []) for name, report in reports.items()}
    return [
        *curve_figures({name: report["curve"] for name, report in reports.items()}),
        *window_figures(windows),
    ]


def _growth(facts: Sequence[Facts]) -> list[Figure]:
    """Draw the nodes at checkpoints of all runs, unless none has a second one."""
    lines = [
        Line(name, [(float(rows), float(nodes)) for rows, nodes, _ in of_run.growth])
        for name, of_run in zip(LETTERS[:_DRAWN], facts, strict=False)
        if of_run.growth
    ]
    if all(len(line.points) < 2 for line in lines):
        return []
    chart = line_chart(lines, "rows learned", short, short, from_zero=True, y_name="nodes")
    return [Figure("Nodes at checkpoints", chart, tuple(line.name for line in lines))]
