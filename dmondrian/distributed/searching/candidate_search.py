"""The search: rounds of tasks on the cluster, each round's losses stored before the next begins.

::

    asked.json          what is searched; create-only
    plan.parquet        the frozen stream, that of a training of the same data
    rounds/00.json      metrics of the candidates that learned it, and which go on; create-only
    states/             candidates as they were after the last round, deleted at the end

Relies on the plan, and on Dask for tasks whose worker is lost. Promises the same winner and the
same metrics at any number of workers, whatever is killed and begun again: each round is a pure
function of the one before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from distributed import Client, KilledWorker, wait
from sklearn.base import is_classifier

from dmondrian._text.wording import counted
from dmondrian.checkpoint import document
from dmondrian.checkpoint.new_folder import refuse_data
from dmondrian.checkpoint.search_record import ASKED, ROUNDS, read_rounds, results
from dmondrian.data import Plan, make_plan
from dmondrian.data.lag_settings import checked_lags
from dmondrian.data.paths import check_paths
from dmondrian.distributed.cluster.client import Connection, warm
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.distributed.searching.advance import PLAN, Advance, Candidate, advance
from dmondrian.distributed.searching.halving import dealt, going_on, rounds
from dmondrian.distributed.training.lagged_data import about_lagged, write_lags
from dmondrian.distributed.training.resolve_settings import resolve_parameters
from dmondrian.distributed.training.run_folder import checked_folder
from dmondrian.distributed.training.run_setup import IN_MEMORY, weighted
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import (
    CheckpointError,
    ClusterError,
    FencedError,
    NotFoundError,
    ParameterError,
)
from dmondrian.estimators._sklearn_private import check_parameters
from dmondrian.estimators.save import params_known_then
from dmondrian.prequential.forecast_lag import SLICED_KINDS, kind_of, mark_from
from dmondrian.store import Store, check_writable, open_store, parse_address

_log = logging.getLogger("dmondrian")

ROWS = 100_000
"""Rows of the stream that candidates learn at most, by default."""

MOST = 1000
"""Candidates of a search."""

_WITHOUT_WORKERS = 300.0  # seconds after which a search gives up
_TICK = 5.0


@dataclass(frozen=True)
class Searched:
    """A finished search: its candidates and their losses.

    Attributes
    ----------
    winner : int
        Place of the best estimator among those given.
    loss : str
        The progressive metric that ranked them: "log_loss", "rmse" or "mae", or "error", the share
        of wrong labels.
    candidates : list of dict
        Of each estimator, in their order: "rows" that it learned, "loss" after these, "rank",
        1 for the winner, and its "metrics".
    rounds : list of int
        Rows after which they were compared.
    """

    winner: int
    loss: str
    candidates: list[dict[str, Any]]
    rounds: list[int]


def search(
    estimators: Sequence[Any],
    data: Any,
    *,
    target: str,
    folder: str | os.PathLike[str],
    rows: int = ROWS,
    lags: Mapping[str, Any] | None = None,
    run: str | os.PathLike[str] | None = None,
    client: Client | None = None,
    n_workers: int | None = None,
    threads: int | None = None,
    **plan_options: Any,
) -> Searched:
    """Find the best of some estimators by progressive loss, with successive halving.

    All learn the first rows of one stream, each block of which a worker decodes once; after each
    round, of twice the rows of the one before, the worse half is given up. The same call goes on
    with a search that was killed. Train the winner with :func:`dmondrian.distributed.train`.

    Parameters
    ----------
    estimators : sequence of estimators of this package
        Forests that learn row by row, of one task; they are not changed. Of equal losses the one
        that stands first wins.
    data : str, path or sequence of them
        Parquet, as of :func:`dmondrian.distributed.train`.
    target : str
        What to learn.
    folder : str or path
        Folder or URL of the search.
    rows : int
        Rows of the stream that the last round ends at; all, if there are fewer.
    lags : mapping or None
        Earlier values of a series as columns, as of :func:`dmondrian.distributed.train`; `data` and
        `plan_options` go without them. All rows of the data are written with their lags.
    run : str, path or None
        Folder or URL of the run that is trained with what is found, where lags are wanted: the rows
        with them are written into it, and training with the same lags and data does not write them
        again. By default they are written into `folder`.
    client, n_workers, threads
        As of :func:`dmondrian.distributed.train`.
    **plan_options
        See :func:`dmondrian.data.make_plan`.

    Returns
    -------
    Searched

    Raises
    ------
    ParameterError
        Estimators cannot be compared, or there are too many; or a lag is not allowed, such as one
        of a label that is not known yet.
    DataError
        As of :func:`dmondrian.distributed.train`.
    CheckpointError
        The folder is of another search, or of data, or the run has other lags.
    ClusterError
        Workers were lost beyond recovery.
    """
    check_paths(data, IN_MEMORY)
    check_comparable(estimators)
    if isinstance(rows, bool) or rows < 1:
        raise ParameterError(f"rows is {rows!r}; expected an integer of at least 1")
    if run is not None and lags is None:
        raise ParameterError("run is where rows with lags are written: give lags too, or leave it")
    wanted = None if lags is None else _checked_lags(lags, estimators, target, plan_options)
    url = parse_address(folder).url
    with suppress(NotFoundError):  # a new one
        refuse_data(open_store(url, create=False), "a search", ASKED, own_files=[PLAN])
    place = url if run is None else checked_folder(run, data)
    check_writable(url)
    if wanted is not None:
        data = write_lags(place, wanted, data, target, plan_options.get("time"))
    with about_lagged(place, wanted):
        return _search(
            url, estimators, data, target, rows, client, n_workers, threads, plan_options
        )


def _checked_lags(
    lags: Mapping[str, Any], estimators: Sequence[Any], target: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings of lags that all estimators can have."""
    is_shuffled = bool(options.get("shuffle"))
    delays = dict.fromkeys(getattr(estimator, "delay", 1) for estimator in estimators)
    return [checked_lags(lags, target, delay, is_shuffled) for delay in delays][-1]


