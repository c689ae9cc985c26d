"""Training on a Dask cluster: sets up the run folder and runs attempts to the end of the stream.

Relies on :mod:`dmondrian.distributed.training.run_setup` for the folder and on attempts for the
work. Promises that the same call resumes a run that was stopped or killed, continues one whose data
have new files, and does nothing to a finished one; and that the forest depends on data, estimator
and `first_tree` alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import Client

from dmondrian._text.wording import counted
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.parts import parts_of
from dmondrian.data import Plan, gives_batches
from dmondrian.data.lagged_files import lags_of_run
from dmondrian.data.paths import rooted
from dmondrian.distributed.cluster.alerts import Alerts, held_out_values
from dmondrian.distributed.cluster.client import Connection
from dmondrian.distributed.cluster.events import EventListener, Events
from dmondrian.distributed.cluster.progress import Listener
from dmondrian.distributed.cluster.prometheus_metrics import HOST, PrometheusMetrics
from dmondrian.distributed.training.attempt import (
    AttemptOptions,
    add_summaries,
    attempt_options,
    finish,
)
from dmondrian.distributed.training.batch_source import (
    about_batches,
    batch_files,
    check_data,
    drop_learned,
    refuse_row_parts,
    rows_to_take,
)
from dmondrian.distributed.training.lagged_data import about_lagged, refuse_with_lags
from dmondrian.distributed.training.merged_ranges import check_row_parts
from dmondrian.distributed.training.run_folder import checked_folder
from dmondrian.distributed.training.run_setup import learned_by_all, prepare_run
from dmondrian.distributed.training.stage_dask import is_dask, stage
from dmondrian.distributed.training.validation import HeldOutData, validation_of
from dmondrian.errors import DataError


@dataclass(frozen=True)
class TrainedRun:
    """A finished run.

    Attributes
    ----------
    run_url : str
        Folder of the run: a model that can score, resume and be inspected.
    plan : Plan
        The frozen stream.
    metrics : dict
        Progressive metrics, of rows forecast just before they were learned; with the "curve",
        and in "forecast" how rows were forecast.
    summary : dict
        Rows, seconds, recoveries and other facts of this attempt. Of a forest that follows the
        stream also "learned" and "waiting": rows of the run that trees have learned, and rows that
        wait for their labels. Where parts of the rows were merged, "merged_parts" is their number.
    held_out : dict
        Of a run with held-out data: their "files" and "rows", "loss", the metric that ranks
        checkpoints, "best", the position of the best one, and "checkpoints", a list of each one's
        "position" and metrics, as :func:`dmondrian.distributed.evaluate` gives them. Else empty.
    """

    run_url: str
    plan: Plan
    metrics: dict[str, Any]
    summary: dict[str, Any]
    held_out: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return one line, without plan and curve."""
        totals = [
            f"{name}={value:.4g}"
            for name, value in self.metrics.items()
            if isinstance(value, float)
        ]
        parts = [repr(self.run_url), counted(self.plan.n_rows, "row"), *totals]
        return f"TrainedRun({', '.join(parts)})"

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
    first_tree: int = 0,
    checkpoint_every: str | int | None = "auto",
    progressive: bool = True,
    row_parts: int | None = None,
    keep: int | None = None,
    window: int | None = None,
    progress: Listener | bool | None = None,
    n_workers: int | None = None,
    threads: int | None = None,
    on_plan: Callable[[Plan], object] | None = None,
    validation: Any = None,
    alerts: Mapping[str, Any] | None = None,
    on_event: EventListener | None = None,
    metrics_port: int | None = None,
    metrics_host: str = HOST,
    lags: Mapping[str, Any] | None = None,
    root: str | os.PathLike[str] | None = None,
    **plan_options: Any,
) -> TrainedRun:
    """Train a forest on a Dask cluster, from Parquet, with checkpoints.

    The same call resumes a run that was stopped or killed. In a script, call it under
    ``if __name__ == "__main__":`` unless you pass a client.

    Parameters
    ----------
    estimator : estimator of this package
        Parameters only; it is not changed.
    data : str, path, sequence of them, Dask DataFrame or Dask Array, or a source of batches
        Parquet files, folders, globs or URLs; or a Dask collection; or Arrow batches, see Notes.
        Frames and arrays in memory are refused: a run reads its rows again when it resumes, and on
        other machines.
    target : str; for a Dask Array a one-dimensional Dask or NumPy array
        What to learn; None for a density, which learns all columns.
    run : str, path or None
        Folder or URL of the run; by default a new folder among the temporary files.
    client : Client or None
        A cluster of the caller; by default worker processes of this machine.
    n_shards : int or None
        Parts the forest is cut into, fixed for the run: so many workers have something to do. By
        default one a tree, at most 64.
    first_tree : int
        Number of the first tree. Runs of one seed with other trees can be merged.
    checkpoint_every : str, int or None
        "auto", "100000 rows", "5 min", a number of rows, or None for the end only. It changes
        neither the forest nor a metric. "auto" saves after half a minute, then as seldom as keeps
        the last save below 3 % of the time to the next; a forest that still grows pays more than
        that. See Notes for where rows are counted.
    progressive : bool
        Whether to forecast each row just before it is learned, for metrics and a learning curve.
        It costs a prediction per row, but nothing with ``drift="follow"``, which forecasts all rows
        in any case.
    row_parts : int or None
        Parts into which the rows that the run begins with are cut, at fixed rows, for more workers
        than trees. All trees learn each part by itself, at once, and are merged at the end. It is
        for Mondrian forests with ``domain="cube"``, and pays where merging is cheap: with a
        lifetime, and far more rows than nodes. See Notes.
    keep : int or None
        How many of the newest checkpoints are kept, at least 2; None for all. The best one by
        held-out data stays too. A run that trees were added to keeps all.
    window : int or None
        Steps that the fastest shard may be ahead of the slowest. By default 4, and up to 16 while
        they take a short time and their forecasts little memory.
    progress : callable, bool or None
        Called with :class:`Progress` about once a second. True shows a bar in a notebook, and
        elsewhere writes lines to stderr.
    n_workers, threads : int or None
        Size of the local cluster.
    on_plan : callable or None
        Called with the frozen stream, a :class:`dmondrian.data.Plan`, before the run folder is
        created and a row is learned; its exceptions end the call. The plan's `notes`, such as
        columns that are left out and why, go to the logger "dmondrian" before, at level INFO.
    validation : str, path or sequence of them, or None
        Held-out Parquet of the same columns. Each checkpoint is evaluated on it while training
        goes on; see `TrainedRun.held_out`. It changes no forest. Workers hold a second copy of the
        trees meanwhile. ``RUN@best`` is then the best checkpoint, see Notes.
    alerts : mapping or None
        "when" has conditions such as ``"log_loss_window > 0.5"``, one or a list. Optional are
        "command", a list of a program and its arguments, "url", and "timeout" in seconds (10).
        Command and URL get an alert as JSON each time that a condition begins to hold; see Notes.
    on_event : callable or None
        Called with each :class:`Event`, in the thread that trains: windows of rows, checkpoints,
        held-out metrics, alerts, losses of workers. What it raises ends the call; the last
        checkpoint is kept. For the state once a second see `progress`.
    metrics_port : int or None
        Port at which metrics are served for Prometheus while the call lasts; 0 is any free one,
        which is logged. Needs the extra ``prometheus``.
    metrics_host : str
        Address to serve them at; by default for this machine alone.
    lags : mapping or None
        Earlier values of a keyed series as columns (:class:`dmondrian.data.KeyedLags`). "columns"
        has one or a list of them. Optional are "lags", how many rows of the key to go back, one or
        several (1); "key", the column that names the series of a row; "differences" of numbers
        from each lag (True; none of the target); and "n_rows", the age in rows at which a value is
        forgotten (1,000,000). See Notes.
    root : str, path or None
        Folder or URL that relative paths of the data are below: where the data move, it alone
        changes, and the run goes on.
    **plan_options
        See :func:`dmondrian.data.make_plan`; ``time``, a column, for a ``delay`` that is a time.

    Returns
    -------
    TrainedRun

    Raises
    ------
    DataError
        Files, columns or rows that cannot be used, or that changed under the run; held-out data
        that are trained on as well, or have labels that the run does not know.
    CheckpointError
        The folder belongs to another job, or holds files that are not of a run, or its
        checkpoints are damaged.
    ClusterError
        Workers were lost beyond recovery.
    StoreError
        A store refused or failed, again and again: its disk may be full.
    KeyboardInterrupt
        After Ctrl-C: the first stops at a checkpoint, the second at once.

    Notes
    -----
    **Automatic settings** (``alpha="auto"``, ``feature_scales="learned"``) are chosen in this
    process from the first ``warmup_rows`` rows and fixed for the run. A run with no more rows than
    these chooses from its first 256, 512, 1024, ... rows, as many as it has more than, or from
    none. To that extent the metrics of these rows depend on their labels.

    **Dask collections** are first written as Parquet, a file per partition, into the run folder. If
    the first or last partition has other rows than were written, the run is refused.

    **A source of batches** is an iterable of Arrow record batches or tables, or of (partition,
    offset, batch); or a callable that returns one which begins at a :class:`Position`. See
    :class:`BatchFiles`. Rows are written to files in the run's folder before they are learned,
    each once, also over restarts. The files are deleted when two checkpoints have their rows. The
    first 1,048,576 rows, or those before a callable first gives None, determine the encoding. None
    is for nothing there now, and ends the call where a callable gives it; an iterable is learned to
    its end.

    **Checkpoints by rows** are exactly at multiples of them. Where cells are fitted jointly, or
    rows are forecast in slices, they are at the end of the mini-batch, slice or row group, up to
    4,096 rows later.

    **Slices.** Regressors with ``aggregation="hierarchy"`` forecast in slices of up to 4,096 rows,
    which end at fixed positions of the stream and where row groups do. Trees that choose their
    lifetime do so between slices. The Mondrian kernel forecasts mini-batches.

    **Row parts** are for forests without ``max_nodes``, a calibration or a lifetime chosen by
    prequential loss. Merged trees count what trees that learned all rows count, byte for byte where
    weights are whole numbers. Sums of labels are so up to the order of additions, and ranks of
    labels as long as cells forget none. The same number of parts gives the same bytes. There are no
    progressive metrics, and one checkpoint, at the end: earlier states of the parts are kept below
    ``row_parts/`` until then, to go on from. Rows of files that come later are learned as in any
    run.

    **The best checkpoint** is the one of the least held-out loss: "log_loss" of classes, "pinball"
    of quantiles, else "rmse"; of a density the one of the largest "log_likelihood".

    **Alerts** are checked each time 1,024 rows were learned, at the end of the step, and each
    second. A command gets them on standard input, a URL by POST. A command or URL that fails is a
    warning. ``jobs/manual/watching.md``, ``[alerts]``, has the names of conditions.

    **Lags.** This process reads the data once, in their order, and writes the rows with these
    columns to ``_lags/`` in the run's folder, which are learned. Each row is written once, also
    over restarts, and files of the data whose rows are written may go. Scoring adds the columns to
    its rows.
    """
    options = attempt_options(checkpoint_every, window, progress, keep)
    is_source = gives_batches(data)
    options = replace(
        options, alerts=Alerts.of(alerts), on_event=on_event, advises_row_parts=not is_source
    )
    data = rooted(data, root)
    if not is_dask(data) and not is_source:
        check_data(data)
    refuse_with_lags(lags, validation=validation, batches=data if is_source else None)
    if is_source:
        refuse_row_parts(row_parts)
    held_out = None if validation is None else HeldOutData(validation)
    folder = tempfile.mkdtemp(prefix="dmondrian-run-") if run is None else run
    url = checked_folder(folder, () if is_source or is_dask(data) else data)
    with ExitStack() as stack:
        options = replace(options, metrics=serve_metrics(stack, metrics_port, metrics_host))
        connect = Connection(stack, client, n_workers, threads)
        if is_dask(data):
            check_row_parts(estimator, row_parts)  # before they are computed
            data, target = stage(connect(), data, target, url)
        run_options = {
            "n_shards": n_shards,
            "first_tree": first_tree,
            "progressive": progressive,
            "row_parts": row_parts,
        }
        check = checks_of(held_out, options.alerts, on_plan)

        def train_on(data: Any) -> tuple[Run, TrainedRun]:
            job = estimator, data, target, url, run_options, plan_options, check
            opened, plan = prepare_run(*job, lags=lags)
            return opened, bring_to_end(opened, plan, options, connect, held_out)

        return train_on_batches(data, url, train_on) if is_source else train_on(data)[1]


