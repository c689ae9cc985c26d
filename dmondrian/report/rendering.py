"""Templates of the page, filled in.

Relies on the files in ``templates/``. Promises that all text is escaped, except what is
:class:`markupsafe.Markup` already, and that a template which asks for an unknown value fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


class Figure(NamedTuple):
    """A chart with its title."""

    title: str
    chart: Markup
    series: tuple[str, ...] = ()  # names for a key, where there are several
    colours: str = "s"  # first letter of the key's classes
    caption: str = ""  # below the chart


def render(template: str, **values: Any) -> Markup:
    """Return a template of the page as HTML, with these values."""
    return Markup(_environment().get_template(template).render(values))


def _longest_word(rows: Iterable[Sequence[str]]) -> int:
    """Return the number of characters of the longest word in the first cells of rows."""
    return max((len(word) for row in rows for word in str(row[0]).split()), default=0)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("dmondrian.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["longest_word"] = _longest_word
    return made
