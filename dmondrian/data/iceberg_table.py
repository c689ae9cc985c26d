"""Iceberg tables as data: the live files of a snapshot, and those appended since another one.

Relies on the package `pyiceberg` for catalogs, metadata and manifests, and on
:mod:`dmondrian.data.delta_log` for what a snapshot did to rows that are learned: it adds and
removes files as a commit of a Delta table does, and one that replaces files has changed no row.
One operation may write several snapshots (pyiceberg's overwrite removes files in one and appends in
the next): those of one commit are seen together, by the metadata files that the table had.
Promises that rows which the snapshot does not have are not read, and that a row is in one file of
those returned. Files of which delete files leave rows out, and tables whose columns were renamed or
dropped, are refused: their files have these columns by the earlier names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from dmondrian._optional import require
from dmondrian.data.delta_log import appended_only, changes_since, files_to_learn, state_after
from dmondrian.data.delta_table import uris_below
from dmondrian.data.iceberg_manifests import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY,
    Entry,
    LiveFiles,
    check_format,
    entries_of,
    live_files,
    plain_uri,
    rows_left_out,
)
from dmondrian.data.plan import TableState
from dmondrian.data.source import SourceFile, is_local, normalise
from dmondrian.errors import DataError, PlanError
from dmondrian.store.failures import kind_of

SCHEME = "iceberg://"
_METADATA = re.compile(r".+\.metadata\.json")
_SNAPSHOT = re.compile(r"(?P<table>.+)@v(?P<snapshot>\d+)", re.DOTALL)
_NAMED = re.compile(r"iceberg://(?P<catalog>[^/@]+)/(?P<table>[^/]+\.[^/]+)")

NO_SNAPSHOT = 0  # the version of a table without rows


@dataclass(frozen=True)
class IcebergTable:
    """A table at one snapshot."""

    state: TableState
    source: Any  # of pyiceberg
    files: LiveFiles
    # (name in its files, field id): null where they are not
    columns: tuple[tuple[str, int], ...]
    elsewhere: tuple[tuple[str, int], ...]  # those that have a value where they are not

    @property
    def name(self) -> str:
        """Address and snapshot, for messages."""
        return f"the Iceberg table {self.state.uri} at snapshot {self.state.version}"


def iceberg_at(item: str) -> tuple[str, int | None] | None:
    """Return the address and the snapshot of an Iceberg table that an item names; else None.

    Parameters
    ----------
    item : str
        ``iceberg://CATALOG/NAMESPACE.TABLE``, where pyiceberg's configuration has the catalog; or
        the path or URL of a file ``....metadata.json``; and ``@v`` with the number of a snapshot.
    """
    match = _SNAPSHOT.fullmatch(item)
    text = match["table"] if match else item
    snapshot = int(match["snapshot"]) if match else None
    if text.startswith(SCHEME):
        if not _NAMED.fullmatch(text):
            raise DataError(f"{text} is no table: expected {SCHEME}CATALOG/NAMESPACE.TABLE")
        return text, snapshot
    return (normalise(text), snapshot) if _METADATA.fullmatch(text) else None


def open_iceberg(location: str, snapshot: int | None = None) -> IcebergTable:
    """Return a table at a snapshot, by default its newest.

    Raises
    ------
    MissingPackageError
        `pyiceberg` is not installed.
    DataError
        The table or its files cannot be read, or columns were renamed or dropped.
    """
    require("pyiceberg", "lake", f"reading the Iceberg table {location}")
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError, ValidationError
    from pyiceberg.table import StaticTable

    named = _NAMED.fullmatch(location)
    try:
        if named:
            table: Any = load_catalog(named["catalog"]).load_table(named["table"])
        else:
            table = StaticTable.from_metadata(location)
        found = table.current_snapshot() if snapshot is None else table.snapshot_by_id(snapshot)
        if found is None and snapshot is not None:
            raise DataError(f"the Iceberg table {location} has no snapshot {snapshot}")
        _refuse_renamed(location, table)
        files = live_files(table, found)
    except DataError:
        raise
    except ValidationError as error:
        raise DataError(
            f"cannot read the Iceberg table {location}: its metadata are damaged or incomplete: "
            f"{' '.join(str(error).split())}"
        ) from error
    except (NoSuchTableError, OSError, ValueError, LookupError) as error:
        raise kind_of(error, location)(
            f"cannot read the Iceberg table {location}: {error}"
        ) from error
    version = NO_SNAPSHOT if found is None else int(found.snapshot_id)
    state = TableState(location, str(table.metadata.table_uuid), version)
    columns, elsewhere = _columns(table, None if snapshot is None else found)
    return IcebergTable(state, table, files, tuple(columns), tuple(elsewhere))


def live_iceberg_files(table: IcebergTable) -> list[SourceFile]:
    """Return the live files of a table, in the order in which they were written.

    Raises
    ------
    DataError
        A file is gone, or has rows that delete files leave out.
    """
    uris = table.files.rows
    _refuse_deletes(table, uris)
    files = dict(_files(table, uris))
    for uri in uris:
        if uri not in files:
            raise DataError(f"{table.name} has the file {uri}, which is gone")
    return [files[uri] for uri in uris]


def iceberg_files_since(
    table: IcebergTable, then: TableState, learned: Mapping[str, int]
) -> tuple[list[SourceFile], TableState]:
    """Return the files with rows that were appended to a table since another snapshot.

    Parameters
    ----------
    table : IcebergTable
    then : TableState
    learned : mapping of str to int
        Rows of files of the stream, by uri.

    Returns
    -------
    files : list of SourceFile
        Oldest first.
    state : TableState
        The table now, and what it did to rows of the stream.

    Raises
    ------
    PlanError
        It is another table, or its snapshots do not go back to the earlier one.
    DataError
        What was appended cannot be separated from what was there before.
    """
    now = table.state
    if now.id != then.id:
        raise PlanError(
            f"{now.uri} is another Iceberg table than the one that the run has learned from "
            f"(id {now.id}, then {then.id}): it was made anew. Train another run"
        )
    chain = _snapshots_since(table, then.version)
    if chain is None:
        masked = [uri for uri in learned if table.files.deletes.get(uri)]
        paths = appended_only(table.files.rows, learned, masked)
        if paths is None:
            raise DataError(
                f"{table.name}: the snapshots since {then.version}, which the run has learned, are "
                "expired, and files were rewritten since, or rows of them left out: rows that were "
                "learned cannot be separated from others. Train another run; one that goes on "
                "before snapshots expire does not come to this"
            )
        _refuse_deletes(table, paths)
        files = dict(_files(table, paths))
        return [files[path] for path in paths if path in files], replace(
            then, uri=now.uri, version=now.version
        )
    before = _files_at(table, then.version)
    changes = changes_since(then, {**before.rows, **learned}, learned)
    for actions in _commits(table, chain, before):
        changes.commit(actions)
    paths = [file.path for entry in changes.entries() for file in entry.all_files()]
    by_path = dict(_files(table, paths))
    added = files_to_learn(
        changes, by_path.__contains__, table.name, "removal of orphan files does"
    )
    _refuse_deletes(table, [file.path for file in added if not file.n_masked])
    _refuse_left_out(table, {file.path: file.n_masked for file in added})
    return [by_path[file.path] for file in added], state_after(then, now, changes.counts)


def snapshot_time(table: IcebergTable) -> float | None:
    """Return when the snapshot of a table was made, in seconds since 1970; None if it has none."""
    snapshot = table.source.snapshot_by_id(table.state.version)
    return None if snapshot is None else snapshot.timestamp_ms / 1000.0


def is_of_iceberg(table: IcebergTable, uri: str) -> bool:
    """Return whether a file is one of a table, as far as the place where these are tells."""
    return uri in table.files.rows or uri.startswith(f"{plain_uri(table.source.location())}/")


def files_there(uris: Iterable[str]) -> Iterator[tuple[str, SourceFile]]:
    """Yield uri and file of those that are there."""
    folders: dict[str, list[str]] = {}
    for uri in uris:
        folder, _, name = uri.rpartition("/")
        folders.setdefault(folder, []).append(name)
    for folder, names in folders.items():
        plain = {(name if is_local(folder) else unquote(name)): name for name in names}
        files_below = uris_below(folder, plain)
        yield from ((f"{folder}/{plain[name]}", file) for name, file in files_below)


def _files(table: IcebergTable, uris: Iterable[str]) -> Iterator[tuple[str, SourceFile]]:
    """Yield uri and file of those that are there, with the columns of the table."""
    for uri, file in files_there(uris):
        yield uri, replace(file, columns=table.columns, elsewhere=table.elsewhere)


def _columns(table: Any, snapshot: Any) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the columns, of now or of a snapshot, that are null in files which lack them; others.

    Others have a default, or the value of a partition.
    """
    from pyiceberg.schema import sanitize_column_names
    from pyiceberg.transforms import IdentityTransform

    parts = {
        spec_field.source_id
        for spec in table.metadata.specs().values()
        for spec_field in spec.fields
        if isinstance(spec_field.transform, IdentityTransform)
    }
    number = None if snapshot is None else snapshot.schema_id
    schema = table.schema() if number is None else table.schemas()[number]
    defaults = {field.field_id: field.initial_default for field in schema.fields}
    columns: list[tuple[str, int]] = []
    elsewhere: list[tuple[str, int]] = []
    for field in sanitize_column_names(schema).fields:
        is_null = field.field_id not in parts and defaults[field.field_id] is None
        (columns if is_null else elsewhere).append((field.name, field.field_id))
    return columns, elsewhere


