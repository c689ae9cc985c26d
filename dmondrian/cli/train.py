"""`dmondrian train`: run a job file, or resume the run that it started.

Relies on `dmondrian.distributed` for all the work. Promises that the job is checked as a whole
before any data is read, and that a repeated command resumes.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import Any

from dmondrian.cli.cluster import LOCAL, connected
from dmondrian.cli.found_settings import with_found
from dmondrian.cli.job import (
    Job,
    build_estimator,
    check_amounts,
    check_lags,
    check_row_parts,
    metrics_options,
    read_job,
)
from dmondrian.cli.live_log import live_log
from dmondrian.cli.output import Output
from dmondrian.cli.score import (
    held_out_lines,
    metrics_table,
    metrics_title,
    remarks_on,
    run_evaluate,
    run_score,
)
from dmondrian.cli.tls import tls_of
from dmondrian.errors import JobError, SchemaError


def train(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian train --help`."""
    job = read_job(arguments.job, arguments.overrides)
    if job.labels is not None:
        raise JobError(
            f"{job.source.place('labels')}: [labels] is for `dmondrian follow`, which learns each "
            "row when its label has come; train on the folder of joined rows once all are there"
        )
    return run_job(with_found(job, output), output, arguments.detach, arguments.metrics_port)


def run_job(job: Job, output: Output, detach: bool = False, metrics_port: int | None = None) -> int:
    """Train as a job asks for, score and evaluate; return the exit code."""
    estimator = build_estimator(job)
    check_amounts(job)
    check_lags(job, estimator)
    check_row_parts(job, estimator)
    from dmondrian import distributed
    from dmondrian.distributed.scoring.preflight import check_readable, check_score_options

    options = {key: value for key, value in (job.run | job.data).items() if key != "path"}
    wanted = None if job.score is None else _wanted(job.score)
    if wanted is not None:
        check_score_options(wanted, job.data["path"])
    if detach:
        return _detach(job, estimator, options, wanted, output)
    with cluster_of(job) as cluster, live_log(job) as log:
        run = distributed.train(
            estimator,
            job.data["path"],
            run=job.run["path"],
            progress=output.follow,
            on_plan=None
            if wanted is None
            else lambda plan: check_readable(wanted, plan.schema, job.lags),
            validation=job.validation,
            alerts=job.alerts,
            on_event=log,
            lags=job.lags,
            **metrics_options(job, metrics_port),
            **options,
            **cluster,
        )
        output.close_bar()
        is_following = getattr(estimator, "drift", None) is not None
        _report_trained(run, estimator.algorithm, is_following, output)
        if wanted is not None:
            _score(run.run_url, wanted, output, cluster)
    return 0


_SCORED = "keep", "details", "delta", "memory_limit"  # that may be left out


def _wanted(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the scoring in a ``[score]`` table."""
    options = {name: keys[name] for name in _SCORED if name in keys}
    return {"data": keys["path"], "out": keys["out"], **options}


def _detach(
    job: Job,
    estimator: Any,
    options: dict[str, Any],
    wanted: dict[str, Any] | None,
    output: Output,
) -> int:
    """Submit the job to a cluster that outlives this process."""
    from dmondrian import distributed

    if job.metrics:
        output.note("[metrics] is not for --detach: nobody knows the machine that would serve them")
    if job.mlflow is not None:
        output.note("[mlflow] is not for --detach: this process, which logs, does not wait")
    if job.cluster.get("scheduler", LOCAL) == LOCAL:
        raise JobError(
            "--detach: a local cluster ends with this command; expected [cluster] scheduler, the "
            "address or scheduler file of one that stays"
        )
    with cluster_of(job) as cluster:
        url = distributed.submit(
            estimator,
            job.data["path"],
            run=job.run["path"],
            client=cluster["client"],
            score=wanted,
            validation=job.validation,
            alerts=job.alerts,
            lags=job.lags,
            **options,
        )
    output.event("submitted", {"run": url})
    output.text(
        f"{url}\nwatch it with `dmondrian describe {url} --follow`, stop it with "
        f"`dmondrian cancel {url}`"
    )
    if wanted is not None:
        output.text(_what_is_left(url, wanted["data"]))
    return 0


def _what_is_left(url: str, data: str | list[str]) -> str:
    """Return what a detached job leaves out of its ``[score]`` table, and which command does it."""
    paths = [data] if isinstance(data, str) else data
    lines = [f"  dmondrian evaluate {shlex.quote(url)} {shlex.quote(path)}" for path in paths]
    return "\n".join(
        ["it scores after training, and evaluates nothing; once it has ended, this does:", *lines]
    )


def cluster_of(job: Job) -> Any:
    """Return the context of a connection to the cluster of a job."""
    keys = job.cluster
    return connected(
        keys.get("scheduler", LOCAL), keys.get("workers"), keys.get("threads"), tls_of(keys)
    )


def _report_trained(run: Any, algorithm: str, is_following: bool, output: Output) -> None:
    about = {"run": run.run_url, "metrics": run.metrics, "summary": run.summary}
    output.event("trained", about | ({"held_out": run.held_out} if run.held_out else {}))
    output.text(f"trained {run.run_url}\n  {summary_line(run.summary)}")
    if run.metrics:
        output.text(f"{metrics_title(run.metrics)}:\n" + metrics_table(run.metrics, "  "))
    if lines := held_out_lines(run.held_out):
        output.text(lines)
    for remark in remarks_on(run.metrics, algorithm, is_following):
        output.remark(remark)


def summary_line(summary: Mapping[str, Any]) -> str:
    """Return a line on how long an attempt took, and which losses it had."""
    from dmondrian.distributed.cluster.progress import clock
    from dmondrian.drift.waiting_rows import waiting_in_words

    parts = [
        f"{summary['rows']:,} rows in {clock(summary['seconds'])}",
        _counted(summary["checkpoints"], "checkpoint"),
        _counted(summary["workers"], "worker"),
    ]
    if summary["recoveries"]:
        parts.append(
            f"{summary['recoveries']} shards recovered ({summary['rows_replayed']:,} rows learned "
            "again)"
        )
    n_merged = summary.get("merged_parts", 0)
    if n_merged:
        parts.append(f"{n_merged:,} parts of the rows merged")
    if summary["rows"]:
        text = ", ".join(parts)
    elif n_merged:
        took = clock(summary["seconds"])
        text = f"{n_merged:,} parts of the rows, learned before, were merged in {took}"
    else:
        text = "there was nothing to do"
    waiting = waiting_in_words(summary) if "waiting" in summary else ""
    return f"{text}; {waiting}" if waiting else text


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _score(model: str, wanted: Mapping[str, Any], output: Output, cluster: dict[str, Any]) -> None:
    options = dict(wanted)
    data, out = options.pop("data"), options.pop("out")
    run_score(model, data, out, output, {**cluster, **options})
    try:
        run_evaluate(model, data, output, {**cluster, "memory_limit": wanted.get("memory_limit")})
    except SchemaError as error:  # the features were fine, so it is the target that is not there
        output.note(f"not evaluated: {error}")
