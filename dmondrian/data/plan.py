"""The frozen stream: an ordered list of blocks of rows, with the encoding they are read with.

A stream that is shuffled is *mixed*: its blocks are whole row groups, bands of which are drawn from
at a time (:mod:`dmondrian.data.chunks`). Plans of earlier versions have a shuffle without bands:
row groups in a random order, and the rows of each in one.

Data may move after a plan was made: its blocks then have the places where their files are now, and
`origins` what the files are called in the stored plan, which the digest covers.

Relies on `Schema`. Promises: a plan survives `to_parquet`/`from_parquet` unchanged; equal plans
give equal bytes and equal digests; the digest covers the schema, the order, and the identity (uri,
size, stamp, row group, rows) of every block; a file that was moved or rewritten makes another plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dmondrian._text.wording import counted
from dmondrian.checkpoint.document import parse_json
from dmondrian.data.arrow_arrays import column_of
from dmondrian.data.block_table import (
    NUMBERS,
    Block,
    BlockTable,
    Partition,
    PartitionValue,
    TableMaker,
)
from dmondrian.data.chunks import Band, Chunk, join, lay_bands, mix
from dmondrian.data.schema import Schema
from dmondrian.data.shuffle import GROUP_ORDER, permutation
from dmondrian.errors import CorruptError

BLOCK_ROWS = 65_536  # longer row groups are cut into blocks of this many rows
_META = b"dmondrian.plan"
_NO_BLOCKS = '"blocks":[]'
_FORMAT = 1
_MIXED_FORMAT = 2  # of plans with bands: versions that know none refuse them by it


@dataclass(frozen=True)
class TableState:
    """A table at the version up to which a stream has its rows."""

    uri: str
    id: str  # of the table, which copies of it have too
    version: int
    deleted: int = 0  # rows of the stream that were deleted since they came
    updated: int = 0  # rows of the stream in whose place others stand since
    unlearned: int = 0  # rows that were written together with rows of the stream, and are not in it
    bounds: tuple[str, ...] = ()  # which of these counts are upper bounds

    def to_json(self) -> dict[str, Any]:
        """Return its values; 1.0.0 refuses ``bounds``, so it is there only where it is needed."""
        values = asdict(self)
        bounds = values.pop("bounds")
        return {**values, "bounds": list(bounds)} if bounds else values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TableState:
        """Return the state of `to_json`; 1.0.0 may have counted deleted rows below 0."""
        deleted, bounds = values.get("deleted", 0), tuple(values.get("bounds", ()))
        return cls(**{**values, "deleted": max(0, deleted), "bounds": bounds})


@dataclass(frozen=True)
class Group:
    """One row group of a source, in source order."""

    uri: str
    size: int
    stamp: str
    row_group: int
    rows: int
    partition: tuple[PartitionValue, ...] = ()
    fingerprint: str = ""  # of the file, if it is known


@dataclass(frozen=True)
class Plan:
    """A frozen, numbered stream of rows."""

    schema: Schema
    blocks: Sequence[Block]  # a `BlockTable`, whatever was given
    shuffle: bool = False
    seed: int = 0
    notes: tuple[str, ...] = ()  # columns left out and oddities of the data; not in the digest
    # (rows, digest) of each plan that this one continues, oldest first; not in the digest
    earlier: tuple[tuple[int, str], ...] = ()
    excluded: tuple[str, ...] = ()  # columns that the job left out; not in the digest
    bands: tuple[Band, ...] = ()  # of a stream that is mixed
    # current uri -> (uri, stamp) when the plan was made, of files that have another uri now
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    # index columns of data frames that the job includes as features; None in plans of a version
    # that used them all; not in the digest
    included: tuple[str, ...] | None = ()
    # JSON of the options of `make_plan` that were given; None in plans of earlier versions; not in
    # the digest
    asked: str | None = None
    tables: tuple[TableState, ...] = ()  # not in the digest
    about_learned: tuple[str, ...] = field(default=(), compare=False)  # notes; not stored

    def __post_init__(self) -> None:
        """Keep the blocks as columns."""
        object.__setattr__(self, "blocks", BlockTable.of(self.blocks))

    @property
    def table(self) -> BlockTable:
        """The blocks as columns."""
        assert isinstance(self.blocks, BlockTable)  # see `__post_init__`
        return self.blocks

    def __repr__(self) -> str:
        """Return one line, without the blocks, of which there may be thousands."""
        n_files = self.table.n_files
        return f"Plan({counted(self.n_rows, 'row')}, {counted(n_files, 'file')}, {self.schema!r})"

    @cached_property
    def n_rows(self) -> int:
        """Rows in the files of the plan (before rows without a target are dropped)."""
        return self.table.n_rows

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks that are read and encoded together, in stream order."""
        if self.bands:
            return mix(self.blocks, self.bands)
        return join(self.blocks, {rows for rows, _ in self.earlier})

    @cached_property
    def chunks_by_block(self) -> tuple[Chunk, ...]:
        """Chunks of one block each, unless the stream is mixed."""
        return self.chunks if self.bands else join(self.blocks, max_rows=0)

    def blocks_before(self, position: int) -> BlockTable:
        """Return the blocks with rows before a position; they may have later rows too."""
        if self.bands:
            last = max((chunk.last for chunk in self.chunks if chunk.start < position), default=0)
            return self.table[:last]
        return self.table.where(self.table.column("position") < position)

    def blocks_after(self, position: int) -> BlockTable:
        """Return the blocks that are read to go on from a position: with rows behind it.

        Of rows that are mixed, all of the blocks that some of these are drawn from.
        """
        if self.bands:
            first = min(
                (chunk.first for chunk in self.chunks if chunk.stop > position),
                default=len(self.blocks),
            )
            return self.table[first:]
        ends = self.table.column("position") + self.table.column("rows")
        return self.table.where(ends > position)

    @cached_property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the canonical content."""
        text = _canonical({**self._header(), "blocks": []})
        # The keys are sorted: before the blocks are the bands at most, which are numbers.
        head, tail = text.split(_NO_BLOCKS, 1)
        hasher = hashlib.sha256(f"{head}{_NO_BLOCKS[:-1]}".encode("ascii"))
        before = ""
        for rows in self._rows():
            hasher.update(f"{before}{_canonical(rows)[1:-1]}".encode("ascii"))
            before = ","
        hasher.update(f"]{tail}".encode("ascii"))
        return hasher.hexdigest()

    def with_digest_of(self, same_plan: Plan) -> Plan:
        """Return this plan, of the same content as another, whose digest may be known already."""
        if "digest" in vars(same_plan):
            vars(self)["digest"] = same_plan.digest
        return self

    def digest_at(self, position: int) -> str:
        """Return the digest of the oldest plan that has a position: trees there depend on it."""
        return next((digest for rows, digest in self.earlier if position <= rows), self.digest)

    def _header(self) -> dict[str, Any]:
        header = {
            "format": _MIXED_FORMAT if self.bands else _FORMAT,
            "schema": self.schema.to_json(),
            "shuffle": self.shuffle,
            "seed": self.seed,
        }
        if self.bands:
            header["bands"] = [[band.stop, band.shares] for band in self.bands]
        return header

    def _rows(self) -> Iterator[list[list[Any]]]:
        """Yield the stored form of blocks, some at a time: of all it would be many objects."""
        for first in range(0, len(self.blocks), _BATCH_ROWS):
            yield [_row(block, self.origins) for block in self.table[first : first + _BATCH_ROWS]]

    def _stored_rows(self) -> Iterator[list[list[Any]]]:
        """Yield what is written of blocks, some at a time: `_rows`, and the fingerprint."""
        for first in range(0, len(self.blocks), _BATCH_ROWS):
            yield [
                [*_row(block, self.origins), block.fingerprint]
                for block in self.table[first : first + _BATCH_ROWS]
            ]

    def to_parquet(self) -> bytes:
        """Write the plan as a Parquet file: a row per block, the rest in the file's metadata."""
        header = {**self._header(), "notes": list(self.notes), "digest": self.digest}
        header["earlier"] = [list(pair) for pair in self.earlier]
        header["excluded"] = list(self.excluded)
        if self.included is not None:
            header["included"] = list(self.included)
        if self.tables:
            header["tables"] = [table.to_json() for table in self.tables]
        if self.asked is not None:
            header["asked"] = self.asked
        text = json.dumps(header, sort_keys=True, separators=(",", ":"))
        fields = pa.schema([*_FIELDS, _FINGERPRINT], {_META: text.encode()})
        parts = [_stored_columns(rows, fields) for rows in self._stored_rows()]
        table = pa.Table.from_batches(parts, schema=fields).combine_chunks()
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_parquet(cls, data: bytes) -> Plan:
        """Return the plan that `to_parquet` wrote.

        Raises
        ------
        CorruptError
            The bytes are truncated, altered or not a plan.
        """
        try:
            header, blocks = _read(data)
            plan = cls(
                schema=Schema.from_json(header["schema"]),
                blocks=blocks,
                shuffle=header["shuffle"],
                seed=header["seed"],
                notes=tuple(header["notes"]),
                earlier=tuple((int(n), str(digest)) for n, digest in header.get("earlier", ())),
                excluded=tuple(header.get("excluded", ())),
                bands=tuple(Band(stop, shares) for stop, shares in header.get("bands", ())),
                included=tuple(header["included"]) if "included" in header else None,
                asked=header.get("asked"),
                tables=tuple(map(TableState.from_json, header.get("tables", ()))),
            )
            plan._check()
            stored = header["digest"]
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
            text = str(error)[:400]
            raise CorruptError(f"the stored plan cannot be read: {text}") from error
        if plan.digest != stored:
            text = str(stored)[:80]
            raise CorruptError(
                f"the stored plan was altered: expected the digest {text}, got {plan.digest}"
            )
        return plan

    def _check(self) -> None:
        """Raise ValueError unless a stored plan is one that `arrange` makes."""
        if type(self.shuffle) is not bool or type(self.seed) is not int:
            raise ValueError("shuffle should be true or false, and seed an integer")
        if not 0 <= self.seed < 2**64 or not all(isinstance(note, str) for note in self.notes):
            raise ValueError("the seed or a note is impossible")
        if not all(isinstance(name, str) for name in (*self.excluded, *(self.included or ()))):
            raise ValueError("an excluded or included column has no name")
        for table in self.tables:
            numbers = table.version, table.deleted, table.updated, table.unlearned
            if any(type(text) is not str for text in (table.uri, table.id)):
                raise ValueError("a table has no address")
            if any(type(number) is not int or number < 0 for number in numbers):
                raise ValueError("the version of a table, or a count of its rows, is impossible")
            if not {"deleted", "updated", "unlearned"}.issuperset(table.bounds):
                raise ValueError("the counts of a table have impossible bounds")
        if type(self.asked) not in (str, type(None)):
            raise ValueError("the options that were given are no text")
        if any(len(digest) != 64 for _, digest in self.earlier):
            raise ValueError("a plan that it continues has no digest")
        _check_blocks(self.table)
        self._check_bands()

    def _check_bands(self) -> None:
        """Raise ValueError if bands are not of whole row groups, or have too many shares."""
        if self.bands and not self.shuffle:
            raise ValueError("a stream that is not shuffled has no bands")
        rows, table = self.table.column("rows"), self.table
        if self.bands and (rows < table.column("group_rows")).any():
            raise ValueError("a block of a band is a part of a row group")
        ends = set((table.column("position") + rows).tolist()) if self.bands else set()
        start = 0
        for band in self.bands:
            if type(band.stop) is not int or type(band.shares) is not int:
                raise ValueError("the numbers of a band are not integers")
            if band.stop not in ends or not start < band.stop or band.shares < 1:
                raise ValueError(f"a band ends at row {band.stop}, in {band.shares} shares")
            start = band.stop
        if self.bands and start != self.n_rows:
            raise ValueError("the bands do not end where the stream does")
        if any(band.shares > _MOST_SHARES for band in self.bands):
            raise ValueError(f"a band is cut into more than {_MOST_SHARES} shares")


