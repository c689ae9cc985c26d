"""Staging of Dask collections: each partition is written once as a Parquet file of the run.

Relies on a collection that computes the same values again for partitions not written yet. Promises
that partitions keep their order, that an existing file is never written again (so a resumed run
reads the rows it began with), that a collection of another shape or of other rows (in its first or
last partition) is refused, and that no task is left on the cluster, however it ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from distributed import Client, KilledWorker

from dmondrian.checkpoint.stream import STAGED
from dmondrian.distributed.cluster.results import LostResultError, ResultQueue
from dmondrian.distributed.cluster.workers import Workers
from dmondrian.errors import (
    CheckpointError,
    ClusterError,
    DataError,
    DMondrianError,
    FencedError,
    ParameterError,
)
from dmondrian.store import ExistsError, open_store

TARGET = "target"
"""Name of the column that a separate target array becomes."""

ROW_GROUP = 65_536
STAGE_SECONDS = 3600.0
"""Seconds without a new partition after which staging is given up."""

_TICK = 0.5  # seconds between two polls


def is_dask(data: Any) -> bool:
    """Return whether this is a Dask collection, without importing Dask's collections."""
    return hasattr(data, "__dask_graph__") or hasattr(data, "__dask_tokenize__")


def stage(client: Client, data: Any, target: Any, run: str) -> tuple[str, str | None]:
    """Write a Dask DataFrame or Array into the run folder.

    Parameters
    ----------
    client : Client
        Computes the partitions.
    data : Dask DataFrame, or Dask Array [n, d]
    target : str, or Dask or NumPy array [n] beside an array; None for a density
    run : str
        URL of the run folder.

    Returns
    -------
    (str, str or None)
        URL of the Parquet files, name of the target column.

    Raises
    ------
    ParameterError
        Shapes or types do not fit.
    CheckpointError
        The folder holds the partitions of another collection.
    DataError
        A partition could not be computed.
    ClusterError
        Workers were lost beyond recovery.
    """
    if hasattr(data, "to_delayed") and hasattr(data, "columns"):
        parts: list[Any] = list(data.to_delayed())
        columns = [str(name) for name in data.columns]
        if not isinstance(target, str | None):
            raise ParameterError(f"target is {type(target).__name__}; expected a column's name")
    else:
        parts, columns = _array_parts(data, target)
        target = TARGET
    folder = f"{run.rstrip('/')}/{STAGED}"
    store = open_store(folder)
    about = {"columns": columns, "partitions": len(parts)}
    try:
        store.put_same("_staged.json", json.dumps(about, sort_keys=True).encode())
    except FencedError as error:
        raise CheckpointError(
            f"{folder} holds the partitions of another collection; expected {len(parts)} "
            f"partitions with the columns {columns}: choose another run folder"
        ) from error
    written = set(store.list())
    known = [i for i in sorted({0, len(parts) - 1}) if part_name(i) in written]
    for i, is_same in _compute(client, has_same_rows, parts, known, columns, folder).items():
        if is_same is False:
            raise CheckpointError(
                f"{folder} holds other rows than this collection, in partition {i}: a run learns "
                "the collection that it began with. Choose another run folder; a run on Parquet "
                "files, or on batches, can be continued with more of them"
            )
    missing = [i for i in range(len(parts)) if part_name(i) not in written]
    _compute(client, write_part, parts, missing, columns, folder)
    return folder, target


def part_name(index: int) -> str:
    """Return the name of a partition's file; names sort in the order of partitions."""
    return f"part-{index:06d}.parquet"


def _array_parts(data: Any, target: Any) -> tuple[list[Any], list[str]]:
    """Return the row blocks of an array, pairs of delayed rows and targets, and column names."""
    import dask.array

    if getattr(data, "ndim", None) != 2:
        raise ParameterError(
            f"data is {type(data).__name__} of shape {getattr(data, 'shape', None)}; expected a "
            f"Dask DataFrame or a two-dimensional Dask Array"
        )
    if target is None or isinstance(target, str) or getattr(target, "ndim", 1) != 1:
        raise ParameterError("beside a Dask Array, target must be a one-dimensional array")
    data = data.rechunk({1: -1})
    sizes = data.chunks[0]
    if any(size != size for size in sizes):
        raise ParameterError("the array's chunks have unknown sizes: call compute_chunk_sizes()")
    y = dask.array.asarray(target)
    if y.shape[0] != data.shape[0]:
        raise ParameterError(f"target has {y.shape[0]} rows, data has {data.shape[0]}")
    y = y.rechunk((sizes,))
    pairs = zip(data.to_delayed()[:, 0], y.to_delayed(), strict=True)
    return [list(pair) for pair in pairs], [f"x{j}" for j in range(data.shape[1])] + [TARGET]


