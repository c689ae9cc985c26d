"""Detection of folders of table formats, with advice what to read instead.

A table format (Delta, Iceberg, Hudi, ...) has a log of the live files of its folder. Files with
deleted or replaced rows stay there, so reading the folder as plain Parquet gives deleted rows, and
replaced rows twice.

Relies on file names alone. Promises that a folder or glob is refused if a file that it would read
is in a table's folder, however deep; single files are not checked, as they were chosen one by one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pyarrow import fs

from dmondrian.errors import DataError

# Paths that only tables of a format have, after the table's folder. DuckLake, whose log is in a
# database elsewhere, is recognised by its file names. So is Hive, whose folder names others may
# have too; its Parquet files have names such as 000000_0.
_MARKER = re.compile(
    r"/(?:"
    r"(?P<delta>_delta_log(?:/|$))"
    r"|(?P<hudi>\.hoodie(?:/|$|_partition_metadata$))"
    r"|(?P<spark>_spark_metadata(?:/|$))"
    r"|(?P<iceberg>metadata/(?:(?:v\d+|\d{5,}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"(?:\.gz)?\.metadata\.json(?:\.gz)?|version-hint\.text)$)"
    r"|(?P<lance>_versions/\d+\.manifest$)"
    r"|(?P<paimon>schema/schema-\d+$)"
    r"|(?P<ducklake>ducklake-[0-9a-f]{8}-[0-9a-f-]{27}(?:-delete)?\.parquet$)"
    r"|(?P<hive>(?:base|(?:delete_)?delta_0\d{6})_0\d{6}(?:_\d{4})?(?:_v\d{7})?/"
    r"(?:bucket_\d+(?:_\d+)?|\d{6}_\d+(?:_copy_\d+)?|_orc_acid_version)$)"
    r")"
)
# Folders that have, or are next to, such paths: checked in folders above.
_LOGS = ("_delta_log", ".hoodie", "_spark_metadata", "metadata", "_versions", "schema")

# Markers that writes of Databricks leave in a folder of plain Parquet, and their file names.
_WRITE = re.compile(r"(?P<folder>.*)/_(?:started|(?P<end>committed))_(?P<id>\d+)$")
_WRITTEN_BY = re.compile(r"-tid-(?P<id>\d+)-")

_NAMES = {
    "delta": "a Delta table",
    "hudi": "a Hudi table",
    "spark": "the output of a Spark stream",
    "iceberg": "an Iceberg table",
    "lance": "a Lance table",
    "paimon": "a Paimon table",
    "ducklake": "a DuckLake table",
    "hive": "a transactional Hive table",
}
# How to list the live files; the command prints JSON, which is a list of TOML too.
_LIVE_FILES = {
    "spark": "in Spark `spark.read.parquet({table}).inputFiles()` is it, with {table} in quotes",
    "ducklake": "in DuckDB `FROM ducklake_list_files(CATALOG, TABLE)` is it (where delete_file is "
    "not null, rows of live files do not count: write the table out as plain Parquet)",
}
_WRITE_OUT = "read the table with a program that knows its format, and write it as plain Parquet"


def refuse_tables(
    filesystem: fs.FileSystem,
    base: str,
    infos: Iterable[fs.FileInfo],
    chosen: Sequence[str],
    uri_of: Callable[[str], str],
) -> None:
    """Raise DataError if a path to be read is in a folder of a table format.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    base : str
        The folder that was listed.
    infos : iterable of FileInfo
        All that is below it.
    chosen : sequence of str
        Paths to be read: files, and folders with a trailing ``/``.
    uri_of : callable
        Returns a path as the user would write it.

    Raises
    ------
    DataError
        With the table, and how to list its live files.
    """
    tables: dict[str, str] = {}
    for info in infos:
        if match := _MARKER.search(info.path):
            tables.setdefault(info.path[: match.start()], str(match.lastgroup))
    for table, kind in tables.items():
        if any(path.startswith(f"{table}/") or f"{table}/".startswith(path) for path in chosen):
            raise _refusal(uri_of(table), kind)
    starts = {base.rpartition("/")[0]}  # all below it was found
    if isinstance(filesystem, fs.LocalFileSystem):  # a link may lead into a table from outside
        folders = {path.rpartition("/")[0] or "/" for path in chosen}
        starts |= {Path(folder).resolve().as_posix() for folder in (base, *folders)}
    known: dict[str, str | None] = {}
    for start in sorted(starts):
        if above := _table_above(filesystem, start, known):
            raise _refusal(uri_of(above[0]), above[1])


def refuse_uncommitted(
    filesystem: fs.FileSystem, infos: Iterable[fs.FileInfo], chosen: Sequence[str]
) -> None:
    """Raise DataError if a write of Databricks left dead files, or was not finished.

    Such a write leaves ``_started_ID`` beside its files, which have the same ID in their names, and
    in the end ``_committed_ID``, which lists the files that it added and those that it removed.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    infos : iterable of FileInfo
        All that is below a folder.
    chosen : sequence of str
        Paths of the files to be read.
    """
    notes = [(info.path, match) for info in infos if (match := _WRITE.match(info.path))]
    if not notes:
        return
    committed = {(match["folder"], match["id"]) for _, match in notes if match["end"]}
    removed: set[str] = set()
    for path, match in notes:
        if match["end"]:
            with filesystem.open_input_file(path) as file:
                names = _removed(file.read(), path)
            removed.update(f"{match['folder']}/{name}" for name in names)
    for path in chosen:
        folder, _, name = path.rpartition("/")
        write = _WRITTEN_BY.search(name)
        if path in removed:
            raise DataError(
                f"{path} was removed by a later write of Databricks (see _committed_* beside it) "
                "and does not count: delete it (VACUUM does), or name the files to read one by one"
            )
        if (
            write
            and (folder, write["id"]) not in committed
            and any(match["folder"] == folder and match["id"] == write["id"] for _, match in notes)
        ):
            raise DataError(
                f"{path} is of a write of Databricks that has not ended (_started_{write['id']} is "
                "there, _committed_ is not): wait for it, delete what a failed one left, or name "
                "the files to read one by one"
            )


def _removed(text: bytes, path: str) -> list[str]:
    """Return the names of the files that a write removed."""
    try:
        names = json.loads(text)["removed"] if text.strip() else []
        return [str(name) for name in names]
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{path} should list what a write of Databricks added and removed, and cannot be read "
            f"({error}): restore it, or name the files to read one by one"
        ) from error


def _table_above(
    filesystem: fs.FileSystem, folder: str, known: dict[str, str | None]
) -> tuple[str, str] | None:
    """Return the table of a folder and its format, or None; results are added to `known`."""
    if match := _MARKER.search(f"{folder}/"):
        return folder[: match.start()], str(match.lastgroup)
    fresh = [above for above in _upwards(folder) if above not in known]
    known.update(zip(fresh, _kinds(filesystem, fresh), strict=True))
    return next(((above, kind) for above in _upwards(folder) if (kind := known[above])), None)


def _upwards(folder: str) -> Iterator[str]:
    """Yield a folder and those above it."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]