def train_on_batches(
    data: Any, url: str, train_on: Callable[[Any], tuple[Run, TrainedRun]]
) -> TrainedRun:
    """Learn the batches of a source to its end, or until it has nothing now."""
    batches = batch_files(data, url)
    trained: TrainedRun | None = None
    while True:
        wanted = rows_to_take(batches, url)
        n = batches.take(wanted, to_end=True)
        if not n and trained is not None:
            return trained
        if not batches.position.rows:
            raise DataError("the source of batches gave no row: there is nothing to learn")
        with about_batches(batches):
            run, now = train_on(batches.out)
        drop_learned(batches, run)
        summary = now.summary if trained is None else add_summaries(trained.summary, now.summary)
        trained = replace(now, summary=summary)
        if n < wanted:
            return trained


def serve_metrics(stack: ExitStack, port: int | None, host: str) -> PrometheusMetrics | None:
    """Serve metrics until a stack is closed; nothing without a port."""
    if port is None:
        return None
    metrics = PrometheusMetrics(port, host)
    stack.callback(metrics.close)
    return metrics


def checks_of(
    held_out: HeldOutData | None,
    alerts: Alerts | None,
    on_plan: Callable[[Plan], object] | None = None,
) -> Callable[[Plan], object]:
    """Return what is called with the plan of a run before its folder is created."""

    def check(plan: Plan) -> None:
        if alerts is not None:
            alerts.check("density" if plan.schema.target is None else plan.schema.task)
        if held_out is not None:
            held_out.check(plan)
        if on_plan is not None:
            on_plan(plan)

    return check


