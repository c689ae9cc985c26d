"""`dmondrian search`: find settings on the cluster, then train with the best of them.

Relies on `dmondrian.distributed.search` and on `dmondrian train`. Promises the run that `dmondrian
train` makes of the found settings: it is trained from the beginning, as a candidate has learned no
more than the rows of the search and keeps no checkpoints.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from dmondrian._text.wording import counted
from dmondrian.cli.found_settings import check_of_search, combinations, estimator_of
from dmondrian.cli.job import check_amounts, check_lags, check_row_parts, read_job
from dmondrian.cli.output import Output, candidates_table, written
from dmondrian.cli.train import cluster_of, run_job
from dmondrian.errors import JobError

_PLAN_KEYS = ("path", "target")  # of [data], which are no options of a plan


def search(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian search --help`."""
    job = read_job(arguments.job, arguments.overrides)
    settings = list(combinations(job))
    estimators = [estimator_of(job, combination) for combination in settings]
    check_amounts(job)
    for estimator in estimators:
        check_lags(job, estimator)
        check_row_parts(job, estimator)
    least = min(estimator.n_estimators for estimator in estimators)
    if job.run.get("n_shards", 1) > least:
        raise JobError(
            f"{job.source.place('run', 'n_shards')}: [run] n_shards: expected at most {least}, the "
            f"trees of the smallest candidate, got {job.run['n_shards']}"
        )
    from dmondrian import distributed
    from dmondrian.checkpoint.search_record import FOLDER

    check_of_search(job.run["path"], job.data["path"])
    url = f"{str(job.run['path']).rstrip('/')}/{FOLDER}"
    options = {key: value for key, value in job.data.items() if key not in _PLAN_KEYS}
    search_options = job.search or {}
    if job.lags is not None:  # in the run's folder, where training finds them
        options |= {"lags": job.lags, "run": job.run["path"]}
    with cluster_of(job) as cluster:
        searched = distributed.search(
            estimators,
            job.data["path"],
            target=job.data["target"],
            folder=url,
            **({"rows": search_options["rows"]} if "rows" in search_options else {}),
            **options,
            **cluster,
        )
    output.close_bar()
    records = [
        {"settings": dict(sorted(combination.items())), **about}
        for combination, about in zip(settings, searched.candidates, strict=True)
    ]
    best = settings[searched.winner]
    about = {
        "winner": best,
        "loss": searched.loss,
        "rounds": searched.rounds,
        "candidates": records,
    }
    output.event("searched", {"search": url, **about})
    output.text(
        f"searched {counted(len(settings), 'candidate')}, ranked by {searched.loss}:\n"
        + candidates_table(records)
    )
    output.text(f"training with {written(best)}")
    return run_job(replace(job, forest={**job.forest, **best}), output)
