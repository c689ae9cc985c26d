"""Scoring: Parquet in, Parquet out, every input row exactly once.

Relies on a plan of the input in its own order, on a store whose `put_new` lets one writer win, and
on :mod:`dmondrian.distributed.relay` for models that are larger than a worker's memory. Promises
that the names of the output files are fixed by the input, that each appears whole or not at all,
and that the manifest is written last; so a killed job is finished by repeating it, two that run at
once do no harm, and repeating a finished one checks it and writes nothing.

::

    _score.json             what was asked: model, data, columns kept; create-only, first
    _score.plan             the frozen input
    part-000000.parquet     scores of consecutive blocks; create-only
    _manifest.json          all parts with rows, bytes and digests; create-only, last
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from dmondrian.calibration import Fitted, calibrated, calibrated_std, tells_labels
from dmondrian.checkpoint import document
from dmondrian.cost import Cost, forecasts, responses
from dmondrian.data import Encoded, Plan, make_scoring_plan, read_block
from dmondrian.distributed.memory import Needs, parse_limit, row_needs
from dmondrian.distributed.models import Model, open_model, plan_here
from dmondrian.distributed.progress import Listener, Progress, Teller, listener
from dmondrian.distributed.relay import Relay, connected_relay
from dmondrian.distributed.units import cut
from dmondrian.errors import CheckpointError, CorruptError, FencedError, ParameterError
from dmondrian.joint import Joint
from dmondrian.store import ExistsError, Store, open_store
from dmondrian.sums import Sums

FORMAT = 1
FILE_ROWS = 131_072
"""Small blocks are joined into one output file up to this many rows."""

ABOUT, PLAN, MANIFEST = "_score.json", "_score.plan", "_manifest.json"
_META = b"dmondrian.score"


@dataclass(frozen=True)
class Part:
    """One output file to write."""

    out: str  # URL of the output folder
    asked: str  # digest of what was asked
    plan_digest: str
    name: str
    first: int  # number of its first block
    last: int  # number behind its last block
    keep: tuple[str, ...]
    classes: tuple[Any, ...] | None
    deviation: str  # what the column of standard deviations is called
    calibration: Fitted | None
    cost: Cost | Joint | None
    is_detailed = True

    @property
    def tells_labels(self) -> bool:
        """Whether the column of standard deviations is of the label, calibrated."""
        return tells_labels(self.calibration)

    def found(self) -> dict[str, Any] | None:
        """Return the file's entry in the manifest, if it is there."""
        store = open_store(self.out)
        return {**_entry(store, self), "is_new": False} if store.exists(self.name) else None

    def read(self) -> Iterator[Encoded]:
        """Read the file's rows, block by block."""
        plan = plan_here(self.out, PLAN, self.plan_digest)
        for index in range(self.first, self.last):
            yield read_block(plan, plan.blocks[index], keep=self.keep)

    def finish(self, summed: Iterable[tuple[Encoded, Sums]]) -> dict[str, Any]:
        """Write the file, unless another job did; return its entry in the manifest."""
        tables = [self._table(encoded, sums) for encoded, sums in summed]
        table = pa.concat_tables(tables).replace_schema_metadata({_META: self.asked.encode()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
        store = open_store(self.out)
        try:
            store.put_new(self.name, data)
        except ExistsError:
            return {**_entry(store, self), "is_new": False}
        return {**_described(self.name, data, table.num_rows), "is_new": True}

    def _table(self, encoded: Encoded, sums: Sums) -> pa.Table:
        tells_distance = sums.distance is not None
        names = _score_names(self.classes, self.deviation, self.cost, tells_distance)
        arrays = score_arrays(sums, self.classes, self.calibration, self.cost)
        scores = dict(zip(names, arrays, strict=True))
        kept = encoded.keep
        return pa.table(
            {**({} if kept is None else {name: kept.column(name) for name in self.keep}), **scores}
        )


def score(
    model_url: str | os.PathLike[str],
    data: Any,
    out: str | os.PathLike[str],
    *,
    keep: Sequence[str] = (),
    client: Client | None = None,
    progress: Listener | bool | None = None,
    n_workers: int | None = None,
    threads: int | None = None,
    memory_limit: str | int | None = None,
) -> dict[str, Any]:
    """Write a model's predictions for a data set as Parquet.

    Parameters
    ----------
    model_url : str or path
        Run folder or URL; ``@position`` picks a checkpoint.
    data : str, path or sequence of them
        Parquet files, folders, globs or URLs; needs the model's feature columns by name.
    out : str or path
        Folder or URL. The same call again finishes what was killed.
    keep : sequence of str
        Columns of the input to copy.
    client : Client or None
        A cluster of the caller; by default this machine.
    progress : callable, bool or None
        As in :func:`train`.
    n_workers, threads : int or None
        Size of the local cluster.
    memory_limit : str, int or None
        Memory of a worker, such as "2GiB": sizes the workers of a local cluster, and is planned
        with if it is less than the workers' own limit. A model that does not fit is used with its
        trees sharded, and the bytes written are the same.

    Returns
    -------
    dict
        "rows", "files", "written" (files written by this call), "trees_sharded" (groups that the
        trees were cut into to fit the workers' memory; 1 where each worker held the whole model, 0
        where nothing was left to do), "out", "seconds". The columns of a file: those kept,
        "prediction", "proba_<class>" (classification), "spread" (standard deviation between trees
        of the prediction, or of the predicted class's probability before calibration; a Gaussian
        hierarchy and a calibrated regressor have "std" instead, the standard deviation of the
        label at the row) and "distance"
        (sum of the extensions from the leaf's box to the row, in encoded units times the feature
        scales, mean over trees; online random forests have no boxes, and no such column). A
        generalised Mondrian forest has "q_<level>" for each quantile in place of "prediction", and
        of two classes "decision", the averaged z; its "spread" is that of z, of the quantile
        nearest to the median where there are several. A density has "log_density" alone, of the
        row as it is encoded, in the unit cube.

    Raises
    ------
    SchemaError
        Columns of the model or of `keep` are missing or of another type.
    CheckpointError
        There is no model, or `out` holds other scores.
    CorruptError
        A file in `out` is not what was written.
    ClusterError
        Workers were lost beyond recovery, or have too little memory.
    """
    started = time.monotonic()
    keep = (keep,) if isinstance(keep, str) else tuple(keep)
    limit = parse_limit(memory_limit)
    model = open_model(os.fspath(model_url))
    plan = make_scoring_plan(data, model.schema, keep)
    _check_names(model, keep)
    store = open_store(out)
    asked = _claim(store, model, plan, keep)
    classes = None if model.schema.classes is None else tuple(model.schema.classes)
    parts = [
        Part(store.url, asked, plan.digest, part_name(unit.index), unit.first, unit.last, keep,
             classes, _deviation(model), model.calibration, model.cost)
        for unit in cut(plan.blocks, FILE_ROWS)
    ]  # fmt: skip
    result: dict[str, Any] = {"rows": plan.n_rows, "files": len(parts), "written": 0}
    result["trees_sharded"] = 0
    if store.exists(MANIFEST):
        _verify(store, asked, parts)
    else:
        needs = _needs(model, plan, parts)
        with connected_relay(
            model, needs, "output file", plan.n_rows, client, n_workers, threads, limit
        ) as relay:
            entries = _write_parts(relay, parts, plan.n_rows, Teller(listener(progress)))
        result["written"] = sum(entry.pop("is_new") for entry in entries)
        result["trees_sharded"] = relay.n_groups
        _finish(store, asked, entries, plan.n_rows)
    return {**result, "out": store.url, "seconds": time.monotonic() - started}


def _needs(model: Model, plan: Plan, parts: Sequence[Part]) -> Needs:
    k, columns = model.n_outputs, len(plan.schema.columns) + len(parts[0].keep)
    return row_needs(
        (plan.blocks[part.first : part.last] for part in parts),
        len(plan.schema.feature_names),
        columns,
        {"sums": 2 * k + 1, "result": k + 3 + 2 * len(parts[0].keep)},
    )


def part_name(index: int) -> str:
    """Return the name of an output file."""
    return f"part-{index:06d}.parquet"


def _check_names(model: Model, keep: tuple[str, ...]) -> None:
    classes, deviation = model.schema.classes, _deviation(model)
    taken = _score_names(classes, deviation, model.cost, model.tells_distance)
    clash = sorted({name for name in keep if name in taken or keep.count(name) > 1})
    if clash:
        raise ParameterError(
            f"columns {clash} cannot be kept: their names are given twice or are those of scores; "
            f"rename them in the input"
        )


def _deviation(model: Model) -> str:
    return "std" if model.tells_std else "spread"


def _score_names(
    classes: Any, deviation: str, cost: Cost | Joint | None, tells_distance: bool
) -> list[str]:
    if isinstance(cost, Cost) and cost.loss == "density":
        return ["log_density"]
    last = [deviation, "distance"] if tells_distance else [deviation]
    if isinstance(cost, Cost) and cost.levels:
        return [*(f"q_{level:g}" for level in cost.levels), *last]
    if isinstance(cost, Cost) and cost.is_binary:
        shares = [] if cost.loss == "hinge" else [f"proba_{c}" for c in classes]
        return ["prediction", *shares, "decision", *last]
    return ["prediction", *(f"proba_{c}" for c in classes or ()), *last]


def _claim(store: Store, model: Model, plan: Plan, keep: tuple[str, ...]) -> str:
    """Write what is asked, or compare it with what was; return its digest."""
    about = {
        "format": FORMAT,
        "model": model.digest,
        "data": plan.digest,
        "keep": list(keep),
        "file_rows": FILE_ROWS,
    }
    if not store.exists(ABOUT):
        store.probe()
        others = [name for name in store.list() if name.endswith(".parquet")]
        if others:
            raise CheckpointError(
                f"{store.url} holds Parquet files that are no scores of dmondrian ({others[0]}); "
                f"expected an empty or new folder: choose another"
            )
    data = document.seal(about)
    try:
        store.put_same(ABOUT, data)
    except FencedError:
        there = document.unseal(store.get(ABOUT, document.MAX_BYTES), f"{ABOUT} in {store.url}")
        lines = "".join(f"\n  {line}" for line in document.differences(there, about))
        raise CheckpointError(
            f"{store.url} holds other scores. These entries differ:{lines}\n"
            f"Choose another folder, or give the model, data and columns of those scores."
        ) from None
    # Equal plans may differ in the bytes of their notes: the first one stands.
    if not store.exists(PLAN):
        store.put(PLAN, plan.to_parquet())
    return hashlib.sha256(data).hexdigest()


def _write_parts(
    relay: Relay, parts: list[Part], n_rows: int, teller: Teller
) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    began = time.monotonic()

    def record() -> Progress:
        rows = sum(entry["rows"] for entry in entries)
        seconds = time.monotonic() - began
        speed = rows / seconds if seconds > 0 else 0.0
        left = (n_rows - rows) / speed if speed > 0 else None
        return Progress(rows, n_rows, speed, rows, left, 0, 0, tree_groups=relay.n_groups)

    def note(entry: dict[str, Any]) -> None:
        entries.append(entry)
        teller.tell(record)

    relay.run(parts, note)
    teller.tell(record, now=True)
    return entries


def score_arrays(
    sums: Sums,
    classes: Sequence[Any] | None,
    calibration: Fitted | None,
    cost: Cost | Joint | None = None,
) -> list[pa.Array]:
    """Return the columns of scores of some rows, in their order, from the sums over all trees."""
    if isinstance(cost, Cost) and cost.loss == "density":
        return [pa.array(sums.mean[:, 0])]
    mean, variance = sums.mean, sums.variance
    distance = [] if sums.distance is None else [pa.array(sums.distance / sums.n_trees)]
    if isinstance(cost, Cost):
        spread = pa.array(np.sqrt(variance[:, cost.middle]))
        return [*_costly_arrays(mean, classes, cost), spread, *distance]
    if classes is None:
        return [
            pa.array(mean[:, 0]),
            pa.array(calibrated_std(variance[:, 0], calibration)),
            *distance,
        ]
    proba = calibrated(forecasts(cost, mean), calibration)
    best = proba.argmax(axis=1)
    spread = np.sqrt(variance[np.arange(len(best)), best])
    probabilities = [pa.array(np.ascontiguousarray(proba[:, k])) for k in range(mean.shape[1])]
    prediction = pa.array(list(classes)).take(pa.array(best))
    return [prediction, *probabilities, pa.array(spread), *distance]


def _costly_arrays(mean: np.ndarray, classes: Sequence[Any] | None, cost: Cost) -> list[pa.Array]:
    """Return the columns of what a generalised forest says."""
    if classes is None:
        said = responses(cost.loss, mean)
        return [pa.array(np.ascontiguousarray(said[:, k])) for k in range(said.shape[1])]
    z = mean[:, 0]
    shares = forecasts(cost, mean)
    told = [] if cost.loss == "hinge" else [pa.array(shares[:, k].copy()) for k in range(2)]
    return [pa.array(list(classes)).take(pa.array((z > 0.0).astype(np.int64))), *told, pa.array(z)]


def _entry(store: Store, part: Part) -> dict[str, Any]:
    """Return the entry of a file that is there, if it is one of these scores."""
    data = store.get(part.name)
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
        asked = (footer.metadata or {}).get(_META, b"").decode()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptError(
            f"{part.name} in {store.url} cannot be read ({error}); delete it and run the same "
            f"command again"
        ) from error
    if asked != part.asked:
        raise CorruptError(
            f"{part.name} in {store.url} holds other scores than this job's; delete it and run the "
            f"same command again, or choose another folder"
        )
    return _described(part.name, data, footer.num_rows)


def _described(name: str, data: bytes, rows: Any) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    return {"name": name, "rows": rows, "bytes": len(data), "sha256": digest}


def _finish(store: Store, asked: str, entries: list[dict[str, Any]], n_rows: int) -> None:
    rows = sum(entry["rows"] for entry in entries)
    if rows != n_rows:
        raise CorruptError(f"the files in {store.url} hold {rows} rows; expected {n_rows}")
    content = {"format": FORMAT, "asked": asked, "rows": rows, "files": entries}
    store.put_same(MANIFEST, document.seal(content))


def _verify(store: Store, asked: str, parts: list[Part]) -> None:
    """Check a finished job's files against its manifest."""
    name = f"{MANIFEST} in {store.url}"
    content = document.unseal(store.get(MANIFEST, document.MAX_BYTES), name)
    files = content.get("files")
    entries = [entry for entry in files if isinstance(entry, dict)] if type(files) is list else []
    listed = {str(entry.get("name")): entry for entry in entries}
    if content.get("asked") != asked or sorted(listed) != [part.name for part in parts]:
        raise CorruptError(f"{name} lists other files than this job's; choose another folder")
    for part in parts:
        found = _described(part.name, store.get(part.name), listed[part.name].get("rows"))
        if found != listed[part.name]:
            raise CorruptError(
                f"{part.name} in {store.url} changed since it was written: expected "
                f"{json.dumps(listed[part.name])[:400]}, got {json.dumps(found)}; delete it and "
                f"{MANIFEST}, and run the same command again"
            )
