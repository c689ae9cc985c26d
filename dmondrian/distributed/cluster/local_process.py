"""Settings of the worker processes of a cluster that is started for a call.

Relies on Dask, and of ours on the names of signals alone, so that a worker that starts has them
before it loads anything else.
Promises that Ctrl-C, and a terminal that is closed, leave such a process to the coordinator.
"""

from __future__ import annotations

import atexit
import gc
import logging
import signal
import threading

from distributed import Worker, WorkerPlugin

from dmondrian.distributed.cluster.interrupt import OF_TERMINALS

_LOGGERS = [
    logging.getLogger(name) for name in ("distributed.worker", "distributed.worker.state_machine")
]
_SHUTDOWN_MESSAGES = (
    "ended with CancelledError",  # a task
    "Failed to communicate with scheduler during heartbeat",
    "Scheduler was unaware of this worker",
)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for messages that follow from a worker or scheduler that shuts down."""
    return not any(message in str(record.msg) for message in _SHUTDOWN_MESSAGES)


def mute_loggers() -> None:
    """Filter out messages that follow from a worker or scheduler that shuts down."""
    for logger in _LOGGERS:
        logger.addFilter(_is_relevant)


def unmute_loggers() -> None:
    """Let records of loggers that were muted through again."""
    for logger in _LOGGERS:
        logger.removeFilter(_is_relevant)


class LocalProcess(WorkerPlugin):
    """Settings of a worker process that ends with the cluster that was started for a call.

    Ctrl-C in a terminal, and closing it, reach all processes of its group; the coordinator decides
    alone. Messages
    about tasks and heartbeats that a closing cluster cuts short are filtered out. And Python does
    not look for garbage in Dask's modules while ours are loaded, nor in all as it ends, which would
    take time.
    """

    name = "dmondrian-local-process"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Ignore a terminal's signals in this worker's process; mute what its shutdown writes."""
        mute_loggers()
        gc.freeze()
        atexit.register(gc.freeze)
        if threading.current_thread() is threading.main_thread():
            for number in OF_TERMINALS:
                signal.signal(number, signal.SIG_IGN)
