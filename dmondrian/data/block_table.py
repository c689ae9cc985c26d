"""Blocks of a stream as columns: a sequence whose items are made when they are asked for.

A stream that is followed has a block for each file that ever came, and they are parsed, continued
and compared at each look. As columns a block takes little more than its file's name; as objects it
takes many times that, which a process that runs for months would hold, and leave behind as holes in
its heap.

Relies on NumPy and Arrow arrays that nobody changes. Promises that the items are those that the
table was made of, in their order; that equal sequences are equal, whatever they are made of; and
that a part of a table that is sent to a worker takes its own files along, and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
import pyarrow as pa

from dmondrian.data.arrow_arrays import array_of, texts_of

# (key, Arrow type as text, value as text or None for null) of one key=value folder
PartitionValue: TypeAlias = tuple[str, str, str | None]
Partition: TypeAlias = tuple[PartitionValue, ...]

NUMBERS = ("index", "position", "row_group", "rows", "offset", "group", "group_rows")
"""Fields of a block that are numbers, and are not of its file."""

_BATCH = 4096  # blocks that are made at a time when a table is walked through


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one row group (after the shuffle of its rows, if there is one).

    In a plan with bands a block is a whole row group; its index determines its band.
    """

    index: int  # place in the stream
    position: int  # number of the first row in the stream
    uri: str  # absolute path or URL
    row_group: int  # number of the row group in its file
    rows: int  # rows in this block
    offset: int  # first row within the row group
    group: int  # number of the row group in the source, before any shuffle: the shuffle's key
    group_rows: int  # rows in the whole row group
    size: int  # bytes of the file
    stamp: str  # ETag or last change of the file
    partition: Partition = ()
    fingerprint: str = ""  # of the file, if it is known; not in the plan's digest


@dataclass(frozen=True)
class FileColumns:
    """Columns about the files of blocks: a row for each file.

    Attributes
    ----------
    uri, stamp, fingerprint : array of large_string
    size : int64 array of shape (n_files,)
        Bytes.
    partition : int32 array of shape (n_files,)
        Place among `partitions`.
    partitions : tuple
        Those that occur.
    """

    uri: pa.Array
    stamp: pa.Array
    fingerprint: pa.Array
    size: np.ndarray
    partition: np.ndarray
    partitions: tuple[Partition, ...]

    def take(self, places: np.ndarray) -> FileColumns:
        """Return the files at some places."""
        at = array_of(places)
        used, partition = np.unique(self.partition[places], return_inverse=True)
        return FileColumns(
            self.uri.take(at),
            self.stamp.take(at),
            self.fingerprint.take(at),
            self.size[places],
            partition.reshape(-1).astype(np.int32),
            tuple(self.partitions[number] for number in used.tolist()),
        )

    def joined(self, later: FileColumns) -> FileColumns:
        """Return these files and then others."""
        known = {partition: place for place, partition in enumerate(self.partitions)}
        places = [known.setdefault(partition, len(known)) for partition in later.partitions]
        return FileColumns(
            pa.concat_arrays([self.uri, later.uri]),
            pa.concat_arrays([self.stamp, later.stamp]),
            pa.concat_arrays([self.fingerprint, later.fingerprint]),
            np.concatenate([self.size, later.size]),
            np.concatenate([self.partition, np.array(places, np.int32)[later.partition]]),
            tuple(known),
        )


