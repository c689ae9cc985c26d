"""Notes of files of rows that are written here: damaged ones are errors, earlier ones are read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian.checkpoint.file_notes import read_note, sealed_note
from dmondrian.checkpoint.stream import BATCHES_NOTE
from dmondrian.data import BatchFiles, LabelJoin
from dmondrian.data.joined_files import JoinedFiles, label_delay
from dmondrian.errors import CorruptError

KEY = b"note"
ABOUT = {"labels": "a", "waiting": 40, "seconds": 0.1, "none": None, "pairs": [[1, 2]]}


def test_no_flipped_bit_of_a_note_is_read() -> None:
    metadata = sealed_note(KEY, ABOUT)
    assert read_note(metadata, KEY) == ABOUT
    assert read_note({KEY: json.dumps(ABOUT).encode()}, KEY) == ABOUT  # of earlier versions
    note = metadata[KEY]
    for place in range(len(note)):
        for bit in range(8):
            flipped = note[:place] + bytes([note[place] ^ 1 << bit]) + note[place + 1 :]
            with pytest.raises(ValueError):
                read_note({**metadata, KEY: flipped}, KEY)
    with pytest.raises(KeyError):
        read_note(None, KEY)


def damage(path: Path, key: bytes) -> None:
    """Write a file with a digit of its note changed."""
    table = pq.read_table(path)
    metadata = dict(table.schema.metadata)
    before = metadata[key]
    place = next(at for at, byte in enumerate(before) if chr(byte).isdigit())
    metadata[key] = before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :]
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_a_file_with_a_damaged_note_is_named(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2], "x": [0.0, 1.0]})
    BatchFiles([rows], str(tmp_path / "batches")).take(2)
    (batch,) = (tmp_path / "batches").glob("*.parquet")
    damage(batch, BATCHES_NOTE)
    with pytest.raises(CorruptError, match=batch.name):
        BatchFiles([rows], str(tmp_path / "batches"))
    for name, table in (("rows", rows), ("labels", pa.table({"k": [1], "y": [0]}))):
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "0.parquet")
    places = [str(tmp_path / name) for name in ("rows", "labels", "joined")]
    LabelJoin(*places, key="k", target="y").look()
    (joined,) = (tmp_path / "joined").glob("*.parquet")
    assert label_delay(str(joined)) is not None
    damage(joined, b"dmondrian.labels")
    assert label_delay(str(joined)) is None
    with pytest.raises(CorruptError, match=f"{joined.name} does not note which labels it has"):
        JoinedFiles(places[2], "k").history()
    with pytest.raises(CorruptError, match=f"{joined.name} does not note which labels it has"):
        LabelJoin(*places, key="k", target="y").look()
