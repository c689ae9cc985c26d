"""Limits of open files: a scheduler has some connections to each worker, and each is a file.

Relies on :mod:`dmondrian._memory_limit`. Promises that too low a limit is reported before a run,
with what to do, and raised as far as the process may raise it itself.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from distributed import Client

from dmondrian._memory_limit import raise_limit
from dmondrian.distributed.cluster.workers import REPLY_SECONDS

FILES_OF_WORKER = 6
"""Open files of a scheduler for each worker that trains (`benchmarks/reports/scaling.md`)."""

FILES_OF_PROCESS = 100
"""Open files of a scheduler without workers, and some to spare."""

_log = logging.getLogger("dmondrian")


def check_open_files(client: Client, n_workers: int) -> None:
    """Raise the limits of the scheduler and of this process; warn where they stay too low."""
    n_files = FILES_OF_PROCESS + FILES_OF_WORKER * n_workers
    limits = {"this process": raise_limit(n_files)}

    async def ask() -> int | None:
        return await client.run_on_scheduler(raise_limit, n_files)

    with suppress(OSError, TimeoutError):
        limits["the scheduler"] = client.sync(ask, callback_timeout=REPLY_SECONDS)
    for who, limit in limits.items():
        if limit is not None and limit < n_files:
            most = max(0, (limit - FILES_OF_PROCESS) // FILES_OF_WORKER)
            _log.warning(
                "%s may open %s files, enough for some %s workers, and there are %s: connections "
                "may fail. Raise the limit where it is started: ulimit -n %s",
                who, limit, most, n_workers, max(65_536, n_files),
            )  # fmt: skip