def _refuse_deletes(table: IcebergTable, uris: Iterable[str]) -> None:
    """Refuse live files of which delete files leave rows out."""
    counts: dict[str, int] = {}
    for uri in uris:
        if table.files.has_values(uri):
            raise DataError(f"{table.name}: {_equality(f'rows of {uri} may be')}")
        counts[uri] = table.files.n_left_out(uri)
    _refuse_left_out(table, counts)


def _refuse_left_out(table: IcebergTable, counts: Mapping[str, int]) -> None:
    if masked := [uri for uri, n in counts.items() if n]:
        raise DataError(
            f"{table.name}: rows of {masked[0]} are left out by delete files (merge-on-read), "
            "which are not read here: rewrite the data files (in Spark rewrite_data_files with "
            "delete-file-threshold 1), or let the table write copies (write.delete.mode = "
            "copy-on-write)"
        )


def _equality(what: str) -> str:
    return (
        f"{what} left out by equality deletes, as an upsert of Flink writes them: they name "
        "values, and not the rows, so that rows in the place of learned ones cannot be separated "
        "from others. Rewrite the data files (in Spark rewrite_data_files with "
        "delete-file-threshold 1) and train another run, or let the table write positions or copies"
    )


def _refuse_renamed(location: str, table: Any) -> None:
    """Refuse a table whose files may have columns by other names than the table."""
    names = {field.field_id: field.name for field in table.schema().fields}
    for schema in table.metadata.schemas:
        for field in schema.fields:
            if names.get(field.field_id) == field.name:
                continue
            what = (
                f"was renamed to {names[field.field_id]!r}"
                if field.field_id in names
                else "was dropped"
            )
            raise DataError(
                f"the Iceberg table {location} had a column {field.name!r} that {what}: files that "
                "were written before have it by that name, which is not resolved here; write the "
                "table anew"
            )


