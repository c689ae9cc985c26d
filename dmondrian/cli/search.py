"""`dmondrian search`: find settings on the cluster, then train with the best of them.

Relies on `dmondrian.distributed.search` and on `dmondrian train`. Promises the run that `dmondrian
train` makes of the found settings: it is trained from the beginning, as a candidate has learned no
more than the rows of the search and keeps no checkpoints.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from dmondrian._text.wording import counted
from dmondrian.cli.job import Job, build_estimator, check_amounts, read_job
from dmondrian.cli.job_keys import SEARCH_KEYS
from dmondrian.cli.output import Output, candidates_table, shown
from dmondrian.cli.train import cluster_of, run_job
from dmondrian.errors import JobError

_CANDIDATES = 64
_PLAN_KEYS = ("path", "target")  # of [data], which are no options of a plan


def search(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian search --help`."""
    job = read_job(arguments.job, arguments.overrides)
    settings = list(_settings(job))
    estimators = [_estimator(job, one) for one in settings]
    check_amounts(job)
    least = min(one.n_estimators for one in estimators)
    if job.run.get("n_shards", 1) > least:
        raise JobError(
            f"{job.source.place('run', 'n_shards')}: [run] n_shards: expected at most {least}, the "
            f"trees of the smallest candidate, got {job.run['n_shards']}"
        )
    from dmondrian import distributed
    from dmondrian.checkpoint.search_record import FOLDER

    url = f"{str(job.run['path']).rstrip('/')}/{FOLDER}"
    options = {key: value for key, value in job.data.items() if key not in _PLAN_KEYS}
    asked = job.search or {}
    with cluster_of(job) as cluster:
        found = distributed.search(
            estimators,
            job.data["path"],
            target=job.data["target"],
            folder=url,
            **({"rows": asked["rows"]} if "rows" in asked else {}),
            **options,
            **cluster,
        )
    output.close_bar()
    records = [
        {"settings": one, **about} for one, about in zip(settings, found.candidates, strict=True)
    ]
    best = settings[found.winner]
    about = {"winner": best, "loss": found.loss, "rounds": found.rounds, "candidates": records}
    output.event("searched", {"search": url, **about})
    output.text(
        f"searched {counted(len(settings), 'candidate')}, ranked by {found.loss}:\n"
        + candidates_table(records)
    )
    output.text(f"training with {shown(best)}")
    return run_job(replace(job, forest={**job.forest, **best}), output)


def _settings(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the combinations of values, in order; if too many, those that the seed draws."""
    if job.search is None:
        raise JobError(
            f"{job.source.path}: the table [search] is missing; add it, with lists of values such "
            "as n_estimators = [5, 10]"
        )
    lists = {name: values for name, values in job.search.items() if name not in SEARCH_KEYS}
    if not lists:
        raise JobError(f"{job.source.place('search')}: [search] has no list of values to try")
    names, most = list(lists), int(job.search.get("candidates", _CANDIDATES))
    everything = [dict(zip(names, values, strict=True)) for values in product(*lists.values())]
    if len(everything) > most:
        import numpy as np

        rng = np.random.default_rng(int(job.forest.get("random_state", 0)))
        drawn = rng.choice(len(everything), most, replace=False)
        everything = [everything[k] for k in sorted(drawn.tolist())]
    yield from everything


def _estimator(job: Job, settings: dict[str, Any]) -> Any:
    """Return the estimator of a combination; name the mistake where there is one."""
    try:
        return build_estimator(replace(job, forest={**job.forest, **settings}))
    except JobError as error:
        place = job.source.place("search")
        raise JobError(f"{place}: [search] with {shown(settings)}: {error}") from error