def _search(
    url: str,
    estimators: Sequence[Any],
    data: Any,
    target: str,
    rows: int,
    client: Client | None,
    n_workers: int | None,
    threads: int | None,
    plan_options: Mapping[str, Any],
) -> Searched:
    """Search over data that have all columns."""
    plan = _plan(estimators, data, target, plan_options)
    store = open_store(url)  # not earlier: data that cannot be learned leave no folder
    _freeze(store, plan)
    params = _params_of(store, estimators)
    request = {
        "estimators": params,
        "rows": rows,
        "plan": plan.digest,
    }
    try:
        store.put_same(ASKED, document.seal(request))
    except FencedError:
        raise CheckpointError(
            f"{store.url} is the folder of a search of other settings, data or rows: choose "
            "another folder, or take them back to go on with it"
        ) from None
    n_rows = min(rows, plan.n_rows)
    done = read_rounds(store)
    with ExitStack() as stack:
        connect = Connection(stack, client, n_workers, threads)
        known = [parameters.get("calibrate", False) for _, parameters in params]
        candidates = _candidates(estimators, known, plan, store) if not _is_over(done) else []
        ends = _ends(candidates, len(estimators), n_rows, plan.n_rows, done)
        living = done[-1]["going_on"] if done else [candidate.number for candidate in candidates]
        for number in range(len(done), len(ends)):
            if len(living) == 1 and number > 0:
                break
            order = Advance(
                store.url, plan.digest, number, ends[number - 1] if number else 0, ends[number],
                tuple(candidates[k] for k in living), _threads(threads),
            )  # fmt: skip
            metrics = _run_round(connect(), order)
            last = number + 1 == len(ends)
            losses = {k: _loss(candidates[k].loss, metrics[k]) for k in living}
            living = going_on(losses, last)
            about = {
                "round": number, "rows": ends[number], "rounds": ends, "going_on": living,
                "is_last": last or len(living) == 1, "loss": candidates[0].loss,
                "metrics": [[k, losses[k], metrics[k]] for k in sorted(metrics)],
            }  # fmt: skip
            store.put_same(f"{ROUNDS}/{number:02d}.json", document.seal(about))
            done.append(about)
            _log.info(
                "after %s, %s learned, %s left, the best with %s %.5g",
                counted(ends[number], "row"), counted(len(metrics), "candidate"), len(living),
                candidates[0].loss, min(losses.values()),
            )  # fmt: skip
    store.delete(store.list("states"))
    return _searched(done, len(estimators))


def check_comparable(estimators: Sequence[Any]) -> None:
    """Refuse estimators that no progressive loss compares.

    Raises
    ------
    ParameterError
        With the reason.
    """
    if not 1 <= len(estimators) <= MOST:
        raise ParameterError(
            f"{counted(len(estimators), 'candidate')} to search; expected 1 to {MOST}"
        )
    if len({is_classifier(estimator) for estimator in estimators}) > 1:
        raise ParameterError("classifiers and regressors cannot be compared: they have no one loss")
    for estimator in estimators:
        check_parameters(estimator)
        if "kernel" in estimator.algorithm or "density" in estimator.algorithm:
            raise ParameterError(
                f"{estimator.algorithm} is not searched: its rows are not forecast one by one "
                "before they are learned; compare runs of it with `dmondrian compare`"
            )
    losses = {getattr(estimator, "loss", None) for estimator in estimators}
    if len(losses) > 1:
        raise ParameterError(f"loss is {sorted(map(str, losses))}: expected one loss for all")


def _plan(estimators: Sequence[Any], data: Any, target: str, options: Mapping[str, Any]) -> Plan:
    """Return the stream of a search."""
    for estimator in estimators:
        estimator._check_time(options.get("time"))
    task = "classification" if is_classifier(estimators[0]) else "regression"
    plan = make_plan(data, target=target, task=task, **options)
    weights = {weighted(plan, estimator).schema.class_weight for estimator in estimators}
    if len(weights) > 1:
        raise ParameterError("class_weight differs: losses of other weights cannot be compared")
    plan = weighted(plan, estimators[0])
    for note in plan.notes:
        _log.info(note)
    return plan


