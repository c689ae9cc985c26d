"""Tables, figures and numbers of the page, as HTML and as people read them.

Relies on the page's style. Promises that all text of cells and titles is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, is_code: bool = False) -> str:
    """Return a table; it scrolls by itself where the page is narrow."""
    first = "".join(f"<th>{escape(name)}</th>" for name in head)
    many = ' class="many"' if len(head) > 4 else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(text, is_code and i > 0)}</td>" for i, text in enumerate(row))
        + "</tr>"
        for row in rows
    )  # fmt: skip
    return (
        f'<div class="wide" tabindex="0"><table{many}><thead><tr>{first}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str, is_code: bool) -> str:
    return f"<code>{escape(text)}</code>" if is_code else escape(text)


def figure(title: str, chart: str, names: Sequence[str] = ()) -> str:
    """Return a chart with its title, and a key where it has several series."""
    key = "".join(
        f'<span class="s{i}"><i></i>{escape(name)}</span>' for i, name in enumerate(names)
    )
    key = f'<div class="key">{key}</div>' if key else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{key}{chart}</figure>"


def grid(figures: Sequence[str]) -> str:
    """Return figures side by side where there is room."""
    return f'<div class="grid">{"".join(figures)}</div>' if figures else ""


def missing(words: str) -> str:
    """Return words on what is not there; they are HTML."""
    return f'<p class="none">{words}</p>'


def short(value: float, digits: int = 3) -> str:
    """Return a count as an axis tells it."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if scale <= abs(value) < 1000.0 * scale:
            return f"{value / scale:.{digits}g}{unit}"
    return f"{value:.{digits}g}"


def number(value: float) -> str:
    """Return a number as an axis tells it."""
    return short(value, 4)


def metric(value: float) -> str:
    """Return a metric as a tile tells it: five digits or so."""
    digits = 4 if abs(value) < 100.0 else 2 if abs(value) < 1000.0 else 0
    return f"{value:,.{digits}f}" if abs(value) < 1e9 else f"{value:.4g}"


def percent(value: float) -> str:
    """Return a share in per cent."""
    return f"{value:.0%}" if value in (0.0, 1.0) or value >= 0.1 else f"{value:.1%}"