def _check_blocks(table: BlockTable) -> None:
    """Raise ValueError if numbers of a block are impossible; the first such block is named."""
    names = "index", "position", "rows", "offset", "group_rows", "row_group", "group", "size"
    index, position, rows, offset, group_rows, row_group, group, size = map(table.column, names)
    is_part = (rows >= 1) & (rows <= group_rows) & (group_rows < _MOST_ROWS)
    is_part &= (offset >= 0) & (offset <= group_rows - np.where(is_part, rows, 0))
    # Sums of rows that are in bounds do not overflow.
    starts = np.cumsum(np.where(is_part, rows, 0)) - np.where(is_part, rows, 0)
    is_placed = (index == np.arange(len(table))) & (position == starts)
    is_known = (np.minimum(np.minimum(row_group, group), size) >= 0) & (row_group < 2**31)
    if (is_placed & is_part & is_known).all():
        return
    at = int(np.argmin(is_placed & is_part & is_known))
    if not is_placed[at]:
        raise ValueError(f"block {at} is not at row {starts[at]} of the stream")
    if not is_part[at]:
        raise ValueError(f"block {at} is not a part of its row group")
    raise ValueError(f"block {at} has a negative number")


def _read(data: bytes) -> tuple[dict[str, Any], BlockTable]:
    """Return header and blocks, up to the size that a plan may have."""
    # Repeated texts stay shared: a page can repeat one text a billion times.
    there = set(pq.read_schema(pa.BufferReader(data)).names)
    texts = [
        n for n, kind in (*_FIELDS, _FINGERPRINT, _FOOTER) if kind == pa.string() and n in there
    ]
    file = pq.ParquetFile(
        pa.BufferReader(data), read_dictionary=texts, page_checksum_verification=True
    )
    stored = file.schema_arrow.metadata or {}
    header = parse_json(stored[_META])
    form, wanted = header["format"], _MIXED_FORMAT if header.get("bands") else _FORMAT
    if type(form) is not int or form != wanted:
        text = str(form)[:80]
        raise ValueError(f"expected a plan of format {_FORMAT} or {_MIXED_FORMAT}, got {text}")
    kinds = [(part.name, _plain_type(part.type)) for part in file.schema_arrow]
    if kinds not in (_FIELDS, [*_FIELDS, _FINGERPRINT], [*_FIELDS, _FOOTER]):
        raise ValueError("its columns were altered")
    maker, n_bytes, n_blocks = TableMaker(), 0, 0
    partitions: dict[str, Partition] = {}
    for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
        n_bytes += sum(_text_bytes(batch.column(name)) for name in texts)
        if n_bytes > _MOST_BYTES or n_blocks > _MOST_BLOCKS:
            raise ValueError(f"it has more than {_MOST_BLOCKS} blocks, or names of many bytes")
        if empty := [name for name in batch.schema.names if batch.column(name).null_count]:
            raise ValueError(f"a block has no {empty[0]}")
        n_blocks += batch.num_rows
        numbers = [batch.column(name).to_pylist() for name in (*NUMBERS, "size")]
        names = [batch.column(name).to_pylist() for name in ("uri", "stamp", "partition")]
        has_prints = _FINGERPRINT[0] in batch.schema.names
        prints = batch.column(_FINGERPRINT[0]).to_pylist() if has_prints else [""] * len(batch)
        rows = zip(zip(*numbers, strict=True), *names, prints, strict=True)
        for (*block_numbers, size), uri, stamp, text, fingerprint in rows:
            if text not in partitions:
                partitions[text] = _partition(text)
            maker.add(block_numbers, uri, size, stamp, partitions[text], fingerprint)
    return header, maker.table()


