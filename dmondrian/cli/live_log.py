"""The `[mlflow]` table of a job file: a run is logged to MLflow while it is trained.

Relies on :class:`dmondrian.mlflow.LiveLog` for all of it. Promises that nothing of MLflow is
imported without the table, and that a missing package, and what MLflow does not take, is refused
before anything is learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dmondrian.cli.job import Job
from dmondrian.errors import JobError


@contextmanager
def live_log(job: Job) -> Iterator[Any]:
    """Give the listener of events that logs a job to MLflow; None without `[mlflow]`."""
    if job.mlflow is None:
        yield None
        return
    from dmondrian._optional import require

    require("mlflow", "mlflow", "[mlflow]")
    import mlflow
    from mlflow.exceptions import MlflowException

    from dmondrian.mlflow import LiveLog

    try:
        if "uri" in job.mlflow:
            mlflow.set_tracking_uri(job.mlflow["uri"])
        if "experiment" in job.mlflow:
            mlflow.set_experiment(job.mlflow["experiment"])
        begun = LiveLog(job.mlflow.get("run_id"))
    except MlflowException as error:
        raise JobError(f"{job.source.place_of_table('mlflow')}: [mlflow]: {error}") from error
    with begun as log:
        yield log
