"""Templates of the page, filled in.

Relies on the files in ``templates/``. Promises that all text is escaped, except what is
:class:`markupsafe.Markup` already, and that a template which asks for an unknown value fails.
"""

from __future__ import annotations

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


def render(template: str, **values: Any) -> Markup:
    """Return a template of the page as HTML, with these values."""
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("dmondrian.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
