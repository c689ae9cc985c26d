"""Files of rows joined with their labels, and what stays of those that are learned.

::

    00000001.parquet                  rows whose labels came in one file, which its metadata name
    00000002.parquet                  of the next file; or of one before, whose other rows came now
    _keys/00000001-00000064.parquet   keys of the rows of files that were learned and are deleted

These files are all that is kept of what was joined. Relies on a store that writes a file once, and
on a caller that names files which are learned. Promises that numbers only rise; that a file is
deleted after its keys were written, so that whatever ends the process, each row that may still get
a label is known to have one or not; that of a stream that is followed for years few files are
there; and that keys of rows which are too old to get a label are given up, as are files of labels
that are not there any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.checkpoint.file_notes import read_note, sealed_note
from dmondrian.data.footers import open_parquet, read_columns
from dmondrian.errors import CorruptError, DataError, FencedError, OutageError, ParameterError
from dmondrian.store import ExistsError, open_store

MOST_FILES = 64
"""Learned files, and files of keys, that are there before their keys are put together."""

KEYS = "_keys"  # names that begin with _ are no data
_ABOUT = b"dmondrian.labels"  # metadata of a file: which labels it has, and what is left of them
_FILES = b"dmondrian.labels.keys"  # of a file of keys: the same of each file
_NAME = re.compile(r"\d{8}\.parquet")
_KEYS_NAME = re.compile(rf"{KEYS}/(\d{{8}})-(\d{{8}})\.parquet")
_ROW_GROUP = 1 << 16


@dataclass(frozen=True)
class JoinedFile:
    """A file of joined rows, which may be deleted.

    Attributes
    ----------
    number : int
    labels : str
        The file of labels.
    size, stamp : int, str
        Of that file.
    waiting : int
        Labels of it whose rows had not come.
    rows : int
    has_keys : bool
        Whether the keys of its rows are known.
    """

    number: int
    labels: str
    size: int
    stamp: str
    waiting: int
    rows: int
    has_keys: bool = True


_Keys = Callable[[pa.Table, str], pa.Array]


class JoinedFiles:
    """Files of joined rows in a folder.

    Parameters
    ----------
    out : str or path
        Folder or URL.
    key : str
        Column that pairs labels with rows.

    Raises
    ------
    ParameterError
        The folder holds something else.
    """

    def __init__(self, out: Any, key: str) -> None:
        self._store, self._key = open_store(out), key
        parquet_files = [name for name in self._store.list() if name.endswith(".parquet")]
        strange = [
            n for n in parquet_files if not _NAME.fullmatch(n) and not _KEYS_NAME.fullmatch(n)
        ]
        if strange:
            raise ParameterError(
                f"labels: {self._store.url} holds {strange[0]}; expected an empty or new folder, "
                "or one with the rows that were joined for this run before"
            )

    @property
    def url(self) -> str:
        """Folder or URL."""
        return self._store.url

    def known(self) -> set[str]:
        """Return the names of all files whose keys are there, also of those deleted."""
        names, records = self._listed()
        names_of_records = {
            name_of_joined(number) for name in records for number in range(*_range_of(name))
        }
        return names_of_records.union(names)

    def history(self) -> tuple[list[tuple[JoinedFile, Callable[[], pa.Table]]], int]:
        """Return all files, oldest first, each with what reads its keys; and the next number."""
        names, records = self._listed()
        files: list[tuple[JoinedFile, Callable[[], pa.Table]]] = []
        for record in records:
            files += self._of_record(record)
        numbers = [_range_of(record)[1] for record in records]
        for name in names:
            file = self._about(name)
            if not numbers or file.number >= max(numbers):  # else a killed process left it
                files.append((file, partial(self._read, name)))
        return files, max([1, *numbers, *(1 + int(name[:8]) for name in names)])

    def write(self, number: int, table: pa.Table, about: dict[str, Any]) -> str:
        """Write the rows of a new file; return its name.

        Raises
        ------
        FencedError
            There is one of that number.
        """
        table = table.replace_schema_metadata(sealed_note(_ABOUT, about))
        name = name_of_joined(number)
        try:
            # Sent again by a remote store's client, it may meet its own first attempt.
            put = self._store.put_new if self._store.is_local else self._store.put_same
            put(name, _parquet(table))
        except (ExistsError, FencedError) as error:
            raise FencedError(
                f"{self.url} has {name}, of another process: let one join these rows at a time"
            ) from error
        return name

    def drop(
        self, learned: Collection[str], keys_of: _Keys, n_rows: int, listed: Collection[str]
    ) -> None:
        """Delete files that are learned, but the newest one, where there are many; keep their keys.

        Parameters
        ----------
        learned : collection of str
            Names of files whose rows need not be read again.
        keys_of : callable
            Returns the keys of a table, as they are compared; called with the table and its place.
        n_rows : int
            Newest rows that may wait for their labels.
        listed : collection of str
            Files of labels that are there.
        """
        names, records = self._listed()
        end = max((_range_of(record)[1] for record in records), default=1)
        left = [name for name in names if int(name[:8]) < end]
        files = [name for name in names[:-1] if int(name[:8]) >= end]
        spare = list(takewhile(learned.__contains__, files))
        if len(spare) >= MOST_FILES:
            columns = [keys_of(self._read(name), self._uri(name)) for name in spare]
            self._write_keys([self._about(name) for name in spare], columns)
            left += spare
            records = [*records, _keys_name(int(spare[0][:8]), int(spare[-1][:8]))]
        if len(records) >= MOST_FILES:
            self._join_records(records, keys_of, n_rows, listed)
        self._store.delete(left)
        stale = set(filter(_KEYS_NAME.fullmatch, self._store.list(KEYS)))
        self._store.delete(sorted(stale.difference(self._listed()[1])))

    def _join_records(
        self, records: Sequence[str], keys_of: _Keys, n_rows: int, listed: Collection[str]
    ) -> None:
        """Write the files of keys to one, without what is too old to be asked for."""
        all_files = [record_file for record in records for record_file in self._of_record(record)]
        newest: list[tuple[JoinedFile, pa.Array | None]] = []
        n_newer, largest = 0, 0
        for file, read in reversed(all_files):
            largest = max(largest, file.rows)
            if file.has_keys and not is_old(n_newer, n_rows, largest):
                newest.append((file, keys_of(read(), f"{self.url}/{KEYS}")))
            elif file.labels in listed:
                newest.append((replace(file, has_keys=False), None))
            n_newer += file.rows
        kept = newest[::-1]
        first, last = _range_of(records[0])[0], _range_of(records[-1])[1] - 1
        columns = [column for _, column in kept if column is not None]
        self._write_keys([file for file, _ in kept], columns, (first, last))

    def _write_keys(
        self,
        files: Sequence[JoinedFile],
        columns: Sequence[pa.Array],
        numbers: tuple[int, int] | None = None,
    ) -> None:
        first, last = numbers or (files[0].number, files[-1].number)
        keys = pa.concat_arrays(columns) if columns else pa.nulls(0, pa.int64())
        about = sealed_note(_FILES, [asdict(file) for file in files])
        table = pa.table({self._key: keys}).replace_schema_metadata(about)
        self._store.put(_keys_name(first, last), _parquet(table))

    def _listed(self) -> tuple[list[str], list[str]]:
        """Return the files of rows and those of keys, but for those within another one of these."""
        names = self._store.list()
        ranges = sorted(
            (_range_of(name) for name in names if _KEYS_NAME.fullmatch(name)),
            key=lambda numbers: (numbers[0], -numbers[1]),
        )
        records: list[str] = []
        reached = 0
        for start, stop in ranges:
            if stop > reached:
                records.append(_keys_name(start, stop - 1))
                reached = stop
        return [name for name in names if _NAME.fullmatch(name)], records

    def _about(self, name: str) -> JoinedFile:
        """Return what a file notes."""
        parquet = open_parquet(self._uri(name))
        if _ABOUT not in (parquet.schema_arrow.metadata or {}):
            raise DataError(f"{self._uri(name)} was not written by this; take it out of the folder")
        try:
            about = read_note(parquet.schema_arrow.metadata, _ABOUT)
            state = about["labels"], about["size"], about["stamp"], about["waiting"]
            return JoinedFile(int(name[:8]), *state, rows=parquet.metadata.num_rows)
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptError(
                f"{self._uri(name)} does not note which labels it has ({error!r}): put it back "
                "from a copy"
            ) from error

    def _of_record(self, name: str) -> list[tuple[JoinedFile, Callable[[], pa.Table]]]:
        """Return the files whose keys are in one."""
        parquet = open_parquet(self._uri(name))
        try:
            stored = read_note(parquet.schema_arrow.metadata, _FILES)
            files = [JoinedFile(**about) for about in stored]
            n_rows = sum(file.rows for file in files if file.has_keys)
            if n_rows != parquet.metadata.num_rows:
                raise ValueError(f"{n_rows} rows")
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptError(
                f"{self._uri(name)} has no keys of joined rows ({error!r}): put it back from a copy"
            ) from error
        whole: list[pa.Table] = []  # read once, by the first that is asked for

        def read(start: int, n: int) -> pa.Table:
            if not whole:
                whole.append(self._read(name))
            return whole[0].slice(start, n)

        files_and_readers: list[tuple[JoinedFile, Callable[[], pa.Table]]] = []
        at = 0
        for file in files:
            files_and_readers.append((file, partial(read, at, file.rows)))
            at += file.rows if file.has_keys else 0
        return files_and_readers

    def _read(self, name: str) -> pa.Table:
        """Return the keys of a file."""
        uri = self._uri(name)
        parquet = open_parquet(uri)
        if self._key not in parquet.schema_arrow.names:
            known = ", ".join(map(repr, parquet.schema_arrow.names))
            raise DataError(f"{uri} has no column {self._key!r}; it has {known}")
        groups = range(parquet.metadata.num_row_groups)
        tables = [read_columns(parquet, uri, group, [self._key]) for group in groups]
        empty = pa.schema([parquet.schema_arrow.field(self._key)]).empty_table()
        return pa.concat_tables([table.select([self._key]) for table in tables] or [empty])

    def _uri(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"


def label_delay(uri: str) -> tuple[float, float | None] | None:
    """Return how many rows and seconds later than their rows the labels of a file came, medians.

    None of files of other rows, those that are gone, and those of versions that did not note it.
    """
    if not _NAME.fullmatch(uri.rpartition("/")[2]):
        return None
    try:
        stored = read_note(open_parquet(uri).schema_arrow.metadata, _ABOUT)
        return float(stored["rows_later"]), stored["seconds_later"]
    except (DataError, OutageError, LookupError, TypeError, ValueError):
        return None


def is_old(n_newer: int, n_rows: int, largest: int) -> bool:
    """Return whether rows are too old to be asked for: no more than twice the rows that wait came.

    Parameters
    ----------
    n_newer : int
        Joined rows of newer files.
    n_rows : int
        Rows that may wait for their labels.
    largest : int
        Rows of the largest of these files and newer ones.
    """
    return n_newer > 2 * (n_rows + largest)


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=_ROW_GROUP, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def _range_of(name: str) -> tuple[int, int]:
    """Return the first number of a file of keys, and the one behind the last."""
    match = _KEYS_NAME.fullmatch(name)
    assert match is not None
    return int(match[1]), int(match[2]) + 1


def name_of_joined(number: int) -> str:
    """Return the name of a file of joined rows."""
    return f"{number:08d}.parquet"


def _keys_name(first: int, last: int) -> str:
    return f"{KEYS}/{first:08d}-{last:08d}.parquet"
