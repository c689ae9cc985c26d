"""`dmondrian report`: a run as a page of HTML.

Relies on :mod:`dmondrian.report`; starts no cluster and changes nothing in the run.
"""

from __future__ import annotations

import argparse

from dmondrian._text.wording import size
from dmondrian.cli.output import Output


def report(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian report --help`."""
    from dmondrian.report import write_report

    file = write_report(
        arguments.model, arguments.out, partial_dependence=arguments.partial_dependence
    )
    values = {"run": arguments.model, "out": str(file), "bytes": file.stat().st_size}
    output.event("reported", values)
    output.text(f"{file}: {size(values['bytes'])}; it opens in any browser, without a network")
    return 0