def _snapshots_since(table: IcebergTable, version: int) -> list[Any] | None:
    """Return the snapshots behind one, oldest first; None where some of them are expired.

    Raises
    ------
    PlanError
        The table was set back to a snapshot that does not follow that one.
    """
    chain: list[Any] = []
    at = table.state.version
    while at != version:
        snapshot = None if at == NO_SNAPSHOT else table.source.snapshot_by_id(at)
        if snapshot is None and at != NO_SNAPSHOT:
            return None
        # To expire a snapshot may also take it out of those that follow it.
        if snapshot is None and _is_newer(
            table, [newest.snapshot_id for newest in chain[-1:]], version
        ):
            return None
        if snapshot is None:
            raise PlanError(
                f"{table.name} does not follow snapshot {version}, which the run has learned: "
                "the table was set back, or an earlier snapshot is named. Name that one or a later "
                "one"
            )
        chain.append(snapshot)
        at = NO_SNAPSHOT if snapshot.parent_snapshot_id is None else snapshot.parent_snapshot_id
    return chain[::-1]


def _files_at(table: IcebergTable, version: int) -> LiveFiles:
    """Return the files of a snapshot, none if it is expired."""
    snapshot = None if version == NO_SNAPSHOT else table.source.snapshot_by_id(version)
    try:
        return live_files(table.source, snapshot)
    except (OSError, ValueError):  # its manifests are gone
        return LiveFiles()


