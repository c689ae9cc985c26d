"""Scoring: writes predictions of Parquet files as Parquet, each input row exactly once.

Relies on a plan of the input in its own order, on a store whose `put_new` lets one writer win, on
:mod:`dmondrian.distributed.scoring.output_folder` for the folder's layout and seals, and on
:mod:`dmondrian.distributed.scoring.tree_pipeline` for models that are larger than a worker's
memory. Promises that the names of the output files are fixed by the input, that files are written
atomically, and that the manifest is written last; so the same call finishes a killed job, two that
run at once do no harm, and a finished one is checked and not written again. Workers read the files
of a killed job, and score again only damaged ones.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from distributed import Client

from dmondrian.data import Encoded, Plan, make_scoring_plan, read_blocks
from dmondrian.data.chunks import join
from dmondrian.data.paths import check_paths
from dmondrian.data.score_columns import detail_names, score_arrays, score_names
from dmondrian.distributed.cluster.progress import (
    Listener,
    Progress,
    ProgressReporter,
    Speed,
    listener,
)
from dmondrian.distributed.scoring.delay_warning import warn_of_delay
from dmondrian.distributed.scoring.delta_scores import (
    check_deltalake,
    refuse_unknown_types,
    write_delta_log,
)
from dmondrian.distributed.scoring.lagged_rows import with_lags
from dmondrian.distributed.scoring.memory_plan import Needs, parse_limit, row_needs
from dmondrian.distributed.scoring.model_info import Model, open_model, plan_here
from dmondrian.distributed.scoring.output_folder import (
    MANIFEST,
    PLAN,
    as_begun,
    check_flag,
    check_out,
    claim,
    described,
    entry_of,
    finish,
    part_name,
    sealed,
    verify,
)
from dmondrian.distributed.scoring.tree_pipeline import TreePipeline, connected_pipeline
from dmondrian.drift.guard import Guard
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.prediction_sums import Sums
from dmondrian.errors import ParameterError
from dmondrian.store import ExistsError, open_store
from dmondrian.uncertainty.temperature_scaling import FittedCalibration, calibrates_std

FILE_ROWS = 131_072
"""Most rows of an output file that joins several blocks."""

_IN_MEMORY = (
    "write them as Parquet and give the path; dmondrian.frames.FrameModel answers frames in "
    "memory, and dmondrian.distributed.predict Dask collections"
)


@dataclass(frozen=True)
class ScorePart:
    """One output file to write."""

    out: str  # URL of the output folder
    request: str  # digest of the request
    plan_digest: str
    name: str
    first: int  # number of its first block
    last: int  # number after its last block
    keep: tuple[str, ...]
    classes: tuple[Any, ...] | None
    details: tuple[str, ...]  # names of the columns of deviation and distance, if requested
    calibration: FittedCalibration | None
    parameters: ForestParameters
    guard: Guard | None = None

    @property
    def is_detailed(self) -> bool:
        """Whether deviations and distances are written."""
        return bool(self.details)

    @property
    def calibrates_std(self) -> bool:
        """Whether the standard deviations are calibrated ones of the label."""
        return self.is_detailed and calibrates_std(self.calibration)

    def found(self) -> dict[str, Any] | None:
        """Return the manifest entry of the file if it exists and is intact."""
        entry = entry_of(open_store(self.out), self.name, self.request)
        return None if entry is None else {**entry, "is_new": False, "is_mended": False}

    def read(self) -> Iterator[Encoded]:
        """Read the file's rows, chunk by chunk."""
        plan = plan_here(self.out, PLAN, self.plan_digest)
        blocks = plan.blocks[self.first : self.last]
        for chunk in join(blocks):
            yield read_blocks(plan, blocks[chunk.first : chunk.last], keep=self.keep)

    def finish(self, summed: Iterable[tuple[Encoded, Sums]]) -> dict[str, Any]:
        """Write the file unless another job did; return its manifest entry."""
        table = pa.concat_tables([self._table(encoded, sums) for encoded, sums in summed])
        data = sealed(table, self.request, self.name)
        store = open_store(self.out)
        is_mended = False
        try:
            store.put_new(self.name, data)
        except ExistsError:
            if (there := self.found()) is not None:
                return there
            store.put(self.name, data)
            is_mended = True
        entry = described(self.name, data, table.num_rows)
        return {**entry, "is_new": True, "is_mended": is_mended}

    def _table(self, encoded: Encoded, sums: Sums) -> pa.Table:
        names = score_names(self.classes, self.parameters, self.details)
        arrays = score_arrays(sums, self.classes, self.calibration, self.parameters, self.guard)
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
    details: bool = True,
    delta: bool = False,
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
        Parquet files, folders, globs or URLs; needs the model's feature columns by name. Of a run
        with ``lags`` those without these: files of its data get the lags with which they were
        learned, other files those of rows that come behind all of these, in the given order. Such
        rows are written to a folder in `out`, which is deleted at the end.
    out : str or path
        Folder or URL. The same call again finishes a killed job: existing files are checked, and
        scored again only if damaged, with a warning.
    keep : sequence of str
        Columns of the input to copy.
    details : bool
        Whether to write the uncertainty of the forest: "spread" or "std", and "distance". They need
        a value of each tree, so scoring is faster without them.
    delta : bool
        Whether the files become a Delta table when all are written (extra ``lake``).
    client : Client or None
        A cluster of the caller; by default this machine.
    progress : callable, bool or None
        As in :func:`dmondrian.distributed.train`.
    n_workers, threads : int or None
        Size of the local cluster.
    memory_limit : str, int or None
        Memory of a worker, such as "2GiB": limits the workers of a local cluster, and is used in
        place of the workers' own limit if it is smaller. A model that does not fit is used with
        its trees sharded; the bytes written are the same.

    Returns
    -------
    dict
        "rows", "files", "written" (files written by this call), "trees_sharded" (groups that the
        trees were cut into to fit the workers' memory; 1 where each worker held the whole model, 0
        where nothing was left to do), "out", "seconds". The columns of a file: those kept,
        "prediction", "proba_<class>" (classification), "spread" (standard deviation between trees
        of the prediction, or of the predicted class's probability before calibration; a Gaussian
        hierarchy and a calibrated regressor have "std" instead, the standard deviation of the label
        at the row) and "distance" (sum of the extensions from the leaf's box to the row, in encoded
        units times the feature scales, mean over trees; online random forests have no boxes, and no
        such column), these two with `details`. A generalised Mondrian forest has "q_<level>" for
        each quantile in place of "prediction", and for two classes "decision", the averaged z; its
        "spread" is that of z, of the quantile nearest to the median if there are several. A density
        has "log_density" alone, of the row as it is encoded, in the unit cube.

    Raises
    ------
    ParameterError
        The value of an option is not allowed, or scores in `out` would be read as data.
    SchemaError
        Columns of the model or of `keep` are missing or of another type; or, with `delta`, of one
        that Delta has not.
    CheckpointError
        There is no model, or `out` holds other scores.
    StoreError
        `out` cannot be written; checked before the data are read.
    CorruptError
        A file of finished scores changed since it was written, or one in `out` is of other scores.
    ClusterError
        Workers were lost beyond recovery, or have too little memory.
    MissingPackageError
        `delta` needs a package that is not installed.
    """
    started = time.monotonic()
    keep = (keep,) if isinstance(keep, str) else tuple(keep)
    check_paths(data, _IN_MEMORY)
    limit = parse_limit(memory_limit)
    check_flag("details", details)
    check_flag("delta", delta)
    if delta:
        check_deltalake(out)
    model = open_model(os.fspath(model_url), measures_distance=details)
    check_out(out, data)
    with with_lags(os.fspath(model_url), data, out) as rows:
        result = _score(
            model, rows, out, keep, details, delta, client, progress, n_workers, threads, limit
        )
    return {**result, "seconds": time.monotonic() - started}


def _score(
    model: Model,
    data: Any,
    out: str | os.PathLike[str],
    keep: tuple[str, ...],
    details: bool,
    delta: bool,
    client: Client | None,
    progress: Listener | bool | None,
    n_workers: int | None,
    threads: int | None,
    limit: int | None,
) -> dict[str, Any]:
    """Score data that have all columns of a model."""
    plan = make_scoring_plan(data, model.schema, keep)
    warn_of_delay(model.parameters, plan.n_rows, model.n_trained, model.delay)
    if delta:
        refuse_unknown_types(plan, keep)
    columns = _details(model) if details else ()
    _check_names(model, columns, keep)
    store = open_store(out)
    plan = as_begun(store, plan)
    about = {"model": model.digest, "data": plan.digest, "keep": list(keep), "file_rows": FILE_ROWS}
    if columns != _details(model):  # otherwise left out, for the same bytes as older versions
        about["details"] = False
    request = claim(store, about, plan)
    classes = None if model.schema.classes is None else tuple(model.schema.classes)
    parts = [
        ScorePart(store.url, request, plan.digest, part_name(file.index), file.first, file.last,
             keep, classes, columns, model.calibration, model.parameters, model.guard)
        for file in join(plan.blocks, max_rows=FILE_ROWS, max_blocks=None)
    ]  # fmt: skip
    result: dict[str, Any] = {"rows": plan.n_rows, "files": len(parts), "written": 0}
    result["trees_sharded"] = 0
    if store.exists(MANIFEST):
        verify(store, request, [part.name for part in parts])
    else:
        needs = _needs(model, plan, parts)
        with connected_pipeline(
            model, needs, "output file", plan.n_rows, client, n_workers, threads, limit
        ) as pipeline:
            entries = _write_parts(
                pipeline, parts, plan.n_rows, ProgressReporter(listener(progress))
            )
        result["written"] = sum(entry.pop("is_new") for entry in entries)
        result["trees_sharded"] = pipeline.n_groups
        _warn_mended([entry["name"] for entry in entries if entry.pop("is_mended")], store.url)
        finish(store, request, entries, plan.n_rows)
    if delta:
        write_delta_log(store.url, [part.name for part in parts])
    return {**result, "out": store.url}


def _warn_mended(names: Sequence[str], url: str) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{', '.join(names[:3])}{more} in {url} was damaged, and is written again",
            stacklevel=3,
        )


def _needs(model: Model, plan: Plan, parts: Sequence[ScorePart]) -> Needs:
    k, n_kept, n_details = model.sum_width, len(parts[0].keep), len(parts[0].details)
    return row_needs(
        (plan.blocks[part.first : part.last] for part in parts),
        len(plan.schema.feature_names),
        len(plan.schema.columns) + n_kept,
        {"sums": (2 * k + 1) if n_details else k, "result": k + 1 + n_details + 2 * n_kept},
    )


def _check_names(model: Model, details: tuple[str, ...], keep: tuple[str, ...]) -> None:
    taken = score_names(model.schema.classes, model.parameters, details)
    clash = sorted({name for name in keep if name in taken or keep.count(name) > 1})
    if clash:
        raise ParameterError(
            f"columns {clash} cannot be kept: their names are given twice or are those of scores; "
            f"rename them in the input"
        )


def _details(model: Model) -> tuple[str, ...]:
    """Return the names of the columns of uncertainty; a density has none."""
    return detail_names(model.parameters, model.has_label_std)


def _write_parts(
    pipeline: TreePipeline, parts: list[ScorePart], n_rows: int, reporter: ProgressReporter
) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    speed_meter = Speed()

    def record() -> Progress:
        rows = sum(entry["rows"] for entry in entries)
        speed = speed_meter.after(rows)
        left = (n_rows - rows) / speed if speed > 0 else None
        return Progress(rows, n_rows, speed, rows, left, 0, 0, tree_groups=pipeline.n_groups)

    def note(entry: dict[str, Any]) -> None:
        entries.append(entry)
        reporter.report(record)

    try:
        pipeline.run(parts, note)
    except KeyboardInterrupt as stop:
        if stop.args:  # the interrupt has its own message
            raise
        raise KeyboardInterrupt(
            f"stopped with {len(entries):,} of {len(parts):,} files of scores written; run the "
            "same command again to go on from there"
        ) from None
    reporter.report(record, now=True)
    return entries
