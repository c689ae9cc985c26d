"""Worker processes with nannies that can be killed, stopped, left for dead, and made whole again.

Relies on a `LocalCluster` for its scheduler and event loop alone: its own list of workers cannot
cope with one that is killed for good. Promises that `restore` ends with the wanted number of
workers, all answering, without hooks.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dask
from distributed import Client, LocalCluster, Nanny
from distributed.comm import CommClosedError
from distributed.core import Status

from tests.chaos import hooks

MEMORY_LIMIT = 700 * 2**20
"""Bytes; a worker that trains on small data uses a half of it. Little is left to be filled by a
worker that swells, because a busy machine may give out no more than 20 MB a second."""

PATIENCE = 120.0
"""Seconds that anything may take on a busy machine."""

CONFIG = {
    "distributed.scheduler.work-stealing": False,
    "distributed.comm.timeouts.connect": f"{PATIENCE:.0f} s",
    "distributed.worker.memory.monitor-interval": "50 ms",
    "distributed.worker.memory.pause": False,  # nothing but the nanny's end, at 95 %
    "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS": 1,
}


def wait_until(is_so: Any, what: str) -> None:
    """Wait for a claim to become true."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} seconds in vain for {what}"
        time.sleep(0.02)


class Workers:
    """A scheduler, its worker processes, and which of them are stopped."""

    def __init__(self, cluster: LocalCluster, client: Client, n_workers: int) -> None:
        self.client = client
        self.n_workers = n_workers
        self.stopped: dict[str, int] = {}  # address: process
        self._cluster = cluster
        self._nannies: list[Nanny] = []
        self.restore()

    @property
    def scheduler(self) -> str:
        return str(self._cluster.scheduler_address)

    def living(self) -> list[str]:
        """Addresses of workers that can be hurt, in order."""
        assert self.client.scheduler is not None
        ask = self.client.scheduler.identity
        known = self.client.sync(ask, n_workers=-1, callback_timeout=60.0)["workers"]
        running = {a for a, w in known.items() if w["status"] == "running"}
        own = {n.worker_address for n in self._nannies if n.status == Status.running}
        return sorted(running & own - self.stopped.keys())

    def pid(self, address: str) -> int:
        """Return the process of a worker, which need not answer."""
        return int(self._nanny(address).pid)

    def run(self, address: str, task: Any, *arguments: Any) -> None:
        """Call a function inside a worker, which may die of another fault meanwhile."""
        with suppress(CommClosedError):
            self.client.run(task, *arguments, workers=[address])

    def kill(self, address: str, is_for_good: bool = False) -> None:
        """SIGKILL; the nanny starts another process unless it is for good."""
        nanny = self._nanny(address)
        pid = int(nanny.pid)
        if is_for_good:
            nanny.status = Status.closing_gracefully  # it then ends with its process
        os.kill(pid, signal.SIGKILL)

    def stop(self, address: str) -> None:
        """SIGSTOP."""
        self.stopped[address] = self.pid(address)
        os.kill(self.stopped[address], signal.SIGSTOP)

    def wake(self, address: str) -> None:
        """SIGCONT."""
        with suppress(ProcessLookupError):
            os.kill(self.stopped.pop(address), signal.SIGCONT)

    def retire(self, address: str) -> None:
        """Have the scheduler send a worker away, in good order."""
        self.client.retire_workers([address], close_workers=True)

    def join(self) -> None:
        """Start one more worker."""

        async def start() -> Nanny:
            return await Nanny(
                self.scheduler,
                nthreads=1,
                memory_limit=MEMORY_LIMIT,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
                env=dict(os.environ),  # a process that is forked has that of long ago
            )

        self._nannies.append(self._cluster.sync(start))

    def restore(self) -> None:
        """Have as many workers as in the beginning, all awake and without hooks."""
        for address in list(self.stopped):
            self.wake(address)
        wait_until(self._is_settled, "nannies to start their workers")
        self._nannies = [n for n in self._nannies if n.status == Status.running]
        while len(self._nannies) > self.n_workers:
            self._cluster.sync(self._nannies.pop().close)
        while len(self._nannies) < self.n_workers:
            self.join()
        wait_until(lambda: len(self.living()) == self.n_workers, "workers")
        for address in self.living():
            self.run(address, hooks.disarm)

    def left_behind(self, url: str) -> tuple[int, int]:
        """Return tasks that the scheduler knows and workers that hold something of a run."""
        tasks = self.client.run_on_scheduler(hooks.tasks_known)
        # A worker that restarts does not answer, and holds nothing.
        held = self.client.run(hooks.holds, url=url, on_error="ignore")
        return tasks, sum(held.values())

    def close(self) -> None:
        """End all worker processes."""
        for address in list(self.stopped):
            self.wake(address)
        for nanny in self._nannies:
            self._cluster.sync(nanny.close)

    def _is_settled(self) -> bool:
        """Whether every nanny has a worker that the scheduler knows, or has ended."""
        running = [n for n in self._nannies if n.status == Status.running]
        is_quiet = all(n.status in (Status.running, Status.closed) for n in self._nannies)
        return is_quiet and len(self.living()) == len(running)

    def _nanny(self, address: str) -> Nanny:
        return next(n for n in self._nannies if n.worker_address == address)


@contextmanager
def workers(n_workers: int) -> Iterator[Workers]:
    """Worker processes that inherit the environment of this moment."""
    with (
        dask.config.set(CONFIG),
        LocalCluster(
            n_workers=0,
            processes=True,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        found = Workers(cluster, client, n_workers)
        try:
            yield found
        finally:
            found.close()