def _is_newer(table: IcebergTable, oldest: list[int], version: int) -> bool:
    """Return whether all these snapshots were written behind another one, or that one is gone."""
    order = {snapshot.snapshot_id: n for n, snapshot in enumerate(table.source.metadata.snapshots)}
    return all(order[snapshot_id] > order.get(version, -1) for snapshot_id in oldest) and bool(
        oldest or version not in order
    )


@dataclass
class _Step:
    """Changes of files by one snapshot."""

    snapshot: Any
    adds: dict[str, Entry]
    removes: dict[str, Entry]
    deletes: list[Entry]  # delete files that it added or removed

    @property
    def is_change(self) -> bool:
        """Whether the snapshot changed rows."""
        summary = self.snapshot.summary
        return (str(summary.operation.value) if summary else "overwrite") != "replace"

    @property
    def is_overwrite(self) -> bool:
        """Whether its summary has it that whole partitions were replaced."""
        summary = self.snapshot.summary
        return summary is not None and summary.get("replace-partitions") == "true"


def _commits(
    table: IcebergTable, chain: Iterable[Any], before: LiveFiles
) -> Iterator[list[dict[str, Any]]]:
    """Yield the actions, as of a Delta log, commit by commit.

    Parameters
    ----------
    table : IcebergTable
    chain : iterable of snapshots
        Oldest first.
    before : LiveFiles
        The files before them.

    Raises
    ------
    DataError
        Whether rows were appended in the place of learned ones is not known.
    """
    steps = [_step(table, snapshot) for snapshot in chain]
    left_out: dict[str, int] = {}  # rows of files that delete files leave out
    ends: dict[int, bool | None] = {}
    if any(
        (step.removes or step.deletes)
        and step.is_change
        and any(later.adds for later in steps[number + 1 :])
        for number, step in enumerate(steps)
    ):
        ends = _ends(table, [step.snapshot for step in steps])
    group: list[_Step] = []
    for number, step in enumerate(steps):
        group.append(step)
        is_last = number == len(steps) - 1
        is_end = True if is_last else ends.get(step.snapshot.snapshot_id, True)
        if is_end is None:
            # Delete files come by one snapshot with the rows in the place of those left out.
            fresh = {path for earlier in steps[: number + 1] for path in earlier.adds}
            is_change = any(
                set(in_group.removes) - fresh for in_group in group if in_group.is_change
            )
            if is_change and steps[number + 1].adds and steps[number + 1].is_change:
                raise DataError(
                    f"{table.name}: snapshot {step.snapshot.snapshot_id} removed files, and the "
                    f"next one, {steps[number + 1].snapshot.snapshot_id}, appended rows; whether "
                    "one operation did both, such as an overwrite, and these rows stand for "
                    "learned ones, is not known: the metadata file between them is gone. Train "
                    "another run, or let the table keep more of these files "
                    "(write.metadata.previous-versions-max)"
                )
            is_end = True
        if is_end:
            yield _actions(table.name, group, before, left_out)
            group = []


