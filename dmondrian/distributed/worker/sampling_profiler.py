"""Dask's sampling profiler, which is stopped where it can freeze a worker.

Every 10 ms Dask looks at the stacks of a worker's threads, for the dashboard. Python 3.11 holds the
list of its threads locked meanwhile. When the garbage collector happens to run there, and in it a
callback or a finalizer in Python, another thread may get the interpreter's lock; if it starts a
thread, both wait for ever, and the worker with them (CPython issue 106883; Dask's issue 8616).
"""

from __future__ import annotations

import logging
import sys

from distributed import Worker

_log = logging.getLogger("dmondrian")

CAN_FREEZE = sys.version_info < (3, 12)  # from then on the collector runs between two instructions


def stop_profiler(worker: Worker) -> bool:
    """Stop the profiler of a worker where it can freeze it; return whether it was stopped."""
    callback = worker.periodic_callbacks.pop("profile", None) if CAN_FREEZE else None
    if callback is None:  # it is disabled
        return False
    callback.stop()
    _log.info("Dask's profiler was stopped on %s: it can freeze Python 3.11", worker.address)
    return True
