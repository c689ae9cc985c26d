"""`dmondrian follow`: learn what comes to the data of a job file, until asked to end.

Relies on `dmondrian.distributed.follow` for all the work. Promises that the job is checked as a
whole before any data are looked at, and to end with code 0 when it was asked to.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dmondrian._text.wording import counted
from dmondrian.cli.found_settings import with_found
from dmondrian.cli.job import (
    build_estimator,
    check_amounts,
    check_lags,
    check_row_parts,
    metrics_options,
    read_job,
)
from dmondrian.cli.live_log import live_log
from dmondrian.cli.output import Output
from dmondrian.cli.train import cluster_of


def follow(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian follow --help`."""
    job = with_found(read_job(arguments.job, arguments.overrides), output)
    estimator = build_estimator(job)
    check_amounts(job)
    check_lags(job, estimator)
    check_row_parts(job, estimator)
    from dmondrian import distributed

    options = {key: value for key, value in (job.run | job.data).items() if key != "path"}
    if job.score is not None:
        output.note(
            "[score] is for `dmondrian train`: `dmondrian follow` scores what [follow] score names"
        )

    def report(learned: Any) -> None:
        output.close_bar()
        from dmondrian.drift.waiting_rows import waiting_in_words

        lag = "" if learned.lag is None else f", {learned.lag:.1f} s after the newest data"
        summary = learned.run.summary
        waiting = waiting_in_words(summary) if "waiting" in summary else ""
        output.event(
            "learned",
            {
                "rows": learned.rows,
                "n_rows": learned.n_rows,
                "seconds": learned.seconds,
                "lag": learned.lag,
                **({"waiting": summary["waiting"]} if "waiting" in summary else {}),
                "metrics": learned.run.metrics,
            },
        )
        output.text(
            f"{counted(learned.rows, 'row')} {'came' if waiting else 'learned'}, "
            f"{learned.n_rows:,} in all, saved in {learned.seconds:.1f} s{lag}"
            + (f"; {waiting}" if waiting else "")
        )

    scored_files: list[str] = []

    def report_scored(scored: Any) -> None:
        scored_files.append(scored.file)
        output.close_bar()
        output.event("scored", asdict(scored))
        output.text(
            f"{counted(scored.rows, 'row')} of {scored.file} scored by the checkpoint at row "
            f"{scored.position:,}, in {scored.seconds:.1f} s"
        )

    def report_joined(joined: Any) -> None:
        output.close_bar()
        output.event("joined", asdict(joined))
        output.text(_joined_text(joined))

    with cluster_of(job) as cluster, live_log(job) as log:
        try:
            run = distributed.follow(
                estimator,
                job.data["path"],
                run=job.run["path"],
                interval=arguments.interval,
                once=arguments.once,
                keep=arguments.keep,
                on_learned=report,
                score=_wanted(job.follow),
                on_scored=report_scored,
                export=job.follow.get("export", ()),
                labels=_joining(job.labels),
                on_joined=report_joined,
                progress=output.follow,
                validation=job.validation,
                alerts=job.alerts,
                on_event=log,
                lags=job.lags,
                **metrics_options(job, arguments.metrics_port),
                **options,
                **cluster,
            )
        except KeyboardInterrupt as stop:
            if arguments.once:
                raise
            output.close_bar()
            output.note(str(stop) or "stopped; the last checkpoint is kept")
            return 0
    output.close_bar()
    if not arguments.once:
        output.note("stopped; all rows that were learned are saved")
    elif run is None or not run.summary["rows"]:
        output.note("nothing was learned" if scored_files else "there was nothing to do")
    return 0


_SCORED = "keep", "details", "delta", "memory_limit"  # that may be left out


def _wanted(keys: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of the scoring in a ``[follow]`` table; None if it asks for none."""
    if "score" not in keys:
        return None
    options = {name: keys[name] for name in _SCORED if name in keys}
    return {"data": keys["score"], "out": keys["scores"], **options}


def _joining(keys: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the arguments of the join in a ``[labels]`` table; None if there is none."""
    if keys is None:
        return None
    options = {name: keys[name] for name in ("key", "rows") if name in keys}
    return {"data": keys["path"], "out": keys["joined"], **options}


def _joined_text(joined: Any) -> str:
    """Return what to print of rows that got their labels."""
    later = delay_in_words(joined.rows_later, joined.seconds_later)
    waiting = f"; {joined.waiting:,} wait for their rows" if joined.waiting else ""
    repeated = f"; {joined.repeated:,} repeated or empty" if joined.repeated else ""
    return (
        f"{counted(joined.rows, 'label')} of {joined.labels} joined, {later} after their rows "
        f"(medians){waiting}{repeated}"
    )


def delay_in_words(rows: float, seconds: float | None) -> str:
    """Return how much later than their rows labels came."""
    from dmondrian.distributed.cluster.progress import clock  # loads Dask

    return f"{rows:,.0f} rows" + ("" if seconds is None else f" and {clock(seconds)}")
