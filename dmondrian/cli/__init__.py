"""The command line: `dmondrian train`, `score`, `evaluate`, `describe`, `schema` and `cluster`.

Relies on the public functions of the layers below; imports dask, numba and pyarrow only inside the
command that needs them, so that `--help` and mistakes in a job file answer at once.
"""

from dmondrian.cli.app import main

__all__ = ["main"]
