"""Rows of files with the lags of a keyed series as columns, as Parquet that a run learns.

::

    000000000000000.parquet         rows from position 0 of the stream on, of one file of the data
    000000000131072.parquet         the next ones; each file is named by its first position
    _source/<digest>.parquet        the files of the data in their order, as a plan without columns
    _state/000000000131072.parquet  the last rows of each key before a position

A lag needs the rows before it, so one process reads the data once, in their order, and writes each
row with its lags to files that are learned in place of the data. Row groups stay what they were, so
that a shuffle gives the same order. A file is written as a whole or not, and names the list of
files of the data that it was made by: nothing else notes how far the data were read.

Relies on plans and their extension for the order of the data and for files that came, moved or are
gone; on :class:`dmondrian.data.KeyedLags`; and on a store that writes a file once. Promises that
each row is written once, whatever ends the process meanwhile; the same columns wherever it ended
and however rows are divided into files; and that no file of the data is read again once it is
written. Memory holds a row group, at least `FILE_ROWS` rows where a file has more, and the rows of
each key that lags need.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dmondrian._text.wording import NOTED, counted, size
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.file_notes import read_note, sealed_note
from dmondrian.checkpoint.stream import LAGS
from dmondrian.data.arrow_values import CATEGORY, NUMBER, TIME, kind_of
from dmondrian.data.block_table import Block
from dmondrian.data.columns import partition_array, partition_types, require
from dmondrian.data.extend import extend_plan
from dmondrian.data.footers import open_parquet, plain_columns, read_columns
from dmondrian.data.keyed_lags import KeyedLags
from dmondrian.data.lag_origins import NAME, Origin, in_words_of_data
from dmondrian.data.lag_settings import in_words, lags_of, lags_of_labels
from dmondrian.data.make import footers_of, groups_of
from dmondrian.data.plan import Plan, arrange
from dmondrian.data.read import check_unchanged
from dmondrian.data.schema import Column, Schema
from dmondrian.data.source import Source, is_local
from dmondrian.data.tables import without_views
from dmondrian.errors import (
    CheckpointError,
    CorruptError,
    DataError,
    DMondrianError,
    FencedError,
    NotFoundError,
    ParameterError,
    SchemaError,
    StoreError,
)
from dmondrian.store import Store, open_store

FILE_ROWS = 262_144
"""Rows with which a file ends, with the row group that has them."""

FILE_BYTES = 128 << 20
"""Bytes of decoded rows with which a file ends."""

SOURCES, STATES = "_source", "_state"  # names that begin with _ are no data
REPORTED = 30.0
"""Seconds between two log records of how many rows are written."""

_log = logging.getLogger("dmondrian")
_ABOUT = b"dmondrian.lagged"
_STATE = re.compile(rf"{STATES}/(\d{{15}})\.parquet")
_EPOCH, _SPAN = 10**18, 10**17  # nanoseconds since 1970: of 2001, and three years


@dataclass(frozen=True)
class _Identity:
    """Attributes that distinguish a file of the data from others."""

    uri: str
    size: int
    stamp: str
    fingerprint: str

    def is_same(self, other: _Identity) -> bool:
        """Return whether two are one file, or copies of one."""
        if self.fingerprint and other.fingerprint:
            return (self.size, self.fingerprint) == (other.size, other.fingerprint)
        return (self.uri, self.size, self.stamp) == (other.uri, other.size, other.stamp)


def is_of_rows(name: str) -> bool:
    """Return whether a file of a folder is one of rows with lags."""
    return NAME.fullmatch(name) is not None


def source_of(uri: str) -> str | None:
    """Return the file of the data whose rows a file with lags has; None if it cannot be read."""
    try:
        with open_parquet(uri) as parquet:
            metadata = parquet.schema_arrow.metadata or {}
        return str(read_note(metadata, _ABOUT)["file"])
    except (DataError, LookupError, ValueError):
        return None


def lagged_files(
    url: str, settings: Mapping[str, Any], target: str | None, time_column: str | None = None
) -> LaggedFiles:
    """Return what writes and reads the rows with lags in the folder of a run."""
    place = f"{url.rstrip('/')}/{LAGS}"
    return LaggedFiles(place, settings, target=target, time_column=time_column)


def lags_of_run(run: Run) -> LaggedFiles | None:
    """Return the rows with lags of a run; None of a run without lags."""
    settings, target = run.run_json.get("lags"), run.run_json.get("target")
    return None if settings is None else lagged_files(run.store.url, settings, target)


def plan_of_data(run: Run, plan: Plan) -> Plan:
    """Return where the rows of a run come from: its plan, or that of the data that lags are of.

    That has no columns. It is the plan of the run where the folder of lags cannot be read.
    """
    lagged = lags_of_run(run)
    plan_there = None
    if lagged is not None:
        with suppress(DMondrianError):
            plan_there = lagged.plan_of_data()
    return plan if plan_there is None else plan_there


class LaggedFiles:
    """Writes the rows of files with lags, again and again.

    Parameters
    ----------
    out : str
        Folder or URL.
    settings : mapping
        Of :func:`dmondrian.data.lag_settings.checked_lags`.
    target : str or None
        Of which no difference is made.
    time_column : str or None
        Column of times, whose order is looked at.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | Store,
        settings: Mapping[str, Any],
        *,
        target: str | None = None,
        time_column: str | None = None,
    ) -> None:
        self._store = open_store(out)
        self._settings, self._target, self._time = dict(settings), target, time_column
        self._followed: dict[str, Origin] = {}  # files that `follow_on` returned
        self._places: dict[str, list[tuple[_Identity, int, int]]] = {}  # by list of files

    @property
    def out(self) -> str:
        """Folder or URL of the files."""
        return self._store.url

    @property
    def labels(self) -> dict[int, str]:
        """Columns that are labels of earlier rows, by how many rows they are back."""
        return lags_of_labels(self._settings, self._target)

    def take(
        self,
        source: Source,
        among: Collection[str] | None = None,
        is_asked_to_end: Callable[[], bool] = bool,
    ) -> int:
        """Write the rows of a source that are not written; return how many.

        Parameters
        ----------
        source : str, path or sequence of them
            As of :func:`dmondrian.data.make_plan`; of files that are written, as of
            :func:`dmondrian.data.extend.extend_plan`.
        among : collection of str or None
            Uris of the files to use, but for those of tables; None for all.
        is_asked_to_end : callable
            Called after each file that is written.

        Raises
        ------
        DataError
            Files cannot be read or have changed, or lack a column.
        ParameterError
            The folder has rows with other lags.
        FencedError
            Another process writes other files to the folder.
        KeyboardInterrupt
            It was asked to end; the same call goes on.
        """
        names, end = self._written()
        self._store.delete([name for name, at in self._states() if at > end])
        plan = self._planned(names, end, source, among)
        for note in plan.about_learned:
            _log.info(note, extra=NOTED)
        if plan.n_rows == end:
            return 0
        for note in plan.notes:
            _log.info(note, extra=NOTED)
        data = replace(plan, earlier=(), notes=()).to_parquet()
        listing = hashlib.sha256(data).hexdigest()[:32]
        self._store.put_same(f"{SOURCES}/{listing}.parquet", data)
        lags, first = self._state(names, end), end
        sizes = _Sizes()
        order, reported = _Order(self._time), time.monotonic()
        if names:
            order.begin_behind(self._last_group(names[-1]))
        for uri, tables in self._read(plan, end):
            self._check_target(uri, tables[0])
            end += self._write(end, uri, tables, lags, listing, sizes)
            for table in tables:
                order.look(table)
            if is_asked_to_end():
                raise KeyboardInterrupt(
                    f"stopped with {end:,} of {counted(plan.n_rows, 'row')} written with lags; run "
                    "the same command again to go on from there"
                )
            if time.monotonic() - reported >= REPORTED:
                reported = time.monotonic()
                _log.info("%s of %s written with lags", f"{end:,}", counted(plan.n_rows, "row"))
        self._store.put(_state_name(end), _parquet(lags.state()))
        order.warn()
        _log.info(
            "%s with lags written to %s: %s, of which the columns of lags have %s, %.1f bytes a "
            "row",
            counted(end - first, "row"),
            self.out,
            size(sizes.all),
            size(sizes.of_lags),
            sizes.of_lags / (end - first),
            extra=NOTED,
        )
        return end - first

    def _check_target(self, uri: str, table: pa.Table) -> None:
        """Refuse rows without the target before they are written."""
        if self._target is not None and self._target not in table.column_names:
            require([self._target], table.column_names, f"the target, of {uri}")

    def _last_group(self, name: str) -> pa.Table:
        """Return the times of the last row group of a file."""
        uri = f"{self.out.rstrip('/')}/{name}"
        parquet = open_parquet(uri)
        wanted = [name for name in parquet.schema_arrow.names if name == self._time]
        return read_columns(parquet, uri, parquet.metadata.num_row_groups - 1, wanted)

    def known(self) -> set[str]:
        """Return the uris of the files of the data whose rows are written."""
        names, end = self._written()
        plan = self._listing(names, end)
        return set() if plan is None else {block.uri for block in plan.blocks}

    def drop(self, position: int) -> None:
        """Delete what is not needed to go on, also where files behind a position are taken back."""
        names, _ = self._written()
        learned = [name for name in names[1:] if _at(name) <= position]
        left = names[max(0, len(learned) - 1) :]  # with the newest file whose rows are learned
        states = self._states()
        newest = max((at for _, at in states if at <= position), default=0)
        spare = [name for name, at in states if at < newest]
        listings = self._store.list(SOURCES)
        if len(listings) > 1:
            used = {self._about(name)["source"] for name in left}
            spare += [name for name in listings if name[len(SOURCES) + 1 : -8] not in used]
        self._store.delete(spare)

    def drop_rows(self, position: int) -> None:
        """Delete files whose rows lie before a position, and are not needed for later lags.

        The newest file stays. What was learned from the others cannot be learned again, and files
        of the data that they were made of cannot be scored.
        """
        names, states = self._written()[0], [at for _, at in self._states()]
        reached = min(position, *states) if states else 0
        spare = [name for name, then in pairwise(names) if _at(then) <= reached]
        self._store.delete(spare)

    def follow_on(self, source: Source, out: Store) -> list[str]:
        """Return files with lags of a source, in its order: for scoring.

        Those of files that are among the data of this folder, or are copies of one, are its own; of
        one that comes twice they are copied to `out`. Others are written to `out`: their rows come
        behind the newest row here, and one behind the other. Their times of change are made of
        their bytes, so that files that are written again are the same.

        Parameters
        ----------
        source : str, path or sequence of them
        out : Store

        Raises
        ------
        DataError
            Files cannot be read or lack a column, or those with the rows of a file of the data are
            gone.
        """
        names, end = self._written()
        if not names:
            raise DataError(
                f"{self.out} has no rows, and lags of new rows begin with the last rows that the "
                "model was trained on: put that folder back, beside the run"
            )
        learned = self._listing(names, end)
        places = [] if learned is None else _places(learned)
        plan = self._new_plan(source, None, learned)
        lags = self._state(names, end)
        uris: list[str] = []
        written, listing = end, ""
        for identity, start, stop in _places(plan):
            matches = [place for place in places if place[0].is_same(identity)]
            match = next((place for place in matches if place[0].uri == identity.uri), None)
            match = match or next(iter(matches), None)
            if match is not None:
                if match[2] > end:
                    raise DataError(
                        f"{identity.uri} is among the data of the run, which has not got all of "
                        "its rows yet: let it go on first, by the command that trains it"
                    )
                own_files = self._own(names, identity.uri, *match[1:])
                positions = [_at(uri.rpartition("/")[2]) for uri in own_files]
                origins = [Origin(identity.uri, position - match[1]) for position in positions]
                if not set(own_files).isdisjoint(uris):
                    own_files = [
                        self._copy(uri, out, written + at) for at, uri in enumerate(own_files)
                    ]
                    written += match[2] - match[1]
                uris += own_files
                self._followed |= zip(own_files, origins, strict=True)
                continue
            alone = [block for block in plan.blocks if start <= block.position < stop]
            at = 0  # rows of this file
            for uri, tables in self._read(replace(plan, blocks=tuple(alone)), start):
                data = self._encoded(uri, tables, lags, listing)[0]
                name = _name(written)
                out.put(name, data)
                _set_time(out, name, data)
                uris.append(f"{out.url.rstrip('/')}/{name}")
                self._followed[uris[-1]] = Origin(uri, at)
                at += sum(map(len, tables))
                written += sum(map(len, tables))
        return uris

    def plan_of_data(self) -> Plan | None:
        """Return the files of the data whose rows are here, as a plan; None if none are."""
        names, end = self._written()
        return self._listing(names, end)

    def origin(self, uri: str) -> Origin | None:
        """Return where the rows of a file with lags come from; None if that is not known.

        Of a file that :meth:`follow_on` returned it is the file of the source that was given.
        """
        if uri in self._followed:
            return self._followed[uri]
        folder, _, name = uri.rpartition("/")
        if folder != self.out.rstrip("/"):
            return None
        try:
            listing = self._about(name)["source"]
            if listing not in self._places:
                stored = self._store.get(f"{SOURCES}/{listing}.parquet")
                self._places[listing] = _places(Plan.from_parquet(stored))
        except (DataError, CheckpointError, StoreError):  # an error is being written already
            return None
        for identity, start, stop in self._places[listing]:
            if start <= _at(name) < stop:
                return Origin(identity.uri, _at(name) - start)
        return None

    @contextmanager
    def errors_of_data(self, *other_folders: str) -> Iterator[None]:
        """Let errors name the files of the data in place of those here, and in other folders."""
        try:
            yield
        except DataError as error:
            renamed = in_words_of_data(error, (self.out, *other_folders), self.origin)
            if renamed is error:
                raise
            raise renamed from error

    def _copy(self, uri: str, out: Store, position: int) -> str:
        """Write a file of this folder to another one; return where it is."""
        name = _name(position)
        data = self._store.get(uri.rpartition("/")[2])
        out.put(name, data)
        _set_time(out, name, data)
        return f"{out.url.rstrip('/')}/{name}"

    def _own(self, names: Sequence[str], of: str, start: int, stop: int) -> list[str]:
        """Return the files with the rows of a file of the data, which are at these positions."""
        matching = [name for name in names if start <= _at(name) < stop]
        uris = [f"{self.out.rstrip('/')}/{name}" for name in matching]
        n_rows = 0
        for uri in uris:
            with open_parquet(uri) as parquet:
                n_rows += parquet.metadata.num_rows
        if n_rows != stop - start:
            raise DataError(
                f"{of} is among the data of the run, and {self.out} lacks files with its "
                "rows and their lags, which are those of the rows before it: put them back, or "
                "score other files"
            )
        return uris

    def _written(self) -> tuple[list[str], int]:
        """Return the names of the files that are there, and the position behind the last row."""
        names = sorted(name for name in self._store.list() if "/" not in name)
        strange = [n for n in names if n.endswith(".parquet") and not NAME.fullmatch(n)]
        if strange:
            raise DataError(f"{self.out}/{strange[0]} was not written by this; take it out")
        names = [name for name in names if NAME.fullmatch(name)]
        if not names:
            return [], 0
        about = self._about(names[-1])
        if about["settings"] != self._settings or about["target"] != self._target:
            raise ParameterError(
                f"{self.out} has rows with other lags ({in_words(about['settings'])}): take these "
                "settings back; or, if nothing of it is learned yet, delete that folder, or choose "
                "another one for the run"
            )
        return names, _at(names[-1]) + int(about["rows"])

    def _about(self, name: str) -> dict[str, Any]:
        """Return what a file notes."""
        uri = f"{self.out.rstrip('/')}/{name}"
        metadata = open_parquet(uri).schema_arrow.metadata
        try:
            about = read_note(metadata, _ABOUT)
            return {name: about[name] for name in ("source", "rows", "settings", "target")}
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptError(f"{uri} does not note what it was made of: {error!r}") from error

    def _listing(self, names: Sequence[str], end: int) -> Plan | None:
        """Return the files of the data whose rows are written, as a plan; None if there are none.

        Of files those without a written row may still be mended or taken away. The files of a
        table never change, and what came to it is known by its version: all of them stay.
        """
        if not names:
            return None
        name = f"{SOURCES}/{self._about(names[-1])['source']}.parquet"
        try:
            plan = Plan.from_parquet(self._store.get(name))
        except NotFoundError as error:
            raise DataError(
                f"{self.out} lacks {name}, the list of the files whose rows it has: put it back "
                "from a copy, or train another run"
            ) from error
        if plan.tables:
            return plan
        files = {block.uri for block in plan.blocks if block.position < end}
        return replace(plan, blocks=tuple(block for block in plan.blocks if block.uri in files))

    def _planned(
        self, names: Sequence[str], end: int, source: Source, among: Collection[str] | None
    ) -> Plan:
        """Return the files of the data in their order: those written, then those that came."""
        learned = self._listing(names, end)
        if learned is None:
            return self._new_plan(source, among, None)
        return extend_plan(learned, source, end, among)

    def _new_plan(
        self, source: Source, among: Collection[str] | None, learned: Plan | None
    ) -> Plan:
        footers, notes, tables = footers_of(source, False, among)
        partitions = partition_types(
            [footer.file for footer in footers], None if learned is None else learned.schema
        )
        key = self._settings["key"]
        wanted = [*self._settings["columns"], *([] if key is None else [key])]
        for footer in footers:
            known = [*footer.types, *footer.repeated, *partitions]
            try:
                require(wanted, known, "lags")
            except SchemaError as error:
                advice = self._advice(known)
                raise SchemaError(f"{footer.file.uri}: {error}{advice}") from error
        # Text stays text, whatever values the folders of later files have.
        columns = []
        for name in (name for name, kind in partitions.items() if pa.types.is_string(kind)):
            texts = {dict(footer.file.partition)[name] for footer in footers}
            levels = tuple(sorted(text for text in texts if text is not None))
            kind = str(pa.string())
            columns.append(Column(name, CATEGORY, kind, levels=levels, n_distinct=len(levels)))
        schema = Schema(tuple(columns))
        blocks = arrange(groups_of(footers, partitions), False, 0)
        return Plan(schema, blocks, notes=tuple(notes), tables=tuple(tables))

    def _read(self, plan: Plan, start: int) -> Iterator[tuple[str, list[pa.Table]]]:
        """Yield row groups from a position on, those of a file of ours together.

        A file ends with the file of the data, or once it has so many rows or bytes.
        """
        rest = [block for block in plan.blocks if block.position >= start]
        position = rest[0].position if rest else start
        if position != start:
            raise CorruptError(f"{self.out} ends at row {start:,}, within a row group of the data")
        for uri, blocks in groupby(rest, key=lambda block: block.uri):
            tables: list[pa.Table] = []
            for _, parts in groupby(blocks, key=lambda block: block.row_group):
                tables.append(_whole_group(next(parts)))
                n_bytes = sum(table.nbytes for table in tables)
                if sum(map(len, tables)) >= FILE_ROWS or n_bytes >= FILE_BYTES:
                    yield uri, tables
                    tables = []
            if tables:
                yield uri, tables

    def _write(
        self,
        at: int,
        uri: str,
        tables: list[pa.Table],
        lags: KeyedLags,
        listing: str,
        sizes: _Sizes,
    ) -> int:
        """Write row groups with their lags as the file at a position; return its rows."""
        data, n_of_lags = self._encoded(uri, tables, lags, listing)
        try:
            self._store.put_same(_name(at), data)
        except FencedError as error:
            raise FencedError(
                f"{self.out} has {_name(at)}, of another process: let one train this run at a time"
            ) from error
        sizes.all += len(data)
        sizes.of_lags += n_of_lags
        return sum(map(len, tables))

    def _encoded(
        self, uri: str, tables: list[pa.Table], lags: KeyedLags, listing: str
    ) -> tuple[bytes, int]:
        """Return row groups with their lags as Parquet, and the bytes of the columns of lags."""
        n_rows = sum(map(len, tables))
        try:
            rows = lags.add(pa.concat_tables(tables))
        except SchemaError as error:
            raise SchemaError(f"{uri}: {error}{self._advice(tables[0].column_names)}") from error
        about = {"source": listing, "rows": n_rows, "settings": self._settings, "file": uri}
        about["target"] = self._target
        noted = {**(rows.schema.metadata or {}), **sealed_note(_ABOUT, about)}
        rows = rows.replace_schema_metadata(noted)
        sink, start = pa.BufferOutputStream(), 0
        with pq.ParquetWriter(sink, rows.schema, write_page_checksum=True) as writer:
            for table in tables:
                part = rows.slice(start, len(table))
                writer.write_table(part, row_group_size=len(table))
                start += len(table)
        data = sink.getvalue().to_pybytes()
        return data, _bytes_of(data, set(lags.names))

    def _advice(self, known: Collection[str]) -> str:
        """Return what to do where rows that are to be scored lack the target, of which lags are."""
        if self._target not in self._settings["columns"] or self._target in known:
            return ""
        return (
            f" Lags of the target {self._target!r} are made of known labels: add the column, null "
            "where a label is not known"
        )

    def _states(self) -> list[tuple[str, int]]:
        """Return the states that are there, and the position of each."""
        matches = [(name, _STATE.fullmatch(name)) for name in self._store.list(STATES)]
        return [(name, int(match[1])) for name, match in matches if match is not None]

    def _state(self, names: Sequence[str], end: int) -> KeyedLags:
        """Return what goes on behind the last row: by a state, or by the rows that lags reach."""
        states = {at: name for name, at in self._states() if at <= end}
        far = max(0, end - int(self._settings["n_rows"]))  # no lag reaches rows before
        begin = max((_at(name) for name in names if _at(name) <= far), default=0)
        for position in sorted((at for at in states if at >= max(begin, 1)), reverse=True):
            state = pa.BufferReader(self._store.get(states[position]))
            try:
                table = pq.read_table(state, page_checksum_verification=True)
                lags, begin = KeyedLags.restored(table), position
                break
            except (pa.ArrowException, OSError, DataError) as error:  # rows have all of it
                name = f"{self.out.rstrip('/')}/{states[position]}"
                _log.warning("%s is damaged, so earlier rows are read (%s)", name, error)
        else:
            lags = lags_of(self._settings, self._target)
            lags.pass_over(begin)
        key = self._settings["key"]
        wanted = [*self._settings["columns"], *([] if key is None else [key])]
        at, name_at = begin, {_at(name): name for name in names}
        while at < end:
            if at not in name_at:
                raise DataError(
                    f"{self.out} lacks {_name(at)}, whose rows lags of later rows reach: put it "
                    "back, or train another run"
                )
            uri = f"{self.out.rstrip('/')}/{name_at[at]}"
            parquet = open_parquet(uri)
            for group in range(parquet.metadata.num_row_groups):
                lags.add(read_columns(parquet, uri, group, wanted).select(wanted))
            at += parquet.metadata.num_rows
        return lags