def _freeze(store: Store, plan: Plan) -> None:
    """Store the stream, or compare it with the stored one, if the search goes on."""
    try:
        store.put_same(PLAN, plan.to_parquet())
    except FencedError:
        raise CheckpointError(
            f"{store.url} is the folder of a search of other data, or these have changed: choose "
            "another folder; a run that was trained with what a search found learns new files by "
            "`dmondrian train` or `dmondrian follow`"
        ) from None


def _params_of(store: Store, estimators: Sequence[Any]) -> list[list[Any]]:
    """Return algorithms and parameters, as the version has them that began the search."""
    try:
        stored = document.unseal(store.get(ASKED, document.MAX_BYTES), ASKED)["estimators"]
    except NotFoundError:
        stored = []
    thens = [then for _, then in stored]
    thens += [None] * (len(estimators) - len(thens))
    return [
        [estimator.algorithm, params_known_then(estimator, then)]
        for estimator, then in zip(estimators, thens, strict=False)
    ]


def _candidates(
    estimators: Sequence[Any], calibrates: Sequence[bool | str], plan: Plan, store: Store
) -> list[Candidate]:
    candidates = []
    schema = plan.schema
    n_classes = len(schema.classes or ())
    if any(estimator._auto_settings(schema.n_features, n_classes) for estimator in estimators):
        _log.info("choosing automatic settings of %s", counted(len(estimators), "candidate"))
    for number, (estimator, calibrate) in enumerate(zip(estimators, calibrates, strict=True)):
        parameters = resolve_parameters(estimator, plan, f"{store.url}/none", is_logged=False)
        resolved = ForestParameters.from_json(dict(parameters))
        candidates.append(
            Candidate(
                number,
                parameters,
                int(estimator.n_estimators),
                calibrate,
                _loss_name(estimator, resolved),
            )
        )
    for candidate in {repr(c.parameters): c for c in candidates}.values():
        warm(ForestParameters.from_json(dict(candidate.parameters)), candidate.calibrate)
    return candidates


def _loss_name(estimator: Any, parameters: ForestParameters) -> str:
    if parameters.has_decision and getattr(estimator, "loss", "") == "hinge":
        return "error"
    if is_classifier(estimator):
        return "log_loss"
    return "mae" if parameters.minimises_loss else "rmse"


def _loss(name: str, metrics: Mapping[str, float]) -> float:
    if name == "error":
        return 1.0 - metrics.get("accuracy", float("nan"))
    return metrics.get(name, float("nan"))


def _ends(
    candidates: Sequence[Candidate], n: int, n_rows: int, most: int, done: Sequence[Any]
) -> list[int]:
    """Return the rows at which rounds end.

    Forests that forecast slices of the stream have no metrics within one: if a candidate is such,
    rounds end where slices do.
    """
    if done:
        ends: list[int] = done[0]["rounds"]
        return ends
    kinds = {
        kind_of(ForestParameters.from_json(dict(candidate.parameters))) for candidate in candidates
    }
    ends = rounds(n, n_rows)
    if kinds.isdisjoint(SLICED_KINDS):
        return ends
    return sorted({min(mark_from(end), most) for end in ends})


def _threads(threads: int | None) -> int:
    return threads or 1


def _is_over(done: Sequence[Mapping[str, Any]]) -> bool:
    return bool(done) and bool(done[-1]["is_last"])


def _run_round(client: Client, order: Advance) -> dict[int, dict[str, float]]:
    """Run the tasks of a round, candidates dealt to the workers; return all metrics."""
    workers = Workers(client, _WITHOUT_WORKERS)
    workers.refresh(now=True)
    by_number = {candidate.number: candidate for candidate in order.candidates}
    orders = [
        replace(order, candidates=tuple(by_number[k] for k in group))
        for group in dealt(sorted(by_number), max(1, len(workers.threads)))
    ]
    futures = client.map(advance, orders, pure=False, retries=2)
    try:
        pending = set(futures)
        while pending:
            with suppress(TimeoutError), client.as_current():
                pending = set(wait(pending, timeout=_TICK, return_when="FIRST_COMPLETED").not_done)
            workers.refresh()
        metrics: dict[int, dict[str, float]] = {}
        for metrics_of_task in client.gather(futures):
            metrics |= metrics_of_task
        return metrics
    except KilledWorker as error:
        raise ClusterError(
            f"a task of round {order.round} ended its workers again and again, so their memory may "
            "not be enough: give them more, or search fewer candidates"
        ) from error
    finally:
        client.cancel(futures)
        workers.close()


def _searched(done: Sequence[Mapping[str, Any]], n: int) -> Searched:
    """Return the result of rounds that are over."""
    winner = done[-1]["going_on"][0]
    return Searched(winner, str(done[0]["loss"]), results(done, n), list(done[0]["rounds"]))
