"""Setup of run folders: stores a job and its stream, or opens the run of the same job.

Relies on the plan and on create-only objects. Promises that a folder of another job is refused
before anything is learned, that an existing run keeps its seed and settings, and that its stream is
only ever extended at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dmondrian._text.wording import NOTED, counted
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.parts import parts_of
from dmondrian.checkpoint.row_ranges import ROW_PARTS, cut_rows
from dmondrian.data import Plan, as_asked, asks_the_same, extend_plan, make_plan, stored_plan
from dmondrian.data.extend import GONE
from dmondrian.data.lag_settings import checked_lags, in_words
from dmondrian.data.lagged_files import lagged_files
from dmondrian.distributed.training.job_difference import job_differences
from dmondrian.distributed.training.kept_plan import kept_plan
from dmondrian.distributed.training.lagged_data import about_lagged, refuse_other_lags
from dmondrian.distributed.training.merged_ranges import (
    NO_METRICS,
    check_length,
    check_row_parts,
)
from dmondrian.distributed.training.resolve_settings import resolve_parameters
from dmondrian.errors import CheckpointError, CorruptError, NotFoundError, ParameterError
from dmondrian.store import check_writable

_log = logging.getLogger("dmondrian")
MOST_SHARDS = 64
"""Most shards by default, one a tree: no more workers than shards have something to do.

