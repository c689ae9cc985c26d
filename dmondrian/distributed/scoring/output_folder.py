"""The output folder of scores: the request, sealed files, and the manifest.

::

    _score.json             the request: model, data, columns kept; create-only, first
    _score.plan             the frozen input
    part-000000.parquet     scores of consecutive blocks; create-only, unless damaged
    _manifest.json          all parts with rows, bytes and digests; create-only, last

Relies on scores that depend on the request alone, so that a file written again has the same bytes.
Promises that before there is a manifest a file counts as written only if its bytes are intact: its
footer has a seal, which names the request and the file and holds the SHA-256 of the whole file,
computed with zeros in its place. A readable footer is not enough, as pages before it may be damaged
or missing. A damaged or unsealed file is overwritten; one of another job is refused.

The seal is inside the file because writing one object is atomic: a digest in a second object would
be missing if a job was killed between the two. To check a file, the worker that would score it
reads it once and decodes nothing; the manifest needs the digest anyway.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian.checkpoint import document
from dmondrian.checkpoint.new_folder import refuse_data
from dmondrian.checkpoint.stream import MAX_PLAN_BYTES
from dmondrian.data import Plan, change_between
from dmondrian.data.read_again import place_that_reads
from dmondrian.errors import (
    CheckpointError,
    CorruptError,
    FencedError,
    NotFoundError,
    ParameterError,
)
from dmondrian.store import Store, check_writable, open_store

FORMAT = 1
ABOUT, PLAN, MANIFEST = "_score.json", "_score.plan", "_manifest.json"

# Of entries of the request that are digests, what it means that they differ; the data last.
_IN_WORDS = {"model": "another model, or checkpoint of it", "data": "other files, or rows of them"}

# Entries of a file's footer. The digest replaces as many zeros.
_REQUEST, _NAME, _SEAL = "dmondrian.score", "dmondrian.score.file", "dmondrian.score.sha256"
_BLANK = b"0" * 64
_LOOKED_AT = 1024  # values checked for whether those of a column repeat


def check_flag(name: str, value: Any) -> None:
    """Refuse anything but a bool: the string "no" is true.

    Raises
    ------
    ParameterError
        It is of another type.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ParameterError(f"{name} must be True or False, got {value!r}")


def part_name(index: int) -> str:
    """Return the name of a file of scores; names sort in the order of rows."""
    return f"part-{index:06d}.parquet"


def check_out(out: str | os.PathLike[str], *data: Any) -> None:
    """Refuse a folder that scores cannot be written to; leave no file behind.

    Parameters
    ----------
    out : str or path
    *data : object
        What is scored and what is learned, as given: neither may read the scores.

    Raises
    ------
    CheckpointError
        The folder holds Parquet files that are not of scores.
    ParameterError
        Scores there would be read as data.
    StoreError
        The folder cannot be written; one with finished scores need not be.
    """
    refuse_read_again(out, [part_name(0)], *data)
    with suppress(NotFoundError):  # a new one
        store = open_store(out, create=False)
        if store.exists(MANIFEST):
            return
        refuse_data(store, "these scores", ABOUT)
    check_writable(out)


def refuse_read_again(out: str | os.PathLike[str], names: Sequence[str], *data: Any) -> None:
    """Raise if some data would read files of scores, by their names in a folder.

    Raises
    ------
    ParameterError
    """
    for places in data:
        place = place_that_reads(places, out, names)
        if place is not None:
            raise ParameterError(
                f"out is {os.fspath(out)} and data are {place}: scores would be read as data the "
                "next time; choose another folder for them"
            )


def claim(store: Store, about: dict[str, Any], plan: Plan) -> str:
    """Write the request, or compare it with the stored one; return its digest.

    Raises
    ------
    CheckpointError
        The folder holds other scores.
    StoreError
        The folder cannot be written.
    """
    about = {"format": FORMAT, **about}
    data = document.seal(about)
    try:
        store.put_same(ABOUT, data)
    except FencedError:
        there = document.unseal(store.get(ABOUT, document.MAX_BYTES), f"{ABOUT} in {store.url}")
        there_in_words = {**there, **{name: about[name] for name in _IN_WORDS}}
        differences = document.differences(there_in_words, about)
        differences += [
            f"{name}: {words}"
            for name, words in _IN_WORDS.items()
            if there.get(name) != about[name]
        ]
        if there.get("data") != about["data"] and (change := _changed_file(store, plan)):
            differences[-1] += f": {change}"
        lines = "".join(f"\n  {line}" for line in differences)
        raise CheckpointError(
            f"{store.url} holds other scores. These entries differ:{lines}\n"
            f"Choose another folder, or give the model, data and columns of those scores."
        ) from None
    # Equal plans may differ in the bytes of their notes: the first one is kept.
    if not store.exists(PLAN):
        store.put(PLAN, plan.to_parquet())
    return hashlib.sha256(data).hexdigest()