def bring_to_end(
    run: Run,
    plan: Plan,
    options: AttemptOptions,
    connect: Callable[[], Client],
    held_out: HeldOutData | None = None,
) -> TrainedRun:
    """Finish a run and then its parts, over the same stream; evaluate checkpoints meanwhile.

    A checkpoint of a run with parts is not the whole model: then only the last one is evaluated, at
    the end, when the parts have theirs.
    """
    validation = validation_of(run, None if held_out is None else held_out.plan)
    if parts_of(run):  # checkpoints of run and parts are one model, at equal positions
        options = replace(options, keep=None)
    else:
        options = replace(options, validation=validation)
    if options.alerts is not None:
        options.alerts.open(run.store)
    of_parts = replace(options, alerts=None, on_event=None, validation=None)
    with about_lagged(run.url, run.run_json.get("lags")):
        attempts = [finish(run, plan, options, connect)]
        attempts += [finish(part, plan, of_parts, connect) for part in parts_of(run)]
    if (lagged := lags_of_run(run)) is not None:
        lagged.drop(learned_by_all(run))
    if validation is not None:
        events = options.events()
        validation.catch_up(connect, events)
        _look_at_held_out(run, validation.progress(), options, events)
    summary = dict(attempts[0].summary)
    for attempt_of_part in attempts[1:]:
        summary = add_summaries(attempt_of_part.summary, summary)
    # Run and parts learn the same rows of the stream.
    summary["rows"] = max(attempt.summary["rows"] for attempt in attempts)
    seconds = summary["seconds"]
    summary["rows_per_second"] = summary["rows"] / seconds if seconds > 0 else 0.0
    summary |= attempts[0].rows_so_far
    held_out_report = {} if validation is None else validation.report()
    # Members that were added to a forest that follows its stream are scored with all others.
    newest = attempts[-1 if attempts[0].parameters.follows_stream else 0]
    return TrainedRun(run.url, plan, newest.metrics, summary, held_out_report)


def _look_at_held_out(
    run: Run, held_out: Mapping[str, float], options: AttemptOptions, events: Events
) -> None:
    """Raise alerts on the newest held-out metrics, and serve them.

    Training looks at what was measured meanwhile; the last checkpoint may be measured after it,
    also by a call that learns nothing. An alert that is on is not raised again.
    """
    if not held_out:
        return
    if options.alerts is not None:
        row = int(held_out["position"])
        options.alerts.look(held_out_values(held_out), row, run.url, events)
        options.alerts.close(events)
    if options.metrics is not None:
        options.metrics.follow_held_out(held_out)
