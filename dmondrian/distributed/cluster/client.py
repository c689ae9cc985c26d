"""Connections to the cluster of a call: the caller's, or local workers for its duration.

Relies on dask.distributed. Promises that a client passed by the caller is left open, that a cluster
started here is always closed, that Ctrl-C reaches the caller's process alone (local workers finish
their step, so that a clean stop can take a checkpoint), and that an unencrypted connection to
another host raises a warning.
"""

from __future__ import annotations

import ipaddress
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import dask
import numpy as np
from distributed import Client, LocalCluster, Scheduler, WorkerPlugin
from distributed.scheduler import DEFAULT_EXTENSIONS
from distributed.security import Security

from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.checkpoint.deltas import warm_marks
from dmondrian.checkpoint.summary import Summary
from dmondrian.distributed.cluster.interrupt import DeferredInterrupt, without_terminal
from dmondrian.distributed.cluster.local_process import (
    LocalProcess,
    mute_loggers,
    unmute_loggers,
)
from dmondrian.distributed.cluster.workers import REPLY_SECONDS
from dmondrian.drift.drift_forest import DriftForest, forest_from_state
from dmondrian.drift.scaled_trees import FIRST_SCALED, ScaledTrees
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ClusterError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.prequential.forecasts import forecast_and_learn_all

START_SECONDS = 120.0
"""How long local workers may take to start; a cold file system needs tens of seconds."""

PROCESS_ROWS = 1_000_000
"""Rows from which on worker processes are worth starting to use a model."""

MOST_LOCAL = 1024
"""Most processes of a local cluster, and threads of each: more are a slip, and end in no memory."""

CONFIG = {
    "distributed.scheduler.worker-ttl": "60 s",  # silent workers are removed after a minute
    "distributed.scheduler.work-stealing": False,  # orders are pinned: stealing is useless
    # By default a LocalCluster removes a worker 15 seconds after it was lost, which a process that
    # is still starting exceeds.
    "distributed.deploy.lost-worker-timeout": f"{START_SECONDS:.0f} s",
    "distributed.worker.profile.enabled": False,  # samples every 10 ms, for the dashboard
    # By default each process checks its event loop 50 times a second and its memory 10 times, which
    # takes time from learning on a machine without spare processors.
    "distributed.admin.tick.interval": "1 s",
    "distributed.worker.memory.monitor-interval": "500 ms",
    # What processes that run for months keep for a dashboard grows by each task up to these bounds:
    # 10,000 lines, 1,000 transitions in each of many logs, 7,200 samples, 100 graphs by default.
    "distributed.admin.log-length": 100,
    "distributed.admin.low-level-log-length": 100,
    "distributed.admin.system-monitor.log-length": 120,
    "distributed.diagnostics.computations.max-history": 1,
    "distributed.diagnostics.erred-tasks.max-history": 10,
    # By default Dask has the C library return each array to the system at once, and clearing the
    # pages of the next one costs as much as encoding a block. At most 16 MiB a thread are kept.
    # Values in the environment take precedence.
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 4 << 20,
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 16 << 20,
}


