"""Rows joined with labels that come later in files of their own, as Parquet that a run learns.

What was joined is known by :mod:`dmondrian.data.joined_files` alone. Relies on it, and on arrivals
for files that are whole. Promises that rows stand in the order in which their labels came, and
never change their place; that a row is joined with one label, and a label with one row,
whatever ends the process meanwhile; that labels and rows whose other half never comes are counted;
and that memory holds the keys of at most ``n_rows`` rows and as many labels, beside the rows of one
file of labels.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dmondrian.data.arrivals import Arrivals, Arrived, State
from dmondrian.data.footers import open_parquet, read_columns
from dmondrian.data.joined_files import JoinedFiles, is_old, name_of_joined
from dmondrian.data.read_again import place_that_reads
from dmondrian.data.source import Source
from dmondrian.data.tables import without_views
from dmondrian.errors import DataError, ParameterError

N_ROWS = 10_000_000
"""Newest rows that wait for their labels, by default."""

_log = logging.getLogger("dmondrian")
_GONE = "is not there any more: what waits in it is given up"
_OLD = "is older than all that may wait: what waits in it is given up"
_PARTITION = re.compile(r"/([^/=]+)=[^/]*/")  # a folder that is a column


@dataclass(frozen=True)
class Joined:
    """Rows that were joined with labels of one file.

    Attributes
    ----------
    labels : str
        The file of labels.
    out : str
        Name of the file of joined rows.
    rows : int
    waiting : int
        Labels of the file whose rows have not come yet.
    repeated : int
        Labels of the file that came a second time for their row, or for none: they have no key.
    rows_later : float
        Median number of rows that came between a row, itself included, and its label.
    seconds_later : float or None
        Median seconds from the last change of a row's file to that of its label's, 0 if that came
        first; None where a store notes no times.
    """

    labels: str
    out: str
    rows: int
    waiting: int
    repeated: int
    rows_later: float
    seconds_later: float | None


@dataclass
class _Keys:
    """The keys of a file, and which of them have been joined."""

    uri: str
    state: State
    keys: pa.Array
    is_done: np.ndarray  # bool [n]
    before: int = 0  # rows that came before this file
    values: pa.Array | None = None  # the labels; None of a file of rows
    repeated: int = 0

    @property
    def n_open(self) -> int:
        return int(len(self.is_done) - self.is_done.sum())

    @property
    def changed(self) -> float | None:
        """When the file was changed last, in seconds since 1970, if the store notes it."""
        return int(self.state[1]) / 1e9 if self.state[1].isdigit() else None


class LabelJoin:
    """Joins the rows and labels of two places, again and again.

    Parameters
    ----------
    rows, labels : str, path or sequence of them
        Where files of rows and files of labels come: folders, globs or URLs.
    out : str or path
        Folder or URL where files of joined rows are written.
    key : str
        Column of both that pairs labels with rows: whole numbers, texts or times, each
        at most once among rows. Where it is not, the newest file has the row that is meant.
    target : str
        Column of the labels. Other columns of files of labels are not read.
    n_rows : int
        Newest rows that wait for their labels, and newest labels that wait for their rows, to
        whole files. What is older is given up, which is logged.

    Raises
    ------
    ParameterError
        A value is not allowed, or ``out`` holds something else, or lies where rows or labels are
        read.
    """

    def __init__(
        self,
        rows: Source,
        labels: Source,
        out: Any,
        *,
        key: str,
        target: str,
        n_rows: int = N_ROWS,
    ) -> None:
        if not isinstance(key, str) or not isinstance(target, str) or key == target:
            raise ParameterError(
                f"key is {key!r} and target {target!r}; expected the names of two columns"
            )
        if isinstance(n_rows, bool) or not isinstance(n_rows, int) or n_rows < 1:
            raise ParameterError(f"rows is {n_rows!r}; expected a whole number, at least 1")
        for name, data in (("rows", rows), ("labels", labels)):
            place = place_that_reads(data, out, [name_of_joined(1)], is_marked=False)
            if place is not None:
                raise ParameterError(
                    f"labels: out is {out} and {name} are {place}: joined rows would be read as "
                    f"{name}; choose another folder for them"
                )
        self._key, self._target, self._n_rows = key, target, n_rows
        self._files = JoinedFiles(out, key)
        self._arrivals = Arrivals(rows), Arrivals(labels)
        # Files that were read, or are known not to be needed: of rows, of labels.
        self._seen: tuple[dict[str, State], dict[str, State]] = {}, {}
        self._rows: list[_Keys] = []
        self._labels: list[_Keys] = []
        self._n_came = 0  # rows, of all files
        self._type: pa.DataType | None = None  # of keys
        self._listed: set[str] = set()  # files of labels, when they were last looked for
        self._next: int | None = None  # number of the next file; None before the first look

    @property
    def out(self) -> str:
        """Folder or URL of the joined rows."""
        return self._files.url

    @property
    def known(self) -> set[str]:
        """Names of the files of joined rows whose keys are known, also of those deleted."""
        return self._files.known()

    def drop(self, learned: Collection[str]) -> None:
        """Delete files of joined rows that are learned, but for the newest; their keys stay.

        Nothing is deleted before the first look, and where there are few.

        Parameters
        ----------
        learned : collection of str
            Names of files whose rows need not be read again.
        """
        if self._next is not None:
            self._files.drop(learned, self._keys, self._n_rows, self._listed)

    def look(self) -> list[Joined]:
        """Join what has come; return what was joined, one for each file that was written.

        Raises
        ------
        DataError
            A file cannot be read, lacks the key or the label, or has keys of another type.
        FencedError
            Another process joins the same rows.
        """
        rows, labels = (self._look(arrivals) for arrivals in self._arrivals)
        if both := sorted(rows.files.keys() & labels.files.keys()):
            raise ParameterError(
                f"{both[0]} is among the rows and among the labels: expected two places, none of "
                "them within the other"
            )
        self._listed = set(labels.files)
        before, first = ([], None) if self._next is not None else self._resume()
        self._give_up([of for of in self._rows if of.uri not in rows.files], _GONE)
        for uri, state in self._new(rows, 0):
            self._rows.append(self._read_rows(uri, state))
        for uri, state in self._new(labels, 1):
            self._labels.append(self._read_labels(uri, state))
        if before:  # what was too old for earlier processes is too old
            self._give_up(_oldest(self._rows, self._n_rows), _OLD)
            self._mark(before)
        if first is not None:  # from here on: a look that fails before is begun anew
            self._next = first
        written = [joined for of in self._labels if (joined := self._join(of)) is not None]
        self._labels = [of for of in self._labels if of.n_open]
        for kept in (self._labels, self._rows):
            self._give_up(_oldest(kept, self._n_rows), _OLD)
        return written

    def _look(self, arrivals: Arrivals) -> Arrived:
        arrived = arrivals.look()
        if arrived.tables:
            raise ParameterError(
                f"labels: {next(iter(arrived.tables))} is a table; expected folders, globs or "
                "URLs to which Parquet files come"
            )
        return arrived

    def _new(self, arrived: Arrived, side: int) -> Iterator[tuple[str, State]]:
        """Yield files that were not seen before, in the order of their names."""
        seen = self._seen[side]
        for uri, state in arrived.files.items():
            if uri not in seen:
                yield uri, state
            elif seen[uri] != state:
                _log.warning(
                    "%s was written again: what it holds now is not joined; write to files of new "
                    "names",
                    uri,
                )
            seen[uri] = state

    def _resume(self) -> tuple[list[tuple[str, pa.Array]], int]:
        """Return what earlier processes have joined, and the number of the next file.

        What was joined is the file of labels and the keys of its rows, of each of the newest files.
        All rows that may still get a label are among these: no more than twice ``n_rows`` may have
        come, and so been joined, since the first of them came.
        """
        files, number = self._files.history()
        waiting: dict[str, int] = {}
        before: list[tuple[str, pa.Array]] = []
        n_rows, largest = 0, 0
        for file, read in reversed(files):
            state = file.size, file.stamp
            if file.labels not in waiting:
                waiting[file.labels] = file.waiting
                if not file.waiting:
                    self._seen[1][file.labels] = state
            largest = max(largest, file.rows)
            if file.has_keys and not is_old(n_rows, self._n_rows, largest):
                before.append((file.labels, self._keys(read(), self.out)))
                n_rows += file.rows
            else:
                self._seen[1].setdefault(file.labels, state)  # what still waits in it is too old
        return before, number

    def _read_rows(self, uri: str, state: State) -> _Keys:
        if folder := _PARTITION.search(uri):
            raise DataError(
                f"{uri}: the folder {folder[0].strip('/')} is a column, which joined rows would "
                "lack; write rows with all their columns into the files"
            )
        table = _read(uri, [self._key])
        keys = self._keys(table, uri)
        n = len(keys)
        self._n_came += n
        return _Keys(uri, state, keys, _is_null(keys), self._n_came - n)

    def _read_labels(self, uri: str, state: State) -> _Keys:
        table = _read(uri, [self._key, self._target])
        keys = self._keys(table, uri)
        values = table[self._target].combine_chunks()
        has_no_label = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        codes = keys.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
        (there,) = np.nonzero(~(_is_null(keys) | has_no_label))
        is_done = np.ones(len(keys), bool)
        is_done[there[np.unique(codes[there], return_index=True)[1]]] = False  # the first of a key
        return _Keys(uri, state, keys, is_done, values=values, repeated=int(is_done.sum()))

    def _keys(self, table: pa.Table, uri: str) -> pa.Array:
        """Return the keys of a table, as they are compared."""
        column = table[self._key].combine_chunks()
        if column.null_count == len(column):  # no value, of whatever type
            return pa.nulls(len(column), self._type or pa.int64())
        type_ = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_integer(type_) or pa.types.is_floating(type_):
            type_ = pa.int64()  # pandas writes whole numbers as fractions where some are missing
        elif pa.types.is_string(type_):
            type_ = pa.large_string()
        elif pa.types.is_decimal32(type_) or pa.types.is_decimal64(type_):
            type_ = pa.decimal128(type_.precision, type_.scale)  # which Arrow compares
        is_fit = pa.types.is_integer(type_) or pa.types.is_large_string(type_)
        if not is_fit and not pa.types.is_temporal(type_) and not pa.types.is_decimal(type_):
            raise DataError(
                f"{uri}: the key {self._key!r} has type {type_}; expected whole numbers, texts or "
                "times, which are equal or are not"
            )
        self._type = self._type or type_
        if type_ != self._type:
            raise DataError(
                f"{uri}: the key {self._key!r} has type {type_}, and in files before "
                f"{self._type}; write both as one type"
            )
        try:
            return column.cast(type_)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{uri}: the key {self._key!r} is not of whole numbers within 64 bits: {error}"
            ) from error

    def _mark(self, before: list[tuple[str, pa.Array]]) -> None:
        """Note which rows and labels earlier processes have joined."""
        of_labels: dict[str, list[pa.Array]] = {}
        for labels, keys in before:
            of_labels.setdefault(labels, []).append(keys)
        whole = pa.chunked_array([keys for _, keys in before])
        for of in self._rows:
            of.is_done |= pc.is_in(of.keys, value_set=whole).to_numpy(zero_copy_only=False)
        for of in self._labels:
            joined = pa.chunked_array(of_labels.get(of.uri, []), of.keys.type)
            of.is_done |= pc.is_in(of.keys, value_set=joined).to_numpy(zero_copy_only=False)

    def _join(self, labels: _Keys) -> Joined | None:
        """Join the open labels of a file with the rows that are there; None if there are none."""
        places = np.full((len(labels.keys), 2), -1)  # which file of rows, and where in it
        is_open = ~labels.is_done
        for number in reversed(range(len(self._rows))):
            if not is_open.any():
                break
            rows = self._rows[number]
            wanted = pc.index_in(rows.keys, labels.keys.filter(pa.array(is_open)))
            places_in_file = wanted.fill_null(-1).to_numpy(zero_copy_only=False)
            (at,) = np.nonzero(places_in_file >= 0)
            which, first = np.unique(
                places_in_file[at], return_index=True
            )  # the first row of a key
            label, row = np.flatnonzero(is_open)[which], at[first]
            is_new = ~rows.is_done[row]
            labels.repeated += int((~is_new).sum())
            labels.is_done[label] = True
            is_open[label] = False
            places[label[is_new]] = np.column_stack(
                [np.full(int(is_new.sum()), number), row[is_new]]
            )
        (at,) = np.nonzero(places[:, 0] >= 0)
        if len(at):
            return self._write(labels, at, places[at])
        if not labels.n_open:
            _log.warning("%s has no label of a row that waits for one", labels.uri)
        return None

    def _write(self, labels: _Keys, at: np.ndarray, places: np.ndarray) -> Joined:
        """Write rows and their labels.

        Parameters
        ----------
        labels : _Keys
        at : int [n]
            Which labels.
        places : int [n, 2]
            The file of each row, and its place in it.
        """
        assert self._next is not None
        assert labels.values is not None
        parts, order = [], []
        for number in np.unique(places[:, 0]):
            (mine,) = np.nonzero(places[:, 0] == number)
            parts.append(self._whole_rows(self._rows[number], places[mine, 1]))
            order.append(mine)
        try:
            table = pa.concat_tables(parts, promote_options="permissive")
        except pa.ArrowException as error:
            files = ", ".join(self._rows[number].uri for number in np.unique(places[:, 0]))
            raise DataError(f"rows of {files} have columns of different types: {error}") from error
        table = table.take(np.argsort(np.concatenate(order), kind="stable"))
        table = table.append_column(self._target, labels.values.take(pa.array(at)))
        about = {"labels": labels.uri, "waiting": labels.n_open}
        about |= {"size": labels.state[0], "stamp": labels.state[1]}
        rows_later, seconds_later = self._delay(labels, places)
        about |= {"rows_later": rows_later, "seconds_later": seconds_later}
        name = self._files.write(self._next, table, about)
        self._next += 1
        for number, row in places:
            self._rows[number].is_done[row] = True
        return Joined(
            labels.uri, name, len(places), labels.n_open, labels.repeated, rows_later,
            seconds_later,
        )  # fmt: skip

    def _delay(self, labels: _Keys, places: np.ndarray) -> tuple[float, float | None]:
        """Return how many rows and seconds later than their rows labels came, the medians."""
        before = np.array([of.before for of in self._rows])
        later = self._n_came - (before[places[:, 0]] + places[:, 1])
        changed = [of.changed for of in self._rows]
        times = [changed[number] for number in places[:, 0]]
        seconds = None
        if labels.changed is not None and None not in times:
            seconds = float(np.median(np.maximum(labels.changed - np.array(times, float), 0.0)))
        return float(np.median(later)), seconds

    def _whole_rows(self, rows: _Keys, at: np.ndarray) -> pa.Table:
        """Return rows of a file, with all columns, in this order."""
        table = _read(rows.uri, None)
        if self._target in table.column_names:
            raise DataError(
                f"{rows.uri} has a column {self._target!r}, as the labels have; expected rows "
                "without labels"
            )
        if not self._keys(table, rows.uri).equals(rows.keys):
            raise DataError(
                f"{rows.uri} was written again since it came, and has other keys; write rows to "
                "files of new names"
            )
        return table.take(pa.array(at))

    def _give_up(self, files: list[_Keys], why: str) -> None:
        """Forget files."""
        for of in files:
            if of.n_open:
                what = "rows wait for labels" if of.values is None else "labels wait for rows"
                _log.warning("%s, of which %d %s, %s", of.uri, of.n_open, what, why)
        gone = {id(of) for of in files}
        self._rows, self._labels = (
            [of for of in kept if id(of) not in gone] for kept in (self._rows, self._labels)
        )


def _oldest(kept: list[_Keys], n_rows: int) -> list[_Keys]:
    """Return the files before the newest that have ``n_rows`` keys."""
    after = np.cumsum([0, *(len(of.keys) for of in reversed(kept))])[-2::-1]  # of each file
    return [of for of, n in zip(kept, after, strict=False) if n >= n_rows]


def _read(uri: str, columns: list[str] | None) -> pa.Table:
    """Return the rows of a file, all columns of it if None."""
    parquet = open_parquet(uri)
    present = parquet.schema_arrow.names
    names = present if columns is None else columns
    for name in names:
        if present.count(name) != 1:
            raise DataError(
                f"{uri} has {present.count(name) or 'no'} column{'s' * (name in present)} "
                f"{name!r}; it has {', '.join(map(repr, present))}"
            )
    groups = range(parquet.metadata.num_row_groups)
    tables = [read_columns(parquet, uri, group, names) for group in groups]
    schema = pa.schema([parquet.schema_arrow.field(name) for name in names])
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    return without_views(table)


def _is_null(array: pa.Array) -> np.ndarray:
    return array.is_null().to_numpy(zero_copy_only=False)