class _Sizes:
    """Counter of the bytes that were written."""

    def __init__(self) -> None:
        self.all, self.of_lags = 0, 0


class _Order:
    """Counts rows that are earlier than the row before them."""

    def __init__(self, time: str | None) -> None:
        self._time, self.n = time, 0
        self._last: pa.Scalar | None = None  # the newest time

    def begin_behind(self, table: pa.Table) -> None:
        """Take the last row of a table for the one before the next."""
        self.look(table)
        self.n = 0

    def look(self, table: pa.Table) -> None:
        """Look at the times of the next rows."""
        if self._time is None or table.column_names.count(self._time) != 1 or not len(table):
            return
        times = table[self._time].combine_chunks()
        if kind_of(times.type)[0] not in (NUMBER, TIME):  # which the plan refuses
            return
        self.n += pc.sum(pc.less(times.slice(1), times.slice(0, len(times) - 1))).as_py() or 0
        first = times[0]
        if self._last is not None and first.is_valid and self._last.is_valid:
            self.n += bool(pc.less(first, self._last).as_py())
        self._last = times[-1]

    def warn(self) -> None:
        """Warn of these rows, if there are some."""
        if self.n:
            verb = "is" if self.n == 1 else "are"
            warnings.warn(
                f"{counted(self.n, 'row')} {verb} earlier by {self._time!r} than the row before: "
                "lags are of earlier rows in the order of the files, whatever their times; sort "
                "the data if that is not meant",
                UserWarning,
                stacklevel=3,
            )


