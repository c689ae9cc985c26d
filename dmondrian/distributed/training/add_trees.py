"""Adding trees to a finished run, over the same stream.

Relies on trees that depend on their number, the run's parameters and the stream alone. Promises
that only the new trees are trained; that they equal, byte for byte, those of a run that had them
from the start; and that the run is unchanged until they are finished. The guard of a forest that
follows its stream learns all rows anew, from what new members forecast and what the run has kept of
the others (:mod:`dmondrian.checkpoint.kept_shares`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from distributed import Client

from dmondrian._text.wording import counted
from dmondrian.checkpoint import Lease, Run
from dmondrian.checkpoint.kept_shares import MOST_NUMBERS, KeptShares, pieces_of
from dmondrian.checkpoint.opening import VERSIONS_KEY
from dmondrian.checkpoint.parts import (
    BESIDE,
    is_whole,
    open_whole,
    part_url,
    parts_of,
    tree_range,
)
from dmondrian.data import Plan, absent_files, place_beside, stored_plan
from dmondrian.distributed.cluster.client import Connection
from dmondrian.distributed.cluster.progress import Listener
from dmondrian.distributed.training.attempt import AttemptOptions, attempt_options, finish
from dmondrian.distributed.training.run_setup import MOST_TREES, cut_trees
from dmondrian.distributed.training.train import TrainedRun
from dmondrian.ensemble.settings.stored_parameters import follows_stream, learns_jointly
from dmondrian.errors import CheckpointError, DataError, ParameterError

MOST_NAMED = 20
"""Most files that are named as gone, or as changed."""

_OWN = ("format", VERSIONS_KEY)  # entries of run.json that each part sets itself


def grow(
    run: str | os.PathLike[str],
    n_estimators: int,
    *,
    client: Client | None = None,
    n_shards: int | None = None,
    checkpoint_every: str | int | None = "auto",
    window: int | None = None,
    progress: Listener | bool | None = None,
    n_workers: int | None = None,
    threads: int | None = None,
) -> TrainedRun:
    """Add trees to a finished run by streaming its data to the new trees only.

    The same call resumes one that was stopped or killed, and does nothing when it is finished.

    Parameters
    ----------
    run : str or path
        Folder or URL of the run.
    n_estimators : int
        Number of trees afterwards, those of the run included.
    client : Client or None
        A cluster of the caller; by default worker processes of this machine.
    n_shards : int or None
        Shards of the new trees; by default of the same size as those of the run.
    checkpoint_every, window, progress, n_workers, threads
        As in :func:`dmondrian.distributed.train`.

    Returns
    -------
    TrainedRun
        Of the whole run; its metrics are those of the new trees alone, and of all members where
        they follow the stream. A calibrated run keeps the calibration fitted to its first trees.

    Raises
    ------
    ParameterError
        The run has more trees already, or follows the stream and has not kept what its members
        forecast: it was begun by an earlier version, or has more than twelve classes.
    CheckpointError
        There is no run, or it is not finished.
    DataError
        Its data are missing or changed.
    CorruptError
        What the members of the run forecast is damaged.
    ClusterError
        Workers were lost beyond recovery.
    StoreError
        A store refused or failed, again and again: its disk may be full.
    """
    options = attempt_options(checkpoint_every, window, progress)
    base = open_whole(run)
    plan = finished_plan(base)
    if learns_jointly(base.run_json["parameters"]):
        raise ParameterError(
            f"{base.url} is of {base.run_json['algorithm']}, whose trees are fitted together: new "
            "ones would change what the others learned. Train a run with more trees"
        )
    with ExitStack() as stack:
        connect = Connection(stack, client, n_workers, threads)
        return _grow(base, plan, n_estimators, n_shards, options, connect)


def _grow(
    base: Run,
    plan: Plan,
    n_estimators: int,
    n_shards: int | None,
    options: AttemptOptions,
    connect: Callable[[], Client],
) -> TrainedRun:
    parts = parts_of(base)
    if (
        sum(int(part_or_base.run_json["n_estimators"]) for part_or_base in (base, *parts))
        < n_estimators
    ):
        _check_files(plan, 0)
    for part in parts:
        _check_files(plan, max(part.manifests(), default=0))
    with Lease.take(base.store):  # of two concurrent calls, the second sees the part of the first
        _add_part(base, plan, n_estimators, n_shards)
    attempts = [finish(part, plan, options, connect) for part in parts_of(base)]
    newest = attempts[-1]
    return TrainedRun(base.url, plan, newest.metrics, newest.summary | newest.rows_so_far)


def finished_plan(base: Run) -> Plan:
    """Return the plan of a finished run."""
    if base.run_json.get("plan") is None:
        raise CheckpointError(
            f"{base.url} was fitted on arrays, which nobody can stream again: train it with "
            "dmondrian.distributed.train"
        )
    plan, (home, _) = stored_plan(base.stream), base.stream.places()
    if home is not None and home != base.url:
        plan = place_beside(plan, home, base.url)
    newest = base.latest(verify=False)
    if newest is None or newest.position < plan.n_rows:
        at = 0 if newest is None else newest.position
        raise CheckpointError(
            f"{base.url} has learned {at} of {plan.n_rows} rows: finish it with the command that "
            "trains it, then run this again"
        )
    return plan


def _check_files(plan: Plan, position: int) -> None:
    """Refuse to stream a plan from a position if files are gone or changed."""
    gone, changed = absent_files(plan, position)
    if not gone and not changed:
        return
    n_files = plan.table.n_files
    parts = [
        f"{len(uris):,} of the {counted(n_files, 'file')} {'is' if len(uris) == 1 else 'are'} "
        f"{what} ({', '.join(uris[:MOST_NAMED])}{', ...' if len(uris) > MOST_NAMED else ''})"
        for uris, what in ((gone, "gone"), (changed, "changed"))
        if uris
    ]
    raise DataError(
        f"new trees learn all rows of the run again, and {' and '.join(parts)}: put them back; "
        "if the data moved, train the run again with a job that names where they are now, then "
        "grow it; or train a run of more trees on the data that are left"
    )


def _add_part(base: Run, plan: Plan, n_estimators: int, n_shards: int | None) -> None:
    """Create the part with the new trees, unless it exists."""
    runs = [base, *parts_of(base)]
    ranges = [tree_range(run) for run in runs]
    sizes = [int(run.run_json["n_estimators"]) for run in runs]
    if isinstance(n_estimators, bool) or not 1 <= n_estimators <= MOST_TREES - ranges[0][0]:
        raise ParameterError(f"n_estimators is {n_estimators!r}; expected a number of trees")
    if len(runs) > 1 and sum(sizes) == n_estimators:
        n_there = len(runs[-1].run_json["shards"])
        if n_shards not in (None, n_there):
            raise ParameterError(f"n_shards is {n_shards!r}; these trees were cut into {n_there}")
        return
    if n_estimators <= sum(sizes):
        unfinished = [part.url for part in runs[1:] if not is_whole(part)]
        hint = f"; {unfinished[-1]} is not finished: delete it to give it up" if unfinished else ""
        raise ParameterError(
            f"n_estimators is {n_estimators}, but {base.url} has {sum(sizes)} trees already (those "
            f"being trained counted); expected more{hint}"
        )
    its_members_are_mixed = follows_stream(base.run_json["parameters"])
    if its_members_are_mixed:
        _check_shares(runs, n_estimators)
    first, added = ranges[-1][1], n_estimators - sum(sizes)
    if n_shards is None:
        usual = sizes[0] / len(base.run_json["shards"])
        n_shards = min(added, max(1, round(added / usual)))
    if isinstance(n_shards, bool) or not 1 <= n_shards <= added:
        raise ParameterError(f"n_shards is {n_shards!r}; expected 1 to {added}, the new trees")
    about = {key: value for key, value in base.run_json.items() if key not in _OWN}
    about |= {
        "n_estimators": added,
        "shards": cut_trees(first, first + added, n_shards),
        "plan": plan.digest,
    }
    if its_members_are_mixed:
        about[BESIDE] = [list(tree_range_there) for tree_range_there in ranges]
    Run.create(part_url(base, first, first + added), about, plan.to_parquet())


def _check_shares(there: list[Run], n_estimators: int) -> None:
    """Refuse to add members to some that have not kept what they forecast of each row."""
    newest = there[0].latest(verify=False)
    guard = None if newest is None else newest.metrics.get("guard")
    n_rows = guard.get("position") if isinstance(guard, dict) else None
    kept = KeptShares(there)
    if type(n_rows) is int and kept.n_rows >= n_rows:
        kept.check()
        return
    if type(n_rows) is int and all(pieces_of(run) for run in there):
        raise ParameterError(
            f"new members learn from what those of {there[0].url} forecast, which its folder "
            f"shares/ has of the first {kept.n_rows:,} rows of positive weight, of {n_rows:,}: put "
            "the files that are gone back from a copy, or train a run of "
            f"{n_estimators} trees in another folder"
        )
    raise ParameterError(
        f"{there[0].url} follows the stream: the weights by which its members are mixed are "
        "learned from what they all forecast, row by row. This run has not kept that: an earlier "
        f"version of dmondrian began it, or a row has more than {MOST_NUMBERS} numbers, as of more "
        f"than twelve classes. Train a run of {n_estimators} trees in another folder: its members "
        "will be those of this run and the new ones"
    )
