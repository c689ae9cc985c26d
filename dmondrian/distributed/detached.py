"""Detached jobs: the coordinator runs on the cluster, and the submitting client may disconnect.

Relies on Dask to restart the coordinator's task on another worker when its worker dies (three
times, or the scheduler's ``allowed-failures``), and on the run's lease to let it take over then.
Promises that the coordinator occupies no thread of the worker's pool, that mistakes in the job are
raised before it is submitted, and that later failures are recorded in the run folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import Client, fire_and_forget, worker_client

from dmondrian.checkpoint import jobs
from dmondrian.data.paths import check_paths, rooted
from dmondrian.data.source import from_anywhere
from dmondrian.distributed.cluster.alerts import Alerts
from dmondrian.distributed.cluster.client import connected
from dmondrian.distributed.scoring.heartbeat import Heartbeat
from dmondrian.distributed.scoring.preflight import check_readable, check_score_options
from dmondrian.distributed.scoring.score import score
from dmondrian.distributed.training.attempt import attempt_options
from dmondrian.distributed.training.lagged_data import refuse_with_lags
from dmondrian.distributed.training.run_folder import checked_folder
from dmondrian.distributed.training.run_setup import IN_MEMORY, prepare_run
from dmondrian.distributed.training.stage_dask import is_dask
from dmondrian.distributed.training.train import bring_to_end, checks_of
from dmondrian.distributed.training.validation import HeldOutData
from dmondrian.errors import ParameterError
from dmondrian.store import Store, open_store


@dataclass(frozen=True)
class Job:
    """Arguments of the coordinator's task: no rows, no trees, no credentials."""

    id: str
    run: str
    estimator: Any
    data: Any
    target: str | None
    run_options: Mapping[str, Any]
    plan_options: Mapping[str, Any]
    checkpoint_every: str | int | None
    window: int | None
    keep: int | None = None
    score: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of `score`
    validation: Any = None  # held-out data
    alerts: Mapping[str, Any] | None = field(default=None, repr=False)  # a URL may be secret
    lags: Mapping[str, Any] | None = None


def submit(
    estimator: Any,
    data: Any,
    *,
    target: str | None = None,
    run: str | os.PathLike[str],
    client: Client,
    n_shards: int | None = None,
    first_tree: int = 0,
    checkpoint_every: str | int | None = "auto",
    progressive: bool = True,
    row_parts: int | None = None,
    keep: int | None = None,
    window: int | None = None,
    score: Mapping[str, Any] | None = None,
    validation: Any = None,
    alerts: Mapping[str, Any] | None = None,
    lags: Mapping[str, Any] | None = None,
    root: str | os.PathLike[str] | None = None,
    **plan_options: Any,
) -> str:
    """Submit a training job to a cluster and return at once.

    Parameters
    ----------
    estimator, data, target, run, n_shards, first_tree, checkpoint_every, progressive, row_parts, \
    keep, window
        As in :func:`dmondrian.distributed.train`; data, run and where scores go must be reachable
        from here and from the workers. Files only: Dask collections end with
        their client.
    client : Client
        Of a cluster that outlives this process.
    validation : str, path or sequence of them, or None
        As in :func:`dmondrian.distributed.train`.
    alerts : mapping or None
        As in :func:`dmondrian.distributed.train`; the worker that coordinates calls what they name.
    score : mapping or None
        "data" and "out" of :func:`dmondrian.distributed.score`, and "keep", "details", "delta" and
        "memory_limit" if needed, run after training. The data must already exist and have the
        columns of the model.
    lags : mapping or None
        As in :func:`dmondrian.distributed.train`; this process writes the rows with them.
    root : str, path or None
        As in :func:`dmondrian.distributed.train`.
    **plan_options
        See :func:`dmondrian.data.make_plan`.

    Returns
    -------
    str
        URL of the run. ``dmondrian describe URL --follow`` watches it, ``dmondrian cancel URL``
        stops it at a checkpoint.

    Raises
    ------
    DMondrianError
        As :func:`dmondrian.distributed.train`, for what is known before a row is learned.
    """
    if is_dask(data):
        raise ParameterError("a detached job reads Parquet; write the collection first")
    data = rooted(data, root)
    check_paths(data, IN_MEMORY)
    attempt_options(checkpoint_every, window, None, keep)
    refuse_with_lags(lags, validation=validation)
    if score:
        check_score_options(score, data)
    url = checked_folder(run, data)
    run_options = {
        "n_shards": n_shards,
        "first_tree": first_tree,
        "progressive": progressive,
        "row_parts": row_parts,
    }
    readable = (lambda plan: check_readable(score, plan.schema, lags)) if score else None
    held_out = None if validation is None else HeldOutData(validation)
    check = checks_of(held_out, Alerts.of(alerts), readable)
    with connected(client):
        options = run_options, plan_options, check
        prepare_run(estimator, data, target, url, *options, lags=lags)
        id_ = jobs.hand_over(open_store(url))
        # Workers may be in other folders than this process.
        data, validation, scored = from_anywhere(data), from_anywhere(validation), {**(score or {})}
        scored |= {name: from_anywhere(scored[name]) for name in ("data", "out") if name in scored}
        job = Job(
            id_, url, estimator, data, target, run_options, plan_options, checkpoint_every, window,
            keep, scored, validation, alerts, lags,
        )  # fmt: skip
        future = client.submit(conduct, job, key=f"dmondrian-job-{job.id}", pure=False)
        fire_and_forget(future)
    return url


def conduct(job: Job) -> None:
    """Task: train a run to its end, or until a stop is requested; then score."""
    store, error, is_stopped = open_store(job.run), None, False
    try:
        with worker_client() as client:  # secedes: the worker gets its thread back
            _conduct(job, store, client)
    except KeyboardInterrupt:
        is_stopped = True  # a requested stop; raised further, it would end the worker
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        jobs.end(store, job.id, error, is_stopped)


def _conduct(job: Job, store: Store, client: Client) -> None:
    options = attempt_options(job.checkpoint_every, job.window, None, job.keep)
    options = replace(options, job=job.id, alerts=Alerts.of(job.alerts), advises_row_parts=True)
    _obey(store, job)
    held_out = None if job.validation is None else HeldOutData(job.validation)
    run, plan = prepare_run(
        job.estimator, job.data, job.target, job.run, dict(job.run_options),
        dict(job.plan_options), checks_of(held_out, options.alerts), lags=job.lags,
    )  # fmt: skip
    _obey(store, job)  # settings may have taken long to choose
    bring_to_end(run, plan, options, lambda: client, held_out)
    if job.score:
        with Heartbeat(store, job.id) as beat:
            score(run.url, client=client, progress=beat.on_progress, **job.score)


def _obey(store: Store, job: Job) -> None:
    if jobs.is_asked_to_stop(store, job.id):
        raise KeyboardInterrupt
