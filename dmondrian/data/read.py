"""One block of a plan, read, decoded, put in order and encoded.

Relies on the plan's recipe (schema, shuffle, seed) and on the block's descriptor; any process that
can open the uri reads the same block. Promises: equal blocks give equal bytes; a file that changed
since the plan was made is a `PlanError` that names it, found before a row is used; safe to call
from several threads.

A row group that was cut into several blocks is decoded once per process and kept until
`KEPT_GROUPS` others were read; footers are kept up to `KEPT_FOOTERS` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.data.columns import partition_array
from dmondrian.data.encode import Matrix, encode_features, encode_target, encode_weight
from dmondrian.data.footers import first_line, open_parquet, read_columns
from dmondrian.data.kept import Kept
from dmondrian.data.plan import Block, Plan
from dmondrian.data.schema import Schema
from dmondrian.data.shuffle import permutation
from dmondrian.data.source import is_local, stat_uri
from dmondrian.data.values import BoolArray, FloatArray, IntArray
from dmondrian.errors import DataError, PlanError, SchemaError
from dmondrian.wording import counted

KEPT_GROUPS = 2
# The footer of a file of many row groups takes longer to read than one group, and a shuffled plan
# comes back to all of its files.
KEPT_FOOTERS = 64 << 20
"""Bytes of footers that are kept, at least one of them."""

HELD = 6
"""Bytes of a footer in memory for each in the file: 5.6 were measured for one of many columns."""

_groups: Kept[pa.Table] = Kept(KEPT_GROUPS)
_footers: Kept[pq.FileMetaData] = Kept(KEPT_FOOTERS, lambda footer: HELD * footer.serialized_size)


@dataclass(frozen=True)
class Encoded:
    """The rows of one block as a forest takes them.

    Without a target (scoring), or where rows lacked one and are dropped, see `counts`: there are
    then fewer rows than the block has.
    """

    X: Matrix  # float32 [n, d], C-contiguous
    y: FloatArray | None  # float64 [n]: class index or value
    weight: FloatArray | None  # float64 [n]
    keep: pa.Table | None  # columns passed through, n rows
    counts: dict[str, int]  # events, see `encode_features`; and "null_target", always
    names: Sequence[str]  # of the features, d


def read_block(plan: Plan, block: Block, *, keep: Sequence[str] = ()) -> Encoded:
    """Read and encode one block.

    Parameters
    ----------
    plan : Plan
        The plan of the block; it need not hold other blocks.
    block : Block
    keep : sequence of str
        Columns returned as they are, beside the features.

    Returns
    -------
    Encoded

    Raises
    ------
    PlanError
        The file changed or vanished since the plan was made.
    SchemaError
        A column of `keep` is not there.
    DataError
        The file is damaged, or holds values that cannot be used (infinities, labels unknown,
        missing targets): column, file and row are named.
    """
    _check_unchanged(block)
    schema = plan.schema
    columns, order = _columns(plan, block, keep)
    where = _locator(block, order)
    counts: dict[str, int] = {"null_target": 0}
    try:
        X = encode_features(schema, columns, block.rows, counts, where)
        y, missing = None, None
        if schema.target is not None:
            y, missing = encode_target(schema, columns[schema.target], where)
        weight = None
        if schema.weight is not None:
            weight = encode_weight(schema, columns[schema.weight], where)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"cannot convert {where(0)} and the rows after it: {first_line(error)}"
        ) from error
    kept = pa.table({name: columns[name] for name in keep}) if keep else None
    if missing is not None and missing.any():
        present = _without_missing(schema, missing, counts, where)
        X, y = X[present], (None if y is None else y[present])
        weight = None if weight is None else weight[present]
        kept = None if kept is None else kept.filter(pa.array(present))
    return Encoded(X, y, weight, kept, counts, schema.feature_names)


def _check_unchanged(block: Block) -> None:
    try:
        found = stat_uri(block.uri)
    except OSError as error:
        raise PlanError(f"cannot look at {block.uri}, a file of the plan: {error}") from error
    if found is None:
        raise PlanError(
            f"{block.uri} is part of the plan but is no longer there: put it back, or start a new "
            "run; if the data moved, train the run again with a job that names where they are now"
        )
    if not found.is_same(block.size, block.stamp, is_local(block.uri)):
        raise PlanError(
            f"{block.uri} changed since the plan was made: expected {block.size} bytes stamped "
            f"{block.stamp}, got {found.size} bytes stamped {found.stamp}; put the file back, or "
            "start a new run"
        )


def _columns(
    plan: Plan, block: Block, keep: Sequence[str]
) -> tuple[dict[str, pa.ChunkedArray | pa.Array], IntArray | None]:
    """Read a block's columns in stream order, and each row's place in the row group if moved."""
    schema = plan.schema
    wanted = [column.name for column in schema.columns]
    wanted += [name for name in (schema.target, schema.weight, *keep) if name is not None]
    names = list(dict.fromkeys(wanted))
    texts = [column.name for column in schema.columns if column.kind == "category"]
    constants = {value[0]: value for value in block.partition}
    dictionaries = tuple(name for name in texts if name not in keep and name not in constants)
    if block.rows < block.group_rows:
        key = (block.uri, block.stamp, block.row_group, tuple(names), dictionaries)
        table = _groups.get(key, lambda: _read_group(block, names, dictionaries))
    else:
        table = _read_group(block, names, dictionaries)
    in_file = set(table.column_names)
    lacking = [name for name in names if name not in in_file and name not in constants]
    if lacking:
        raise SchemaError(f"{block.uri} has no column {', '.join(map(repr, lacking))}")
    order: IntArray | None = None
    if plan.shuffle:
        moved = _moved_rows(plan.seed, block.group, block.group_rows)
        order = moved[block.offset : block.offset + block.rows]
        table = table.take(pa.array(order)) if table.num_columns else table
    elif block.rows < block.group_rows:
        table = table.slice(block.offset, block.rows)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name in names:
        if name not in in_file:
            columns[name] = partition_array(constants[name], block.rows)
    return columns, order


@lru_cache(maxsize=KEPT_GROUPS)  # the blocks of one row group share its permutation
def _moved_rows(seed: int, group: int, rows: int) -> IntArray:
    return permutation(seed, group, rows)


def _footer(block: Block) -> pq.FileMetaData | None:
    """Return the footer of a block's file; None without a stamp, as it may change unseen."""

    def read() -> pq.FileMetaData:
        with open_parquet(block.uri) as parquet:
            return parquet.metadata

    key = block.uri, block.size, block.stamp
    return _footers.get(key, read) if block.stamp else None


