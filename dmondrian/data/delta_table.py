"""Delta tables as data: the live files of a version, and those appended since another one.

Relies on the package `deltalake` for the live files of a version, and on the JSON of the table's
log for what came between two versions (:mod:`dmondrian.data.delta_log`). Promises that rows which
the version does not have are not read, that a row is in one file of those returned, and that
partition columns have the types of the table; deletion vectors and columns with other names in the
files (column mapping) are refused. Of rows appended since a version, those that one commit deleted
together with rows of that version are read: its new file has both, and the log does not part them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from dmondrian._optional import require
from dmondrian.data.delta_log import (
    appended_only,
    changes_since,
    files_to_learn,
    refuse_masked,
    state_after,
)
from dmondrian.data.listing import GLOB
from dmondrian.data.plan import TableState
from dmondrian.data.source import (
    SourceFile,
    child_uri,
    is_local,
    locate,
    normalise,
    stamp_of,
)
from dmondrian.data.web import is_web
from dmondrian.errors import DataError, MissingPackageError, PlanError
from dmondrian.store.failures import advice_on_answer, kind_of
from dmondrian.store.store import s3_is_on_this_machine

LOG = "_delta_log"
_VERSION = re.compile(r"(?P<table>.+)@v(?P<version>\d+)", re.DOTALL)

# What `deltalake` takes for a character in quotes, as "%20", and what it ends a process with.
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|]")
# Arrow types of partition columns by those of Delta.
_KINDS = {
    **dict.fromkeys(("byte", "short", "integer", "long"), "int64"),
    **dict.fromkeys(("float", "double"), "double"),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), "timestamp[us]"),
    "string": "string",
    "boolean": "bool",
    "date": "date32[day]",
}


@dataclass(frozen=True)
class DeltaTable:
    """A table at one version."""

    state: TableState
    types: Mapping[str, str]  # of the partition columns: Arrow types
    live: Mapping[str, Mapping[str, str | None]]  # path -> partition values, in order
    rows: Mapping[str, int]  # path -> rows by the statistics
    masked: Mapping[str, int]  # paths of files of which deletion vectors leave rows out
    columns: tuple[tuple[str, None], ...] = ()  # without those of partitions
    modified: int = 0  # when its newest file was written, in milliseconds since 1970

    @property
    def name(self) -> str:
        """Address and version, for messages."""
        return f"the Delta table {self.state.uri} at version {self.state.version}"


def table_at(item: str) -> tuple[str, int | None] | None:
    """Return the address and the version of a Delta table that an item names; None for no table.

    Parameters
    ----------
    item : str
        A folder or URL as a user writes it, ``@v12`` behind it for version 12.
    """
    named = _VERSION.fullmatch(item)
    for text, version in (
        (item, None),
        *([(named["table"], int(named["version"]))] if named else []),
    ):
        location = normalise(text).rstrip("/")
        if is_web(location) or GLOB.search(location):
            continue
        filesystem, path = locate(location)
        try:
            info = filesystem.get_file_info(f"{path}/{LOG}")
        except OSError as error:
            advice = advice_on_answer(str(error), location)
            raise kind_of(error, location)(
                f"cannot look at {location}: {error} {advice}".rstrip()
            ) from error
        if info.type == fs.FileType.Directory:
            return location, version
    return None


def open_table(location: str, version: int | None = None) -> DeltaTable:
    """Return a table at a version, by default its newest.

    Raises
    ------
    MissingPackageError
        `deltalake` is not installed.
    DataError
        The table cannot be read, or its columns have other names in the files.
    """
    require("deltalake", "lake", f"reading the Delta table {location}")
    import deltalake
    from deltalake.exceptions import DeltaError

    if why := misread(address_of(location)):
        raise DataError(f"cannot read the Delta table {location}: {why}")
    if not hasattr(deltalake.DeltaTable, "deletion_vectors"):
        raise MissingPackageError(
            f"deltalake {deltalake.__version__} does not list deletion vectors: reading the Delta "
            f"table {location} needs 1.5 or newer, which `pip install 'dmondrian[lake]'` brings"
        )
    try:
        table = deltalake.DeltaTable(
            address_of(location), version=version, storage_options=options_of(location)
        )
        metadata, schema = table.metadata(), json.loads(table.schema().to_json())
        actions = pa.table(table.get_add_actions()).to_pylist()
        masked = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
    except (DeltaError, OSError, ValueError, LookupError) as error:
        at = "" if version is None else f" at version {version}"
        raise kind_of(error, location)(
            f"cannot read the Delta table {location}{at}: {error}"
        ) from error
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        raise DataError(
            f"the Delta table {location} has columns whose names in its files are others "
            "(delta.columnMapping.mode): not read here; write it as a table without"
        )
    kinds = {field["name"]: field["type"] for field in schema["fields"]}
    for name in metadata.partition_columns:
        if not (isinstance(kinds[name], str) and kinds[name] in _KINDS):
            raise DataError(
                f"the Delta table {location} is partitioned by {name!r}, of the type "
                f"{kinds[name]!r}: expected one of {', '.join(_KINDS)}"
            )
    types = {name: _KINDS[kinds[name]] for name in metadata.partition_columns}
    actions.sort(key=lambda add: (add["modification_time"], add["path"]))
    state = TableState(location, str(metadata.id), int(table.version()))
    live = {
        _path(add): {name: _text((add.get("partition") or {})[name]) for name in types}
        for add in actions
    }
    rows = {_path(add): int(add.get("num_records") or 0) for add in actions}
    start = f"{table.table_uri.rstrip('/')}/"
    hidden = {_path({"path": str(path).removeprefix(start)}): 1 for path in masked}
    columns = tuple((name, None) for name in kinds if name not in types)
    modified = max((_milliseconds(add["modification_time"]) for add in actions), default=0)
    return DeltaTable(state, types, live, rows, hidden, columns, modified)


def live_files(table: DeltaTable) -> list[SourceFile]:
    """Return the live files of a table, in the order in which they were written.

    Raises
    ------
    DataError
        A file is gone, or has rows that a deletion vector leaves out.
    """
    refuse_masked(table.name, table.masked)
    files = dict(_files(table, table.live))
    for path in table.live:
        if path not in files:
            raise DataError(
                f"{table.name} has the file {path}, which is gone: VACUUM deletes files of old "
                "versions"
            )
    return [files[path] for path in table.live]


def files_since(
    table: DeltaTable, then: TableState, learned: Mapping[str, int]
) -> tuple[list[SourceFile], TableState]:
    """Return the files with rows that were appended to a table since another version.

    Parameters
    ----------
    table : DeltaTable
    then : TableState
    learned : mapping of str to int
        Rows of files of the stream by their path in the table.

    Returns
    -------
    files : list of SourceFile
        Oldest first.
    state : TableState
        The table now, and what it did to rows of the stream.

    Raises
    ------
    PlanError
        It is another table, or an earlier version.
    DataError
        What was appended cannot be separated from what was there before.
    """
    now = table.state
    if now.id != then.id:
        raise PlanError(
            f"{now.uri} is another Delta table than the one that the run has learned from "
            f"(id {now.id}, then {then.id}): it was made anew. Train another run"
        )
    if now.version < then.version:
        raise PlanError(
            f"{table.name}: the run has learned its version {then.version}, behind which its "
            "stream goes on. Name that version or a later one"
        )
    rows = dict(learned)
    if now.version > then.version:
        with suppress(DataError):  # with files that took rows of others over
            rows = {**open_table(now.uri, then.version).rows, **learned}
    changes = changes_since(then, rows, learned)
    try:
        for version in range(then.version + 1, now.version + 1):
            changes.commit(_actions(now.uri, version))
    except FileNotFoundError as error:
        paths = appended_only(table.live, learned, table.masked)
        if paths is None:
            raise DataError(
                f"{table.name}: its log has no entries any more of what came after version "
                f"{then.version}, which the run has learned ({error}), and files were rewritten "
                "since: rows that were learned cannot be separated from others. Train another run; "
                "one that goes on before the log expires (delta.logRetentionDuration) does not "
                "come to this"
            ) from error
        files_there = dict(_files(table, {path: table.live[path] for path in paths}))
        refuse_masked(table.name, {p: n for p, n in table.masked.items() if p in files_there})
        return list(files_there.values()), replace(then, uri=now.uri, version=now.version)
    partitions = {
        file.path: {
            name: _read_text(file.partition.get(name), kind) for name, kind in table.types.items()
        }
        for entry in changes.entries()
        for file in entry.all_files()
    }
    files_there = dict(_files(table, partitions))
    files = files_to_learn(changes, files_there.__contains__, table.name)
    refuse_masked(table.name, {file.path: file.n_masked for file in files})
    state = state_after(then, now, changes.counts)
    return [files_there[file.path] for file in files], state


def commit_time(table: DeltaTable) -> float | None:
    """Return when the version of a table was committed, in seconds since 1970; None if unknown."""
    uri, version = table.state.uri, table.state.version
    try:
        actions = _actions(uri, version)
    except FileNotFoundError:  # it is in a checkpoint of the log
        times = [table.modified] if table.modified else []
    else:
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        times = [info.get("inCommitTimestamp", info.get("timestamp")) for info in infos]
    return next((time / 1000.0 for time in times if isinstance(time, int)), None)


def version_note(state: TableState) -> str:
    """Return a note on the version that a stream has the rows of."""
    if is_iceberg(state.uri):
        return f"{state.uri} is read as an Iceberg table, at snapshot {state.version}"
    return f"{state.uri} is read as a Delta table, at version {state.version}"


def is_iceberg(location: str) -> bool:
    """Return whether an address is that of an Iceberg table."""
    return location.startswith("iceberg://") or location.endswith(".metadata.json")


def about_table(state: TableState) -> Iterator[str]:
    """Yield notes on what a table did to rows that a stream has from it."""
    kind = "Iceberg" if is_iceberg(state.uri) else "Delta"
    parts = [
        f"{_number(state, what)} {'was' if n == 1 else 'were'} {what}"
        for n, what in ((state.deleted, "deleted"), (state.updated, "updated"))
        if n
    ]
    if parts:
        yield (
            f"of the rows that the stream has from the {kind} table {state.uri}, "
            f"{' and '.join(parts)} since: what was learned of them stays learned"
        )
    if state.unlearned:
        yield (
            f"{_number(state, 'unlearned')} rows of the {kind} table {state.uri} were written into "
            "files together with rows that were learned, or in their place (MERGE, overwrite), and "
            "are not learned: rows that are appended are"
        )


def _number(state: TableState, name: str) -> str:
    """Return a count, and whether it is an upper bound."""
    return f"{'at most ' if name in state.bounds else ''}{getattr(state, name):,}"


def path_in_table(uri: str, table: str) -> str | None:
    """Return the path of a file below a table's folder; None if it is elsewhere."""
    start, path = f"{address_of(table)}/", address_of(uri)
    return path[len(start) :] if path.startswith(start) else None