def as_begun(store: Store, plan: Plan) -> Plan:
    """Return a plan with the digest stored with unfinished scores, if it is of the same data.

    Earlier versions recorded modification times also in stores that have ETags.
    """
    earlier = _earlier_plan(store)
    if earlier is None or len(earlier.blocks) != len(plan.blocks) or change_between(earlier, plan):
        return plan
    origins = {block.uri: (block.uri, block.stamp) for block in earlier.blocks}
    renamed = replace(plan, origins=origins)
    return renamed if renamed.digest == earlier.digest else plan


def _changed_file(store: Store, plan: Plan) -> str | None:
    """Return which file changed since the existing scores were begun, or None."""
    earlier = _earlier_plan(store)
    return None if earlier is None else change_between(earlier, plan)


def _earlier_plan(store: Store) -> Plan | None:
    """Return the plan of the existing scores; None if it is missing or damaged."""
    try:
        return Plan.from_parquet(store.get(PLAN, MAX_PLAN_BYTES))
    except (NotFoundError, CorruptError):
        return None


def sealed(table: pa.Table, request: str, name: str) -> bytes:
    """Return a file of scores: Parquet, with its seal in the footer."""
    notes = {_REQUEST: request, _NAME: name, _SEAL: _BLANK.decode()}
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(None)
    # The seal covers all pages; page checksums are for other readers.
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=_repeating(table),
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table)
        # Not as the schema's metadata, which is stored a second time, encoded.
        writer.add_key_value_metadata(notes)
    data = sink.getvalue().to_pybytes()
    at = data.rfind(_BLANK)
    return data[:at] + _digest(data, at) + data[at + len(_BLANK) :]


def _repeating(table: pa.Table) -> list[str] | bool:
    """Return the columns to write with a dictionary: all but doubles that hardly repeat.

    For these a dictionary takes longer than the rest of writing and makes larger files. True, for
    all columns, if some are nested: a writer takes no names of these.
    """
    if any(pa.types.is_nested(field.type) for field in table.schema):
        return True
    return [
        name
        for name, column in zip(table.column_names, table.columns, strict=True)
        if not pa.types.is_float64(column.type) or _repeats(column.slice(0, _LOOKED_AT))
    ]


def _repeats(values: pa.ChunkedArray) -> bool:
    return 2 * len(values.unique()) <= len(values)


def entry_of(store: Store, name: str, request: str) -> dict[str, Any] | None:
    """Return the manifest entry of an intact file of these scores, else None.

    Raises
    ------
    CorruptError
        The file is Parquet, but not of these scores.
    """
    try:
        data = store.get(name)
    except NotFoundError:
        return None
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError):
        return None
    notes = footer.metadata or {}
    if notes.get(_REQUEST.encode()) != request.encode():
        raise CorruptError(
            f"{name} in {store.url} holds other scores than this job's; delete it and run the "
            f"same command again, or choose another folder"
        )
    seal = notes.get(_SEAL.encode(), b"")
    is_whole = (
        notes.get(_NAME.encode()) == name.encode()
        and len(seal) == len(_BLANK)
        and _digest(data, data.rfind(seal)) == seal
    )
    return described(name, data, footer.num_rows) if is_whole else None


def described(name: str, data: bytes, rows: Any) -> dict[str, Any]:
    """Return the manifest entry of a file."""
    digest = hashlib.sha256(data).hexdigest()
    return {"name": name, "rows": rows, "bytes": len(data), "sha256": digest}


def finish(store: Store, request: str, entries: list[dict[str, Any]], n_rows: int) -> None:
    """Write the manifest, after a check that the files have all rows."""
    rows = sum(entry["rows"] for entry in entries)
    if rows != n_rows:
        raise CorruptError(f"the files in {store.url} hold {rows} rows; expected {n_rows}")
    content = {"format": FORMAT, "asked": request, "rows": rows, "files": entries}
    store.put_same(MANIFEST, document.seal(content))


def verify(store: Store, request: str, names: Sequence[str]) -> None:
    """Check a finished job's files, sorted by name, against its manifest.

    Raises
    ------
    CorruptError
        A file changed since it was written, or the manifest is of another job.
    """
    name = f"{MANIFEST} in {store.url}"
    content = document.unseal(store.get(MANIFEST, document.MAX_BYTES), name)
    files = content.get("files")
    entries = [entry for entry in files if isinstance(entry, dict)] if type(files) is list else []
    listed = {str(entry.get("name")): entry for entry in entries}
    if content.get("asked") != request or sorted(listed) != list(names):
        raise CorruptError(f"{name} lists other files than this job's; choose another folder")
    for part in names:
        entry_now = described(part, store.get(part), listed[part].get("rows"))
        if entry_now != listed[part]:
            raise CorruptError(
                f"{part} in {store.url} changed since it was written: expected "
                f"{json.dumps(listed[part])[:400]}, got {json.dumps(entry_now)}; delete it and "
                f"{MANIFEST}, and run the same command again"
            )


def _digest(data: bytes, at: int) -> bytes:
    """Return the hexadecimal SHA-256 of a file, with zeros in place of its seal."""
    view = memoryview(data)
    hasher = hashlib.sha256(view[:at])
    hasher.update(_BLANK)
    hasher.update(view[at + len(_BLANK) :])
    return hasher.hexdigest().encode()