More are made if ``n_shards`` is given: each costs an upload at each checkpoint. Earlier
versions had 12; a run keeps what it began with, as its run.json has it.
"""

IN_MEMORY = (
    "a run reads its rows again where it goes on, and on other machines, so write them as Parquet "
    "(pandas: frame.to_parquet(path)) and give the path, or as a Dask collection; to learn them "
    "here, without a run, call the estimator's fit"
)
"""Advice for data in memory that are passed for training."""

MOST_TREES = 1_000_000
"""Upper bound of tree numbers; file names in a run folder have as many digits."""


def prepare_run(
    estimator: Any,
    data: Any,
    target: Any,
    url: str,
    run_options: dict[str, Any],
    plan_options: dict[str, Any],
    on_plan: Callable[[Plan], object] | None = None,
    among: Collection[str] | None = None,
    lags: Mapping[str, Any] | None = None,
    is_asked_to_end: Callable[[], bool] = bool,
    is_own: bool = False,
) -> tuple[Run, Plan]:
    """Create a job's run folder, or open the existing one.

    Parameters
    ----------
    estimator : estimator of this package
    data : str, path or sequence of them
        New files in it extend the stream of an existing run.
    target : str or None
        None for a density.
    url : str
        URL of the folder.
    run_options : dict
        "n_shards", "first_tree", "progressive" and "row_parts", as in
        :func:`dmondrian.distributed.train`.
    plan_options : dict
        See :func:`dmondrian.data.make_plan`.
    on_plan : callable or None
        Called with the plan before the folder is created; its exceptions end the call.
    among : collection of str or None
        Uris of the files of `data` to use, but for those of tables; None for all.
    lags : mapping or None
        As in :func:`dmondrian.distributed.train`: rows with them are written into the folder first,
        and are the stream.
    is_asked_to_end : callable
        Called while these are written.
    is_own : bool
        Whether this package wrote the files of `data`, and deletes them when they are learned, as
        it does those with lags: no note is made of files that are gone.

    Returns
    -------
    run : Run
    plan : Plan
        Its stream.

    Raises
    ------
    PlanError
        A file of the stream is missing or changed.
    CheckpointError
        The folder belongs to another job.
    StoreError
        The folder cannot be written.
    """
    from sklearn.base import is_classifier  # not imported by workers

    check_writable(url)  # to plan, and to choose settings, may take long
    _check_target(estimator, target)
    estimator._check_time(plan_options.get("time"))
    run_options = dict(run_options)
    if target is None:
        run_options["progressive"] = False  # no label is forecast
    row_parts = check_row_parts(estimator, run_options.pop("row_parts", None))
    if row_parts is not None:
        run_options["progressive"] = False
    lag_settings = None
    if lags is not None:
        is_shuffled = bool(plan_options.get("shuffle"))
        lag_settings = checked_lags(lags, target, getattr(estimator, "delay", 1), is_shuffled)
    refuse_other_lags(url, lag_settings)
    if lag_settings is not None:
        lagged = lagged_files(url, lag_settings, target, plan_options.get("time"))
        lagged.take(data, among, is_asked_to_end)
        data, among = lagged.out, None
    options = {"target": target, **plan_options}
    options["task"] = "classification" if is_classifier(estimator) else "regression"
    stored = kept_plan(url)
    with about_lagged(url, lag_settings):
        if stored is None:
            began = plan = make_plan(data, among=among, **options)
            if plan.bands and (digest := _first_digest(url)) not in (None, plan.digest):
                old = make_plan(data, among=among, **{**options, "is_mixed": False})
                began = plan = old if old.digest == digest else plan
        else:
            plan = extend_plan(stored, data, learned_by_all(Run.open(url)), among)
            began = _began(Run.open(url), plan, data, options)
    if lag_settings is not None and stored is None:
        note = (
            f"columns of lags are added: {in_words(lag_settings)}; the rows with them are in {data}"
        )
        began = plan = replace(plan, notes=(*plan.notes, note))
    began = weighted(began, estimator)
    plan = weighted(plan, estimator) if stored is None else plan
    estimator._check_time(plan.schema.time, plan.schema.time_kind)
    if is_own or lag_settings is not None:
        news = tuple(note for note in plan.about_learned if GONE not in note)
        plan = replace(plan, about_learned=news).with_digest_of(plan)
    check_length(row_parts, began.n_rows)
    for note in (*plan.notes, *plan.about_learned):
        _log.info(note, extra=NOTED)
    if row_parts is not None and stored is None:
        _log.info(NO_METRICS.format(parts=counted(row_parts, "part")), extra=NOTED)
    if on_plan is not None:
        on_plan(plan)
    about = _about(estimator, began, url)
    about |= _trees(estimator, **run_options)
    about |= {} if row_parts is None else {ROW_PARTS: cut_rows(began.n_rows, row_parts)}
    about |= {} if lag_settings is None else {"lags": lag_settings}
    if run_options["n_shards"] is None:
        about["shards"] = _stored_shards(url, about["shards"])
    try:
        return Run.create(url, about, began.to_parquet()), plan
    except CheckpointError as error:
        if type(error) is not CheckpointError:  # damaged, say
            raise
        if stored is None:
            raise CheckpointError(f"{error}{_about_unreadable_plan(url)}") from None
        text = _other_job_in_words(url, about, stored, began) or str(error)
        raise CheckpointError(text + _trees_in_words(url, about["n_estimators"])) from None


def _about_unreadable_plan(url: str) -> str:
    """Return that the first plan of a run was made again, and differs; "" if it can be read."""
    try:
        stored_plan(Run.open(url).stream)
    except (CorruptError, NotFoundError) as error:
        return (
            f"\nThe plan of that run cannot be read ({error}). It is made again of exactly the "
            "files that the run began with: name these alone first, then all of them."
        )
    return ""


def _check_target(estimator: Any, target: Any) -> None:
    """Refuse estimators that learn no stream of rows, and targets that do not go with them."""
    from sklearn.utils import get_tags  # not imported by workers

    kind = get_tags(estimator).estimator_type
    if kind not in ("classifier", "regressor", "density_estimator"):
        raise ParameterError(
            f"{type(estimator).__name__} has no target, and runs are of rows with one: fit it on "
            "arrays"
        )
    if kind == "density_estimator" and target is not None:
        raise ParameterError(
            f"target is {target!r}, but {type(estimator).__name__} learns all columns alike: "
            f"leave it out, and exclude the column if it is not to be learned"
        )
    if kind != "density_estimator" and not isinstance(target, str):
        raise ParameterError(f"target is {target!r}; expected the name of the column to learn")


def _other_job_in_words(url: str, about: dict[str, Any], stored: Plan, plan: Plan) -> str:
    """Return how a job differs from that of the run in a folder; "" if a job file has no words."""
    lines = job_differences(Run.open(url).run_json, about, stored, plan)
    if not lines:
        return ""
    return (
        f"The folder {url} belongs to another job. In the words of a job file it differs in:"
        + "".join(f"\n  {line}" for line in lines)
        + "\nChoose another folder, or take the settings back to go on with that run."
    )


def _trees_in_words(url: str, n_trees: int) -> str:
    """Return how a job of ``n_trees`` goes on with the run in a folder that has other trees."""
    run = Run.open(url)
    n_first = run.run_json["n_estimators"]
    n_now = sum(int(run_or_part.run_json["n_estimators"]) for run_or_part in (run, *parts_of(run)))
    if n_trees <= n_now and n_now > n_first:
        return (
            f" `dmondrian grow` made it a run of {n_now} trees; its job file goes on with "
            f"n_estimators = {n_first}."
        )
    if n_trees > n_first:
        return f" To add trees to that run: `dmondrian grow {url} --n-estimators {n_trees}`."
    return ""


def weighted(plan: Plan, estimator: Any) -> Plan:
    """Return a plan whose rows have the weights of their classes."""
    of_classes, classes = None, plan.schema.classes
    if classes is not None and getattr(estimator, "class_weight", None) is not None:
        estimator._check_class_weight("a run")
        of_classes = estimator._weights_of_classes(classes)
    class_weight = None if of_classes is None else tuple(of_classes.tolist())
    if class_weight == plan.schema.class_weight:
        return plan
    return replace(plan, schema=replace(plan.schema, class_weight=class_weight))


def learned_by_all(run: Run) -> int:
    """Return the position up to which a run and all its parts have a checkpoint."""
    return min(max(run_or_part.manifests(), default=0) for run_or_part in (run, *parts_of(run)))


def _began(run: Run, plan: Plan, data: Any, options: dict[str, Any]) -> Plan:
    """Return the first plan of a run as this job would have made it.

    That is the stored one if this job asks for the same, or if files of it are gone, so far as its
    schema tells what was asked; else it is made again.

    Parameters
    ----------
    run : Run
    plan : Plan
        Its stream, wherever the files are now.
    data, options
        Of :func:`dmondrian.data.make_plan`.
    """
    first = Plan.from_parquet(run.stream.read(run.stream.digests()[0]))
    if asks_the_same(first, options):
        return first
    if plan.about_learned or first.tables:
        return as_asked(first, options)
    files = {block.uri for block in plan.blocks if block.position < first.n_rows}
    if first.included is None:  # by a version that took an index for a feature
        options = {**options, "include": None}
    # A run of an earlier version keeps its shuffle.
    options = {**options, "among": files, "is_mixed": _is_mixed(first)}
    return replace(make_plan(data, **options), origins=plan.origins)


def _is_mixed(plan: Plan) -> bool:
    """Return whether a plan like this one has bands if it is shuffled."""
    return bool(plan.bands) or not plan.shuffle


def _first_digest(url: str) -> str | None:
    """Return the digest of the first plan of the run in a folder; the plan may be damaged."""
    try:
        return Run.open(url).stream.digests()[0]
    except CheckpointError:
        return None


def _stored_shards(url: str, shards: list[list[int]]) -> list[list[int]]:
    """Return the shards of the run in a folder if it has the same trees, else `shards`."""
    try:
        stored = Run.open(url).run_json.get("shards") or shards
    except CheckpointError:
        return shards
    trees = [tree for first, stop in stored for tree in range(first, stop)]
    return stored if trees == list(range(shards[0][0], shards[-1][1])) else shards


def _about(estimator: Any, plan: Plan, url: str) -> dict[str, Any]:
    """Return the content of run.json; a seed drawn for this run before is kept."""
    # They import scikit-learn, unlike workers.
    from dmondrian.estimators._sklearn_private import check_parameters
    from dmondrian.estimators.save import params_known_then

    check_parameters(estimator)
    schema = plan.schema
    params = params_known_then(estimator, _stored_params(url))
    params.pop("class_weight", None)
    if schema.class_weight is not None and schema.classes is not None:  # of all, however written
        pairs = zip(schema.classes, schema.class_weight, strict=True)
        params["class_weight"] = [[label, weight] for label, weight in pairs]
    params["n_jobs"] = None  # does not change the forest; workers have their own threads
    return {
        "algorithm": estimator.algorithm,
        "parameters": resolve_parameters(estimator, plan, url),
        "estimator": params,
        "target": schema.target,
        "classes": list(schema.classes) if schema.classes is not None else None,
        "feature_names": list(schema.feature_names),
        "schema": schema.to_json(),
        "plan": plan.digest,
    }


def _stored_params(url: str) -> dict[str, Any] | None:
    """Return the estimator's parameters of the run in a folder; None where there is none."""
    try:
        return Run.open(url).run_json.get("estimator")
    except CheckpointError:
        return None


