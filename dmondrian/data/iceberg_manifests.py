"""Manifests of Iceberg tables: data files, and how many rows of them delete files leave out.

Relies on the package `pyiceberg` for manifests, and on the paths in a Parquet file of positions
where the manifest does not name its one data file, as it does for deletion vectors. Promises that
rows left out are counted for the data file that they are in, and no positions are kept. Equality
deletes name values, and not rows: whether a file has any of these is not known here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow.compute as pc
import pyarrow.parquet as pq

from dmondrian.data.source import SAFE, normalise, open_uri
from dmondrian.errors import DataError

DATA, POSITIONS, EQUALITY = 0, 1, 2  # contents of a file
ADDED, DELETED = 1, 2  # status of an entry
_PATH_ID = 2147483546  # field of a file of positions that has the path of the data file
_FILE_ID, _TARGET_ID = 2, 143  # fields of an entry: the file, and in it the path of its data file

_LOCAL = re.compile(r"file:(//(localhost)?)?(?=/)")
_REMOTE = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>[^/]+)/(?P<path>.+)", re.DOTALL
)


@dataclass(frozen=True)
class Entry:
    """A file of a manifest."""

    uri: str
    rows: int  # of a delete file: positions, or values
    content: int
    status: int
    snapshot: int | None  # that added or removed it
    sequence: int
    partition: tuple[int, str]  # number of the specification, values
    is_parquet: bool
    target: str | None  # uri of the one data file that a delete file is of


@dataclass(frozen=True)
class LiveFiles:
    """Data files of a snapshot, in the order in which they were written."""

    rows: Mapping[str, int] = field(default_factory=dict)  # by uri
    deletes: Mapping[str, Sequence[Entry]] = field(default_factory=dict)  # that may be of it

    def has_values(self, uri: str) -> bool:
        """Return whether equality deletes may leave rows of a file out."""
        return any(delete.content == EQUALITY for delete in self.deletes.get(uri, ()))

    def n_left_out(self, uri: str) -> int:
        """Return how many rows of a file are left out by positions.

        Raises
        ------
        DataError
            A delete file cannot be read.
        """
        position_deletes = (
            delete for delete in self.deletes.get(uri, ()) if delete.content == POSITIONS
        )
        return sum(rows_left_out(delete).get(uri, 0) for delete in position_deletes)


def entries_of(manifest: Any, io: Any) -> list[Entry]:
    """Return the files of a manifest, removed ones too."""
    manifest_entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
    is_data = int(manifest.content) == DATA
    targets = [None] * len(manifest_entries) if is_data else _targets(manifest, io)
    return [
        Entry(
            uri=plain_uri(str(entry.data_file.file_path)),
            rows=int(entry.data_file.record_count),
            content=int(entry.data_file.content),
            status=int(entry.status),
            snapshot=entry.snapshot_id,
            sequence=int(entry.sequence_number or 0),
            partition=(int(manifest.partition_spec_id), repr(entry.data_file.partition)),
            is_parquet=_format(entry.data_file) == "PARQUET",
            target=None if is_data else target or _target_by_bounds(entry.data_file),
        )
        for entry, target in zip(manifest_entries, targets, strict=True)
    ]


def live_files(table: Any, snapshot: Any) -> LiveFiles:
    """Return the live files of a snapshot of a table of pyiceberg; None has none.

    Raises
    ------
    DataError
        A data file is no Parquet.
    """
    if snapshot is None:
        return LiveFiles()
    order = {past.snapshot_id: number for number, past in enumerate(table.metadata.snapshots)}
    every = [entry for part in snapshot.manifests(table.io) for entry in entries_of(part, table.io)]
    live = [entry for entry in every if entry.status != DELETED]
    data = [entry for entry in live if entry.content == DATA]
    for entry in data:
        check_format(entry)
    # The number of a snapshot that is expired is not known.
    data.sort(key=lambda entry: (entry.sequence, order.get(entry.snapshot or 0, -1), entry.uri))
    whole = {number for number, spec in table.metadata.specs().items() if not spec.fields}
    by_file: dict[str, list[Entry]] = {}
    by_part: dict[tuple[int, str] | None, list[Entry]] = {}
    for entry in live:
        if entry.content != DATA and entry.target is not None:
            by_file.setdefault(entry.target, []).append(entry)
        elif entry.content != DATA:
            is_of_all = entry.content == EQUALITY and entry.partition[0] in whole
            by_part.setdefault(None if is_of_all else entry.partition, []).append(entry)
    deletes = {}
    for entry in data if by_file or by_part else ():
        lists = by_file.get(entry.uri, ()), by_part.get(entry.partition, ()), by_part.get(None, ())
        some = [delete for listed in lists for delete in listed if _is_later(delete, entry)]
        if some:
            deletes[entry.uri] = some
    return LiveFiles({entry.uri: entry.rows for entry in data}, deletes)


def rows_left_out(delete: Entry) -> Mapping[str, int]:
    """Return how many rows of which data files, by uri, a file of positions leaves out.

    Raises
    ------
    DataError
        The file cannot be read.
    """
    if delete.target is not None:
        return {delete.target: delete.rows}
    if not delete.is_parquet:
        raise DataError(
            f"{delete.uri} has the positions of deleted rows, and neither it nor its manifest "
            "names their data files in a form that is read here: expected Parquet, or a deletion "
            "vector of one data file. Rewrite the position deletes (in Spark "
            "rewrite_position_delete_files)"
        )
    try:
        with open_uri(delete.uri) as file:
            paths = pq.read_table(file, columns=["file_path"]).column("file_path")
        counts = pc.value_counts(paths).to_pylist()
    except (OSError, ValueError, LookupError) as error:
        raise DataError(
            f"cannot read {delete.uri}, which has the positions of deleted rows: {error}"
        ) from error
    counts_of_files: Counter[str] = Counter()
    for count in counts:
        counts_of_files[plain_uri(count["values"])] += count["counts"]
    return counts_of_files


def check_format(entry: Entry) -> None:
    """Refuse a data file that is no Parquet."""
    if not entry.is_parquet:
        raise DataError(f"{entry.uri} is no Parquet, which is all that is read here")


def plain_uri(location: str) -> str:
    """Return the uri of a location that a table names, in which no character stands for others."""
    text = location.rstrip("/")
    if local := _LOCAL.match(text):
        return text[local.end() :]
    if not (remote := _REMOTE.fullmatch(text)):
        return normalise(text)
    scheme = "s3" if remote["scheme"] in ("s3a", "s3n") else remote["scheme"]
    return f"{scheme}://{remote['host']}/{quote(remote['path'], safe=SAFE)}"


def _is_later(delete: Entry, data: Entry) -> bool:
    """Return whether a delete file was written when a data file was there already."""
    if delete.content == EQUALITY:
        return delete.sequence > data.sequence
    return delete.sequence >= data.sequence


def _format(file: Any) -> str:
    return str(getattr(file.file_format, "value", file.file_format)).upper()


def _targets(manifest: Any, io: Any) -> list[str | None]:
    """Return the data file that each entry names, which pyiceberg leaves out."""
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.typedef import Record
    from pyiceberg.types import StructType

    with AvroFile[Record](io.new_input(manifest.manifest_path)) as reader:
        names = [avro_field.field_id for avro_field in reader.schema.fields]
        of_file = reader.schema.find_type(_FILE_ID)
        within = (
            [avro_field.field_id for avro_field in of_file.fields]
            if isinstance(of_file, StructType)
            else []
        )
        if _TARGET_ID not in within:
            return [None for _ in reader]
        at, place = names.index(_FILE_ID), within.index(_TARGET_ID)
        targets = [record[at][place] for record in reader]
    return [None if target is None else plain_uri(target) for target in targets]


def _target_by_bounds(file: Any) -> str | None:
    """Return the data file of positions whose first and last path are one."""
    least, most = ((ends or {}).get(_PATH_ID) for ends in (file.lower_bounds, file.upper_bounds))
    return plain_uri(least.decode()) if least is not None and least == most else None