def _text_bytes(column: pa.Array) -> int:
    """Return the bytes of a text column, repeated texts counted each time."""
    sizes = pc.binary_length(column.dictionary).take(column.indices)
    return int(pc.sum(sizes).as_py() or 0)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


# Far above any real stream; below what a file of a few bytes could declare.
_MOST_BLOCKS, _MOST_BYTES, _MOST_ROWS = 4_000_000, 2**31, 2**40
_MOST_SHARES = 4096
_BATCH_ROWS = 8192
_FIELDS: list[tuple[str, pa.DataType]] = [
    ("index", pa.int64()),
    ("position", pa.int64()),
    ("uri", pa.string()),
    ("row_group", pa.int64()),
    ("rows", pa.int64()),
    ("offset", pa.int64()),
    ("group", pa.int64()),
    ("group_rows", pa.int64()),
    ("size", pa.int64()),
    ("stamp", pa.string()),
    ("partition", pa.string()),
]

_FINGERPRINT = ("fingerprint", pa.string())  # not in plans of earlier versions, nor in the digest
_FOOTER = ("footer", pa.string())  # what one of these had instead: a digest of the footer alone


def arrange(
    groups: Sequence[Group], shuffle: bool, seed: int, before: Sequence[Block] = ()
) -> tuple[Block, ...]:
    """Return the blocks of row groups: ordered, long groups cut, with positions.

    Parameters
    ----------
    groups : sequence of Group
    shuffle, seed
        As in `Plan`, of a stream without bands.
    before : sequence of Block
        The stream that these groups continue; group numbers go on from it.
    """
    numbered, start = _ordered(groups, shuffle, seed, before)
    return tuple(_cut(numbered, len(before), start, BLOCK_ROWS))