def uris_below(table: str, paths: Collection[str]) -> Iterator[tuple[str, SourceFile]]:
    """Yield path and file of those paths below a table's folder that are there."""
    return _found(table, paths)


def _files(
    table: DeltaTable, live: Mapping[str, Mapping[str, str | None]]
) -> Iterator[tuple[str, SourceFile]]:
    """Yield path and file of those paths of the log that are there."""
    types = tuple(table.types.items())
    for path, file in _found(table.state.uri, live):
        partition = tuple(live[path].items())
        yield path, replace(file, partition=partition, types=types, columns=table.columns)


def _found(table: str, paths: Collection[str]) -> Iterator[tuple[str, SourceFile]]:
    """Yield path and file of those paths below a table, or absolute ones, that are there."""
    filesystem, root = locate(table)
    # Those of a clone are elsewhere.
    places = {path: normalise(path) for path in paths if "://" in path}
    below = [path for path in paths if path not in places]
    try:
        infos = filesystem.get_file_info([f"{root}/{path}" for path in below])
        infos_of_paths = dict(zip(below, infos, strict=True))
        for path, place in places.items():
            other_filesystem, at = locate(place)
            infos_of_paths[path] = other_filesystem.get_file_info(at)
    except OSError as error:
        raise kind_of(error, table)(f"cannot look at the files of {table}: {error}") from error
    for path in paths:
        info = infos_of_paths[path]
        if info.type == fs.FileType.File:
            uri = places.get(path) or child_uri(table, info.path)
            yield path, SourceFile(uri, info.size, stamp_of(info), ())