def _read_group(block: Block, names: Sequence[str], dictionaries: Sequence[str]) -> pa.Table:
    with open_parquet(block.uri, dictionaries, _footer(block)) as parquet:
        there = parquet.metadata
        is_there = block.row_group < there.num_row_groups
        n_rows = there.row_group(block.row_group).num_rows if is_there else 0
        if n_rows != block.group_rows:
            raise PlanError(
                f"{block.uri}, row group {block.row_group}: expected {block.group_rows} rows as "
                f"planned, got {n_rows}; start a new run"
            )
        known = set(parquet.schema_arrow.names)
        present = [name for name in names if name in known]
        table = read_columns(parquet, block.uri, block.row_group, present)
    # a column whose name holds a dot may bring columns along that share its beginning
    return table if table.num_columns == len(present) else table.select(present)


def _locator(block: Block, order: IntArray | None) -> Callable[[int], str]:
    """How to name a row of the block: its file, and its number there, counted from 0."""

    def where(row: int) -> str:
        in_group = block.offset + row if order is None else int(order[row])
        with open_parquet(block.uri) as parquet:
            metadata = parquet.metadata
            before = sum(metadata.row_group(i).num_rows for i in range(block.row_group))
        return f"{block.uri}, row {before + in_group}"

    return where


def _without_missing(
    schema: Schema, missing: BoolArray, counts: dict[str, int], where: Callable[[int], str]
) -> BoolArray:
    if schema.null_target != "drop":
        raise DataError(
            f"the target {schema.target!r} is missing in {counted(int(missing.sum()), 'row')}, "
            f"first at {where(int(missing.argmax()))}: fill them in, or take such rows out of the "
            'data; a model that was trained with null_target="drop" passes over them'
        )
    counts["null_target"] = int(missing.sum())
    return ~missing