class NoSpans:
    """Scheduler extension in place of the one that records spans of tasks, for a dashboard.

    That one keeps a record of each time that tasks came and went for as long as the scheduler
    lives, and by its number, which tasks carry, each worker keeps a dozen sums more: of a process
    that is followed some ten kilobytes at each look.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        """Take the scheduler, as extensions are given it."""

    def observe_tasks(self, tasks: Iterable[Any], **_: Any) -> dict[Any, Any]:
        """Return the spans of tasks that can be run now: none."""
        return {}

    def heartbeat(self, worker: Any, data: Any) -> None:
        """Take what a worker has measured by span: nothing."""


def scheduler_options(**options: Any) -> dict[str, Any]:
    """Return the options of a scheduler whose memory does not grow with the tasks it has had."""
    extensions = {**DEFAULT_EXTENSIONS, "spans": NoSpans}
    extensions.pop("stealing", None)  # as `CONFIG` has it
    return {**options, "extensions": extensions}


_PRIVATE = ("tls", "wss", "inproc")  # protocols that encrypt, or that leave no process


class OwnClient(Client):
    """A client that closes itself where it cannot connect.

    Left to the garbage collector, it may be closed in a thread that a later client waits for while
    holding the lock that closing needs: a deadlock.
    """

    def start(self, **how: Any) -> None:
        """Connect to the scheduler."""
        try:
            super().start(**how)
        except BaseException:
            self.close()
            raise


def local_size(n_workers: int | None, threads: int | None) -> tuple[int, int]:
    """Return the processes and threads of a local cluster; by default one process per eight cores.

    Shards of one process share decoded blocks, orders and forecasts.
    """
    for name, value in (("n_workers", n_workers), ("threads", threads)):
        if value is not None and (isinstance(value, bool) or not 1 <= value <= MOST_LOCAL):
            raise ParameterError(
                f"{name} is {value!r}; expected an integer from 1 to {MOST_LOCAL:,}, as all of a "
                "local cluster is on one machine"
            )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    if n_workers is None:
        n_workers = max(1, -(-cores // 8) if threads is None else cores // threads)
    return n_workers, threads or max(1, cores // n_workers)


@contextmanager
def connected(
    client: Client | None,
    n_workers: int | None = None,
    threads: int | None = None,
    processes: bool = True,
    security: Security | None = None,
    memory_limit: int | None = None,
) -> Iterator[Client]:
    """Yield the caller's client, or that of a local cluster which is closed on exit.

    Parameters
    ----------
    client : Client or None
    n_workers, threads : int or None
        Size of the local cluster.
    processes : bool
        Use worker processes; otherwise threads of this process, which start faster.
    security : Security or None
        Certificates of the local cluster; see :func:`encrypted`.
    memory_limit : int or None
        Bytes of each local worker; by default an equal share of the machine's.

    Raises
    ------
    ClusterError
        The local workers do not start.
    ParameterError
        A size is not a positive integer, or was given together with a client.
    """
    if client is not None:
        if n_workers is not None or threads is not None:
            raise ParameterError("n_workers and threads size a local cluster; a client has its own")
        if client.asynchronous:
            raise ParameterError("the client is asynchronous; expected Client(asynchronous=False)")
        warn_if_plaintext(getattr(client.scheduler, "address", "inproc://"))
        yield client
        return
    n_workers, threads = local_size(n_workers, threads)
    options = {
        "n_workers": n_workers,
        "threads_per_worker": threads,
        "processes": processes,
        "security": security,
        **({} if memory_limit is None else {"memory_limit": memory_limit}),
    }
    with dask.config.set(CONFIG), ExitStack() as stack:
        if not processes:
            mute_loggers()
            stack.callback(unmute_loggers)
        local_client = stack.enter_context(_local(options))
        if processes:
            register_plugin(local_client, LocalProcess())
        yield local_client


def register_plugin(client: Client, plugin: WorkerPlugin) -> None:
    """Set a plugin up on all workers and on those that join later, though some may be lost.

    The scheduler keeps the plugin before it sends it to the workers. Does not wait for one that
    hangs: the scheduler goes on trying.

    Raises
    ------
    Exception
        What the plugin raised on a worker.
    """

    async def register() -> None:
        await client.register_plugin(plugin)

    try:
        client.sync(register, callback_timeout=REPLY_SECONDS)
    except OSError as error:
        if error.errno is not None:  # the connections of Dask, and its timeouts, give no number
            raise


class Connection:
    """A client that is connected on first use.

    Parameters
    ----------
    stack : ExitStack
        Closes what was opened.
    client, n_workers, threads
        As in `connected`.
    """

    def __init__(
        self,
        stack: ExitStack,
        client: Client | None,
        n_workers: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._stack = stack
        self._how = (client, n_workers, threads)
        self._client: Client | None = None

    def __call__(self) -> Client:
        """Return the client."""
        if self._client is None:
            self._client = self._stack.enter_context(connected(*self._how))
        return self._client


def connected_for(
    n_rows: int,
    client: Client | None,
    n_workers: int | None,
    threads: int | None,
    memory_limit: int | None = None,
) -> AbstractContextManager[Client]:
    """Return `connected` for reading `n_rows` rows: threads for few rows, processes for many.

    A memory limit needs processes, because threads cannot be limited.
    """
    is_large = n_rows >= PROCESS_ROWS or n_workers is not None or memory_limit is not None
    return connected(client, n_workers, threads, processes=is_large, memory_limit=memory_limit)


def encrypted(ca: str, cert: str, key: str) -> Security:
    """Return the security of a cluster that accepts only certificates of one authority.

    Parameters
    ----------
    ca, cert, key : str
        PEM files: the authority, and one certificate with its key for every role.
    """
    roles = ("client", "scheduler", "worker")
    return Security(
        require_encryption=True,
        tls_ca_file=ca,
        **{f"tls_{role}_cert": cert for role in roles},
        **{f"tls_{role}_key": key for role in roles},
    )


def warn_if_plaintext(address: str) -> None:
    """Warn if the connection to a scheduler on another host is not encrypted.

    The warning comes from one line with one text per address, so that Python's filters (and the
    command line's) show it once.
    """
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme in _PRIVATE or _is_loopback(parts.hostname or ""):
        return
    warnings.warn(
        f"the connection to the scheduler {address} is not encrypted: everybody on the network can "
        "read the rows and the forest, and can run any code on the workers; use a tls:// scheduler "
        "and give tls_ca, tls_cert and tls_key (cluster/README.md)",
        stacklevel=1,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _local(size: dict[str, Any]) -> Iterator[Client]:
    n_workers = size["n_workers"]
    options: dict[str, Any] = {
        **size,
        # By default the scheduler serves HTTP to all hosts on one fixed port.
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": scheduler_options(dashboard=False),
    }
    with ExitStack() as stack:
        # A cluster interrupted while it starts can neither be used nor closed.
        with DeferredInterrupt():
            try:
                cluster = stack.enter_context(without_terminal(lambda: LocalCluster(**options)))
            except (OSError, RuntimeError, TimeoutError) as error:
                what = str(error).rstrip(".")
                raise ClusterError(
                    f"{n_workers} local workers could not be started: {what}; what one wrote as it "
                    "ended has the reason, and one that wrote nothing was killed, as where memory "
                    "is short: start fewer; in a script, call this under "
                    '`if __name__ == "__main__":`, because worker processes import the script'
                ) from error
            client = stack.enter_context(Client(cluster, set_as_default=False))
        try:
            client.wait_for_workers(n_workers, timeout=START_SECONDS)
        except TimeoutError:
            raise ClusterError(
                f"{n_workers} local workers did not start in {START_SECONDS:.0f} seconds; give "
                "them more memory or more time, or start fewer"
            ) from None
        yield client


def warm(
    parameters: ForestParameters, calibrate: bool | str = False, progressive: bool = True
) -> None:
    """Compile the kernels of training and saving, so that worker processes load them from disk."""
    if parameters.follows_stream:
        _warm_members(parameters)
        return
    forest = Forest(parameters, [0], calibrate=calibrate)
    X = np.zeros((2, parameters.n_features), dtype=np.float32)
    X[1] = 1.0
    y = np.zeros(2)
    forest.update(X, y, None)
    forest.update(X, y, np.ones(2))
    forest.predict_sums(X)
    forest.freeze()  # as forecasts of many rows do
    forest.predict_sums(X)
    forest.update(0.5 * X, y, None)  # re-encodes boxes whose columns were stored as bits
    if progressive and not parameters.learns_jointly:
        for w in (None, np.ones(2)):
            forecast_and_learn_all(forest, X, y, w, position=4, n_trees=1, samples=bool(calibrate))
    encode_forest(*forest.stored())
    warm_marks(forest)
    Summary.of(forest)


def _warm_members(parameters: ForestParameters) -> None:
    """Load the kernels of a forest that follows the stream, as :func:`warm` does for others."""
    following = parameters.following
    delay = min(following.delay, 64)  # a long block has no kernels of its own
    drift = replace(following, delay=delay if following.period is None else 64)
    forest = DriftForest(parameters.replace(drift=replace(drift, period=None)), [0])
    X = np.random.default_rng(0).random((100, parameters.n_features), dtype=np.float32)
    X[:, 1:] = X[:, 1:] > 0.5  # boxes whose columns are stored as bits, and later are not
    y = np.where(X[:, 0] > 0.5, float(parameters.n_classes != 1), 0.0)  # sets are found by labels
    for w in (None, np.ones(len(X))):
        forest.update(forest.prepare(X), y, w)
        X[:, 1:] *= 0.5
    if forest.scaled is not None:
        kept, scaled = LabelledRows(X, y, np.ones(len(X))), ScaledTrees(forest.parameters, [0])
        scaled.forest = scaled.grown_after(0, FIRST_SCALED, lambda: kept, 1)
        for w in (np.empty(0), kept.w):
            scaled.forecast_and_learn(X, y, w, 1)
            scaled.learn(X, y, w, 1)
        scaled.forecast(X)
        if scaled.forest is not None:
            scaled.forest.freeze()  # as trees of a search are
            scaled.forest.predict_sums(X)
    forest.predict_proba(X)
    forest.freeze()  # as forecasts of many rows do
    forest.predict_proba(X)
    forest_from_state(*decode_forest(encode_forest(*forest.stored())))
    Summary.of(forest)
