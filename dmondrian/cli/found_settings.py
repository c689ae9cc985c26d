"""The settings of a table ``[search]``: those that are tried, and those that a search found.

Relies on the record that a search keeps in the folder of its run. Promises that a job whose search
is over goes on with what was found, and only if it is the job that was searched.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dmondrian.cli.job import Job, build_estimator
from dmondrian.cli.job_keys import SEARCH_KEYS
from dmondrian.cli.output import Output, written
from dmondrian.errors import CheckpointError, JobError, NotFoundError

_CANDIDATES = 64


def with_found(job: Job, output: Output) -> Job:
    """Return a job with the settings that a search found for its run; the job itself if none did.

    Raises
    ------
    JobError
        The search is not over, or was of other settings.
    """
    if job.search is None:
        return job
    from dmondrian.checkpoint.search_record import FOLDER, stored_search
    from dmondrian.store import open_store

    stored = None
    with suppress(NotFoundError):  # the folder is made later, if at all
        stored = stored_search(open_store(job.run["path"], create=False))
    if stored is None:
        output.note("[search] is for `dmondrian search`: this command takes what [forest] has")
        return job
    place, url = job.source.place("search"), f"{str(job.run['path']).rstrip('/')}/{FOLDER}"
    if stored.winner is None:
        raise JobError(
            f"{place}: the search in {url} is not over: `dmondrian search {job.source.path}` goes "
            "on with it"
        )
    settings = list(combinations(job))
    if not _are_those_of(
        stored.estimators, [estimator_of(job, combination) for combination in settings]
    ):
        raise JobError(
            f"{place}: [search] or [forest] differ from those of the search in {url}, which found "
            f"{written(stored.winner_settings)}: take them back, or write these into [forest] and "
            "remove [search]"
        )
    best = settings[stored.winner]
    output.note(f"with the settings that the search found: {written(best)}")
    return replace(job, forest={**job.forest, **best})


def check_of_search(run: str, data: str | list[str]) -> None:
    """Refuse the folder of a run that no search made, or of none, before anything is searched.

    Raises
    ------
    CheckpointError
        It is one.
    ParameterError
        It is the folder of the data.
    """
    from dmondrian.checkpoint.opening import RUN_NAME
    from dmondrian.checkpoint.search_record import stored_search
    from dmondrian.distributed.training.run_folder import checked_folder
    from dmondrian.store import open_store

    url = checked_folder(run, data)
    try:
        store = open_store(url, create=False)
    except NotFoundError:
        return
    if store.exists(RUN_NAME) and stored_search(store) is None:
        raise CheckpointError(
            f"{store.url} holds a run that no search made: choose another folder for [run] path"
        )


def _are_those_of(stored: list[list[Any]], estimators: list[Any]) -> bool:
    """Return whether estimators are those of a search's record, by whatever version."""
    from dmondrian.estimators.save import params_known_then

    return len(stored) == len(estimators) and all(
        [estimator.algorithm, json.loads(json.dumps(params_known_then(estimator, then)))]
        == [algorithm, then]
        for estimator, (algorithm, then) in zip(estimators, stored, strict=True)
    )


def combinations(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the combinations of values, in order; if too many, those that the seed draws."""
    if job.search is None:
        raise JobError(
            f"{job.source.path}: the table [search] is missing; add it, with lists of values such "
            "as n_estimators = [5, 10]"
        )
    lists = {name: values for name, values in job.search.items() if name not in SEARCH_KEYS}
    if not lists:
        raise JobError(f"{job.source.place('search')}: [search] has no list of values to try")
    if "random_state" in lists:
        raise JobError(
            f"{job.source.place('search', 'random_state')}: [search] random_state: the best of "
            "several seeds is chance; set one in [forest]"
        )
    names, most = list(lists), int(job.search.get("candidates", _CANDIDATES))
    total = math.prod(map(len, lists.values()))
    numbers: Iterable[int] = range(total)
    if total >= 2**62:
        raise JobError(f"{job.source.place('search')}: [search] has {total:.3g} combinations")
    if total > most:
        import numpy as np

        rng = np.random.default_rng(int(job.forest.get("random_state", 0)))
        numbers = sorted(rng.choice(total, most, replace=False).tolist())
    for number in numbers:
        places, rest = [], number
        for values in reversed(lists.values()):  # the last varies fastest
            rest, place = divmod(rest, len(values))
            places.append(values[place])
        yield dict(zip(names, reversed(places), strict=True))


def estimator_of(job: Job, settings: dict[str, Any]) -> Any:
    """Return the estimator of a combination; name the mistake where there is one."""
    try:
        return build_estimator(replace(job, forest={**job.forest, **settings}))
    except JobError as error:
        place = job.source.place("search")
        text = str(error).removeprefix(f"{job.source.path}: ")  # a key that no line sets
        raise JobError(f"{place}: [search] with {written(settings)}: {text}") from error
