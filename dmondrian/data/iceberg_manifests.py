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
        return any(one.content == EQUALITY for one in self.deletes.get(uri, ()))

    def n_left_out(self, uri: str) -> int:
        """Return how many rows of a file are left out by positions.

        Raises
        ------
        DataError
            A delete file cannot be read.
        """
        found = (one for one in self.deletes.get(uri, ()) if one.content == POSITIONS)
        return sum(rows_left_out(one).get(uri, 0) for one in found)


def entries_of(manifest: Any, io: Any) -> list[Entry]:
    """Return the files of a manifest, removed ones too."""
    found = manifest.fetch_manifest_entry(io, discard_deleted=False)
    is_data = int(manifest.content) == DATA
    targets = [None] * len(found) if is_data else _targets(manifest, io)
    return [
        Entry(
            uri=plain_uri(str(one.data_file.file_path)),
            rows=int(one.data_file.record_count),
            content=int(one.data_file.content),
            status=int(one.status),
            snapshot=one.snapshot_id,
            sequence=int(one.sequence_number or 0),
            partition=(int(manifest.partition_spec_id), repr(one.data_file.partition)),
            is_parquet=_format(one.data_file) == "PARQUET",
            target=None if is_data else target or _target_by_bounds(one.data_file),
        )
        for one, target in zip(found, targets, strict=True)
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
    order = {one.snapshot_id: number for number, one in enumerate(table.metadata.snapshots)}
    every = [one for part in snapshot.manifests(table.io) for one in entries_of(part, table.io)]
    live = [one for one in every if one.status != DELETED]
    data = [one for one in live if one.content == DATA]
    for one in data:
        check_format(one)
    # The number of a snapshot that is expired is not known.
    data.sort(key=lambda one: (one.sequence, order.get(one.snapshot or 0, -1), one.uri))
    whole = {number for number, spec in table.metadata.specs().items() if not spec.fields}
    by_file: dict[str, list[Entry]] = {}
    by_part: dict[tuple[int, str] | None, list[Entry]] = {}
    for one in live:
        if one.content != DATA and one.target is not None:
            by_file.setdefault(one.target, []).append(one)
        elif one.content != DATA:
            is_of_all = one.content == EQUALITY and one.partition[0] in whole
            by_part.setdefault(None if is_of_all else one.partition, []).append(one)
    deletes = {}
    for one in data if by_file or by_part else ():
        lists = by_file.get(one.uri, ()), by_part.get(one.partition, ()), by_part.get(None, ())
        some = [other for listed in lists for other in listed if _is_later(other, one)]
        if some:
            deletes[one.uri] = some
    return LiveFiles({one.uri: one.rows for one in data}, deletes)


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
    found: Counter[str] = Counter()
    for one in counts:
        found[plain_uri(one["values"])] += one["counts"]
    return found


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
        names = [one.field_id for one in reader.schema.fields]
        of_file = reader.schema.find_type(_FILE_ID)
        within = [one.field_id for one in of_file.fields] if isinstance(of_file, StructType) else []
        if _TARGET_ID not in within:
            return [None for _ in reader]
        at, place = names.index(_FILE_ID), within.index(_TARGET_ID)
        found = [record[at][place] for record in reader]
    return [None if one is None else plain_uri(one) for one in found]


def _target_by_bounds(file: Any) -> str | None:
    """Return the data file of positions whose first and last path are one."""
    least, most = ((ends or {}).get(_PATH_ID) for ends in (file.lower_bounds, file.upper_bounds))
    return plain_uri(least.decode()) if least is not None and least == most else None
