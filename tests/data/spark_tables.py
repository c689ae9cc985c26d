"""Tables that Spark wrote, stored in `spark/`, in a folder of a test.

Metadata, manifests, files of positions and deletion vectors name files by absolute paths: these are
written anew where a table is put into another folder, and all other bytes stay as Spark wrote them.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent / "spark"


@dataclass(frozen=True)
class Step:
    """A table after one or two operations."""

    name: str
    metadata: str  # path
    ids: list[float]  # of its rows, as Spark read them


def unpack(name: str, folder: Path) -> Path:
    """Unpack an archive."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(folder / name, filter="data")
    return folder / name


def unpack_iceberg(name: str, folder: Path) -> list[Step]:
    """Unpack a table of Iceberg with the paths that its files have now."""
    place = unpack(name, folder)
    about = json.loads((place / "steps.json").read_text())
    then, now = f"{about['folder']}/n/{name}", str(place)
    for path in place.glob("metadata/*.json"):
        path.write_text(path.read_text().replace(then, now))
    for path in place.glob("metadata/*.avro"):
        _replace_in_avro(path, then, now)
    for path in place.glob("data/*-deletes.parquet"):
        _replace_in_positions(path, then, now)
    for path in place.glob("data/*.puffin"):
        _replace_in_vectors(path, then, now)
    return [
        Step(step["step"], str(place / "metadata" / step["metadata"]), step["ids"])
        for step in about["steps"]
    ]


def _replaced(value: Any, then: str, now: str) -> Any:
    """Return a value of Avro with other paths."""
    from pyiceberg.typedef import Record

    if isinstance(value, str):
        return value.replace(then, now)
    if isinstance(value, bytes):
        return value.replace(then.encode(), now.encode())
    if isinstance(value, Record):
        return Record(*(_replaced(one, then, now) for one in value._data))
    if hasattr(value, "items"):
        return {key: _replaced(one, then, now) for key, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, then, now) for one in value]
    return value


def _replace_in_avro(path: Path, then: str, now: str) -> None:
    from pyiceberg.avro.file import AvroFile, AvroOutputFile
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.typedef import Record

    io = PyArrowFileIO()
    with AvroFile[Record](io.new_input(str(path))) as reader:
        schema = reader.schema
        rows = [_replaced(row, then, now) for row in reader]
        about = {key: text for key, text in reader.header.meta.items() if "avro." not in key}
    path.unlink()
    name = "manifest_file" if path.name.startswith("snap-") else "manifest_entry"
    with AvroOutputFile[Record](io.new_output(str(path)), schema, name, metadata=about) as writer:
        writer.write_block(rows)


def _replace_in_positions(path: Path, then: str, now: str) -> None:
    found = pq.read_table(path)
    paths = [text.replace(then, now) for text in found["file_path"].to_pylist()]
    field = found.schema.field("file_path")
    pq.write_table(found.set_column(0, field, pa.array(paths, field.type)), path)


def _replace_in_vectors(path: Path, then: str, now: str) -> None:
    """Replace paths in the footer of a Puffin file, which is JSON with its size behind it."""
    content = path.read_bytes()
    size = int.from_bytes(content[-12:-8], "little")
    footer = content[-12 - size : -12].replace(then.encode(), now.encode())
    size_now = len(footer).to_bytes(4, "little")
    path.write_bytes(content[: -12 - size] + footer + size_now + content[-8:])