def arrange_mixed(
    groups: Sequence[Group], n_features: int, seed: int, before: Sequence[Block] = ()
) -> tuple[tuple[Block, ...], tuple[Band, ...]]:
    """Return the blocks and bands of a mixed stream of row groups.

    Parameters
    ----------
    groups : sequence of Group
    n_features : int
        Columns of an encoded row.
    seed : int
    before : sequence of Block
        As in `arrange`.
    """
    numbered, start = _ordered(groups, True, seed, before)
    bands = lay_bands([group.rows for _, group in numbered], n_features, start)
    return tuple(_cut(numbered, len(before), start, None)), bands


def mixed_note(blocks: Sequence[Block], bands: Sequence[Band]) -> str:
    """Return a note on how far bands mix the rows, and how often row groups are decoded."""
    groups = counted(len(blocks), "row group")
    if len(bands) == 1:
        text = f"the rows of all {groups} are mixed with each other"
    else:
        chunks = mix(blocks, bands)
        drawn = [chunk.last - chunk.first for chunk in chunks]
        n_groups, n_rows = int(np.median(drawn)), int(np.median([chunk.rows for chunk in chunks]))
        text = (
            f"each stretch of about {n_rows:,} rows is drawn from {n_groups:,} of {groups}, chosen "
            "at random, in random order"
        )
    shares = max(band.shares for band in bands)
    return text if shares == 1 else f"{text}; a row group is read up to {shares} times for it"