def _trees(
    estimator: Any, n_shards: int | None, first_tree: int, progressive: bool
) -> dict[str, Any]:
    """Return the entries of run.json about trees."""
    n_trees = int(estimator.n_estimators)
    if n_shards is None:
        n_shards = min(n_trees, MOST_SHARDS)
    if isinstance(n_shards, bool) or not 1 <= n_shards <= n_trees:
        raise ParameterError(f"n_shards is {n_shards!r}; expected 1 to {n_trees}, the trees")
    if isinstance(first_tree, bool) or not 0 <= first_tree < MOST_TREES:
        raise ParameterError(f"first_tree is {first_tree!r}; expected 0 to {MOST_TREES - 1}")
    if first_tree + n_trees > MOST_TREES:
        begin = f" from first_tree {first_tree} on" if first_tree else ""
        raise ParameterError(
            f"n_estimators is {n_trees}{begin}; the trees of a run have numbers below {MOST_TREES}"
        )
    return {
        "n_estimators": n_trees,
        "shards": cut_trees(first_tree, first_tree + n_trees, n_shards),
        "progressive": bool(progressive),
    }


def cut_trees(first: int, stop: int, n_shards: int) -> list[list[int]]:
    """Cut the trees `first` to `stop - 1` into shards; return [first, stop) of each."""
    return [[int(s[0]), int(s[-1]) + 1] for s in np.array_split(range(first, stop), n_shards)]
