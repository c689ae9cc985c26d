"""An encrypted scheduler and worker processes of this machine, for `dmondrian cluster`.

Relies on `distributed.LocalCluster`. Promises that they listen on this machine alone and end with
the context; that kernels of default forests are compiled before there are workers, and that each
worker has a copy of them of its own: Numba's cache replaces its files atomically, but two processes
that add to one index can each take the same next file name, and the index then names one's code
for the other's arguments. Workers that Dask gave up are started again where none is left, as in
runs on a local cluster.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import dask
from distributed import Client, LocalCluster
from distributed.system import MEMORY_LIMIT

from dmondrian._numba.cache import copy_cache
from dmondrian.cli.tls import Tls
from dmondrian.distributed.cluster.client import (
    CONFIG,
    START_SECONDS,
    encrypted,
    local_size,
    register_plugin,
    scheduler_options,
    warm,
)
from dmondrian.distributed.cluster.local_process import LocalProcess
from dmondrian.distributed.cluster.local_restarts import LocalRestarts
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ClusterError

__all__ = ["local_size", "running", "warm_kernels"]

_ALGORITHMS = (("amf-classifier", 2), ("amf-regressor", 0))  # and numbers of classes


class Running(NamedTuple):
    """A cluster that is running."""

    address: str  # of its scheduler
    dashboard: str | None  # its address, where it has one
    restart_lost: Callable[[], None]  # to be called often


def warm_kernels() -> None:
    """Compile the kernels of the default forests before there are workers; others compile later."""
    for algorithm, n_classes in _ALGORITHMS:
        warm(ForestParameters(algorithm, 2, n_classes, 0))


@contextmanager
def running(
    n_workers: int, threads: int, tls: Tls, scheduler_file: Path, kernels: Path
) -> Iterator[Running]:
    """Run a scheduler and its workers until the context ends."""
    security = encrypted(tls.ca, tls.cert, tls.key)
    has_dashboard = importlib.util.find_spec("bokeh") is not None
    try:
        with (
            dask.config.set(CONFIG),
            _Cluster(
                kernels,
                threads_per_worker=threads,
                memory_limit=MEMORY_LIMIT // n_workers,
                security=security,
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs=scheduler_options(
                    dashboard=has_dashboard, scheduler_file=str(scheduler_file)
                ),
            ) as started,
            Client(started, set_as_default=False) as client,
        ):
            register_plugin(client, LocalProcess())
            started.scale(n_workers)
            client.wait_for_workers(n_workers, timeout=START_SECONDS)
            restarts, workers = LocalRestarts(client), started.scheduler.workers
            yield Running(
                started.scheduler_address,
                started.dashboard_link if has_dashboard else None,
                lambda: restarts.look(len(workers)),
            )
    except (OSError, RuntimeError, TimeoutError) as error:
        raise ClusterError(f"{n_workers} workers could not be started: {error}") from error
    finally:
        scheduler_file.unlink(missing_ok=True)


class _Cluster(LocalCluster):
    """A local cluster whose workers have a copy each of the compiled kernels.

    Parameters
    ----------
    kernels : Path
        Folder of the copies, one per worker.
    **options
        See `distributed.LocalCluster`.
    """

    def __init__(self, kernels: Path, **options: Any) -> None:
        self._kernels = kernels
        super().__init__(n_workers=0, **options)

    def new_worker_spec(self) -> dict[Any, dict[str, Any]]:
        ((name, spec),) = super().new_worker_spec().items()
        worker_cache = self._kernels / str(name)
        copy_cache(worker_cache)
        options = {**spec["options"], "env": {"DMONDRIAN_CACHE_DIR": str(worker_cache)}}
        return {name: {**spec, "options": options}}
