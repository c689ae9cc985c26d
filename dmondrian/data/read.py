"""Reading of blocks and chunks of a plan: decoded, put in order and encoded.

Relies on the plan's recipe (schema, shuffle, seed) and on the descriptors of blocks and chunks; any
process that can open the uris reads the same rows. Promises: equal blocks give equal bytes,
whatever they are read together with; a file that changed since the plan was made is a `PlanError`
that names it, found before a row is used; safe to call from several threads.

A row group that is read in parts is decoded once per process if it is used again soon: up to
`KEPT_BYTES` of decoded rows are kept, at least one row group. Footers are kept up to `KEPT_FOOTERS`
bytes. Row groups of a store are read several at a time, up to `AHEAD_BYTES`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian._text.wording import counted
from dmondrian.data.arrow_arrays import array_of
from dmondrian.data.arrow_values import BoolArray, FloatArray, IntArray
from dmondrian.data.block_table import Block
from dmondrian.data.chunks import Chunk
from dmondrian.data.columns import partition_array
from dmondrian.data.encode import (
    Matrix,
    encode_earlier_labels,
    encode_features,
    encode_target,
    encode_times,
    encode_weight,
    with_class_weight,
)
from dmondrian.data.footers import first_line, open_parquet, read_columns
from dmondrian.data.plan import Plan
from dmondrian.data.schema import Schema
from dmondrian.data.shuffle import CHUNK_ORDER, permutation, share_rows
from dmondrian.data.single_flight_cache import SingleFlightCache
from dmondrian.data.source import is_local, stat_uri
from dmondrian.data.tables import Columns, joined
from dmondrian.errors import DataError, OutageError, PlanError, SchemaError
from dmondrian.store.failures import kind_of

KEPT_BYTES = 256 << 20
"""Bytes of decoded row groups that are kept, at least one of them."""

MOVED_GROUPS = 2  # row groups whose permutation is kept
VALUE_BYTES = 8  # allowed for a decoded value

CONNECTIONS = 16
"""Row groups read concurrently from a store: that is mostly waiting."""

AHEAD = 2 * CONNECTIONS
"""Most row groups of a store that are being read or waiting, so that a slow one delays few."""

AHEAD_BYTES = 128 << 20
"""Most decoded bytes of these row groups, besides the one in use; one is always read."""

# The footer of a file of many row groups takes longer to read than one group, and a shuffled plan
# reads each file many times.
KEPT_FOOTERS = 64 << 20
"""Bytes of footers that are kept, at least one of them."""

HELD = 6
"""Bytes of a footer in memory per byte in the file: 5.6 measured with many columns."""

_groups: SingleFlightCache[pa.Table] = SingleFlightCache(
    KEPT_BYTES, lambda table: int(table.nbytes)
)
_footers: SingleFlightCache[pq.FileMetaData] = SingleFlightCache(
    KEPT_FOOTERS, lambda footer: HELD * footer.serialized_size
)


@dataclass(frozen=True)
class Encoded:
    """Encoded consecutive rows of a stream.

    If rows without target are dropped (see `counts`), there are fewer rows than in the block.
    """

    X: Matrix  # float32 [n, d], C-contiguous
    y: FloatArray | None  # float64 [n]: class index or value
    weight: FloatArray | None  # float64 [n]
    keep: pa.Table | None  # copied columns, n rows
    counts: dict[str, int]  # events, see `encode_features`; and "null_target", always
    names: Sequence[str]  # of the features, d
    dropped: IntArray | None = None  # ascending places of dropped rows; None for none
    times: FloatArray | None = None  # float64 [n]: see `encode_times`
    earlier: FloatArray | None = None  # float64 [n]: see `encode_earlier_labels`

    def between(self, start: int, stop: int) -> Encoded:
        """Return the rows at the places `start` to `stop - 1`, dropped rows included in the count.

        Dropped rows are counted in their part. Other events are known only for all rows together,
        and are counted with the first part: a run that ends inside has the events of the rows
        after it too, and one that resumes inside, after an earlier version that read these rows in
        other parts, lacks those of the remaining rows.
        """
        counts = dict(self.counts) if start == 0 else {}
        part, dropped = self.left_between(start, stop), self.dropped
        counts["null_target"] = stop - start - (part.stop - part.start)
        if dropped is not None:
            dropped = dropped[(dropped >= start) & (dropped < stop)] - start
        return Encoded(
            self.X[part],
            None if self.y is None else self.y[part],
            None if self.weight is None else self.weight[part],
            None if self.keep is None else self.keep.slice(part.start, part.stop - part.start),
            counts,
            self.names,
            dropped,
            None if self.times is None else self.times[part],
            None if self.earlier is None else self.earlier[part],
        )

    def left_between(self, start: int, stop: int) -> slice:
        """Return the rows of `X` that are at the places `start` to `stop - 1`."""
        if self.dropped is None:
            return slice(start, stop)
        # Rows that are left before a place: all before it but those that were dropped.
        first, last = np.searchsorted(self.dropped, [start, stop]).tolist()
        return slice(start - first, stop - last)


@dataclass(frozen=True)
class _Part:
    """Rows of one block to read."""

    block: Block
    rows: IntArray | None = None  # their numbers in the row group; None: those of the block
    again: bool = False  # other rows of the row group are read soon

    def __len__(self) -> int:
        return self.block.rows if self.rows is None else len(self.rows)

    def number(self, row: int) -> int:
        """Return the number of a row in the row group."""
        return self.block.offset + row if self.rows is None else int(self.rows[row])


def read_block(plan: Plan, block: Block, *, keep: Sequence[str] = ()) -> Encoded:
    """Read and encode one block.

    Parameters
    ----------
    plan : Plan
        The plan of the block, without bands; it need not have other blocks. A mixed stream is read
        with `read_chunk`.
    block : Block
    keep : sequence of str
        Columns returned unchanged, in addition to the features.

    Returns
    -------
    Encoded

    Raises
    ------
    PlanError
        The file changed or is missing since the plan was made.
    SchemaError
        A column of `keep` is missing.
    DataError
        The file is damaged, or holds values that cannot be used (infinities, labels unknown,
        missing targets): column, file and row are named.
    """
    return read_blocks(plan, [block], keep=keep)


def read_blocks(
    plan: Plan, blocks: Sequence[Block], *, keep: Sequence[str] = (), earlier: str | None = None
) -> Encoded:
    """Read and encode consecutive blocks; see `read_block`."""
    if plan.bands:
        raise ValueError("the stream is mixed: read its chunks")
    parts = []
    for block in blocks:
        rows = None
        if plan.shuffle:
            moved = _moved_rows(plan.seed, block.group, block.group_rows)
            rows = moved[block.offset : block.offset + block.rows]
        parts.append(_Part(block, rows, again=block.rows < block.group_rows))
    return _read(plan, parts, keep, None, earlier)


def read_chunk(plan: Plan, chunk: Chunk, start: int = 0, *, earlier: str | None = None) -> Encoded:
    """Read and encode one chunk of a plan; see `read_block`.

    `earlier` is a column with labels of earlier rows, which are read too. Blocks that end at or
    before the position `start` are not read, as their files may be gone: their rows are zeros, of
    weight 0. A mixed chunk is read as a whole.
    """
    blocks = plan.blocks[chunk.first : chunk.last]
    if not plan.bands:
        rest = [block for block in blocks if block.position + block.rows > start]
        if not rest or len(rest) == len(blocks):
            return read_blocks(plan, blocks, earlier=earlier)
        read = read_blocks(plan, rest, earlier=earlier)
        return _behind(rest[0].position - chunk.start, read)
    n_columns = len(plan.schema.columns) + 2
    n_bytes = sum(block.rows for block in blocks) * n_columns * VALUE_BYTES
    again = chunk.shares > 1 and n_bytes <= KEPT_BYTES
    parts = [
        _Part(
            block,
            None
            if chunk.shares == 1
            else share_rows(plan.seed, block.group, block.rows, chunk.share, chunk.shares),
            again,
        )
        for block in blocks
    ]
    # The permutation maps rows of the stream to places; invert it.
    order = permutation(plan.seed, CHUNK_ORDER + chunk.start, chunk.rows)
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return _read(plan, parts, (), places, earlier)


def _behind(n: int, encoded: Encoded) -> Encoded:
    """Return encoded rows behind `n` rows that were not read."""
    y, weight, times, dropped = encoded.y, encoded.weight, encoded.times, encoded.dropped
    earlier = encoded.earlier
    return replace(
        encoded,
        X=np.concatenate([np.zeros((n, encoded.X.shape[1]), dtype=np.float32), encoded.X]),
        y=None if y is None else np.concatenate([np.zeros(n), y]),
        weight=None if weight is None else np.concatenate([np.zeros(n), weight]),
        times=None if times is None else np.concatenate([np.zeros(n), times]),
        earlier=None if earlier is None else np.concatenate([np.full(n, np.nan), earlier]),
        dropped=None if dropped is None else dropped + n,
    )


def _read(
    plan: Plan,
    parts: Sequence[_Part],
    keep: Sequence[str],
    places: IntArray | None,
    earlier: str | None,
) -> Encoded:
    """Read and encode parts of row groups; `places` are the new places of their rows, if any."""
    schema = plan.schema
    n = sum(map(len, parts))
    counts: dict[str, int] = {"null_target": 0}
    X: Matrix | None = None
    y = None if schema.target is None else np.empty(n)
    weight = np.empty(n) if schema.has_weights else None
    times = None if schema.time is None else np.empty(n)
    before = None if earlier is None else np.empty(n)
    missing: BoolArray | None = None
    first_missing = ""
    kept: list[pa.Table] = []
    start = 0
    for columns, some in joined(_tables(plan, parts, keep, earlier)):
        where = _locator(some)
        stop = start + sum(map(len, some))
        try:
            features = encode_features(schema, columns, stop - start, counts, where)
            target, lacks = None, None
            if schema.target is not None:
                target, lacks = encode_target(schema, columns[schema.target], where)
            weights = None
            if schema.weight is not None:
                weights = encode_weight(schema, columns[schema.weight], where)
            if schema.class_weight is not None and target is not None:
                weights = with_class_weight(schema, target, weights, where)
            of_rows = None
            if schema.time is not None:
                of_rows = encode_times(schema, columns[schema.time], where)
            labels_before = None
            if earlier is not None:
                labels_before = encode_earlier_labels(schema, columns[earlier])
        except (pa.ArrowException, ValueError, OverflowError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"cannot convert {where(0)} and the rows after it: {first_line(error)}"
            ) from error
        here = slice(start, stop) if places is None else places[start:stop]
        if lacks is not None and lacks.any():
            missing = np.zeros(n, dtype=np.bool_) if missing is None else missing
            missing[here] = lacks
            first_missing = first_missing or where(int(lacks.argmax()))
        if keep:
            kept.append(pa.table({name: columns[name] for name in keep}))
        if X is None and places is None and stop == n:  # all in one part: nothing to concatenate
            X, y, weight, times, before = features, target, weights, of_rows, labels_before
        else:
            X = np.empty((n, features.shape[1]), dtype=np.float32) if X is None else X
            X[here] = features
            pairs = (y, target), (weight, weights), (times, of_rows), (before, labels_before)
            for whole, values in pairs:
                if whole is not None and values is not None:
                    whole[here] = values
        start = stop
    assert X is not None  # there is a block
    table = pa.concat_tables(kept) if keep else None
    encoded = Encoded(
        X, y, weight, table, counts, schema.feature_names, times=times, earlier=before
    )
    return encoded if missing is None else _without(encoded, missing, schema, first_missing)


def _tables(
    plan: Plan, parts: Sequence[_Part], keep: Sequence[str], earlier: str | None
) -> Iterator[tuple[_Part, Columns]]:
    """Yield parts in order with their columns; parts of a store are read concurrently."""
    unchanged: set[str] = set()
    schema = plan.schema
    wanted = [column.name for column in schema.columns]
    named_roles = schema.target, schema.weight, schema.time, earlier, *keep
    wanted += [name for name in named_roles if name is not None]
    names = list(dict.fromkeys(wanted))
    texts = [c.name for c in schema.columns if c.kind == "category" and c.name not in keep]

    def read(part: _Part) -> Columns:
        if part.block.uri not in unchanged:
            check_unchanged(part.block)
            unchanged.add(part.block.uri)
        return _columns(part, names, texts)

    if len(parts) == 1 or all(is_local(part.block.uri) for part in parts):
        for part in parts:
            yield part, read(part)
        return
    n_columns = len(names)
    waiting: deque[tuple[_Part, int, Future[Columns]]] = deque()
    total = 0
    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        for part in parts:
            n_bytes = part.block.group_rows * n_columns * VALUE_BYTES
            while waiting and (len(waiting) == AHEAD or total + n_bytes > AHEAD_BYTES):
                first, freed, columns = waiting.popleft()
                total -= freed
                yield first, columns.result()
            waiting.append((part, n_bytes, pool.submit(read, part)))
            total += n_bytes
        while waiting:
            first, _, columns = waiting.popleft()
            yield first, columns.result()
    finally:
        pool.shutdown(cancel_futures=True)  # waits for running reads


def check_unchanged(block: Block) -> None:
    """Refuse to read a file that is not as it was when the plan was made.

    Raises
    ------
    PlanError
    """
    try:
        found = stat_uri(block.uri)
    except OSError as error:
        kind = OutageError if kind_of(error, block.uri) is OutageError else PlanError
        raise kind(f"cannot look at {block.uri}, a file of the plan: {error}") from error
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


def _columns(part: _Part, names: Sequence[str], texts: Sequence[str]) -> Columns:
    """Return the columns of a part, in the order of its rows; `texts` dictionary-encoded."""
    block = part.block
    constants = {value[0]: value for value in block.partition}
    dictionaries = tuple(name for name in texts if name not in constants)
    if part.again:
        key = (block.uri, block.stamp, block.row_group, tuple(names), dictionaries)
        table = _groups.get(
            key, lambda: _read_group(block, names, dictionaries, is_read_again=True)
        )
    else:
        table = _read_group(block, names, dictionaries, is_read_again=False)
    in_file = set(table.column_names)
    lacking = [name for name in names if name not in in_file and name not in constants]
    if lacking:
        raise SchemaError(f"{block.uri} has no column {', '.join(map(repr, lacking))}")
    if part.rows is not None:
        table = table.take(array_of(part.rows)) if table.num_columns else table
    elif block.rows < block.group_rows:
        table = table.slice(block.offset, block.rows)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name in names:
        if name not in in_file:
            columns[name] = partition_array(constants[name], len(part))
    return {name: columns[name] for name in names}


@lru_cache(maxsize=MOVED_GROUPS)  # the blocks of one row group share its permutation
def _moved_rows(seed: int, group: int, rows: int) -> IntArray:
    return permutation(seed, group, rows)


def _read_group(
    block: Block, names: Sequence[str], dictionaries: Sequence[str], is_read_again: bool
) -> pa.Table:
    # Without a stamp changes are not noticed, so the footer is read each time.
    key = (block.uri, block.size, block.stamp) if block.stamp else None
    known = None if key is None else _footers.find(key)
    with open_parquet(block.uri, dictionaries, known) as parquet:
        metadata = parquet.metadata
        # Who follows a folder reads thousands of files of one group, and each of them once.
        is_kept = is_read_again or metadata.num_row_groups > 1
        if known is None and key is not None and is_kept:
            _footers.get(key, lambda: metadata)
        is_there = block.row_group < metadata.num_row_groups
        n_rows = metadata.row_group(block.row_group).num_rows if is_there else 0
        if n_rows != block.group_rows:
            raise PlanError(
                f"{block.uri}, row group {block.row_group}: expected {block.group_rows} rows as "
                f"planned, got {n_rows}; start a new run"
            )
        known = set(parquet.schema_arrow.names)
        present = [name for name in names if name in known]
        table = read_columns(parquet, block.uri, block.row_group, present)
    # a column whose name has a dot may also select columns with the same beginning
    return table if table.num_columns == len(present) else table.select(present)


def _locator(parts: Sequence[_Part]) -> Callable[[int], str]:
    """Return a function that names a row of the parts: its file, and its number from 0."""

    def where(row: int) -> str:
        part = parts[0]
        for part in parts:
            if row < len(part):
                break
            row -= len(part)
        block = part.block
        with open_parquet(block.uri) as parquet:
            metadata = parquet.metadata
            before = sum(metadata.row_group(i).num_rows for i in range(block.row_group))
        return f"{block.uri}, row {before + part.number(row)}"

    return where


def _without(encoded: Encoded, missing: BoolArray, schema: Schema, first: str) -> Encoded:
    """Return the rows that have a target."""
    n_missing = int(missing.sum())
    if schema.null_target != "drop":
        raise DataError(
            f"the target {schema.target!r} is missing in {counted(n_missing, 'row')}, first at "
            f"{first}: fill them in, or take such rows out of the data; a model that was trained "
            'with null_target="drop" passes over them'
        )
    present = ~missing
    return replace(
        encoded,
        X=encoded.X[present],
        y=None if encoded.y is None else encoded.y[present],
        weight=None if encoded.weight is None else encoded.weight[present],
        times=None if encoded.times is None else encoded.times[present],
        earlier=None if encoded.earlier is None else encoded.earlier[present],
        keep=None if encoded.keep is None else encoded.keep.filter(array_of(present)),
        counts={**encoded.counts, "null_target": n_missing},
        dropped=np.flatnonzero(missing),
    )