def _kinds(filesystem: fs.FileSystem, folders: Sequence[str]) -> list[str | None]:
    """Return the table format of each folder; None if it is no table or cannot be listed."""
    logs = [f"{folder}/{log}" for folder in folders for log in _LOGS]
    try:
        infos = filesystem.get_file_info(logs) if logs else []
    except OSError:  # folders above may not be readable
        return [None] * len(folders)
    kinds: list[str | None] = [None] * len(folders)
    for number, info in enumerate(infos):
        if info.type == fs.FileType.Directory and kinds[number // len(_LOGS)] is None:
            kinds[number // len(_LOGS)] = _kind_of_log(filesystem, info.path)
    return kinds


def _kind_of_log(filesystem: fs.FileSystem, log: str) -> str | None:
    """Return the format whose log a folder is."""
    if match := _MARKER.search(f"{log}/"):
        return match.lastgroup
    try:
        inside = filesystem.get_file_info(fs.FileSelector(log))
    except OSError:
        return None
    matches = (_MARKER.search(info.path, len(log.rpartition("/")[0])) for info in inside)
    return next((match.lastgroup for match in matches if match), None)


def _refusal(table: str, kind: str) -> DataError:
    name = _NAMES[kind]
    how = _WRITE_OUT
    if kind == "delta":
        return DataError(
            f"{table} is {name}, whose log lists the files that count. Expected the folder of the "
            f"table itself, {table}, with @v and a number behind it for an earlier version, and "
            "neither a part of it nor a folder or glob around it"
        )
    if kind == "iceberg":
        return DataError(
            f"{table} is {name}, whose metadata list the files that count. Expected "
            "iceberg://CATALOG/NAMESPACE.TABLE, or its newest metadata.json as "
            f"{table}/metadata/....metadata.json, with @v and a number behind it for a snapshot"
        )
    if kind in _LIVE_FILES:
        live = _LIVE_FILES[kind].format(table=shlex.quote(table))
        how = f"pass the list of its live files instead of a folder or glob; {live}"
    return DataError(
        f"{table} is {name}: its log lists the files that count, and others, with deleted or "
        f"replaced rows, may still be there. Expected plain Parquet: {how}"
    )