def _ends(table: IcebergTable, chain: list[Any]) -> dict[int, bool | None]:
    """Return whether a table's newest snapshot ever was each of some; None if it is not known."""
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.serializers import FromInputFile

    first = chain[0].timestamp_ms
    newest: set[int] = set()
    lost: list[int] = []  # times of metadata files that are gone
    entries = table.source.metadata.metadata_log
    for entry in entries:
        if entry.timestamp_ms < first:
            continue
        try:
            metadata = FromInputFile.table_metadata(table.source.io.new_input(entry.metadata_file))
        except (OSError, ValueError, ValidationError):
            lost.append(entry.timestamp_ms)
        else:
            newest.add(metadata.current_snapshot_id or NO_SNAPSHOT)
    begin = min(
        (entry.timestamp_ms for entry in entries), default=table.source.metadata.last_updated_ms
    )
    known: dict[int, bool | None] = {}
    for before, after in pairwise(chain):
        is_known = begin < before.timestamp_ms and not any(
            before.timestamp_ms <= time <= after.timestamp_ms for time in lost
        )
        unless = False if is_known else None
        known[before.snapshot_id] = True if before.snapshot_id in newest else unless
    return known


def _step(table: IcebergTable, snapshot: Any) -> _Step:
    """Return what a snapshot did to files."""
    step = _Step(snapshot, {}, {}, [])
    for manifest in snapshot.manifests(table.source.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in entries_of(manifest, table.source.io):
            if entry.snapshot != snapshot.snapshot_id or entry.status not in (ADDED, DELETED):
                continue  # it was there before
            if entry.content != DATA:
                step.deletes.append(entry)
                continue
            check_format(entry)
            files = step.adds if entry.status == ADDED else step.removes
            files[entry.uri] = entry
    return step


def _actions(
    name: str, steps: list[_Step], before: LiveFiles, left_out: dict[str, int]
) -> list[dict[str, Any]]:
    """Return what the snapshots of a commit did, as of a Delta log.

    Parameters
    ----------
    name : str
        Of the table, for messages.
    steps : list of _Step
    before : LiveFiles
        Files before the first commit.
    left_out : dict
        By uri, how many rows of files are left out, as far as commits have changed that; it is
        changed.
    """
    adds: dict[str, Entry] = {}
    removes: dict[str, Entry] = {}
    for step in steps:
        removes.update({path: file for path, file in step.removes.items() if path not in adds})
        adds = {path: file for path, file in adds.items() if path not in step.removes} | step.adds
    deletes = [delete for step in steps if step.is_change for delete in step.deletes]
    specs = {entry.partition[0] for entry in (*adds.values(), *removes.values(), *deletes)}
    shared = {"dataChange": any(step.is_change for step in steps)}

    def n_before(path: str) -> int:
        return left_out[path] if path in left_out else before.n_left_out(path)

    def action(path: str, partition: tuple[int, str], rows: int, n_out: int) -> dict[str, Any]:
        values = {"path": path, "stats": json.dumps({"numRecords": rows}), **shared}
        if len(specs) == 1:
            values["partitionValues"] = {"partition": partition[1]}
        return {**values, "deletionVector": {"cardinality": n_out}} if n_out else values

    actions: list[dict[str, Any]] = []
    changes: dict[str, int] = {}
    partitions: dict[str, tuple[int, str]] = {}
    for delete in deletes:
        if delete.content == EQUALITY and delete.status == ADDED:
            raise DataError(f"{name}: {_equality('rows were')}")
        for path, n in rows_left_out(delete).items() if delete.content != EQUALITY else ():
            changes[path] = changes.get(path, 0) + (n if delete.status == ADDED else -n)
            partitions[path] = delete.partition
    for path, n in changes.items():
        if path in removes or path in adds:
            continue
        then = n_before(path)
        # A file of positions that was written again has the earlier ones too.
        left_out[path] = max(then, then + n)
        shown = path, partitions[path], before.rows.get(path, 0)
        actions.append({"remove": action(*shown, then)})
        actions.append({"add": action(*shown, left_out[path])})
    for path, file in removes.items():
        actions.append({"remove": action(path, file.partition, file.rows, n_before(path))})
    for path, file in adds.items():
        left_out[path] = max(0, changes.get(path, 0))
        actions.append({"add": action(path, file.partition, file.rows, left_out[path])})
    n_adds, n_removes = (sum(file.rows for file in files.values()) for files in (adds, removes))
    # Of more snapshots one removes all that the others write anew.
    is_overwrite = len(steps) > 1 and 0 < n_adds < n_removes
    if is_overwrite or any(step.is_overwrite for step in steps):
        actions.append({"commitInfo": {"operation": "WRITE"}})
    return actions