def _ordered(
    groups: Sequence[Group], shuffle: bool, seed: int, before: Sequence[Block]
) -> tuple[list[tuple[int, Group]], int]:
    """Return row groups with their numbers in stream order, and the position where they start."""
    order = permutation(seed, GROUP_ORDER, len(groups)) if shuffle else np.arange(len(groups))
    known = BlockTable.of(before)
    first = int(known.column("group").max()) + 1 if len(known) else 0
    start = before[-1].position + before[-1].rows if before else 0
    return [(first + int(number), groups[number]) for number in order], start


def _cut(
    groups: Sequence[tuple[int, Group]], index: int, position: int, most: int | None
) -> Iterator[Block]:
    """Yield the blocks of row groups, cut into blocks of at most so many rows."""
    for number, group in groups:
        step = group.rows if most is None else most
        for offset in range(0, group.rows, step):
            rows = min(step, group.rows - offset)
            yield Block(
                index=index,
                position=position,
                uri=group.uri,
                row_group=group.row_group,
                rows=rows,
                offset=offset,
                group=number,
                group_rows=group.rows,
                size=group.size,
                stamp=group.stamp,
                partition=group.partition,
                fingerprint=group.fingerprint,
            )
            index += 1
            position += rows


def _row(block: Block, origins: Mapping[str, tuple[str, str]]) -> list[Any]:
    """Return the stored form of a block: as when the plan was made."""
    uri, stamp = origins.get(block.uri, (block.uri, block.stamp))
    partition = "[]" if not block.partition else json.dumps(block.partition, separators=(",", ":"))
    return [
        block.index, block.position, uri, block.row_group, block.rows, block.offset, block.group,
        block.group_rows, block.size, stamp, partition,
    ]  # fmt: skip


def _stored_columns(rows: Sequence[Sequence[Any]], fields: pa.Schema) -> pa.RecordBatch:
    """Return rows as columns of a stored plan."""
    columns = [column_of([row[i] for row in rows], kind) for i, kind in enumerate(fields.types)]
    return pa.RecordBatch.from_arrays(columns, schema=fields)


def _partition(text: str) -> Partition:
    """Return the values of key=value folders as they are stored."""
    partition = parse_json(text)
    for key, kind, value in partition:
        if type(key) is not str or type(kind) is not str or type(value) not in (str, type(None)):
            raise ValueError("the values of a key=value folder should be texts")
    return tuple((key, kind, value) for key, kind, value in partition)


def _canonical(content: Any) -> str:
    """Return JSON that is the same for the same content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
