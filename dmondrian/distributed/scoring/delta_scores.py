"""Finished scores as a Delta table: a log beside the files, which stay as they are.

Relies on `deltalake`, and on files of finished scores, which never change. Promises that the table
has all of them, that the same call again changes nothing, and that a folder whose log names other
files is refused. Files with a column of a type that Delta has not are refused or left out: the log
would be of a table that cannot be read. Of scores that come one folder after the other the log has
an entry for each folder, in the commit with its files: so each is appended once, whenever a process
is killed, and although the table may be compacted or rows of it deleted meanwhile.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dmondrian._optional import require
from dmondrian.checkpoint import document
from dmondrian.data import Plan
from dmondrian.data.columns import partition_array
from dmondrian.data.delta_table import address_of, misread, options_of
from dmondrian.data.footers import open_parquet
from dmondrian.data.source import open_uri
from dmondrian.distributed.scoring.output_folder import MANIFEST
from dmondrian.errors import CheckpointError, ParameterError, SchemaError, StoreError
from dmondrian.store import open_store
from dmondrian.store.address import parse_address

_log = logging.getLogger("dmondrian")

DESCRIPTION = "Scores of the files that came, by dmondrian"
"""Tells a table that `ScoreTable` made from others."""


def check_deltalake(out: str | PathLike[str]) -> None:
    """Refuse to begin where the log could not be written.

    Parameters
    ----------
    out : str or path
        Folder of the table.

    Raises
    ------
    MissingPackageError
        The package that writes the log is not installed.
    ParameterError
        The package would write it elsewhere.
    """
    require("deltalake", "lake", "writing scores as a Delta table")
    url = parse_address(out).url
    if why := misread(url):
        raise ParameterError(f"the scores in {url} cannot be a Delta table: {why}")


def refuse_unknown_types(plan: Plan, keep: Sequence[str]) -> None:
    """Refuse columns to be kept in a Delta table that has no type for them.

    Parameters
    ----------
    plan : Plan
        Of the rows to score, whose files have such a column with one type.
    keep : sequence of str

    Raises
    ------
    SchemaError
    """
    block = plan.blocks[0]
    with open_parquet(block.uri) as parquet:
        types = {field.name: field.type for field in parquet.schema_arrow}
    for value in block.partition:
        types.setdefault(value[0], partition_array(value, 1).type)
    _refuse(pa.schema([(name, types[name]) for name in keep if name in types]))


def _refuse(schema: pa.Schema) -> None:
    if unknown := _unknown_types(schema):
        raise SchemaError(
            f"the scores cannot be a Delta table: it has no type for {unknown}. {_ADVICE}; or "
            "write the scores without one"
        )


def write_delta_log(url: str, names: Sequence[str]) -> None:
    """Make a Delta table of the files of finished scores, unless they are one.

    Parameters
    ----------
    url : str
        Folder of the scores.
    names : sequence of str
        All its files.

    Raises
    ------
    CheckpointError
        There is a log, and it has other files.
    SchemaError
        A column has a type that Delta has not.
    StoreError
        The log cannot be written.
    """
    import deltalake
    from deltalake.exceptions import DeltaError

    address, options = address_of(url), options_of(url)
    try:
        if not deltalake.DeltaTable.is_deltatable(address, options):
            with open_uri(f"{url.rstrip('/')}/{names[0]}") as file:
                _refuse(pq.read_schema(file))
            deltalake.convert_to_deltalake(address, mode="ignore", storage_options=options)
        table = deltalake.DeltaTable(address, storage_options=options)
        logged = sorted(uri.rsplit("/", 1)[-1] for uri in table.file_uris())
    except (DeltaError, OSError) as error:
        raise StoreError(f"the Delta log of {url} cannot be written: {error}") from error
    if logged != sorted(names):
        raise CheckpointError(
            f"the Delta log in {url} has {len(logged):,} files, and the scores {len(names):,}: "
            "expected a folder that nothing but these scores was written to; choose another"
        )


class ScoreTable:
    """A Delta table of the scores in the folders below a place, which is appended to.

    Parameters
    ----------
    url : str
        The place.

    Raises
    ------
    MissingPackageError
        `deltalake` is not installed.
    ParameterError
        There is another Delta table, or it would be written elsewhere.
    StoreError
        The log cannot be read.
    """

    def __init__(self, url: str) -> None:
        check_deltalake(url)
        self._url = url
        table = self._opened()
        if table is not None and table.metadata().description != DESCRIPTION:
            raise ParameterError(
                f"score: {url} is a Delta table that other scores or another program wrote; "
                "expected an empty or new folder, or one that the same job made"
            )
        self.is_begun = table is not None

    def append(self, folders: Iterable[str]) -> int:
        """Append the files of finished scores, unless they were; return the number of folders.

        Parameters
        ----------
        folders : iterable of str
            Names of folders below the place, each with a manifest. One whose columns have other
            names or types than those of the table is left out, with a warning, as is one with a
            column of a type that Delta has not.

        Raises
        ------
        CorruptError
            A manifest is damaged.
        StoreError
            The log cannot be written.
        """
        import deltalake
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import (
            AddAction,
            CommitProperties,
            Transaction,
            create_table_with_add_actions,
        )

        table = self._opened()
        schema = None if table is None else table.schema()
        files, entries = [], []
        left_out: dict[str, list[str]] = {}  # folders by the columns that Delta has no types for
        for name in folders:
            if table is not None and table.transaction_version(name) is not None:
                continue
            parts = self._parts(name)
            with open_uri(f"{self._url}/{name}/{parts[0]['name']}") as file:
                columns = pq.read_schema(file).remove_metadata()
            if unknown := _unknown_types(columns):
                left_out.setdefault(unknown, []).append(name)
                continue
            schema_of_scores = deltalake.Schema.from_arrow(columns)
            schema = schema_of_scores if schema is None else schema
            if schema_of_scores != schema:
                _log.warning(
                    "the scores in %s/%s are not appended to the Delta table: their columns are %s "
                    "and those of the table %s; score such files into a folder of their own",
                    self._url, name, _columns(schema_of_scores), _columns(schema),
                )  # fmt: skip
                continue
            entries.append(Transaction(name, 1))
            files += [
                AddAction(
                    f"{name}/{part['name']}", part["bytes"], {}, int(time.time() * 1000), True,
                    json.dumps({"numRecords": part["rows"]}),
                )
                for part in parts
            ]  # fmt: skip
        for unknown, names in left_out.items():
            _log.warning(
                "the scores in %s/%s%s are not appended to the Delta table, which has no type for "
                "%s. They stay as Parquet. %s, in files that come from now on",
                self._url, names[0], f" and {len(names) - 1:,} more" if len(names) > 1 else "",
                unknown, _ADVICE,
            )  # fmt: skip
        if not entries or schema is None:
            return 0
        commit = CommitProperties(app_transactions=entries)
        try:
            if table is None:
                create_table_with_add_actions(
                    address_of(self._url), schema, files, description=DESCRIPTION,
                    storage_options=options_of(self._url), commit_properties=commit,
                )  # fmt: skip
                self.is_begun = True
            else:
                table.create_write_transaction(files, "append", schema, commit_properties=commit)
        except (DeltaError, OSError) as error:
            raise StoreError(f"the Delta log of {self._url} cannot be written: {error}") from error
        return len(entries)

    def _parts(self, name: str) -> list[dict[str, Any]]:
        """Return the files of finished scores as their manifest has them."""
        where = f"{name}/{MANIFEST}"
        stored = open_store(self._url).get(where, document.MAX_BYTES)
        parts: list[dict[str, Any]] = document.unseal(stored, f"{where} in {self._url}")["files"]
        return parts

    def _opened(self) -> Any:
        """Return the table as it is now; None if there is none."""
        import deltalake
        from deltalake.exceptions import DeltaError

        address, options = address_of(self._url), options_of(self._url)
        try:
            if not deltalake.DeltaTable.is_deltatable(address, options):
                return None
            return deltalake.DeltaTable(address, storage_options=options)
        except (DeltaError, OSError) as error:
            raise StoreError(f"the Delta log of {self._url} cannot be read: {error}") from error


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type.type})" for field in schema.fields)


_ADVICE = (
    "Delta has no unsigned integers, nanoseconds, time zones but UTC, times of day, durations or "
    "float16, and no more than 38 decimal digits: keep other columns, or cast, to int64, "
    "timestamp[us] or timestamp[us, tz=UTC], say"
)


def _unknown_types(schema: pa.Schema) -> str:
    """Return the columns whose type Delta has not, with these types; empty if there are none."""
    unknown = [field for field in schema if not _is_known(field.type)]
    return ", ".join(f"the column {field.name!r} ({field.type})" for field in unknown)


def _is_known(kind: pa.DataType) -> bool:
    """Whether readers of a Delta table find the values of an Arrow type in its files.

    Deltalake itself takes more: an unsigned integer for the signed one of its width, in whose
    range it may not be, and nanoseconds, which few readers know.
    """
    t = pa.types
    if t.is_dictionary(kind):
        return _is_known(kind.value_type)
    if t.is_struct(kind):
        return all(_is_known(kind.field(i).type) for i in range(kind.num_fields))
    if t.is_map(kind):
        return _is_known(kind.key_type) and _is_known(kind.item_type)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return _is_known(kind.value_type)
    if t.is_timestamp(kind):
        return kind.unit != "ns" and kind.tz in (None, "UTC")
    return any(is_one(kind) for is_one in _KNOWN)


_KNOWN = (
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal128,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