class BlockTable(Sequence[Block]):
    """A sequence of blocks that is kept as columns.

    Parameters
    ----------
    numbers : int64 array of shape (n_blocks, 7)
        The fields `NUMBERS`.
    file : int32 array of shape (n_blocks,)
        Place of each block's file among `files`.
    files : FileColumns
    """

    def __init__(self, numbers: np.ndarray, file: np.ndarray, files: FileColumns) -> None:
        self._numbers, self._file, self._files = numbers, file, files

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> BlockTable:
        """Return the table of some blocks; a table as it is."""
        if isinstance(blocks, BlockTable):
            return blocks
        maker = TableMaker()
        for block in blocks:
            numbers = [getattr(block, name) for name in NUMBERS]
            maker.add(
                numbers, block.uri, block.size, block.stamp, block.partition, block.fingerprint
            )
        return maker.table()

    def column(self, name: str) -> np.ndarray:
        """Return a number of each block, an int64 array that is not to be changed."""
        if name == "size":
            sizes: np.ndarray = self._files.size[self._file]
            return sizes
        values: np.ndarray = self._numbers[:, NUMBERS.index(name)]
        values.flags.writeable = False
        return values

    @property
    def n_rows(self) -> int:
        """Rows of all blocks."""
        return int(self.column("rows").sum())

    @property
    def n_files(self) -> int:
        """Files that blocks are of."""
        return len(set(self.uris()))

    def uris(self) -> Iterator[str]:
        """Yield the uri of each file, that of one perhaps twice; of a whole stream in its order."""
        for uri, _ in self.file_stamps():
            yield uri

    def file_stamps(self) -> Iterator[tuple[str, str]]:
        """Yield uri and stamp of each file, as `uris` does."""
        files = self._alone()._files
        yield from _pairs(files.uri, files.stamp)

    def fingerprints(self) -> Iterator[tuple[str, str]]:
        """Yield uri and fingerprint of each file, as `uris` does."""
        files = self._alone()._files
        yield from _pairs(files.uri, files.fingerprint)

    def of_files(self, uris: Collection[str]) -> BlockTable:
        """Return the blocks of some files."""
        if not uris:
            return self[:0]
        is_one = np.array([uri in uris for uri in self._files.uri.to_pylist()], dtype=bool)
        return self.where(is_one[self._file])

    def moved(self, places: Mapping[str, tuple[str, str]]) -> BlockTable:
        """Return these blocks with other uris and stamps of their files.

        Parameters
        ----------
        places : mapping of str to (str, str)
            From a uri to the new uri and stamp; other files keep theirs.
        """
        files = self._files
        pairs = [
            places.get(uri, (uri, stamp))
            for uri, stamp in zip(files.uri.to_pylist(), files.stamp.to_pylist(), strict=True)
        ]
        uri, stamp = ([pair[k] for pair in pairs] for k in range(2))
        now = FileColumns(
            texts_of(uri),
            texts_of(stamp),
            files.fingerprint,
            files.size,
            files.partition,
            files.partitions,
        )
        return BlockTable(self._numbers, self._file, now)

    def where(self, mask: np.ndarray) -> BlockTable:
        """Return the blocks at which a mask of shape (n_blocks,) is true."""
        return BlockTable(self._numbers[mask], self._file[mask], self._files)

    def __add__(self, later: Iterable[Block]) -> BlockTable:
        """Return these blocks and then others."""
        first, second = self._alone(), BlockTable.of(later)._alone()
        return BlockTable(
            np.concatenate([first._numbers, second._numbers]),
            np.concatenate([first._file, second._file + np.int32(len(first._files.size))]),
            first._files.joined(second._files),
        )

    def __radd__(self, earlier: Iterable[Block]) -> BlockTable:
        """Return others and then these blocks."""
        return BlockTable.of(earlier) + self

    def _alone(self) -> BlockTable:
        """Return this table without files that none of its blocks is of."""
        used, file = np.unique(self._file, return_inverse=True)
        if len(used) == len(self._files.size):
            return self
        # Copies: a part holds no memory of the whole.
        file = file.reshape(-1).astype(np.int32)
        return BlockTable(self._numbers.copy(), file, self._files.take(used))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the parts that a worker gets."""
        alone = self._alone()
        return BlockTable, (alone._numbers, alone._file, alone._files)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._file)

    @overload
    def __getitem__(self, key: int) -> Block: ...

    @overload
    def __getitem__(self, key: slice) -> BlockTable: ...

    def __getitem__(self, key: int | slice) -> Block | BlockTable:
        """Return a block, or a table of some."""
        if isinstance(key, slice):
            return BlockTable(self._numbers[key], self._file[key], self._files)
        place = range(len(self))[key]
        return next(self[place : place + 1]._made())

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks."""
        for first in range(0, len(self), _BATCH):
            yield from self[first : first + _BATCH]._made()

    def _made(self) -> Iterator[Block]:
        """Yield the blocks of a short table."""
        used, places = np.unique(self._file, return_inverse=True)
        at, files = array_of(used), self._files
        columns = (
            files.uri.take(at).to_pylist(),
            files.size[used].tolist(),
            files.stamp.take(at).to_pylist(),
            [files.partitions[number] for number in files.partition[used].tolist()],
            files.fingerprint.take(at).to_pylist(),
        )
        known = list(zip(*columns, strict=True))
        numbers = zip(self._numbers.tolist(), places.reshape(-1).tolist(), strict=True)
        for (index, position, row_group, rows, offset, group, group_rows), place in numbers:
            uri, size, stamp, partition, fingerprint = known[place]
            yield Block(
                index, position, uri, row_group, rows, offset, group, group_rows, size, stamp,
                partition, fingerprint,
            )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has equal blocks in the same order."""
        if self is other:
            return True
        if not isinstance(other, (BlockTable, tuple, list)) or len(self) != len(other):
            return False
        return all(block == other_block for block, other_block in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """Return a number that is equal for equal tables."""
        return hash((len(self), self[-1] if len(self) else None))

    def __repr__(self) -> str:
        """Return the sequence in one line of text."""
        return f"BlockTable({len(self):,} blocks, {self.n_files:,} files)"


def _pairs(first_column: pa.Array, second_column: pa.Array) -> Iterator[tuple[str, str]]:
    """Yield the texts of two columns, some at a time."""
    for first in range(0, len(first_column), _BATCH):
        texts = (
            first_column.slice(first, _BATCH).to_pylist(),
            second_column.slice(first, _BATCH).to_pylist(),
        )
        yield from zip(*texts, strict=True)


class TableMaker:
    """Makes a table of blocks, one after the other; a file of several blocks is kept once."""

    def __init__(self) -> None:
        self._numbers: list[np.ndarray] = []
        self._some: list[Sequence[int]] = []
        self._file: list[int] = []
        self._files: dict[tuple[str, int, str, int, str], int] = {}
        self._partitions: dict[Partition, int] = {}

    def add(
        self,
        numbers: Sequence[int],
        uri: str,
        size: int,
        stamp: str,
        partition: Partition,
        fingerprint: str,
    ) -> None:
        """Add a block; `numbers` are its fields `NUMBERS`."""
        place = self._partitions.setdefault(partition, len(self._partitions))
        key = (uri, size, stamp, place, fingerprint)
        self._file.append(self._files.setdefault(key, len(self._files)))
        self._some.append(numbers)
        if len(self._some) == _BATCH:
            self._pack()

    def _pack(self) -> None:
        self._numbers.append(np.array(self._some, np.int64).reshape(-1, len(NUMBERS)))
        self._some = []

    def table(self) -> BlockTable:
        """Return the table."""
        self._pack()
        files = FileColumns(
            texts_of(key[0] for key in self._files),
            texts_of(key[2] for key in self._files),
            texts_of(key[4] for key in self._files),
            np.array([key[1] for key in self._files], np.int64),
            np.array([key[3] for key in self._files], np.int32),
            tuple(self._partitions),
        )
        return BlockTable(np.concatenate(self._numbers), np.array(self._file, np.int32), files)
