"""Restarts of a local cluster's workers that Dask has given up.

A `LocalCluster` ends a worker that is not back within ``distributed.deploy.lost-worker-timeout`` of
its loss, by default 15 seconds, which a process on a busy machine exceeds; and one whose process
fails as it starts. It keeps wanting as many workers as it was scaled to, and starts none of them
until somebody scales it.

Relies on a cluster's record of the workers that it wants and has. Promises that a cluster gets no
more workers than it was scaled to, and none while one of them lives; that those which are starting
are left alone, but for ones under names of earlier workers that take longer than a grace; and that
restarts are few, each with a warning. Workers that were retired, and not scaled away, are among
those that the cluster still wants, and started again where none is left.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from weakref import WeakKeyDictionary

import dask
from distributed import Client, LocalCluster
from distributed.core import Status

from dmondrian._text.wording import counted

_log = logging.getLogger("dmondrian")

RESTARTS = 3
"""Most restarts by one watcher in an hour."""

GRACE_SECONDS = 20.0
"""Seconds without a worker before the first: those that somebody scaled to may be starting."""

PAUSE_SECONDS = 10.0
"""Least seconds between two: what made the last one fail, such as short memory, may pass."""

TIMEOUT = "distributed.deploy.lost-worker-timeout"
"""Dask's setting of the seconds after which a lost worker is given up."""

_HOUR = 3600.0
_ENDED = (Status.closing, Status.closed, Status.failed)
_lock = threading.Lock()  # a run and the evaluation of its checkpoints may watch one cluster
_started: WeakKeyDictionary[LocalCluster, set[Hashable]] = WeakKeyDictionary()  # names of workers


class LocalRestarts:
    """Watcher of the local cluster of a client, if it has one in this process.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client) -> None:
        cluster = getattr(client, "cluster", None)
        self._cluster = cluster if isinstance(cluster, LocalCluster) else None
        self._restarts: list[float] = []  # of the last hour; monotonic seconds
        self._alone_since: float | None = None  # first look without a worker that is wanted

    @property
    def n_wanted(self) -> int:
        """How many workers a local cluster is to have; 0 without one."""
        cluster = self._cluster
        if cluster is None or cluster.status != Status.running:
            return 0
        return len(cluster.worker_spec)

    def look(self, n_living: int) -> None:
        """Restart the workers that were given up, if none lives.

        Parameters
        ----------
        n_living : int
            Workers that the scheduler knows.
        """
        cluster = self._cluster
        if cluster is None:
            return
        with _lock:
            there = dict(cluster.workers)
            started = _started.setdefault(cluster, set())
            started &= set(cluster.worker_spec)  # a cluster that was scaled down gives names again
            started.update(there)
            # A name that was never there may be that of a worker that starts for the first time.
            lost = [
                name
                for name in list(cluster.worker_spec)
                if name in started and (name not in there or there[name].status in _ENDED)
            ]
            n_wanted = self.n_wanted
            if n_living or not n_wanted:
                self._alone_since = None
                return
            if not self._is_due(bool(lost)):
                return
            for name in lost:  # under other names: an old process that ends may still have its own
                cluster.worker_spec.update(cluster.new_worker_spec())
                cluster.worker_spec.pop(name, None)
            cluster.scale(n_wanted)
        _log.warning(
            "Dask gave up %s of the %s of the local cluster %s: starting as many again (restart %s "
            "of at most %s in an hour). It gives up one that fails as it starts, or is not back "
            "within %s of its loss, as on a busy machine (%s)",
            len(lost), counted(n_wanted, "worker"), cluster.scheduler_address,
            len(self._restarts), RESTARTS, dask.config.get(TIMEOUT), TIMEOUT,
        )  # fmt: skip

    def _is_due(self, is_needed: bool) -> bool:
        """Return whether a restart that is needed may be now, and count it."""
        now = time.monotonic()
        if self._alone_since is None:
            self._alone_since = now
        if not is_needed or now - self._alone_since < GRACE_SECONDS:
            return False
        self._restarts = [at for at in self._restarts if now - at < _HOUR]
        is_due = not self._restarts or now - self._restarts[-1] >= PAUSE_SECONDS
        if is_due := is_due and len(self._restarts) < RESTARTS:
            self._restarts.append(now)
        return is_due

    def what_was_done(self) -> str:
        """Return what to know of a local cluster that is left without workers, for a message."""
        n = len(self._restarts)
        again = f", also not when started again ({counted(n, 'time')})" if n else ""
        return (
            f"none of the {counted(self.n_wanted, 'worker')} of this local cluster came back"
            f"{again}: what they wrote has the reason, such as short memory or disk"
        )
