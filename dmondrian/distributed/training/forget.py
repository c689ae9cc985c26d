"""Forgetting: a run trained again without the rows of some keys, with a certificate.

Nodes hold sums over rows, so no row can be taken out of a forest; but a forest is a function of its
rows, and one that is trained without some of them is the one that never had them. Relies on the
plan of a run for its files and options, and on :mod:`dmondrian.data.row_removal` for copies without
the rows. Promises the forest of a run that began with these copies and went on with them as the
run did with the originals.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.copying import refuse_within
from dmondrian.checkpoint.document import seal, unseal
from dmondrian.checkpoint.new_folder import refuse_folder_of_data
from dmondrian.checkpoint.opening import RUN_NAME, versions
from dmondrian.checkpoint.parts import open_whole, parts_of
from dmondrian.checkpoint.row_ranges import ROW_PARTS
from dmondrian.checkpoint.search_record import searched
from dmondrian.data import Plan
from dmondrian.data.moved import absent_files
from dmondrian.data.row_removal import Copied, copy_without, find_rows, read_keys
from dmondrian.distributed.cluster.progress import Listener
from dmondrian.distributed.training.add_trees import MOST_NAMED, finished_plan
from dmondrian.distributed.training.merged_ranges import LEAST_PARTS
from dmondrian.distributed.training.train import TrainedRun, train
from dmondrian.errors import CheckpointError, DataError, ParameterError
from dmondrian.store import Store, open_store

ROWS, CERTIFICATE = "rows", "forgotten.json"

_SEARCHED = (
    " The parameters are those that a search found on all rows, these among them; to choose them "
    "without, search again on the files below."
)


@dataclass(frozen=True)
class Forgotten:
    """A run without the rows of some keys.

    Attributes
    ----------
    run : TrainedRun
    left_out : int
        Rows that were left out.
    certificate : dict
        What `forgotten.json` in the run's folder has: digests of the keys' file, of the plans
        before and after, of each copied file and of the states of the forest; how many keys there
        are, and how many of them no row had; options of the data, parameters, rows and versions;
        of a run with ``row_parts`` their number, and "row_parts_before" where too few rows are
        left for as many. Whoever trains these files with these parameters has the same digests.
    """

    run: TrainedRun
    left_out: int
    certificate: dict[str, Any]


def forget(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    keys: str | os.PathLike[str],
    key: str,
    *,
    client: Client | None = None,
    progress: Listener | bool | None = None,
    n_workers: int | None = None,
    threads: int | None = None,
) -> Forgotten:
    """Train a run again without the rows of some keys, as if they had never been there.

    The same call goes on with one that was stopped or killed.

    Parameters
    ----------
    run : str or path
        Folder or URL of a finished run, whose files are all there. It is not changed.
    out : str or path
        New folder or URL for the run without the rows. Copies of the files without them are in
        ``rows/`` below it, and the certificate in ``forgotten.json``.
    keys : str or path
        Parquet with the column ``key``, or text with a key in each line.
    key : str
        Column of all files that tells whose a row is.
    client : Client or None
        A cluster of the caller; by default worker processes of this machine.
    progress, n_workers, threads
        As in :func:`dmondrian.distributed.train`.

    Returns
    -------
    Forgotten

    Raises
    ------
    DataError
        Files of the run are gone or changed, or have no such column; or no row has one of the keys.
    ParameterError
        The run cannot be trained again from its plan; the keys are no values of the column; or
        `out` is within `run`.
    CheckpointError
        There is no run, it is not finished, or `out` holds another one.
    """
    from dmondrian.estimators.load import estimator_of

    base = open_whole(run)
    plan = finished_plan(base)
    options = _options(base, plan)
    _check_files(base.url, plan)
    listed = read_keys(keys, key)
    digest = _digest_of(keys)
    stages = _stages(plan)
    every = [uri for uris in stages for uri in uris]
    store = open_store(out)
    refuse_within(store, base.store)
    folder = store.url.rstrip("/")
    _refuse_other(store, {"key": key, "plan_before": plan.digest}, digest)
    matched = find_rows(every, key, listed)
    if matched.in_no_row == len(listed):
        raise DataError(
            f"no row of {base.url} has one of the {len(listed):,} keys of {os.fspath(keys)} in "
            f"{key!r}: nothing is to be forgotten"
        )
    if not sum(matched.rows_left):
        raise DataError(
            f"all rows of {base.url} have one of these keys, so nothing would be left to learn: "
            "delete the run, and train another one when there are other rows"
        )
    copied = copy_without(every, f"{folder}/{ROWS}", key, listed)
    places = [f"{folder}/{ROWS}/{copy.name}" for copy in copied]
    about = base.run_json
    estimator = estimator_of(about["algorithm"], dict(about["estimator"]))
    estimator._seed = int(about["parameters"]["seed"])  # it may have been drawn
    shards = about["shards"]
    trained, n_files, row_parts = None, 0, _row_parts(base)
    for uris in stages:
        n_files += len(uris)
        kept = [p for p, copy in zip(places[:n_files], copied, strict=False) if copy.rows]
        if not kept:  # a run that never had these rows would have begun with the next files
            continue
        if trained is None:  # cut are the rows that it begins with
            row_parts = _fewer(row_parts, sum(copy.rows for copy in copied[:n_files]))
        trained = train(
            estimator,
            kept,
            run=folder,
            client=client,
            n_shards=len(shards),
            first_tree=shards[0][0],
            progressive=about["progressive"],
            row_parts=row_parts,
            progress=progress,
            n_workers=n_workers,
            threads=threads,
            **options,
        )
    assert trained is not None  # some file has rows
    listing = {"number": len(listed), "in_no_row": matched.in_no_row, "sha256": digest}
    request = {"options": options, "files_at_first": len(stages[0])}
    if (before := _row_parts(base)) is not None:
        request["row_parts"] = row_parts
        request |= {} if row_parts == before else {"row_parts_before": before}
    certificate = _certificate(base, plan, trained, key, listing, copied) | request
    store.put_same(CERTIFICATE, seal(certificate))
    return Forgotten(trained, certificate["rows_left_out"], certificate)


def _row_parts(run: Run) -> int | None:
    """Return the parts of rows that a run learned side by side; None for rows in order."""
    ranges = run.run_json.get(ROW_PARTS)
    return None if ranges is None else len(ranges)


def _fewer(row_parts: int | None, n_rows: int) -> int | None:
    """Return as many parts as there are rows, where fewer rows are left; one is learned alone."""
    if row_parts is None or row_parts <= n_rows:
        return row_parts
    return n_rows if n_rows >= LEAST_PARTS else None


def _digest_of(file: str | os.PathLike[str]) -> str:
    with open(file, "rb") as content:
        return hashlib.sha256(content.read()).hexdigest()


def _refuse_other(store: Store, request: Mapping[str, Any], digest: str) -> None:
    """Refuse a folder with the certificate of other keys or another run, or of data."""
    refuse_folder_of_data(store.url)
    if not store.exists(CERTIFICATE):
        if store.exists(RUN_NAME) and not store.list(ROWS):
            raise CheckpointError(f"{store.url} has another run; choose another folder")
        return
    there = unseal(store.get(CERTIFICATE), f"{CERTIFICATE} in {store.url}")
    if (there.get("keys") or {}).get("sha256") != digest:
        what = "of other keys"
    elif any(there.get(name) != value for name, value in request.items()):
        what = "in another run or column"
    else:
        return
    raise CheckpointError(f"{store.url} is a finished forgetting {what}; choose another folder")


def _options(base: Run, plan: Plan) -> dict[str, Any]:
    """Return the options of the run's data.

    Raises
    ------
    ParameterError
        They are not known, or the plan holds more than files.
    """
    why = None
    if base.run_json.get("lags") is not None:
        why = (
            "lags of other rows hold values of those that are to be forgotten: train another run "
            "with the same lags on data without these rows"
        )
    elif parts_of(base):
        why = "trees were added to it: train a run of all trees, then forget in that one"
    elif plan.asked is None:
        why = "an earlier version made its plan, which lacks the options of its data"
    elif any(block.partition for block in plan.blocks):
        why = "its folders (key=value) or its table have columns that copies of files would lack"
    if why is not None:
        raise ParameterError(f"{base.url} cannot be trained again without some rows: {why}")
    options: dict[str, Any] = json.loads(plan.asked or "{}")
    options.pop("task", None)
    return options


def _check_files(url: str, plan: Plan) -> None:
    """Refuse a run whose rows cannot be read again."""
    gone, changed = absent_files(plan)
    if gone or changed:
        named = ", ".join([*gone, *changed][:MOST_NAMED])
        raise DataError(
            f"to forget rows all others are learned again, and of the files of {url} {len(gone):,} "
            f"are gone and {len(changed):,} changed ({named}): put them back, or train a run on "
            "data that lack the rows"
        )


def _stages(plan: Plan) -> list[list[str]]:
    """Return the files that the run began with, then those that came, as far as it matters.

    The encoding is of the first ones; rows are mixed within those that came together.
    """
    ends = (
        [rows for rows, _ in plan.earlier]
        if plan.shuffle
        else [plan.earlier[0][0]]
        if plan.earlier
        else []
    )
    stages, first = [], 0
    for stop in (*ends, plan.n_rows):
        blocks = [block for block in plan.blocks if first <= block.position < stop]
        stages.append(list(dict.fromkeys(b.uri for b in sorted(blocks, key=lambda b: b.group))))
        first = stop
    return stages


def _certificate(
    base: Run,
    plan: Plan,
    trained: TrainedRun,
    key: str,
    listing: Mapping[str, Any],
    copied: Sequence[Copied],
) -> dict[str, Any]:
    now = Run.open(trained.run_url)
    manifest = now.manifest(max(now.manifests()))
    return {
        "statement": (
            "The forest is the one that the files below make with these parameters; no row of the "
            "listed keys is in them. To check it, train them again and compare the states."
        )
        + (_SEARCHED if searched(base.store) is not None else ""),
        "key": key,
        "keys": dict(listing),
        "plan_before": plan.digest,
        "plan": trained.plan.digest,
        "rows_before": plan.n_rows,
        "rows": trained.plan.n_rows,
        "rows_left_out": sum(copy.left_out for copy in copied),
        "files": [asdict(copy) for copy in copied],
        "algorithm": now.run_json["algorithm"],
        "estimator": now.run_json["estimator"],
        "n_estimators": now.run_json["n_estimators"],
        "shards": now.run_json["shards"],
        "parameters": now.run_json["parameters"],
        "position": manifest.position,
        "states": {str(n): shard["digest"] for n, shard in manifest.shards.items()},
        "versions": versions(),
    }
