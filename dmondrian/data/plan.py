"""The frozen stream: an ordered list of blocks of rows, with the encoding they are read with.

Relies on `Schema`. Promises: a plan survives `to_parquet`/`from_parquet` unchanged; equal plans
give equal bytes and equal digests; the digest covers the schema, the order, and the identity (uri,
size, stamp, row group, rows) of every block; a file that was moved or rewritten makes another plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.data.schema import Schema
from dmondrian.data.shuffle import GROUP_ORDER, permutation
from dmondrian.errors import CorruptError

BLOCK_ROWS = 65_536  # longer row groups are cut into blocks of this many rows
_META = b"dmondrian.plan"
_FORMAT = 1

# (key, Arrow type as text, value as text or None for null) of one key=value folder
PartitionValue = tuple[str, str, str | None]


@dataclass(frozen=True)
class Group:
    """One row group of a source, in source order."""

    uri: str
    size: int
    stamp: str
    row_group: int
    rows: int
    partition: tuple[PartitionValue, ...] = ()


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one row group (after the shuffle of its rows, if there is one)."""

    index: int  # place in the stream
    position: int  # number of the first row in the stream
    uri: str  # absolute path or URL
    row_group: int  # number of the row group in its file
    rows: int  # rows in this block
    offset: int  # first row within the row group
    group: int  # number of the row group in the source, before any shuffle: the shuffle's key
    group_rows: int  # rows in the whole row group
    size: int  # bytes of the file
    stamp: str  # last change of the file
    partition: tuple[PartitionValue, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A frozen, numbered stream of rows."""

    schema: Schema
    blocks: tuple[Block, ...]
    shuffle: bool = False
    seed: int = 0
    notes: tuple[str, ...] = ()  # what was left out or is odd about the data; not in the digest
    # (rows, digest) of each plan that this one continues, oldest first; not in the digest
    earlier: tuple[tuple[int, str], ...] = ()

    @property
    def n_rows(self) -> int:
        """Rows in the files of the plan (before rows without a target are dropped)."""
        return sum(block.rows for block in self.blocks)

    @cached_property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the canonical content."""
        content = {**self._header(), "blocks": [_row(block) for block in self.blocks]}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def digest_at(self, position: int) -> str:
        """Digest of the oldest plan in which a position lies: what the trees there depend on."""
        return next((digest for rows, digest in self.earlier if position <= rows), self.digest)

    def _header(self) -> dict[str, Any]:
        schema = self.schema.to_json()
        return {"format": _FORMAT, "schema": schema, "shuffle": self.shuffle, "seed": self.seed}

    def to_parquet(self) -> bytes:
        """Write the plan as a Parquet file: a row per block, the rest in the file's metadata."""
        header = {**self._header(), "notes": list(self.notes), "digest": self.digest}
        header["earlier"] = [list(pair) for pair in self.earlier]
        text = json.dumps(header, sort_keys=True, separators=(",", ":"))
        rows = [_row(block) for block in self.blocks]
        columns = [
            pa.array([row[i] for row in rows], type=kind) for i, (_, kind) in enumerate(_FIELDS)
        ]
        table = pa.Table.from_arrays(columns, schema=pa.schema(_FIELDS, {_META: text.encode()}))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_parquet(cls, data: bytes) -> Plan:
        """Read what `to_parquet` wrote.

        Raises
        ------
        CorruptError
            The bytes are truncated, altered or not a plan.
        """
        try:
            table = pq.read_table(pa.BufferReader(data), use_threads=False)
            header = json.loads(table.schema.metadata[_META])
            if header["format"] != _FORMAT:
                raise CorruptError(f"expected a plan of format {_FORMAT}, got {header['format']}")
            if not table.schema.equals(pa.schema(_FIELDS)):
                raise CorruptError("the stored plan cannot be read: its columns were altered")
            names = [name for name, _ in _FIELDS]
            rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
            plan = cls(
                schema=Schema.from_json(header["schema"]),
                blocks=tuple(_block(dict(zip(names, row, strict=True))) for row in rows),
                shuffle=header["shuffle"],
                seed=header["seed"],
                notes=tuple(header["notes"]),
                earlier=tuple((int(n), str(digest)) for n, digest in header.get("earlier", ())),
            )
            stored = header["digest"]
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"the stored plan cannot be read: {error}") from error
        if plan.digest != stored:
            raise CorruptError(
                f"the stored plan was altered: expected the digest {stored}, got {plan.digest}"
            )
        return plan


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


def arrange(
    groups: Sequence[Group], shuffle: bool, seed: int, before: Sequence[Block] = ()
) -> tuple[Block, ...]:
    """Lay row groups out as a stream: order the groups, cut long ones, count positions.

    Parameters
    ----------
    groups : sequence of Group
    shuffle, seed
        As in `Plan`.
    before : sequence of Block
        The stream that these groups follow; its groups are numbered without a gap.
    """
    order = permutation(seed, GROUP_ORDER, len(groups)) if shuffle else np.arange(len(groups))
    first = max((block.group for block in before), default=-1) + 1
    numbered = [(first + int(number), groups[number]) for number in order]
    start = before[-1].position + before[-1].rows if before else 0
    return tuple(_cut(numbered, len(before), start))


def _cut(groups: Sequence[tuple[int, Group]], index: int, position: int) -> Iterator[Block]:
    for number, group in groups:
        for offset in range(0, group.rows, BLOCK_ROWS):
            rows = min(BLOCK_ROWS, group.rows - offset)
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
            )
            index += 1
            position += rows


def _row(block: Block) -> list[Any]:
    partition = json.dumps(block.partition, separators=(",", ":"))
    return [getattr(block, name) for name, _ in _FIELDS[:-1]] + [partition]


def _block(row: dict[str, Any]) -> Block:
    partition = json.loads(row.pop("partition"))
    return Block(**row, partition=tuple((key, kind, value) for key, kind, value in partition))
