"""Training: a job becomes a run folder, and attempts move the run to the end of its stream.

Relies on the plan, the run folder and the coordinator. Promises that the same call goes on with a
run that was stopped or killed and does nothing to one that is finished; that a folder of another
job is refused before anything runs; and that nothing but data, estimator and shards decides the
forest.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from distributed import Client
from sklearn.base import is_classifier

from dmondrian.checkpoint import Manifest, Run
from dmondrian.data import Plan, make_plan
from dmondrian.distributed.cluster import connected, warm
from dmondrian.distributed.coordinator import Coordinator
from dmondrian.distributed.fleet import ANSWER_SECONDS
from dmondrian.distributed.interrupt import Interrupts
from dmondrian.distributed.ledger import Ledger
from dmondrian.distributed.metrics import Progressive
from dmondrian.distributed.progress import Listener, Teller, listener
from dmondrian.distributed.settle import settle
from dmondrian.distributed.shards import ShardHolder
from dmondrian.distributed.stage import is_dask, stage
from dmondrian.distributed.tracks import Limits
from dmondrian.distributed.units import Every, cut, parse_every
from dmondrian.errors import ClusterError, DataError, ParameterError
from dmondrian.parameters import ForestParameters
from dmondrian.store import open_store

MOST_SHARDS = 12
"""Default number of shards: enough to spread over a small cluster, few enough to share reads."""


@dataclass(frozen=True)
class TrainedRun:
    """A run at the end of its stream."""

    run_url: str  # folder of the run: a model that can score, resume and be inspected
    plan: Plan  # the frozen stream
    metrics: dict[str, Any]  # of rows forecast before they were learned; with the "curve"
    summary: dict[str, Any]  # rows, seconds, recoveries and other facts of this attempt

    def to_local(self) -> Any:
        """Return the fitted estimator, in this process."""
        from dmondrian import load

        return load(self.run_url)


def train(
    estimator: Any,
    data: Any,
    *,
    target: Any = None,
    run: str | os.PathLike[str] | None = None,
    client: Client | None = None,
    n_shards: int | None = None,
    checkpoint_every: str | int | None = "100000 rows",
    progressive: bool = True,
    window: int = 4,
    progress: Listener | bool | None = None,
    n_workers: int | None = None,
    threads: int | None = None,
    **plan_options: Any,
) -> TrainedRun:
    """Train a forest on a Dask cluster, from Parquet, with checkpoints.

    The same call goes on with a run that was stopped or killed. In a script, call it under
    ``if __name__ == "__main__":`` unless you pass a client.

    Settings that the estimator leaves open (``alpha="auto"``, ``feature_scales="learned"``) are
    chosen in this process from the first 4096 rows (of up to 16 row groups in turn where the plan
    shuffles) and fixed for the run, also when it has fewer rows; the metrics of these rows know
    their labels to that extent.

    Parameters
    ----------
    estimator : AMFClassifier or AMFRegressor
        Parameters only; it is not changed.
    data : str, path, sequence of them, Dask DataFrame or Dask Array
        Parquet files, folders, globs or URLs. Dask collections are first written as Parquet, a
        file per partition, into the run folder.
    target : str; for a Dask Array a one-dimensional Dask or NumPy array
        What to learn.
    run : str, path or None
        Folder or URL of the run; by default a new folder among the temporary files.
    client : Client or None
        A cluster of the caller; by default worker processes of this machine.
    n_shards : int or None
        Parts the forest is cut into, fixed for the run; by default at most 12.
    checkpoint_every : str, int or None
        "100000 rows", "5 min", a number of rows, or None for the end only; never changes the
        forest.
    progressive : bool
        Forecast each row before it is learned, for metrics and a learning curve; costs a
        prediction per row.
    window : int
        Steps that the fastest shard may be ahead of the slowest.
    progress : callable, bool or None
        Called with :class:`Progress` about once a second; True writes lines to stderr.
    n_workers, threads : int or None
        Size of the local cluster.
    **plan_options
        See :func:`dmondrian.data.make_plan`.

    Returns
    -------
    TrainedRun

    Raises
    ------
    DataError
        Files, columns or rows that cannot be used, or that changed under the run.
    CheckpointError
        The folder belongs to another job, or its checkpoints are damaged.
    ClusterError
        Workers were lost beyond recovery.
    KeyboardInterrupt
        After Ctrl-C, when a checkpoint is taken (the first) or at once (the second).
    """
    every = parse_every(checkpoint_every)
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ParameterError(f"window is {window!r}; expected an integer of at least 1")
    url = open_store(run if run is not None else tempfile.mkdtemp(prefix="dmondrian-run-")).url
    with ExitStack() as stack:
        if is_dask(data):
            client = stack.enter_context(connected(client, n_workers, threads))
            n_workers = threads = None
            data, target = stage(client, data, target, url)
        task = "classification" if is_classifier(estimator) else "regression"
        plan = _plan(data, target, task, plan_options)
        about = _about(estimator, plan, n_shards, progressive, url)
        opened = Run.create(url, about, plan.to_parquet())
        manifest = opened.latest()
        attempt = _Attempt(opened, plan, every, replace(Limits(), window=window))
        ledger = attempt.ledger(manifest)
        if manifest is None or not manifest.final:
            warm(ForestParameters.from_json(opened.run_json["parameters"]))
            client = stack.enter_context(connected(client, n_workers, threads))
            manifest = attempt.go(client, ledger, manifest, Teller(listener(progress)))
    metrics = ledger.progressive.report() if ledger.progressive is not None else {}
    if ledger.progressive is not None and ledger.progressive.weight == 0.0:
        raise DataError(
            f"no row of the data has a positive weight ({plan.schema.weight!r}): there is nothing "
            "to learn"
        )
    return TrainedRun(opened.url, plan, metrics, attempt.summary)


def _plan(data: Any, target: Any, task: str, options: dict[str, Any]) -> Plan:
    if not isinstance(target, str):
        raise ParameterError(f"target is {target!r}; expected the name of the column to learn")
    return make_plan(data, target=target, task=task, **options)


def _about(
    estimator: Any, plan: Plan, n_shards: int | None, progressive: bool, url: str
) -> dict[str, Any]:
    """Return what run.json says; a seed that was drawn for this run before is kept."""
    estimator._validate_params()
    schema = plan.schema
    n_trees = int(estimator.n_estimators)
    if n_shards is None:
        n_shards = min(n_trees, MOST_SHARDS)
    if isinstance(n_shards, bool) or not 1 <= n_shards <= n_trees:
        raise ParameterError(f"n_shards is {n_shards!r}; expected 1 to {n_trees}, the trees")
    params = estimator.get_params(deep=False)
    if not isinstance(params["random_state"], (int, type(None))):
        params["random_state"] = None  # a generator has no JSON; its draw is the seed
    params["n_jobs"] = None  # decides nothing about the forest, and workers have threads
    return {
        "algorithm": estimator.algorithm,
        "parameters": settle(estimator, plan, url),
        "estimator": params,
        "n_estimators": n_trees,
        "shards": [[int(s[0]), int(s[-1]) + 1] for s in np.array_split(range(n_trees), n_shards)],
        "target": schema.target,
        "classes": list(schema.classes) if schema.classes is not None else None,
        "feature_names": list(schema.feature_names),
        "schema": schema.to_json(),
        "plan": plan.digest,
        "progressive": bool(progressive),
    }


def _equip(client: Client) -> None:
    """Give all workers, also those that join later, a registry of shards.

    One that hangs must not hold up the others: the scheduler goes on telling it.
    """

    async def register() -> None:
        await client.register_plugin(ShardHolder())

    try:
        with suppress(TimeoutError):
            client.sync(register, callback_timeout=ANSWER_SECONDS)
    except Exception as error:
        raise ClusterError(
            f"the workers cannot use dmondrian ({type(error).__name__}: {error}); install the same "
            f"version on all hosts"
        ) from error


class _Attempt:
    """One try at bringing a run to the end of its stream."""

    def __init__(self, run: Run, plan: Plan, every: Every, limits: Limits) -> None:
        self.run, self.plan, self.every, self.limits = run, plan, every, limits
        self.units = cut(plan.blocks, every=every.rows)
        self.summary: dict[str, Any] = {}

    def ledger(self, manifest: Manifest | None) -> Ledger:
        """Return the totals at a checkpoint, ready to go on."""
        metrics = manifest.metrics if manifest is not None else {}
        position = manifest.position if manifest is not None else 0
        progressive = None
        if self.run.run_json["progressive"]:
            saved = metrics.get("progressive")
            progressive = (
                Progressive.from_json(saved) if saved else Progressive(self.plan.schema.task)
            )
        if any(unit.start < position < unit.stop for unit in self.units):
            # Another interval cut the units elsewhere: cut them at the checkpoint as well.
            done = [block for block in self.plan.blocks if block.position < position]
            head = cut(tuple(done), every=self.every.rows)
            tail = cut(self.plan.blocks[len(done) :], every=self.every.rows)
            moved = (
                replace(u, index=u.index + len(head), first=u.first + len(done),
                        last=u.last + len(done))
                for u in tail
            )  # fmt: skip
            self.units = [*head, *moved]
        settled = sum(unit.stop <= position for unit in self.units)
        self._summarise(position, 0.0, None)
        return Ledger(
            self.units,
            [block.position for block in self.plan.blocks],
            len(self.run.run_json["shards"]),
            int(self.run.run_json["n_estimators"]),
            progressive,
            metrics.get("counts", {}),
            settled,
        )

    def go(
        self, client: Client, ledger: Ledger, manifest: Manifest | None, teller: Teller
    ) -> Manifest | None:
        """Drive the coordinator to the end; note the attempt in the run folder."""
        _equip(client)
        numbers = range(len(self.run.run_json["shards"]))
        digests = {n: manifest.shards[n]["digest"] if manifest else None for n in numbers}
        resumed = manifest.position if manifest else 0
        coordinator = Coordinator(
            client,
            self.run,
            ledger,
            digests,
            self.every,
            self.plan.n_rows,
            manifest,
            self.limits,
            teller,
        )
        began, started = time.time(), time.monotonic()
        outcome = "failed"
        try:
            with Interrupts() as interrupts:
                is_finished = coordinator.drive(interrupts)
            outcome = "finished" if is_finished else "stopped"
        except KeyboardInterrupt:
            outcome = "interrupted"
            raise
        finally:
            self._summarise(resumed, time.monotonic() - started, coordinator)
            self._note(began, outcome, coordinator)
        if not is_finished:
            position = coordinator.manifest.position if coordinator.manifest else 0
            raise KeyboardInterrupt(
                f"stopped at position {position} of {self.plan.n_rows}, which is saved; run the "
                f"same command again to go on"
            )
        return coordinator.manifest

    def _summarise(self, resumed: int, seconds: float, done: Coordinator | None) -> None:
        rows = self.plan.n_rows - resumed
        if done is not None:
            rows = done.progress().rows - resumed
        self.summary = {
            "n_rows": self.plan.n_rows,
            "resumed_at": resumed,
            "rows": rows if done is not None else 0,
            "seconds": seconds,
            "rows_per_second": rows / seconds if seconds > 0 else 0.0,
            "checkpoints": done.checkpoints if done is not None else 0,
            "recoveries": done.recoveries if done is not None else 0,
            "rows_replayed": done.replayed if done is not None else 0,
            "workers": len(done.hosts) if done is not None else 0,
            "shards": len(self.run.run_json["shards"]),
        }

    def _note(self, began: float, outcome: str, coordinator: Coordinator) -> None:
        info = {
            "began": began,
            "ended": time.time(),
            "outcome": outcome,
            "coordinator": socket.gethostname(),
            "workers": sorted(coordinator.hosts),
            "summary": self.summary,
        }
        try:
            self.run.attempt(info)
        except Exception as error:  # noqa: BLE001 - a lost note must not hide the outcome
            warnings.warn(f"the attempt could not be noted: {error}", stacklevel=2)
