"""The page: its sections in order.

Relies on the templates of this package. Promises a page that fits a phone, in the light or dark
that the reader's system asks for, and prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from dmondrian import __version__
from dmondrian._atomic_write import check_whole, write_whole
from dmondrian.errors import ParameterError
from dmondrian.report import sections
from dmondrian.report.dependence_charts import dependence, find_dependence, quick_dependence
from dmondrian.report.facts import Facts, gather
from dmondrian.report.rendering import render

_SECTIONS: tuple[tuple[str, Callable[[Facts], str]], ...] = (
    ("Learning curve", sections.learning),
    ("Forecasts", sections.outcomes),
    ("Importances", sections.importance),
    ("Partial dependence", dependence),
    ("Columns", sections.inputs),
    ("Work", sections.work),
    ("Train it again", sections.reproduce),
)

_FOLDED = ("Work", "Train it again")  # opened by a click, and found by the browser's search

KIND = "a report", b"<!doctype html>"  # what the first bytes of a report are


def write_report(
    run: str | PathLike[str], out: str | PathLike[str], *, partial_dependence: int | None = None
) -> Path:
    """Write a run, finished or in progress, as a page of one file.

    Parameters
    ----------
    run : str or path
        Run folder or URL, or what ``save`` wrote; ``@position`` picks a checkpoint.
    out : str or path
        The file to write.
    partial_dependence : int, optional
        Columns, the most important ones, of which the page draws how the mean forecast depends on
        them: see :func:`dmondrian.export.partial_dependence`. A number above 0 loads the trees, and
        reads a million rows of the data at most, where these are still there; with 0 the page reads
        neither. By default six columns, where that takes seconds: a forest of more than 128 MiB of
        memory is not loaded, of one of many nodes the first trees count, and some rows of local
        files are read.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    CheckpointError
        There is no run, or its newest checkpoint is damaged.
    ParameterError
        The file cannot be written, or is there and no report; or a negative number of columns.
    """
    if partial_dependence is not None and partial_dependence < 0:
        raise ParameterError(f"partial_dependence is {partial_dependence}; expected 0 or more")
    check_whole(out, *KIND)
    facts = gather(str(run))
    if partial_dependence is None:
        facts.dependence = quick_dependence(facts)
    elif partial_dependence:
        facts.dependence = find_dependence(facts, partial_dependence)
    text = page(facts)
    # Paths may hold bytes that are no text, which Python keeps as characters of no encoding.
    return write_whole(out, text.encode(errors="backslashreplace"), *KIND)


def page(facts: Facts) -> str:
    """Return the page as HTML."""
    name = facts.url.rstrip("/").rpartition("/")[2] or facts.url
    parts = [(title, make(facts), title in _FOLDED) for title, make in _SECTIONS]
    return page_of_sections(name, facts.url, sections.overview(facts), parts)


def page_of_sections(
    name: str, where: str, overview: str, parts: Sequence[tuple[str, str, bool]]
) -> str:
    """Return a page of parts: title, HTML, and whether it is folded."""
    return render(
        "page.html",
        name=name,
        url=where,
        overview=overview,
        sections=parts,
        version=__version__,
        now=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    )
