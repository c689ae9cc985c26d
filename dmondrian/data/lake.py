"""Listing of a source that may name tables: the files with the rows to read.

Relies on :mod:`dmondrian.data.source` for files, folders and globs, and on
:mod:`dmondrian.data.delta_table` and :mod:`dmondrian.data.iceberg_table` for tables. Promises what
these do, in the order of the source's items; and for a stream that is continued, that a table gives
the files that the stream still needs and those with rows that were appended since.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from dmondrian.data.columns import NULL
from dmondrian.data.delta_table import (
    DeltaTable,
    commit_time,
    files_since,
    live_files,
    open_table,
    path_in_table,
    table_at,
    uris_below,
    version_note,
)
from dmondrian.data.iceberg_table import (
    IcebergTable,
    files_there,
    iceberg_at,
    iceberg_files_since,
    is_of_iceberg,
    live_iceberg_files,
    open_iceberg,
    snapshot_time,
)
from dmondrian.data.links import Link
from dmondrian.data.plan import Plan, TableState
from dmondrian.data.source import Source, SourceFile, list_files
from dmondrian.errors import DataError


@dataclass(frozen=True)
class Listing:
    """Files of a source."""

    files: list[SourceFile]
    notes: list[str]  # skipped files, with the reason
    tables: list[TableState] = field(default_factory=list)  # as they are now
    held: set[str] = field(default_factory=set)  # files of the stream, known to be of a table


def list_source(source: Source) -> tuple[list[SourceFile], list[str]]:
    """List the Parquet files of a source in reading order.

    Parameters
    ----------
    source : str, path or sequence of them
        Files, folders (searched recursively; runs and scores below them are skipped), globs
        (``*``, ``?``, ``[...]``, ``**``), URLs, folders of Delta tables, with ``@v12`` behind
        them for version 12, and Iceberg tables: ``iceberg://CATALOG/NAMESPACE.TABLE`` or a
        ``metadata.json`` of one, with ``@v`` and a snapshot's number behind them. Files of another
        table format (Hudi, ...) are read only if each is named individually.

    Returns
    -------
    files : list of SourceFile
    notes : list of str
        Skipped files, with the reason.

    Raises
    ------
    DataError
        There are no files, a folder has no Parquet file or belongs to a table, or a link is broken.
    MissingPackageError
        A package that reads a table is not installed.
    """
    listing = list_data(source)
    return listing.files, listing.notes


def list_data(
    source: Source,
    plan: Plan | None = None,
    needed: Collection[str] = (),
    among: Collection[str] | None = None,
) -> Listing:
    """List the files of a source, or those with which it continues a stream.

    Parameters
    ----------
    source : str, path or sequence of them
        See `list_source`.
    plan : Plan or None
        The stream that is continued. Of a table that it has rows of, the files that are needed and
        those with rows that were appended since are listed.
    needed : collection of str
        Uris of files of the stream that have to be read; others may be gone.
    among : collection of str or None
        Uris of the files to list, but for those of tables.
    """
    items = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    tables = [named_table(os.fspath(item)) for item in items]
    _refuse_two_versions(tables)
    lost: list[Link] | None = None if among is None else []  # whoever chose has named them
    past = () if plan is None else set(plan.table.uris()).difference(needed)
    if not any(tables):
        files, notes = list_files(source, past, lost)
        return Listing([file for file in files if among is None or file.uri in among], notes)
    listing = Listing([], [])
    for item, named in zip(items, tables, strict=True):
        if named is None:
            files, notes = list_files(item, past, lost)
            more = [file for file in files if among is None or file.uri in among]
            listing.notes.extend(notes)
        else:
            table = open_any(named)
            if isinstance(table, IcebergTable):
                more = _files_of_iceberg(table, plan, needed, listing)
            else:
                more = _files_of_table(table, plan, needed, listing)
        known = {file.uri for file in listing.files}
        twice = [file.uri for file in more if file.uri in known]
        listing.notes.extend(
            f"{uri} is named twice in the source and is read once" for uri in twice
        )
        listing.files.extend(file for file in more if file.uri not in known)
    return listing


def named_table(item: str) -> tuple[str, int | None] | None:
    """Return the address and the version of a table that an item names; None for no table."""
    return iceberg_at(item) or table_at(item)


def open_any(named: tuple[str, int | None]) -> DeltaTable | IcebergTable:
    """Return the table of `named_table`."""
    return open_iceberg(*named) if iceberg_at(named[0]) else open_table(*named)


def time_of(table: DeltaTable | IcebergTable) -> float | None:
    """Return when a table came to be as it is, in seconds since 1970; None if it is not known."""
    return snapshot_time(table) if isinstance(table, IcebergTable) else commit_time(table)


def _refuse_two_versions(tables: Sequence[tuple[str, int | None] | None]) -> None:
    """Refuse one table at two versions: rows that both have would be read twice."""
    versions: dict[str, int | None] = {}
    for location, version in filter(None, tables):
        if versions.setdefault(location, version) != version:
            both = " and ".join(
                "as it is now" if version_named is None else f"at version {version_named}"
                for version_named in (versions[location], version)
            )
            raise DataError(
                f"{location} is named twice, {both}: rows of both would be read twice; name it once"
            )


def _known_state(plan: Plan | None, now: TableState, listing: Listing) -> TableState | None:
    """Return the state of a table that a stream had last; None, and added to `found`, if it is new.

    A table is known by its id, and by its place where it was made anew.
    """
    states = () if plan is None else plan.tables
    then = next((state for state in states if now.id == state.id or now.uri == state.uri), None)
    if then is None:
        listing.tables.append(now)
        listing.notes.append(version_note(now))
    return then


def _files_of_iceberg(
    table: IcebergTable, plan: Plan | None, needed: Collection[str], listing: Listing
) -> list[SourceFile]:
    """Do as `_files_of_table` does, for a table whose files are where they were."""
    now = table.state
    then = _known_state(plan, now, listing)
    if plan is None or then is None:
        return live_iceberg_files(table)
    blocks = [block for block in plan.blocks if is_of_iceberg(table, block.uri)]
    rows: dict[str, int] = {}
    for block in blocks:
        rows[block.uri] = rows.get(block.uri, 0) + block.rows
    listing.held.update(uri for uri in rows if uri not in needed)
    known_files = [file for _, file in files_there(uri for uri in rows if uri in needed)]
    fresh, state = iceberg_files_since(table, then, rows)
    listing.tables.append(state)
    return [*known_files, *fresh]


def _files_of_table(
    table: DeltaTable, plan: Plan | None, needed: Collection[str], listing: Listing
) -> list[SourceFile]:
    """Return the files of a table; its state, and what a stream has of it, are added to `found`."""
    now = table.state
    then = _known_state(plan, now, listing)
    if plan is None or then is None:
        return live_files(table)
    rows: dict[str, int] = {}
    paths: dict[str, SourceFile] = {}
    held: dict[str, str] = {}
    for block in plan.blocks:
        here = path_in_table(block.uri, now.uri)
        path = here or path_in_table(block.uri, then.uri)
        if path is None:
            continue
        rows[path] = rows.get(path, 0) + block.rows
        if block.uri in needed or here is None:  # those of a table that moved may be needed later
            known = [value for value in block.partition if value[1] != NULL]
            texts = tuple((key, text) for key, _, text in known)
            kinds = tuple((key, kind) for key, kind, _ in known)
            paths[path] = SourceFile(block.uri, block.size, block.stamp, texts, types=kinds)
        if block.uri not in needed:
            held[path] = block.uri
    known_files = []
    for path, file in uris_below(now.uri, paths):
        known_files.append(replace(file, partition=paths[path].partition, types=paths[path].types))
        held.pop(path, None)
    listing.held.update(held.values())
    fresh, state = files_since(table, then, rows)
    listing.tables.append(state)
    return [*known_files, *fresh]
