"""`dmondrian compare`: what differs between runs, and their metrics side by side.

Relies on :mod:`dmondrian.report`; starts no cluster and changes nothing in the runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dmondrian._text.wording import on_one_line
from dmondrian.cli.output import Output


def compare(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian compare --help`."""
    from dmondrian.report import compare_runs, write_comparison
    from dmondrian.report.comparison_tables import tables_of

    if arguments.html is None:
        comparison = compare_runs(arguments.runs)
    else:
        file, comparison = write_comparison(arguments.runs, arguments.html)
        comparison["html"] = str(file)
    output.event("compared", comparison)
    for part in tables_of(comparison):
        lines = [f"{part.title}:"]
        lines += _columns([part.head, *part.rows]) if part.rows else []
        lines += [f"  {note}" for note in (part.none if not part.rows else "", *part.notes) if note]
        output.text("\n".join(lines))
    if "html" in comparison:
        output.text(f"{comparison['html']}: the same with charts, for any browser")
    return 0


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table; a first row of names and nothing else is its head."""
    cells = [[on_one_line(text) for text in row] for row in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    return [
        "  "
        + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
