"""`dmondrian report`: a run as a page of HTML.

Relies on :mod:`dmondrian.report`; starts no cluster and changes nothing in the run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dmondrian._text.wording import size
from dmondrian.cli.output import Output
from dmondrian.errors import ParameterError


def report(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian report --help`."""
    ending = Path(arguments.out).suffix
    if ending.lower() not in (".html", ".htm"):
        raise ParameterError(
            f"--out {arguments.out}: expected a file that ends in .html, got "
            f"{repr(ending) if ending else 'no ending'}: a report is a page for browsers, which "
            "print it as PDF"
        )
    from dmondrian.report import write_report

    file = write_report(
        arguments.model, arguments.out, partial_dependence=arguments.partial_dependence
    )
    values = {"run": arguments.model, "out": str(file), "bytes": file.stat().st_size}
    output.event("reported", values)
    output.text(f"{file}: {size(values['bytes'])}; it opens in any browser, without a network")
    return 0
