"""Batches of rows from a Python iterable, as numbered Parquet files that a run learns.

::

    0000000001.parquet    the first rows that came; its metadata have what came before and in it
    0000000002.parquet    the next ones

Workers read files, and a run reads rows again after a loss: so rows are written before they are
learned. A file is written as a whole or not, and has the position behind its rows: nothing else
notes it. Relies on a store that writes a file once. Promises that a row is written once, whatever
ends the process meanwhile; that a number of rows that is asked for is met to the row, wherever the
batches end; that the source is asked to begin behind the last row that was written;
that of a source which begins at its first row again, the rows that were written are compared with
those that come, by a digest, however they are cut into batches; and that the newest file stays when
others are deleted.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.checkpoint.file_notes import read_note, sealed_note
from dmondrian.checkpoint.stream import BATCHES_NOTE
from dmondrian.data.footers import open_parquet
from dmondrian.data.paths import ROWS_IN_MEMORY
from dmondrian.errors import CorruptError, DataError, FencedError, ParameterError
from dmondrian.store import ExistsError, open_store

FILE_ROWS = 65_536
"""Rows with which a file ends, with the batch that has them."""

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
        Both may lie within what was a batch.
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
    if isinstance(data, Sequence):
        first = next((item for item in data if item is not None), None)
        return not isinstance(data, str | bytes) and _is_item(first)
    kind = type(data)
    is_other = isinstance(data, type | os.PathLike | Mapping | Set) or any(
        hasattr(kind, name) for name in (*ROWS_IN_MEMORY, "__dask_graph__")
    )
    return isinstance(data, Iterable) and not is_other


def _is_item(item: Any) -> bool:
    if isinstance(item, tuple):
        return len(item) == 3 and isinstance(item[2], pa.RecordBatch | pa.Table)
    return isinstance(item, pa.RecordBatch | pa.Table)


@dataclass
class _State:
    """State of the files that were written."""

    position: Position
    chain: str = ""  # digest of all rows, by the files that they were written to
    number: int = 0  # of the newest file
    sizes: tuple[int, ...] = ()  # rows of each file
    is_round: bool = False  # whether a `take` ended here of its own accord
    inside: Partition | None = None  # of which a batch was cut here


@dataclass(frozen=True)
class _Waiting:
    """Rows that came and are not written."""

    rows: pa.Table
    partition: Partition | None = None
    end: int = 0  # offset behind them
    is_rest: bool = False  # whether other rows of the batch are written

    def cut(self, n: int) -> tuple[_Waiting, _Waiting]:
        """Return the first rows and the others."""
        rest = len(self.rows) - n
        first = replace(self, rows=self.rows.slice(0, n), end=self.end - rest)
        return first, replace(self, rows=self.rows.slice(n), is_rest=True)


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
        self.check_rows: Callable[[pa.Table], None] | None = None  # refuses those of no use
        self._store = open_store(out)
        self._state = self._resume()
        self._batches: Iterator[Any] | None = None
        self._again: list[int] = []  # rows of files that were written before, which come again
        self._before = hashlib.sha256().hexdigest()
        self._waiting: list[_Waiting] = []
        self._offsets: dict[Partition, int] = {}
        position = self._state.position
        self._has_offsets = bool(position.offsets) if position.rows else None
        self._is_over = False
        self._inside: Partition | None = None  # whose next batch has to begin where it is asked to

    @property
    def out(self) -> str:
        """Folder or URL of the files."""
        return self._store.url

    @property
    def position(self) -> Position:
        """Where the source would begin now."""
        return self._state.position

    @property
    def is_round(self) -> bool:
        """Whether the newest file is the last one of a `take` that neither clock nor caller cut."""
        return self._state.is_round

    @property
    def is_over(self) -> bool:
        """Whether the source has no more batches for good: an iterable, and no callable, ended."""
        return self._is_over

    def take(
        self,
        n_rows: int,
        seconds: float = float("inf"),
        is_asked_to_end: Callable[[], bool] = lambda: False,
        *,
        to_end: bool = False,
    ) -> int:
        """Write rows of the source to files; return how many.

        Ends where the source ends or has nothing now, with the row that makes `n_rows`, behind the
        batch after so many seconds, or when asked to. With `to_end`, an iterable is read on where
        it has nothing now: it gives nothing again.

        Raises
        ------
        DataError
            An item is no batch, offsets do not rise, or rows that come again are others.
        ParameterError
            The source is called and returns no iterable, or takes no position.
        FencedError
            Another process writes the same files.
        """
        if self._is_over:
            return 0
        began = time.monotonic()
        first, is_round = self._state.position.rows, True
        if not callable(self._source):
            self._items()  # which tells what comes again
        while self._again or self._state.position.rows - first + self._n_waiting() < n_rows:
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
            if item is not None:
                self._add(item)
                self._compare()
            elif not to_end or callable(self._source):
                break
            if time.monotonic() - began >= seconds or is_asked_to_end():
                is_round = False
                break
        if not self._again:
            left = first + n_rows - self._state.position.rows
            self._write(min(left, self._n_waiting()), is_round)
        return self._state.position.rows - first

    def check(self, position: int) -> None:
        """Refuse a folder without a file that has rows behind a position, or with other Parquet.

        Raises
        ------
        DataError
        """
        names = {name for name in self._store.list() if name.endswith(".parquet")}
        if strange := sorted(name for name in names if not _NAME.fullmatch(name)):
            raise DataError(f"{self.out}/{strange[0]} was not written by this; take it out")
        for number, end in enumerate(np.cumsum(self._state.sizes), start=1):
            if end > position and _name(number) not in names:
                raise DataError(
                    f"{self.out} lacks {_name(number)}, of which not all rows are learned, and has "
                    "newer files: put it back, or delete all files with higher numbers, and "
                    "their rows are asked for again"
                )

    def drop(self, position: int) -> None:
        """Delete files whose rows all lie before a position of the stream, but the newest one."""
        ends = np.cumsum(self._state.sizes)
        spare = [_name(n) for n, end in enumerate(ends[:-1], start=1) if end <= position]
        names = set(self._store.list())
        self._store.delete([name for name in spare if name in names])

    def _items(self) -> Iterator[Any]:
        """Return the iterator of the source, which begins where it has to."""
        if self._batches is None:
            if callable(self._source):
                self._batches = _called(self._source, self._state.position)
                self._inside = self._state.inside
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
        return sum(len(batch.rows) for batch in self._waiting)

    def _add(self, item: Any) -> None:
        """Take an item of the source."""
        if isinstance(item, tuple) and len(item) == 3:
            partition, offset, batch = item
            partition, offset = self._checked_offset(partition, offset)
        else:
            batch, partition, offset = item, None, None
        if not isinstance(batch, pa.RecordBatch | pa.Table):
            raise DataError(
                f"the source gave {type(batch).__name__!r}; expected Arrow record batches or "
                "tables, or (partition, offset, batch), or None where there is nothing now"
            )
        if self._has_offsets not in (None, offset is not None):
            raise DataError("the source gave batches with offsets and without; expected one kind")
        self._has_offsets = offset is not None
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if not len(table):
            return
        if self.check_rows is not None and not self._again:
            self.check_rows(table)
        is_other = self._waiting and not table.schema.equals(self._waiting[0].rows.schema)
        if is_other and self._again:
            raise self._other_rows()
        if is_other or (not self._again and self._n_waiting() >= FILE_ROWS):
            self._write(self._n_waiting())  # not before: it may be the last one of a round
        if partition is None or offset is None:
            self._waiting.append(_Waiting(table))
        else:
            self._offsets[partition] = offset + len(table)
            self._waiting.append(_Waiting(table, partition, offset + len(table)))

    def _checked_offset(self, partition: Any, offset: Any) -> tuple[Partition, int]:
        if isinstance(partition, bool) or not isinstance(partition, Integral | str):
            raise DataError(f"{partition!r} is no partition; expected an integer or a text")
        if isinstance(offset, bool) or not isinstance(offset, Integral) or int(offset) < 0:
            raise DataError(f"{offset!r} is no offset; expected a whole number")
        key = partition if isinstance(partition, str) else int(partition)
        offset = int(offset)
        if offset < (least := self._offsets.get(key, 0)):
            raise DataError(
                f"partition {key!r}: a batch begins at offset {offset}, and the run has the "
                f"rows before {least}: begin where the source is asked to"
            )
        if key == self._inside and offset > least:
            raise DataError(
                f"partition {key!r}: a batch begins at offset {offset}, and the run has the rows "
                f"before {least} of a batch with more of them: begin where the source is asked to, "
                "also within a batch"
            )
        self._inside = None if key == self._inside else self._inside
        return key, offset

    def _compare(self) -> None:
        """Compare rows that come again with the files that have them."""
        while self._again and self._n_waiting() >= self._again[0]:
            n = self._again.pop(0)
            self._before = _chained(self._before, self._cut(n)[0])
            if not self._again and self._before != self._state.chain:
                raise self._other_rows()

    def _other_rows(self) -> DataError:
        return DataError(
            f"the first {self._state.position.rows:,} rows of the source are others than those "
            "that the run has got of it: give the source that it began with, or train another run"
        )

    def _cut(self, n: int) -> tuple[pa.Table, dict[Partition, int]]:
        """Return the first rows that wait, which wait no more, and the offsets behind them."""
        tables: list[pa.Table] = []
        offsets: dict[Partition, int] = {}
        while n:
            batch = self._waiting.pop(0)
            if len(batch.rows) > n:
                batch, rest = batch.cut(n)
                self._waiting.insert(0, rest)
            n -= len(batch.rows)
            tables.append(batch.rows)
            if batch.partition is not None:
                offsets[batch.partition] = batch.end
        return pa.concat_tables(tables), offsets

    def _write(self, n: int, is_round: bool = False) -> None:
        """Write the first rows that wait to a file."""
        if n <= 0:
            return
        state = self._state
        table, behind = self._cut(n)
        offsets = {**state.position.offsets, **behind}
        inside = next((batch.partition for batch in self._waiting[:1] if batch.is_rest), None)
        chain = _chained(state.chain or hashlib.sha256().hexdigest(), table)
        sizes = (*state.sizes, n)
        about = {
            "sizes": sizes,
            "offsets": [[key, value] for key, value in offsets.items()],
            "chain": chain,
            "round": is_round,
            "inside": inside,
        }
        plain = table.replace_schema_metadata(
            {**(table.schema.metadata or {}), **sealed_note(BATCHES_NOTE, about)}
        )
        sink = pa.BufferOutputStream()
        pq.write_table(plain, sink, row_group_size=FILE_ROWS, write_page_checksum=True)
        name = _name(state.number + 1)
        try:
            # Sent again by a remote store's client, it may meet its own first attempt.
            put = self._store.put_new if self._store.is_local else self._store.put_same
            put(name, sink.getvalue().to_pybytes())
        except (ExistsError, FencedError) as error:
            raise FencedError(
                f"{self.out} has {name}, of another process: let one take these batches at a time"
            ) from error
        position = Position(state.position.rows + n, offsets)
        self._state = _State(position, chain, state.number + 1, sizes, is_round, inside)

    def _resume(self) -> _State:
        """Return what earlier processes have written."""
        names = sorted(name for name in self._store.list() if _NAME.fullmatch(name))
        if not names:
            return _State(Position())
        uri = f"{self._store.url.rstrip('/')}/{names[-1]}"
        metadata = open_parquet(uri).schema_arrow.metadata
        if BATCHES_NOTE not in (metadata or {}):
            raise DataError(f"{uri} was not written by this; take it out")
        try:
            found = read_note(metadata, BATCHES_NOTE)
            sizes = tuple(int(size) for size in found["sizes"])
            offsets = {key: int(value) for key, value in found["offsets"]}
            position = Position(sum(sizes), offsets)
            # Earlier versions did not note these.
            more = bool(found.get("round", False)), found.get("inside")
            return _State(position, str(found["chain"]), int(names[-1][:10]), sizes, *more)
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptError(f"{uri} has no position of its source: {error}") from error


_END = object()


def _called(source: Callable[[Position], Iterable[Any]], position: Position) -> Iterator[Any]:
    """Return the iterator of a source that is called."""
    expected = (
        "a source that is called is given a Position (rows, offsets) and returns an iterable of "
        "batches which begins there: give `def source(position)`, or, for an iterable, what it is "
        "made of or a generator itself, `batches()`"
    )
    try:
        inspect.signature(source).bind(position)
    except TypeError as error:
        raise ParameterError(f"{expected} ({error})") from error
    except ValueError:  # it has no signature that could be known
        pass
    batches = source(position)
    if not isinstance(batches, Iterable):
        raise ParameterError(f"{expected}; it returned a {type(batches).__name__}")
    return iter(batches)


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
