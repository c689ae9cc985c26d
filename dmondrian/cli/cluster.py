"""The cluster that a command works on: a local one, or one that somebody else runs.

Relies on `dmondrian.distributed`, which starts a local cluster of worker processes when it is given
no client. Promises to close the connection it opened, and never a cluster it did not start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from dmondrian.errors import ClusterError, JobError

LOCAL = "local"
# Seconds to wait for a scheduler; longer ones are better told than endured.
_CONNECT_TIMEOUT = 30


@contextlib.contextmanager
def connected(scheduler: str, workers: int | None, threads: int | None) -> Iterator[dict[str, Any]]:
    """Connect as asked; yield the keyword arguments for `dmondrian.distributed`.

    Parameters
    ----------
    scheduler : str
        ``"local"``, an address such as ``tcp://host:8786``, or the path of a scheduler file.
    workers, threads : int or None
        Worker processes and threads per process of a local cluster.

    Raises
    ------
    JobError
        For `workers` or `threads` with a cluster that is not local.
    ClusterError
        When the scheduler does not answer.
    """
    if scheduler == LOCAL:
        yield {"client": None, "n_workers": workers, "threads": threads}
        return
    if workers is not None or threads is not None:
        raise JobError(
            f"workers and threads are for a local cluster; the scheduler {scheduler!r} already has "
            "its workers: leave them out"
        )
    from distributed import Client

    is_file = "://" not in scheduler and os.path.exists(scheduler)
    place = {"scheduler_file": scheduler} if is_file else {"address": scheduler}
    try:
        client = Client(**place, timeout=_CONNECT_TIMEOUT)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler at {scheduler!r} ({error}); give a running scheduler's address, "
            f"its scheduler file, or {LOCAL!r}"
        ) from error
    with client:
        yield {"client": client}
