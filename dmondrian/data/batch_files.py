"""Batches of rows from a Python iterable, as numbered Parquet files that a run learns.

::

    0000000001.parquet    the first rows that came; its metadata have what came before and in it
    0000000002.parquet    the next ones

Workers read files, and a run reads rows again after a loss: so rows are written before they are
learned. A file is written as a whole or not, and has the position behind its rows: nothing else
notes it. Relies on a store that writes a file once. Promises that a row is written once, whatever
ends the process meanwhile; that the source is asked to begin behind the last row that was written;
that of a source which begins at its first row again, the rows that were written are compared with
those that come, by a digest, however they are cut into batches; and that the newest file stays when
others are deleted.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.data.footers import open_parquet
from dmondrian.errors import CorruptError, DataError, FencedError
from dmondrian.store import ExistsError, open_store

FILE_ROWS = 65_536
"""Most rows of a file, if no batch has more."""

_ABOUT = b"dmondrian.batches"
_NAME = re.compile(r"\d{10}\.parquet")

Partition: TypeAlias = int | str


@dataclass(frozen=True)
class Position:
    """Where a source of batches is to begin: behind the rows that a run has.

    Attributes
    ----------
    rows : int
        That the run has.
    offsets : dict
        Of a source of (partition, offset, batch): the offset behind the last row of each partition.
    """

    rows: int = 0
    offsets: Mapping[Partition, int] = field(default_factory=dict)


Source: TypeAlias = Callable[[Position], Iterable[Any]] | Iterable[Any]


def gives_batches(data: Any) -> bool:
    """Return whether data are batches of rows that come one after the other, and no files."""
    if callable(data) and not isinstance(data, type):
        return True
    if isinstance(data, pa.RecordBatchReader | Iterator):
        return True
    return isinstance(data, list | tuple) and bool(data) and _is_item(data[0])


def _is_item(item: Any) -> bool:
    if isinstance(item, tuple):
        return len(item) == 3 and isinstance(item[2], pa.RecordBatch | pa.Table)
    return isinstance(item, pa.RecordBatch | pa.Table)


@dataclass
class _State:
    """What was written."""

    position: Position
    chain: str = ""  # digest of all rows, by the files that they were written to
    number: int = 0  # of the newest file
    sizes: tuple[int, ...] = ()  # rows of each file


class BatchFiles:
    """Writes the rows of a source to files, again and again.

    Parameters
    ----------
    source : callable or iterable
        Called with a :class:`Position`, it returns an iterable that begins there. An iterable
        itself begins with its first row each time that it is given. Items are Arrow record batches
        or tables; or (partition, offset, batch), where the rows of a batch have consecutive offsets
        in a partition, an integer or text, and offsets rise, maybe with gaps; or None, where there
        is nothing now.
    out : str
        Folder or URL.
    """

    def __init__(self, source: Source, out: str) -> None:
        self._source = source
        self._store = open_store(out)
        self._state = self._resume()
        self._batches: Iterator[Any] | None = None
        self._again: list[int] = []  # rows of files that were written before, which come again
        self._before = hashlib.sha256().hexdigest()
        self._waiting: list[pa.Table] = []
        self._offsets: dict[Partition, int] = {}
        there = self._state.position
        self._has_offsets = bool(there.offsets) if there.rows else None
        self._is_over = False

    @property
    def out(self) -> str:
        """Folder or URL of the files."""
        return self._store.url

    @property
    def position(self) -> Position:
        """Where the source would begin now."""
        return self._state.position

    @property
    def is_over(self) -> bool:
        """Whether the source has no more batches for good: an iterable, and no callable, ended."""
        return self._is_over

    def take(
        self,
        n_rows: int,
        seconds: float = float("inf"),
        is_asked_to_end: Callable[[], bool] = lambda: False,
    ) -> int:
        """Write rows of the source to files; return how many.

        Ends where the source ends or has nothing now, with the batch that makes `n_rows`, after so
        many seconds, or when asked to.

        Raises
        ------
        DataError
            An item is no batch, offsets do not rise, or rows that come again are others.
        FencedError
            Another process writes the same files.
        """
        if self._is_over:
            return 0
        began = time.monotonic()
        first = self._state.position.rows
        while self._state.position.rows - first + self._n_waiting() < n_rows:
            item = next(self._items(), _END)
            if item is _END:
                self._batches = None
                self._is_over = not callable(self._source)
                if self._again:
                    raise DataError(
                        f"the source ended after {self._came():,} rows, and the run has "
                        f"{self._state.position.rows:,} of it: give the source that it began with"
                    )
                break
            if item is None:
                break
            self._add(item)
            self._write_whole()
            if time.monotonic() - began >= seconds or is_asked_to_end():
                break
        if not self._again:
            self._write(self._n_waiting())
        return self._state.position.rows - first

    def drop(self, position: int) -> None:
        """Delete files whose rows all lie before a position of the stream, but the newest one."""
        ends = np.cumsum(self._state.sizes)
        spare = [_name(n) for n, end in enumerate(ends[:-1], start=1) if end <= position]
        there = set(self._store.list())
        self._store.delete([name for name in spare if name in there])

    def _items(self) -> Iterator[Any]:
        """Return the iterator of the source, which begins where it has to."""
        if self._batches is None:
            if callable(self._source):
                self._batches = iter(self._source(self._state.position))
            else:
                self._batches = iter(self._source)
                self._again = list(self._state.sizes)
                self._before = hashlib.sha256().hexdigest()
            self._waiting = []
            self._offsets = {} if self._again else dict(self._state.position.offsets)
        return self._batches

    def _came(self) -> int:
        done = len(self._state.sizes) - len(self._again)
        return sum(self._state.sizes[:done]) + self._n_waiting()

    def _n_waiting(self) -> int:
        return sum(len(table) for table in self._waiting)

    def _add(self, item: Any) -> None:
        """Take an item of the source."""
        if isinstance(item, tuple) and len(item) == 3:
            partition, offset, batch = item
            self._check_offset(partition, offset)
        else:
            batch, offset = item, None
        if not isinstance(batch, pa.RecordBatch | pa.Table):
            raise DataError(
                f"the source gave {type(batch).__name__!r}; expected Arrow record batches or "
                "tables, or (partition, offset, batch), or None where there is nothing now"
            )
        if self._has_offsets not in (None, offset is not None):
            raise DataError("the source gave batches with offsets and without; expected one kind")
        self._has_offsets = offset is not None
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if self._waiting and not table.schema.equals(self._waiting[0].schema):
            if self._again:
                raise self._other_rows()
            self._write(self._n_waiting())
        if len(table):
            self._waiting.append(table)
            if offset is not None:
                self._offsets[partition] = offset + len(table)

    def _check_offset(self, partition: Any, offset: Any) -> None:
        if isinstance(partition, bool) or not isinstance(partition, int | str):
            raise DataError(f"{partition!r} is no partition; expected an integer or a text")
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise DataError(f"{offset!r} is no offset; expected a whole number")
        if offset < (least := self._offsets.get(partition, 0)):
            raise DataError(
                f"partition {partition!r}: a batch begins at offset {offset}, and the run has the "
                f"rows before {least}: begin where the source is asked to"
            )

    def _write_whole(self) -> None:
        """Write, or compare, the files that are full."""
        while self._again and self._n_waiting() >= self._again[0]:
            n = self._again.pop(0)
            self._before = _chained(self._before, self._cut(n))
            if not self._again and self._before != self._state.chain:
                raise self._other_rows()
        while not self._again and self._n_waiting() >= FILE_ROWS:
            self._write(self._n_waiting())

    def _other_rows(self) -> DataError:
        return DataError(
            f"the first {self._state.position.rows:,} rows of the source are others than those "
            "that the run has learned of it: give the source that it began with, or train another "
            "run"
        )

    def _cut(self, n: int) -> pa.Table:
        """Return the first rows that wait, which wait no more."""
        table = pa.concat_tables(self._waiting)
        rest = table.slice(n)
        self._waiting = [rest] if len(rest) else []
        return table.slice(0, n)

    def _write(self, n: int) -> None:
        """Write the rows that wait to a file."""
        if not n:
            return
        table, state = self._cut(n), self._state
        chain = _chained(state.chain or hashlib.sha256().hexdigest(), table)
        sizes = (*state.sizes, n)
        about = {
            "sizes": sizes,
            "offsets": [[key, value] for key, value in self._offsets.items()],
            "chain": chain,
        }
        plain = table.replace_schema_metadata(
            {**(table.schema.metadata or {}), _ABOUT: json.dumps(about).encode()}
        )
        sink = pa.BufferOutputStream()
        pq.write_table(plain, sink, row_group_size=FILE_ROWS, write_page_checksum=True)
        name = _name(state.number + 1)
        try:
            self._store.put_new(name, sink.getvalue().to_pybytes())
        except ExistsError as error:
            raise FencedError(
                f"{self.out} has {name}, of another process: let one take these batches at a time"
            ) from error
        position = Position(state.position.rows + n, dict(self._offsets))
        self._state = _State(position, chain, state.number + 1, sizes)

    def _resume(self) -> _State:
        """Return what earlier processes have written."""
        names = sorted(name for name in self._store.list() if _NAME.fullmatch(name))
        if not names:
            return _State(Position())
        uri = f"{self._store.url.rstrip('/')}/{names[-1]}"
        about = (open_parquet(uri).schema_arrow.metadata or {}).get(_ABOUT)
        if about is None:
            raise DataError(f"{uri} was not written by this; take it out of the folder")
        try:
            found = json.loads(about)
            sizes = tuple(int(size) for size in found["sizes"])
            offsets = {key: int(value) for key, value in found["offsets"]}
            position = Position(sum(sizes), offsets)
            return _State(position, str(found["chain"]), int(names[-1][:10]), sizes)
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptError(f"{uri} has no position of its source: {error}") from error


_END = object()


def _name(number: int) -> str:
    return f"{number:010d}.parquet"


def _chained(before: str, table: pa.Table) -> str:
    """Return the digest of rows and all before them, however they were cut into batches."""
    digest = hashlib.sha256(before.encode())
    for field_, column in zip(table.schema, table.columns, strict=True):
        kind = field_.type
        plain = column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column
        # A copy: without offsets, and with zeros in place of nulls.
        copied = plain.combine_chunks().take(pa.array(np.arange(len(plain))))
        digest.update(f"{field_.name}\0{kind}\0".encode())
        for buffer in copied.buffers():
            digest.update(b"-" if buffer is None else memoryview(buffer))
    return digest.hexdigest()
