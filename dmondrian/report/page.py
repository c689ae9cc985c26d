"""The page: sections in order, and the style that they share.

Relies on no file but itself. Promises a page that fits a phone, in the light or dark that the
reader's system asks for, and prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from os import PathLike
from pathlib import Path

from dmondrian import __version__
from dmondrian._atomic_write import check_whole, write_whole
from dmondrian.report import sections
from dmondrian.report.facts import Facts, gather

_SECTIONS: tuple[tuple[str, Callable[[Facts], str]], ...] = (
    ("Learning curve", sections.learning),
    ("Forecasts", sections.outcomes),
    ("Importances", sections.importance),
    ("Data", sections.inputs),
    ("Work", sections.work),
    ("Train it again", sections.reproduce),
)

_DOCTYPE = "<!doctype html>"
_KIND = "a report", _DOCTYPE.encode()

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --page: #f5f6f8; --card: #fff;
  --line: #dfe3e8; --s0: #1764ab; --s1: #c4570a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b3; --page: #12161c;
  --card: #1b2129; --line: #313a46; --s0: #6cb2f5; --s1: #f2a15f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 8px; } h3 { font-size: 1rem; margin: 16px 0 6px; }
p { margin: 0 0 12px; max-width: 75ch; overflow-wrap: anywhere; }
.none, footer { color: var(--soft); }
.where { color: var(--soft); overflow-wrap: anywhere; }
.lead { font-size: 1.05rem; margin: 12px 0; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px; margin-top: 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 10px 14px; }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .85rem; }
.grid { display: flex; flex-wrap: wrap; gap: 18px; margin-bottom: 12px; }
figure { margin: 0; flex: 1 1 min(330px, 100%); max-width: 420px; }
figcaption { font-weight: 600; font-size: .92rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11px; } svg text.over { fill: var(--card); }
svg text.upon { fill: var(--ink); }
.grid path.grid { stroke: var(--line); fill: none; }
path.axis { stroke: var(--soft); fill: none; }
.s0 { --own: var(--s0); } .s1 { --own: var(--s1); }
.line { stroke: var(--own); fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.band { fill: var(--own); opacity: .18; stroke: none; } .bar { fill: var(--own); }
.mark { fill: var(--own); opacity: 0; } .mark:hover, .alone { opacity: 1; } .cell { fill: var(--s0);
  stroke: var(--line); }
.key { display: flex; gap: 14px; font-size: .82rem; color: var(--soft); }
.key i { display: inline-block; width: 14px; height: 3px; background: var(--own);
  margin-right: 6px; vertical-align: middle; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; width: 100%; }
table.many { min-width: 560px; }
td:first-child, td:last-child { overflow-wrap: anywhere; }
td:first-child { min-width: 6.4em; } table:not(.many) td:last-child { min-width: 6em; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; } th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; } code, pre { font: .86em ui-monospace, Menlo, monospace; }
pre { background: var(--page); border: 1px solid var(--line); border-radius: 8px; padding: 12px;
  overflow-x: auto; } footer { margin-top: 20px; font-size: .85rem; }
@media (max-width: 600px) { table { font-size: .8rem; } section { padding: 14px; }
  th, td { padding-right: 8px; } }
@media print { section { break-inside: avoid; } body { background: none; } }
"""


def write_report(run: str | PathLike[str], out: str | PathLike[str]) -> Path:
    """Write a run, finished or in progress, as a page of one file.

    Parameters
    ----------
    run : str or path
        Run folder or URL, or what ``save`` wrote; ``@position`` picks a checkpoint.
    out : str or path
        The file to write.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    CheckpointError
        There is no run, or its newest checkpoint is damaged.
    ParameterError
        The file cannot be written, or is there and no report.
    """
    check_whole(out, *_KIND)
    text = page(gather(str(run)))
    # Paths may hold bytes that are no text, which Python keeps as characters of no encoding.
    return write_whole(out, text.encode(errors="backslashreplace"), *_KIND)


def page(facts: Facts) -> str:
    """Return the page as HTML."""
    name = facts.url.rstrip("/").rpartition("/")[2] or facts.url
    made = [(title, make(facts)) for title, make in _SECTIONS]
    parts = [f"<section><h2>{escape(title)}</h2>{text}</section>" for title, text in made if text]
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    return (
        f'{_DOCTYPE}\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(name)}</title>'
        f"<style>{_STYLE}</style></head><body><main><header><h1>{escape(name)}</h1>"
        f'<div class="where"><code>{escape(facts.url)}</code></div></header>'
        f"{sections.overview(facts)}{''.join(parts)}"
        f"<footer>Written by dmondrian {__version__} on {now} UTC.</footer></main></body></html>\n"
    )
