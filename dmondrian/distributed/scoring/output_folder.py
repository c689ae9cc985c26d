"""The folder of scores: what was asked for, files known by their seals, and the manifest.

::

    _score.json             what was asked: model, data, columns kept; create-only, first
    _score.plan             the frozen input
    part-000000.parquet     scores of consecutive blocks; create-only, unless damaged
    _manifest.json          all parts with rows, bytes and digests; create-only, last

Relies on answers that depend on nothing but what was asked, so that a file written again says what
it said. Promises that before there is a manifest a file counts as written only if all of its bytes
are what their writer put there: its footer names what was asked and the file itself, and holds the
SHA-256 of the whole file, taken with zeros in that place. A footer that can be read is not enough:
pages before it may be damaged, or missing. Such a file, or one without a seal, is written again
over the old one; one of another job is refused.

The seal is in the file because one object is there or not: a digest beside it would be a second
request, and missing where a job was killed between the two. To check it a file is read once and
nothing is decoded, by the worker that would score it; that is what the manifest needs anyway.
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
from dmondrian.checkpoint.stream import MAX_PLAN_BYTES
from dmondrian.data import Plan, change_between
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

# Entries of a file's footer. A digest is as long as the zeros that hold its place.
_ASKED, _NAME, _SEAL = "dmondrian.score", "dmondrian.score.file", "dmondrian.score.sha256"
_BLANK = b"0" * 64
_LOOKED_AT = 1024  # values that tell whether those of a column come again


def check_details(details: Any) -> None:
    """Refuse anything but a truth value: "no" would be taken for yes.

    Raises
    ------
    ParameterError
        It is another.
    """
    if not isinstance(details, (bool, np.bool_)):
        raise ParameterError(f"details must be True or False, got {details!r}")


def check_out(out: str | os.PathLike[str]) -> None:
    """Refuse a folder that cannot take scores, before there is work; leave nothing behind.

    Raises
    ------
    CheckpointError
        The folder holds Parquet files that are no scores.
    StoreError
        The folder cannot be written; one with finished scores need not be.
    """
    with suppress(NotFoundError):  # a new one
        store = open_store(out, create=False)
        if store.exists(MANIFEST):
            return
        others = () if store.exists(ABOUT) else store.list()
        if first := next((name for name in others if name.endswith(".parquet")), None):
            raise CheckpointError(
                f"{store.url} holds Parquet files that are no scores of dmondrian ({first}); "
                f"expected an empty or new folder: choose another"
            )
    check_writable(out)


def claim(store: Store, about: dict[str, Any], plan: Plan) -> str:
    """Write what is asked, or compare it with what was; return its digest.

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
        differences = document.differences(there, about)
        if there.get("data") != about["data"] and (change := _changed_file(store, plan)):
            differences.append(change)
        lines = "".join(f"\n  {line}" for line in differences)
        raise CheckpointError(
            f"{store.url} holds other scores. These entries differ:{lines}\n"
            f"Choose another folder, or give the model, data and columns of those scores."
        ) from None
    # Equal plans may differ in the bytes of their notes: the first one stands.
    if not store.exists(PLAN):
        store.put(PLAN, plan.to_parquet())
    return hashlib.sha256(data).hexdigest()


def as_begun(store: Store, plan: Plan) -> Plan:
    """Return a plan with the digest that the scores in a folder were begun with, if it is theirs.

    Earlier versions noted the times of change of objects in a store that has ETags.
    """
    then = _plan_then(store)
    if then is None or len(then.blocks) != len(plan.blocks) or change_between(then, plan):
        return plan
    origins = {block.uri: (block.uri, block.stamp) for block in then.blocks}
    renamed = replace(plan, origins=origins)
    return renamed if renamed.digest == then.digest else plan


def _changed_file(store: Store, plan: Plan) -> str | None:
    """Say which file is not what it was for the scores that are there, as far as that is known."""
    then = _plan_then(store)
    return None if then is None else change_between(then, plan)


def _plan_then(store: Store) -> Plan | None:
    """Return the plan of the scores that are there; it is written after what was asked."""
    try:
        return Plan.from_parquet(store.get(PLAN, MAX_PLAN_BYTES))
    except (NotFoundError, CorruptError):
        return None


def sealed(table: pa.Table, asked: str, name: str) -> bytes:
    """Return a file of scores: Parquet, with its seal in the footer."""
    notes = {_ASKED: asked, _NAME: name, _SEAL: _BLANK.decode()}
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(None)
    # Checksums of pages, which the seal covers too, are what other readers may look at.
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
    """Return the columns to write with a dictionary: not doubles that hardly come twice.

    To try it takes longer than all else that is done to write them, and makes larger files. A
    writer cannot be told the names of columns within others, which are kept ones.
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


def entry_of(store: Store, name: str, asked: str) -> dict[str, Any] | None:
    """Return the manifest's entry of a file of these scores that is there and whole, else None.

    Raises
    ------
    CorruptError
        The file is Parquet, and not of these scores.
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
    if notes.get(_ASKED.encode()) != asked.encode():
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
    """Return the manifest's entry of a file."""
    digest = hashlib.sha256(data).hexdigest()
    return {"name": name, "rows": rows, "bytes": len(data), "sha256": digest}


def finish(store: Store, asked: str, entries: list[dict[str, Any]], n_rows: int) -> None:
    """Write the manifest of files that hold all rows."""
    rows = sum(entry["rows"] for entry in entries)
    if rows != n_rows:
        raise CorruptError(f"the files in {store.url} hold {rows} rows; expected {n_rows}")
    content = {"format": FORMAT, "asked": asked, "rows": rows, "files": entries}
    store.put_same(MANIFEST, document.seal(content))


def verify(store: Store, asked: str, names: Sequence[str]) -> None:
    """Check a finished job's files, sorted by name, against its manifest.

    Raises
    ------
    CorruptError
        A file is not what was written, or the manifest is another job's.
    """
    name = f"{MANIFEST} in {store.url}"
    content = document.unseal(store.get(MANIFEST, document.MAX_BYTES), name)
    files = content.get("files")
    entries = [entry for entry in files if isinstance(entry, dict)] if type(files) is list else []
    listed = {str(entry.get("name")): entry for entry in entries}
    if content.get("asked") != asked or sorted(listed) != list(names):
        raise CorruptError(f"{name} lists other files than this job's; choose another folder")
    for part in names:
        found = described(part, store.get(part), listed[part].get("rows"))
        if found != listed[part]:
            raise CorruptError(
                f"{part} in {store.url} changed since it was written: expected "
                f"{json.dumps(listed[part])[:400]}, got {json.dumps(found)}; delete it and "
                f"{MANIFEST}, and run the same command again"
            )


def _digest(data: bytes, at: int) -> bytes:
    """SHA-256 of a file, hexadecimal, with zeros where its seal stands."""
    view = memoryview(data)
    found = hashlib.sha256(view[:at])
    found.update(_BLANK)
    found.update(view[at + len(_BLANK) :])
    return found.hexdigest().encode()