def _compute(
    client: Client,
    task: Callable[..., Any],
    parts: Sequence[Any],
    numbers: Sequence[int],
    columns: list[str],
    folder: str,
) -> dict[int, Any]:
    """Return the results of a task for some partitions; None for one lost with a worker."""
    from dask.delayed import delayed

    if not numbers:
        return {}
    lazy = delayed(task, pure=False)
    tasks = [
        lazy(parts[i], i, columns, folder, dask_key_name=f"dmondrian-stage-{i}-{uuid4().hex}")
        for i in numbers
    ]
    workers, results = Workers(client), ResultQueue(client)
    try:
        futures = client.compute(tasks, retries=2)
        for future, i in zip(futures, numbers, strict=True):
            results.watch(future, i)
        return _wait(workers, results, folder)
    finally:
        results.close()


def _wait(workers: Workers, results: ResultQueue, folder: str) -> dict[int, Any]:
    """Wait until all partitions are computed; return their results."""
    last_result, partitions = time.monotonic(), {}
    while len(results):
        workers.refresh()
        finished = results.take(_TICK)
        if finished is not None:
            last_result = time.monotonic()
            partitions[finished.context] = finished.result
            if isinstance(finished.error, DMondrianError):
                raise finished.error
            # A partition whose result was lost has been written.
            if finished.error is not None and not isinstance(finished.error, LostResultError):
                raise _translated(finished.error, finished.context) from finished.error
        elif time.monotonic() - last_result > STAGE_SECONDS:
            raise ClusterError(
                f"no partition was written to {folder} for {STAGE_SECONDS:.0f} seconds; run the "
                f"same command again to write the rest"
            )
    return partitions


def _translated(error: BaseException, index: int) -> DMondrianError:
    """Return the error of this package for a failed partition."""
    if isinstance(error, KilledWorker):
        return ClusterError(f"partition {index} kills the workers that write it: {error}")
    return DataError(
        f"partition {index} of the collection cannot be computed or written as Parquet: "
        f"{type(error).__name__}: {error}"
    )


def write_part(part: Any, index: int, columns: list[str], folder: str) -> int:
    """Task: write one partition unless it exists; return its number of rows."""
    table = _table(part, columns)
    try:
        open_store(folder).put_new(part_name(index), _parquet(table))
    except ExistsError:
        return int(table.num_rows)  # an earlier attempt wrote it
    return int(table.num_rows)


def has_same_rows(part: Any, index: int, columns: list[str], folder: str) -> bool:
    """Task: return whether a partition has the rows that were written of it."""
    written = pq.read_table(pa.BufferReader(open_store(folder).get(part_name(index))))
    computed = pq.read_table(pa.BufferReader(_parquet(_table(part, columns))))
    return _comparable(computed).equals(_comparable(written))


def _table(part: Any, columns: list[str]) -> pa.Table:
    if isinstance(part, list):
        X, y = part
        arrays = [pa.array(X[:, j]) for j in range(X.shape[1])] + [pa.array(y)]
        return pa.Table.from_arrays(arrays, names=columns)
    return pa.Table.from_pandas(part, preserve_index=False)


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=ROW_GROUP, write_page_checksum=True)
    return bytes(sink.getvalue().to_pybytes())


def _comparable(table: pa.Table) -> pa.Table:
    """Return a table that equals one of the same rows: NaN is null, as it equals nothing."""
    for at, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            column = table.column(at)
            nulls = pa.scalar(None, field.type)
            table = table.set_column(at, field.name, pc.if_else(pc.is_nan(column), nulls, column))
    return table