def _actions(location: str, version: int) -> Iterator[Mapping[str, Any]]:
    """Yield the actions of a commit.

    Raises
    ------
    FileNotFoundError
        The log does not have it any more.
    DataError
        It cannot be read.
    """
    filesystem, root = locate(location)
    path = f"{root}/{LOG}/{version:020d}.json"
    try:
        with filesystem.open_input_stream(path) as file:
            lines = file.read().splitlines()
        actions = [json.loads(line) for line in lines if line.strip()]
        for action in actions:
            for kind in ("add", "remove"):
                if kind in action:
                    action[kind]["path"] = _path(action[kind])
        return iter(actions)
    except FileNotFoundError:
        raise FileNotFoundError(f"{LOG}/{version:020d}.json is gone") from None
    except (OSError, ValueError) as error:
        raise kind_of(error, location)(
            f"cannot read {path} of the Delta table {location}: {error}"
        ) from error


def _path(action: Mapping[str, Any]) -> str:
    """Return the path of an action as file systems have it, or the URL of a file elsewhere."""
    path = str(action["path"])
    return path if "://" in path else unquote(path)


def misread(address: str) -> str:
    """Return why `deltalake` does not find an address, or another for it; empty if it finds it."""
    match = _MISREAD.search(address)
    if match is None:
        return ""
    return f"the package deltalake misreads {match[0]!r} in a path: name the folder without"


