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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distributed import Client

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.document import seal
from dmondrian.checkpoint.opening import versions
from dmondrian.checkpoint.parts import open_whole, parts_of
from dmondrian.data import Plan
from dmondrian.data.moved import absent_files
from dmondrian.data.row_removal import Copied, copy_without, read_keys
from dmondrian.distributed.cluster.progress import Listener
from dmondrian.distributed.training.add_trees import MOST_NAMED, finished_plan
from dmondrian.distributed.training.train import TrainedRun, train
from dmondrian.errors import DataError, ParameterError
from dmondrian.store import open_store

ROWS, CERTIFICATE = "rows", "forgotten.json"


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
        before and after, of each copied file and of the states of the forest; parameters, rows and
        versions. Whoever trains these files with these parameters has the same digests.
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
        Files of the run are gone or changed, or have no such column.
    ParameterError
        The run cannot be trained again from its plan.
    CheckpointError
        There is no run, it is not finished, or `out` holds another one.
    """
    from dmondrian.estimators.load import estimator_of

    base = open_whole(run)
    plan = finished_plan(base)
    options = _options(base, plan)
    _check_files(base.url, plan)
    listed = read_keys(keys, key)
    stages = _stages(plan)
    folder = open_store(out).url.rstrip("/")
    every = [uri for uris in stages for uri in uris]
    copied = copy_without(every, f"{folder}/{ROWS}", key, listed)
    places = [f"{folder}/{ROWS}/{one.name}" for one in copied]
    about = base.run_json
    estimator = estimator_of(about["algorithm"], dict(about["estimator"]))
    shards = about["shards"]
    trained, n_files = None, 0
    for uris in stages:
        n_files += len(uris)
        there = [p for p, one in zip(places[:n_files], copied, strict=False) if one.rows]
        trained = train(
            estimator,
            there,
            run=folder,
            client=client,
            n_shards=len(shards),
            first_tree=shards[0][0],
            progressive=about["progressive"],
            progress=progress,
            n_workers=n_workers,
            threads=threads,
            **options,
        )
    assert trained is not None  # a plan has files
    certificate = _certificate(base, plan, trained, key, keys, len(listed), copied)
    open_store(folder).put_same(CERTIFICATE, seal(certificate))
    return Forgotten(trained, certificate["rows_left_out"], certificate)


def _options(base: Run, plan: Plan) -> dict[str, Any]:
    """Return the options of the run's data.

    Raises
    ------
    ParameterError
        They are not known, or the plan holds more than files.
    """
    why = None
    if parts_of(base):
        why = "trees were added to it: train a run of all trees, then forget in that one"
    elif plan.asked is None:
        why = "an earlier version made its plan, which lacks the options of its data"
    elif any(block.partition for block in plan.blocks):
        why = "its folders are columns (key=value), which copies of files would lack"
    elif base.run_json["estimator"].get("random_state") is None:
        why = "its seed is not known"
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
    keys: str | os.PathLike[str],
    n_keys: int,
    copied: Sequence[Copied],
) -> dict[str, Any]:
    now = Run.open(trained.run_url)
    manifest = now.manifest(max(now.manifests()))
    with open(keys, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return {
        "statement": (
            "The forest is the one that the files below make with these parameters; no row of the "
            "listed keys is in them. To check it, train them again and compare the states."
        ),
        "key": key,
        "keys": {"number": n_keys, "sha256": digest},
        "plan_before": plan.digest,
        "plan": trained.plan.digest,
        "rows_before": plan.n_rows,
        "rows": trained.plan.n_rows,
        "rows_left_out": sum(one.left_out for one in copied),
        "files": [asdict(one) for one in copied],
        "parameters": now.run_json["parameters"],
        "position": manifest.position,
        "states": {str(n): shard["digest"] for n, shard in manifest.shards.items()},
        "versions": versions(),
    }