def _whole_group(block: Block) -> pa.Table:
    """Return a row group with all its columns, those of its folders behind them."""
    check_unchanged(block)
    with open_parquet(block.uri) as parquet:
        names = plain_columns(parquet.schema_arrow)
        table = read_columns(parquet, block.uri, block.row_group, names)
    if len(table) != block.group_rows:
        raise DataError(
            f"{block.uri}, row group {block.row_group}: expected {block.group_rows} rows as in its "
            f"footer, got {len(table)}"
        )
    table = without_views(table)
    for value in block.partition:
        if value[0] not in table.column_names:
            column = partition_array(value, len(table))
            kind = column.type
            column = column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column
            table = table.append_column(value[0], column)
    return table


def _places(plan: Plan) -> list[tuple[_Identity, int, int]]:
    """Return each file of a plan, and the positions where its rows begin and end."""
    places = []
    for uri, group in groupby(plan.blocks, key=lambda block: block.uri):
        blocks = list(group)
        first, last = blocks[0], blocks[-1]
        identity = _Identity(uri, first.size, first.stamp, first.fingerprint)
        places.append((identity, first.position, last.position + last.rows))
    return places


def _bytes_of(data: bytes, names: Collection[str]) -> int:
    """Return the stored bytes of some columns of a file."""
    footer = pq.read_metadata(pa.BufferReader(data))
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in names)


def _set_time(store: Store, name: str, data: bytes) -> None:
    """Give a local file a time of change that is made of its bytes; others have tags of these."""
    if is_local(store.url):
        stamp = _EPOCH + int(hashlib.sha256(data).hexdigest()[:15], 16) % _SPAN
        os.utime(os.path.join(store.address.path, name), ns=(stamp, stamp))


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def _at(name: str) -> int:
    return int(name[:15])


def _name(position: int) -> str:
    return f"{position:015d}.parquet"


def _state_name(position: int) -> str:
    return f"{STATES}/{position:015d}.parquet"