def address_of(location: str) -> str:
    """Return an address as it is, without quotes and options of the file system."""
    if is_local(location):
        return location
    split = urlsplit(location)
    return f"{split.scheme}://{split.netloc}{unquote(split.path)}"


def options_of(location: str) -> dict[str, str]:
    """Return options for `deltalake` that a URL gives to the file system, or this machine's S3."""
    if is_local(location):
        return {}
    split = urlsplit(location)
    query, options = dict(parse_qsl(split.query)), {}
    if split.scheme in ("s3", "s3a") and s3_is_on_this_machine():
        options["aws_allow_http"] = "true"
    if "region" in query:
        options["aws_region"] = query["region"]
    if "endpoint_override" in query:
        place = query["endpoint_override"]
        place = place if "://" in place else f"{query.get('scheme', 'https')}://{place}"
        options |= {"aws_endpoint_url": place, "aws_allow_http": "true"}
    return options


def _milliseconds(time: Any) -> int:
    """Return a time of the log, which some versions of `deltalake` give as a date."""
    return round(time.timestamp() * 1000) if isinstance(time, datetime) else int(time or 0)


def _text(value: Any) -> str | None:
    """Return a partition value as plans hold it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return value.isoformat() if isinstance(value, date) else str(value)


def _read_text(text: str | None, kind: str) -> str | None:
    """Return a partition value of the log as plans hold it."""
    if not text:
        return None
    if kind.startswith("timestamp"):
        return _text(datetime.fromisoformat(text))
    return str(float(text)) if kind == "double" else text
