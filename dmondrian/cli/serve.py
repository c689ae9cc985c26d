"""`dmondrian serve`: answer forecasts over HTTP, and learn labels that come later.

Relies on :mod:`dmondrian.serving` for all the work. Promises to end with code 0 when it was asked
to end.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from dmondrian.cli.output import Output


def serve(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian serve --help`."""
    from dmondrian.serving.server import Options
    from dmondrian.serving.server import serve as run

    options = Options(
        host=arguments.host,
        port=arguments.port,
        learn=arguments.learn,
        max_body=arguments.max_body,
        reload_seconds=arguments.reload_every,
        most_waiting=arguments.waiting,
        save_rows=arguments.save_rows,
        save_seconds=arguments.save_every,
    )

    def started(url: str, about: Mapping[str, Any]) -> None:
        output.event("serving", {"url": url, **about})
        learns = ", and learns labels" if about["learns"] else ""
        output.text(
            f"{arguments.model} at row {about['position']:,} answers at {url}{learns}; "
            f"{url}/openapi.json describes requests"
        )

    run(arguments.model, options, started)
    return 0
